"""`adopt`: writes a SavedModel whose gradients of `tf.custom_gradient` work after loading."""

import os
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal

from . import _compare_models
from ._adopt_meta_graph import AUTODIFF, SAVED, AdoptedGradient, Adoption, Choice
from ._changed_copy import write_changed_copy

_API = "saved_model.adopt"


@dataclass(frozen=True)
class AdoptReport:
    """The changes that `adopt` made.

    Attributes:
      source: The folder of the source.
      target: The folder that was written.
      adopted: An AdoptedGradient for each gradient of `tf.custom_gradient`.
      comparisons: The results of the check; None if it was turned off.
    """

    source: str
    target: str
    adopted: list[AdoptedGradient]
    comparisons: list[_compare_models.Comparison] | None


@tf_internal.autograph_artifact
def adopt(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    gradients: Choice | Mapping[str, Choice] = SAVED,
    check: bool = True,
    inputs: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> AdoptReport:
    """Copies the SavedModel at `source` to `target`, with gradients of `tf.custom_gradient` that work after loading.

    A SavedModel that was made with `tf.custom_gradient` computes its values, but its gradients often fail: a name
    means nothing (`LookupError`), or a tensor is out of scope (`TypeError`). With `gradients="saved"` each gradient
    function that the file holds becomes a rule as those of `tf_cg_ops.custom_gradient`, in loops and conditionals, too:
    the gradient of the values `y` with respect to the arguments `x` is

        dx = gradient_function(dy)

    With `gradients="autodiff"` TensorFlow differentiates the ops that compute the values. Such a model needs no library
    when it is loaded.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @tf.custom_gradient
    ... def steep(x):
    ...     return tf.sign(x), lambda dy: 3.0 * dy
    >>> model = tf.Module()
    >>> model.f = tf.function(
    ...     lambda x: tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, steep(x)), (0, x))[1],
    ...     input_signature=[tf.TensorSpec([None])],
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> tf.saved_model.save(model, folder + "/model")
    >>> report = cg.saved_model.adopt(folder + "/model", folder + "/adopted")
    >>> [found.gradients for found in report.adopted], report.comparisons[0].verdict
    (['saved'], 'equal, bit for bit')
    >>> loaded = tf.saved_model.load(folder + "/adopted")
    >>> x = tf.constant([-1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = loaded.f(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [9.0, 90.0]

    Args:
      source: The folder of a SavedModel.
      target: The folder to write. Its parent must exist.
      gradients: "saved", "autodiff", or a dictionary from the name of a node, or of a function and a node as in
        "function/node", to one of the two or a rule, for places that shall have another gradient than "saved".
        `saved_model.inspect` lists the places. A rule is `rule(op, *dy)` as for `tf_cg_ops.override_gradients`; there
        `op.inputs` are the arguments and `op.outputs` the results.
      check: Whether to run and compare both models.
      inputs: The inputs of the check, as for `strip`.
      progress: Called with a line of text before each step.

    Returns:
      An AdoptReport. For each place it has the difference between "saved" and "autodiff", in numbers.

    Raises:
      FileNotFoundError: There is no SavedModel at `source`, files of its variables are missing, or the parent of
        `target` is not a folder.
      NotADirectoryError: `source` is a file.
      FileExistsError: `target` exists.
      TypeError: A rule does not take the op and its upstream gradients.
      ValueError: `gradients` is no such choice, or names no place; the file does not hold a gradient function, or one
        reads a tensor that its place does not get; a rule returned wrong gradients; the SavedModel cannot be read, is
        malformed, or cannot be loaded for the check; `target` lies inside `source`; `inputs` names an unknown signature
        or argument, or the source fails with them.
      RuntimeError: The new model fails, or computes other values.

    If there is any error, nothing is written.

    Compared with `tf.saved_model.load`: that registers the gradient functions of the file in the process that loads it.
    It finds none in a file that was saved with `experimental_custom_gradients=False`, and those in loops fail.
    """
    _check_gradients(gradients)
    with tf.init_scope():  # Outside of a function that is being traced.
        source, target = pathlib.Path(source), pathlib.Path(target)
        report_progress = progress or (lambda _: None)
        adoption = Adoption(_API, source, gradients, report_progress)

        def change(proto: Any) -> bool:
            for meta_graph in proto.meta_graphs:
                adoption.change(meta_graph)
            adoption.check_all_matched()
            return bool(adoption.adopted)

        _, comparisons = write_changed_copy(_API, source, target, change, check, inputs or {}, report_progress)
    return AdoptReport(str(source), str(target), adoption.adopted, comparisons)


def _check_gradients(gradients: Any) -> None:
    choices = gradients.values() if isinstance(gradients, Mapping) else [gradients]
    for choice in choices:
        if not callable(choice) and choice not in (SAVED, AUTODIFF):
            raise ValueError(
                f"{_API}: gradients is no choice of gradients; expected 'saved', 'autodiff', a rule, or a dictionary "
                f"of these by places, got {text.describe(choice)}."
            )
