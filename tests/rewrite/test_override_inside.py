"""Rules and functions that have their own gradient: no rule is without effect silently, and inside=True reaches them."""

import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, vjp
from ..support.saved_models import gradients_in_every_form, in_a_loop
from ..support.tensors import pairs

X, DY = np.array([-1.5, 0.5, 2.0]), np.array([1.0, 10.0, -3.0])
SPEC = [tf.TensorSpec([3], tf.float64)]
RULES = {"Sigmoid": lambda op, dy: 5.0 * dy}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@cg.custom_gradient
def squashed(x):
    return tf.sigmoid(x), lambda dy: 7.0 * dy


@tf.custom_gradient
def squashed_by_tensorflow(x):
    return tf.sigmoid(x), lambda dy: 7.0 * dy


@cg.custom_gradient
def around_a_call(x):
    return tf.function(tf.sigmoid)(x), lambda dy: 7.0 * dy


def around_another(x):
    return squashed(x) + 1.0, lambda dy: 9.0 * dy


@cg.custom_gradient
def with_a_gradient_for_one(x, y):
    return tf.sigmoid(x) * y, lambda dy: (None, 7.0 * dy)


def silu_slope(x):
    """With 5 as the derivative of the sigmoid."""
    return sigmoid(x) + 5.0 * x


def three_silus(x):
    slope = np.ones_like(x)
    for _ in range(3):
        slope *= silu_slope(x)
        x = x * sigmoid(x)
    return slope


# A function whose sigmoids all lie in functions with their own gradient; the name of these in memory; and the derivative
# with 5 as the derivative of the sigmoid.
INSIDE = {
    "silu": (tf.nn.silu, "swish_impl", silu_slope(X)),
    "in a loop": (in_a_loop(tf.nn.silu), "swish_impl", three_silus(X)),
    "in a branch": (lambda x: tf.cond(x[0] < 0.0, lambda: tf.nn.silu(x), lambda: x), "swish_impl", silu_slope(X)),
    "in a function": (tf.function(lambda x: tf.nn.silu(x)), "swish_impl", silu_slope(X)),
    "in a compiled function": (tf.function(lambda x: tf.nn.silu(x), jit_compile=True), "swish_impl", silu_slope(X)),
    "custom_gradient": (squashed, "squashed", 5.0),
    "tf.custom_gradient": (squashed_by_tensorflow, "squashed_by_tensorflow", 5.0),
    "around a call": (around_a_call, "around_a_call", 5.0),
    "around another": (cg.custom_gradient(around_another), "squashed", 5.0),
    "around another, with two orders": (cg.custom_gradient(around_another, saved_orders=2), "squashed", 5.0),
    "a loop around it": (cg.custom_gradient(lambda x: (in_a_loop(tf.sigmoid)(x), lambda dy: dy)), "<lambda>", 125.0),
    "without a gradient for an argument": (lambda x: with_a_gradient_for_one(x, tf.ones_like(x)), None, 5.0),
    "recompute_grad": (cg.recompute_grad(tf.sigmoid), "sigmoid", 5.0),
    "embed_gradient": (lambda x: cg.embed_gradient(tf.sigmoid(x), 7.0 * tf.ones_like(x), x), "embed_gradient", 5.0),
}


def gradient(function, mode="eager"):
    def derive(x):
        return vjp(lambda: function(x), x, tf.constant(DY))[1]

    return RUNS[mode](derive)(tf.constant(X))


OWN = [name for name in INSIDE if name != "without a gradient for an argument"]


@pytest.mark.core
@pytest.mark.parametrize(("name", "mode"), pairs(OWN, RUNS))
def test_a_rule_that_reaches_no_op_is_an_error_that_names_the_functions(name, mode):
    function, inside, _ = INSIDE[name]
    message = (
        r"override_gradients: each key of rules must match an op of '\S+' that gradients reach, got 'Sigmoid', which only "
        rf"matches ops inside functions that have their own gradient: '{re.escape(inside)}' \(1\)\. Pass inside=True to "
        r"replace their gradients by TensorFlow's gradient of their ops, with your rules\."
    )
    # AutoGraph adds its own text around it.
    with pytest.raises(ValueError, match=f"^{message}$" if mode == "eager" else f": {message}"):
        gradient(cg.override_gradients(function, RULES), mode)


@pytest.mark.core
@pytest.mark.parametrize(("name", "mode"), pairs(INSIDE, RUNS))
def test_inside_takes_the_gradient_of_the_ops_with_the_rules(name, mode):
    function, _, slope = INSIDE[name]
    overridden = cg.override_gradients(function, RULES, inside=True)
    np.testing.assert_allclose(gradient(overridden, mode), DY * slope, rtol=1e-12)
    np.testing.assert_array_equal(overridden(tf.constant(X)), function(tf.constant(X)))


PARTLY = (
    "override_gradients: the rule for 'Sigmoid' has no effect on ops of 'partly' inside functions that have their own "
    "gradient: 'swish_impl' (1), 'squashed' (1). Pass inside=True to replace their gradients by TensorFlow's gradient of "
    "their ops, with your rules."
)


def partly(x):
    return tf.nn.silu(tf.sigmoid(x)) + squashed(x)


@pytest.mark.parametrize("mode", RUNS)
def test_a_rule_that_reaches_some_ops_warns_about_the_others(mode):
    with pytest.warns(UserWarning, match="has no effect") as found:
        dx = gradient(cg.override_gradients(partly, RULES), mode)
    assert {str(warning.message) for warning in found} == {PARTLY}
    y = sigmoid(X)
    np.testing.assert_allclose(dx, DY * (5.0 * (sigmoid(y) + y * sigmoid(y) * sigmoid(-y)) + 7.0), rtol=1e-12)


def test_a_function_in_which_no_rule_matches_keeps_its_gradient():
    function = cg.override_gradients(
        lambda x: tf.nn.silu(squashed(tf.exp(x))), {"Exp": lambda op, dy: 2.0 * dy}, inside=True
    )
    y = sigmoid(np.exp(X))
    np.testing.assert_allclose(
        gradient(function), DY * (sigmoid(y) + y * sigmoid(y) * sigmoid(-y)) * 7.0 * 2.0, rtol=1e-12
    )


def test_the_rule_also_counts_in_second_derivatives():
    function = cg.override_gradients(tf.nn.silu, {"Sigmoid": lambda op, dy: dy * op.inputs[0] ** 2}, inside=True)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        _, dx = vjp(lambda: function(x), x, tf.constant(DY))
    # The derivative is sigmoid(x) + x**3, and the sigmoid's is x**2.
    np.testing.assert_allclose(tape.gradient(dx, x), DY * (X**2 + 3.0 * X**2), rtol=1e-12)


def test_one_dict_of_rules_for_several_functions():
    rules = RULES | {"Relu": cg.rules.zero, lambda op: op.type == "Tan": cg.rules.zero}
    for function, slope in ((tf.sigmoid, 5.0), (tf.nn.relu, 0.0), (tf.sinh, np.cosh(X))):
        overridden = cg.override_gradients(function, rules, unmatched="ignore")
        np.testing.assert_allclose(gradient(overridden), DY * slope, rtol=1e-12)
    with pytest.raises(ValueError, match=r"which only matches ops inside functions that have their own gradient"):
        gradient(cg.override_gradients(tf.nn.silu, rules, unmatched="ignore"))


def saved(folder, functions):
    module = tf.Module()
    for name, function in functions.items():
        setattr(module, name, tf.function(function, input_signature=SPEC, autograph=False))
    tf.saved_model.save(module, folder / "source")
    return folder / "source", folder / "target"


# By default a file does not have the gradient of a function in the value of another one.
ON_DISK = {f"f_{i}": name for i, name in enumerate(INSIDE) if name != "around another"}
# TensorFlow's XLA cannot compile the gradient of a reloaded loop or branch whose residuals are stacked or optional.
COMPILED = [f for f, name in ON_DISK.items() if not re.search(r"loop|branch", name)]


@pytest.fixture(scope="module")
def gradients_on_disk(tmp_path_factory):
    source, target = saved(tmp_path_factory.mktemp("inside"), {f: INSIDE[name][0] for f, name in ON_DISK.items()})
    cg.saved_model.override(source, target, RULES, inside=True)
    return gradients_in_every_form(target, COMPILED, X, DY)


@pytest.mark.parametrize("file", ON_DISK)
def test_inside_on_disk(file, gradients_on_disk):
    _, _, slope = INSIDE[ON_DISK[file]]
    assert len(gradients_on_disk[file]) == (3 if file in COMPILED else 2)
    for found in gradients_on_disk[file]:
        np.testing.assert_allclose(found, DY * slope, rtol=1e-12)


@pytest.mark.parametrize("name", ["silu", "in a loop", "custom_gradient"])
def test_a_rule_that_reaches_no_op_on_disk_is_an_error(name, tmp_path):
    source, target = saved(tmp_path, {"f": INSIDE[name][0]})
    message = (
        r"got 'Sigmoid', which only matches ops inside functions that have their own gradient: '\S+' \(1\)\. Pass "
    )
    with pytest.raises(ValueError, match=message):
        cg.saved_model.override(source, target, RULES)
    assert not target.exists()


def test_a_rule_that_reaches_some_ops_on_disk_warns_and_one_without_a_match_may_be_ignored(tmp_path):
    source, target = saved(tmp_path, {"f": partly})
    with pytest.warns(
        UserWarning, match=r"^saved_model\.override: the rule for 'Sigmoid' has no effect on ops of .*: "
    ):
        report = cg.saved_model.override(source, target, RULES | {"Tan": cg.rules.zero}, unmatched="ignore")
    assert report.overridden["Sigmoid"] >= 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cg.saved_model.override(source, tmp_path / "inside", RULES, inside=True)
