"""`strip`: a SavedModel without the ops of this library."""

import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

from . import _compare, _damage, _folder, _inputs, _meta_graph, _refusal

_API = "saved_model.strip"


@dataclass(frozen=True)
class StripReport:
    """What `strip` did.

    `replaced` counts the replaced operations by their op; `host_functions` names the operations that call back into the
    Python process in which the model was made; `comparisons` is None where the check was turned off.
    """

    source: str
    target: str
    replaced: dict[str, int]
    nodes_dropped: int
    functions_dropped: int
    host_functions: list[str]
    comparisons: list[_compare.Comparison] | None


@tf_internal.autograph_artifact
def strip(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    check: bool = True,
    inputs: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> StripReport:
    """Writes a SavedModel to `target` that computes what the one at `source` computes, without ops of this library.

    The values are those of the source, h = fx for each embedded gradient; with it,

        dx = sum_to_shape_of_x(dy * conj(gx))

    is kept only where a saved function computes it itself, as a saved training step does: as stock operations. All
    signatures, functions, variables, assets and further files are kept; what only gradients read is dropped, except
    for what a loop, a conditional or another function is given for them. The result loads where this library is not
    installed, and can be frozen and converted to TensorFlow Lite.

    The check loads both and calls each signature, and each function of the root object and its parts, on the same
    inputs: those that are passed, or small ones that fit their input specs. Values, and the variables afterwards, have
    to be the same bits, or differ by no more than rounding where TensorFlow orders or fuses operations in another way;
    the report says which. It also says what was not compared: where the source refuses inputs that are made up, gives
    other values each time, or gives what is no value, such as a dataset. What runs while a model is loaded, such as the
    filling of a table, is compared by what is computed from it.

    Nothing is at `target` before all is done, and nothing if it fails.

    Relation to `tf.saved_model.save`: that traces a model from Python; here the saved graphs are rewritten, and no
    Python code of the model is needed.

    What it does not do: keep custom gradients for those who differentiate the stripped model. A tape finds the
    derivatives of what computed the values, which the custom gradient was there to replace. Checks of the shapes of
    gradients at run time are dropped, too.

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
      target: The folder that is made. Its parent has to be there.
      check: Whether to run and compare both.
      inputs: For signatures by name, their arguments by name: Tensors or what converts to the dtypes of the signature.
        Arguments that are left out are made up. Where there are several meta graphs, each takes what it has.
      progress: Called with a line of text before each step.

    Returns:
      A StripReport.

    Raises:
      FileNotFoundError: There is no SavedModel at `source`, files of its variables are missing, or the target has no
        parent.
      NotADirectoryError: `source` is a file.
      FileExistsError: There is something at `target`.
      ValueError: The SavedModel cannot be read, is broken, or cannot be loaded for the check; `target` lies inside of
        `source`; `inputs` names what is not there, or the source refuses them.
      RuntimeError: The stripped model fails, or computes something else.
    """
    with tf.init_scope():  # Whatever function is being traced around the call.
        return _strip(pathlib.Path(source), pathlib.Path(target), check, inputs or {}, progress or (lambda _: None))


def _strip(
    source: pathlib.Path, target: pathlib.Path, check: bool, inputs: _compare.Inputs, tell: Callable[[str], None]
) -> StripReport:
    tell(f"reading {source}")
    proto = _folder.read(_API, source)
    _folder.check_target(_API, source, target)
    _folder.check_variables(_API, source, proto)
    _inputs.check_names(_API, proto, inputs)
    changes = _meta_graph.Changes()
    with _refusal.of_graphs(_API, source):
        for meta_graph in proto.meta_graphs:
            _damage.check(meta_graph.graph_def)
            _meta_graph.strip(meta_graph, changes, tell)
    comparisons = None
    with _folder.becoming(target) as unfinished:
        tell(f"writing {target}")
        if changes.replaced:
            _folder.copy_with(_API, source, unfinished, proto)
        else:
            _folder.copy(source, unfinished)
        if check and not changes.replaced:
            comparisons = [_compare.Comparison("all", _compare.NOT_COMPARED, "nothing was changed")]
        elif check:
            comparisons = []
            for meta_graph in proto.meta_graphs:
                tags = f" of {', '.join(meta_graph.meta_info_def.tags)}" if len(proto.meta_graphs) > 1 else ""
                comparisons += _compare.compare(_API, source, unfinished, meta_graph, tags, inputs, tell)
    hosts = [name for meta_graph in proto.meta_graphs for name in _meta_graph.host_functions(meta_graph)]
    return StripReport(
        source=str(source),
        target=str(target),
        replaced=dict(sorted(changes.replaced.items())),
        nodes_dropped=changes.nodes_dropped,
        functions_dropped=changes.functions_dropped,
        host_functions=hosts,
        comparisons=comparisons,
    )
