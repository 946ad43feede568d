"""Tracing: rules that call their own function, and functions that each eager call traces."""

import functools
from collections.abc import Callable

import tensorflow as tf

import tf_cg_ops as cg

from ..harness.implementations import gradient
from ..harness.measurement import Case, Samplers, Settings
from ..harness.names import DECORATOR, NO_RECOMPUTATION, RECOMPUTED, SCAN, TF, TF_RECOMPUTED, TF_SCAN
from ..harness.samplers import Timed
from ..models import networks

_OPS = 10


def _series(x: tf.Tensor) -> tf.Tensor:
    """A value like TFP's `bessel_ive`: a loop and some ten operations around it."""

    def step(i: tf.Tensor, term: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        for _ in range(_OPS):
            term = term * x / (tf.cast(i, x.dtype) + 1.0)
        return i + 1, term, total + term

    x = tf.abs(x) + tf.cast(x < 0, x.dtype)
    return tf.while_loop(lambda i, *_: i < 10, step, (0, tf.ones_like(x), tf.zeros_like(x)))[2]


def _recursive(decorate: Callable, calls: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function whose gradient calls it this many times."""

    @decorate
    def function(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return _series(x), lambda dy: dy * tf.add_n([function(x + float(i)) for i in range(calls)])

    return function


def _trace(function: Callable[[tf.Tensor], tf.Tensor], order: int) -> None:
    for _ in range(order):
        function = functools.partial(gradient, function)
    tf.function(function).get_concrete_function(tf.TensorSpec([8], tf.float32))


def _recursion(settings: Settings) -> list[Case]:
    """The trace of a value, of its gradient, and of a second derivative."""

    def build(calls: int, order: int) -> Samplers:
        decorated = {DECORATOR: _recursive(cg.custom_gradient, calls), TF: _recursive(tf.custom_gradient, calls)}
        return {name: Timed(functools.partial(_trace, function, order)) for name, function in decorated.items()}

    cases = [(calls, order) for calls in settings.pick((1, 2, 3), (1,)) for order in (0, 1)]
    cases += settings.pick([(2, 2)], [])
    titles = ("value", "gradient", "second derivative")
    found = []
    for calls, order in cases:
        name = f"trace, {titles[order]}, calls itself {calls} times"
        found.append(Case("recursive_rules", name, functools.partial(build, calls, order), (DECORATOR,)))
    return found


def _vjp(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, sources: list[tf.Variable]) -> list[tf.Tensor]:
    """An eager step: the value, and its gradients for an upstream gradient that is not uniform."""
    with tf.GradientTape() as tape:
        y = function(x)
    return tape.gradient(y, sources, tf.cos(y))


def _normal(shape: list[int], scale: float = 0.1) -> tf.Variable:
    return tf.Variable(scale * tf.random.stateless_normal(shape, [1, sum(shape)]))


def _transformer(width: int, length: int) -> tuple[Callable, tf.Tensor, list[tf.Variable]]:
    weights = [_normal(shape) for shape in networks.block_shapes(width)]
    function = lambda x: networks.block(4, length, weights, x, tf.nn.gelu)  # noqa: E731
    return function, tf.random.stateless_normal([4 * length, width], [1, 2]), weights


def _resnet(channels: int, pixels: int) -> tuple[Callable, tf.Tensor, list[tf.Variable]]:
    kernels = [_normal([3, 3, channels, channels]) for _ in range(2)]
    scales = [_normal([channels]) for _ in range(4)]

    def function(x: tf.Tensor) -> tf.Tensor:
        y = x
        for i, kernel in enumerate(kernels):
            y = tf.nn.conv2d(y, kernel, 1, "SAME")
            y = tf.compat.v1.nn.fused_batch_norm(y, 1.0 + scales[2 * i], scales[2 * i + 1])[0]
            y = tf.nn.relu(y + x if i else y)
        return y

    return function, tf.random.stateless_normal([4, pixels, pixels, channels], [1, 2]), kernels + scales


_STEPS = 100


def _scans() -> tuple[dict[str, Callable], tf.Tensor, list[tf.Variable]]:
    w = _normal([16, 16])

    def ours(x: tf.Tensor) -> tf.Tensor:
        def step(carry: tf.Tensor, _: None) -> tuple[tf.Tensor, tf.Tensor]:
            carry = tf.tanh(carry @ w + x)
            return carry, carry

        return cg.scan(step, tf.zeros_like(x), length=_STEPS)[1]

    def theirs(x: tf.Tensor) -> tf.Tensor:
        return tf.scan(lambda carry, _: tf.tanh(carry @ w + x), tf.range(_STEPS), tf.zeros_like(x))

    return {SCAN: ours, TF_SCAN: theirs}, tf.random.stateless_normal([8, 16], [1, 2]), [w]


def _eager_steps(settings: Settings) -> list[Case]:
    """Steps in eager mode, each of which traces the function, and first calls under XLA, beside TensorFlow's."""
    kinds = {RECOMPUTED: cg.recompute_grad, TF_RECOMPUTED: tf.recompute_grad, NO_RECOMPUTATION: lambda f: f}

    def blocks(make: Callable, *sizes: int) -> Samplers:
        function, x, sources = make(*sizes)
        return {
            name: Timed(functools.partial(_vjp, decorate(function), x, sources)) for name, decorate in kinds.items()
        }

    def first_calls() -> Samplers:
        built = [_transformer(64, 16) for _ in range(4)]
        x, sources = built[0][1], [source for _, _, of_block in built for source in of_block]

        def call(decorate: Callable) -> None:
            blocks = [decorate(function) for function, _, _ in built]
            chain = lambda x: functools.reduce(lambda y, block: block(y), blocks, x)  # noqa: E731
            tf.function(lambda x: _vjp(chain, x, sources), autograph=False, jit_compile=True)(x)

        return {name: Timed(functools.partial(call, decorate)) for name, decorate in kinds.items()}

    def scans() -> Samplers:
        functions, x, sources = _scans()
        return {name: Timed(functools.partial(_vjp, function, x, sources)) for name, function in functions.items()}

    return [
        Case("eager_steps", name, functools.partial(blocks, make, *sizes), (RECOMPUTED,))
        for name, make, sizes in (
            ("transformer block, width 64", _transformer, (64, 32)),
            ("transformer block, width 256", _transformer, (256, 64)),
            ("ResNet block, 16 channels", _resnet, (16, 8)),
            ("ResNet block, 64 channels", _resnet, (64, 32)),
        )
    ] + [
        Case("eager_steps", "first call under XLA, four transformer blocks", first_calls, (RECOMPUTED,)),
        Case("eager_steps", f"{_STEPS} small steps", scans, (SCAN,)),
    ]


def cases(settings: Settings) -> list[Case]:
    """Recursive rules and eager steps."""
    return _recursion(settings) + _eager_steps(settings)
