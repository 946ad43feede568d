"""What a saved rule costs: TFP's special functions, with `cg.custom_gradient` instead of `tf.custom_gradient`."""

import functools
from collections.abc import Callable

import tensorflow as tf

from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import DECORATOR, TF
from ..harness.samplers import Number, Sampler, Timed
from ..harness.workers import Worker

_FUNCTIONS = {"betaincinv": 3, "betainc": 3, "bessel_ive": 2, "erfcx": 1, "dawsn": 1, "igammainv": 2, "lambertw": 1}
_DECORATORS = {DECORATOR: True, TF: False}


def in_worker(is_replaced: bool) -> dict[str, Sampler]:
    """The nodes and the time of each function's trace. TFP looks up TensorFlow's decorator at each call."""
    from tensorflow_probability import math

    if is_replaced:
        import tf_cg_ops as cg

        tf.compat.v2.custom_gradient = cg.custom_gradient
    samplers: dict[str, Sampler] = {}
    for name, arguments in _FUNCTIONS.items():
        trace = functools.partial(_trace, getattr(math, name), arguments)
        samplers[f"nodes, {name}"] = Number(functools.partial(_nodes, trace))
        samplers[f"time, {name}"] = Timed(trace)
    return samplers


def _trace(function: Callable[..., tf.Tensor], arguments: int) -> tf.types.experimental.ConcreteFunction:
    specs = [tf.TensorSpec([2], tf.float32)] * arguments
    return tf.function(lambda *x: function(*x), autograph=False).get_concrete_function(*specs)


def _nodes(trace: Callable[[], tf.types.experimental.ConcreteFunction]) -> int:
    graph = trace().graph.as_graph_def()
    return len(graph.node) + sum(len(function.node_def) for function in graph.library.function)


@functools.cache
def _built() -> dict[str, Samplers]:
    """The samplers of a process for each decorator."""
    return {
        name: Worker().build(f"{__name__}:in_worker", is_replaced=replaced) for name, replaced in _DECORATORS.items()
    }


def _samplers(case: str) -> Samplers:
    return {name: samplers[case] for name, samplers in _built().items()}


def cases(settings: Settings) -> list[Case]:
    """How many nodes the trace of each function has, with the functions that it calls, and how long it takes."""
    found = []
    for name in settings.pick(list(_FUNCTIONS), ["erfcx"]):
        for kind, unit, rounds in (("nodes", "", 1), ("time", "s", None)):
            case = f"{kind}, {name}"
            build = functools.partial(_samplers, case)
            found.append(Case("special_functions", case, build, (DECORATOR,), unit, rounds=rounds))
    return found
