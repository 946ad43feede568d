"""Gradients that are slices stay slices: below a `tf.gather` of a large table a dense gradient costs the whole table."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

MODES = {"eager": lambda f: f, "traced": tf.function, "jit": functools.partial(tf.function, jit_compile=True)}
mode = pytest.mark.parametrize("mode", MODES)

TABLE = np.random.default_rng(7).normal(size=[6, 2]).astype(np.float32)
PICKS = np.array([4, 1, 4])  # One row twice: its gradients are summed up.
DY = np.array([[1.0, -2.0], [10.0, 20.0], [-100.0, 200.0]], np.float32)


def gradient(function, mode, table=TABLE, dy=DY):
    """Of `tf.gather(function(table), PICKS)` by the table."""

    def run(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            rows = tf.gather(function(table), PICKS)
        return tape.gradient(rows, table, output_gradients=tf.constant(dy))

    return MODES[mode](run)(tf.constant(table))


def dense(values, shape=TABLE.shape):
    summed = np.zeros(shape, values.dtype)
    np.add.at(summed, PICKS, values)
    return summed


def assert_slices(found, values):
    assert isinstance(found, tf.IndexedSlices)
    assert found.values.shape[0] == len(PICKS)
    assert found.dense_shape.numpy().tolist() == list(TABLE.shape)
    np.testing.assert_allclose(tf.convert_to_tensor(found), dense(values), rtol=1e-5)


ROWS = TABLE[PICKS]
SLOPE = 2.0


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


FACTOR = tf.Variable(0.25)

READY_MADE = {
    "grad_pass_through": (cg.grad_pass_through(tf.round), DY),
    "custom_vjp": (cg.custom_vjp(lambda x: (tf.identity(x), ()), lambda _, dy: dy), DY),
    "reverse_gradient": (lambda x: cg.reverse_gradient(x, 3.0), -3 * DY),
    "scale_gradient": (lambda x: cg.scale_gradient(x, 3.0), 3 * DY),
    "scale_gradient, a variable": (lambda x: cg.scale_gradient(x, FACTOR), 0.25 * DY),
    "scale_gradient, by column": (lambda x: cg.scale_gradient(x, [2.0, 5.0]), DY * [2.0, 5.0]),
    "scale_gradient, one row": (lambda x: cg.scale_gradient(x, [[2.0, 5.0]]), DY * [2.0, 5.0]),
    "scale_gradient, by element": (lambda x: cg.scale_gradient(x, TABLE), DY * ROWS),
    "embed_gradient": (lambda x: cg.embed_gradient(tf.sin(x), tf.cos(x), x), DY * np.cos(ROWS)),
    "embed_gradient, a function": (lambda x: cg.embed_gradient(tf.sin(x), lambda: tf.cos(x), x), DY * np.cos(ROWS)),
    "straight_through": (cg.straight_through(tf.sign), DY),
    "straight_through, hard_tanh": (cg.straight_through(tf.sign, "hard_tanh", SLOPE), DY * (SLOPE * abs(ROWS) <= 1)),
    "straight_through, sigmoid": (
        cg.straight_through(tf.sign, "sigmoid", SLOPE),
        DY * SLOPE * sigmoid(SLOPE * ROWS) * sigmoid(-SLOPE * ROWS),
    ),
    "straight_through, fast_sigmoid": (
        cg.straight_through(tf.sign, "fast_sigmoid", SLOPE),
        DY / (1 + SLOPE * abs(ROWS)) ** 2,
    ),
}


@mode
@pytest.mark.parametrize("name", READY_MADE)
def test_ready_made_functions_keep_slices(name, mode):
    function, values = READY_MADE[name]
    assert_slices(gradient(function, mode), values.astype(np.float32))


@mode
def test_several_x_of_one_embedded_value(mode):
    def function(x):
        return cg.embed_gradient(2.0 * x, [2.0 * tf.ones_like(x), x], [x, 3.0 * x])

    np.testing.assert_allclose(
        tf.convert_to_tensor(gradient(function, mode)), dense(2.0 * DY + 3.0 * DY * ROWS), rtol=1e-5
    )


DENSE = {
    "by axis": lambda x: tf.tile(
        cg.embed_gradient(tf.reduce_sum(x, -1), 2.0 * tf.ones_like(x), x, -1)[:, None], [1, 2]
    ),
    "manually stopped": lambda x: cg.embed_gradient(x, 2.0 * tf.ones_like(x), x, fx_gx_manually_stopped=True),
    "a surrogate of one's own": cg.straight_through(tf.sign, lambda x: tf.ones_like(x) * tf.reduce_sum(x)),
    "clip_gradient": lambda x: cg.clip_gradient(x, value=5.0),
}
BY_HAND = {
    "by axis": 2.0 * np.repeat(dense(DY).sum(1, keepdims=True), 2, 1),
    "manually stopped": 3.0 * dense(DY),
    "a surrogate of one's own": dense(DY) * TABLE.sum(),
    "clip_gradient": np.clip(dense(DY), -5.0, 5.0),
}


@mode
@pytest.mark.parametrize("name", DENSE)
def test_functions_of_more_than_a_row_have_dense_gradients(name, mode):
    np.testing.assert_allclose(tf.convert_to_tensor(gradient(DENSE[name], mode)), BY_HAND[name], rtol=1e-5)


@mode
def test_complex_gradients(mode):
    table, gx = TABLE + 1j * TABLE[::-1], TABLE - 2j * TABLE[::-1]
    dy = DY + 1j * DY[::-1]
    found = gradient(lambda x: cg.embed_gradient(x, gx, x), mode, table.astype(np.complex64), dy.astype(np.complex64))
    assert isinstance(found, tf.IndexedSlices)
    expected = dense(dy * np.conj(gx[PICKS]))
    np.testing.assert_allclose(tf.math.unsorted_segment_sum(found.values, found.indices, 6), expected, rtol=1e-5)


# Operators on slices in your own rule


KEPT = {
    "-dy": (lambda dy: -dy, -DY),
    "2.0 * dy": (lambda dy: 2.0 * dy, 2 * DY),
    "dy * 2": (lambda dy: dy * 2, 2 * DY),
    "dy / 4.0": (lambda dy: dy / 4.0, DY / 4),
    "a Tensor": (lambda dy: tf.constant(3.0) * dy, None),
    "by a Tensor": (lambda dy: dy * tf.constant(3.0), 3 * DY),
    "a number of NumPy": (lambda dy: np.float32(3.0) * dy, 3 * DY),
    "the values": (lambda dy: tf.IndexedSlices(5.0 * dy.values, dy.indices, dy.dense_shape), 5 * DY),
}


@mode
@pytest.mark.parametrize("name", KEPT)
def test_products_with_numbers_are_slices(name, mode):
    rule, values = KEPT[name]
    found = gradient(cg.custom_gradient(lambda x: (tf.identity(x), rule)), mode)
    if values is None:  # The operator is that of the Tensor, which makes a Tensor of them.
        np.testing.assert_allclose(tf.convert_to_tensor(found), 3 * dense(DY), rtol=1e-5)
    else:
        assert_slices(found, values)


KEPT_IN_GRAPHS = {
    "tf.identity": (tf.identity, DY),
    "tf.negative": (tf.negative, -DY),
    "tf.multiply": (lambda dy: tf.multiply(2.0, dy), 2 * DY),
    "a Tensor on the left": (lambda dy: tf.constant(3.0) * dy, 3 * DY),
    "after an assertion": (lambda dy: asserted(dy), 2 * DY),
}


def asserted(dy):
    with tf.control_dependencies([tf.debugging.assert_greater(tf.reduce_max(dy), 0.0)]):
        return 2.0 * dy


@pytest.mark.parametrize("mode", ["traced", "jit"])
@pytest.mark.parametrize("name", KEPT_IN_GRAPHS)
def test_linear_functions_of_tensorflow_are_slices_in_graphs(name, mode):
    rule, values = KEPT_IN_GRAPHS[name]
    assert_slices(gradient(cg.custom_gradient(lambda x: (tf.identity(x), rule)), mode), values)


@pytest.mark.parametrize("name", [*READY_MADE, *KEPT])
def test_slices_that_stay_slices_are_never_summed(name, monkeypatch):
    if name == "a Tensor":
        pytest.skip("In eager mode the other Tensor's operator runs.")
    function = (
        READY_MADE[name][0] if name in READY_MADE else cg.custom_gradient(lambda x: (tf.identity(x), KEPT[name][0]))
    )

    def run(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            rows = tf.gather(function(table), PICKS)
        return tape.gradient(rows, table, output_gradients=tf.constant(DY))

    traced = tf.function(run).get_concrete_function(tf.constant(TABLE))
    nodes = tf.compat.v1.graph_util.extract_sub_graph(
        traced.graph.as_graph_def(), [output.op.name for output in traced.graph.outputs]
    ).node
    assert "UnsortedSegmentSum" not in [node.op for node in nodes]
    monkeypatch.setattr(tf.math, "unsorted_segment_sum", None)
    assert isinstance(gradient(function, "eager"), tf.IndexedSlices)


OPERATORS = {
    "dy * table": lambda dy: dy * TABLE,
    "table * dy": lambda dy: TABLE * dy,
    "dy + 1": lambda dy: dy + 1.0,
    "1 - dy": lambda dy: 1.0 - dy,
    "dy / table": lambda dy: dy / TABLE,
    "dy ** 2": lambda dy: dy**2,
    "abs": lambda dy: abs(dy),
    "a slice": lambda dy: dy[:1] + 0.0 * dy,
    "dy - dy": lambda dy: 2.0 * dy - dy,
}


@mode
@pytest.mark.parametrize("name", OPERATORS)
def test_other_operators_are_those_of_the_dense_gradient(name, mode):
    found = gradient(cg.custom_gradient(lambda x: (tf.identity(x), OPERATORS[name])), mode)
    np.testing.assert_allclose(tf.convert_to_tensor(found), OPERATORS[name](dense(DY)), rtol=1e-5)


@mode
def test_functions_of_tensorflow_make_them_dense(mode):
    found = gradient(cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: tf.multiply(dy, x))), mode)
    np.testing.assert_allclose(found, dense(DY) * TABLE, rtol=1e-5)


@mode
def test_the_second_derivative_through_slices(mode):
    def second(table):
        with tf.GradientTape() as outer:
            outer.watch(table)
            with tf.GradientTape() as inner:
                inner.watch(table)
                rows = tf.gather(cg.custom_gradient(lambda x: (x**2, lambda dy: 2.0 * x * dy))(table), PICKS)
            dx = tf.convert_to_tensor(inner.gradient(rows, table, output_gradients=tf.constant(DY)))
        return outer.gradient(dx, table, output_gradients=tf.constant(TABLE))

    np.testing.assert_allclose(MODES[mode](second)(tf.constant(TABLE)), 2 * dense(DY) * TABLE, rtol=1e-5)


@pytest.mark.parametrize("name", ["straight_through, sigmoid", "embed_gradient"])
def test_second_derivatives_of_ready_made_functions_through_slices(name):
    function = READY_MADE[name][0]

    def second(table, sliced):
        with tf.GradientTape() as outer:
            outer.watch(table)
            with tf.GradientTape() as inner:
                inner.watch(table)
                y = function(table)
                y = tf.gather(y, PICKS) if sliced else y
            upstream = tf.constant(DY if sliced else dense(DY))
            dx = tf.convert_to_tensor(inner.gradient(y, table, output_gradients=upstream))
        return outer.gradient(dx, table, output_gradients=tf.constant(TABLE))

    for run in (second, tf.function(second)):
        sliced, whole = run(tf.constant(TABLE), True), run(tf.constant(TABLE), False)
        assert (sliced is None) == (whole is None)
        if whole is not None:
            np.testing.assert_allclose(tf.convert_to_tensor(sliced), tf.convert_to_tensor(whole), rtol=1e-4, atol=1e-4)


@mode
def test_slices_into_a_result_of_two(mode):
    @cg.custom_gradient
    def both(x):
        return (tf.identity(x), 2.0 * x), lambda da, db: 3.0 * da + 5.0 * db

    found = gradient(lambda x: both(x)[0], mode)
    np.testing.assert_allclose(tf.convert_to_tensor(found), 3 * dense(DY), rtol=1e-5)


def test_slices_of_a_table_of_unknown_size():
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def run(table):
        with tf.GradientTape() as tape:
            tape.watch(table)
            rows = tf.gather(cg.grad_pass_through(tf.identity)(table), PICKS)
        return tape.gradient(rows, table, output_gradients=tf.constant(DY))

    assert_slices(run(tf.constant(TABLE)), DY)


def test_slices_update_a_table_of_keras():
    layer = tf.keras.layers.Embedding(6, 2)
    layer.build(None)
    layer.set_weights([TABLE])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            rows = tf.gather(cg.grad_pass_through(tf.round)(layer.embeddings.value), PICKS)
        (slices,) = tape.gradient(rows, [layer.embeddings.value], output_gradients=tf.constant(DY))
        assert isinstance(slices, tf.IndexedSlices)
        layer.embeddings.value.scatter_sub(tf.IndexedSlices(0.1 * slices.values, slices.indices, slices.dense_shape))

    step()
    np.testing.assert_allclose(layer.embeddings.numpy(), TABLE - 0.1 * dense(DY), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batched", ["recompute_grad", "vectorized"])
def test_slices_where_a_rule_is_imported_or_computes_again(batched):
    if batched == "recompute_grad":
        function, expected = cg.recompute_grad(lambda x: x**2), 2.0 * TABLE * dense(DY)
    else:
        square = cg.custom_gradient(lambda x: (x**2, lambda dy: 2.0 * x * dy))
        function, expected = lambda x: tf.vectorized_map(square, x), 2.0 * TABLE * dense(DY)
    for name in MODES:
        np.testing.assert_allclose(tf.convert_to_tensor(gradient(function, name)), expected, rtol=1e-5)
