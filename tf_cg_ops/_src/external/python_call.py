"""The Python side of `numpy_function`: calls the user's functions with arrays, and checks what they return."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, pytree, signature, text
from tf_cg_ops._src.custom_gradient.decorator import is_decorated
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.external import jacobians
from tf_cg_ops._src.external.arguments import API, Arguments

Arrays = Sequence[np.ndarray]

# Which of the user's functions returned gradients.
_OF_FUNCTION = Wording(API, subject="'{function}'", names_keywords=True)
_OF_VJP = dataclasses.replace(_OF_FUNCTION, subject="vjp of '{function}'")


class Options:
    """The options of `numpy_function`. Without an output_signature it is elementwise, and has one value."""

    def __init__(self, output_signature: Any, vjp: Any, jvp: Any, batched: bool, takes_needed: bool) -> None:
        self.output_signature, self.batched, self.takes_needed = output_signature, batched, takes_needed
        self.returns_gradients = vjp is None
        self.vjp: Any = jacobians.vjp if vjp is None else vjp
        self.jvp: Any = jvp if vjp is not None else jacobians.jvp
        self.is_elementwise = output_signature is None
        self.is_single = output_signature is None or isinstance(output_signature, tf.TensorSpec)
        self.vjp_takes_tensors = is_decorated(vjp) or isinstance(vjp, tf.types.experimental.PolymorphicFunction)
        self.specs: list[tf.TensorSpec] = [] if output_signature is None else tf.nest.flatten(output_signature)
        self.shapes = [tuple(spec.shape.as_list()) for spec in self.specs]
        self.dtypes = [spec.dtype for spec in self.specs]
        self.hint = f"It has the shape {'[batch] + ' if batched else ''}output_signature.shape."
        if self.is_elementwise:
            self.hint = (
                "Without an output_signature, it has the shape to which the inputs broadcast. For any other shape, "
                "pass output_signature=tf.TensorSpec(shape, dtype)."
            )


class Kept(NamedTuple):
    """What a call keeps for its derivatives: residuals, arguments without a gradient, and shapes."""

    residuals: Any
    nondiff: dict[str, Any]
    x_shapes: list[Any]
    value_shapes: list[Any]


class Call:
    """A call of the function, and later of its derivatives. A graph keeps it, so it holds no Tensors."""

    def __init__(self, options: Options, arguments: Arguments) -> None:
        self.options, self.arguments = options, arguments
        if options.is_elementwise and not arguments.x:
            raise TypeError(
                f"{API}: without an output_signature, '{arguments.name}' must get a floating-point or complex "
                "input, got none. Pass output_signature=tf.TensorSpec(shape, dtype)."
            )
        self.x_dtypes = [arguments.inputs[i].dtype for i in arguments.x]
        self.dtypes = self.x_dtypes[:1] if options.is_elementwise else options.dtypes

    @property
    def is_number(self) -> list[bool]:
        """Which leaves of the value have a gradient: not integers and bools."""
        return [dtype in convert.DTYPES for dtype in self.dtypes]

    def value_specs(self) -> list[tf.TensorSpec]:
        """The static shapes and dtypes of the leaves of the value."""
        shapes = self._value_shapes([self.arguments.inputs[i].shape for i in self.arguments.x])
        return [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, self.dtypes, strict=True)]

    def _value_shapes(self, x_shapes: list[Any]) -> list[Any]:
        """The shape of each leaf of the value, for these shapes of the differentiable inputs."""
        if self.options.is_elementwise and len(x_shapes) == 1:
            return x_shapes
        if not self.options.is_elementwise and not self.options.batched:
            return self.options.shapes
        x_shapes = [tf.TensorShape(shape) for shape in x_shapes]
        if self.options.is_elementwise:
            return [self.arguments.broadcast(x_shapes)]
        self.arguments.check_batch(x_shapes)
        batch = next((shape[:1] for shape in x_shapes if shape.rank and shape[0] is not None), tf.TensorShape([None]))
        return [batch.concatenate(shape) for shape in self.options.shapes]

    def value(self, arrays: Arrays) -> tuple[list[np.ndarray], Kept]:
        """Takes one array for each input, which the function can overwrite; returns the leaves of the value."""
        x_shapes = [arrays[i].shape for i in self.arguments.x]  # Read before the call, which can change the arrays.
        expected = self._value_shapes(x_shapes)
        answer, nondiff = self.arguments.call(arrays)
        returns_gradients = self.options.returns_gradients
        if not isinstance(answer, (tuple, list) if returns_gradients else tuple) or len(answer) != 2:
            second, reason = ("gradients", "") if returns_gradients else ("residuals", ", since there is a vjp")
            raise TypeError(
                f"{self.arguments.subject} must return a pair (value, {second}){reason}, got "
                f"{text.describe_type(answer)}. End it with: return value, {second}"
            )
        values = self._leaves("value", answer[0], expected)
        kept = Kept(answer[1], nondiff, x_shapes, [value.shape for value in values])
        return values, kept._replace(residuals=self._jacobians(kept)) if returns_gradients else kept

    def _jacobians(self, kept: Kept) -> jacobians.Jacobians:
        """The gradients that the function returned: the whole derivative of its only value."""
        found, shape, batch_dims = [], kept.value_shapes[0], None
        hint = "A gradient has the shape of the value. For any other shape of the value, pass an output_signature."
        if not self.options.is_elementwise:
            batch_dims = int(self.options.batched)
            hint = f"A gradient has the shape of the value + x.shape{'[1:]' if batch_dims else ''}."
            hint += " If the function works element by element, leave out output_signature."
        for i, gradient in enumerate(self.arguments.gradients(_OF_FUNCTION, kept.residuals)):
            event_shape = () if batch_dims is None else kept.x_shapes[i][batch_dims:]
            dtype = jacobians.dtype_for(self.dtypes[0], self.x_dtypes[i])
            found.append(
                self._checked_gradient(self.arguments.subject, i, gradient, dtype, (*shape, *event_shape), hint)
            )
        are_complex = [dtype.is_complex for dtype in self.x_dtypes]
        return jacobians.Jacobians(found, kept.x_shapes, are_complex, shape, self.dtypes[0].is_complex, batch_dims)

    def derivative(self, kept: Kept, vectors: Arrays, needed: Sequence[bool] | None) -> list[np.ndarray]:
        """The needed gradients for upstream gradients; if `needed` is None, the tangents for tangents of the inputs."""
        return self._tangents(kept, vectors) if needed is None else self._gradients(kept, vectors, needed)

    def _gradients(self, kept: Kept, dys: Arrays, needed: Sequence[bool]) -> list[np.ndarray]:
        """The needed vector-Jacobian products, from one upstream gradient for each leaf of the value."""
        subject, x = _OF_VJP.subject_of(self.arguments.name), [i for i, is_needed in enumerate(needed) if is_needed]
        options = kept.nondiff | ({"needed": tuple(needed)} if self.options.takes_needed else {})
        answer = self.arguments.gradients(_OF_VJP, _call_rule(subject, "vjp", self.options.vjp, kept, dys, options))
        return [self._checked_gradient(subject, i, answer[i], self.x_dtypes[i], kept.x_shapes[i]) for i in x]

    def _tangents(self, kept: Kept, tangents: Arrays) -> list[np.ndarray]:
        """The tangents of the differentiable leaves of the value, from one tangent for each differentiable input."""
        subject = f"{API}: jvp of '{self.arguments.name}'"
        answer = _call_rule(subject, "jvp", self.options.jvp, kept, tangents, kept.nondiff)
        return self._leaves("tangent", answer, kept.value_shapes)

    def _leaves(self, noun: str, answer: Any, shapes: list[Any]) -> list[np.ndarray]:
        """The leaves of a value, or of its tangents, where integers have none."""
        is_value = noun == "value"
        subject = self.arguments.subject if is_value else f"{API}: jvp of '{self.arguments.name}'"
        try:
            leaves = [answer] if self.options.is_single else pytree.flatten_up_to(self.options.output_signature, answer)
        except ValueError:
            raise ValueError(
                f"{subject} must return a {noun} with the structure of output_signature, "
                f"{self.options.output_signature}, got {text.describe(answer)}. Return one array for each TensorSpec."
            ) from None
        hint, count = self.options.hint if is_value else "It has the shape of the value.", len(self.dtypes)
        nouns = [noun] if count == 1 else [f"{noun} (leaf {i} of {count})" for i in range(count)]
        return [
            _checked_array(subject, leaf, functools.partial(nouns.__getitem__, i), self.dtypes[i], shapes[i], hint)
            for i, leaf in enumerate(leaves)
            if is_value or self.dtypes[i] in convert.DTYPES
        ]

    def _checked_gradient(
        self,
        subject: str,
        i: int,
        gradient: Any,
        dtype: tf.DType,
        shape: Any,
        hint: str = "A gradient has the shape of its input.",
    ) -> np.ndarray:
        def noun() -> str:
            return f"gradient for {self.arguments.x_names[i]!r}"

        if gradient is None:
            raise ValueError(
                f"{subject} must return a {noun()}, got None. Name an input that has no gradient in nondiff_argnames."
            )
        return _checked_array(subject, gradient, noun, dtype, shape, hint)


def _call_rule(
    subject: str, kind: str, function: Callable[..., Any], kept: Kept, vectors: Arrays, options: dict[str, Any]
) -> Any:
    """Calls a `vjp` or `jvp`; TypeError if its parameters do not fit."""
    noun, name = ("upstream gradient", "dy") if kind == "vjp" else ("tangent", "tangents")
    named = f", and {text.quoted(kept.nondiff)} (from nondiff_argnames)" if kept.nondiff else ""
    must_take = f"{subject} must take the residuals and {text.count(len(vectors), noun)}{named}"
    call = f"{kind}({', '.join(['residuals', f'*{name}', *options])})"
    note = f"{subject} is called as {call}."
    return signature.call(function, [kept.residuals, *vectors], options, must_take, f"Write {call}.", kind, note)


_as_numpy = functools.cache(lambda dtype: np.dtype(dtype.as_numpy_dtype))  # The property takes longer than a copy.


def _checked_array(
    subject: str, result: Any, noun: Callable[[], str], dtype: tf.DType, shape: Any, hint: str
) -> np.ndarray:
    """A copy of a result in this dtype; an error if it is not numbers of this shape, where None is any size."""
    try:
        array = np.asarray(result)
    except convert.refusals(result):  # Lists of different lengths.
        array = np.asarray(None)
    if array.dtype.kind in "OSUmM":
        raise TypeError(
            f"{subject} must return an array of numbers as the {noun()}, got {text.describe(result)}. Return a NumPy "
            "array."
        )
    if array.dtype.kind == "c" and not dtype.is_complex:
        raise TypeError(
            f"{subject} must return real numbers as the {noun()}, got {array.dtype.name}. Return the real part, or "
            "make the dtype of output_signature complex."
        )
    if array.shape != shape and not tf.TensorShape(shape).is_compatible_with(array.shape):
        raise ValueError(
            f"{subject} must return a {noun()} of shape {tf.TensorShape(shape)}, got {tf.TensorShape(array.shape)}. "
            f"{hint}"
        )
    return array.astype(_as_numpy(dtype))  # A copy, because the function can reuse its memory.
