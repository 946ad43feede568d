"""override_gradients keeps the value, bit for bit, and uses the rules for some of the ops."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg
from tf_cg_ops._src.graphs.graph_copy import GraphCopy

from ..support.modes import vjp
from ..support.saved_models import in_a_loop
from ..support.tensors import pairs

X, DY = np.array([-1.5, 0.5, 2.0]), np.array([1.0, 10.0, -3.0])


def fivefold(op, dy):
    return 5.0 * dy


def value_and_gradient(function, x, dy):
    x = tf.constant(x)
    return vjp(lambda: function(x), x, tf.constant(dy))


def assert_overridden(function, plain, dx, x=X, dy=DY):
    y, gradient = value_and_gradient(function, x, dy)
    np.testing.assert_array_equal(y, plain(tf.constant(x)))
    np.testing.assert_allclose(gradient, dx, rtol=1e-12)


# Functions that apply the sine to x, and how often.
PLACES = {
    "alone": (tf.sin, 1),
    "function": (tf.function(lambda x: tf.sin(x)), 1),
    "function in a function": (tf.function(lambda x: tf.function(tf.sin)(x)), 1),
    "compiled function": (tf.function(lambda x: tf.sin(x), jit_compile=True), 1),
    "while_loop": (in_a_loop(tf.sin), 3),
    "loop in a loop": (in_a_loop(in_a_loop(tf.sin)), 9),
    "function in a loop": (in_a_loop(tf.function(tf.sin)), 3),
    "cond": (lambda x: tf.cond(x[0] < 0.0, lambda: tf.sin(x), lambda: x), 1),
    "switch_case": (lambda x: tf.switch_case(tf.size(x) - 2, [lambda: x, lambda: tf.sin(x), lambda: -x]), 1),
    "loop in a cond": (lambda x: tf.cond(x[0] < 0.0, lambda: in_a_loop(tf.sin)(x), lambda: x), 3),
    "map_fn": (lambda x: tf.map_fn(tf.sin, x), 1),
    "vectorized_map": (lambda x: tf.vectorized_map(tf.sin, x), 1),
}


@pytest.mark.core
@pytest.mark.parametrize(("place", "mode"), pairs(PLACES, ["eager", "traced"]))
def test_ops_are_found_in_each_place(place, mode):
    function, times = PLACES[place]
    overridden = cg.override_gradients(function, {"Sin": fivefold})
    if mode == "traced":
        overridden = tf.function(overridden)
    assert_overridden(overridden, function, DY * 5.0**times)


def test_the_gradient_of_a_recomputed_function_is_its_rule_whose_ops_stay():
    function = cg.recompute_grad(tf.sin)
    overridden = cg.override_gradients(function, {"CustomGradientRule": lambda op, *dys: [None] * len(op.inputs)})
    y, dx = value_and_gradient(overridden, X, DY)
    np.testing.assert_array_equal(y, np.sin(X))
    assert dx is None


class Doubled(tf.Module):
    """A function with a variable, and with a Python value, in each form that override_gradients takes."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(np.array([2.0, 3.0, -1.0]))
        self.traces = 0

    @tf.function(input_signature=[tf.TensorSpec([3], tf.float64)])
    def traced(self, x):
        self.traces += 1
        return tf.sin(x) * self.w

    def method(self, x):
        return tf.sin(x) * self.w


def concrete(model):
    return model.traced.get_concrete_function()


FORMS = {
    "method": lambda model: model.method,
    "tf_function": lambda model: model.traced,
    "concrete_function": concrete,
    "function_of_functions": lambda model: lambda x: model.traced(x),
}


@pytest.mark.core
@pytest.mark.parametrize("form", FORMS)
def test_variables_are_shared_and_have_gradients(form):
    model = Doubled()
    overridden = cg.override_gradients(FORMS[form](model), {"Sin": fivefold})
    for factor in (1.0, 2.0):
        model.w.assign(factor * np.array([2.0, 3.0, -1.0]))
        with tf.GradientTape() as tape:
            y = overridden(tf.constant(X))
        np.testing.assert_array_equal(y, np.sin(X) * model.w)
        np.testing.assert_allclose(tape.gradient(y, model.w, output_gradients=tf.constant(DY)), np.sin(X) * DY)
        assert_overridden(overridden, model.method, 5.0 * DY * model.w)
    (watched,) = tape.watched_variables()
    assert watched is model.w


@pytest.mark.parametrize("is_argument", [False, True])
def test_variables_have_tangents(is_argument):
    """Whether the function reads them from outside or they are its arguments."""
    v = tf.Variable([0.5, -1.0])
    function = cg.override_gradients(lambda x=v: tf.exp(x) * x, {"Exp": cg.rules.built_in})
    t, dy = np.array([1.0, 10.0], np.float32), np.array([3.0, -2.0], np.float32)
    with tf.autodiff.ForwardAccumulator(v, tf.constant(t)) as accumulator:
        with tf.GradientTape() as tape:
            y = function(v) if is_argument else function()
        dv = tape.gradient(y, v, tf.constant(dy))
    x = v.numpy().astype(np.float64)
    np.testing.assert_allclose(accumulator.jvp(y), t * (1.0 + x) * np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(accumulator.jvp(dv), t * dy * (2.0 + x) * np.exp(x), rtol=1e-6)


def test_a_function_with_a_trace_is_not_traced_again():
    model = Doubled()
    model.traced(tf.constant(X))
    before = model.traces
    overridden = cg.override_gradients(model.traced, {"Sin": fivefold})
    for _ in range(2):
        overridden(tf.constant(X))
        tf.function(overridden)(tf.constant(X))
    assert model.traces == before


def test_the_function_itself_stays_as_it_is_and_nothing_is_registered():
    from tensorflow.python.framework import ops  # Tests look inside.

    before = set(ops.gradient_registry.list())
    function = tf.function(tf.sin)
    assert_overridden(cg.override_gradients(function, {"Sin": fivefold}), function, 5.0 * DY)
    assert_overridden(function, function, np.cos(X) * DY)
    assert_overridden(cg.override_gradients(function, {"Sin": lambda op, dy: dy}), function, DY)
    assert set(ops.gradient_registry.list()) == before


def test_the_first_matching_rule_counts():
    function = lambda x: tf.sin(x) + tf.cos(x)  # noqa: E731
    rules = {lambda op: op.type == "Sin": fivefold, "Sin": lambda op, dy: 0.0 * dy, "Cos": lambda op, dy: dy}
    with pytest.raises(ValueError, match="an op of '<lambda>', got no match for 'Sin'"):
        cg.override_gradients(function, rules)(tf.constant(X))
    del rules["Sin"]
    assert_overridden(cg.override_gradients(function, rules), function, 6.0 * DY)


def test_a_rule_sees_inputs_outputs_attributes_and_upstream_gradients():
    seen = {}

    def rule(op, dy):
        seen.update(type=op.type, name=op.name, keep_dims=op.get_attr("keep_dims"), rank=op.outputs[0].shape.rank)
        assert [x.shape.as_list() for x in op.inputs] == [[3], [1]]
        return [dy[0] * op.inputs[0] * op.outputs[0][0], None]

    def function(x):
        return tf.reduce_sum(x, axis=[0], keepdims=True, name="total")

    overridden = cg.override_gradients(function, {"Sum": rule})
    assert_overridden(overridden, function, 7.0 * X * X.sum(), dy=DY[:1] * 7.0)
    assert seen == {"type": "Sum", "name": "total", "keep_dims": True, "rank": 1}


def test_an_op_with_several_outputs_gets_an_upstream_gradient_for_each():
    def rule(op, *dys):
        return [None, tf.concat([2.0 * dys[0], 0.0 * dys[1], 4.0 * dys[2]], 0)]

    def function(x):
        first, _, last = tf.split(x, 3)
        return tf.concat([first, last, last], 0)

    assert_overridden(cg.override_gradients(function, {"Split": rule}), function, [2.0, 0.0, 4.0 * 7.0])


def test_an_op_with_several_inputs_has_a_gradient_for_each():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4) - 5.0
    dy = np.random.default_rng(1).normal(size=[2, 4])

    def rule(op, dy):
        x, y = op.inputs
        return 2.0 * tf.matmul(dy, y, transpose_b=True), 3.0 * tf.matmul(x, dy, transpose_a=True)

    overridden = cg.override_gradients(tf.matmul, {"MatMul": rule})
    x, y = tf.constant(a), tf.constant(b)
    z, (dx, dy_) = vjp(lambda: overridden(x, b=y), [x, y], tf.constant(dy))
    np.testing.assert_allclose(z, a @ b)
    np.testing.assert_allclose(dx, 2.0 * dy @ b.T)
    np.testing.assert_allclose(dy_, 3.0 * a.T @ dy)


def test_integer_inputs_have_no_gradient_and_sliced_gradients_stay_sliced():
    table = tf.Variable(np.arange(12.0).reshape(4, 3))

    def rule(op, dy):
        rows = tf.shape(op.inputs[0], out_type=tf.int64)
        return [tf.IndexedSlices(10.0 * dy, op.inputs[1], rows), None, None]

    overridden = cg.override_gradients(lambda i: tf.gather(tf.identity(table), i), {"GatherV2": rule})
    with tf.GradientTape() as tape:
        y = overridden(tf.constant([2, 0]))
    dy = np.stack([DY, 2 * DY])
    gradient = tape.gradient(y, table, output_gradients=tf.constant(dy))
    np.testing.assert_array_equal(y, table.numpy()[[2, 0]])
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), [20 * DY, 0 * DY, 10 * DY, 0 * DY])


def test_a_rule_for_a_read_of_a_variable():
    w = tf.Variable(X)
    overridden = cg.override_gradients(lambda x: x * w, {"ReadVariableOp": fivefold})
    with tf.GradientTape() as tape:
        y = overridden(tf.constant(X))
    np.testing.assert_allclose(tape.gradient(y, w, output_gradients=tf.constant(DY)), 5.0 * X * DY)


def test_a_rule_for_a_loop_or_a_call_is_for_it_as_a_whole():
    loop = in_a_loop(tf.sin)

    def rule(op, *dys):
        (position,) = (i for i, x in enumerate(op.inputs) if x.dtype == tf.float64)
        return [7.0 * dys[position] if i == position else None for i in range(len(op.inputs))]

    assert_overridden(cg.override_gradients(loop, {"StatelessWhile": rule}), loop, 7.0 * DY)
    function = tf.function(tf.sin)
    overridden = cg.override_gradients(lambda x: 2.0 * function(x), {"PartitionedCall": fivefold})
    assert_overridden(overridden, lambda x: 2.0 * function(x), 10.0 * DY)


def test_side_effects_happen_once_and_in_order():
    total, log = tf.Variable(0.0, dtype=tf.float64), []

    @tf.function
    def function(x):
        before = tf.identity(total)
        total.assign_add(tf.reduce_sum(x))
        tf.py_function(lambda value: log.append(float(value)), [total], [])
        total.assign(2.0 * total)
        return tf.sin(x) * before + total

    overridden = cg.override_gradients(function, {"Sin": fivefold})
    total.assign(3.0)
    y, dx = value_and_gradient(overridden, X, DY)
    np.testing.assert_allclose(y, np.sin(X) * 3.0 + 8.0)
    np.testing.assert_allclose(dx, DY * 5.0 * 3.0 + 2.0 * DY.sum() * 0.0 + 0.0)
    assert log == [4.0]
    assert float(total) == 8.0


def test_a_structure_of_arguments_and_results():
    def function(inputs, *, scale):
        return {"y": scale * tf.sin(inputs["a"]), "ragged": tf.ragged.map_flat_values(tf.cos, inputs["b"]), "n": 3}

    overridden = cg.override_gradients(function, {"Sin": fivefold})
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]], dtype=tf.float64)
    a = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(a)
        y = overridden({"a": a, "b": ragged}, scale=2.0)
    np.testing.assert_allclose(tape.gradient(y["y"], a, output_gradients=tf.constant(DY)), 10.0 * DY)
    assert isinstance(y["ragged"], tf.RaggedTensor)
    assert int(y["n"]) == 3
    np.testing.assert_allclose(y["ragged"].flat_values, np.cos([1.0, 2.0, 3.0]))


@pytest.mark.core
@pytest.mark.parametrize(("library", "mode"), [(keras, "traced"), (tf_keras, "eager"), (keras, "jit")])
def test_keras_models(library, mode):
    library.utils.set_random_seed(2)
    model = library.Sequential(
        [library.layers.Input([5]), library.layers.Dense(4, activation="relu"), library.layers.Dense(2)]
    )
    overridden = cg.override_gradients(model, {"Relu": cg.rules.guided})
    x = np.random.default_rng(3).normal(size=[6, 5]).astype(np.float32)
    dy = np.random.default_rng(4).normal(size=[6, 2]).astype(np.float32)

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = overridden(x)
        variables = [weight.value if library is keras else weight for weight in model.trainable_weights]
        return y, tape.gradient(y, [x, *variables], output_gradients=tf.constant(dy))

    run = {"eager": run, "traced": tf.function(run), "jit": tf.function(run, jit_compile=True)}[mode]
    y, (dx, dw, db, _, _) = run(tf.constant(x))
    w1, b1, w2, _ = (np.asarray(weight, np.float64) for weight in model.get_weights())
    hidden = x @ w1 + b1
    upstream = dy @ w2.T
    upstream = upstream * (upstream > 0) * (hidden > 0)
    np.testing.assert_allclose(dx, upstream @ w1.T, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dw, x.T @ upstream, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(db, upstream.sum(0), rtol=1e-4, atol=1e-6)
    if mode != "jit":
        np.testing.assert_array_equal(y, model(x))


def test_a_keras_model_follows_its_training_flag():
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dropout(0.5), keras.layers.ReLU()])
    overridden = cg.override_gradients(model, {"Relu": cg.rules.guided})
    x = tf.ones([64, 3])
    np.testing.assert_array_equal(overridden(x), np.ones([64, 3]))
    assert np.unique(overridden(x, training=True)).tolist() == [0.0, 2.0]
    np.testing.assert_array_equal(overridden(x, training=False), np.ones([64, 3]))


def test_an_overridden_function_may_be_recomputed():
    assert_overridden(cg.recompute_grad(cg.override_gradients(tf.sin, {"Sin": fivefold})), tf.sin, 5.0 * DY)


def test_a_scan_whose_step_has_a_gradient_of_its_own():
    half = cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: 0.5 * dy))

    def total(x):
        xs = tf.exp(x)
        return cg.scan(lambda carry, t: (half(carry) + t, carry), xs[0], xs)[0]

    # Each of the three steps halves the gradient of what came before it.
    assert_overridden(
        cg.override_gradients(total, {"Exp": fivefold}),
        total,
        5.0 * np.array([0.25 + 0.125, 0.5, 1.0]),
        dy=np.array(1.0),
    )


def test_ops_without_outputs_run_before_what_waits_for_them_in_a_graph_of_tensorflow_1():
    """In a session, only what the result waits for runs."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        counter = tf.compat.v1.get_variable("counter", initializer=0, use_resource=True)

        def counted(x):
            with tf.control_dependencies([tf.raw_ops.AssignAddVariableOp(resource=counter.handle, value=1)]):
                return tf.sin(x)

        x = tf.constant([1.0, 2.0])
        y = cg.override_gradients(counted, {"Sin": lambda op, dy: 3.0 * dy})(x)
        dx = tf.gradients(y, x, tf.constant([1.0, 10.0]))[0]
        session.run(counter.initializer)
        np.testing.assert_allclose(session.run(y), np.sin([1.0, 2.0]), rtol=1e-6)
        assert session.run(counter) == 1
        np.testing.assert_allclose(session.run(dx), [3.0, 30.0])


def test_a_copied_op_waits_for_the_copy_of_an_op_without_outputs():
    with tf.Graph().as_default():
        x = tf.constant(1.0)
        with tf.control_dependencies([tf.no_op(name="before")]):
            y = tf.sin(x)
    for pure, waits_for in ((False, ["NoOp"]), (True, [])):
        with tf.Graph().as_default() as graph:
            (copied,) = GraphCopy([], pure=pure).tensors([y])
        assert copied.graph is graph
        assert [op.type for op in copied.op.control_inputs] == waits_for


class RuleOfItsObject:
    """The rule refers to the object that holds the function."""

    def __init__(self):
        self.w = tf.Variable(X)
        self.function = cg.override_gradients(self.plain, {"Relu": self.rule})
        self.of_a_function = cg.override_gradients(tf.nn.relu, {"Relu": self.rule})

    def plain(self, x):
        return tf.nn.relu(self.w * x)

    def rule(self, op, dy):
        return dy * self.w


def test_traces_go_with_their_object_though_a_rule_refers_to_it():
    model = RuleOfItsObject()
    for function in (model.function, model.of_a_function):
        value_and_gradient(function, X, DY)
    gone = weakref.ref(model)
    del model, function
    for _ in range(3):
        gc.collect()
    assert gone() is None


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("place", ["alone", "branch", "loop", "function"])
def test_a_rule_differentiates_with_a_tape(place, mode):
    """The op of a branch or loop can read a tensor from outside."""

    def rule(op, dy):
        (x,) = op.inputs
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x)
        return tape.gradient(y, x, output_gradients=dy)

    places = {
        "alone": tf.sign,
        "branch": lambda x: tf.cond(x[0] < 0.0, lambda: tf.sign(x), lambda: x),
        "loop": lambda x: tf.while_loop(lambda i, y: i < 1, lambda i, y: (i + 1, y + tf.sign(x)), (0, 0.0 * x))[1],
        "function": lambda x: tf.function(lambda: tf.sign(x))(),
    }
    overridden = cg.override_gradients(places[place], {"Sign": rule})
    run = overridden if mode == "eager" else tf.function(overridden)
    assert_overridden(run, tf.sign, DY / np.cosh(X) ** 2)


def test_a_layer_that_a_model_gets_later_is_in_the_next_call():
    model = keras.Sequential([keras.layers.Activation(tf.sin, dtype="float64")])
    overridden = cg.override_gradients(model, {"Sin": fivefold})
    assert_overridden(overridden, tf.sin, 5.0 * DY)
    model.add(keras.layers.Rescaling(3.0, dtype="float64"))
    assert_overridden(overridden, lambda x: 3.0 * tf.sin(x), 15.0 * DY)


def test_a_wrong_rule_costs_nothing_until_you_compute_a_gradient():
    function = cg.override_gradients(tf.nn.relu, {"Relu": lambda op, dy: [dy, dy]})
    np.testing.assert_array_equal(function(tf.constant(X)), np.maximum(X, 0.0))


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_result_by_another_result_needs_a_split_model(wrap):
    """As for the feature maps of Grad-CAM. docs/limits.md says so."""
    first, second = tf.math.exp, tf.sin
    whole = cg.override_gradients(lambda x: [h := first(x), second(h)], {"Sin": fivefold})
    head = cg.override_gradients(second, {"Sin": fivefold})

    @wrap
    def gradients(x, dy):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            maps, scores = whole(x)
            split_maps = first(x)
            split_scores = head(split_maps)
        by_result = tape.gradient(scores, maps, dy)
        return by_result is None, tape.gradient(split_scores, split_maps, dy), tape.gradient(split_scores, x, dy)

    is_none, by_maps, by_x = gradients(tf.constant(X), tf.constant(DY))
    assert is_none
    np.testing.assert_allclose(by_maps, 5.0 * DY, rtol=1e-12)
    np.testing.assert_allclose(by_x, 5.0 * DY * np.exp(X), rtol=1e-12)
