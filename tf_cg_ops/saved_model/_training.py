"""Makes a training step of a function that computes gradients: the optimizers of `add_gradients`, and their state."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core.calls import TYPES
from tf_cg_ops._src.graphs.graph_copy import READS, GraphCopy

from ._new_signature import unused

# What each optimizer remembers about a weight, besides the number of steps.
OPTIMIZERS: dict[str, tuple[str, ...]] = {"sgd": (), "momentum": ("momentum",), "adam": ("momentum", "velocity")}
_ITERATIONS = "iterations"
# Keras's defaults.
_MOMENTUM = 0.9
_BETAS, _EPSILON = (0.9, 0.999), 1e-7


def concrete(function: Any, specs: Mapping[str, tf.TensorSpec]) -> Any:
    """The concrete function of a function of named Tensors."""
    named = {key: tf.TensorSpec(spec.shape, spec.dtype, key) for key, spec in sorted(specs.items())}
    return tf.function(function, autograph=False).get_concrete_function(**named)


@dataclass
class Training:
    """How a signature trains, and what it trains, by the names in signatures.

    Attributes:
      optimizer: A name in OPTIMIZERS; None if the signature returns gradients.
      rate: The learning rate, or the name of the input that has it.
      as_arguments: Whether the weights, and what the optimizer remembers, are inputs and outputs instead of variables.
      weights: The variables to train.
      slots: Variables with what the optimizer remembers at first.
    """

    api: str
    optimizer: str | None
    rate: Any
    as_arguments: bool
    weights: dict[str, tf.Variable] = field(default_factory=dict)
    slots: dict[str, tf.Variable] = field(default_factory=dict)
    _names: dict[tuple[str, str], str] = field(default_factory=dict)  # Of the slots, by weight and what it is.

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """The weights, and what the optimizer remembers."""
        return self.weights | self.slots

    def add_slots(self, taken: Sequence[str]) -> dict[str, str]:
        """Makes the slots, with names that are not taken, and returns what each of them is."""
        if self.optimizer is None:
            return {}
        wanted = [(key, slot) for key in self.weights for slot in OPTIMIZERS[self.optimizer]]
        wanted += [("", _ITERATIONS)] * (self.optimizer == "adam")
        meanings = {}
        for key, slot in wanted:
            weight = self.weights.get(key)
            if weight is not None and (weight.dtype.is_complex or not weight.shape.is_fully_defined()):
                raise ValueError(
                    f"{self.api}: optimizer {self.optimizer!r} must train real variables of known shapes, got {key!r} "
                    f"of dtype {weight.dtype.name} and shape {weight.shape}. Leave it out of wrt, or choose 'sgd'."
                )
            # LiteRT only knows the size of a variable before it runs if it has an axis.
            start = tf.constant([0]) if weight is None else tf.zeros(weight.shape, weight.dtype)
            name = unused(f"{key}_{slot}" if key else slot, [*taken, *self.variables])
            self.slots[name] = tf.Variable(start, trainable=False, name=name)
            self._names[key, slot] = name
            meanings[name] = f"{slot} of {key}" if key else "number of steps so far"
        return meanings

    def step_of(self, function: Any, gradients: Mapping[str, str]) -> Any:
        """The concrete function with a step, or with the weights as arguments.

        `gradients` has the output of the function that is the gradient of each weight.
        """
        specs = function.structured_input_signature[1]
        arguments = {key: tf.TensorSpec(each.shape, each.dtype) for key, each in self.variables.items()}

        def call(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            if self.as_arguments:
                state = {key: inputs[key] for key in arguments}
                results = self._without_variables(function, {key: inputs[key] for key in specs}, state)
            else:
                results = function(**{key: inputs[key] for key in specs})
                state = {key: tf.convert_to_tensor(each) for key, each in self.variables.items()}
            if self.optimizer is None:
                return results
            rate = inputs[self.rate] if isinstance(self.rate, str) else self.rate
            new = self._new_state(rate, {key: results.pop(output) for key, output in gradients.items()}, state)
            if self.as_arguments:
                return results | new
            for key, value in new.items():
                self.variables[key].assign(value)
            return results

        rate = {self.rate: tf.TensorSpec([], tf.float32)} if isinstance(self.rate, str) else {}
        return concrete(call, {**specs, **rate, **(arguments if self.as_arguments else {})})

    def _without_variables(
        self, function: Any, inputs: Mapping[str, tf.Tensor], values: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """The results of the function, with these values in place of the weights."""

        def replace(_: GraphCopy, op: Any, new: list[tf.Tensor]) -> None:
            has_value = any(old.dtype != each.dtype for old, each in zip(op.inputs, new, strict=True))
            if has_value and op.type not in (*READS, *TYPES):
                raise ValueError(
                    f"{self.api}: for weights as arguments, the signature must only read the values of variables, got "
                    f"{op.type} ('{op.name}'), which takes a variable itself. Keep the weights as variables."
                )

        def value_of(captured: Any) -> Any:
            return next((values[key] for key, each in self.weights.items() if each.handle is captured), captured)

        captured = map(value_of, function.captured_inputs)
        pairs = zip(function.inputs, [*(inputs[key] for key in sorted(inputs)), *captured], strict=True)
        outputs = GraphCopy(pairs, replace, is_ordered=True, names=True).outputs_of(function.graph)
        return tf.nest.pack_sequence_as(function.structured_outputs, [tf.identity(output) for output in outputs])

    def _new_state(
        self, rate: Any, gradients: Mapping[str, tf.Tensor], state: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """The weights and slots after a step.

        "adam" is Kingma and Ba (2015), arXiv:1412.6980, in the form at the end of section 2, which Keras has, too.
        """
        optimizer, names, new = self.optimizer or "", self._names, dict[str, tf.Tensor]()
        if ("", _ITERATIONS) in names:
            count = new[names["", _ITERATIONS]] = state[names["", _ITERATIONS]] + 1
        for key, gradient in gradients.items():
            weight, slots = state[key], [state[names[key, slot]] for slot in OPTIMIZERS[optimizer]]
            size = tf.cast(rate, weight.dtype)
            if optimizer == "sgd":
                weight -= size * gradient
            elif optimizer == "momentum":
                slots = [_MOMENTUM * slots[0] - size * gradient]
                weight += slots[0]
            else:
                powers = (gradient, tf.square(gradient))
                slots = [old + (1 - beta) * (x - old) for old, beta, x in zip(slots, _BETAS, powers, strict=True)]
                number = tf.reshape(tf.cast(count, weight.dtype), [])
                first, second = (1 - tf.pow(tf.constant(beta, weight.dtype), number) for beta in _BETAS)
                weight -= size * tf.sqrt(second) / first * slots[0] / (tf.sqrt(slots[1]) + _EPSILON)
            new |= {key: weight}
            new |= {names[key, slot]: x for slot, x in zip(OPTIMIZERS[optimizer], slots, strict=True)}
        return new

    @contextlib.contextmanager
    def for_a_check(self) -> Iterator[None]:
        """Sets velocities to one, because from zero the first step of Adam only has the signs of the gradients."""
        velocities = [self.slots[name] for (_, slot), name in self._names.items() if slot == "velocity"]
        for each in velocities:
            each.assign(tf.ones_like(each))
        try:
            yield
        finally:
            for each in velocities:
                each.assign(tf.zeros_like(each))
