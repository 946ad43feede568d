"""The time that importing the library adds to the first run of graphs without our ops.

The passes of the library see all graphs. Two processes take turns; only one of them has imported the library.
"""

import functools
from collections.abc import Callable, Mapping

import tensorflow as tf

from .. import program
from ..harness.measurement import Case, Settings
from ..harness.names import WITH, WITHOUT
from ..harness.samplers import Sampler, Timed
from ..harness.workers import Worker

SUBJECT = "import_cost"

tf1 = tf.compat.v1


def _chain(x: tf.Tensor, length: int) -> tf.Tensor:
    for _ in range(length):
        x = x * 1.5
    return x


def _first_run(graph: tf.Graph, fetch: str) -> None:
    """A new session places and optimises the whole graph."""
    with tf1.Session(graph=graph) as session:
        session.run(fetch)


def _session(nodes: int) -> Callable[[], None]:
    with tf.Graph().as_default() as graph:
        x = tf.ones([])
        _chain(x, nodes // 2)  # Each product has a constant.
        tf.negative(x, name="fetched")
    return functools.partial(_first_run, graph, "fetched:0")


def _gradients(count: int, ops: int) -> Callable[[], None]:
    """Gradients without Python of one function, of which none is fetched."""

    @tf.function(input_signature=[tf.TensorSpec([])], autograph=False)
    def function(x: tf.Tensor) -> tf.Tensor:
        return _chain(x, ops // 2)

    with tf.Graph().as_default() as graph:
        x = tf.ones([])
        concrete = function.get_concrete_function()
        concrete.add_to_graph(graph)
        for _ in range(count):
            tf.raw_ops.SymbolicGradient(input=[x, x], Tout=[tf.float32], f=concrete)
        tf.negative(x, name="fetched")
    return functools.partial(_first_run, graph, "fetched:0")


def _function(ops: int) -> None:
    """Traces a function and calls it."""
    tf.function(lambda x: _chain(x, ops // 2), autograph=False)(tf.ones([]))


def _loops(loops: int, ops: int) -> None:
    """The same with loops inside, and a conditional in each."""

    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.cond(x > 0.0, lambda: _chain(x, ops // 2), lambda: x)

    def function(x: tf.Tensor) -> tf.Tensor:
        for _ in range(loops):
            x = tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]
        return x

    tf.function(function, autograph=False)(tf.ones([]))


def in_worker(kind: str, sizes: list[int], with_library: bool) -> dict[str, Sampler]:
    """The sampler of a kind of graph, in a process with or without the library."""
    if with_library:
        import tf_cg_ops  # noqa: F401
    if kind == "session":
        run = _session(*sizes)
    elif kind == "gradients":
        run = _gradients(*sizes)
    else:
        run = functools.partial({"function": _function, "loops": _loops}[kind], *sizes)
    return {kind: Timed(run)}


@functools.cache
def _worker(with_library: bool) -> Worker:
    """Each imports the library once, or never."""
    return Worker({"TF_CPP_MIN_LOG_LEVEL": "3"})


def _build(kind: str, sizes: list[int]) -> Mapping[str, Sampler | str]:
    function = f"{__spec__.name}:in_worker"
    return {
        name: _worker(is_with).build(function, kind=kind, sizes=sizes, with_library=is_with)[kind]
        for name, is_with in ((WITH, True), (WITHOUT, False))
    }


def cases(settings: Settings) -> list[Case]:
    """One for each kind of graph."""
    kinds = {
        "a session with {:,} nodes": ("session", settings.pick([60_000], [600])),
        "a session with {:,} gradients of a function of {:,} ops": ("gradients", settings.pick([500, 2_000], [5, 20])),
        "a function of {:,} ops": ("function", settings.pick([2_000], [20])),
        "a function with {:,} loops around conditionals of {:,} ops": ("loops", settings.pick([10, 100], [1, 4])),
    }
    return [
        Case(SUBJECT, name.format(*sizes), functools.partial(_build, kind, sizes), (WITH,))
        for name, (kind, sizes) in kinds.items()
    ]


if __name__ == "__main__":
    program.run(cases)
