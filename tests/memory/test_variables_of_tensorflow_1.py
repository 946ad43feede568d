"""Variables that `tf.compat.v1.get_variable` makes in a function that eager mode traces."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

v1 = tf.compat.v1
X = tf.constant([1.0, 2.0, 3.0])
DY = tf.constant([1.0, 10.0, -3.0])


def make(name, initial=2.0):
    with v1.variable_scope("inner"):
        return v1.get_variable(name, [3], initializer=v1.constant_initializer(initial), use_resource=True)


def times_w(x):
    return x * make("w")


def new_function(f=times_w):
    """Variables belong to the function that is decorated."""
    return lambda x: f(x)


def default_names(x):
    for _ in range(2):
        with v1.variable_scope(None, default_name="layer"):
            x = x * v1.get_variable("w", [3], initializer=v1.constant_initializer(2.0))
    return x


def scanned(f):
    def step(carry, _):
        return f(carry), None

    return lambda x: cg.scan(step, x, length=1)[0]


def looped(f):
    def body(y):
        return (f(y),)

    return lambda x: cg.while_loop(always, body, (x,), maximum_iterations=1)[0]


def always(y):
    return True


KINDS = {
    "recompute_grad": cg.recompute_grad,
    "override_gradients": lambda f: cg.override_gradients(f, {"Mul": cg.rules.built_in}),
    "scan": scanned,
    "while_loop": looped,
}
kinds = pytest.mark.parametrize("decorate", KINDS.values(), ids=KINDS)


@pytest.fixture(autouse=True, params=["scopes of eager mode", "scopes of a graph"])
def scopes(request):
    """TensorFlow stores scopes differently depending on where the first one was made."""
    graph = v1.get_default_graph()
    for collection in (("__variable_store",), ("__varscope",)):
        graph.clear_collection(collection)
    if request.param == "scopes of a graph":
        tf.function(lambda: v1.get_variable_scope().name)()
    yield
    for collection in (("__variable_store",), ("__varscope",)):
        graph.clear_collection(collection)


def run(function, x=X, dy=DY):
    """The value, the variables that were read, and the gradients with respect to x and them."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    variables = tape.watched_variables()
    return y, variables, tape.gradient(y, [x, *variables], output_gradients=dy)


def assert_times(found, w):
    y, (variable,), (dx, dw) = found
    np.testing.assert_allclose(y, X * w)
    np.testing.assert_allclose(dx, DY * w)
    np.testing.assert_allclose(dw, DY * X)
    assert variable.trainable


@kinds
def test_a_variable_is_made_once_and_can_be_trained(decorate):
    function = decorate(new_function())
    first = run(function)
    assert_times(first, 2.0)
    (variable,) = first[1]
    assert variable.name == "inner/w:0"
    variable.assign([5.0, 5.0, 5.0])
    second = run(function)
    assert_times(second, 5.0)
    assert second[1][0] is variable


@kinds
def test_the_store_of_all_graphs_stays_as_it_was(decorate):
    run(decorate(new_function()))
    assert_times(run(times_w), 2.0)
    assert v1.global_variables() == []
    assert_times(run(decorate(new_function())), 2.0)


@kinds
def test_a_trace_for_another_signature_has_the_variables_of_the_first(decorate):
    function = decorate(new_function())
    (variable,) = run(function)[1]
    for size in (1, 2):
        y, found, gradients = run(function, tf.ones([size, 3]), tf.ones([size, 3]))
        assert found[0] is variable
        np.testing.assert_allclose(y, 2.0 * np.ones([size, 3]))
        np.testing.assert_allclose(gradients[1], [size] * 3)


@kinds
def test_scopes_with_default_names(decorate):
    function = decorate(new_function(default_names))
    for x in (X, tf.ones([2, 3]), X):
        y, variables, _ = run(function, x, tf.ones_like(x))
        np.testing.assert_allclose(y, 4.0 * x)
        assert [variable.name for variable in variables] == ["layer/w:0", "layer_1/w:0"]


@kinds
def test_each_scope_and_each_function_has_its_own_variables(decorate):
    functions = [decorate(new_function()), decorate(new_function())]
    found = {}
    for _ in range(2):
        for name in ("a", "b"):
            for number, function in enumerate(functions):
                with v1.variable_scope(name):
                    (variable,) = run(function)[1]
                assert variable.name == f"{name}/inner/w:0"
                assert found.setdefault((name, number), variable) is variable
    assert len({id(variable) for variable in found.values()}) == 4


@kinds
def test_a_template_keeps_the_variables(decorate):
    function = decorate(new_function())
    templates = [v1.make_template("template", function), v1.make_template("template", function)]
    for template in templates * 2:
        found = run(template)
        assert_times(found, 2.0)
        assert [id(variable) for variable in template.variables] == [id(found[1][0])]
    assert len({id(template.variables[0]) for template in templates}) == 2


def test_recompute_grad_reads_the_same_variable_with_and_without_a_tape():
    function = cg.recompute_grad(new_function())
    (variable,) = run(function)[1]
    variable.assign([5.0, 5.0, 5.0])
    np.testing.assert_allclose(function(X), 5.0 * X)


def test_a_function_that_is_decorated_again_has_its_variable():
    function = new_function()
    (variable,) = run(cg.recompute_grad(function))[1]
    assert run(cg.recompute_grad(function))[1][0] is variable


def test_a_method_reads_the_same_variable_with_and_without_a_tape():
    class Model:
        @cg.recompute_grad
        def call(self, x):
            return times_w(x)

    models = [Model(), Model()]
    for number, model in enumerate(models):
        run(model.call)[1][0].assign([number, number, number])
    for number, model in enumerate(models):
        np.testing.assert_allclose(model.call(X), number * X)


@kinds
def test_a_custom_getter_is_heeded(decorate):
    function = decorate(new_function())
    (variable,) = run(function)[1]

    def doubled(getter, *args, **kwargs):
        return 2.0 * getter(*args, **kwargs)

    with v1.variable_scope(v1.get_variable_scope(), custom_getter=doubled):
        y, found, (_, dw) = run(function)
    np.testing.assert_allclose(y, 4.0 * X)
    np.testing.assert_allclose(dw, 2.0 * DY * X)
    assert found[0] is variable
    assert_times(run(function), 2.0)


def test_another_thread_that_makes_variables_meanwhile():
    began, done, made = threading.Event(), threading.Event(), []

    def meanwhile():
        began.wait(30)
        made.append(make("w", 7.0))
        done.set()

    def function(x):
        y = times_w(x)
        began.set()
        done.wait(30)
        return y

    thread = threading.Thread(target=meanwhile)
    thread.start()
    found = run(cg.recompute_grad(function))
    thread.join()
    assert_times(found, 2.0)
    np.testing.assert_allclose(made[0], [7.0] * 3)


def test_tensorflow_itself_breaks_its_store():
    """If this fails, `tf.function` was fixed, and our traces in eager mode can do the same."""
    with v1.variable_scope("outer", reuse=v1.AUTO_REUSE):
        tf.function(times_w)(X)
        with pytest.raises(AttributeError, match=r"Tensor\.op is undefined"):
            times_w(X)
