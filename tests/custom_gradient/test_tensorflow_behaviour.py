"""Behaviour that TensorFlow's own tests check of its decorators, with this library's in their place.

Each test also runs with TensorFlow's decorator if that passes, so that its behaviour is compared, and not an idea of it.
The names in brackets are those of TensorFlow's tests.
"""

import functools
import inspect

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.upstream import DY, MODES, OURS_AND_THEIRS, X, as_list, vjp

# custom_gradient


@OURS_AND_THEIRS
@MODES
def test_a_gradient_that_is_not_the_derivative(api, run):  # [testCustomGradientTrivial, testCustomGradient]
    @api.custom_gradient
    def multiply(a, b):
        return a * b, lambda dy: (4.0 * dy, 5.0 * dy)

    da, db = run(lambda a, b: vjp(multiply, a, b, dy=DY))(X, 2.0 * X)
    assert as_list(da) == [4.0, 40.0, 400.0]
    assert as_list(db) == [5.0, 50.0, 500.0]


@OURS_AND_THEIRS
@MODES
def test_a_gradient_that_closes_over_the_value(api, run):  # [testCustomGradientSimple]
    @api.custom_gradient
    def root(x):
        y = tf.sqrt(x)
        return y, lambda dy: dy / (2.0 * y)

    (dx,) = run(lambda x: vjp(root, x, dy=DY))(tf.constant([1.0, 4.0, 25.0]))
    assert as_list(dx) == [0.5, 2.5, 10.0]


@OURS_AND_THEIRS
@MODES
def test_several_results_of_which_some_are_not_used(api, run):  # [testCustomGradientMultiOutputs, testUnusedOutput]
    @api.custom_gradient
    def both(x):
        return (x, 2.0 * x, tf.constant(7)), lambda da, db, _: 3.0 * da + 5.0 * db

    def used(x):
        return both(x)[1]

    (dx,) = run(lambda x: vjp(used, x, dy=DY))(X)
    assert as_list(dx) == [5.0, 50.0, 500.0]


@OURS_AND_THEIRS
@MODES
def test_numpy_arguments(api, run):  # [testWithNumpyInputs]
    @api.custom_gradient
    def scaled(x, factor):
        return x * factor, lambda dy: (dy * factor * 2.0, None)

    (dx,) = run(lambda x: vjp(lambda x: scaled(x, np.float32([1.0, 2.0, 3.0])), x, dy=DY))(X)
    assert as_list(dx) == [2.0, 40.0, 600.0]


@OURS_AND_THEIRS
@MODES
def test_no_gradient_for_an_argument(api, run):  # [testCustomGradientWithNoneGrad...]
    @api.custom_gradient
    def first(a, b):
        return a + b, lambda dy: (dy, None)

    da, db = run(lambda a, b: vjp(first, a, b, dy=DY))(X, 2.0 * X)
    assert as_list(da) == as_list(DY)
    assert db is None


@OURS_AND_THEIRS
@MODES
@pytest.mark.parametrize("takes", ["keyword", "any_keyword"])
def test_variables(api, run, takes):  # [testCustomGradientWithVariables, ...Eager]
    w = tf.Variable([2.0, 3.0, 4.0])

    def gradients(dy, variables):
        assert [v is w for v in variables] == [True]
        return 100.0 * dy, [dy * 7.0]

    @api.custom_gradient
    def layer(x):
        if takes == "keyword":
            return x * w, lambda dy, variables=None: gradients(dy, variables)
        return x * w, lambda dy, **kwargs: gradients(dy, **kwargs)

    dx, dw = run(lambda x: vjp(layer, x, dy=DY, variables=[w]))(X)
    assert as_list(dx) == [100.0, 1000.0, 10000.0]
    assert as_list(dw) == [7.0, 70.0, 700.0]


@OURS_AND_THEIRS
@MODES
def test_a_variable_of_which_nobody_asks_the_gradient(api, run):
    w = tf.Variable(2.0)

    @api.custom_gradient
    def layer(x):
        return x * w, lambda dy, variables: (3.0 * dy, [None])

    dx, dw = run(lambda x: vjp(layer, x, dy=DY, variables=[w]))(X)
    assert as_list(dx) == [3.0, 30.0, 300.0]
    assert dw is None


@OURS_AND_THEIRS
@MODES
def test_too_few_gradients_are_an_error(api, run):  # [testCustomGradientErrors]
    @api.custom_gradient
    def two(a, b):
        return a * b, lambda dy: dy

    # In a tf.function TensorFlow's check comes late, and speaks of what it recorded.
    with pytest.raises(ValueError if api is cg else (ValueError, tf.errors.InternalError)):
        run(lambda a, b: vjp(two, a, b, dy=DY))(X, X)


@OURS_AND_THEIRS
@MODES
def test_variables_that_grad_fn_does_not_take_are_an_error(api, run):  # [testCustomGradientErrors...]
    w = tf.Variable(2.0)

    @api.custom_gradient
    def layer(x):
        return x * w, lambda dy: dy

    with pytest.raises(TypeError, match="variables"):
        run(lambda x: vjp(layer, x, dy=DY))(X)


@OURS_AND_THEIRS
@MODES
def test_a_gradient_with_its_own_gradient(api, run):  # [testNestedCustomGradient]
    @api.custom_gradient
    def outer(x):
        @api.custom_gradient
        def first_derivative(x):
            return 2.0 * x, lambda ddy: 50.0 * ddy

        return x * x, lambda dy: dy * first_derivative(x)

    def second(x):
        return vjp(lambda x: vjp(outer, x)[0], x, dy=DY)

    (ddx,) = run(second)(X)
    assert as_list(ddx) == [50.0, 500.0, 5000.0]


@OURS_AND_THEIRS
@MODES
def test_a_ragged_argument(api, run):  # [testCompositeTensor...]
    @api.custom_gradient
    def scaled(x):
        return 2.0 * x, lambda dy: 3.0 * dy

    x = tf.RaggedTensor.from_row_splits(X, [0, 1, 3])

    def gradient(values):
        ragged = x.with_flat_values(values)
        return vjp(lambda values: scaled(ragged.with_flat_values(values)).flat_values, values, dy=DY)

    (dx,) = run(gradient)(X)
    assert as_list(dx) == [3.0, 30.0, 300.0]


@OURS_AND_THEIRS
def test_a_method_and_a_class(api):  # [testCustomGradientClass]
    class Cube:
        factor = 10.0

        @api.custom_gradient
        def __call__(self, x):
            return x**3, lambda dy: dy * self.factor

        @api.custom_gradient
        def square(self, x):
            return x**2, lambda dy: 2.0 * dy * self.factor

    (dx,) = vjp(Cube().square, X, dy=DY)
    assert as_list(dx) == [20.0, 200.0, 2000.0]
    (dx,) = vjp(Cube().__call__, X, dy=DY)
    assert as_list(dx) == [10.0, 100.0, 1000.0]


# recompute_grad, grad_pass_through


# In eager mode TensorFlow's enters a variable scope, which fails after certain graphs of TensorFlow 1 in one process.
RECOMPUTATIONS = pytest.mark.parametrize(
    ("api", "run"),
    [(cg, lambda f: f), (cg, tf.function), (tf, tf.function)],
    ids=["ours-eager", "ours-traced", "tensorflow-traced"],
)


@OURS_AND_THEIRS
def test_a_recomputed_function_is_wrapped(api):  # [testRecomputeGradWrapped]
    def function(x):
        return 2.0 * x

    assert api.recompute_grad(function).__wrapped__ is function


@RECOMPUTATIONS
def test_recomputation_of_variables_and_several_arguments(api, run):  # [testRecomputeGrad, testFnRecompute]
    w = tf.Variable([2.0, 3.0, 4.0])
    recomputed = api.recompute_grad(lambda a, b: tf.sin(a) * b * w)
    da, db, dw = run(lambda a, b: vjp(recomputed, a, b, dy=DY, variables=[w]))(X, 2.0 * X)
    a, b, dy = X.numpy(), 2.0 * X.numpy(), DY.numpy()
    np.testing.assert_allclose(da, dy * np.cos(a) * b * w.numpy(), rtol=1e-5)
    np.testing.assert_allclose(db, dy * np.sin(a) * w.numpy(), rtol=1e-5)
    np.testing.assert_allclose(dw, dy * np.sin(a) * b, rtol=1e-5)


@RECOMPUTATIONS
@pytest.mark.parametrize("size", [0, 3])
def test_recomputation_of_an_empty_tensor(api, run, size):  # [testRecomputeGradZeroSizeInput]
    (dx,) = run(lambda x: vjp(api.recompute_grad(lambda x: tf.reduce_sum(x**2)), x, dy=tf.constant(3.0)))(X[:size])
    np.testing.assert_allclose(dx, 6.0 * X[:size])


@RECOMPUTATIONS
def test_recomputation_with_arguments_of_several_dtypes(api, run):  # [testRecomputeGradDifferentDtypesInputs]
    recomputed = api.recompute_grad(lambda x, n: x * tf.cast(n, tf.float32))
    (dx, dn) = run(lambda x, n: vjp(recomputed, x, n, dy=DY))(X, tf.constant([1, 2, 3]))
    assert as_list(dx) == [1.0, 20.0, 300.0]
    assert dn is None or not np.any(dn)


@OURS_AND_THEIRS
@MODES
def test_the_gradient_passes_through_a_function_and_not_to_its_variables(api, run):  # [GradPassThroughTest]
    w = tf.Variable([2.0, 3.0, 4.0])
    rounded = api.grad_pass_through(lambda x: tf.round(x * w))
    dx, dw = run(lambda x: vjp(rounded, x, dy=DY, variables=[w]))(X)
    assert as_list(dx) == as_list(DY)
    assert dw is None


# Slices


DECORATORS = {
    "custom_gradient": lambda api: api.custom_gradient(lambda x: (tf.identity(x), lambda dy: dy)),
    "grad_pass_through": lambda api: api.grad_pass_through(tf.identity),
}


@OURS_AND_THEIRS
@MODES
@pytest.mark.parametrize("name", DECORATORS)
def test_slices_pass_an_identity_as_slices(api, run, name):
    same = DECORATORS[name](api)
    table = tf.reshape(tf.range(20.0), [10, 2])
    dy = tf.constant([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    (dx,) = run(lambda table: vjp(lambda table: tf.gather(same(table), [3, 7, 3]), table, dy=dy))(table)
    assert isinstance(dx, tf.IndexedSlices)
    assert as_list(dx.indices) == [3, 7, 3]
    assert as_list(dx.values) == as_list(dy)
    assert as_list(dx.dense_shape) == [10, 2]


# Forward mode


@MODES
def test_a_tangent_is_that_of_the_gradient(run):  # [testCustomGradient], where TensorFlow's ignores the gradient
    twenty = cg.custom_gradient(lambda x: (2.0 * x, lambda dy: 20.0 * dy))

    def tangent(x, t):
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            y = twenty(x)
        return accumulator.jvp(y)

    assert as_list(run(tangent)(X, DY)) == [20.0, 200.0, 2000.0]


@MODES
def test_a_tangent_of_a_recomputation(run):  # [testCustomGradientRecomputeGrad]
    def tangent(x, t):
        with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
            y = cg.recompute_grad(lambda x: x**3)(x)
        return accumulator.jvp(y)

    assert as_list(run(tangent)(X, DY)) == [3.0, 120.0, 2700.0]


# Decorated functions as objects


@OURS_AND_THEIRS
def test_the_decorated_function_is_found_behind_the_decorator(api):
    def function(x: tf.Tensor, y: float = 2.0):
        """Documented."""
        return x * y, lambda dy: (dy * y, None)

    decorated = api.custom_gradient(function)
    assert decorated.__wrapped__ is function
    assert inspect.unwrap(decorated) is function
    assert decorated.__name__ == "function"
    assert decorated.__doc__ == "Documented."
    assert functools.wraps(decorated)(lambda x: x).__wrapped__ is decorated
