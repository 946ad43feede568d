"""capture: values inside a function, and derivatives by them, in every mode and for every kind of place."""

import functools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import ALL_MODES, MODES, VJP_MODES

X = np.array([-1.3, 0.4, 2.0])
DY = np.array([1.0, -2.5, 0.3])


def function(x):
    hidden = tf.square(x, name="hidden")
    return tf.sin(hidden) * hidden + x * tf.sin(x)


PLACES = {"hidden": "hidden", "sines": lambda op: op.type == "Sin"}
inner = cg.capture(function, PLACES)


def slopes(x):
    """The derivatives of the value by what is inside, and by the argument."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, values = inner(x)
    sources = [values["hidden"], *values["sines"], x]
    return tf.stack(tape.gradient(y, sources, output_gradients=tf.constant(DY, x.dtype)))


def slopes_by_hand(x):
    h = x**2
    by_hidden = np.cos(h) * h + np.sin(h)
    found = [by_hidden, h, x, by_hidden * 2 * x + np.sin(x) + x * np.cos(x)]
    by_x = [(2 * np.cos(h) - h * np.sin(h)) * 2 * x, 2 * x, np.ones_like(x)]
    by_x.append(by_x[0] * 2 * x + 2 * by_hidden + 2 * np.cos(x) - x * np.sin(x))
    return DY * found, DY * by_x


# Of the modes that differentiate the gradient once more.
@pytest.mark.parametrize("name", MODES)
def test_derivatives_by_values_inside(name):
    upstream = np.cos(np.arange(12.0)).reshape(4, 3)
    value, (gradient,) = ALL_MODES[name].vjp(slopes, [X], upstream)
    expected, by_x = slopes_by_hand(X)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, np.sum(upstream * by_x, 0), rtol=1e-12)


@pytest.mark.parametrize("name", VJP_MODES)
def test_a_given_value_takes_the_place_of_the_one_inside(name):
    def with_given(given):
        return inner(given[0], hidden=given[1], sines=[None, given[2]])[0]

    hidden, sine = np.array([0.2, -0.7, 1.1]), np.array([3.0, 0.5, -1.0])
    value, (gradient,) = ALL_MODES[name].vjp(with_given, [np.stack([X, hidden, sine])], DY)
    np.testing.assert_allclose(value, np.sin(hidden) * hidden + X * sine, rtol=1e-12)
    expected = [sine, np.cos(hidden) * hidden + np.sin(hidden), X]
    np.testing.assert_allclose(gradient, DY * expected, rtol=1e-12)


def with_two_outputs(x):
    a, b = tf.split(x, [1, 2], name="parts")
    return tf.concat([3.0 * a, b * b], 0)


def in_a_scope(x):
    with tf.name_scope("outer"), tf.name_scope("block"):
        doubled = 2.0 * tf.reshape(x, tf.shape(x))
    return tf.sin(doubled)


@cg.custom_gradient
def with_own_gradient(x):
    return tf.multiply(tf.multiply(x, x, name="own"), 2.0), lambda dy: 7.0 * dy


WEIGHTS = tf.Variable([2.0, -1.0, 0.5], dtype=tf.float64)


def reading(x):
    return tf.exp(tf.multiply(x, WEIGHTS, name="product"))


# The function, a place, whether it is inside of a gradient, the value there, and the derivative by it for DY.
KINDS = {
    "an op": (function, "hidden", False, X**2, DY * (np.cos(X**2) * X**2 + np.sin(X**2))),
    "an output": (with_two_outputs, "parts:1", False, X[1:], DY[1:] * 2 * X[1:]),
    "a scope": (in_a_scope, "block", False, 2 * X, DY * np.cos(2 * X)),
    "a whole scope": (in_a_scope, "outer/block", False, 2 * X, DY * np.cos(2 * X)),
    "in a function": (tf.function(function), "hidden", False, X**2, DY * (np.cos(X**2) * X**2 + np.sin(X**2))),
    "in a called function": (
        lambda x: -tf.function(in_a_scope)(x),
        "block",
        False,
        2 * X,
        -DY * np.cos(2 * X),
    ),
    "what is returned": (lambda x: tf.identity(tf.sin(x), name="end"), "end", False, np.sin(X), DY),
    "inside a gradient": (with_own_gradient, "own", True, X * X, DY * 2),
    "inside TensorFlow's": (tf.nn.silu, "Sigmoid", True, 1 / (1 + np.exp(-X)), DY * X),
    "inside a recomputation": (cg.recompute_grad(in_a_scope), "block", True, 2 * X, DY * np.cos(2 * X)),
    "with a rule": (
        cg.override_gradients(in_a_scope, {"Mul": lambda op, dy: [None, 5.0 * dy]}),
        "block",
        False,
        2 * X,
        DY * np.cos(2 * X),
    ),
    "a result with a gradient": (with_own_gradient, "Mul", False, 2 * X * X, DY),
    "with a variable": (reading, "product", False, X * [2, -1, 0.5], DY * np.exp(X * [2, -1, 0.5])),
}


@pytest.mark.parametrize("mode", ["eager", "traced", "jit", "saved"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_place(kind, mode, tmp_path):
    f, place, inside, expected, slope = KINDS[kind]
    captured = cg.capture(f, {"value": place}, inside=inside)

    def step(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, values = captured(x)
        return y, values["value"], *tape.gradient(y, [values["value"], x], output_gradients=dy)

    if mode == "saved":
        module = tf.Module()
        module.w, module.step = WEIGHTS, tf.function(step, [tf.TensorSpec([3], tf.float64)] * 2)
        tf.saved_model.save(module, tmp_path)
        loaded = tf.saved_model.load(tmp_path)
        step = loaded.step
    else:
        step = {"eager": lambda f: f, "traced": tf.function, "jit": functools.partial(tf.function, jit_compile=True)}[
            mode
        ](step)
    y, value, by_value, by_x = step(tf.constant(X), tf.constant(DY))
    np.testing.assert_allclose(y, f(tf.constant(X)), rtol=1e-12)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(by_value, slope, rtol=1e-12)
    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(X))
        plain = f(x)
    if kind != "inside a gradient":  # Which loses that gradient.
        np.testing.assert_allclose(by_x, tape.gradient(plain, x, output_gradients=DY), rtol=1e-12)


class Twice(keras.layers.Layer):
    """A layer that a functional model does not see."""

    def __init__(self):
        super().__init__(name="twice")
        self.inside = keras.layers.Dense(4, activation="tanh", name="inside")

    def call(self, x):
        return 2.0 * self.inside(x)


def models(package):
    layers = package.layers
    nested = package.Sequential([layers.Input([4]), layers.Dense(4, activation="relu", name="deep")], name="nested")
    given = layers.Input([3])
    x = layers.Dense(4, activation="tanh", name="first")(given)
    return package.Model(given, layers.Dense(2, name="last")(layers.Add(name="sum")([nested(x), x])))


@pytest.mark.parametrize("name", ["first", "nested", "deep", "sum", "last"])
def test_a_layer_of_a_model(library, name):
    library.utils.set_random_seed(0)
    model = models(library)
    x, dy = tf.constant(np.random.default_rng(1).normal(size=[5, 3]), tf.float32), tf.constant(np.eye(5, 2), tf.float32)
    captured = cg.capture(model, [name])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y, values = captured(x)
        weights = [weight.value if library is keras else weight for weight in model.trainable_weights]
        return y, values[name], tape.gradient(y, [values[name], *weights], output_gradients=dy)

    @tf.function
    def in_two_steps(x):
        """The layers by hand."""
        layer = {each.name: each for each in (*model.layers, *model.get_layer("nested").layers)}
        with tf.GradientTape(persistent=True) as tape:
            values = {"first": layer["first"](x)}
            values["deep"] = values["nested"] = layer["deep"](values["first"])
            values["sum"] = values["deep"] + values["first"]
            values["last"] = layer["last"](values["sum"])
        weights = [weight.value if library is keras else weight for weight in model.trainable_weights]
        return (
            values["last"],
            values[name],
            tape.gradient(values["last"], [values[name], *weights], output_gradients=dy),
        )

    found, expected = step(x), in_two_steps(x)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    assert library.layers.Layer.__call__.__module__.startswith(library.__name__)


def test_a_layer_inside_a_layer_that_was_written_by_hand():
    model = keras.Sequential([keras.layers.Input([3]), Twice(), keras.layers.Dense(2)])
    y, values = cg.capture(model, ["inside", "twice"])(tf.ones([1, 3]))
    np.testing.assert_array_equal(values["twice"], 2.0 * values["inside"])
    np.testing.assert_array_equal(y, model(tf.ones([1, 3])))


def test_a_model_that_is_loaded(tmp_path):
    model = models(keras)
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    x = tf.ones([2, 3])
    _, expected = cg.capture(model, ["deep"])(x)
    for form in (loaded.serve, loaded.signatures["serving_default"]):
        outputs, values = cg.capture(form, {"deep": "deep_1"})(x)
        np.testing.assert_allclose(values["deep"], expected["deep"], rtol=1e-6)
        np.testing.assert_allclose(*tf.nest.flatten(outputs), model(x), rtol=1e-6)


def reversed_by_tensorflow(x):
    return tf.custom_gradient(lambda x: (x, lambda dy: -7.0 * dy))(x)


# Functions with their own gradient, which get the value that is captured.
AFTER = {
    "reverse_gradient": cg.reverse_gradient,
    "tf.custom_gradient": reversed_by_tensorflow,
    "silu": tf.nn.silu,
    "recomputed": cg.recompute_grad(lambda x: tf.sin(x) * x),
    "overridden": cg.override_gradients(tf.sin, {"Sin": lambda op, dy: 5.0 * dy}),
}


@pytest.mark.parametrize("is_loaded", [False, True], ids=["traced", "loaded"])
@pytest.mark.parametrize("name", AFTER)
def test_a_value_before_a_function_with_its_own_gradient(name, is_loaded, tmp_path):
    """Used by it alone, and beside it."""
    after = AFTER[name]
    for f in (lambda h: after(h) * 2.0, lambda h: after(h) * h + h):
        module = tf.Module()
        module.f = tf.function(lambda x: f(tf.exp(x, name="h")), [tf.TensorSpec([None], tf.float64)])  # noqa: B023
        if is_loaded:
            tf.saved_model.save(module, tmp_path / "model")
            module = tf.saved_model.load(tmp_path / "model")
        captured = cg.capture(module.f, ["h"])
        x = tf.constant(X)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y, values = captured(x)
            plain = f(values["h"])
        found, expected = (tape.gradient(y, values["h"], output_gradients=DY) for y in (y, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(captured(x, h=tf.constant(DY))[0], f(tf.constant(DY)), rtol=1e-12)


def test_a_mask_stays_with_each_value_of_a_layer(library):
    layers = library.layers
    given = layers.Input([None], dtype="int32")
    embedded = layers.Embedding(10, 4, mask_zero=True)(given)
    encoder = library.Model(given, [embedded, layers.Dropout(0.0)(embedded)], name="encoder")
    ids = layers.Input([None], dtype="int32")
    model = library.Model(ids, layers.LSTM(3)(encoder(ids)[0]))
    x = tf.constant([[1, 2, 0, 0], [3, 4, 5, 0]])
    y, values = cg.capture(model, {"first": "encoder:0"})(x)
    np.testing.assert_allclose(y, model(x), rtol=1e-6)
    assert values["first"].shape == (2, 4, 4)


def test_layers_with_default_names_in_any_function():
    """The scope of the first one is dense_1."""
    layers = [keras.layers.Dense(3, name=name) for name in ("dense", "dense_1", "dense_2")]
    model, x = keras.Sequential([keras.layers.Input([3]), *layers]), tf.constant([[1.0, -2.0, 3.0]])
    for f in (model, lambda x: model(x), functools.partial(model, training=False), model.call):
        np.testing.assert_array_equal(cg.capture(f, ["dense_1"])(x)[1]["dense_1"], layers[1](layers[0](x)))


def test_a_scope_with_ops_that_nothing_reads():
    def f(x):
        with tf.name_scope("block"):
            h = tf.sin(x)
            tf.debugging.assert_less(h, 10.0 * tf.ones_like(h))
            tf.print(h[:0])
        return h * x

    np.testing.assert_array_equal(cg.capture(f, ["block"])(tf.constant(X))[1]["block"], np.sin(X))


def test_outputs_have_gradients_by_other_outputs():
    def f(x):
        features = tf.sin(x)
        return features**2, features

    captured = cg.capture(cg.capture(f, {"squares": lambda op: op.type == "Pow"}), ["Sin"])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x := tf.constant(X))
        ((y, features), first), second = captured(x)
    for by in (features, second["Sin"]):
        np.testing.assert_allclose(tape.gradient(y, by, output_gradients=DY), DY * 2 * np.sin(X), rtol=1e-12)
        np.testing.assert_allclose(tape.gradient(first["squares"][0], by), 2 * np.sin(X), rtol=1e-12)


def test_other_threads_use_the_layers_meanwhile():
    layer, errors, done = keras.layers.Dense(3), [], threading.Event()
    model, x = keras.Sequential([keras.layers.Input([3]), layer]), tf.ones([1, 3])
    expected = model(x)

    def use():
        while not done.is_set():
            try:
                np.testing.assert_array_equal(model(x), expected)
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    for _ in range(5):
        cg.capture(model, [layer.name])(x)
    done.set()
    thread.join()
    assert not errors


def test_the_function_runs_once_and_only_what_is_needed():
    calls, counter = [], tf.Variable(0)

    def f(x):
        calls.append(1)
        before = tf.numpy_function(lambda x: runs.append(1) or x, [x], tf.float64, name="expensive")
        counter.assign_add(1)
        return tf.multiply(tf.ensure_shape(before, [3]), 2.0, name="later") + 1.0

    runs = []
    captured = tf.function(cg.capture(f, ["later"]))
    for _ in range(2):
        captured(tf.constant(X))
    assert (len(calls), len(runs), int(counter)) == (1, 2, 2)
    captured(tf.constant(X), later=tf.constant(X))
    # It has a side effect, so it runs; a pure op would not.
    assert int(counter) == 3


def test_what_comes_before_a_given_value_does_not_run():
    captured = cg.capture(lambda x: tf.debugging.check_numerics(tf.math.log(x, name="log"), "bad") * 1.0, ["log"])
    with pytest.raises(tf.errors.InvalidArgumentError):
        captured(tf.constant([0.0]))
    assert float(captured(tf.constant([0.0]), log=[2.0])[0][0]) == 2.0


def test_values_enter_a_loss_and_other_functions():
    def loss(x):
        y, values = inner(x)
        return tf.reduce_sum(DY * y) + tf.reduce_sum(values["hidden"] ** 2)

    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(X))
        value = loss(x)
    expected = slopes_by_hand(X)[0][3] + 4 * X**3
    np.testing.assert_allclose(tape.gradient(value, x), expected, rtol=1e-12)
    overridden = cg.override_gradients(inner, {"Square": lambda op, dy: 0.0 * dy})
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, _ = overridden(x)
    np.testing.assert_allclose(tape.gradient(y, x, output_gradients=DY), DY * (np.sin(X) + X * np.cos(X)), rtol=1e-12)
    (wrong,) = cg.testing.audit(
        cg.capture(lambda x: with_own_gradient(tf.sin(x, name="before")), ["before"]), [x]
    ).wrong
    assert wrong.function == "with_own_gradient"
