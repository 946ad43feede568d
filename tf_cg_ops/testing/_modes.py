"""The modes in which TensorFlow runs a function: by itself, or inside something that is traced as a whole."""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Sequence

import tensorflow as tf

from ._flat_function import FlatFunction, Results, to_tensors
from ._report import Tolerances

# The default.
MODES = ("eager", "function", "xla", "vectorized")
FORWARD_MODES = ("eager", "function")
# The dtypes in which Keras's policies of these names compute, and their unit roundoffs, relative.
_MIXED = {"mixed_float16": (tf.float16, 2.0**-11), "mixed_bfloat16": (tf.bfloat16, 2.0**-8)}
# How many roundoffs a few operations on rounded arguments can lose.
_TOLERATED_ROUNDINGS = 16.0

# From tensors, one for each argument, to the outputs.
_Call = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


def run(mode: str, function: Callable[[list[tf.Tensor]], Results], inputs: Sequence[list[tf.Tensor]]) -> list[Results]:
    """The results for the first inputs. The mode "vectorized" takes all inputs as a batch, and returns all results."""
    is_none: list[bool] = []

    def without_none(tensors: list[tf.Tensor]) -> Results:
        derivatives, values = function(tensors)
        is_none[:] = [derivative is None for derivative in derivatives]
        return [derivative for derivative in derivatives if derivative is not None], values

    if mode == "eager":
        return [function(inputs[0])]
    if mode == "vectorized":
        stacked = [tf.stack(tensors) for tensors in zip(*inputs, strict=True)]
        mapped = lambda batch: tf.vectorized_map(without_none, batch, fallback_to_while_loop=False)  # noqa: E731
        batch = tf.function(mapped).get_concrete_function(stacked)(stacked)
        results = [tf.nest.map_structure(lambda t, i=i: t[i], batch) for i in range(len(inputs))]
    else:
        traced = tf.function(without_none, jit_compile=mode == "xla").get_concrete_function(inputs[0])
        results = [traced(inputs[0])]
    remaining = [iter(derivatives) for derivatives, _ in results]
    return [
        ([None if none else next(rest) for none in is_none], values)
        for rest, (_, values) in zip(remaining, results, strict=True)
    ]


def wrap(mode: str, function: FlatFunction) -> FlatFunction:
    """Puts the function into the loop, model or precision of the mode, if it has one."""
    if mode in MODES:
        return function
    if mode == "functional" and function.derived_from is not None:
        original, upstream = function.derived_from  # A Keras model cannot contain a tape.
        return wrap(mode, original).gradient_function(upstream)
    if mode in _BUILT:
        return dataclasses.replace(function, call=_BUILT[mode](function))
    like = function.call(to_tensors(function.values))
    return dataclasses.replace(function, call=functools.partial(_INSIDE[mode], function.call, like))


def tolerances_in(mode: str, tolerances: Tolerances, size: float) -> Tolerances:
    """The tolerances for numbers up to this size. In half precision they allow some roundings of the largest one."""
    if mode not in _MIXED:
        return tolerances
    rounding = _TOLERATED_ROUNDINGS * _MIXED[mode][1]
    return Tolerances(tolerances.rtol, max(tolerances.atol, rounding * size))


def _while_loop(call: _Call, like: Sequence[tf.Tensor], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    body = lambda i, *_: (i + 1, *call(tensors))  # noqa: E731
    return list(tf.while_loop(lambda i, *_: i < 2, body, (0, *_zeros(like)))[1:])


def _cond(call: _Call, like: Sequence[tf.Tensor], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    is_true = tf.size(tensors[0]) >= 0  # Not known while tracing.
    return list(tf.nest.flatten(tf.cond(is_true, lambda: call(tensors), lambda: _zeros(like))))


def _zeros(like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.zeros(tensor.shape, tensor.dtype) for tensor in like]


def _in_precision(
    dtype: tf.DType, call: _Call, like: Sequence[tf.Tensor], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The function gets its real arguments in half precision, as in a layer with that policy."""
    results = call([t if t.dtype.is_complex else tf.cast(t, dtype) for t in tensors])
    return [tf.cast(result, tensor.dtype) for result, tensor in zip(results, like, strict=True)]


def _saved_model(function: FlatFunction) -> _Call:
    """The function, saved as a SavedModel and loaded again."""
    module = tf.Module()
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in function.values]
    module.function = tf.function(lambda *tensors: function.call(tensors), input_signature=specs)
    module.read = list(module.function.get_concrete_function().graph.variables)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
    return lambda tensors: list(loaded.function(*tensors))


def _functional(function: FlatFunction) -> _Call:
    """A functional Keras 3 model that calls the function with symbolic inputs."""
    import keras  # Not at the top, because importing it is slow and the other modes do not need it.

    inputs = [keras.Input(batch_shape=value.shape, dtype=value.dtype.name) for value in function.values]
    model = keras.Model(inputs, function.call(inputs))
    return lambda tensors: tf.nest.flatten(model(list(tensors)))


_INSIDE: dict[str, Callable[..., list[tf.Tensor]]] = {
    "while_loop": _while_loop,
    "cond": _cond,
    **{mode: functools.partial(_in_precision, dtype) for mode, (dtype, _) in _MIXED.items()},
}
_BUILT = {"saved_model": _saved_model, "functional": _functional}
KNOWN_MODES = (*MODES, "while_loop", "cond", *_BUILT, *_MIXED)
