"""`add_gradients`: copies a SavedModel, with a signature that computes gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import numbers
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, misplaced_calls, text, tf_internal
from tf_cg_ops._src.rewrite.capture import Cut
from tf_cg_ops._src.rewrite.op_rules import Rule, RuleTable
from tf_cg_ops._src.rewrite.override_gradients import copy_with_rules
from tf_cg_ops._src.rewrite.traced_call import trace

from ._adopt import AdoptedGradient, Adoption
from ._changed_copy import Copied, write_changed_copy
from ._compare import Comparison
from ._folder import GRAPH_FILES, read_saved_model
from ._foreign_gradients import is_foreign
from ._graphs import called, functions_of, raised_as_value_error, reachable, reason_of
from ._lite import WEIGHT_SIGNATURES, let_the_converter_see_all_signatures, weight_signatures, with_lite_ops
from ._lite_check import compare_in_lite
from ._new_signature import RESERVED, add_signature, find_signature, unused
from ._new_variables import add_variables, write_values
from ._training import OPTIMIZERS, Training, concrete

_API = "saved_model.add_gradients"
_VARIABLES = "variables"
_INNER = "inner:"
_MOST_DIMENSIONS = 254  # Of a Tensor.
_LARGEST_RATE = 1e38  # Of a float32 number.
_SHOWN = 4  # How many variables a message names.
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


# The loss of each element or example.
_LOSSES: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "mse": lambda y, target: tf.square(y - target),
    "crossentropy": lambda y, target: tf.nn.softmax_cross_entropy_with_logits(target, y),
}


def _mean_loss(loss: str, y: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Like Keras, in float32 if the numbers have 16 bits, of which a sum overflows."""
    dtype = tf.float32 if y.dtype.size < 4 else y.dtype
    return tf.reduce_mean(_LOSSES[loss](tf.cast(y, dtype), tf.cast(target, dtype)))


@dataclass(frozen=True)
class SignatureTensor:
    """An input or an output of a signature.

    Attributes:
      name: Its name in the signature.
      dtype: Its dtype, such as "float32".
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
      comparisons: What `compare` found out about the values of all that was there before, and with `lite` a comparison
        of the new signature in LiteRT and in TensorFlow; None if the check was turned off.
      name: The name of the signature.
      inputs: A SignatureTensor for each input.
      outputs: A SignatureTensor for each output.
      weights: A SignatureTensor for each updated variable and what the optimizer remembers, as the signature "weights"
        returns and "set_weights" takes it; empty without `lite`, or if they are arguments.
      updated: The names of the variables that a call updates.
      unconnected: The names of the trainable variables without a gradient, because the outputs do not depend on them.
      adopted: An AdoptedGradient for each gradient of `tf.custom_gradient` that was made to work, as `adopt` does.
      start: With `state="arguments"`, arrays for these arguments before the first step, by the names of inputs: the
        weights in the file, and zeros.
    """

    name: str
    inputs: list[SignatureTensor]
    outputs: list[SignatureTensor]
    weights: list[SignatureTensor]
    updated: list[str]
    unconnected: list[str]
    adopted: list[AdoptedGradient]
    start: dict[str, np.ndarray] = field(repr=False)

    def __str__(self) -> str:
        lists = {"input": self.inputs, "output": self.outputs, "weight": self.weights}
        tensors = [(label, each) for label, tensors in lists.items() for each in tensors]
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
@misplaced_calls.explains(_API, "Name the options, as in of='scores', wrt='image', update=0.01.")
def add_gradients(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    signature: str = "serving_default",
    of: str | Sequence[str],
    wrt: str | Sequence[str],
    outputs: str | Sequence[str] = (),
    given: str | Sequence[str] = (),
    name: str = "gradients",
    loss: str | None = None,
    update: float | str | None = None,
    optimizer: str = "sgd",
    state: str = "variables",
    rules: Mapping[Any, Rule] | None = None,
    lite: bool = False,
    flex: bool = False,
    check: bool = True,
) -> AddGradientsReport:
    """Copies a SavedModel, and adds a signature that computes gradients, for programs without Python.

    Use it to train, or to compute saliency maps, in such a program.

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

    With `update`, each call is a training step: the variables change as a Keras optimizer would change them, with its
    default options, and their gradients are not returned. Outputs and loss are from before the step. What the
    optimizer remembers are new variables of the file.

    | `optimizer`  | a step                                                               | in Keras            |
    |--------------|----------------------------------------------------------------------|---------------------|
    | `"sgd"`      | `w -= update * d_w`                                                  | `SGD`               |
    | `"momentum"` | `m = 0.9 * m - update * d_w; w += m`                                 | `SGD(momentum=0.9)` |
    | `"adam"`     | Kingma and Ba (2015), arXiv:1412.6980, with 0.9, 0.999 and eps. 1e-7 | `Adam`              |

    With `state="arguments"`, the new signature has no state: it takes the values of the variables in `wrt` as inputs,
    and with `update` also what the optimizer remembers, and returns the new ones under the same names. Begin with the
    arrays in `start` of the report. Use it for federated learning, and on runtimes without variables. Without `update`,
    the signature returns gradients, for an optimizer of your own.

    `wrt="inner:block3"` stands for a value inside the signature, such as the last one in the scope "block3", as in
    `tf_cg_ops.capture`. So a program in C can compute Grad-CAM, and integrated gradients of a hidden layer.

    With `lite`, the new signature only has ops that LiteRT (TensorFlow Lite) has built in, so that LiteRT can compute
    gradients, or train the model on a device. If a step changes variables, there are two more signatures, so that your
    program can keep the training in a file: "weights" returns these variables, and "set_weights" sets them.

    All that was there stays as it is: other signatures, functions, variables, tags and assets. Where the signature uses
    gradients of `tf.custom_gradient`, the new one has those that `adopt` makes from the file. If the model has custom
    gradients or you pass rules, loading the copy needs `import tf_cg_ops`, until you `strip` it.

    Args:
      source: The folder of a SavedModel.
      target: The folder to write. Its parent must exist.
      signature: The signature to differentiate.
      of: The name of one of its outputs, or a list of names.
      wrt: The name of one of its inputs, or a list of names. "variables" stands for the trainable variables that the
        signature reads, and a pattern such as "head/*" for those whose names match; all others have no gradient. (Of
        an input and a variable with the same name, the input is meant.) Variables on which `of` does not depend are
        left out, and the report lists them. "inner:NAME" stands for the value inside with the name of an op or a scope.
      outputs: Values inside, such as "inner:NAME", that the new signature returns, too.
      given: Values inside that the new signature takes as inputs, instead of computing them.
      name: The name of the new signature: letters, digits and underscores.
      loss: "mse" or "crossentropy". `of` must be a single output.
      update: The learning rate, or the name of a new input for it, such as "learning_rate", of dtype float32. `wrt`
        must have variables.
      optimizer: "sgd", "momentum" or "adam".
      state: Where the weights are: in "variables" or in "arguments".
      rules: Gradients of ops for the new signature, as in `tf_cg_ops.override_gradients`.
      lite: Whether LiteRT must be able to run the new signature.
      flex: With `lite`, whether it may use other ops of TensorFlow, which LiteRT has in an additional library.
      check: Whether to `compare` the values of both models. With `lite`, LiteRT also runs the new signature, for random
        inputs, and must compute what TensorFlow computes.

    Returns:
      An AddGradientsReport, which lists inputs and outputs with dtypes and shapes. Names consist of letters, digits and
      underscores; other characters become underscores, and a name that is taken gets a number, as in `d_kernel_1`.

    Raises:
      OSError: `source` is not a complete SavedModel, `target` exists, or its parent is not a folder.
      TypeError: An argument has the wrong type or dtype.
      ValueError: The model lacks what you name (the message lists what it has), or a gradient; `name`, `loss` or
        `update` does not fit; with `lite`, LiteRT cannot run an op; or as in `override`.
      RuntimeError: The new model fails, or computes other values, also in LiteRT.

    If there is an error, nothing is written. TensorFlow has nothing like it.
    """
    of, wrt = _names("of", of), _names("wrt", wrt)
    inner = {key: _names(key, value) if value else [] for key, value in {"outputs": outputs, "given": given}.items()}
    for key, names in inner.items():
        if not all(each.startswith(_INNER) for each in names):
            key = text.written(key, f"--{key.removesuffix('s')}")
            raise ValueError(f"{_API}: {key} must be values inside, such as 'inner:relu', got {text.quoted(names)}.")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        wrong = ValueError if isinstance(name, str) else TypeError
        raise wrong(f"{_API}: name must be letters, digits and underscores, got {text.describe(name)}.")
    _check_training(of, loss, update, optimizer, state)
    lite, flex, check = (
        convert.to_bool(_API, key, value) for key, value in {"lite": lite, "flex": flex, "check": check}.items()
    )
    if flex and not lite:
        raise ValueError(f"{_API}: flex must come with {text.written('lite=True', '--lite')}, got it alone.")
    table = None if rules is None else RuleTable(_API, rules, inside=False, unmatched="error")
    rate = update if update is None or isinstance(update, str) else float(update)
    training = Training(_API, None if update is None else optimizer, rate, state == "arguments")
    gradients = _Gradients(signature, of, wrt, inner, loss, training, table, lite)
    has_weights = lite and update is not None and state == "variables"
    holders: list[str] = []  # The object that has the new variables, if there are some.
    tensors: dict[str, tuple[dict[str, str], dict[str, str]]] = {}  # Of inputs and outputs, by signature.
    adopted: list[AdoptedGradient] = []
    in_lite: list[Comparison] = []

    def change(meta_graphs: Any, path: pathlib.Path) -> bool:
        saved = find_signature(_API, path, meta_graphs, signature)
        (meta_graph,) = meta_graphs
        if name in meta_graph.signature_def:
            raise ValueError(f"{_API}: name must be new, got {name!r}, which '{path}' has. Pass another name.")
        taken = [each for each in WEIGHT_SIGNATURES if each == name or each in meta_graph.signature_def]
        if has_weights and taken:
            has = "name is it" if taken[0] == name else f"'{path}' has it"
            raise ValueError(
                f"{_API}: for an update in LiteRT, {taken[0]!r} must be a free name for a signature, but {has}. "
                "Choose another name, or pass the weights as arguments."
            )
        with _with_gradients(meta_graph, path, saved.function, adopted) as folder:
            with raised_as_value_error(_API, path, "load"):
                loaded = tf.saved_model.load(str(folder))
            function = loaded.signatures[signature]
            traced = {name: gradients.trace(function, path)}
            slots = {} if training.as_arguments else training.slots
            if lite:
                weights = weight_signatures(training.variables) if has_weights else {}
                in_tensorflow = traced[name]
                clashes = [each.name for each in function.variables if each.name.removesuffix(":0") in (name, *weights)]
                if clashes:
                    raise ValueError(
                        f"{_API}: for LiteRT, no variable may have the name of a signature, because the converter "
                        f"takes them for one thing, got {text.quoted(clashes)}. Rename the variable."
                    )
                variables = [*function.variables, *slots.values()]
                traced[name], content = with_lite_ops(in_tensorflow, variables, weights, flex=flex)
                if check:
                    in_lite.append(compare_in_lite(_API, name, in_tensorflow, content, training))
                traced |= weights
                let_the_converter_see_all_signatures(meta_graph)
            if slots:
                holders.append(add_variables(meta_graph, saved, f"{name}_state", slots))
            known = [*function.captured_inputs, *(slot.handle for slot in slots.values())]
            for key, each in traced.items():
                captures = [_position(tensor, known) for tensor in each.captured_inputs]
                tensors[key] = add_signature(meta_graph, saved, key, each, captures)
        return True

    def complete(folder: pathlib.Path) -> None:
        for holder in holders:
            write_values(folder, holder, training.slots)

    copied = write_changed_copy(_API, source, target, change, check, complete=complete)
    lists = [(gradients.inputs, tensors[name][0]), (gradients.outputs, tensors[name][1])]
    lists.append((gradients.weights, tensors["weights"][1]) if has_weights else ({}, {}))
    in_, out, weights = (
        [SignatureTensor(key, *described, names[key]) for key, described in each.items()] for each, names in lists
    )
    start = {key: each.numpy() for key, each in training.variables.items()} if training.as_arguments else {}
    lines = gradients.updated, gradients.unconnected, adopted
    report = AddGradientsReport(*copied, name, in_, out, weights, *lines, start)
    others = report.comparisons and [each for each in report.comparisons if each.name not in tensors]
    return dataclasses.replace(report, comparisons=others and others + in_lite)


def _names(argument: str, value: Any) -> list[str]:
    """One name or several, as a list."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise TypeError(f"{_API}: {argument} must be a name or a list of names, got {text.describe(value)}.")
    if not names:
        raise ValueError(f"{_API}: {argument} must have at least one name, got {text.describe(value)}.")
    return list(dict.fromkeys(names))


def _check_training(of: list[str], loss: Any, update: Any, optimizer: Any, state: Any) -> None:
    choices: dict[str, tuple[Any, list[Any]]] = {
        "loss": (loss, [*_LOSSES, None]),
        "optimizer": (optimizer, list(OPTIMIZERS)),
        "state": (state, ["variables", "arguments"]),
    }
    for key, (value, known) in choices.items():
        if value not in known:
            raise ValueError(f"{_API}: {key} must be one of {text.quoted(known)}, got {text.describe(value)}.")
    if loss is not None and len(of) > 1:
        raise ValueError(f"{_API}: of must be a single output for a loss, got {text.quoted(of)}.")
    if update is None:
        if optimizer != "sgd":
            raise ValueError(
                f"{_API}: optimizer must come with an update such as 0.001, its learning rate, got {optimizer!r} alone."
            )
        return
    is_number = isinstance(update, numbers.Real) and not isinstance(update, bool)
    if not (is_number and 0.0 < update <= _LARGEST_RATE) and not (
        isinstance(update, str) and _NAME.fullmatch(update) and update not in RESERVED
    ):
        wrong = ValueError if is_number or isinstance(update, str) else TypeError
        raise wrong(
            f"{_API}: update must be a learning rate such as 0.01, or the name of a new input for it such as "
            f"'learning_rate', got {text.describe(update)}."
        )


@contextlib.contextmanager
def _with_gradients(
    meta_graph: Any, path: pathlib.Path, function: str, adopted: list[AdoptedGradient]
) -> Iterator[pathlib.Path]:
    """The folder of a model in which the function has gradients: an adopted one if `tf.custom_gradient` made some."""
    library = functions_of(meta_graph.graph_def)
    reached = reachable([function], lambda name: called(library[name].node_def, library))
    if not any(is_foreign(node) for name in reached for node in library[name].node_def):
        yield path
        return
    proto = read_saved_model(_API, path)
    adoption = Adoption("saved")
    try:
        adoption.change(proto.meta_graphs, path)
    except ValueError as error:
        adopt = text.written("saved_model.adopt", "tf-cg-ops adopt")
        raise ValueError(f"{_API}: write a copy with {adopt} first, and pass it, because {error}") from error
    adopted.extend(adoption.adopted)
    # Only the new signature is traced from this model, so that the others stay as they are.
    with tempfile.TemporaryDirectory() as folder:
        for child in path.iterdir():
            if child.name not in (*GRAPH_FILES, "fingerprint.pb"):
                (pathlib.Path(folder) / child.name).symlink_to(child.resolve())
        (pathlib.Path(folder) / GRAPH_FILES[0]).write_bytes(proto.SerializeToString())
        yield pathlib.Path(folder)


def _position(tensor: Any, captured: Sequence[Any]) -> int:
    position = next((i for i, each in enumerate(captured) if each is tensor), None)
    if position is None:
        raise ValueError(
            f"{_API}: rules must compute from the op and the upstream gradients alone, got one that reads "
            f"{text.describe(tensor)} of shape {tensor.shape} from outside of the model."
        )
    return position


# The dtype and the shape of a tensor, and its meaning.
_Described: TypeAlias = tuple[str, tuple[int | None, ...] | None, str]


@dataclass
class _Gradients:
    """Traces the gradients of a signature that the user wants, and describes what it has traced."""

    signature: str
    of: list[str]
    wrt: list[str]
    inner: dict[str, list[str]]  # The values inside that are outputs, and those that are given.
    loss: str | None
    training: Training
    rules: RuleTable | None
    names: bool  # Whether messages need the names of the model's ops, which make the file a tenth larger.
    inputs: dict[str, _Described] = field(default_factory=dict)
    outputs: dict[str, _Described] = field(default_factory=dict)
    weights: dict[str, _Described] = field(default_factory=dict)  # What `training` trains and remembers.
    updated: list[str] = field(default_factory=list)
    unconnected: list[str] = field(default_factory=list)
    differentiated: dict[str, tuple[str, tf.Variable]] = field(default_factory=dict)  # By the names of outputs.

    def trace(self, function: Any, path: pathlib.Path) -> Any:
        """The function of the new signature, a ConcreteFunction."""
        specs, results = (
            dict(sorted(each.items())) for each in (function.structured_input_signature[1], function.structured_outputs)
        )
        self._check_names("of", "outputs", self.of, results)
        inner = list(
            dict.fromkeys(key for keys in (self.wrt, *self.inner.values()) for key in keys if key.startswith(_INNER))
        )
        variables = self._chosen_variables(specs, function.trainable_variables)
        if self.loss is not None and not results[self.of[0]].dtype.is_floating:
            raise TypeError(f"{_API}: of must be an output of real numbers for a loss, got {self.of[0]!r}.")
        self.inputs.update((key, _described(spec, "input")) for key, spec in specs.items())
        self.outputs.update((key, _described(spec, "output")) for key, spec in results.items())
        upstream: dict[str, Any] = {}  # Or the target.
        for key in self.of:
            wanted, meaning = (f"d_{key}", f"upstream gradient of {key}") if self.loss is None else ("target", "target")
            upstream[_add(self.inputs, wanted, results[key], meaning)] = results[key]
        call = trace(lambda *x: function(**dict(zip(specs, x, strict=True))), list(specs.values()))
        graph, inside, given = call.graph, call.graph.inputs, dict[str, Any]()
        if inner:
            cut = Cut(_API, self.signature, graph, inside, {key: key.removeprefix(_INNER) for key in inner})
            graph, inside = cut.graph, cut.inside
            for key in self.inner["given"]:
                name, tensor = key.removeprefix(_INNER), cut.found[key]
                given[_add(self.inputs, name, tensor, f"value of {name}")] = tensor

        def gradients(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            values = [*(inputs[key] for key in specs), *call.captured_inputs]
            pairs = [*zip(inside, values, strict=True), *((tensor, inputs[key]) for key, tensor in given.items())]
            # Copied without the calls in it, so that only what these gradients need is computed, and saved.
            copied = copy_with_rules(_API, self.rules, f"'{path}'", graph, pairs, names=self.names)
            outputs = dict(zip(results, copied, strict=False))
            hidden = dict(zip(inner, copied[len(results) :], strict=True))
            for key in self.inner["outputs"]:
                name = key.removeprefix(_INNER)
                outputs[_add(self.outputs, name, hidden[key], f"value of {name}")] = hidden[key]
            ys = [outputs[key] for key in self.of]
            dys = [_of_the_shape(key, inputs[key], of, outputs[of]) for key, of in zip(upstream, self.of, strict=True)]
            if self.loss is not None:
                ys, dys = [_mean_loss(self.loss, ys[0], dys[0])], []
                outputs[_add(self.outputs, "loss", ys[0], "loss")] = ys[0]
            return outputs | self._differentiate(ys, dys, inputs | hidden, variables)

        traced = concrete(gradients, {**specs, **upstream, **given})
        return self._trained(traced) if self.training.optimizer or self.training.as_arguments else traced

    def _chosen_variables(self, specs: Mapping[str, Any], trainable: Sequence[Any]) -> list[tuple[str, Any]]:
        """The variables that `wrt` names, by their names."""
        named = [(variable.name.removesuffix(":0"), variable) for variable in trainable]
        patterns = [key for key in self.wrt if key not in specs and not key.startswith(_INNER)]
        if _VARIABLES in patterns and not named:
            raise ValueError(
                f"{_API}: wrt must not have 'variables', because '{self.signature}' reads no trainable ones. Leave it "
                "out."
            )
        unknown = [
            key for key in patterns if key != _VARIABLES and not fnmatch.filter((name for name, _ in named), key)
        ]
        self._check_names("wrt", "inputs", [key for key in self.wrt if key in specs or key in unknown], specs, named)
        for option, wanted in {
            "an update": self.training.optimizer,
            "weights as arguments": self.training.as_arguments,
        }.items():
            if wanted and not patterns:
                raise ValueError(
                    f"{_API}: wrt must have 'variables', or names of some, for {option}, got {text.quoted(self.wrt)}."
                )
        return [
            (name, variable)
            for name, variable in named
            if any(key == _VARIABLES or fnmatch.fnmatchcase(name, key) for key in patterns)
        ]

    def _check_names(
        self, argument: str, what: str, names: list[str], known: Mapping[str, Any], variables: Sequence[Any] = ()
    ) -> None:
        unknown = [name for name in names if name not in known]
        if unknown:
            others = ""
            if argument == "wrt":
                some = ", ".join([repr(name) for name, _ in variables[:_SHOWN]] + ["..."] * (len(variables) > _SHOWN))
                others = (
                    f"; 'variables'{some and f', or a pattern for these: {some}'}; or 'inner:NAME' for a value inside"
                )
            raise ValueError(
                f"{_API}: {argument} must name {what} of '{self.signature}', which has {text.quoted(sorted(known))}"
                f"{others}, got {text.quoted(unknown)}."
            )
        for name in names:
            if not tf_internal.is_trainable(known[name].dtype):
                raise TypeError(
                    f"{_API}: {argument} must name {what} of real or complex numbers, got {name!r} of dtype "
                    f"{known[name].dtype.name}."
                )

    def _differentiate(
        self,
        ys: list[tf.Tensor],
        dys: list[tf.Tensor],
        inputs: Mapping[str, tf.Tensor],
        variables: Sequence[tuple[str, Any]],
    ) -> dict[str, tf.Tensor]:
        """The gradients by name."""
        sources: list[tuple[str, Any]] = [(key, inputs[key]) for key in self.wrt if key in inputs]
        sources += variables
        try:
            found = tf.gradients(ys, [source for _, source in sources], dys or None, name="d") if sources else []
        except LookupError as error:
            python = "rules={'Round': tf_cg_ops.rules.pass_through}"
            raise ValueError(
                f"{_API}: all ops from wrt to of must have a gradient. {reason_of(error).partition('. ')[0]}. Pass a "
                f"rule for this type of op, as in {text.written(python, '--rule Round=pass_through')}."
            ) from error
        gradients: dict[str, tf.Tensor] = {}
        missing: list[str] = []
        for (name, source), gradient in zip(sources, found, strict=True):
            is_variable, name = isinstance(source, tf.Variable), name.removeprefix(_INNER)
            if gradient is None:
                (self.unconnected if is_variable else missing).append(name)
                continue
            dense = tf.convert_to_tensor(gradient)  # Of a tf.gather it is sparse.
            dense.set_shape(source.shape)
            key = _add(self.outputs, f"d_{name}", source, f"gradient of {name}")
            gradients[key] = dense
            if is_variable:
                self.differentiated[key] = name, source
        if variables and len(self.unconnected) == len(variables):
            missing += [key for key in self.wrt if key not in inputs]
        if missing:
            raise ValueError(
                f"{_API}: of must depend on wrt, got no gradient of {text.quoted(self.of)} with respect to "
                f"{text.quoted(missing)}. Leave it out, or pass rules for ops that stop the gradient, such as Round "
                "or StopGradient."
            )
        return gradients

    def _trained(self, function: Any) -> Any:
        """The function with a step of the training, or with the variables as arguments."""
        training, outputs = self.training, dict[str, str]()
        if isinstance(training.rate, str):
            if training.rate in self.inputs:
                raise ValueError(
                    f"{_API}: update must be the name of a new input, got {training.rate!r}, which the signature has "
                    "already. Choose another name."
                )
            self.inputs[training.rate] = "float32", (), "learning rate"
        for output, (name, variable) in self.differentiated.items():
            if training.optimizer:
                del self.outputs[output]
                self.updated.append(name)
            key = unused(_identifier(name), [*self.inputs, *self.outputs, *self.weights, *RESERVED])
            self.weights[key] = _described(variable, f"value of {name}")
            training.weights[key], outputs[key] = variable, output
        for key, meaning in training.add_slots([*self.inputs, *self.outputs]).items():
            self.weights[key] = _described(training.slots[key], meaning)
        if training.as_arguments:
            self.inputs |= self.weights
            self.outputs |= self.weights if training.optimizer else {}
        return training.step_of(function, outputs)


def _of_the_shape(key: str, tensor: tf.Tensor, of: str, y: tf.Tensor) -> tf.Tensor:
    """The tensor, if it has the shape of an output. Without the check, a dimension of unknown size can be broadcast."""
    if y.shape.is_fully_defined():
        return tensor
    own, shape = tf.shape(tensor), tf.shape(y)
    if y.shape.rank is None:  # Shapes of equal length, because one of one dimension would be broadcast.
        own, shape = (
            tf.pad(each, [[0, _MOST_DIMENSIONS - tf.size(each)]], constant_values=-1) for each in (own, shape)
        )
    is_same = tf.reduce_all(tf.equal(own, shape))
    checked = tf.raw_ops.Assert(condition=is_same, data=[f"{_API}: {key} must have the shape of {of}."])
    with tf.control_dependencies([checked]):  # XLA and LiteRT leave it out, but keep the other op.
        return tf.reshape(tensor, tf.shape(y))


def _add(known: dict[str, _Described], wanted: str, spec: Any, meaning: str) -> str:
    """Adds a tensor under a name that a C program can write, and returns the name."""
    name = unused(_identifier(wanted), known)
    known[name] = _described(spec, meaning)
    return name


def _identifier(name: str) -> str:
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    return found if _NAME.fullmatch(found) else f"v{found}"


def _described(spec: Any, meaning: str) -> _Described:
    return spec.dtype.name, None if spec.shape.rank is None else tuple(spec.shape), meaning
