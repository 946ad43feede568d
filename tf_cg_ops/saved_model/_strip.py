"""`strip`: writes a SavedModel without the ops of this library."""

import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

from . import _compare_models, _graph_errors, _malformed, _strip_meta_graph
from ._changed_copy import write_changed_copy

_API = "saved_model.strip"


@dataclass(frozen=True)
class StripReport:
    """The changes that `strip` made.

    Attributes:
      source: The folder of the source.
      target: The folder that was written.
      replaced: The number of replaced operations of each op.
      nodes_dropped: The number of dropped operations.
      functions_dropped: The number of dropped functions.
      host_functions: The operations that call Python functions of the process that made the model.
      comparisons: The results of the check; None if it was turned off.
    """

    source: str
    target: str
    replaced: dict[str, int]
    nodes_dropped: int
    functions_dropped: int
    host_functions: list[str]
    comparisons: list[_compare_models.Comparison] | None


@tf_internal.autograph_artifact
def strip(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    check: bool = True,
    inputs: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> StripReport:
    """Copies the SavedModel at `source` to `target` without ops of this library.

    The copy has the same values, h = fx for each embedded gradient. It loads without this library, and you can freeze
    it and convert it to TensorFlow Lite.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> model = tf.Module()
    >>> model.f = tf.function(
    ...     lambda x: cg.embed_gradient(tf.sign(x), 1.0, x), input_signature=[tf.TensorSpec([None])]
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> tf.saved_model.save(model, folder + "/model")
    >>> report = cg.saved_model.strip(folder + "/model", folder + "/stripped")
    >>> report.replaced, report.comparisons[0].verdict
    ({'CustomGradientEmbed': 1}, 'equal, bit for bit')
    >>> tf.saved_model.load(folder + "/stripped").f(tf.constant([-2.0, 0.5])).numpy().tolist()
    [-1.0, 1.0]

    Args:
      source: The folder of a SavedModel.
      target: The folder to write. Its parent must exist.
      check: Whether to run and compare both models.
      inputs: The inputs of the check: signatures by name, and in each the arguments by name, as Tensors or values that
        convert to the dtypes of the signature. Missing arguments are made up. Of several meta graphs, each takes the
        signatures that it has.
      progress: Called with a line of text before each step.

    Returns:
      A StripReport.

    Raises:
      FileNotFoundError: There is no SavedModel at `source`, files of its variables are missing, or the parent of
        `target` is not a folder.
      NotADirectoryError: `source` is a file.
      FileExistsError: `target` exists.
      ValueError: The SavedModel cannot be read, is malformed, or cannot be loaded for the check; `target` lies inside
        `source`; `inputs` names an unknown signature or argument, or the source fails with them.
      RuntimeError: The stripped model fails, or computes other values.

    Kept: all signatures, functions, variables, assets and further files. The gradient

        dx = sum_to_shape_of_x(dy * conj(gx))

    is kept, as built-in operations, only if a saved function computes it itself, for example a saved training step.

    Dropped: the nodes that only gradients read, except for the inputs of loops, conditionals and called functions; and
    the checks of shapes of gradients at run time. A tape around the stripped model finds the derivatives of the
    operations that computed the values, without custom gradients: do not train it further.

    The check loads both models, and calls each signature, and each function of the root object and its parts, on the
    same inputs: yours, or small ones that fit the input specs. Values, and the variables afterwards, must be equal bit
    for bit, or up to rounding, since TensorFlow may order or fuse operations in another way; the report says which. It
    also names those that could not be compared: the source fails with made-up inputs, returns other values each time,
    or returns no values, but for example a dataset. Functions that run while a model is loaded, for example to fill a
    table, are compared only by the values that use the table.

    `target` is complete or does not exist: it is written beside it and renamed at the end.

    Compared with `tf.saved_model.save`: that traces a model from Python. `strip` rewrites the saved graphs and needs no
    Python code of the model.
    """
    with tf.init_scope():  # Outside of a function that is being traced.
        return _strip(pathlib.Path(source), pathlib.Path(target), check, inputs or {}, progress or (lambda _: None))


def _strip(
    source: pathlib.Path,
    target: pathlib.Path,
    check: bool,
    inputs: _compare_models.Inputs,
    progress: Callable[[str], None],
) -> StripReport:
    changes = _strip_meta_graph.Changes()

    def change(proto: Any) -> bool:
        with _graph_errors.raised_as_value_error(_API, source):
            for meta_graph in proto.meta_graphs:
                _malformed.check_graph(meta_graph.graph_def)
                _strip_meta_graph.strip_meta_graph(meta_graph, changes, progress)
        return bool(changes.replaced)

    proto, comparisons = write_changed_copy(_API, source, target, change, check, inputs, progress)
    hosts = [name for meta_graph in proto.meta_graphs for name in _strip_meta_graph.host_functions(meta_graph)]
    return StripReport(
        source=str(source),
        target=str(target),
        replaced=dict(sorted(changes.replaced.items())),
        nodes_dropped=changes.nodes_dropped,
        functions_dropped=changes.functions_dropped,
        host_functions=hosts,
        comparisons=comparisons,
    )
