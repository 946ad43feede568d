"""Structures, objects and variables as arguments and values, or read by functions and rules, beyond test_modes.py."""

import dataclasses
import re
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, gradients, tape_vjp, vjp
from ..support.tensors import pairs
from .test_modes import Batchable, Masked, to_tensor, with_rule

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


def weighted_sum(pair):
    return 7.0 * pair[0] + 5.0 * pair[1]


OF_TRANSFORMED = {
    "custom_gradient": cg.custom_gradient(lambda x, t: (x * t, lambda dy: (7.0 * dy, 5.0 * dy))),
    "custom_jvp": with_rule(lambda x, t: x * t, lambda p, t: (None, weighted_sum(t))),
    "grad_pass_through": lambda x, t: weighted_sum(cg.grad_pass_through(lambda x, t: [x, t])(x, t)),
    "only_returned": lambda x, t: weighted_sum(cg.custom_gradient(lambda x: ([7.0 * x, t], lambda dx, dt: dx))(x)),
}


@pytest.mark.parametrize(("name", "mode"), pairs(OF_TRANSFORMED, RUNS))
def test_the_gradient_of_a_transformed_variable_goes_on_to_its_variable(name, mode, tfp):
    transformed = tfp.util.TransformedVariable([1.0, 2.0], tfp.bijectors.Exp())
    (variable,) = transformed.trainable_variables
    found = gradients(mode, lambda x, _: OF_TRANSFORMED[name](x, transformed), [X, variable], DY)
    # The derivative of exp is its value, the transformed variable.
    np.testing.assert_allclose(found, [7.0 * DY, 5.0 * DY * [1.0, 2.0]], rtol=1e-6)


# Variables that are read


@pytest.mark.core
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "traced"])
def test_a_variable_created_inside(wrap):
    made = []

    @cg.custom_gradient
    def function(x):
        if not made:
            made.append(tf.Variable([1.0, 1.0]))
        return x * made[0], lambda dy, variables: (2.0 * dy, [3.0 * dy])

    run = wrap(lambda x: function(x))
    for _ in range(2):  # Shared by the calls after the first.
        run(X)
        np.testing.assert_allclose(gradients("eager", lambda x, _: run(x), [X, made[0]], DY), [2 * DY, 3 * DY])


@pytest.mark.core
def test_reference_variables_of_tensorflow_1_are_arguments():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = tf.compat.v1.get_variable("v", [2], initializer=tf.ones_initializer(), use_resource=False)
        x = tf.constant([1.0, 2.0])
        y = cg.custom_gradient(lambda x, v: (x * v, lambda dy: (3.0 * dy, 5.0 * dy)))(x, v)
        found = tf.gradients(y, [x, v], grad_ys=tf.constant([1.0, 10.0]))
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(found), [[3.0, 30.0], [5.0, 50.0]])


@pytest.mark.parametrize("mode", RUNS)
def test_a_grad_fn_reads_what_a_variable_holds_when_it_runs(mode):
    """As with tf.custom_gradient. Nobody watches the variable, which is not trainable, so no gradient is wanted for it."""
    v = tf.Variable([2.0, 3.0], trainable=False)
    product = cg.custom_gradient(lambda x: (x * v, lambda dy: dy * v))

    def run(x):
        v.assign([2.0, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = product(x)
        v.assign([100.0, 1000.0])
        return tape.gradient(y, x, output_gradients=DY)

    np.testing.assert_array_equal(RUNS[mode](run)(X), DY * [100.0, 1000.0])


def test_a_frozen_variable_counts_for_a_trace_under_a_tape_that_watches_it():
    """A trace does not know the tapes of later calls."""
    v = tf.Variable([3.0, 4.0], trainable=False, name="frozen")
    product = cg.custom_gradient(lambda x: (x * v, lambda dy, variables=(): (dy, [5.0 * dy]) if variables else dy))
    traced_now, traced_before = tf.function(product), tf.function(product)
    traced_before(X)
    (dv,) = gradients("eager", lambda v: traced_now(X), [v], DY)
    np.testing.assert_allclose(dv, 5.0 * DY)
    assert gradients("eager", lambda v: traced_before(X), [v], DY) == [None]
    without_variables = cg.custom_gradient(lambda x: (x * v, lambda dy: dy))
    with pytest.raises(TypeError, match=r"reads variables that are not among its arguments \('frozen:0'\)"):
        gradients("traced", lambda v: without_variables(X), [v], DY)


V, COUNT = tf.Variable([2.0, 3.0]), tf.Variable(0.0, trainable=False)


def by_a_tape(read):
    return tf.convert_to_tensor(vjp(lambda: tf.reduce_sum(read() ** 2) / 2.0, V)[1])


def after_a_write():
    COUNT.assign_add(1.0)
    return V * COUNT / COUNT


def between_reads():
    before = COUNT.read_value()
    COUNT.assign_add(2.0)
    return V * (COUNT.read_value() - before) / 2.0


# Ways in which a rule computes the value of V.
READS = {
    "once": lambda: V + 0.0,
    "twice": lambda: V * V / V,
    "slices": lambda: tf.gather(V, [0, 1]),
    "tape": lambda: by_a_tape(lambda: V),
    "tape, slices": lambda: by_a_tape(lambda: tf.gather(V, [0, 1])),
    "branch": lambda: tf.cond(tf.reduce_sum(V) > 0.0, lambda: V + 0.0, lambda: 2.0 * V),
    "loop": lambda: tf.while_loop(
        lambda *_: True, lambda i, sum_: (i + 1, sum_ + V / 2.0), (0, tf.zeros(2)), maximum_iterations=2
    )[1],
    "called function": tf.function(lambda: V + 0.0),
    "after a write": after_a_write,
    "before and after a write": between_reads,
}


def with_read(read):
    return cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy * read() * x**2))


@pytest.mark.parametrize("mode", [*RUNS, "reloaded"])
def test_a_rule_reads_a_variable_in_any_way(mode, tmp_path):
    """First and second derivatives, the latter by x and by the variable."""
    model = tf.Module()
    model.v, model.count, model.functions = V, COUNT, [with_read(read) for read in READS.values()]
    if mode == "reloaded":
        signature = [tf.TensorSpec([2])]
        model.functions = [tf.function(function, input_signature=signature) for function in model.functions]
        tf.saved_model.save(model, tmp_path)
        model = tf.saved_model.load(tmp_path)

    def orders(function, x):
        first = lambda x, _: tape_vjp(function, [x], DY)[1][0]  # noqa: E731
        dx, second = tape_vjp(first, [x, model.v], DY)
        return [dx, *map(tf.convert_to_tensor, second)]

    found = RUNS.get(mode, RUNS["eager"])(lambda x: [orders(function, x) for function in model.functions])(X)
    for name, actual in zip(READS, found, strict=True):
        expected = [DY * V * X**2, DY**2 * V * 2.0 * X, DY**2 * X**2]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, err_msg=name)
