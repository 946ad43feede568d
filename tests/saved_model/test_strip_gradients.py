"""Gradients of a model with a training step, and of its added signature: in a fresh process, and after strip in Python
without this library and in C.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support import c_program
from ..support.saved_models import bodies_of, call_signatures, in_a_loop, strip
from ..support.without_python import CASES as FORMS
from ..support.without_python import DY, WEIGHT, X, spike

RATE = 0.5


def embedded(y):
    """As `spike`."""
    return cg.embed_gradient(tf.sign(y), 4.0 * y, y)


def with_variable(x, w):
    return cg.custom_gradient(lambda x: (w * x, lambda dy, variables: (10.0 * dy * x * variables[0], [3.0 * dy])))(x)


@cg.implicit_root(lambda y, x: y**3 + y - x)
def cubic(x):
    body = lambda i, y: (i + 1, y - (y**3 + y - x) / (3.0 * y**2 + 1.0))  # noqa: E731
    return tf.while_loop(lambda i, _: i < 50, body, (0, x))[1]


def twice(value, slope):
    """By hand: two steps that multiply a value by w."""

    def by_hand():
        y1 = value(X) * WEIGHT
        dy1 = DY * slope(y1) * WEIGHT
        return value(y1) * WEIGHT, dy1 * slope(X) * WEIGHT, DY * value(y1) + dy1 * value(X)

    return by_hand


spikes = twice(np.sign, lambda h: 4.0 * h)


def once_by_hand():
    return np.sign(X) * WEIGHT, 4.0 * DY * WEIGHT * X, DY * np.sign(X)


def of_product(value, slope):
    """A function of x * w."""
    return lambda: (value(X * WEIGHT), DY * slope(X * WEIGHT) * WEIGHT, DY * slope(X * WEIGHT) * X)


def root(x):
    """Of y**3 + y - x, by Cardano."""
    d = np.sqrt(x**2 / 4.0 + 1.0 / 27.0)
    return np.cbrt(x / 2.0 + d) + np.cbrt(x / 2.0 - d)


def plus_w(case):
    def by_hand():
        y, dx = case.by_hand()
        return y + WEIGHT, dx, DY

    return lambda x, w: case.function(x) + w, by_hand


def places(rule):
    """A step with w once or twice, in control flow and in functions."""

    def step_of(w):
        return lambda y: rule(y) * w

    def branch(step):
        return lambda x: tf.cond(tf.reduce_sum(x**2) > 0.0, lambda: step(x), lambda: tf.sin(x))

    def scan(step):
        return lambda x: cg.scan(lambda y, _: (step(y), None), x, length=2)[0]

    def while_loop(step):
        body = lambda i, y: (i + 1, step(y))  # noqa: E731
        return lambda x: cg.while_loop(lambda i, _: i < 2, body, (0, x), maximum_iterations=2)[1]

    def called(step, **options):
        return tf.function(lambda x: step(x), autograph=False, **options)

    around = {
        "scan": (scan, spikes),
        "while_loop": (while_loop, spikes),
        "loop": (lambda step: in_a_loop(step, 2), spikes),
        "conditional": (branch, once_by_hand),
        "function": (called, once_by_hand),
        "compiled_function": (lambda step: called(step, jit_compile=True), once_by_hand),
        "nested": (lambda step: branch(in_a_loop(called(branch(step)), 2)), spikes),
    }
    return {name: (lambda x, w, wrap=wrap: wrap(step_of(w))(x), by_hand) for name, (wrap, by_hand) in around.items()}


def recomputed_in_a_branch(w):
    return lambda y: tf.cond(w[0] > 0.0, lambda: cg.recompute_grad(tf.sin)(y) * w, lambda: y)


# The decorated functions by their names in the support matrix, and attributes of the ops.
FORM_OF = {"embed_gradient": "embed", "custom_vjp": "vjp", "custom_jvp": "jvp", "grad_pass_through": "pass_through"} | {
    name: name
    for name in (
        *("embed_axis", "embed_jacobian", "embed_broadcast", "embed_derivative_by_gx"),
        "rule_one_of_several",
    )
}
# The C program takes at most 25. Functions of a vector x and a variable w, and by hand: the value, dx and dw.
CASES = {
    "custom_gradient": (with_variable, lambda: (X * WEIGHT, 10.0 * DY * X * WEIGHT, 3.0 * DY)),
    **{name: plus_w(FORMS[form]) for name, form in FORM_OF.items()},
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
    **places(spike),
    # Several calls of the same function, whose inlined nodes must not get equal names.
    **{f"embed_in_{name}": places(embedded)[name] for name in ("scan", "nested")},
    "recompute_in_a_branch_in_a_loop": (
        lambda x, w: in_a_loop(recomputed_in_a_branch(w), 2)(x),
        twice(np.sin, np.cos),
    ),
    "embed_lists": (
        lambda x, w: cg.embed_gradient(tf.sign(x * w), [w, 2.0 * x], [x, w]),
        lambda: (np.sign(X * WEIGHT), DY * WEIGHT, 2.0 * DY * X),
    ),
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
        return {**ys, **{f"d_{key}": tf.convert_to_tensor(dx) for key, dx in dxs.items()}, **after}


XS, DYS = {f"x_{name}": X for name in CASES}, {f"d_y_{name}": DY for name in CASES}


@pytest.fixture(scope="module")
def stripped(tmp_path_factory):
    """The folder of the stripped model. Beside it is `added`, which was stripped."""
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
    calls = {name: (stripped, name, XS | DYS) for name in ("step", "gradients")}
    added = {"gradients": (stripped.with_name("added"), "gradients", XS | DYS)}
    return {
        "with_the_library": call_signatures(added, stripped.parent),
        "without_the_library": call_signatures(calls, stripped.parent, installed=False),
        "c": {name: c_program.run_signature(*call) for name, call in calls.items()},
    }


# Which cells of the support matrix the cases fill. The others are uses of custom_gradient and recompute_grad.
DECORATORS = ("embed_gradient", "custom_gradient", "custom_vjp", "custom_jvp", "recompute_grad")
SHIPPED = {"scan": "cg.scan", "while_loop": "cg.while_loop"} | {
    name: name for name in (*DECORATORS, "override_gradients", "implicit_root", "straight_through")
}
CELLS = [
    *((name, feature, "shipped") for name, feature in SHIPPED.items()),
    *((name, name, "op_free") for name in (*DECORATORS, "grad_pass_through")),
    *(("function", "strip", mode) for mode in ("op_free", "nested_functions")),
    ("loop", "strip", "while_loop"),
    ("conditional", "strip", "cond"),
]


def with_cells(name):
    marks = [pytest.mark.mode_table(feature=feature, mode=mode) for case, feature, mode in CELLS if case == name]
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("place", ["with_the_library", "without_the_library", "c"])
@pytest.mark.parametrize("name", [with_cells(name) for name in CASES])
def test_a_training_step_and_an_added_signature(results, name, place):
    """In Python, without the library, the values are the same bits as with it."""
    y, dx, dw = CASES[name][1]()
    of_weight = {"step": (f"w_{name}", WEIGHT - RATE * dw), "gradients": (f"d_w_{name}", dw)}
    for signature, found in results[place].items():
        for key, expected in [(f"y_{name}", y), (f"d_x_{name}", dx), of_weight[signature]]:
            np.testing.assert_allclose(found[key], expected, rtol=1e-10, err_msg=f"{signature}, {key}")
    if place == "without_the_library":
        for key in (f"y_{name}", f"d_x_{name}", f"d_w_{name}"):
            np.testing.assert_array_equal(
                results[place]["gradients"][key], results["with_the_library"]["gradients"][key]
            )


def test_a_recomputation_still_waits_for_the_upstream_gradient(stripped):
    """What a barrier waited for became control inputs."""
    after, controls = bodies_of(stripped), []
    for function, nodes in bodies_of(stripped.with_name("added")).items():
        found = {node.name: node.input for node in after.get(function, [])}
        for node in nodes:
            if node.op == "CustomGradientBarrier" and node.name in found:
                old, new = (
                    {ref.strip("^").partition(":")[0] for ref in refs} for refs in (node.input, found[node.name])
                )
                assert old == new
                controls += [ref for ref in found[node.name] if ref.startswith("^")]
    assert controls
