"""implicit_root: derivatives of roots against the implicit function theorem in float64 NumPy."""

import json

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import GRAPH_MODES, MODES, RUNS, VJP_MODES, assert_orders, derivative, eager, jit, traced, vjp
from ..support.processes import run_python
from ..support.roots import (
    DY,
    X,
    coupled,
    coupled_by_hand,
    cubic,
    cubic_by_hand,
    cubic_newton,
    cubic_residual,
    cubic_root,
    newton,
)
from ..support.sources import ROOT
from ..support.tensors import random_array

CASES = {"coupled": (coupled, coupled_by_hand), "batched": (cubic, cubic_by_hand)}
ALL_MODES = {**MODES, **GRAPH_MODES}


@pytest.mark.mode_table(feature="implicit_root", mode="mode")
@pytest.mark.parametrize(
    ("case", "mode"),
    [
        *(pytest.param("coupled", mode, marks=pytest.mark.core) for mode in ("eager", "jit")),
        *(("coupled", mode) for mode in ALL_MODES if mode not in ("eager", "jit")),
        *(("batched", mode) for mode in ("eager", "jit", "forward_mode")),
    ],
)
def test_first_and_second_order(case, mode):
    function, by_hand = CASES[case]
    assert_orders(ALL_MODES[mode](function, X, DY), by_hand())


RELOAD = """
import json, sys
import numpy as np
import tensorflow as tf
import tf_cg_ops
from tests.support.modes import eager_orders, jit_orders

model = tf.saved_model.load(sys.argv[1])
x, dy = (np.array(json.loads(text)) for text in sys.argv[2:4])
found = {}
for name in sys.argv[4:]:
    function = getattr(model, name)
    found[name] = [[t.tolist() for t in run(function, x, dy)] for run in (eager_orders, jit_orders)]
print(json.dumps(found))
"""


@pytest.mark.mode_table(feature="implicit_root", mode="reloaded")
def test_first_and_second_order_after_a_reload_in_a_fresh_process(tmp_path):
    model = tf.Module()
    for name, (function, _) in CASES.items():
        setattr(model, name, tf.function(function, input_signature=[tf.TensorSpec([3], tf.float64)]))
    tf.saved_model.save(model, tmp_path / "model")
    arguments = [json.dumps(X.tolist()), json.dumps(DY.tolist()), *CASES]
    result = run_python(RELOAD, tmp_path / "model", *arguments, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    found = json.loads(result.stdout.splitlines()[-1])
    for name, (_, by_hand) in CASES.items():
        for orders in found[name]:
            assert_orders(orders, by_hand())


def orders_of_cubic():
    """The first four derivatives of the root, from differentiating 1 = y' (3 y**2 + 1)."""
    y = cubic_root(X)
    s = 3 * y**2 + 1
    y1 = 1 / s
    y2 = -6 * y * y1**2 / s
    y3 = -(6 * y1**3 + 18 * y * y1 * y2) / s
    y4 = -(36 * y1**2 * y2 + 18 * y * y2**2 + 24 * y * y1 * y3) / s
    return y1, y2, y3, y4


def third(function):
    return derivative(derivative(derivative(function)))


def test_the_third_and_fourth_order():
    function = cg.implicit_root(cubic_residual, cubic_newton)
    np.testing.assert_allclose(RUNS["jit"](third(function))(tf.constant(X)), orders_of_cubic()[2], rtol=1e-11)
    np.testing.assert_allclose(derivative(third(cubic))(tf.constant(X)), orders_of_cubic()[3], rtol=1e-10)


@pytest.mark.parametrize("name", ["eager", "traced_unknown_rank"])
def test_a_linear_system_and_its_matrix_and_right_hand_side(name, rng):
    """u = A^-T dy; db = u, dA = -u y^T."""
    a, b, dy = random_array(rng, [4, 4]) + 4 * np.eye(4), random_array(rng, [4]), random_array(rng, [4])
    solution = cg.implicit_root(
        lambda y, a, b: tf.linalg.matvec(a, y) - b, lambda a, b: tf.linalg.solve(a, b[:, None])[:, 0]
    )
    # TensorFlow's own solver needs a known rank.
    value, (da, db) = VJP_MODES[name](
        lambda a, b: solution(tf.reshape(a, [4, 4]), tf.reshape(b, [4])) if b.shape.rank is None else solution(a, b),
        [a, b],
        dy,
    )
    u, y = np.linalg.solve(a.T, dy), np.linalg.solve(a, b)
    np.testing.assert_allclose(value, y, rtol=1e-10)
    np.testing.assert_allclose(db, u, rtol=1e-10)
    np.testing.assert_allclose(da, -np.outer(u, y), rtol=1e-10)


@pytest.mark.parametrize(("name", "size"), [("eager", 5), ("traced_unknown_dims", 0), ("jit_unknown_dims", 5)])
def test_a_batch_of_linear_systems_for_matrices(name, size, rng):
    """Y of [B, 2, 3] with A Y = C in each example."""
    a = random_array(rng, [size, 2, 2]) + 4 * np.eye(2)
    c, dy = random_array(rng, [size, 2, 3]), random_array(rng, [size, 2, 3])
    solution = cg.implicit_root(lambda y, a, c: a @ y - c, tf.linalg.solve, batched=True)
    value, (da, dc) = VJP_MODES[name](lambda a, c: solution(a, c), [a, c], dy)
    u = np.linalg.solve(np.swapaxes(a, 1, 2), dy)
    np.testing.assert_allclose(value, np.linalg.solve(a, c), rtol=1e-12)
    np.testing.assert_allclose(dc, u, rtol=1e-10)
    np.testing.assert_allclose(da, -u @ np.swapaxes(np.linalg.solve(a, c), 1, 2), rtol=1e-10)


def test_a_complex_system(rng):
    """A y + y**2 = b, with (dr/dy)^H instead of the transpose."""
    a = random_array(rng, [3, 3], tf.complex128) + 6 * np.eye(3)
    b, dy = random_array(rng, [3], tf.complex128), random_array(rng, [3], tf.complex128)

    def residual(y, a, b):
        return tf.linalg.matvec(a, y) + y**2 - b

    def solve(a, b):
        return newton(lambda y: residual(y, a, b), lambda y: a + tf.linalg.diag(2 * y), tf.zeros_like(b))

    value, (da, db) = eager(cg.implicit_root(residual, solve), [a, b], dy)
    np.testing.assert_allclose(a @ value + value**2, b, rtol=1e-12)
    u = np.linalg.solve((a + np.diag(2 * value)).conj().T, dy)
    np.testing.assert_allclose(db, u, rtol=1e-11)
    np.testing.assert_allclose(da, -np.outer(u, value.conj()), rtol=1e-11)


def test_arguments_that_depend_on_each_other():
    """Each gets its partial derivative, once."""
    function = cg.implicit_root(lambda y, a, b: y**3 + y - a * b, lambda a, b: cubic_newton(a * b))
    value, (dx,) = eager(lambda x: function(x, x**2), [X], DY)
    np.testing.assert_allclose(dx, DY * 3 * X**2 / (3 * value**2 + 1), rtol=1e-11)


@pytest.mark.parametrize(
    ("run", "shape"),
    [(eager, ()), (jit, (1,)), (eager, (2, 2)), (traced, (0,))],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_root_of_any_shape(run, shape, rng):
    x, dy = random_array(rng, shape), random_array(rng, shape)
    value, (dx,) = run(cg.implicit_root(cubic_residual, cubic_newton), [x], dy)
    np.testing.assert_allclose(value, cubic_root(x), rtol=1e-11)
    np.testing.assert_allclose(dx, dy / (3 * value**2 + 1), rtol=1e-11)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("batched", [False, True])
def test_a_root_in_16_bits(dtype, batched):
    x, dy = tf.constant([0.7, -1.3, 1.1], dtype), tf.constant([1.0, 10.0, -3.0], dtype)
    root = cg.implicit_root(
        lambda y, x: y + y**3 - x, lambda x: tf.cast(cubic(tf.cast(x, tf.float64)), dtype), batched=batched
    )
    y, dx = vjp(lambda: root(x), x, dy)
    expected = np.array([1.0, 10.0, -3.0]) / (1 + 3 * tf.cast(y, tf.float64).numpy() ** 2)
    np.testing.assert_allclose(tf.cast(dx, tf.float64), expected, rtol=4e-2)
