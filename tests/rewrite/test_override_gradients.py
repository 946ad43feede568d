"""override_gradients keeps the value, bit for bit, and uses the rules for some of the ops."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from ..support.modes import RUNS, assert_all_close, tape_vjp
from ..support.observed import new_objects_alone
from ..support.saved_models import in_a_loop
from ..support.tensors import pairs

X, DY = np.array([-1.5, 0.5, 2.0]), np.array([1.0, 10.0, -3.0])


def fivefold(op, dy):
    return 5.0 * dy


def by_tape(op, dy):
    (x,) = op.inputs
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(x)
    return tape.gradient(y, x, output_gradients=dy)


def assert_overridden(function, plain, dx, x=X, dy=DY):
    y, (gradient,) = tape_vjp(function, [tf.constant(x)], tf.constant(dy))
    np.testing.assert_array_equal(y, plain(tf.constant(x)))
    np.testing.assert_allclose(gradient, dx, rtol=1e-12)


def of_the_loop(op, *dys):
    return [7.0 * dy if x.dtype == tf.float64 else None for x, dy in zip(op.inputs, dys, strict=True)]


def of_the_last_input(op, *dys):
    return [*[None] * (len(op.inputs) - 1), 7.0 * dys[0]]


def of_the_parts(op, *dys):
    return [None, tf.concat([2.0 * dys[0], 0.0 * dys[1], 4.0 * dys[2]], 0)]


def of_three_parts(x):
    first, _, last = tf.split(x, 3)
    return tf.concat([first, last, last], 0)


halved = cg.custom_gradient(lambda x: (tf.identity(x), lambda dy: 0.5 * dy))


def scanned(x):
    """Each of the three steps halves the gradient of what came before it."""
    xs = tf.exp(x)
    return cg.scan(lambda carry, t: (halved(carry) + t, carry), xs[0], xs)[0] * tf.ones_like(x)


called, sine = tf.function(tf.sin), {"Sin": fivefold}
# A function, rules, and the gradient.
CASES = {
    "compiled function": (tf.function(lambda x: tf.sin(x), jit_compile=True), sine, 5.0 * DY),
    "loop in a loop": (in_a_loop(in_a_loop(tf.sin)), sine, 5.0**9 * DY),
    "function in a loop": (in_a_loop(called), sine, 125.0 * DY),
    "cond": (lambda x: tf.cond(x[0] < 0.0, lambda: tf.sin(x), lambda: x), sine, 5.0 * DY),
    "switch_case": (lambda x: tf.switch_case(tf.size(x) - 2, [lambda: x, lambda: tf.sin(x)]), sine, 5.0 * DY),
    "loop in a cond": (lambda x: tf.cond(x[0] < 0.0, lambda: in_a_loop(tf.sin)(x), lambda: x), sine, 125.0 * DY),
    "vectorized_map": (lambda x: tf.vectorized_map(tf.sin, x), sine, 5.0 * DY),
    "a recomputed function": (cg.recompute_grad(tf.sin), {"CustomGradientRule": of_the_last_input}, 7.0 * DY),
    "a scan": (scanned, {"Exp": fivefold}, 5.0 * DY.sum() * np.array([0.25 + 0.125, 0.5, 1.0])),
    # Rules that differentiate with a tape. The op of a branch or loop can read a Tensor from outside.
    "tape": (tf.sign, {"Sign": by_tape}, DY / np.cosh(X) ** 2),
    "tape, branch": (
        lambda x: tf.cond(x[0] < 0.0, lambda: tf.sign(x), lambda: x),
        {"Sign": by_tape},
        DY / np.cosh(X) ** 2,
    ),
    "tape, loop": (
        lambda x: tf.while_loop(lambda i, y: i < 1, lambda i, y: (i + 1, y + tf.sign(x)), (0, 0.0 * x))[1],
        {"Sign": by_tape},
        DY / np.cosh(X) ** 2,
    ),
    "tape, function": (lambda x: tf.function(lambda: tf.sign(x))(), {"Sign": by_tape}, DY / np.cosh(X) ** 2),
    # Rules for a loop and a call as a whole, and others.
    "loop as a whole": (in_a_loop(tf.sin), {"StatelessWhile": of_the_loop}, 7.0 * DY),
    "call as a whole": (lambda x: 2.0 * called(x), {"PartitionedCall": fivefold}, 10.0 * DY),
    "several outputs": (of_three_parts, {"Split": of_the_parts}, [2.0 * DY[0], 0.0, 4.0 * (DY[1] + DY[2])]),
    "a name": (
        lambda x: tf.sin(x, name="outer/inner/first") + tf.sin(x),
        {"inner/first": fivefold},
        DY * (5.0 + np.cos(X)),
    ),
    "a type before elementwise": (
        lambda x: tf.exp(tf.sin(x)),
        {cg.rules.elementwise: cg.rules.pass_through, "Sin": fivefold},
        5.0 * DY,
    ),
    "a name before elementwise": (
        lambda x: tf.sin(tf.sin(x), name="inner/first"),
        {cg.rules.elementwise: cg.rules.pass_through, "inner/first": fivefold},
        5.0 * DY,
    ),
    "a predicate": (lambda x: tf.sin(x) + tf.cos(x), {lambda op: op.type in ("Sin", "Cos"): fivefold}, 10.0 * DY),
}


@pytest.mark.core
@pytest.mark.parametrize(("case", "mode"), pairs(CASES, ["eager", "traced"]))
def test_the_rules_count_in_each_place(case, mode):
    function, rules, dx = CASES[case]
    overridden = cg.override_gradients(function, rules)
    assert_overridden(tf.function(overridden) if mode == "traced" else overridden, function, dx)


class Doubled(tf.Module):
    """A function with a variable, in each form that override_gradients takes."""

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


FORMS = {
    "method": lambda model: model.method,
    "tf_function": lambda model: model.traced,
    "concrete_function": lambda model: model.traced.get_concrete_function(),
    "function_of_functions": lambda model: lambda x: model.traced(x),
}


@pytest.mark.core
@pytest.mark.parametrize("form", FORMS)
def test_variables_are_shared_and_have_gradients_and_a_trace_is_used_again(form):
    model = Doubled()
    model.traced(tf.constant(X))
    overridden = cg.override_gradients(FORMS[form](model), sine)
    for factor in (1.0, 2.0):
        model.w.assign(factor * np.array([2.0, 3.0, -1.0]))
        with tf.GradientTape() as tape:
            y = overridden(tf.constant(X))
        np.testing.assert_array_equal(y, np.sin(X) * model.w)
        np.testing.assert_allclose(tape.gradient(y, model.w, output_gradients=tf.constant(DY)), np.sin(X) * DY)
        assert_overridden(overridden, model.method, 5.0 * DY * model.w)
        tf.function(overridden)(tf.constant(X))
    (watched,) = tape.watched_variables()
    assert watched is model.w
    assert model.traces == 1


def test_the_function_itself_stays_as_it_is_and_nothing_is_registered():
    from tensorflow.python.framework import ops  # Tests look inside.

    before, overridden = set(ops.gradient_registry.list()), cg.override_gradients(called, sine)
    assert_overridden(overridden, called, 5.0 * DY)
    assert_overridden(called, called, np.cos(X) * DY)
    assert_overridden(cg.recompute_grad(overridden), called, 5.0 * DY)
    assert_overridden(cg.override_gradients(called, {"Sin": lambda op, dy: dy}), called, DY)
    assert set(ops.gradient_registry.list()) == before
    # A wrong rule costs nothing until you compute a gradient.
    wrong = cg.override_gradients(tf.nn.relu, {"Relu": lambda op, dy: [dy, dy]})
    np.testing.assert_array_equal(wrong(tf.constant(X)), np.maximum(X, 0.0))


def test_the_first_matching_rule_counts():
    rules = {lambda op: op.type == "Sin": fivefold, "Sin": lambda op, dy: 0.0 * dy}
    with pytest.raises(ValueError, match="got 'Sin', whose ops all have the rule for the predicate '<lambda>'"):
        cg.override_gradients(tf.sin, rules)(tf.constant(X))
    assert_overridden(cg.override_gradients(tf.sin, rules, unmatched="ignore"), tf.sin, 5.0 * DY)


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


def test_an_op_with_several_inputs_has_a_gradient_for_each():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4) - 5.0
    dy = np.random.default_rng(1).normal(size=[2, 4])

    def rule(op, dy):
        x, y = op.inputs
        return 2.0 * tf.matmul(dy, y, transpose_b=True), 3.0 * tf.matmul(x, dy, transpose_a=True)

    overridden = cg.override_gradients(tf.matmul, {"MatMul": rule})
    z, (da, db) = tape_vjp(lambda x, y: overridden(x, b=y), [tf.constant(a), tf.constant(b)], tf.constant(dy))
    assert_all_close([z, da, db], [a @ b, 2.0 * dy @ b.T, 3.0 * a.T @ dy])


def test_integer_inputs_have_no_gradient_and_sliced_gradients_stay_sliced():
    table, dy = tf.Variable(np.arange(12.0).reshape(4, 3)), np.stack([DY, 2 * DY])

    def rule(op, dy):
        rows = tf.shape(op.inputs[0], out_type=tf.int64)
        return [tf.IndexedSlices(10.0 * dy, op.inputs[1], rows), None, None]

    overridden = cg.override_gradients(lambda i: tf.gather(tf.identity(table), i), {"GatherV2": rule})
    with tf.GradientTape() as tape:
        y = overridden(tf.constant([2, 0]))
    gradient = tape.gradient(y, table, output_gradients=tf.constant(dy))
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), [20 * DY, 0 * DY, 10 * DY, 0 * DY])


def test_a_rule_for_a_read_of_a_variable():
    w = tf.Variable(X)
    overridden = cg.override_gradients(lambda x: x * w, {"ReadVariableOp": fivefold})
    with tf.GradientTape() as tape:
        y = overridden(tf.constant(X))
    np.testing.assert_allclose(tape.gradient(y, w, output_gradients=tf.constant(DY)), 5.0 * X * DY)


@pytest.mark.core
@pytest.mark.parametrize(("library", "mode"), [(keras, "traced"), (tf_keras, "eager"), (keras, "jit")])
def test_keras_models(library, mode):
    library.utils.set_random_seed(2)
    model = library.Sequential(
        [library.layers.Input([5]), library.layers.Dense(4, activation="relu"), library.layers.Dense(2)]
    )
    overridden = cg.override_gradients(model, {"Relu": cg.rules.guided})
    rng = np.random.default_rng(3)
    x, dy = (rng.normal(size=shape).astype(np.float32) for shape in ([6, 5], [6, 2]))
    variables = [weight.value if library is keras else weight for weight in model.trainable_weights]
    run = RUNS[mode](lambda x: tape_vjp(lambda x, *_: overridden(x), [x, *variables], tf.constant(dy)))
    y, (dx, dw, db, _, _) = run(tf.constant(x))
    w1, b1, w2, _ = (np.asarray(weight, np.float64) for weight in model.get_weights())
    upstream = dy @ w2.T
    upstream = upstream * (upstream > 0) * (x @ w1 + b1 > 0)
    assert_all_close([dx, dw, db], [upstream @ w1.T, x.T @ upstream, upstream.sum(0)], rtol=1e-4, atol=1e-6)
    if mode != "jit":
        np.testing.assert_array_equal(y, model(x))


def test_a_keras_model_follows_its_training_flag_and_gets_layers_later():
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dropout(0.5), keras.layers.ReLU()])
    overridden = cg.override_gradients(model, {"Relu": cg.rules.guided})
    x = tf.ones([64, 3])
    for training in (None, False):
        np.testing.assert_array_equal(overridden(x, training=training), x)
    assert np.unique(overridden(x, training=True)).tolist() == [0.0, 2.0]
    model.add(keras.layers.Rescaling(3.0))
    np.testing.assert_array_equal(overridden(x), 3.0 * x)


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


def test_traces_go_with_their_object_though_a_rule_refers_to_it():
    class RuleOfItsObject:
        def __init__(self):
            self.w = tf.Variable(X)
            self.functions = [cg.override_gradients(f, {"Relu": self.rule}) for f in (self.plain, tf.nn.relu)]

        def plain(self, x):
            return tf.nn.relu(self.w * x)

        def rule(self, op, dy):
            return dy * self.w

    with new_objects_alone():
        model = RuleOfItsObject()
        for function in model.functions:
            tape_vjp(function, [tf.constant(X)], tf.constant(DY))
        gone = weakref.ref(model)
        del model, function
        for _ in range(3):
            gc.collect()
        assert gone() is None


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_a_result_by_another_result_needs_a_split_model(mode):
    """As for the feature maps of Grad-CAM. docs/limits.md says so."""
    first, second = tf.math.exp, tf.sin
    whole = cg.override_gradients(lambda x: [h := first(x), second(h)], {"Sin": fivefold})
    head = cg.override_gradients(second, {"Sin": fivefold})

    @RUNS[mode]
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
