"""The audit names the op that first got finite numbers and returned others."""

import html
import math
import re
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
import tf_cg_ops_cli
from tf_cg_ops import _command_line

from ..support.tensors import pairs
from .test_audit import MODES as AROUND


def loss(*values):
    """A number, with another upstream gradient for each element."""
    return tf.add_n([tf.reduce_sum(tf.range(1, 4, dtype=tf.float32) * tf.cast(value, tf.float32)) for value in values])


@cg.custom_gradient
def overflowing(x):
    def grad_fn(dy):
        e = tf.exp(100 * x)
        return dy * tf.sigmoid(x) * e / e

    return tf.nn.softplus(x), grad_fn


@tf.custom_gradient
def dividing(x):
    return tf.sin(x), lambda dy: dy / (x - x)


# The op is in the first line of each.


def where_log(x):
    y = tf.math.log(x)
    return loss(tf.where(x > 0, y, 0 * x))


def where_log_in_two_layers(x):
    log = lambda x: tf.math.log(x)  # noqa: E731
    y = tf.where(x > 0, log(x), 0 * x)
    return loss(tf.where(y * x > 0, log(y * x), 0 * x))


def where_exp(x):
    e = tf.exp(1000 * x)
    return loss(tf.where(x < 0.05, e * x, x))


def sum_of_gradients(x):
    y = 0.01 * x
    large = tf.constant(y.dtype.max * 0.3, y.dtype)
    return loss(y * large, y * large)


class Case(NamedTuple):
    function: object
    op: str
    where: str
    detail: str
    helps: bool = False


X = tf.constant([0.0, 0.1, 1.0])
NOT_FINITE = r"\d of 3 numbers (is|are) not finite"
FIRST = f"{NOT_FINITE}, the first at"
OF_NEGATIVE = f"{FIRST} .0., where the input was -0.5."
OF_INFINITY = f"{NOT_FINITE}, where the input was -inf."
CASES = {
    "where_log": Case(where_log, "Log", "gradient", "1 of 3 upstream numbers was 0 where the input was 0.", True),
    "two_layers": Case(where_log_in_two_layers, "Log", "gradient", ".* where the input was 0.", True),
    "where_exp": Case(where_exp, "Exp", "value", f"{FIRST} .1., where the input was 100.", True),
    "log": Case(lambda x: loss(tf.math.log(x - 0.5)), "Log", "value", OF_NEGATIVE),
    "sqrt": Case(lambda x: loss(tf.sqrt(x)), "Sqrt", "gradient", f"{NOT_FINITE}, where the input was 0."),
    "quotient": Case(
        lambda x: loss(x / tf.nn.relu(x - 0.5), x), "RealDiv", "value", f"{FIRST} .0., where the inputs were 0 and 0."
    ),
    "after_a_mask": Case(
        lambda x: loss(tf.nn.softmax(x + tf.math.log(tf.round(x))), tf.sqrt(x - 0.5)), "Sqrt", "value", OF_NEGATIVE
    ),
    "softmax": Case(lambda x: loss(tf.nn.softmax(tf.where(x > 2, x, -np.inf))), "Softmax", "value", OF_INFINITY),
    "sum_of_gradients": Case(sum_of_gradients, "AddN", "gradient", FIRST),
    "rule": Case(lambda x: loss(overflowing(x)), "overflowing", "gradient", FIRST),
    "rule_of_tensorflow": Case(lambda x: loss(dividing(x)), "dividing", "gradient", FIRST),
}


def saved(f, folder):
    module = tf.Module()
    module.f = tf.function(AROUND["loop"](f), input_signature=[tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(module, folder)
    return tf.saved_model.load(folder).f


def layer(f, policy="float32"):
    return keras.layers.Lambda(lambda x: f(tf.squeeze(x, 0)), dtype=policy)


MODES = {
    "plain": lambda f, _: f,
    "loop": lambda f, _: AROUND["loop"](f),
    "conditional": lambda f, _: AROUND["conditional"](f),
    "function": lambda f, _: tf.function(f, jit_compile=True),
    "recompute": lambda f, _: cg.recompute_grad(f),
    "saved": saved,
    "layer": lambda f, _: keras.Sequential([keras.Input([3], batch_size=1), layer(f)]),
    "mixed_float16": lambda f, _: keras.Sequential([keras.Input([3], batch_size=1), layer(f, "mixed_float16")]),
}


def first_of(f, *args):
    """What the audit found, and its first lines."""
    report = cg.testing.audit(f, list(args))
    first = report.first_nonfinite
    assert str(report).startswith(str(first))
    assert str(first).splitlines()[0] in html.unescape(report.to_html())
    with pytest.raises(AssertionError, match=re.escape(str(first))):
        report.raise_if_wrong()
    return first


@pytest.mark.parametrize(("name", "mode"), pairs(CASES, MODES, quick=2))
def test_the_op_is_found(mode, name, tmp_path):
    case, f = CASES[name], CASES[name].function
    if mode == "saved" and name == "rule_of_tensorflow":
        pytest.skip("TensorFlow does not save what its gradient reads in a loop")
    x = tf.reshape(X, [1, 3]) if mode in ("layer", "mixed_float16") else X
    first = first_of(MODES[mode](f, tmp_path), x)
    assert (first.function, first.where, first.masking_helps) == (case.op, case.where, case.helps)
    assert re.match(case.detail, first.detail)
    assert first.dtype == ("float16" if mode == "mixed_float16" else "float32")
    assert first.left == (first.left[0], sum(first.left) - first.left[0])
    line = f"test_audit_nonfinite.py:{f.__code__.co_firstlineno + (f.__name__ != '<lambda>')}"
    if mode == "saved":
        assert first.at.startswith("while/")
    elif mode != "recompute":  # There it is the line of the call.
        assert first.at == line


@pytest.mark.core
def test_the_lines_of_the_report():
    text = str(cg.testing.audit(where_log, [X])).splitlines()
    line = where_log.__code__.co_firstlineno + 1
    assert text == [
        f"The gradient turns into nan in Log, at test_audit_nonfinite.py:{line}: 1 of 3 upstream numbers was 0 where "
        "the input was 0.",
        "Change the code, or: cg.override_gradients(model, {cg.rules.elementwise: cg.rules.masked})",
        "'where_log' has no gradients of its own.",
    ]


@pytest.mark.core
def test_the_counts_and_the_index():
    x = tf.constant([[1.0, 0.0], [-4.0, 2.0]])
    first = first_of(lambda x: tf.reduce_sum(tf.math.log(x) / 0.5), x)
    assert (first.arrived, first.left, first.size, first.index) == ((0, 0), (1, 1), 4, (0, 1))
    in_half = first_of(CASES["rule"].function, tf.cast(X, tf.float16))
    assert str(in_half).startswith("The gradient turns into nan in overflowing (")


@pytest.mark.core
def test_a_finite_model_runs_once_and_is_right():
    calls = []

    def model(x):
        return tf.reduce_sum(tf.sqrt(x) * tf.numpy_function(lambda: calls.append(1) or np.float32(2), [], tf.float32))

    report = cg.testing.audit(model, [X + 1])
    assert (report.first_nonfinite, len(calls)) == (None, 1)
    report.raise_if_wrong()


def test_variables_and_random_numbers_are_those_of_the_run():
    """The second run would have no nan with others."""
    count = tf.Variable(0.0)

    def model(x):
        count.assign_add(1.0)
        return tf.reduce_sum(tf.sqrt(x * (2 - count)) * tf.nn.dropout(tf.ones([64]), 0.5)[:, None] - count)

    assert first_of(model, X).function == "Sqrt"
    assert count.numpy() == 0


WEIGHTS, MASK, Y = tf.constant([2.0, 3.0]), tf.constant([1.0, 0.0]), tf.constant([0.0, 4.0])
WITH_NAN, WITH_INFINITY = (tf.Variable([0.1, 1.0, number], name="w") for number in (math.nan, math.inf))
INFINITE, DIAGONAL = tf.constant([0.1, 1.0, math.inf]), tf.linalg.diag([1.0, 2.0, 0.0])
magnitude = cg.custom_gradient(lambda x: (tf.abs(x), lambda dy: dy * x / tf.abs(x)))
VARIABLE = "the variable 'w:0'"


def weighted(x):
    return tf.reduce_sum(tf.sqrt(WEIGHTS * x))


def loaded(folder):
    """A function that holds a tensor."""
    module = tf.Module()
    module.weights = WEIGHTS
    module.f = tf.function(lambda x: tf.reduce_sum(tf.sqrt(module.weights * x)), input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(module, folder)
    return tf.saved_model.load(folder).f


# A function, its arguments, and what is named.
NAMED = {
    "a variable": (lambda x: loss(x * WITH_NAN), [X], VARIABLE),
    "an argument": (lambda x: loss(x * 2), [X / 0], "argument 0"),
    "a mask": (lambda x, mask: loss(tf.nn.softmax(x + mask), tf.sqrt(x)), [X, tf.math.log(X)], "Sqrt"),
    # An infinity is named, and not the op that it reaches.
    "to nan by a softmax": (lambda x: loss(tf.nn.softmax(x)), [INFINITE], "argument 0"),
    "to nan by a product": (lambda x: loss(0.0 * (x + WITH_INFINITY)), [X], VARIABLE),
    "to nan by a sum": (lambda x: loss(tf.linalg.matvec(DIAGONAL, x)), [INFINITE], "argument 0"),
    "to nan in the gradient": (lambda x: loss(tf.exp(-((x + WITH_INFINITY) ** 2))), [X], VARIABLE),
    # Functions that close over a tensor.
    "around": (weighted, [Y], "Sqrt"),
    "after the op": (lambda x: tf.reduce_sum(MASK * tf.math.log(x)), [Y], "Log"),
    "called": (tf.function(weighted), [Y], "Sqrt"),
    "recomputed": (cg.recompute_grad(weighted), [Y], "Sqrt"),
    "custom gradient": (lambda x: tf.reduce_sum(magnitude(WEIGHTS * x)), [Y], "<lambda>"),
    "loop": (AROUND["loop"](weighted), [Y], "Sqrt"),
    "conditional": (AROUND["conditional"](weighted), [Y], "Sqrt"),
    "scan": (
        lambda x: tf.reduce_sum(cg.scan(lambda c, s: (tf.sqrt(WEIGHTS * c) + s, None), x, tf.zeros(2))[0]),
        [Y],
        "Sqrt",
    ),
    "loaded": (loaded, [Y], "Sqrt"),
    "complex": (lambda x: tf.math.real(tf.reduce_sum(x / (x - x))), [tf.cast(X, tf.complex64)], "RealDiv"),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named(name, tmp_path):
    f, args, expected = NAMED[name]
    assert first_of(loaded(tmp_path) if f is loaded else f, *args).function == expected


def test_the_sum_of_the_gradients_of_an_argument():
    first = first_of(lambda x: loss(x * 1e38, x * 1e38), X / 100)
    assert (first.function, first.at, first.where) == ("AddN", "", "gradient")


def test_a_value_that_is_infinite_on_purpose():
    report = cg.testing.audit(lambda x: tf.where(x > 0, x, -np.inf), [X])
    assert report.first_nonfinite is None


def test_an_op_without_a_gradient():
    def model(image, x):
        return tf.reduce_sum(tf.image.adjust_hue(image, 0.1)) * tf.reduce_sum(tf.sqrt(x))

    image = tf.ones([2, 2, 3])
    assert cg.testing.audit(model, [image, X + 1]).first_nonfinite is None
    assert first_of(model, image, X).function == "Sqrt"
    assert first_of(model, image / 0, X + 1).function in ("argument 0", "AdjustHue")


@pytest.mark.core
def test_the_command(tmp_path, capsys):
    module = tf.Module()
    module.f = tf.function(where_log, input_signature=[tf.TensorSpec([3], tf.float32, name="x")])
    tf.saved_model.save(module, tmp_path / "model", signatures=module.f)
    np.savez(tmp_path / "x.npz", x=X)
    arguments = ["audit", str(tmp_path / "model"), "--inputs", str(tmp_path / "x.npz")]
    assert _command_line.run(tf_cg_ops_cli.parse(arguments)) == 1
    assert capsys.readouterr().out.startswith("The gradient turns into nan in Log, at Log: 1 of 3 upstream numbers")
