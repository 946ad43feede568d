"""Copies of loops and conditionals compute what the ops say, whoever made them."""

import functools
import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, derivative, tape_vjp
from ..support.processes import run_python
from ..support.sources import ROOT

X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])
OPS = {"While": tf.raw_ops.While, "StatelessWhile": tf.raw_ops.StatelessWhile}

# Ways to use a function that copy its graph.
USES = {
    "recompute_grad": cg.recompute_grad,
    "override_gradients": lambda f: cg.override_gradients(lambda x: f(x) + 0.0 * tf.sin(x), {"Sin": cg.rules.built_in}),
    "scan": lambda f: lambda x: cg.scan(lambda carry, _: (f(carry), None), x, length=1)[0],
}


def computed(functions, mode, uses=None):
    """The value and the gradient of each function, in these uses in turn. All are traced and compiled together."""

    def run(x, dy):
        in_turn = itertools.cycle(uses or USES.values())
        return {name: tape_vjp(next(in_turn)(f), [x], dy) for name, f in functions.items()}

    return {name: [value, dx] for name, (value, (dx,)) in RUNS[mode](run)(tf.constant(X), tf.constant(DY)).items()}


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


def multiplied(i, n, x):
    return i + 1, n, product(x, n)


# Loops whose second input, or whose counter, is not what it is in a loop of tf.while_loop, and by how much they multiply.
RAW_LOOPS = {
    f"{op}, an invariant number": (
        raw_loop(lambda x, n: is_small(x), lambda x, n: (product(x, n), n), (), (2,), op),
        128,
    )
    for op in OPS
} | {
    "a number that varies": (raw_loop(lambda x, n: is_small(x), lambda x, n: (product(x, n), n + 1), (), (2,)), 120),
    "one variable": (raw_loop(is_small, lambda x: 3.0 * x), 81),
    "a counter that the condition does not read": (raw_loop(lambda i, n, x: is_small(x), multiplied, (0, 2)), 128),
    "a condition true beyond the limit": (raw_loop(lambda i, n, x: (i < n) | is_small(x), multiplied, (0, 2)), 128),
    "a counter below 0": (raw_loop(lambda i, n, x: i < n, multiplied, (-3, 2)), 32),
    "a counter that goes back": (
        raw_loop(
            lambda i, n, x: (i < n) & is_small(x), lambda i, n, x: (tf.maximum(i - 1, 0), n, product(x, n)), (0, 2)
        ),
        128,
    ),
    "a number as the condition": (raw_loop(lambda i, x: 3 - i, lambda i, x: (i + 1, 2.0 * x), (0,)), 8),
    "a limit that grows": (
        raw_loop(lambda i, n, x: (i < n) & is_small(x), lambda i, n, x: (i + 1, n + 1, 2.0 * x), (0, 2)),
        128,
    ),
    "a condition with elements": (
        raw_loop(lambda i, x: tf.zeros([3 - i], tf.bool), lambda i, x: (i + 1, 2.0 * x), (0,)),
        8,
    ),
}


def while_loop(maximum, steps=9):
    """A loop of TensorFlow; XLA differentiates it if there is a maximum."""

    def run(x):
        maximum_iterations = maximum(x) if callable(maximum) else maximum
        body = lambda i, y: (i + 1, tf.sin(y) + x)  # noqa: E731
        return tf.while_loop(lambda i, _: i < steps, body, (0, x), maximum_iterations=maximum_iterations)[1]

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
    "a raw loop that counts": (
        raw_loop(lambda i, n, x: i < n, lambda i, n, x: (i + 1, n, x * x), (0, 3)),
        X**7,
        8 * X**7,
    ),
    "a raw loop with the limit at the end": (
        raw_loop(lambda x, i, n: is_small(x) & (i < n), lambda x, i, n: (x * x, i + 1, n), (), (0, 3)),
        X**7,
        8 * X**7,
    ),
    "an int": while_loop(4),
    "a Tensor": while_loop(lambda x: tf.constant(4)),
    "a shape": while_loop(lambda x: tf.size(x)),
    "more than the condition": while_loop(20),
    "a loop in a loop": lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, while_loop(3)(y)), (0, x), maximum_iterations=5
    )[1],
    "a gradient": derivative(while_loop(4)),
    "a gradient of a gradient": derivative(derivative(while_loop(4))),
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


def functions_of(cases):
    return {name: case[0] if isinstance(case, tuple) else case for name, case in cases.items()}


def assert_computed(found, cases):
    """Compares value and gradient with the product that a case says, or else with plain TensorFlow."""
    plain = computed({name: f for name, f in cases.items() if not isinstance(f, tuple)}, "traced", [lambda f: f])
    assert found.keys() == cases.keys()
    for name, case in cases.items():
        wanted = plain[name] if name in plain else [case[1] * X, case[-1] * DY]
        for actual, numbers in zip(found[name], wanted, strict=True):
            np.testing.assert_allclose(actual, numbers, rtol=1e-12, err_msg=name)


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

    value, (dx,) = tape_vjp(USES["override_gradients"](function), [tf.constant(X)], tf.constant(DY))
    for actual, wanted in ((value, 4.0 * X), (dx, 4.0 * DY), (variable, 4.0)):
        np.testing.assert_allclose(actual, wanted, rtol=1e-12)


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
    **{f"If {value!r}": (raw_if(value), 2) for value in (1, -7, 0.5, [False], [0, 0], True)},
    **{f"If {value!r}": (raw_if(value), 3) for value in (0, 0.0, False)},
    "If no elements": (raw_if(np.zeros([0], np.float32)), 3),
    "If no rows": (raw_if(np.ones([0, 2], np.bool_)), 3),
    "StatelessIf 2": (raw_if(2, tf.raw_ops.StatelessIf), 2),
    "StatelessIf 0": (raw_if(0, tf.raw_ops.StatelessIf), 3),
    **{f"Case {index}": (raw_case(index), slope) for index, slope in [(0, 2), (1, 3), (2, 4), (3, 4), (-1, 4)]},
    "StatelessCase 9": (raw_case(9, tf.raw_ops.StatelessCase), 4),
}
STRINGS = {"If 'no'": (raw_if("no"), 2), "If ''": (raw_if(""), 3)}  # XLA has no strings.
# With the number of modes; the last one is XLA.
FAMILIES = {
    "raw loops": (RAW_LOOPS, 2),
    "loops": (BOUNDED_LOOPS, 3),
    "conditionals": (CONDITIONALS, 3),
    "others": (OTHER_LOOPS | STRINGS, 2),
}


@pytest.mark.parametrize(
    ("family", "mode"), [(family, mode) for family, (_, count) in FAMILIES.items() for mode in [*RUNS][:count]]
)
def test_copies_have_the_value_and_gradient_of_the_original(family, mode):
    """Each in one mode in turn."""
    cases, count = FAMILIES[family]
    cases = dict(itertools.islice(cases.items(), [*RUNS].index(mode), None, count))
    assert_computed(computed(functions_of(cases), mode), cases)


def test_raw_loops_have_the_right_value_under_xla():
    @tf.function(jit_compile=True)
    def values(x):
        uses = itertools.cycle(USES.values())
        return {name: next(uses)(f)(x) for name, (f, _) in RAW_LOOPS.items() if name != "a condition with elements"}

    for name, value in values(tf.constant(X)).items():
        np.testing.assert_allclose(value, RAW_LOOPS[name][1] * X, rtol=1e-12, err_msg=name)


RELOADED = """
import json, sys
import tensorflow as tf
from tests.rewrite.test_control_flow import computed

functions = dict(tf.saved_model.load(sys.argv[1]).functions)
found = [computed(functions, "traced"), computed({name: functions[name] for name in sys.argv[2:]}, "jit")]
print(json.dumps(tf.nest.map_structure(lambda t: t.numpy().tolist(), found)))
"""


def test_loaded_loops_and_conditionals(tmp_path):
    """The functions are saved as they are, so that all copies are made of what was loaded."""
    cases = RAW_LOOPS | BOUNDED_LOOPS | OTHER_LOOPS | CONDITIONALS | STRINGS
    under_xla = "a Tensor", "scan"
    names = *list(RAW_LOOPS)[::3], *under_xla, "no maximum", "If no elements", "If 'no'", "StatelessIf 0", "Case 1"
    cases = {name: cases[name] for name in (*names, "StatelessCase 9")}
    model = tf.Module()
    signature = [tf.TensorSpec([3], tf.float64)]
    model.functions = {name: tf.function(f, input_signature=signature) for name, f in functions_of(cases).items()}
    tf.saved_model.save(model, tmp_path / "model")
    result = run_python(RELOADED, tmp_path / "model", *under_xla, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    traced, compiled = json.loads(result.stdout.splitlines()[-1])
    assert_computed(traced, cases)
    assert_computed(compiled, {name: cases[name] for name in under_xla})
