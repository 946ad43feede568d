"""The cost of a `tf.function` before it runs: the time of a trace, and the nodes of the graph with its functions."""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf
import tensorflow_probability as tfp

import tf_cg_ops as cg

from .. import program
from ..harness.measurement import Case, Settings
from ..harness.names import DECORATOR, EMBED, FORMULA, MULTIPLY, TF, TFP
from ..harness.samplers import Number, Sampler, Timed

SUBJECT = "tracing"


def _sine(decorate: Callable) -> Callable[[tf.Tensor], tf.Tensor]:
    return decorate(lambda x: (tf.sin(x), lambda dy: dy * tf.cos(x)))


# A custom gradient of the sine, by each implementation.
USES: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    EMBED: lambda x: cg.embed_gradient(tf.sin(x), tf.cos(x), x),
    DECORATOR: _sine(cg.custom_gradient),
    TF: _sine(tf.custom_gradient),
    FORMULA: lambda x: tf.sin(x) + tf.cos(x) * (x - tf.stop_gradient(x)),
    TFP: lambda x: tfp.math.custom_gradient(tf.sin(x), tf.cos(x), x),
}


def _trace(use: Callable[[tf.Tensor], tf.Tensor], uses: int, backward: bool) -> tf.Graph:
    """A chain of uses, traced anew."""

    def chain(x: tf.Tensor) -> tf.Tensor:
        for _ in range(uses):
            x = use(x)
        return x

    def both(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = chain(x)
        return tape.gradient(y, x)

    return tf.function(both if backward else chain).get_concrete_function(tf.TensorSpec([8], tf.float32)).graph


def _nodes(graph: tf.Graph) -> int:
    definition = graph.as_graph_def()
    return len(definition.node) + sum(len(function.node_def) for function in definition.library.function)


def _build(
    implementations: Mapping[str, Callable[[tf.Tensor], tf.Tensor]], uses: int, backward: bool, count: bool
) -> Mapping[str, Sampler | str]:
    traces = {name: functools.partial(_trace, use, uses, backward) for name, use in implementations.items()}
    if count:
        return {name: Number(lambda trace=trace: _nodes(trace())) for name, trace in traces.items()}
    return {name: Timed(trace) for name, trace in traces.items()}


# Nothing but one op.
_ONE_OP: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    EMBED: lambda x: cg.embed_gradient(x, x, x),
    MULTIPLY: lambda x: tf.multiply(x, x),
}


def cases(settings: Settings) -> list[Case]:
    """Time and nodes, forward alone and with the gradient; `growth` has more uses."""
    found = []
    for uses in settings.pick((1, 100), (2,)):
        for title, backward in (("forward", False), ("forward and backward", True)):
            build = functools.partial(_build, USES, uses, backward)
            name = f"{title}, {uses} uses"
            found.append(Case(SUBJECT, f"time, {name}", functools.partial(build, False), (EMBED, DECORATOR)))
            nodes = functools.partial(build, True)
            found.append(Case(SUBJECT, f"graph, {name}", nodes, (EMBED, DECORATOR), "nodes", rounds=1))
        found.append(
            Case(SUBJECT, f"time, one op, {uses} uses", functools.partial(_build, _ONE_OP, uses, False, False))
        )
    return found


if __name__ == "__main__":
    program.run(cases)
