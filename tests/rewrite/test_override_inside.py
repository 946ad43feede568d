"""Rules and functions that have their own gradient: no rule is without effect silently, and inside=True reaches them."""

import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import MODES, RUNS, assert_all_close, gradients
from ..support.saved_models import gradients_in_every_form, in_a_loop
from ..support.tensors import pairs

X, DY = np.array([-1.5, 0.5, 2.0]), np.array([1.0, 10.0, -3.0])
RULES = {"Sigmoid": lambda op, dy: 5.0 * dy}


called = tf.function(tf.sigmoid)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@cg.custom_gradient
def squashed(x):
    return tf.sigmoid(x), lambda dy: 7.0 * dy


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
    "tf.custom_gradient": (tf.custom_gradient(lambda x: (tf.sigmoid(x), lambda dy: 7.0 * dy)), "<lambda>", 5.0),
    "around a call": (cg.custom_gradient(lambda x: (called(x), lambda dy: 7.0 * dy)), "<lambda>", 5.0),
    "around another": (cg.custom_gradient(around_another), "squashed", 5.0),
    "around another, with two orders": (cg.custom_gradient(around_another, saved_orders=2), "squashed", 5.0),
    "a loop around it": (cg.custom_gradient(lambda x: (in_a_loop(tf.sigmoid)(x), lambda dy: dy)), "<lambda>", 125.0),
    "without a gradient for an argument": (lambda x: with_a_gradient_for_one(x, tf.ones_like(x)), None, 5.0),
    "recompute_grad": (cg.recompute_grad(tf.sigmoid), "sigmoid", 5.0),
    "embed_gradient": (lambda x: cg.embed_gradient(tf.sigmoid(x), 7.0 * tf.ones_like(x), x), "embed_gradient", 5.0),
}


def gradient(function, mode="eager"):
    return gradients(mode, function, [tf.constant(X)], tf.constant(DY))[0]


@pytest.mark.core
@pytest.mark.parametrize(("name", "mode"), pairs(INSIDE, RUNS))
def test_a_rule_that_reaches_no_op_is_an_error_unless_you_replace_the_gradients(name, mode):
    function, inside, slope = INSIDE[name]
    message = (
        r"override_gradients: each rule must match an op of '\S+' that gradients reach, got 'Sigmoid', which only "
        rf"matches ops inside functions that have their own gradient: '{inside}' \(1\)\. Pass inside=True to replace their "
        r"gradients by TensorFlow's gradient of their ops, with your rules\."
    )
    if inside is not None:  # AutoGraph adds its own text around it.
        with pytest.raises(ValueError, match=f"^{message}$" if mode == "eager" else f": {message}"):
            gradient(cg.override_gradients(function, RULES), mode)
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


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_rule_that_reaches_some_ops_warns_about_the_others(mode):
    with pytest.warns(UserWarning, match="has no effect") as found:
        dx = gradient(cg.override_gradients(partly, RULES), mode)
    assert {str(warning.message) for warning in found} == {PARTLY}
    y = sigmoid(X)
    np.testing.assert_allclose(dx, DY * (5.0 * (sigmoid(y) + y * sigmoid(y) * sigmoid(-y)) + 7.0), rtol=1e-12)


def test_a_function_in_which_no_rule_matches_keeps_its_gradient():
    rules = {"Exp": lambda op, dy: 2.0 * dy}
    function = cg.override_gradients(lambda x: tf.nn.silu(squashed(tf.exp(x))), rules, inside=True)
    y = sigmoid(np.exp(X))
    slope = (sigmoid(y) + y * sigmoid(y) * sigmoid(-y)) * 7.0 * 2.0
    np.testing.assert_allclose(gradient(function), DY * slope, rtol=1e-12)


def test_the_rule_also_counts_in_second_derivatives():
    """The derivative of the sigmoid is x**2, and the one of silu sigmoid(x) + x**3."""
    function = cg.override_gradients(tf.nn.silu, {"Sigmoid": lambda op, dy: dy * op.inputs[0] ** 2}, inside=True)
    assert_all_close(MODES["eager"](function, X, DY)[1:], [DY * (sigmoid(X) + X**3), DY**2 * (X**2 + 3.0 * X**2)])


def test_one_dict_of_rules_for_several_functions():
    rules = RULES | {"Relu": cg.rules.zero, lambda op: op.type == "Tan": cg.rules.zero}
    for function, slope in ((tf.sigmoid, 5.0), (tf.nn.relu, 0.0), (tf.sinh, np.cosh(X))):
        overridden = cg.override_gradients(function, rules, unmatched="ignore")
        np.testing.assert_allclose(gradient(overridden), DY * slope, rtol=1e-12)
    with pytest.warns(UserWarning, match=r"has no effect on ops of .* inside functions that have their own gradient"):
        silu = gradient(cg.override_gradients(tf.nn.silu, rules, unmatched="ignore"))
    np.testing.assert_allclose(silu, DY * sigmoid(X) * (1.0 + X * (1.0 - sigmoid(X))), rtol=1e-12)


def saved(folder, functions):
    module, spec = tf.Module(), [tf.TensorSpec([3], tf.float64)]
    for name, function in functions.items():
        setattr(module, name, tf.function(function, input_signature=spec, autograph=False))
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


def test_a_rule_that_reaches_no_op_on_disk_is_an_error(tmp_path):
    source, target = saved(tmp_path, {"f": INSIDE["in a loop"][0]})
    with pytest.raises(ValueError, match=r"functions that have their own gradient: '\S+' \(1\)\. Pass inside=True"):
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
