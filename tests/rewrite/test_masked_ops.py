"""The table of ops that work element by element, compared with TensorFlow's ops, and the masked gradient of each."""

import functools
import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import tf_cg_ops as cg
from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.rewrite import elementwise_ops

from ..support.modes import RUNS, VJP_MODES, assert_all_close, tape_vjp
from ..support.tensors import pairs
from . import passing_ops

RULES = {cg.rules.elementwise: cg.rules.masked}
# These pass on the upstream gradient, or select from it.
PASS_ON = {
    *("DebugGradientIdentity", "Exit", "FakeQuantWithMinMaxArgs", "Identity", "NextIteration", "PreventGradient"),
    *("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV4", "SelectV2", "Squeeze"),
}
DTYPES = [tf.float64, tf.float32, tf.complex128, tf.complex64]
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 1e30, np.inf, -np.inf, np.nan])


def call(op_type, dtype, draw):
    """Runs an op whose arguments are all drawn in the same way; also returns the arguments."""
    definition = tf_internal.op_def_registry.get(op_type)
    arguments = {}
    for argument in definition.input_arg:
        drawn = tf.constant(draw(), tf.as_dtype(argument.type) if argument.type else dtype)
        arguments[argument.name] = [drawn, drawn] if argument.number_attr else drawn
    other = {tf.float64: tf.complex128, tf.float32: tf.complex64, tf.complex128: tf.float64, tf.complex64: tf.float32}
    names = {attribute.name for attribute in definition.attr}
    attributes = {name: value for name, value in {"DstT": tf.float32, "Tout": other[dtype]}.items() if name in names}
    return arguments, lambda arguments: getattr(tf.raw_ops, op_type)(**arguments, **attributes)


def differentiable_ops():
    """The types of stateless ops with inputs, one output and a gradient."""
    for op_type in sorted(set(ops.gradient_registry.list()) & set(vars(tf.raw_ops))):
        definition = tf_internal.op_def_registry.get(op_type)
        is_simple = not definition.is_stateful and len(definition.output_arg) == 1 and definition.input_arg
        if is_simple and ops.gradient_registry.lookup(op_type) is not None:
            yield op_type


@functools.cache
def dtype_of(op_type):
    """The first dtype in which the op takes equal shapes and returns that shape, one element for each; None without."""
    rng = np.random.default_rng(3)
    for dtype in DTYPES:
        try:
            arguments, run = call(op_type, dtype, lambda: rng.uniform(0.2, 0.8, [2, 3]))
            value = run(arguments)
            if not isinstance(value, tf.Tensor) or value.shape != [2, 3] or not tf_internal.is_trainable(value):
                return None
            first = np.zeros([2, 3])
            first[0, 0] = 0.05
            for name, argument in arguments.items():
                if not isinstance(argument, list) and (argument.dtype.is_floating or argument.dtype.is_complex):
                    other = run(arguments | {name: argument + tf.cast(first, argument.dtype)})
                    others = value.numpy().ravel()[1:], other.numpy().ravel()[1:]
                    if not np.array_equal(*others, equal_nan=True):
                        return None
        except (TypeError, ValueError, KeyError, RuntimeError, tf.errors.OpError):
            continue
        return dtype
    return None


def test_the_table_has_all_ops_of_tensorflow_that_work_element_by_element():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Complex numbers that are cast.
        found = {op_type for op_type in differentiable_ops() if dtype_of(op_type)}
    assert found - PASS_ON == elementwise_ops.TYPES
    assert passing_ops.OPS.keys() == elementwise_ops.PASS_ON


NUMBERS = np.reshape([*SPECIAL, 3.0, 4.0, 5.0, 0.5, 1e-300, -2.0], [4, 4])


def gradients_of_zeros(function, sources):
    """The gradients of a function without arguments by some Tensors, for an upstream gradient of zeros."""
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = function()
    found = tape.gradient(value, sources, tf.nest.map_structure(tf.zeros_like, value))
    return [tf.convert_to_tensor(gradient) for gradient in found if gradient is not None]


def assert_zeros(calls, is_compiled):
    """For each op type, Tensors and a function that returns only zeros for them. To compile all together is quicker."""

    @tf.function(autograph=False, jit_compile=is_compiled)
    def run(given):
        return {op_type: calls[op_type][1](*tensors) for op_type, tensors in given.items()}

    for op_type, found in run({op_type: tensors for op_type, (tensors, _) in calls.items()}).items():
        for gradient in found:
            np.testing.assert_array_equal(gradient, np.zeros(gradient.shape), err_msg=op_type)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_other_ops_that_the_warning_does_not_name_keep_zeros(is_compiled):
    """Whatever the inputs are, and without a rule."""

    def gradients(op_type, x):
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        found = gradients_of_zeros(lambda: passing_ops.call(op_type, x), [x, passing_ops.VARIABLE])
        assert found
        assert op_type in {op.type for op in graph.get_operations()[before:]}
        return found

    op_types = passing_ops.UNDER_XLA if is_compiled else passing_ops.OPS
    x = tf.constant(NUMBERS)
    assert_zeros({op_type: ([x], functools.partial(gradients, op_type)) for op_type in op_types}, is_compiled)


def masked_call(op_type):
    """Special numbers, and the gradients of a masked op of them."""
    columns = iter(np.array(list(itertools.product(SPECIAL, repeat=3))).T)
    arguments, run = call(op_type, dtype_of(op_type), lambda: next(columns))
    masked = cg.override_gradients(lambda *tensors: run(tf.nest.pack_sequence_as(arguments, tensors)), RULES)

    def gradients(*tensors):
        return gradients_of_zeros(lambda: masked(*tensors), [t for t in tensors if tf_internal.is_trainable(t)])

    return tf.nest.flatten(arguments), gradients


@pytest.mark.parametrize("is_compiled", [False, True])
def test_zeros_stay_zero_whatever_the_inputs_are(is_compiled):
    op_types = elementwise_ops.KEEP_ZERO | {"Elu", "Selu"} if is_compiled else elementwise_ops.TYPES
    assert_zeros({op_type: masked_call(op_type) for op_type in sorted(op_types)}, is_compiled)


def log_of_positive(x):
    positive = tf.math.real(x) > 0
    return tf.where(positive, tf.math.log(x), tf.zeros_like(x))


@pytest.mark.parametrize("mode", RUNS)
def test_each_dtype(mode):
    dtypes = [tf.float16, tf.bfloat16, tf.float32, tf.complex64, tf.complex128]
    xs, dys = ([tf.cast(numbers, dtype) for dtype in dtypes] for numbers in ([0.0, 0.5, -1.0, 2.0], [3.0, 2, 1, -4]))
    masked = cg.override_gradients(log_of_positive, RULES)
    run = RUNS[mode](lambda xs, dys: [tape_vjp(masked, [x], dy)[1][0] for x, dy in zip(xs, dys, strict=True)])
    for dx, dtype in zip(run(xs, dys), dtypes, strict=True):
        assert dx.dtype == dtype
        np.testing.assert_array_equal(tf.cast(dx, tf.complex64), [0, 4, 0, -2])


# Of x with shape [2, 3]; the other operand is broadcast, and each sum has a term that is infinite where dy is zero.
BROADCAST = {
    "column": (tf.multiply, [[2.0], [3.0]]),
    "row": (tf.multiply, [2.0, 3.0, 4.0]),
    "number": (tf.multiply, 3.0),
    "divided by a column": (tf.divide, [[2.0], [4.0]]),
    "more dimensions": (tf.multiply, [[[2.0], [3.0]]]),
    "power": (tf.pow, [[2.0], [3.0]]),
}


@pytest.mark.parametrize(("name", "mode"), pairs(BROADCAST, VJP_MODES))
def test_the_mask_acts_before_the_sum(name, mode):
    function, other = BROADCAST[name]
    x, other = np.array([[1.0, np.inf, 0.5], [np.inf, 0.2, 4.0]]), np.array(other)
    dy = np.where(np.isinf(x), 0.0, [[1.0, 2.0, -3.0], [4.0, 5.0, 6.0]])
    dy = dy if other.ndim < 3 else dy[None]
    expected = VJP_MODES["eager"](function, [np.where(np.isinf(x), 1.0, x), other], dy)
    found = VJP_MODES[mode](cg.override_gradients(function, RULES), [x, other], dy)
    assert_all_close(found[1], expected[1], rtol=1e-12)


def test_sliced_upstream_gradients_and_a_selected_infinite_derivative():
    def looked_up(table):
        rows = tf.gather(tf.math.log(table), [0, 2, 0])
        return tf.where(rows > -np.inf, rows, 0.0)

    table, dy = [[0.0, 2.0], [4.0, 0.0], [0.5, 0.25]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    for function, x, upstream, expected in (
        (looked_up, table, dy, [[0.0, 4.0], [0.0, 0.0], [6.0, 16.0]]),
        (tf.math.log, [0.0, 2.0], [1.0, 1.0], [np.inf, 0.5]),
    ):
        _, (dx,) = tape_vjp(cg.override_gradients(function, RULES), [tf.constant(x)], tf.constant(upstream))
        np.testing.assert_array_equal(tf.convert_to_tensor(dx), expected)


def test_a_warning_names_once_what_the_rule_does_not_reach():
    @tf.custom_gradient
    def squared(x):
        return x @ x, lambda dy: dy

    function = cg.override_gradients(lambda x: tf.reduce_max(squared(tf.exp(x)) @ x), RULES)
    message = r"rule 'masked' does not reach MatMul \(2\), Max \(1\), the gradient of 'squared' \(1\) in '<lambda>'"
    with pytest.warns(UserWarning, match=message):
        function(tf.eye(2))
    function(tf.eye(2))  # Warnings are errors.
    cg.override_gradients(tf.exp, RULES)(tf.eye(2))
    # Ops of whole numbers have no gradient.
    cg.override_gradients(lambda x: tf.exp(x)[: tf.reduce_max(tf.cast(x, tf.int32))], RULES)(tf.eye(2))


def test_under_xla_the_mask_fuses_into_the_gradient():
    """The compiled gradient has as many fused loops with the mask as without."""

    def num_loops(function):
        @tf.function(jit_compile=True, autograph=False)
        def gradient(x, dy):
            return tf.gradients(function(x), x, grad_ys=dy)

        ones = tf.ones([1024])
        compiled = gradient.experimental_get_compiler_ir(ones, ones)(stage="optimized_hlo")
        entry = compiled[compiled.index("ENTRY") :]
        return entry.count(" fusion("), entry.count(" select("), compiled.count(" select(")

    plain = lambda x: tf.where(x > 0, tf.math.log(x) * tf.sqrt(x), 0.0)  # noqa: E731
    before, after = num_loops(plain), num_loops(cg.override_gradients(plain, RULES))
    assert after[2] > before[2]  # The mask is there.
    assert after[:2] == before[:2] == (1, 0)
