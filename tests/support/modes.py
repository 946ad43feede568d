"""The modes in which TensorFlow runs a function, to compare first and second derivatives or vector-Jacobian products."""

import dataclasses
import functools
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from .processes import run_python
from .sources import ROOT

# Ways to run a function of Tensors.
RUNS = {"eager": lambda f: f, "traced": tf.function, "jit": functools.partial(tf.function, jit_compile=True)}


def first_and_second_order(function, x, dy):
    """The value, dx for the upstream dy, and the gradient of sum(dx * dy) by x (zeros if it does not depend on x)."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            value = function(x)
        dx = inner.gradient(value, x, output_gradients=dy)
        weighted = tf.reduce_sum(dx * dy)
    second = outer.gradient(weighted, x, unconnected_gradients="zero")
    return [tf.convert_to_tensor(t) for t in (value, dx, second)]


def derivative(function):
    """The gradient of a function's value, as a function."""

    def df(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return df


def eager_orders(function, x, dy):
    return [t.numpy() for t in first_and_second_order(function, tf.constant(x), tf.constant(dy))]


def traced_orders(function, x, dy, **options):
    run = tf.function(lambda x, dy: first_and_second_order(function, x, dy), autograph=False, **options)
    return [t.numpy() for t in run(tf.constant(x), tf.constant(dy))]


def around_traced_orders(function, x, dy):
    """The tapes are outside of the tf.function."""
    return eager_orders(tf.function(function), x, dy)


def unknown_shape_orders(function, x, dy):
    return traced_orders(function, x, dy, input_signature=[tf.TensorSpec([None], tf.float64)] * 2)


def jit_orders(function, x, dy):
    return traced_orders(function, x, dy, jit_compile=True)


def tf1_orders(function, x, dy):
    with tf.Graph().as_default():
        fed_x, fed_dy = (tf.compat.v1.placeholder(tf.float64, a.shape) for a in (x, dy))
        value = function(fed_x)
        (dx,) = tf.gradients(value, fed_x, grad_ys=fed_dy)
        (second,) = tf.gradients(tf.reduce_sum(dx * fed_dy), fed_x, unconnected_gradients="zero")
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run([value, dx, second], {fed_x: x, fed_dy: dy})


MODES = {
    "eager": eager_orders,
    "traced": traced_orders,
    "around_traced": around_traced_orders,
    "unknown_shape": unknown_shape_orders,
    "jit": jit_orders,
    "tf1": tf1_orders,
}


def assert_all_close(actual, expected, rtol=1e-7, atol=0.0):
    """Compares the arrays of two lists pair by pair."""
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=rtol, atol=atol)


def assert_orders(actual, expected):
    assert_all_close(actual, expected, rtol=1e-12, atol=1e-12)


def vjp(compute, sources, dy=None):
    """The value of `compute()`, and its gradients with respect to the sources for the upstream `dy`."""
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = compute()
    return value, tape.gradient(value, sources, output_gradients=dy)


def source_of(arg):
    """What TensorFlow differentiates with respect to: a Tensor, or the variable of Keras's variable or of a layer."""
    arg = getattr(arg, "kernel", arg)
    value = getattr(arg, "value", None)
    return value if isinstance(value, tf.Variable) else arg


def tape_vjp(function, args, dy):
    """The value of `function(*args)` and its gradients for the upstream `dy`; None for arguments that do not matter."""
    return vjp(lambda: function(*args), [source_of(arg) for arg in args], dy)


def gradients(mode, function, sources, dy):
    """The gradients of `function(*sources)` by Tensors and variables, in eager mode, in a tf.function or under XLA."""
    return RUNS[mode](lambda: tape_vjp(function, sources, dy)[1])()


def to_numpy(structure):
    return tf.nest.map_structure(
        lambda t: None if t is None else np.asarray(tf.convert_to_tensor(t).numpy()), structure
    )


def constants(arrays):
    return tf.nest.map_structure(tf.constant, arrays)


# The modes below take a function, its arguments and the upstream gradient. An argument that is a function makes a variable.


def made(args):
    """The arguments, and a function from Tensors in the place of the arrays to the whole list."""
    args = [arg() if callable(arg) else tf.constant(arg) for arg in args]

    def with_tensors(tensors):
        tensors = iter(tensors)
        return [next(tensors) if isinstance(arg, tf.Tensor) else arg for arg in args]

    return args, with_tensors


def tensors_of(args):
    return [arg for arg in args if isinstance(arg, tf.Tensor)]


def eager(function, args, dy):
    return to_numpy(tape_vjp(function, made(args)[0], constants(dy)))


def around_a_function(function, args, dy):
    """The tape is outside of the tf.function."""
    args, with_tensors = made(args)
    traced = tf.function(lambda *tensors: function(*with_tensors(tensors)), autograph=False)
    return to_numpy(tape_vjp(lambda *args: traced(*tensors_of(args)), args, constants(dy)))


def _traced_with(shape_of, **options):
    """Traced for Tensors whose shapes are known as far as `shape_of` tells."""

    def mode(function, args, dy):
        args, with_tensors = made(args)
        tensors, dy = tensors_of(args), constants(dy)

        def spec(tensor):
            return tf.TensorSpec(shape_of(tensor), tensor.dtype)

        specs = tf.nest.map_structure(spec, (tensors, dy))

        @tf.function(input_signature=specs, autograph=False, **options)
        def run(tensors, dy):
            return tape_vjp(function, with_tensors(tensors), dy)

        return to_numpy(run(tensors, dy))

    return mode


def _whole_shape(tensor):
    return tensor.shape


def _rank_alone(tensor):
    return [None] * tensor.shape.rank


traced = _traced_with(_whole_shape)
jit = _traced_with(_whole_shape, jit_compile=True)


def tf1_session(function, args, dy):
    """A TensorFlow 1 graph with placeholders of unknown shape, tf.gradients, and a session."""
    fed = []

    def placeholder(array):
        array = np.asarray(array)
        fed.append((tf.compat.v1.placeholder(array.dtype), array))
        return fed[-1][0]

    with tf.Graph().as_default():
        args = [arg() if callable(arg) else placeholder(arg) for arg in args]
        upstream = tf.nest.map_structure(placeholder, dy)
        value = function(*args)
        gradients = tf.gradients(value, [source_of(arg) for arg in args], grad_ys=upstream)
        fetches = {"value": value} | {str(i): g for i, g in enumerate(gradients) if g is not None}
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            fetched = session.run(fetches, dict(fed))
    return fetched["value"], [fetched.get(str(i)) for i in range(len(args))]


VJP_MODES = {
    "eager": eager,
    "traced": traced,
    "traced_unknown_dims": _traced_with(_rank_alone),
    "traced_unknown_rank": _traced_with(lambda tensor: None),
    "jit": jit,
    "jit_unknown_dims": _traced_with(_rank_alone, jit_compile=True),
    "tf1_session": tf1_session,
}


def tangents_times_dy(function, args, dy):
    """Forward mode: the tangents in each direction of each argument, times dy. Zeros where a tape gives None."""
    args, dy = made(args)[0], constants(dy)
    sources = [source_of(arg) for arg in args]

    def along(source, direction):
        with tf.autodiff.ForwardAccumulator(source, direction) as accumulator:
            value = function(*args)
        tangents = accumulator.jvp(value, unconnected_gradients="zero")
        products = tf.nest.map_structure(lambda t, dy: tf.reduce_sum(tf.convert_to_tensor(t) * dy), tangents, dy)
        return sum(tf.nest.flatten(products)).numpy()

    def gradient(source):
        directions = np.eye(int(np.prod(source.shape))).reshape([-1, *source.shape])
        found = [along(source, tf.constant(each, source.dtype)) for each in directions]
        return np.reshape(found, source.shape)

    return to_numpy(function(*args)), [gradient(source) for source in sources]


@dataclasses.dataclass
class Case:
    """A function, its arguments (an array, or a function that makes a variable), and its gradients for the upstream dy.

    `otherwise` has the modes with another outcome: other gradients, or an error.
    """

    function: Any
    args: list
    gradients: list
    dy: Any
    value: Any = None
    otherwise: dict = dataclasses.field(default_factory=dict)

    def check(self, mode, run):
        """Runs it in a mode, a function of the case, and compares."""
        expected = self.otherwise.get(mode, self.gradients)
        if not isinstance(expected, list):
            with pytest.raises(expected):
                run(self)
            return
        value, found = run(self)
        if self.value is not None:
            assert_all_close(tf.nest.flatten(value), tf.nest.flatten(self.value), rtol=1e-6)
        assert len(found) == len(expected)
        for i, (actual, wanted) in enumerate(zip(found, expected, strict=True)):
            if wanted is None:
                assert actual is None or (mode in ("around", "forward", "reloaded") and not np.any(actual)), i
            else:
                np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-12, err_msg=f"argument {i}")
                assert callable(self.args[i]) or actual.dtype == self.args[i].dtype, i


def _of_case(mode):
    return lambda case: mode(case.function, case.args, case.dy)


# Beside these, `reloaded` in a fresh process.
CASE_MODES = {
    "eager": _of_case(eager),
    "traced": _of_case(traced),
    "around": _of_case(around_a_function),
    "unknown_dims": _of_case(VJP_MODES["traced_unknown_dims"]),
    "jit": _of_case(jit),
    "tf1": _of_case(tf1_session),
    "forward": _of_case(tangents_times_dy),
}


def _wrapped(wrap):
    """Traced, with the function inside of something."""
    return lambda function, x, dy: traced_orders(lambda x: wrap(function, x), x, dy)


def while_loop(function, x):
    return tf.while_loop(lambda i, x: i < 1, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=1)[1]


def cond(function, x):
    return tf.cond(tf.reduce_max(x) > 0, lambda: function(x), lambda: 1000.0 * x)


def switch_case(function, x):
    return tf.switch_case(tf.size(x) // tf.size(x), [lambda: 1000.0 * x, lambda: function(x), lambda: -x])


def scan(function, x):
    return tf.scan(lambda _, element: function(element), x[None], initializer=tf.zeros_like(x))[0]


def map_fn(function, x):
    return tf.map_fn(function, x[None])[0]


def nested_functions(function, x):
    return tf.function(tf.function(function))(x)


def autograph(function, x):
    @tf.function(autograph=True)
    def run(x):
        y = x
        for i in tf.range(2):
            y = function(x) if i == tf.constant(1) else 1000.0 * x
        return y

    return run(x)


def vectorized_map(function, x):
    batch = tf.stack([2.0 * x, x])
    return tf.vectorized_map(function, batch, fallback_to_while_loop=False)[1]


def while_loop_under_xla(function, x, dy):
    return jit_orders(lambda x: while_loop(function, x), x, dy)


def jacobians(function, x, dy):
    """Computes whole Jacobians of the value and of dx with tape.jacobian, then their products with dy."""

    @tf.function(autograph=False)
    def run(x, dy):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = function(x)
            dx = tf.linalg.matvec(inner.jacobian(value, x), dy, transpose_a=True)
        second = outer.jacobian(dx, x, unconnected_gradients="zero")
        return value, dx, tf.linalg.matvec(second, dy, transpose_a=True)

    return [t.numpy() for t in run(tf.constant(x), tf.constant(dy))]


def forward_mode(function, x, dy):
    """Tangents of the value and of dx (forward over reverse) in each direction, with ForwardAccumulator."""
    x, dy = tf.constant(x), tf.constant(dy)

    @tf.function(autograph=False)
    def along(direction):
        with tf.autodiff.ForwardAccumulator(x, direction) as accumulator:
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = function(x)
            dx = tape.gradient(value, x, output_gradients=dy)
        tangents = [accumulator.jvp(t, unconnected_gradients="zero") for t in (value, dx)]
        return value, *tangents

    columns = [along(direction) for direction in tf.unstack(tf.eye(x.shape[0], dtype=x.dtype))]
    value = columns[0][0].numpy()
    jacobian, jacobian_of_dx = (np.stack([column[i].numpy() for column in columns], axis=1) for i in (1, 2))
    return value, dy.numpy() @ jacobian, dy.numpy() @ jacobian_of_dx


def forward_mode_eager(function, x, dy):
    tf.config.run_functions_eagerly(True)
    try:
        return forward_mode(function, x, dy)
    finally:
        tf.config.run_functions_eagerly(False)


def dataset_map(function, x, dy):
    """The pipeline computes value and gradients."""
    dataset = tf.data.Dataset.from_tensors((x, dy)).map(lambda x, dy: tuple(first_and_second_order(function, x, dy)))
    return [t.numpy() for t in next(iter(dataset))]


GRAPH_MODES = {
    "nested_functions": _wrapped(nested_functions),
    "while_loop": _wrapped(while_loop),
    "while_loop_under_xla": while_loop_under_xla,
    "cond": _wrapped(cond),
    "switch_case": _wrapped(switch_case),
    "scan": _wrapped(scan),
    "map_fn": _wrapped(map_fn),
    "autograph": _wrapped(autograph),
    "vectorized_map": _wrapped(vectorized_map),
    "jacobians": jacobians,
    "forward_mode": forward_mode,
    "forward_mode_eager": forward_mode_eager,
    "dataset_map": dataset_map,
}


def run_in_a_fresh_process(model, tasks, folder):
    """Saves and loads; for each function in `tasks`, what `reload.py` found, or the text of an error.

    A task has the arguments and the upstream gradients (an argument that is a string names a variable of the model), or x,
    dy and the names of modes.
    """
    tf.saved_model.save(model, folder / "model")
    (folder / "tasks").write_bytes(pickle.dumps(tasks))
    program = pathlib.Path(__file__).with_name("reload.py").read_text()
    arguments = folder / "model", folder / "tasks", folder / "results"
    run_python(program, *arguments, cwd=folder, environment={"PYTHONPATH": str(ROOT)})
    return pickle.loads((folder / "results").read_bytes())


def orders_in_a_fresh_process(functions, x, dy, folder):
    """Saves and loads functions of x, each with modes. For each, value, first and second derivatives by mode."""
    model, tasks = tf.Module(), {}
    for number, (function, modes) in enumerate(functions.values()):
        traced = tf.function(function, input_signature=[tf.TensorSpec(x.shape, x.dtype)])
        setattr(model, f"f{number}", traced)
        # The variables that the function reads.
        setattr(model, f"f{number}_variables", traced.get_concrete_function().variables)
        tasks[f"f{number}"] = x, dy, modes
    found = run_in_a_fresh_process(model, tasks, folder)
    return {name: found[f"f{number}"] for number, name in enumerate(functions)}


def vjp_in_a_fresh_process(model, arguments, dy, folder):
    """Saves and loads; returns the values of `model.f`, its gradients by the arguments and by `model.v`, and `model.v`."""
    tasks = {"f": ([*map(np.asarray, arguments), "v"], list(map(np.asarray, dy)))}
    values, gradients, variables = run_in_a_fresh_process(model, tasks, folder)["f"]
    floats = [
        g for g, arg in zip(gradients, tasks["f"][0], strict=True) if isinstance(arg, str) or arg.dtype.kind == "f"
    ]
    return [*values, *floats, *variables]


tf1 = tf.compat.v1


def with_built_in_kernels(graph_def):
    """The same graph, functions included, in which our ops use the kernel that calls TensorFlow's own operations."""
    changed = tf1.GraphDef()
    changed.CopyFrom(graph_def)
    for nodes in (changed.node, *(function.node_def for function in changed.library.function)):
        for node in nodes:
            if node.op == "CustomGradientEmbedGrad":
                node.attr["_kernel"].s = b"built_in"
    assert changed != graph_def, "no op to change"
    return changed


def built_in_session(graph, **config):
    """A session of the changed graph, in which tensors have the names that they have in `graph`."""
    changed = tf.Graph()
    with changed.as_default():
        tf.graph_util.import_graph_def(with_built_in_kernels(graph.as_graph_def()), name="")
    return tf1.Session(graph=changed, config=tf1.ConfigProto(**config))


def built_in_function(function, specs):
    """A function with the kernels changed, which eager mode can call."""
    traced = tf.function(function, input_signature=specs, autograph=False).get_concrete_function()
    graph_def = with_built_in_kernels(traced.graph.as_graph_def())
    names = [tensor.name for tensor in traced.inputs]

    def call(*inputs):
        feeds = dict(zip(names, inputs, strict=True))
        return tf.graph_util.import_graph_def(graph_def, feeds, [traced.outputs[0].name])[0]

    return tf1.wrap_function(call, specs)
