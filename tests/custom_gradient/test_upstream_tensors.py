"""The upstream gradient below a `tf.gather` is a Tensor for every function: it acts as the dense gradient."""

import copy
import functools
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

TABLE = np.random.default_rng(3).normal(size=[4, 4]).astype(np.float32)
PICKS = [2, 0, 2]  # One row twice: rows by themselves are not the gradient.
DY = np.array([[1.0, -2.0, 0.5, 3.0], [0.25, 2.0, -1.0, 4.0], [1.0, 2.0, 1.5, -1.0]], np.float32)
DENSE = np.zeros_like(TABLE)
np.add.at(DENSE, PICKS, DY)

MODES = {"eager": lambda f: f, "traced": tf.function, "jit": functools.partial(tf.function, jit_compile=True)}

# Functions of the upstream gradient; the gradient by the table is their result, broadcast to its shape.
FUNCTIONS = {
    # TensorFlow computes these row by row for slices
    "clip_by_norm": lambda t: tf.clip_by_norm(t, 1.0),
    "clip_by_value": lambda t: tf.clip_by_value(t, -1.0, 1.0),
    "clip_by_average_norm": lambda t: tf.compat.v1.clip_by_average_norm(t, 0.1),
    "clip_by_global_norm": lambda t: tf.clip_by_global_norm([t], 1.0)[0][0],
    "global_norm": lambda t: tf.linalg.global_norm([t]),
    "add_n": lambda t: tf.add_n([t, t]),
    "scalar_mul": lambda t: tf.math.scalar_mul(3.0, t),
    "cast": lambda t: tf.cast(tf.cast(t, tf.float64) ** 2, tf.float32),
    "accumulate_n": lambda t: tf.math.accumulate_n([t, t]),
    # Elementwise
    "abs": tf.abs,
    "add": lambda t: tf.add(t, 1.0),
    "subtract": lambda t: tf.subtract(1.0, t),
    "multiply": lambda t: tf.multiply(t, t),
    "divide": lambda t: tf.divide(t, 4.0),
    "negative": tf.negative,
    "identity": tf.identity,
    "pow": lambda t: tf.pow(t, 2),
    "square": tf.square,
    "sqrt": lambda t: tf.sqrt(tf.abs(t)),
    "exp": tf.exp,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "sin": tf.sin,
    "sign": tf.sign,
    "round": tf.round,
    "maximum": lambda t: tf.maximum(t, 0.5),
    "minimum": lambda t: tf.minimum(0.5, t),
    "erf": tf.math.erf,
    "log1p": lambda t: tf.math.log1p(tf.abs(t)),
    "squared_difference": lambda t: tf.math.squared_difference(t, TABLE),
    "multiply_no_nan": lambda t: tf.math.multiply_no_nan(t, t),
    "floormod": lambda t: tf.math.floormod(t, 2.0),
    "softplus": tf.math.softplus,
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "elu": tf.nn.elu,
    "gelu": tf.nn.gelu,
    "silu": tf.nn.silu,
    "leaky_relu": tf.nn.leaky_relu,
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "l2_normalize": tf.nn.l2_normalize,
    "moments": lambda t: tf.nn.moments(t, [0])[1],
    "bias_add": lambda t: tf.nn.bias_add(t, tf.ones([4])),
    "top_k": lambda t: tf.nn.top_k(t, 4)[0],
    "l2_loss": tf.nn.l2_loss,
    "embedding_lookup": lambda t: tf.nn.embedding_lookup(t, [3, 2, 1, 0]),
    # Reductions and comparisons
    "reduce_sum": tf.reduce_sum,
    "reduce_mean": lambda t: tf.reduce_mean(t, 0),
    "reduce_max": lambda t: tf.reduce_max(t, 0),
    "reduce_std": tf.math.reduce_std,
    "reduce_logsumexp": tf.reduce_logsumexp,
    "norm": tf.norm,
    "count_nonzero": lambda t: tf.cast(tf.math.count_nonzero(t), tf.float32),
    "argmax": lambda t: tf.cast(tf.argmax(t), tf.float32),
    "equal": lambda t: tf.cast(tf.equal(t, 2.0), tf.float32),
    "greater": lambda t: tf.cast(tf.greater(t, 1.0), tf.float32),
    "where": lambda t: tf.where(t > 1.0, t, 0.0),
    "is_finite": lambda t: tf.cast(tf.math.is_finite(t), tf.float32),
    "cumsum": tf.cumsum,
    "segment_sum": lambda t: tf.math.unsorted_segment_sum(t, [0, 1, 1, 0], 4),
    # Linear algebra
    "matmul": lambda t: tf.matmul(t, TABLE),
    "transpose_a": lambda t: tf.matmul(t, t, transpose_a=True),
    "tensordot": lambda t: tf.tensordot(t, TABLE, 1),
    "einsum": lambda t: tf.einsum("ij,kj->ik", t, t),
    "trace": tf.linalg.trace,
    "diag_part": tf.linalg.diag_part,
    "band_part": lambda t: tf.linalg.band_part(t, 1, 0),
    "matrix_transpose": tf.linalg.matrix_transpose,
    "normalize": lambda t: tf.linalg.normalize(t)[0],
    # Shapes and structures
    "reshape": lambda t: tf.reshape(tf.reshape(t, [-1]), [4, 4]),
    "transpose": tf.transpose,
    "concat": lambda t: tf.concat([t, t], 0)[2:6],
    "stack": lambda t: tf.stack([t, t])[1],
    "unstack": lambda t: tf.unstack(t)[2],
    "split": lambda t: tf.split(t, 2)[1][0],
    "gather": lambda t: tf.gather(t, [0, 0, 2, 2]),
    "gather_nd": lambda t: tf.gather_nd(t, [[2]]),
    "reverse": lambda t: tf.reverse(t, [0]),
    "roll": lambda t: tf.roll(t, 1, 0),
    "pad": lambda t: tf.pad(t, [[1, 0], [0, 0]])[:4],
    "tile": lambda t: tf.tile(t, [2, 1])[3:7],
    "slice": lambda t: tf.slice(t, [2, 0], [1, 4]),
    "boolean_mask": lambda t: tf.boolean_mask(t, [False, False, True, False]),
    "broadcast_to": lambda t: tf.broadcast_to(t[2], [4, 4]),
    "expand_dims": lambda t: tf.expand_dims(t, 0)[0],
    "ones_like": tf.ones_like,
    "zeros_like": tf.zeros_like,
    "shape": lambda t: tf.cast(tf.reduce_sum(tf.shape(t)), tf.float32),
    "size": lambda t: tf.cast(tf.size(t), tf.float32),
    "rank": lambda t: tf.cast(tf.rank(t), tf.float32),
    "sort": tf.sort,
    "map_fn": lambda t: tf.map_fn(lambda row: row**2, t),
    "scan": lambda t: tf.scan(lambda total, row: total + row, t),
    "vectorized_map": lambda t: tf.vectorized_map(lambda row: row**2, t),
    "while_loop": lambda t: tf.while_loop(lambda i, _: i < 2, lambda i, t: (i + 1, t * t), [0, t])[1],
    "cond": lambda t: tf.cond(tf.norm(t) > 1.0, lambda: t / tf.norm(t), lambda: t),
    "a function": lambda t: tf.function(lambda t: t**2)(t),
    "a closure": lambda t: tf.function(lambda: t**2)(),
    "another rule": lambda t: cg.custom_gradient(lambda x: (x**2, lambda dy: dy))(t),
    "clip_gradient": lambda t: gradient_of_sum(lambda x: cg.clip_gradient(x, norm=1.0), t),
    "a tape": lambda t: gradient_of_sum(lambda x: x**3, t),
    "stop_gradient": tf.stop_gradient,
    "ensure_shape": lambda t: tf.ensure_shape(t, [4, 4]),
    "nest": lambda t: tf.nest.map_structure(lambda part: part**2, {"a": [t]}, expand_composites=True)["a"][0],
    "control_dependencies": lambda t: after(t),
    # Operators and methods
    "==": lambda t: tf.cast(t == 2.0, tf.float32),
    "!=": lambda t: tf.cast(t != 2.0, tf.float32),
    "<": lambda t: tf.cast(t < 2.0, tf.float32),
    "+=": lambda t: added_in_place(t),
    "[]": lambda t: t[2],
    "@": lambda t: t @ t,
    "** 2": lambda t: t**2,
    "abs()": abs,
    "-t * t": lambda t: -t * t,
    "products of a product": lambda t: (2.0 * t) * (2.0 * t),
    "the norm of a product": lambda t: tf.clip_by_norm(2.0 * -t / 4.0, 1.0),
    "ndim": lambda t: tf.fill([], float(t.ndim)),
    "shape[0]": lambda t: tf.fill([], float(t.shape[0])),
    "dtype": lambda t: tf.ones([], t.dtype),
    # Keras
    "keras.ops.abs": keras.ops.abs,
    "keras.ops.norm": keras.ops.norm,
    "keras.ops.add": lambda t: keras.ops.add(t, 1.0),
    "keras.ops.softmax": keras.ops.softmax,
    "keras.ops.where": lambda t: keras.ops.where(t > 1.0, t, 0.0),
    "keras.ops.convert_to_tensor": lambda t: keras.ops.convert_to_tensor(t) ** 2,
    "keras.ops.cast": lambda t: keras.ops.cast(t, "float32") ** 2,
}
NOT_UNDER_XLA = {"boolean_mask"}

IN_EAGER_MODE = {
    "numpy": lambda t: t.numpy() ** 2,
    "np.asarray": lambda t: np.asarray(t) ** 2,
    "np.sum": lambda t: np.sum(t),
    "np.multiply": lambda t: np.asarray(np.multiply(TABLE, t)),
    "len": lambda t: np.float32(len(t)),
    "iteration": lambda t: sum(row**2 for row in t),
    "bool": lambda t: np.float32(bool(t[2, 0] == 2.0)),
    "float": lambda t: np.float32(float(t[2, 0]) + int(t[2, 3])),
    "str": lambda t: np.float32(str(t) == str(tf.constant(DENSE))),
    "repr": lambda t: np.float32(repr(t) == repr(tf.constant(DENSE))),
    "f-string": lambda t: np.float32(f"{t}" == f"{tf.constant(DENSE)}"),
    "hash": lambda t: unhashable(t),
    "ref": lambda t: t.ref().deref() ** 2,
    "copy": lambda t: copy.copy(t) ** 2,
    "deepcopy": lambda t: copy.deepcopy(t) ** 2,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)) ** 2,
    "device": lambda t: np.float32(t.device == tf.constant(DENSE).device),
    "set_shape": lambda t: (t.set_shape([4, None]), t**2)[1],
    "constant": lambda t: tf.constant(t) ** 2,
    "Variable": lambda t: tf.Variable(t) ** 2,
    "assign": lambda t: tf.Variable(TABLE).assign_add(t),
}
BOTH = {
    "py_function": lambda t: tf.py_function(lambda t: t**2, [t], tf.float32),
    "numpy_function": lambda t: tf.numpy_function(lambda t: t**2, [t], tf.float32),
    "print": lambda t: (tf.print(t, output_stream="file:///dev/null"), t**2)[1],
    "as_string": lambda t: tf.strings.to_number(tf.strings.as_string(t)),
}


def gradient_of_sum(function, t):
    with tf.GradientTape() as tape:
        tape.watch(t)
        y = function(t)
    return tape.gradient(y, t, output_gradients=tf.constant(DENSE))


def after(t):
    with tf.control_dependencies([t]):
        return tf.identity(tf.ones([4, 4]))


def unhashable(t):
    with pytest.raises(TypeError, match="Tensor is unhashable"):
        hash(t)
    return np.float32(1.0)


def added_in_place(t):
    t += 1.0
    t *= t
    return t


def gradient(rule, sliced=True, second=False):
    """By the table, of a gather of a value with this rule, or of the value with the equal dense upstream gradient."""

    def run(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = cg.custom_gradient(lambda x: (tf.identity(x), rule))(table)
            y = tf.gather(y, PICKS) if sliced else y
        return tape.gradient(y, table, output_gradients=tf.constant(DY if sliced else DENSE))

    return run


def assert_same_as_dense(name, functions, mode):
    def rule(dy):
        assert isinstance(dy, tf.Tensor)
        assert tf.is_tensor(dy)
        assert (dy.shape, dy.dtype) == ([4, 4], tf.float32)
        return tf.broadcast_to(functions[name](dy), [4, 4])

    found = tf.convert_to_tensor(MODES[mode](gradient(rule))(tf.constant(TABLE)))
    expected = MODES[mode](gradient(rule, sliced=False))(tf.constant(TABLE))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        found, np.broadcast_to(functions[name](tf.constant(DENSE)), [4, 4]), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_computes_with_the_dense_gradient(name, mode):
    if mode == "jit" and name in NOT_UNDER_XLA:
        pytest.skip("XLA has no dynamic shapes")
    assert_same_as_dense(name, FUNCTIONS, mode)


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("name", BOTH)
def test_a_function_without_xla_computes_with_the_dense_gradient(name, mode):
    assert_same_as_dense(name, BOTH, mode)


@pytest.mark.parametrize("name", IN_EAGER_MODE)
def test_python_and_numpy_read_the_dense_gradient(name):
    assert_same_as_dense(name, IN_EAGER_MODE, "eager")


@pytest.mark.parametrize("name", ["clip_by_norm", "clip_by_value", "clip_by_global_norm", "norm", "==", "concat"])
def test_a_reloaded_model_has_the_same_gradient(name, tmp_path):
    def rule(dy):
        return tf.broadcast_to(FUNCTIONS[name](dy), [4, 4])

    module = tf.Module()
    module.rows = tf.function(
        lambda table: tf.gather(cg.custom_gradient(lambda x: (tf.identity(x), rule))(table), PICKS),
        input_signature=[tf.TensorSpec([4, 4])],
    )
    tf.saved_model.save(module, tmp_path)
    table = tf.constant(TABLE)
    found = []
    for rows in (module.rows, tf.saved_model.load(tmp_path).rows):
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = rows(table)
        found.append(tf.convert_to_tensor(tape.gradient(y, table, output_gradients=tf.constant(DY))))
        np.testing.assert_allclose(found[-1], rule(tf.constant(DENSE)), rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["clip_by_norm", "==", "concat", "matmul", "a function"])
def test_a_rule_of_an_overridden_op_gets_a_tensor(name, mode):
    def run(table):
        function = cg.override_gradients(
            lambda x: tf.gather(tf.nn.relu(x), PICKS),
            {"Relu": lambda op, dy: tf.broadcast_to(FUNCTIONS[name](dy), [4, 4])},
        )
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = function(table)
        return tape.gradient(y, table, output_gradients=tf.constant(DY))

    found = MODES[mode](run)(tf.constant(TABLE))
    expected = np.broadcast_to(FUNCTIONS[name](tf.constant(DENSE)), [4, 4])
    np.testing.assert_allclose(tf.convert_to_tensor(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_slices_without_a_shape_are_dense_for_a_rule(mode):
    @tf.custom_gradient
    def picked(x):
        return tf.gather(x, PICKS), lambda dy: tf.IndexedSlices(dy, tf.constant(PICKS))

    def run(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = picked(cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: tf.clip_by_norm(dy, 1.0)))(table))
        return tape.gradient(y, table, output_gradients=tf.constant(DY))

    np.testing.assert_allclose(MODES[mode](run)(tf.constant(TABLE)), DENSE / np.linalg.norm(DENSE), rtol=1e-5)


def test_a_kept_upstream_is_read_after_the_gradient():
    kept = []
    tf.convert_to_tensor(gradient(lambda dy: kept.append(dy) or dy)(tf.constant(TABLE)))
    np.testing.assert_allclose(kept[0], DENSE)
    np.testing.assert_allclose(tf.function(lambda: kept[0] ** 2)(), DENSE**2)


def test_second_derivatives_through_functions_of_lists():
    def second(table):
        with tf.GradientTape() as outer:
            outer.watch(table)
            rule = lambda dy: tf.concat([dy, dy], 0)[2:6] ** 2  # noqa: E731
            with tf.GradientTape() as inner:
                inner.watch(table)
                y = tf.gather(cg.custom_gradient(lambda x: (tf.identity(x), rule))(table), PICKS) ** 2
            dx = inner.gradient(y, table)
        return outer.gradient(dx, table)

    weights = np.bincount(PICKS, minlength=4)[:, None]
    # The rule turns the rows by two and squares them, at both orders.
    expected = np.roll(8 * weights**2 * TABLE, 2, 0) ** 2
    for run in (second, tf.function(second)):
        np.testing.assert_allclose(tf.convert_to_tensor(run(tf.constant(TABLE))), expected, rtol=1e-4)


def test_an_upstream_of_slices_has_no_buffer():
    def rule(dy):
        with pytest.raises(TypeError, match="a bytes-like object is required"):
            memoryview(dy)
        return dy

    gradient(rule)(tf.constant(TABLE))
