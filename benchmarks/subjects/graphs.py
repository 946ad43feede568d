"""Graphs: the time of a trace, and the costs of many custom gradients."""

import functools
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping

import tensorflow as tf
import tensorflow_probability as tfp

import tf_cg_ops as cg

from ..harness import peaks
from ..harness.implementations import gradient
from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import DECORATOR, EMBED, FORMULA, MULTIPLY, TF, TFP, of_uses
from ..harness.samplers import Number, Sampler, Timed
from ..harness.workers import Worker


def _sine(decorate: Callable) -> Callable[[tf.Tensor], tf.Tensor]:
    return decorate(lambda x: (tf.sin(x), lambda dy: dy * tf.cos(x)))


# A custom gradient of the sine, by each implementation.
_USES: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    EMBED: lambda x: cg.embed_gradient(tf.sin(x), tf.cos(x), x),
    DECORATOR: _sine(cg.custom_gradient),
    TF: _sine(tf.custom_gradient),
    FORMULA: lambda x: tf.sin(x) + tf.cos(x) * (x - tf.stop_gradient(x)),
    TFP: lambda x: tfp.math.custom_gradient(tf.sin(x), tf.cos(x), x),
}
# A single op.
_ONE_OP: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    EMBED: lambda x: cg.embed_gradient(x, x, x),
    MULTIPLY: lambda x: tf.multiply(x, x),
}


def _chain(use: Callable[[tf.Tensor], tf.Tensor], uses: int, x: tf.Tensor) -> tf.Tensor:
    for _ in range(uses):
        x = use(x)
    return x


def _trace(use: Callable[[tf.Tensor], tf.Tensor], uses: int, backward: bool) -> None:
    """A chain of uses, traced anew."""
    chain = functools.partial(_chain, use, uses)
    function = functools.partial(gradient, chain) if backward else chain
    tf.function(function).get_concrete_function(tf.TensorSpec([8], tf.float32))


def _tracing(settings: Settings) -> list[Case]:
    """The time of a trace, forward alone and with the gradient."""

    def build(functions: Mapping[str, Callable], uses: int, backward: bool) -> Samplers:
        return {name: Timed(functools.partial(_trace, use, uses, backward)) for name, use in functions.items()}

    found = []
    for uses in settings.pick((1, 100), (2,)):
        for title, backward in (("forward", False), ("forward and backward", True)):
            traces = functools.partial(build, _USES, uses, backward)
            found.append(Case("tracing", f"time, {title}, {uses} uses", traces, (EMBED, DECORATOR)))
        found.append(Case("tracing", f"time, one op, {uses} uses", functools.partial(build, _ONE_OP, uses, False)))
    return found


# Each measure with its unit.
_MEASURES = {"trace": "s", "first run": "s", "step": "s", "memory": "MB", "SavedModel": "MB", "load": "s"}
_STEPS = 10
_ITERATIONS = 3


def _in_loop(chain: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    limits = {"maximum_iterations": _ITERATIONS}
    return tf.while_loop(lambda i, _: i < _ITERATIONS, lambda i, x: (i + 1, chain(x)), (0, x), **limits)[1]


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _measure(implementation: str, uses: int, in_loop: bool) -> dict[str, float]:
    """All measures of a value with its gradient; the model that is saved computes the value."""
    chain = functools.partial(_chain, _USES[implementation], uses)
    chain = functools.partial(_in_loop, chain) if in_loop else chain
    x = tf.linspace(0.1, 0.8, 8)
    step = tf.function(functools.partial(gradient, chain))
    found = {}
    before = peaks.resident_bytes()
    found["trace"] = _seconds(lambda: step.get_concrete_function(x))
    found["first run"] = _seconds(lambda: step(x).numpy())
    found["memory"] = (peaks.resident_bytes() - before) / 1e6
    found["step"] = _seconds(lambda: [step(x).numpy() for _ in range(_STEPS)]) / _STEPS
    module = tf.Module()
    module.function = tf.function(chain, input_signature=[tf.TensorSpec([8], tf.float32)])
    with tempfile.TemporaryDirectory() as folder:
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
        tf.saved_model.save(module, folder, options=options)
        files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
        found["SavedModel"] = sum(path.stat().st_size for path in files) / 1e6
        found["load"] = _seconds(lambda: tf.saved_model.load(folder))
    return found


def growth_in_worker(implementation: str, uses: int, in_loop: bool) -> dict[str, Sampler]:
    """A sampler for each measure, in its own process. A small case first lets TensorFlow allocate what it keeps."""
    _measure(implementation, 1, in_loop)
    found = _measure(implementation, uses, in_loop)
    return {measure: Number(functools.partial(found.__getitem__, measure)) for measure in _MEASURES}


@functools.cache
def _figures(implementation: str, uses: int, in_loop: bool) -> dict[str, float]:
    worker = Worker()
    try:
        arguments = {"implementation": implementation, "uses": uses, "in_loop": in_loop}
        samplers = worker.build(f"{__name__}:growth_in_worker", **arguments)
        return {measure: sampler.sample() for measure, sampler in samplers.items()}
    finally:
        worker.end()


def _growth(settings: Settings) -> list[Case]:
    """How the costs grow with the number of custom gradients, in one function and in the body of a loop."""

    def build(measure: str, uses: tuple[int, ...], in_loop: bool) -> Samplers:
        return {
            of_uses(name, n): Number(lambda key=(name, n, in_loop): _figures(*key)[measure])
            for name in (EMBED, DECORATOR, TF, FORMULA)
            for n in uses
        }

    places = [("a function", False, settings.pick((10, 100, 1_000, 3_000, 10_000), (2,)))]
    if not settings.quick:  # Each figure needs its own process.
        places.append(("a loop", True, (1, 10, 100, 1_000)))
    return [
        Case("growth", f"{measure}, in {place}", functools.partial(build, measure, uses, in_loop), (), unit, rounds=1)
        for place, in_loop, uses in places
        for measure, unit in _MEASURES.items()
    ]


def cases(settings: Settings) -> list[Case]:
    """Traces and growth."""
    return _tracing(settings) + _growth(settings)
