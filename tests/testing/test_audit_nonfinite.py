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


def log_of_negative(x):
    y = tf.math.log(x - 0.5)
    return loss(y)


def sqrt_of_zero(x):
    y = tf.sqrt(x)
    return loss(y)


def quotient(x):
    y = x / tf.nn.relu(x - 0.5)
    return loss(y, x)


def after_a_mask(x):
    y = tf.sqrt(x - 0.5)
    return loss(tf.nn.softmax(x + tf.math.log(tf.round(x))), y)


def softmax_of_nothing(x):
    y = tf.nn.softmax(tf.where(x > 2, x, -np.inf))
    return loss(y)


def sum_of_gradients(x):
    y = 0.01 * x
    large = tf.constant(y.dtype.max * 0.3, y.dtype)
    return loss(y * large, y * large)


def with_a_rule(x):
    y = overflowing(x)
    return loss(y)


def with_a_rule_of_tensorflow(x):
    y = dividing(x)
    return loss(y)


class Case(NamedTuple):
    op: str
    where: str
    detail: str
    helps: bool = False


X = tf.constant([0.0, 0.1, 1.0])
NOT_FINITE = r"\d of 3 numbers (is|are) not finite"
CASES = {
    where_log: Case("Log", "gradient", "1 of 3 upstream numbers was 0 where the input was 0.", True),
    where_log_in_two_layers: Case("Log", "gradient", ".* where the input was 0.", True),
    where_exp: Case("Exp", "value", f"{NOT_FINITE}, the first at .1., where the input was 100.", True),
    log_of_negative: Case("Log", "value", f"{NOT_FINITE}, the first at .0., where the input was -0.5."),
    sqrt_of_zero: Case("Sqrt", "gradient", f"{NOT_FINITE}, where the input was 0."),
    quotient: Case("RealDiv", "value", f"{NOT_FINITE}, the first at .0., where the inputs were 0 and 0."),
    after_a_mask: Case("Sqrt", "value", f"{NOT_FINITE}, the first at .0., where the input was -0.5."),
    softmax_of_nothing: Case("Softmax", "value", f"{NOT_FINITE}, where the input was -inf."),
    sum_of_gradients: Case("AddN", "gradient", f"{NOT_FINITE}, the first at"),
    with_a_rule: Case("overflowing", "gradient", f"{NOT_FINITE}, the first at"),
    with_a_rule_of_tensorflow: Case("dividing", "gradient", f"{NOT_FINITE}, the first at"),
}


def loop(f):
    return lambda x: tf.while_loop(lambda i, *_: i < 3, lambda i, y, x: (i + 1, y + f(x), x), (0, 0.0, x))[1]


def conditional(f):
    return lambda x: tf.cond(tf.size(x) > 0, lambda: f(x), lambda: 0.0)


def saved(f, folder):
    module = tf.Module()
    module.f = tf.function(loop(f), input_signature=[tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(module, folder)
    return tf.saved_model.load(folder).f


def layer(f, policy="float32"):
    return keras.layers.Lambda(lambda x: f(tf.squeeze(x, 0)), dtype=policy)


MODES = {
    "plain": lambda f, _: f,
    "loop": lambda f, _: loop(f),
    "conditional": lambda f, _: conditional(f),
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


@pytest.mark.parametrize(("f", "mode"), pairs(CASES, MODES, quick=2))
def test_the_op_is_found(mode, f, tmp_path):
    case = CASES[f]
    if mode == "saved" and f is with_a_rule_of_tensorflow:
        pytest.skip("TensorFlow does not save what its gradient reads in a loop")
    x = tf.reshape(X, [1, 3]) if mode in ("layer", "mixed_float16") else X
    first = first_of(MODES[mode](f, tmp_path), x)
    assert (first.function, first.where, first.masking_helps) == (case.op, case.where, case.helps)
    assert re.match(case.detail, first.detail)
    assert first.dtype == ("float16" if mode == "mixed_float16" else "float32")
    assert first.left == (first.left[0], sum(first.left) - first.left[0])
    line = f"test_audit_nonfinite.py:{f.__code__.co_firstlineno + 1}"
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
    assert str(first_of(with_a_rule, tf.cast(X, tf.float16))).startswith("The gradient turns into nan in overflowing (")


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


def test_an_argument_or_variable_that_is_not_finite():
    w = tf.Variable([1.0, math.nan, 2.0], name="w")
    assert first_of(lambda x: loss(x * w), X).function == "the variable 'w:0'"
    assert first_of(lambda x: loss(x * 2), X / 0).function == "argument 0"
    # An infinite number that is there on purpose.
    assert first_of(lambda x, mask: loss(tf.nn.softmax(x + mask), tf.sqrt(x)), X, tf.math.log(X)).function == "Sqrt"


TO_NAN = {
    "Softmax": lambda x: loss(tf.nn.softmax(x)),
    "MatMul": lambda x: loss(tf.linalg.matvec(tf.linalg.diag([1.0, 2.0, 0.0]), x)),
    "Mul": lambda x: loss(0.0 * x),
    "of the gradient": lambda x: loss(tf.exp(-(x**2))),
}


@pytest.mark.parametrize(("name", "is_variable"), pairs(TO_NAN, [False, True]))
def test_an_infinity_in_an_argument_or_variable_is_named_and_not_the_op_that_it_reaches(name, is_variable):
    wrong = tf.constant([0.1, 1.0, math.inf])
    w = tf.Variable(wrong, name="w")
    given = (lambda x: TO_NAN[name](x + w), X) if is_variable else (TO_NAN[name], wrong)
    assert first_of(*given).function == ("the variable 'w:0'" if is_variable else "argument 0")


WEIGHTS, MASK = tf.constant([2.0, 3.0]), tf.constant([1.0, 0.0])


def weighted(x):
    return tf.reduce_sum(tf.sqrt(WEIGHTS * x))


def weighted_magnitude(x):
    return tf.reduce_sum(cg.custom_gradient(lambda x: (tf.abs(x), lambda dy: dy * x / tf.abs(x)))(WEIGHTS * x))


CLOSURES = {
    "function": (weighted, "Sqrt"),
    "after the op": (lambda x: tf.reduce_sum(MASK * tf.math.log(x)), "Log"),
    "called": (tf.function(weighted), "Sqrt"),
    "recomputed": (cg.recompute_grad(weighted), "Sqrt"),
    "custom gradient": (weighted_magnitude, "<lambda>"),
    "loop": (
        lambda x: tf.reduce_sum(
            tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, tf.sqrt(WEIGHTS * x)), (0, x))[1]
        ),
        "Sqrt",
    ),
    "conditional": (lambda x: tf.cond(x[1] > 0, lambda: weighted(x), lambda: 0.0), "Sqrt"),
    "scan": (
        lambda x: tf.reduce_sum(cg.scan(lambda c, s: (tf.sqrt(WEIGHTS * c) + s, None), x, tf.zeros(2))[0]),
        "Sqrt",
    ),
}


@pytest.mark.parametrize("name", CLOSURES)
def test_a_function_that_closes_over_a_tensor(name):
    f, op = CLOSURES[name]
    assert first_of(f, tf.constant([0.0, 4.0])).function == op


def test_a_loaded_function_that_holds_a_tensor(tmp_path):
    module = tf.Module()
    module.weights = WEIGHTS
    module.f = tf.function(lambda x: tf.reduce_sum(tf.sqrt(module.weights * x)), input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(module, tmp_path)
    assert first_of(tf.saved_model.load(tmp_path).f, tf.constant([0.0, 4.0])).function == "Sqrt"


def test_the_sum_of_the_gradients_of_an_argument():
    first = first_of(lambda x: loss(x * 1e38, x * 1e38), X / 100)
    assert (first.function, first.at, first.where) == ("AddN", "", "gradient")


@pytest.mark.parametrize("dtype", [tf.half, tf.complex64], ids=lambda dtype: dtype.name)
def test_dtypes(dtype):
    x = tf.cast(X, dtype)
    assert cg.testing.audit(lambda x: tf.math.real(tf.reduce_sum(tf.exp(x))), [x]).first_nonfinite is None
    first = first_of(lambda x: tf.math.real(tf.reduce_sum(x / (x - x))), x)
    assert (first.function, first.where, first.dtype) == ("RealDiv", "value", dtype.name)


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
