"""Gradients of a stripped model: its own training step, and a signature with gradients, in Python without this library
and in C.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support import c_program
from ..support.saved_models import call_signatures, in_a_loop, strip, with_modes
from ..support.without_python import DY, WEIGHT, X, log1pexp, residual, spike, with_tangent

RATE = 0.5


def step_of(w):
    return lambda y: spike(y) * w


def with_variable(x, w):
    return cg.custom_gradient(lambda x: (w * x, lambda dy, variables: (10.0 * dy * x * variables[0], [3.0 * dy])))(x)


@cg.implicit_root(lambda y, x: y**3 + y - x)
def cubic(x):
    body = lambda i, y: (i + 1, y - (y**3 + y - x) / (3.0 * y**2 + 1.0))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 50, body, (0, x))[1]


def twice_by_hand():
    y1 = np.sign(X) * WEIGHT
    dy1 = 4.0 * DY * WEIGHT * y1
    return np.sign(y1) * WEIGHT, 4.0 * dy1 * WEIGHT * X, DY * np.sign(y1) + dy1 * np.sign(X)


def once_by_hand():
    return np.sign(X) * WEIGHT, 4.0 * DY * WEIGHT * X, DY * np.sign(X)


def of_product(value, slope):
    """A function of x * w."""
    return lambda: (value(X * WEIGHT), DY * slope(X * WEIGHT) * WEIGHT, DY * slope(X * WEIGHT) * X)


def root(x):
    """Of y**3 + y - x, by Cardano."""
    d = np.sqrt(x**2 / 4.0 + 1.0 / 27.0)
    return np.cbrt(x / 2.0 + d) + np.cbrt(x / 2.0 - d)


# Functions of a vector x and a variable w, and by hand: the value, dx and dw.
CASES = {
    "custom_gradient": (with_variable, lambda: (X * WEIGHT, 10.0 * DY * X * WEIGHT, 3.0 * DY)),
    "custom_vjp": (lambda x, w: residual(x * w), of_product(np.square, lambda h: h * np.cos(h))),
    "custom_jvp": (lambda x, w: with_tangent(x * w), of_product(np.square, np.cos)),
    "embed_gradient": (
        lambda x, w: cg.embed_gradient(tf.sign(x * w), tf.exp(x * w), x * w),
        of_product(np.sign, np.exp),
    ),
    "straight_through": (lambda x, w: cg.straight_through(tf.round)(x * w), of_product(np.round, lambda h: np.ones(3))),
    "recompute_grad": (
        lambda x, w: cg.recompute_grad(lambda x: tf.sin(x) * w)(x),
        lambda: (np.sin(X) * WEIGHT, DY * np.cos(X) * WEIGHT, DY * np.sin(X)),
    ),
    "override_gradients": (
        lambda x, w: cg.override_gradients(lambda x: tf.sin(x) * w, {"Sin": lambda op, dy: 5.0 * dy})(x),
        lambda: (np.sin(X) * WEIGHT, 5.0 * DY * WEIGHT, DY * np.sin(X)),
    ),
    "implicit_root": (lambda x, w: cubic(x * w), of_product(root, lambda h: 1.0 / (3.0 * root(h) ** 2 + 1.0))),
    "infinite_value": (
        lambda x, w: log1pexp(1e3 * x * w),
        of_product(lambda h: np.full(3, np.inf), lambda h: np.full(3, 1e3)),
    ),
    "scan": (lambda x, w: cg.scan(lambda y, _: (step_of(w)(y), None), x, length=2)[0], twice_by_hand),
    "while_loop": (
        lambda x, w: cg.while_loop(
            lambda i, _: i < 2, lambda i, y: (i + 1, step_of(w)(y)), (0, x), maximum_iterations=2
        )[1],
        twice_by_hand,
    ),
    "loop": (lambda x, w: in_a_loop(step_of(w), 2)(x), twice_by_hand),
    "conditional": (lambda x, w: tf.cond(x[0] > 0.0, lambda: step_of(w)(x), lambda: x), once_by_hand),
    "function": (lambda x, w: tf.function(lambda x: step_of(w)(x))(x), once_by_hand),
    "compiled_function": (lambda x, w: tf.function(lambda x: step_of(w)(x), jit_compile=True)(x), once_by_hand),
}


class Module(tf.Module):
    """A variable for each case, the values of all cases, and a step that trains all of them."""

    def __init__(self):
        super().__init__()
        self.w = {name: tf.Variable(WEIGHT, name=f"w_{name}") for name in CASES}

    def values(self, **xs):
        return {f"y_{name}": tf.identity(CASES[name][0](xs[f"x_{name}"], self.w[name])) for name in CASES}

    def step(self, **inputs):
        xs = {key: x for key, x in inputs.items() if key.startswith("x_")}
        with tf.GradientTape() as tape:
            tape.watch(xs)
            ys = self.values(**xs)
        dxs, dws = tape.gradient(ys, [xs, self.w], output_gradients={key: inputs[f"d_{key}"] for key in ys})
        after = {f"w_{name}": self.w[name].assign_sub(RATE * dws[name], read_value=True) for name in CASES}
        return {**ys, **{f"d_{key}": dx for key, dx in dxs.items()}, **after}


XS, DYS = {f"x_{name}": X for name in CASES}, {f"d_y_{name}": DY for name in CASES}


@pytest.fixture(scope="module")
def stripped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    module = Module()
    spec = tf.TensorSpec([3], tf.float64)
    values = tf.function(module.values).get_concrete_function(**dict.fromkeys(XS, spec))
    step = tf.function(module.step).get_concrete_function(**dict.fromkeys(XS | DYS, spec))
    tf.saved_model.save(module, folder / "source", signatures={"serving_default": values, "step": step})
    of = [f"y_{name}" for name in CASES]
    cg.saved_model.add_gradients(folder / "source", folder / "added", of=of, wrt=[*XS, "variables"], check=False)
    strip(folder / "added", folder / "target", check=False)
    return folder / "target"


@pytest.fixture(scope="module")
def results(stripped):
    """What both signatures return, by the place where they run."""
    signatures = ["step", "gradients"]
    calls = {name: (stripped, name, XS | DYS) for name in signatures}
    return {
        "python": call_signatures(calls, stripped.parent, alone=True),
        "c": {name: c_program.run_signature(stripped, name, XS | DYS) for name in signatures},
    }


MODES_OF = {"loop": ["while_loop"], "conditional": ["cond"], "function": ["nested_functions"]}


@pytest.mark.parametrize("place", ["python", "c"])
@pytest.mark.parametrize("name", with_modes(CASES, "strip", MODES_OF))
def test_a_training_step(results, name, place):
    found = results[place]["step"]
    y, dx, dw = CASES[name][1]()
    for key, expected in {f"y_{name}": y, f"d_x_{name}": dx, f"w_{name}": WEIGHT - RATE * dw}.items():
        np.testing.assert_allclose(found[key], expected, rtol=1e-10, err_msg=key)


# Their names in the support matrix. The other cases are uses of custom_gradient and recompute_grad.
CELLS = {"scan": "cg.scan", "while_loop": "cg.while_loop"} | {
    name: name
    for name in (
        *("embed_gradient", "custom_gradient", "custom_vjp", "custom_jvp", "recompute_grad"),
        *("override_gradients", "implicit_root", "straight_through"),
    )
}


def with_cell(name):
    mark = pytest.mark.mode_table
    return pytest.param(name, marks=[mark(feature=CELLS[name], mode="shipped")] if name in CELLS else [])


@pytest.mark.parametrize("place", ["python", "c"])
@pytest.mark.parametrize("name", [with_cell(name) for name in CASES])
def test_an_added_signature(results, name, place):
    found = results[place]["gradients"]
    y, dx, dw = CASES[name][1]()
    for key, expected in {f"y_{name}": y, f"d_x_{name}": dx, f"d_w_{name}": dw}.items():
        np.testing.assert_allclose(found[key], expected, rtol=1e-10, err_msg=key)
