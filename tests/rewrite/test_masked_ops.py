"""The table of ops that work element by element, compared with TensorFlow's ops, and the masked gradient of each."""

import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import tf_cg_ops as cg
from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.rewrite import elementwise_ops

from ..support.modes import VJP_MODES
from ..support.tensors import pairs
from .passing_ops import CALLS, NOT_UNDER_XLA, VARIABLE

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
    assert CALLS.keys() == elementwise_ops.PASS_ON


NUMBERS = np.reshape([*SPECIAL, 3.0, 4.0, 5.0, 0.5, 1e-300, -2.0], [4, 4])


def gradients_of_zeros(function, sources):
    """The gradients of a function without arguments by some Tensors, for an upstream gradient of zeros."""
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = function()
    found = tape.gradient(value, sources, tf.zeros_like(value))
    return [tf.convert_to_tensor(gradient) for gradient in found if gradient is not None]


def assert_zeros(gradients, op_type):
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, np.zeros(gradient.shape), err_msg=op_type)


def gradients_of_call(op_type, x):
    return gradients_of_zeros(lambda: CALLS[op_type](x), [x, VARIABLE])


@pytest.mark.parametrize("op_type", CALLS)
def test_other_ops_that_the_warning_does_not_name_keep_zeros(op_type):
    """Whatever the inputs are, and without a rule."""
    gradients = tf.function(lambda x: gradients_of_call(op_type, x), autograph=False)
    assert op_type in {op.type for op in gradients.get_concrete_function(NUMBERS).graph.get_operations()}
    found = gradients(NUMBERS)
    assert found
    assert_zeros(found, op_type)


def test_other_ops_keep_zeros_under_xla():
    """All in one graph, which is quicker to compile."""

    @tf.function(jit_compile=True, autograph=False)
    def gradients(x):
        return {op_type: gradients_of_call(op_type, x) for op_type in CALLS if op_type not in NOT_UNDER_XLA}

    for op_type, found in gradients(tf.constant(NUMBERS)).items():
        assert_zeros(found, op_type)


def masked_call(op_type):
    """Special numbers, and the gradients of a masked op of them."""
    columns = iter(np.array(list(itertools.product(SPECIAL, repeat=3))).T)
    arguments, run = call(op_type, dtype_of(op_type), lambda: next(columns))
    masked = cg.override_gradients(lambda *tensors: run(tf.nest.pack_sequence_as(arguments, tensors)), RULES)

    def gradients(*tensors):
        return gradients_of_zeros(lambda: masked(*tensors), [t for t in tensors if tf_internal.is_trainable(t)])

    return tf.nest.flatten(arguments), gradients


@pytest.mark.parametrize("op_type", sorted(elementwise_ops.TYPES))
def test_zeros_stay_zero_whatever_the_inputs_are(op_type):
    tensors, gradients = masked_call(op_type)
    assert_zeros(gradients(*tensors), op_type)


def test_zeros_stay_zero_under_xla():
    calls = {op_type: masked_call(op_type) for op_type in sorted(elementwise_ops.KEEP_ZERO | {"Elu", "Selu"})}

    @tf.function(jit_compile=True, autograph=False)
    def gradients(given):
        return {op_type: calls[op_type][1](*tensors) for op_type, tensors in given.items()}

    for op_type, found in gradients({op_type: tensors for op_type, (tensors, _) in calls.items()}).items():
        assert_zeros(found, op_type)


def log_of_positive(x):
    positive = tf.math.real(x) > 0
    return tf.where(positive, tf.math.log(x), tf.zeros_like(x))


@pytest.mark.parametrize("mode", ["eager", "unknown_rank", "jit"])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.complex64, tf.complex128])
def test_each_dtype(dtype, mode):
    x, dy = (np.array(values).astype(dtype.as_numpy_dtype) for values in ([0.0, 0.5, -1.0, 2.0], [3.0, 2.0, 1.0, -4.0]))
    _, (dx,) = VJP_MODES[mode](cg.override_gradients(log_of_positive, RULES), [x], dy)
    assert dx.dtype == dtype.as_numpy_dtype
    np.testing.assert_array_equal(dx.astype(np.complex64), [0, 4, 0, -2])


# Of x with shape [2, 3]; the other operand is broadcast, and each sum has a term that is infinite where dy is zero.
BROADCAST = {
    "column": (tf.multiply, [[2.0], [3.0]]),
    "row": (tf.multiply, [2.0, 3.0, 4.0]),
    "number": (tf.multiply, 3.0),
    "divided by a column": (tf.divide, [[2.0], [4.0]]),
    "more dimensions": (tf.multiply, [[[2.0], [3.0]]]),
    "power": (tf.pow, [[2.0], [3.0]]),
}


@pytest.mark.parametrize(("name", "mode"), pairs(BROADCAST, VJP_MODES, quick=2))
def test_the_mask_acts_before_the_sum(name, mode):
    function, other = BROADCAST[name]
    x, other = np.array([[1.0, np.inf, 0.5], [np.inf, 0.2, 4.0]]), np.array(other)
    dy = np.where(np.isinf(x), 0.0, [[1.0, 2.0, -3.0], [4.0, 5.0, 6.0]])
    expected = VJP_MODES["eager"](function, [np.where(np.isinf(x), 1.0, x), other], dy if other.ndim < 3 else dy[None])
    found = VJP_MODES[mode](cg.override_gradients(function, RULES), [x, other], dy if other.ndim < 3 else dy[None])
    for gradient, wanted in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-12)


def test_sliced_upstream_gradients():
    table = tf.constant([[0.0, 2.0], [4.0, 0.0], [0.5, 0.25]], tf.float64)

    def looked_up(table):
        rows = tf.gather(tf.math.log(table), [0, 2, 0])
        return tf.where(rows > -np.inf, rows, 0.0)

    with tf.GradientTape() as tape:
        tape.watch(table)
        value = cg.override_gradients(looked_up, RULES)(table)
    dx = tape.gradient(value, table, output_gradients=tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], tf.float64))
    np.testing.assert_array_equal(tf.convert_to_tensor(dx), [[0.0, 4.0], [0.0, 0.0], [6.0, 16.0]])


def test_a_selected_infinite_derivative_stays():
    _, (dx,) = VJP_MODES["eager"](
        cg.override_gradients(tf.math.log, RULES), [np.array([0.0, 2.0])], np.array([1.0, 1.0])
    )
    np.testing.assert_array_equal(dx, [np.inf, 0.5])


def test_ops_of_whole_numbers_are_not_named():
    """Warnings are errors."""
    cg.override_gradients(lambda x: tf.exp(x)[: tf.reduce_max(tf.cast(x, tf.int32))], RULES)(tf.eye(2))


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
