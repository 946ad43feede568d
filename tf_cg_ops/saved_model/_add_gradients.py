"""`add_gradients`: copies a SavedModel, with a signature that computes gradients."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, text, tf_internal
from tf_cg_ops._src.rewrite.override_gradients import copy_with_rules
from tf_cg_ops._src.rewrite.rule_table import Rule, RuleTable
from tf_cg_ops._src.rewrite.traced_call import trace

from ._adopt import AdoptedGradient, Adoption
from ._changed_copy import Copied, write_changed_copy
from ._folder import GRAPH_FILES
from ._foreign_gradients import is_foreign
from ._graphs import called, functions_of, raised_as_value_error, reachable, reason_of
from ._lite import weight_signatures, with_lite_ops
from ._new_signature import SavedSignature, add_signature, find_signature, unused

_API = "saved_model.add_gradients"
_VARIABLES = "variables"


def _mse(y: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(y - target))


def _crossentropy(y: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, y))


_LOSSES = {"mse": _mse, "crossentropy": _crossentropy}


@dataclass(frozen=True)
class SignatureTensor:
    """An input or an output of a signature.

    Attributes:
      name: Its name in the signature.
      dtype: The name of its dtype.
      shape: Its dimensions, with None for an unknown one; None if even their number is unknown.
      meaning: What it is, such as "gradient of dense/kernel".
      tensor: Its name in the graph, for programs that run a session, such as one in C.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    meaning: str
    tensor: str


@dataclass(frozen=True)
class AddGradientsReport(Copied):
    """The signature that `add_gradients` added.

    Attributes:
      source: The folder of the source.
      target: The folder that was written.
      comparisons: What `compare` found out about the values of all that was there before; None if the check was turned
        off.
      name: The name of the signature.
      inputs: A SignatureTensor for each input.
      outputs: A SignatureTensor for each output.
      weights: A SignatureTensor for each variable, as the signature `weights` returns and `set_weights` takes it; empty
        unless you asked for `lite` and `update`.
      updated: The names of the variables that a call updates.
      unconnected: The names of the trainable variables without a gradient, because the outputs do not depend on them.
      adopted: An AdoptedGradient for each gradient of `tf.custom_gradient` that was made to work, as `adopt` does.
    """

    name: str
    inputs: list[SignatureTensor]
    outputs: list[SignatureTensor]
    weights: list[SignatureTensor]
    updated: list[str]
    unconnected: list[str]
    adopted: list[AdoptedGradient]

    def __str__(self) -> str:
        kinds = {"input": self.inputs, "output": self.outputs, "weight": self.weights}
        tensors = [(kind, each) for kind, tensors in kinds.items() for each in tensors]
        rows = [(label, (each.name, _type_text(each), each.tensor, each.meaning)) for label, each in tensors]
        widths = [max(len(row[i]) for _, row in rows) for i in range(3)]
        lines = [
            ("signature", self.name),
            *((label, "  ".join([*map(str.ljust, row[:3], widths), row[3]])) for label, row in rows),
            *(("updated", name) for name in self.updated),
            *(("adopted", str(each)) for each in self.adopted),
        ]
        return self._text(lines, [("attention", f"{name} has no gradient") for name in self.unconnected])


def _type_text(tensor: SignatureTensor) -> str:
    dimensions = "..." if tensor.shape is None else ", ".join("?" if n is None else str(n) for n in tensor.shape)
    return f"{tensor.dtype} [{dimensions}]"


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, "Name the options, as in of='scores', wrt='image'.")
def add_gradients(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    signature: str = "serving_default",
    of: str | Sequence[str],
    wrt: str | Sequence[str],
    name: str = "gradients",
    loss: str | None = None,
    update: float | None = None,
    rules: Mapping[Any, Rule] | None = None,
    lite: bool = False,
    flex: bool = False,
    check: bool = True,
) -> AddGradientsReport:
    """Copies a SavedModel, and adds a signature that computes gradients, for programs without Python.

    >>> import tempfile
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> model = tf.Module()
    >>> model.w = tf.Variable([2.0, 3.0], name="w")
    >>> model.f = tf.function(lambda x: {"y": model.w * x**2}, input_signature=[tf.TensorSpec([None, 2])])
    >>> folder = tempfile.mkdtemp()
    >>> tf.saved_model.save(model, folder + "/model", signatures=model.f)
    >>> report = cg.saved_model.add_gradients(folder + "/model", folder + "/both", of="y", wrt=["x", "variables"])
    >>> [each.name for each in report.inputs], [each.name for each in report.outputs]
    (['x', 'd_y'], ['y', 'd_x', 'd_w'])
    >>> gradients = tf.saved_model.load(folder + "/both").signatures["gradients"]
    >>> found = gradients(x=tf.constant([[5.0, 1.0]]), d_y=tf.constant([[1.0, 10.0]]))
    >>> found["y"].numpy().tolist(), found["d_x"].numpy().tolist(), found["d_w"].numpy().tolist()
    ([[50.0, 3.0]], [[20.0, 60.0]], [25.0, 10.0])

    The new signature takes the inputs of the old one, and an upstream gradient `d_<output>` for each output in `of`. It
    returns the outputs of the old one, and the gradients `d_<input>` and `d_<variable>` that a tape would compute.

    With a `loss`, it takes a `target` of the shape and dtype of the output instead, and also returns `loss`. "mse" is
    the mean squared error. "crossentropy" takes the output as logits and the target as probabilities, such as one-hot
    vectors, like `keras.losses.CategoricalCrossentropy(from_logits=True)`.

    With `update`, each call is a step of gradient descent: the variables change by `-update` times their gradients,
    which are not returned. Outputs and loss are from before the step.

    All that was there stays as it is: other signatures, functions, variables, tags and assets. Where the signature uses
    gradients of `tf.custom_gradient`, the new one has those that `adopt` makes from the file. If the model has custom
    gradients or you pass rules, loading the copy needs `import tf_cg_ops`, until you `strip` it.

    Args:
      source: The folder of a SavedModel.
      target: The folder to write. Its parent must exist.
      signature: The signature to differentiate.
      of: The name of one of its outputs, or a list of names.
      wrt: The name of one of its inputs, or a list of names. "variables" stands for the trainable variables that the
        signature reads. Those on which `of` does not depend are left out, and the report lists them.
      name: The name of the new signature: letters, digits and underscores.
      loss: "mse" or "crossentropy". `of` must be a single output.
      update: The learning rate. `wrt` must have "variables".
      rules: Gradients of ops for the new signature, as in `tf_cg_ops.override_gradients`.
      check: Whether to `compare` the values of both models.

    Returns:
      An AddGradientsReport, which lists inputs and outputs with dtypes and shapes. Names consist of letters, digits and
      underscores; other characters become underscores, and a name that is taken gets a number, as in `d_kernel_1`.

    Raises:
      FileNotFoundError: `source` is not a SavedModel, or lacks files of variables; the parent of `target` is not a
        folder.
      NotADirectoryError: `source` is a file.
      FileExistsError: `target` exists.
      TypeError: An argument has the wrong type; an output or input that you name has no real or complex numbers.
      ValueError: The model does not have what `signature`, `of` or `wrt` names (the message lists what it has); `name`
        is taken; `of` does not depend on an input that you name, or on any variable; an op has no gradient; `loss` or
        `update` does not fit; the file lacks a gradient function of `tf.custom_gradient`; a rule matches no op or
        returns wrong gradients; the SavedModel is of TensorFlow 1, malformed, or cannot be read or loaded; `target`
        lies inside `source`.
      RuntimeError: The new model fails, or computes other values.

    If there is an error, nothing is written.
    """
    of, wrt = _names("of", of), _names("wrt", wrt)
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)):
        wrong = ValueError if isinstance(name, str) else TypeError
        raise wrong(f"{_API}: name must be letters, digits and underscores, got {text.describe(name)}.")
    if loss is not None and loss not in _LOSSES:
        raise ValueError(f"{_API}: loss must be 'mse', 'crossentropy' or None, got {text.describe(loss)}.")
    if update is not None:
        is_number = isinstance(update, (int, float)) and not isinstance(update, bool)
        if not is_number or not 0.0 < update < math.inf:
            wrong = ValueError if is_number else TypeError
            raise wrong(f"{_API}: update must be a learning rate such as 0.01, got {text.describe(update)}.")
        if _VARIABLES not in wrt:
            raise ValueError(f"{_API}: wrt must have 'variables' for an update, got {text.quoted(wrt)}.")
    table = None if rules is None else RuleTable(_API, rules, inside=False, unmatched="error")
    question = _Question(signature, of, wrt, loss, update, table)
    answers: list[Any] = []

    def change(meta_graphs: Any, path: pathlib.Path) -> bool:
        saved = find_signature(_API, path, meta_graphs, signature)
        (meta_graph,) = meta_graphs
        if name in meta_graph.signature_def:
            raise ValueError(f"{_API}: name must be new, got {name!r}, which '{path}' has. Pass another name.")
        with _adopted(meta_graph, path, saved) as (folder, adopted):
            with raised_as_value_error(_API, path, "load"):
                loaded = tf.saved_model.load(str(folder))
            function = loaded.signatures[signature]
            gradients = _Gradients(function, question, path)
            traced = gradients.trace  # The one place to change the function before it is saved.
            captures = [_position(tensor, function.captured_inputs) for tensor in traced.captured_inputs]
            tensors = add_signature(meta_graph, saved, name, traced, captures)
        specs = traced.structured_input_signature[1], traced.structured_outputs
        rows = [
            [_row(key, each[key], meanings[key], names[key]) for key in meanings]
            for each, meanings, names in zip(specs, (gradients.inputs, gradients.outputs), tensors, strict=True)
        ]
        answers.extend([*rows, gradients.updated, gradients.unconnected, adopted])
        return True

    copied_from, copied_to, comparisons = write_changed_copy(_API, source, target, change, check)
    old = comparisons and [each for each in comparisons if each.name != name]
    return AddGradientsReport(copied_from, copied_to, old, name, *answers)


def _names(argument: str, value: Any) -> list[str]:
    """One name or several, as a list."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise TypeError(f"{_API}: {argument} must be a name or a list of names, got {text.describe(value)}.")
    if not names:
        raise ValueError(f"{_API}: {argument} must have at least one name, got {text.describe(value)}.")
    return list(dict.fromkeys(names))


def _row(key: str, spec: Any, meaning: str, tensor: str) -> SignatureTensor:
    shape = None if spec.shape.rank is None else tuple(spec.shape)
    return SignatureTensor(key, spec.dtype.name, shape, meaning, tensor)


def _position(tensor: Any, captured: Sequence[Any]) -> int:
    position = next((i for i, each in enumerate(captured) if each is tensor), None)
    if position is None:
        raise ValueError(
            f"{_API}: rules must compute from the op and the upstream gradients alone, got one that reads "
            f"{text.describe(tensor)} of shape {tensor.shape} from outside of the model."
        )
    return position


@contextlib.contextmanager
def _adopted(
    meta_graph: Any, path: pathlib.Path, saved: SavedSignature
) -> Iterator[tuple[pathlib.Path, list[AdoptedGradient]]]:
    """The folder of a model in which the signature has gradients, and those of `tf.custom_gradient` that it took."""
    library = functions_of(meta_graph.graph_def)
    reached = reachable([saved.function], lambda name: called(library[name].node_def, library))
    if not any(is_foreign(node) for name in reached for node in library[name].node_def):
        yield path, []
        return
    adoption, copy = Adoption("saved"), type(meta_graph).FromString(meta_graph.SerializeToString())
    try:
        adoption.change([copy], path)
    except ValueError as error:
        raise ValueError(
            f"{_API}: the model must have all gradient functions of tf.custom_gradient. Write a copy with "
            f"saved_model.adopt first, because of this: {error}"
        ) from error
    # Only gradients are taken from this model, so the other signatures of the copy stay as they are.
    with tempfile.TemporaryDirectory() as folder:
        for child in path.iterdir():
            if child.name not in (*GRAPH_FILES, "fingerprint.pb"):
                (pathlib.Path(folder) / child.name).symlink_to(child.resolve())
        proto = tf_internal.parse_saved_model(str(path))
        proto.meta_graphs[0].CopyFrom(copy)
        (pathlib.Path(folder) / GRAPH_FILES[0]).write_bytes(proto.SerializeToString())
        yield pathlib.Path(folder), adoption.adopted


@dataclass(frozen=True)
class _Question:
    """Which gradients the user wants."""

    signature: str
    of: list[str]
    wrt: list[str]
    loss: str | None
    update: float | None
    table: RuleTable | None


class _Gradients:
    """The function that computes the gradients of a signature.

    Attributes:
      trace: The function, a ConcreteFunction.
      inputs, outputs: What each input and output is.
      updated, unconnected: The names of variables.
    """

    def __init__(self, function: Any, question: _Question, path: pathlib.Path) -> None:
        self._question = question
        specs, results = dict(function.structured_input_signature[1]), function.structured_outputs
        self._check_names(specs, results)
        self.inputs = dict.fromkeys(specs, "input")
        self._dys: list[str] = []  # The inputs that are upstream gradients, or the target.
        for key in question.of:
            wanted, meaning = (
                (f"d_{key}", f"upstream gradient of {key}") if question.loss is None else ("target", "target")
            )
            self._dys.append(self._add(self.inputs, wanted, meaning))
            specs[self._dys[-1]] = tf.TensorSpec(results[key].shape, results[key].dtype)
        self.outputs = dict.fromkeys(results, "output")
        self.updated: list[str] = []
        self.unconnected: list[str] = []
        keys = [*function.structured_input_signature[1]]
        call = trace(lambda *tensors: function(**dict(zip(keys, tensors, strict=True))), [specs[key] for key in keys])

        def gradients(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            inside = [*(given[key] for key in keys), *call.captured_inputs]
            # Copied, so that nothing is computed or saved but what these gradients need.
            flat = copy_with_rules(
                _API, question.table, f"'{path}'", call.graph, zip(call.graph.inputs, inside, strict=True)
            )
            y = dict(zip(sorted(results), flat, strict=True))
            return y | self._differentiated(given, y, function.trainable_variables)

        named = {key: tf.TensorSpec(specs[key].shape, specs[key].dtype, key) for key in sorted(specs)}
        self.trace = tf.function(gradients, autograph=False).get_concrete_function(**named)

    def _check_names(self, specs: Mapping[str, Any], results: Mapping[str, Any]) -> None:
        question = self._question
        wrt = [key for key in question.wrt if key != _VARIABLES]
        for argument, keys, known, what in (("of", question.of, results, "outputs"), ("wrt", wrt, specs, "inputs")):
            unknown = [key for key in keys if key not in known]
            others = f" and {_VARIABLES!r}" if argument == "wrt" else ""
            if unknown:
                raise ValueError(
                    f"{_API}: {argument} must name {what} of '{question.signature}', which has "
                    f"{text.quoted(sorted(known))}{others}, got {text.quoted(unknown)}."
                )
            wrong = [key for key in keys if not tf_internal.is_trainable(known[key].dtype)]
            if wrong:
                raise TypeError(
                    f"{_API}: {argument} must name {what} of real or complex numbers, got {wrong[0]!r} of dtype "
                    f"{known[wrong[0]].dtype.name}."
                )

    def _add(self, known: dict[str, str], wanted: str, meaning: str) -> str:
        """Adds a name that a C program can write."""
        name = unused(re.sub(r"\W", "_", wanted, flags=re.ASCII), known)
        known[name] = meaning
        return name

    def _differentiated(
        self, given: Mapping[str, tf.Tensor], y: Mapping[str, tf.Tensor], variables: Sequence[Any]
    ) -> dict[str, tf.Tensor]:
        question, found = self._question, {}
        ys = [y[key] for key in question.of]
        # A dimension of unknown size could otherwise be broadcast, without an error.
        dys = [tf.reshape(given[key], tf.shape(of)) for key, of in zip(self._dys, ys, strict=True)]
        if question.loss is not None:
            ys, dys = [_LOSSES[question.loss](ys[0], dys[0])], []
            found[self._add(self.outputs, "loss", "loss")] = ys[0]
        wrt = [key for key in question.wrt if key != _VARIABLES]
        variables = variables if _VARIABLES in question.wrt else []
        names = [*wrt, *(variable.name.removesuffix(":0") for variable in variables)]
        sources = [*(given[key] for key in wrt), *(variable.handle for variable in variables)]
        try:
            gradients = tf.gradients(ys, sources, dys or None)
        except LookupError as error:
            raise ValueError(
                f"{_API}: all ops between must have a gradient: {reason_of(error)}. Pass rules={{op_type: rule}}."
            ) from error
        for i, (name, gradient) in enumerate(zip(names, gradients, strict=True)):
            if gradient is None:
                if i < len(wrt):
                    raise ValueError(f"{_API}: no gradient from {question.of} to {name!r}")
                self.unconnected.append(name)
                continue
            if question.update is not None and i >= len(wrt):
                variable = variables[i - len(wrt)]
                variable.assign_sub(tf.cast(question.update, gradient.dtype) * gradient)
                self.updated.append(name)
            else:
                found[self._add(self.outputs, f"d_{name}", f"gradient of {name}")] = tf.convert_to_tensor(gradient)
        return found
