"""How the costs grow with the number of custom gradients, in one function and in the body of a loop."""

import functools
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping

import tensorflow as tf

from .. import program
from ..harness import peaks
from ..harness.measurement import Case, Settings
from ..harness.names import DECORATOR, EMBED, FORMULA, TF, of_uses
from ..harness.samplers import Number, Sampler
from ..harness.workers import Worker
from .tracing import USES

SUBJECT = "growth"
# Each measure with its unit.
MEASURES = {
    "trace": "s",
    "first run": "s",
    "step": "s",
    "memory": "MB",
    "SavedModel": "MB",
    "load": "s",
}
IMPLEMENTATIONS = (EMBED, DECORATOR, TF, FORMULA)
_STEPS = 10
_ITERATIONS = 3


def _chain(use: Callable[[tf.Tensor], tf.Tensor], uses: int, in_loop: bool, x: tf.Tensor) -> tf.Tensor:
    def body(x: tf.Tensor) -> tf.Tensor:
        for _ in range(uses):
            x = use(x)
        return x

    if not in_loop:
        return body(x)
    limits = {"maximum_iterations": _ITERATIONS}
    return tf.while_loop(lambda i, _: i < _ITERATIONS, lambda i, x: (i + 1, body(x)), (0, x), **limits)[1]


def _measure(implementation: str, uses: int, in_loop: bool) -> dict[str, float]:
    """All measures of a value with its gradient; the model that is saved computes the value."""
    chain = functools.partial(_chain, USES[implementation], uses, in_loop)
    x = tf.linspace(0.1, 0.8, 8)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = chain(x)
        return tape.gradient(y, x)

    def seconds(function: Callable[[], object]) -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    found = {}
    before = peaks.resident_bytes()
    found["trace"] = seconds(lambda: step.get_concrete_function(x))
    found["first run"] = seconds(lambda: step(x).numpy())
    found["memory"] = (peaks.resident_bytes() - before) / 1e6
    found["step"] = seconds(lambda: [step(x).numpy() for _ in range(_STEPS)]) / _STEPS
    module = tf.Module()
    module.function = tf.function(chain, input_signature=[tf.TensorSpec([8], tf.float32)])
    with tempfile.TemporaryDirectory() as folder:
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
        tf.saved_model.save(module, folder, options=options)
        found["SavedModel"] = (
            sum(path.stat().st_size for path in pathlib.Path(folder).rglob("*") if path.is_file()) / 1e6
        )
        found["load"] = seconds(lambda: tf.saved_model.load(folder))
    return found


def in_worker(implementation: str, uses: int, in_loop: bool) -> dict[str, Sampler]:
    """A sampler for each measure, in a process of its own; a small case first lets TensorFlow make what it keeps."""
    _measure(implementation, 1, in_loop)
    found = _measure(implementation, uses, in_loop)
    return {measure: Number(functools.partial(found.__getitem__, measure)) for measure in MEASURES}


@functools.cache
def _figures(implementation: str, uses: int, in_loop: bool) -> dict[str, float]:
    worker = Worker()
    try:
        module = f"{__spec__.name}:in_worker"
        samplers = worker.build(module, implementation=implementation, uses=uses, in_loop=in_loop)
        return {measure: sampler.sample() for measure, sampler in samplers.items()}
    finally:
        worker.end()


def _build(measure: str, uses: tuple[int, ...], in_loop: bool) -> Mapping[str, Sampler | str]:
    samplers: dict[str, Sampler | str] = {}
    for implementation in IMPLEMENTATIONS:
        for n in uses:
            figure = functools.partial(lambda *key: _figures(*key)[measure], implementation, n, in_loop)
            samplers[of_uses(implementation, n)] = Number(figure)
    return samplers


def cases(settings: Settings) -> list[Case]:
    """Each measure in a function and in a loop."""
    found = []
    places = [("a function", False, settings.pick((10, 100, 1_000, 3_000, 10_000), (2,)))]
    if not settings.quick:  # Each figure takes a process.
        places.append(("a loop", True, (1, 10, 100, 1_000)))
    for place, in_loop, uses in places:
        for measure, unit in MEASURES.items():
            build = functools.partial(_build, measure, uses, in_loop)
            found.append(Case(SUBJECT, f"{measure}, in {place}", build, (EMBED, DECORATOR), unit, rounds=1))
    return found


if __name__ == "__main__":
    program.run(cases)
