"""Structures and objects as arguments and values: what has gradients, what is a constant, and what is refused."""

import dataclasses
import re
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients
from ..support.tensors import pairs
from .cases import Batchable, Masked, to_tensor, with_rule

X, Y, DY = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0]), tf.constant([1.0, 10.0])


# Objects that tf.nest does not open


@dataclasses.dataclass
class Closed:
    a: object
    b: object = None


HIDING = {
    "a Closed": lambda x: Closed(x, 2.0 * x),
    "a SimpleNamespace": lambda x: types.SimpleNamespace(a=x),
    "a generator": lambda x: (t for t in (x, x)),
    "a map": lambda x: map(tf.identity, [x]),
    "a TensorArray": lambda x: tf.TensorArray(x.dtype, 1),
}
DEEPER = [
    lambda x: Closed(1.0, {"inner": [x]}),
    lambda x: Closed(Closed(types.SimpleNamespace(c=(x,)))),
    lambda x: Closed(tf.RaggedTensor.from_row_lengths(x, [2])),
]


@pytest.mark.parametrize(("kind", "make"), [*HIDING.items(), *(("a Closed", make) for make in DEEPER)])
def test_what_hides_tensors_is_refused_as_an_argument_and_as_a_value(kind, make):
    message = f"must hold its Tensors in a structure that tf.nest opens, got {kind}. Pass a list or a dict."
    with pytest.raises(TypeError, match=re.escape(f"grad_pass_through: the argument 'p' of '<lambda>' {message}")):
        cg.grad_pass_through(lambda p: 2.0 * X)(make(X))
    message = f"'<lambda>' must return Tensors, or a structure of Tensors that tf.nest opens, got {kind}. Return a "
    with pytest.raises(TypeError, match=re.escape(message)):
        cg.custom_vjp(lambda x: (make(x), None), lambda residuals, *dys: dys)(X)


def test_a_value_can_hold_constants(gradient):
    constants = [None, True, 3, 2.5, 1j, "text", b"b", np.float32(1.0), np.arange(3), tf.float32, tf.TensorShape([2])]
    function = cg.custom_gradient(lambda x: ((2.0 * x, constants), lambda dy, *others: len(others) * dy))
    np.testing.assert_allclose(gradient(lambda x: function(x)[0], [X], DY), [(len(constants) - 1) * DY])


def test_a_cycle_of_objects_is_a_constant(gradient):
    holder = Closed(1.0)
    holder.b = holder
    function = cg.custom_gradient(lambda x, options: (2.0 * x, lambda dy: (7.0 * dy, None)))
    np.testing.assert_allclose(gradient(lambda x: function(x, holder), [X], DY), [7.0 * DY])


# Objects that stand for a Tensor


def test_a_gradient_of_another_type_is_an_error():
    function = cg.custom_gradient(lambda m: (to_tensor(m), lambda dy: Batchable(dy, dy, m.mask)))
    with pytest.raises(TypeError, match=r"must return a Masked as the gradient of 'm', got a Batchable\.$"):
        gradients("eager", lambda x: function(Masked(x, Y, tf.constant([True, False]))), [X], DY)


@pytest.fixture
def tfp():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Its import brings one about distutils.
        return pytest.importorskip("tensorflow_probability")


OF_TRANSFORMED = {
    "custom_gradient": cg.custom_gradient(lambda x, t: (x * t, lambda dy: (7.0 * dy, 5.0 * dy))),
    "custom_vjp": cg.custom_vjp(lambda x, t: (x * t, None), lambda r, dy: (7.0 * dy, 5.0 * dy)),
    "custom_jvp": with_rule(lambda x, t: x * t, lambda p, t: (p[0], 7.0 * t[0] + 5.0 * t[1])),
    "grad_pass_through": lambda x, t: sum(
        k * y for k, y in zip((7.0, 5.0), cg.grad_pass_through(lambda x, t: [x, 2.0 * t])(x, t), strict=True)
    ),
    "only_returned": lambda x, t: sum(
        k * y
        for k, y in zip((1.0, 5.0), cg.custom_gradient(lambda x: ([x, t], lambda dx, dt: 7.0 * dx))(x), strict=True)
    ),
}


@pytest.mark.parametrize(("name", "mode"), pairs(OF_TRANSFORMED, RUNS))
def test_the_gradient_of_a_transformed_variable_goes_on_to_its_variable(name, mode, tfp):
    transformed = tfp.util.TransformedVariable([1.0, 2.0], tfp.bijectors.Exp())
    (variable,) = transformed.trainable_variables
    found = gradients(mode, lambda x, _: OF_TRANSFORMED[name](x, transformed), [X, variable], DY)
    # The derivative of exp is its value, the transformed variable.
    np.testing.assert_allclose(found, [7.0 * DY, 5.0 * DY * [1.0, 2.0]], rtol=1e-6)


# What changes after the call

PAIR = with_rule(lambda w, v: w * v, lambda p, t: (None, t[0] * p[1] + p[0] * t[1]))


@pytest.mark.parametrize("mode", [*RUNS, "loaded"])
def test_a_tangent_rule_reads_variables_as_they_were_at_the_call(mode, tmp_path):
    model = tf.Module()
    model.w, model.v = tf.Variable([1.0, 1.0]), tf.Variable([2.0, 3.0])
    model.f = tf.function(lambda: PAIR(model.w, model.v), input_signature=[])
    if mode == "loaded":
        tf.saved_model.save(model, tmp_path)
        model = tf.saved_model.load(tmp_path)

    def run():
        model.v.assign([2.0, 3.0])
        with tf.GradientTape() as tape:
            y = model.f() if mode == "loaded" else PAIR(model.w, model.v)
        model.v.assign([50.0, 50.0])
        return tape.gradient(y, [model.w, model.v], output_gradients=DY)

    np.testing.assert_allclose(RUNS.get(mode, RUNS["eager"])(run)(), [DY * [2.0, 3.0], DY])


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_tangent_rule_reads_arrays_as_they_were_at_the_call(mode):
    buffer = np.array([2.0, 3.0], np.float32)
    half = {"x": np.array([0.5, 0.5], np.float32)}
    function = cg.custom_jvp(lambda w, array, half: w * array * half["x"], nondiff_argnames=["half"])
    function.defjvp(lambda p, t, half: (None, t[0] * p[1] * half["x"] + p[0] * t[1] * half["x"]))

    def run(w):
        y = function(w, buffer, half)
        buffer.fill(50.0)
        half["x"] = np.array([9.0, 9.0], np.float32)
        return y

    np.testing.assert_allclose(gradients(mode, run, [X], DY), [DY * [1.0, 1.5]])
