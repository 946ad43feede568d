"""The modes: the ways in which TensorFlow runs a function and differentiates it. The tests have no other list of them.

A mode runs code somewhere (`run`), puts the function under test into something (`place`), and differentiates it
(`pull`). Most tests need `Mode.vjp` or `Mode.orders`; tests/same compares any programs.
"""

import dataclasses
import functools
import pathlib
import pickle
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from .processes import run_python
from .sources import ROOT


def to_numpy(structure):
    return tf.nest.map_structure(lambda t: None if t is None else np.asarray(tf.convert_to_tensor(t)), structure)


def constants(arrays):
    return tf.nest.map_structure(tf.constant, arrays)


# How to differentiate: each takes a function, its sources and the upstream gradient, and returns the value and gradients.


def reverse(function, sources, dy=None):
    """With a tape, or with tf.gradients in a graph of TensorFlow 1. None for a source that does not matter."""
    if not tf.executing_eagerly() and not tf.inside_function():
        value = function(*sources)
        return value, tf.gradients(value, sources, grad_ys=dy)
    return vjp(lambda: function(*sources), sources, dy)


def by_jacobians(function, sources, dy):
    """Computes whole Jacobians with tape.jacobian, then their products with the upstream gradient."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        value = function(*sources)
    jacobians = [tape.jacobian(value, source, unconnected_gradients="zero") for source in sources]
    return value, [tf.tensordot(dy, jacobian, dy.shape.rank) for jacobian in jacobians]


def by_tangents(function, sources, dy):
    """Forward mode: the tangents in each direction of each source, times dy. Zeros where a tape gives None."""

    def along(source, direction):
        with tf.autodiff.ForwardAccumulator(source, direction) as accumulator:
            value = function(*sources)
        tangents = accumulator.jvp(value, unconnected_gradients="zero")
        products = tf.nest.map_structure(lambda t, dy: tf.reduce_sum(tf.convert_to_tensor(t) * dy), tangents, dy)
        return sum(tf.nest.flatten(products))

    def gradient(source):
        directions = np.eye(int(np.prod(source.shape))).reshape([-1, *source.shape])
        return tf.reshape([along(source, tf.constant(each, source.dtype)) for each in directions], source.shape)

    return function(*sources), [gradient(source) for source in sources]


# Where to run: each takes what makes a function of Tensors, and its arguments as arrays in any structure.


def in_eager_mode(make, arrays):
    return to_numpy(make()(*constants(arrays)))


def with_functions_run_eagerly(make, arrays):
    tf.config.run_functions_eagerly(True)
    try:
        return in_eager_mode(make, arrays)
    finally:
        tf.config.run_functions_eagerly(False)


def traced_with(shape_of, **options):
    """In a tf.function for Tensors whose shapes are known as far as `shape_of` tells."""

    def run(make, arrays):
        specs = tf.nest.map_structure(lambda a: tf.TensorSpec(shape_of(np.shape(a)), np.asarray(a).dtype), arrays)
        return to_numpy(tf.function(make(), specs, autograph=False, **options)(*constants(arrays)))

    return run


in_a_function = traced_with(tuple)


def in_a_session(make, arrays):
    """In a TensorFlow 1 graph with placeholders of unknown shape."""
    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        compute = make()
        placeholders = tf.nest.map_structure(lambda a: tf1.placeholder(np.asarray(a).dtype), arrays)
        results = compute(*placeholders)
        fetches = [tf.convert_to_tensor(t) for t in tf.nest.flatten(results) if t is not None]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            feeds = dict(zip(tf.nest.flatten(placeholders), tf.nest.flatten(arrays), strict=True))
            fetched = iter(session.run(fetches, feeds))
    return tf.nest.map_structure(lambda t: None if t is None else next(fetched), results)


def in_a_dataset(make, arrays):
    compute, structures = make(), []

    def flat(*tensors):  # A dataset would take a list for one Tensor.
        structures.append(compute(*tensors))
        return tuple(tf.nest.flatten(structures[-1]))

    dataset = tf.data.Dataset.from_tensors(tuple(constants(arrays))).map(flat)
    return to_numpy(tf.nest.pack_sequence_as(structures[-1], next(iter(dataset))))


def for_each_example(make, arrays):
    """In tf.vectorized_map, tapes included. The second member of the batch counts; the first has other numbers."""

    compute = make()

    def run(*tensors):
        batch = tf.nest.map_structure(_batch, list(tensors))
        return tf.vectorized_map(lambda each: compute(*each), batch, fallback_to_while_loop=False)

    return tf.nest.map_structure(lambda t: t[1], traced_with(tuple)(lambda: run, arrays))


def _batch(tensor):
    return tf.stack([2.0 * tensor if tensor.dtype.is_floating else tensor, tensor])


# What to put a function into: each takes a function of Tensors and returns one.


def zeros_of(function, args):
    """Zeros like the value of the function, which is traced once more for that."""
    outputs = tf.function(function, autograph=False).get_concrete_function(*args).structured_outputs
    return tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), outputs)


def in_a_while_loop(function):
    def run(*args):
        body = lambda i, args, _: (i + 1, args, function(*args))  # noqa: E731
        start = (0, args, zeros_of(function, args))
        return tf.while_loop(lambda i, *_: i < 1, body, start, maximum_iterations=1)[2]

    return run


def in_a_branch(function):
    def run(*args):
        zeros = zeros_of(function, args)
        return tf.cond(tf.size(args[0]) > 0, lambda: function(*args), lambda: zeros)

    return run


def in_a_case(function):
    def run(*args):
        zeros = zeros_of(function, args)
        return tf.switch_case(
            tf.size(args[0]) // tf.size(args[0]), [lambda: zeros, lambda: function(*args), lambda: zeros]
        )

    return run


def in_a_scan(function):
    def run(*args):
        elements, zeros = tf.nest.map_structure(lambda t: t[None], args), zeros_of(function, args)
        results = tf.scan(lambda _, each: function(*each), elements, initializer=zeros)
        return tf.nest.map_structure(lambda t: t[0], results)

    return run


def in_map_fn(function):
    def run(*args):
        specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), zeros_of(function, args))
        elements = tf.nest.map_structure(lambda t: t[None], args)
        results = tf.map_fn(lambda each: function(*each), elements, fn_output_signature=specs)
        return tf.nest.map_structure(lambda t: t[0], results)

    return run


def in_autograph(function):
    @tf.function(autograph=True)
    def run(*args):
        y = zeros_of(function, args)
        for i in tf.range(2):
            y = function(*args) if i == tf.constant(1) else y
        return y

    return run


def in_vectorized_map(function):
    """The tapes are outside. The second member of the batch counts; the first has other numbers."""

    def run(*args):
        batch = tf.nest.map_structure(_batch, list(args))
        results = tf.vectorized_map(lambda each: function(*each), batch, fallback_to_while_loop=False)
        return tf.nest.map_structure(lambda t: t[1], results)

    return run


def in_nested_functions(function):
    return tf.function(tf.function(function))


def made(args):
    """The arguments, of which a function makes a variable, and a function from Tensors for the arrays to all arguments."""
    variables = [arg() if callable(arg) else None for arg in args]

    def with_tensors(tensors):
        tensors = iter(tensors)
        return [next(tensors) if variable is None else variable for variable in variables]

    return variables, with_tensors


def source_of(arg):
    """What TensorFlow differentiates with respect to: a Tensor, or the variable of Keras's variable or of a layer."""
    arg = getattr(arg, "kernel", arg)
    value = getattr(arg, "value", None)
    return value if isinstance(value, tf.Variable) else arg


@dataclasses.dataclass(frozen=True)
class Mode:
    run: Callable = in_a_function
    place: Callable = lambda function: function
    pull: Callable = reverse

    def vjp(self, function, args, dy=None):
        """The value of `function(*args)` and its gradients for the upstream `dy`, as arrays.

        An argument that is a function makes a variable. None stands for the gradient of an argument that does not matter.
        """

        def make():
            _, with_tensors = made(args)
            placed = self.place(lambda *tensors: function(*with_tensors(tensors)))

            def compute(tensors, dy):
                args = with_tensors(tensors)
                call = lambda *_: placed(*tensors)  # noqa: E731
                return self.pull(call, [source_of(arg) for arg in args], dy)

            return compute

        return self.run(make, [[arg for arg in args if not callable(arg)], dy])

    def orders(self, function, x, dy):
        """The value, dx for the upstream dy, and the gradient of sum(dx * dy) by x (zeros if it does not depend on x)."""

        def compute(x, dy):
            placed, inner = self.place(function), []

            def slope(x):
                inner[:] = reverse(placed, [x], dy)
                return tf.convert_to_tensor(inner[1][0])

            _, (second,) = self.pull(slope, [x], dy)
            value, (dx,) = inner if self.pull is reverse else self.pull(placed, [x], dy)
            return value, dx, tf.zeros_like(x) if second is None else second

        return self.run(lambda: compute, [x, dy])


def _unknown(shape):
    return [None] * len(shape)


ALL_MODES = {
    "eager": Mode(in_eager_mode),
    "traced": Mode(),
    "around_traced": Mode(in_eager_mode, tf.function),
    "unknown_shape": Mode(traced_with(_unknown)),
    "unknown_rank": Mode(traced_with(lambda shape: None)),
    "jit": Mode(traced_with(tuple, jit_compile=True)),
    "jit_unknown_shape": Mode(traced_with(_unknown, jit_compile=True)),
    "tf1": Mode(in_a_session),
    "nested_functions": Mode(place=in_nested_functions),
    "while_loop": Mode(place=in_a_while_loop),
    "while_loop_under_xla": Mode(traced_with(tuple, jit_compile=True), in_a_while_loop),
    "cond": Mode(place=in_a_branch),
    "switch_case": Mode(place=in_a_case),
    "scan": Mode(place=in_a_scan),
    "map_fn": Mode(place=in_map_fn),
    "autograph": Mode(place=in_autograph),
    "dataset_map": Mode(in_a_dataset),
    "vectorized_map": Mode(place=in_vectorized_map),
    "per_example": Mode(for_each_example),
    "jacobians": Mode(pull=by_jacobians),
    "forward_mode": Mode(pull=by_tangents),
    "forward_mode_eager": Mode(with_functions_run_eagerly, pull=by_tangents),
}


def _all_but(*left_out):
    return [name for name in ALL_MODES if name not in left_out]


# First and second derivatives: with nothing around the function, and with something.
MODES = {name: ALL_MODES[name].orders for name in ("eager", "traced", "around_traced", "unknown_shape", "jit", "tf1")}
GRAPH_MODES = {
    name: ALL_MODES[name].orders for name in _all_but(*MODES, "unknown_rank", "jit_unknown_shape", "per_example")
}
# Vector-Jacobian products of functions of several arguments.
VJP_MODES = {
    name: ALL_MODES[name].vjp
    for name in ("eager", "traced", "unknown_shape", "unknown_rank", "jit", "jit_unknown_shape", "tf1")
}
eager, traced, jit = (VJP_MODES[name] for name in ("eager", "traced", "jit"))
# Ways to run a function of Tensors.
RUNS = {"eager": lambda f: f, "traced": tf.function, "jit": functools.partial(tf.function, jit_compile=True)}


def derivative(function):
    """The gradient of a function's value, as a function."""

    def df(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return df


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


def tape_vjp(function, args, dy):
    """The value of `function(*args)` and its gradients for the upstream `dy`; None for arguments that do not matter."""
    return vjp(lambda: function(*args), [source_of(arg) for arg in args], dy)


def gradients(mode, function, sources, dy):
    """The gradients of `function(*sources)` by Tensors and variables, in eager mode, in a tf.function or under XLA."""
    return RUNS[mode](lambda: tape_vjp(function, sources, dy)[1])()


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
