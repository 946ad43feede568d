"""Copies of loops and conditionals compute what the ops say, whoever made them."""

import functools
import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, tape_vjp
from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.tensors import pairs

X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])
OPS = {"While": tf.raw_ops.While, "StatelessWhile": tf.raw_ops.StatelessWhile}

# Ways to use a function that copy its graph.
USES = {
    "recompute_grad": cg.recompute_grad,
    "override_gradients": lambda f: cg.override_gradients(lambda x: f(x) + 0.0 * tf.sin(x), {"Sin": cg.rules.built_in}),
    "scan": lambda f: lambda x: cg.scan(lambda carry, _: (f(carry), None), x, length=1)[0],
}
WITHOUT_XLA = [f"{use} {mode}" for use in USES for mode in ("eager", "traced")]
EVERYWHERE = [f"{use} {mode}" for mode in RUNS for use in USES]


def used(function, use_and_mode):
    """The value and the gradient of a function in one use and one mode."""
    use, mode = use_and_mode.split()
    run = RUNS[mode](lambda x, dy: tape_vjp(USES[use](function), [x], dy))
    value, (dx,) = run(tf.constant(X), tf.constant(DY))
    return value, dx


def is_small(x):
    return tf.reduce_max(tf.abs(x)) < 100.0


def raw_loop(cond, body, before=(), after=(), op="While"):
    """A loop of tf.raw_ops over x and int32 numbers before and after it."""
    numbers = [tf.TensorSpec([], tf.int32)]
    signature = [*numbers * len(before), tf.TensorSpec([3], tf.float64), *numbers * len(after)]
    functions = [tf.function(f, input_signature=signature).get_concrete_function() for f in (cond, body)]
    return lambda x: OPS[op](input=[*before, x, *after], cond=functions[0], body=functions[1])[len(before)]


def product(x, n):
    return x * tf.cast(n, x.dtype)


# Loops whose second input, or whose counter, is not what it is in a loop of tf.while_loop, and their slopes.
RAW_LOOPS = {
    f"{op}: an invariant number": (
        raw_loop(lambda x, n: is_small(x), lambda x, n: (product(x, n), n), (), (2,), op),
        128,
    )
    for op in OPS
} | {
    "a number that varies": (raw_loop(lambda x, n: is_small(x), lambda x, n: (product(x, n), n + 1), (), (2,)), 120),
    "one variable": (raw_loop(is_small, lambda x: 3.0 * x), 81),
    "a counter that the condition does not read": (
        raw_loop(lambda i, n, x: is_small(x), lambda i, n, x: (i + 1, n, product(x, n)), (0, 2)),
        128,
    ),
    "a condition that is true beyond the limit": (
        raw_loop(lambda i, n, x: (i < n) | is_small(x), lambda i, n, x: (i + 1, n, product(x, n)), (0, 2)),
        128,
    ),
    "a counter below 0": (raw_loop(lambda i, n, x: i < n, lambda i, n, x: (i + 1, n, product(x, n)), (-3, 2)), 32),
    "a counter that goes back": (
        raw_loop(
            lambda i, n, x: (i < n) & is_small(x), lambda i, n, x: (tf.maximum(i - 1, 0), n, product(x, n)), (0, 2)
        ),
        128,
    ),
    "a number as the condition": (raw_loop(lambda i, x: 3 - i, lambda i, x: (i + 1, 2.0 * x), (0,)), 8),
    "a condition with elements": (
        raw_loop(lambda i, x: tf.zeros([3 - i], tf.bool), lambda i, x: (i + 1, 2.0 * x), (0,)),
        8,
    ),
    "a limit that grows": (
        raw_loop(lambda i, n, x: (i < n) & is_small(x), lambda i, n, x: (i + 1, n + 1, 2.0 * x), (0, 2)),
        128,
    ),
}


def while_loop(maximum, steps=9):
    """A loop of TensorFlow; XLA differentiates it if there is a maximum."""

    def run(x):
        maximum_iterations = maximum(x) if callable(maximum) else maximum
        body = lambda i, y: (i + 1, tf.sin(y) + x)  # noqa: E731
        return tf.while_loop(lambda i, _: i < steps, body, (0, x), maximum_iterations=maximum_iterations)[1]

    return run


def gradient_of(f):
    """The gradient of a loop, which is a loop itself, up to its own limit."""

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    return run


@functools.cache
def rnn():
    layer = keras.layers.SimpleRNN(1, dtype="float64")
    layer.build((3, 1, 1))
    return layer


def summed(x):
    total = tf.zeros_like(x)
    for row in tf.stack([x, 2.0 * x]):
        total += tf.sin(row)
    return total


# Loops that have a maximum of iterations, or whose condition says it of a counter.
BOUNDED_LOOPS = {
    "a raw loop that counts": raw_loop(lambda i, n, x: i < n, lambda i, n, x: (i + 1, n, x * x), (0, 3)),
    "a raw loop with the limit at the end": raw_loop(
        lambda x, i, n: is_small(x) & (i < n), lambda x, i, n: (x * x, i + 1, n), (), (0, 3)
    ),
    "an int": while_loop(4),
    "a Tensor": while_loop(lambda x: tf.constant(4)),
    "a shape": while_loop(lambda x: tf.size(x)),
    "more than the condition": while_loop(20),
    "a loop in a loop": lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, while_loop(3)(y)), (0, x), maximum_iterations=5
    )[1],
    "a gradient": gradient_of(while_loop(4)),
    "a gradient of a gradient": gradient_of(gradient_of(while_loop(4))),
    "scan": lambda x: tf.scan(lambda a, b: tf.sin(a) * b, x),
    "map_fn": lambda x: tf.map_fn(lambda row: row * row, x),
    "RNN": lambda x: rnn()(x[:, tf.newaxis, tf.newaxis])[:, 0] * x,
}
OTHER_LOOPS = {
    "no maximum": while_loop(None),
    "a maximum of 0": while_loop(0),
    "vectorized_map": lambda x: tf.vectorized_map(while_loop(4), x),
    "autograph": tf.function(summed),
}


def assert_vjp(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12)


@pytest.mark.parametrize(("loop", "use_and_mode"), pairs(RAW_LOOPS, WITHOUT_XLA, quick=2))
def test_raw_loops_have_the_right_value_and_gradient(loop, use_and_mode):
    function, slope = RAW_LOOPS[loop]
    assert_vjp(used(function, use_and_mode), [slope * X, slope * DY])


@pytest.mark.parametrize(
    ("loop", "use"), pairs([name for name in RAW_LOOPS if name != "a condition with elements"], USES)
)
def test_raw_loops_have_the_right_value_under_xla(loop, use):
    function, slope = RAW_LOOPS[loop]
    np.testing.assert_allclose(
        tf.function(USES[use](function), jit_compile=True)(tf.constant(X)), slope * X, rtol=1e-12
    )


@pytest.mark.parametrize(
    ("loop", "use_and_mode"), pairs(BOUNDED_LOOPS, EVERYWHERE, quick=2) + pairs(OTHER_LOOPS, WITHOUT_XLA, quick=2)
)
def test_loops_have_the_value_and_gradient_of_the_original(loop, use_and_mode):
    function = (BOUNDED_LOOPS | OTHER_LOOPS)[loop]
    if loop.startswith("a raw loop"):  # TensorFlow differentiates only its own.
        expected = X**8, DY * 8 * X**7
    else:
        value, (dx,) = tf.function(tape_vjp)(function, [tf.constant(X)], tf.constant(DY))
        expected = value, dx
    assert_vjp(used(function, use_and_mode), expected)


def test_a_loop_that_only_writes_a_variable():
    variable = tf.Variable(np.float64(1.0))
    signature = [tf.TensorSpec([], tf.resource)]
    read = functools.partial(tf.raw_ops.ReadVariableOp, dtype=tf.float64)

    def body(handle):
        tf.raw_ops.AssignAddVariableOp(resource=handle, value=tf.constant(1.0, tf.float64))
        return handle

    cond = tf.function(lambda handle: read(resource=handle) < 3.5, input_signature=signature).get_concrete_function()
    body = tf.function(body, input_signature=signature).get_concrete_function()

    def function(x):
        (handle,) = tf.raw_ops.While(input=[variable.handle], cond=cond, body=body)
        return x * read(resource=handle)

    run = USES["override_gradients"](function)
    value, (dx,) = tape_vjp(run, [tf.constant(X)], tf.constant(DY))
    assert_vjp([value, dx, variable], [4.0 * X, 4.0 * DY, 4.0])


def raw_if(condition, op=tf.raw_ops.If):
    """Twice x if the condition is true, else three times x."""
    signature = [tf.TensorSpec([3], tf.float64)]
    then, otherwise = (
        tf.function(f, input_signature=signature).get_concrete_function()
        for f in (lambda x: 2.0 * x, lambda x: 3.0 * x)
    )

    def run(x):
        return op(cond=condition, input=[x], Tout=[x.dtype], then_branch=then, else_branch=otherwise)[0]

    return run


def raw_case(index, op=tf.raw_ops.Case):
    """Two, three or four times x."""
    signature = [tf.TensorSpec([3], tf.float64)]
    branches = [
        tf.function(lambda x, n=n: n * x, input_signature=signature).get_concrete_function() for n in (2.0, 3.0, 4.0)
    ]
    return lambda x: op(branch_index=index, input=[x], Tout=[x.dtype], branches=branches)[0]


# A scalar is false if it is zero or an empty string, and any other tensor if it has no elements.
CONDITIONALS = {
    **{f"If {value!r}": (raw_if(value), slope) for value, slope in [(1, 2), (0, 3), (-7, 2), (0.5, 2), (0.0, 3)]},
    **{f"If {value!r}": (raw_if(value), slope) for value, slope in [([False], 2), ([0, 0], 2), (True, 2), (False, 3)]},
    "If no elements": (raw_if(np.zeros([0], np.float32)), 3),
    "If no rows": (raw_if(np.ones([0, 2], np.bool_)), 3),
    "StatelessIf 2": (raw_if(2, tf.raw_ops.StatelessIf), 2),
    "StatelessIf 0": (raw_if(0, tf.raw_ops.StatelessIf), 3),
    **{f"Case {index}": (raw_case(index), slope) for index, slope in [(0, 2), (1, 3), (2, 4), (3, 4), (-1, 4)]},
    "StatelessCase 9": (raw_case(9, tf.raw_ops.StatelessCase), 4),
}
STRINGS = {"If 'no'": (raw_if("no"), 2), "If ''": (raw_if(""), 3)}  # XLA has no strings.


@pytest.mark.parametrize(("case", "use_and_mode"), pairs(CONDITIONALS, EVERYWHERE) + pairs(STRINGS, WITHOUT_XLA))
def test_conditionals_take_the_branch_of_the_op(case, use_and_mode):
    function, slope = (CONDITIONALS | STRINGS)[case]
    assert_vjp(used(function, use_and_mode), [slope * X, slope * DY])


RELOADED = """
import json, sys
import tensorflow as tf
from tests.rewrite.test_control_flow import used

model = tf.saved_model.load(sys.argv[1])
found = []
for line in sys.argv[2:]:
    name, use_and_mode = line.split(": ")
    found.append([tensor.numpy().tolist() for tensor in used(model.functions[name], use_and_mode)])
print(json.dumps(found))
"""


def test_loaded_loops_and_conditionals(tmp_path):
    """The functions are saved as they are, so that all copies are made of what was loaded."""
    names = *RAW_LOOPS, "If 1", "If no elements", "If 'no'", "StatelessIf 0", "Case 1", "StatelessCase 9"
    with_slopes = {name.replace(": ", ", "): (RAW_LOOPS | CONDITIONALS | STRINGS)[name] for name in names}
    bounded = {name: BOUNDED_LOOPS[name] for name in ("an int", "a Tensor", "scan")}
    functions = {name: function for name, (function, _) in with_slopes.items()}
    functions |= bounded | {"no maximum": OTHER_LOOPS["no maximum"]}
    calls = [(name, use + " traced") for name, use in zip(functions, itertools.cycle(USES), strict=False)]
    calls += [(name, use + " jit") for name, use in zip(bounded, itertools.cycle(USES), strict=False)]
    model = tf.Module()
    signature = [tf.TensorSpec([3], tf.float64)]
    model.functions = {name: tf.function(f, input_signature=signature) for name, f in functions.items()}
    tf.saved_model.save(model, tmp_path / "model")
    result = run_python(
        RELOADED, tmp_path / "model", *map(": ".join, calls), cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}
    )
    found = json.loads(result.stdout.splitlines()[-1])
    for (name, _), actual in zip(calls, found, strict=True):
        if name in with_slopes:
            expected = [with_slopes[name][1] * X, with_slopes[name][1] * DY]
        else:
            value, (dx,) = tf.function(tape_vjp)(functions[name], [tf.constant(X)], tf.constant(DY))
            expected = [value, dx]
        assert_vjp(actual, expected)
