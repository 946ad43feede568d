"""Wrong calls of embed_gradient, of the ready-made functions and layers, of solvers, and of numpy_function."""

import functools
import types
import unittest.mock

import keras
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .table import INTEGERS, M, Row, X, Y, derive, eager, ones, options


def double(x):
    return 2.0 * x


def f(x):
    return x, lambda dy: dy


WEIGHT = tf.Variable(2.0, name="weight")


# embed_gradient and its forms in compat


def embed(*args, **options):
    return lambda: cg.embed_gradient(*args, **options)


def shapes(fx, gx, x, axis=()):
    """Shapes that do not fit, seen at each moment; without a gradient the op is gone from the graph."""
    return Row(lambda: cg.embed_gradient(ones(*fx), ones(*gx), ones(*x), axis), "eager", "traced")


def shapes_of_gradient(fx, gx, x, axis=()):
    return Row(lambda: derive(lambda x: cg.embed_gradient(ones(*fx), ones(*gx), x, axis), ones(*x)), "unknown")


MISFITS = {
    "no axis for a square x": ([3], [3, 3], [3, 3]),
    "fx too small": ([1, 3], [2, 3], [2, 3]),
    "a scalar fx with more than x": ([], [2, 3], [3], None),
    "keepdims": ([4, 1], [4, 6], [4, 6], [-1]),
    "a Jacobian without an axis": ([3], [3, 3], [3]),
    "sizes that differ": ([3], [4], [4]),
    "an x that differs": ([3], [3], [4]),
    "zero and two": ([0], [2], [2]),
    "a forgotten axis": ([4], [4, 3], [4, 3]),
    "a Jacobian for each example": ([5, 2], [5, 2, 3], [5, 3], [-1]),
    "an axis that is too large": ([3], [3, 2], [3, 2], 2),
    "an axis that is too small": ([3], [3, 2], [3, 2], [0, -3]),
    "the axis of a scalar": ([3], [3], [], 0),
    "an axis twice": ([3], [3, 2], [3, 2], [1, -1]),
}
# The gradient op makes the same texts.
IN_THE_GRADIENT = ["fx too small", "keepdims", "sizes that differ", "an axis that is too large", "an axis twice"]


def axis_at_run_time(*axis, fx=None, gx=M, x=M, dtype=tf.int32, **options):
    """An axis that is not known while tracing."""

    @functools.partial(tf.function, autograph=False, **options)
    def run(axis):
        return cg.embed_gradient(tf.reduce_sum(M, 1) if fx is None else fx, gx, x, axis)

    return eager(lambda: run(tf.constant(axis, dtype)))


def upstream(*shape):
    return lambda: derive(lambda x: cg.embed_gradient(x, x, x), X, dy=tf.ones(shape))


def called(gx, x=X):
    """A gx that is only called when there is a gradient."""
    return lambda: derive(lambda x: cg.embed_gradient(X, gx, x), x)


def vectorized():
    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def run(gx):
        function = lambda x: cg.embed_gradient(2.0 * x, gx, x)  # noqa: E731
        return tf.vectorized_map(function, M, fallback_to_while_loop=False)

    return run(X)


EMBED_GRADIENT = {
    "no gx": embed(f),
    "no fx": embed(),
    "axis alone": embed(axis=-1),
    "no x": embed(X, X, axis=-1),
    **options(
        functools.partial(cg.embed_gradient, **{"fx": X, "gx": X, "x": X}),
        fx=[None, INTEGERS, [[1.0], [1.0, 2.0]]],
        gx=["2 * x", None, tf.cast(X, tf.float64), 1j * np.ones(2), abs],
        x=[INTEGERS, tf.cast(X, tf.float64)],
        axis=[True, np.bool_(False), tf.constant(True), [True], np.array(True), 1.0, tf.constant([1.0]), "all", [[0]]],
        fx_gx_manually_stopped=[1, tf.constant(True)],
    ),
    "a SparseTensor": embed(X, tf.SparseTensor([[0]], [1.0], [2]), X),
    "an object with a dtype": embed(X, types.SimpleNamespace(dtype="nonsense"), X),
    "None in a list": embed(X, [X, None], [X, X]),
    "another dtype in a list": embed(X, [X, X], [X, tf.cast(X, tf.float16)]),
    "a complex array beside a real x": embed(1.0, 1j * np.ones(2), X),
    "integers beside numbers": embed(1.0, 1.0, INTEGERS),
    "dicts": embed(X, {"a": X}, {"a": X}),
    "a dict and a list": embed(X, [X], {"a": X}),
    "a list for x alone": embed(X, X, [X]),
    "a list for gx alone": embed(X, [X, X], X),
    "lists of two lengths": embed(X, (X,), [X, X]),
    "empty lists": embed(X, (), ()),
    "gx returns None": called(lambda: None),
    "gx returns text": called(lambda: "text"),
    "gx returns a list for one x": called(lambda: [X]),
    "gx returns too many": lambda: derive(lambda a, b: cg.embed_gradient(X, lambda: [X, X, X], [a, b]), X, Y),
    "gx returns a function": called(lambda: lambda: X),
    "gx returns another dtype": called(lambda: tf.cast(X, tf.float64)),
    "gx returns another shape": called(lambda: tf.ones([3])),
    "one of two functions with another dtype": lambda: derive(
        lambda x: cg.embed_gradient(X, [lambda: X, lambda: tf.cast(X, tf.float64)], [x, x])
    ),
    "one of two functions with another shape": lambda: derive(
        lambda x: cg.embed_gradient(X, [lambda: X, lambda: tf.ones([3])], [x, x])
    ),
    "shapes that no gx puts right": embed(X, lambda: 1.0, tf.zeros([2, 2])),
    "shapes under a tape, with a name": eager(
        lambda: derive(lambda x: cg.embed_gradient(X, M, x, name="a[Op:x] name: "))
    ),
    "a ragged axis": embed(X, X, X, tf.ragged.constant([[0]])),
    "a matrix as axis": embed(X, X, X, tf.constant([[0]])),
    "an array that is a matrix as axis": embed(X, X, X, np.array([[0]])),
    "an axis of more than 64 bits": embed(X, X, X, [0, 2**63]),
    "an unsigned axis of 64 bits": embed(X, X, X, tf.constant(2**64 - 1, tf.uint64)),
    "an axis of one of two pairs": lambda: cg.embed_gradient(X, [ones(2, 2), ones(2, 2)], [ones(2, 2), X], axis=1),
    **{name: shapes(*misfit) for name, misfit in MISFITS.items()},
    **{f"{name}, in the gradient": shapes_of_gradient(*MISFITS[name]) for name in IN_THE_GRADIENT},
    "an upstream of another size": upstream(5),
    "an upstream of another rank": upstream(4, 2),
    # Large numbers must not wrap around to a dimension that exists.
    "an axis at run time": axis_at_run_time(5),
    "a negative axis at run time": axis_at_run_time(-3),
    "an axis twice at run time": axis_at_run_time(1, -1),
    "an axis of 33 bits at run time": axis_at_run_time(2**32, dtype=tf.int64),
    "an unsigned axis of 33 bits at run time": axis_at_run_time(2**32 + 1, dtype=tf.uint64),
    "an unsigned axis of 64 bits at run time": axis_at_run_time(2**64 - 1, dtype=tf.uint64),
    "an axis of one of two pairs at run time": axis_at_run_time(1, fx=X, gx=[ones(2, 2), X], x=[ones(2, 2), X]),
    "a scalar fx with an axis at run time": axis_at_run_time(1, fx=tf.ones([]), gx=tf.ones([3, 4]), x=tf.ones([3, 1])),
    "events that differ at run time": axis_at_run_time(1, fx=tf.ones([]), gx=tf.ones([3, 4]), x=tf.ones([3, 5])),
    "an axis at run time, under XLA": axis_at_run_time(1, jit_compile=True),
    "a rank that is not known, in vectorized_map": eager(vectorized),
}


def broadcast_at_run_time(function, fx, x, **options):
    @tf.function(input_signature=[tf.TensorSpec(None)] * 2, autograph=False)
    def run(fx, x):
        return function(fx, fx, x, **options)

    return eager(lambda: run(fx, x))


def compat(function):
    """What both check."""
    return {
        "as a decorator": lambda: function(f),
        **options(
            functools.partial(function, **{"fx": X, "gx": X, "x": X}),
            fx=["text", INTEGERS],
            gx=[None],
            x=[tf.cast(X, tf.float64)],
            fx_gx_manually_stopped=[1],
        ),
    }


TFP, CONTRIB = cg.compat.tfp_math.custom_gradient, cg.compat.bayesflow.custom_gradient
COMPAT = {
    "compat.tfp_math.custom_gradient": compat(TFP)
    | {
        **options(functools.partial(TFP, X, X, X), axis=[-1]),
        "another shape": lambda: TFP(X, X, tf.ones([2, 1])),
        "another shape in a list": lambda: TFP(X, [X, tf.ones([3])], [X, X]),
        "a list for gx alone": lambda: TFP(X, [X, X], X),
        "a shape at run time": broadcast_at_run_time(TFP, tf.ones([3, 1]), tf.ones([3])),
    },
    "compat.bayesflow.custom_gradient": compat(CONTRIB)
    | {
        **options(functools.partial(CONTRIB, X, X, M), axis=[1.5, True, [2], [-3], [1, -1]]),
        "shapes": lambda: CONTRIB(X, tf.ones([4]), X),
        "shapes at run time": broadcast_at_run_time(CONTRIB, tf.ones([3]), tf.ones([2, 5]), axis=-1),
    },
}


# Ready-made functions


def with_argument(step):
    return 1.0


LOSS_SCALES = [0.0, np.inf, [1.0, 2.0], with_argument, "dynamic"]
FACTORS = ["half", 1j, tf.constant(1j), with_argument, [1.0, 2.0, 3.0]]
NOT_FINITE = tf.constant([np.inf, np.nan])


def under_xla(**options):
    return Row(lambda: derive(lambda x: cg.watch_gradient(x, "h", **options)), "jit")


def halved(gradient):
    return gradient / 2


def surrogate(*args, **options):
    return lambda: derive(cg.straight_through(tf.sign, *args, **options))


READY_MADE = {
    "reverse_gradient": {
        **options(cg.reverse_gradient, x=["text", INTEGERS]),
        **options(functools.partial(cg.reverse_gradient, X), factor=FACTORS),
    },
    "scale_gradient": {
        "no factor": lambda: cg.scale_gradient(X),
        **options(functools.partial(cg.scale_gradient, factor=2.0), x=["text", INTEGERS]),
        **options(functools.partial(cg.scale_gradient, X), factor=FACTORS),
    },
    "clip_gradient": {
        "a limit by position": lambda: cg.clip_gradient(X, 1.0),
        "no limit": lambda: cg.clip_gradient(X),
        "two limits": lambda: cg.clip_gradient(X, norm=1.0, value=1.0),
        **options(functools.partial(cg.clip_gradient, norm=1.0), x=["text", INTEGERS, []]),
        **options(functools.partial(cg.clip_gradient, X), norm=["large", 1j, -1.0], value=[np.nan, [1.0, 2.0]]),
        **options(functools.partial(cg.clip_gradient, X, norm=1.0), axis=["rows", 7]),
        **options(functools.partial(cg.clip_gradient, X, value=1.0), axis=[-1], loss_scale=LOSS_SCALES),
        "complex numbers by value": lambda: cg.clip_gradient(tf.cast(X, tf.complex64), value=1.0),
        "an axis of one of two": lambda: cg.clip_gradient([M, X], norm=1.0, axis=1),
        "an axis twice": lambda: cg.clip_gradient(M, norm=1.0, axis=[1, -1]),
    },
    "straight_through": {
        "a slope by position": lambda: cg.straight_through(tf.sign, tf.tanh, 2.0),
        "a surrogate and a derivative": lambda: cg.straight_through(tf.sign, "sigmoid", derivative=tf.cos),
        "a slope of a function": lambda: cg.straight_through(tf.sign, tf.tanh, slope=2.0),
        **options(
            functools.partial(cg.straight_through, **{"f": tf.sign}),
            f=[X, 3, "sigmoid"],
            surrogate=["tanh", 2.0],
            derivative=["sigmoid"],
            slope=["steep", 0, np.inf],
        ),
        "a slope that overflows": lambda: cg.straight_through(tf.sign, "sigmoid", slope=1e5)(tf.cast(X, tf.float16)),
        "a list": lambda: cg.straight_through(tf.sign)([0.5]),
        "a list by name": lambda: cg.straight_through(tf.sign)(x=[0.5]),
        "integers": lambda: cg.straight_through(tf.sign)(INTEGERS),
        "text first": lambda: cg.straight_through(lambda mode, x: x)("nearest", X),
        "another shape": lambda: cg.straight_through(tf.argmax)(X),
        "a surrogate of another shape": surrogate(lambda x: M),
        "a surrogate without a derivative": surrogate(tf.ones_like),
        "a surrogate of another dtype": surrogate(lambda x: tf.cast(x, tf.float64)),
        "a surrogate of nothing": surrogate(lambda x: None),
        "a surrogate of two arguments": surrogate(lambda x, y: x + y),
        "a derivative of more elements": surrogate(derivative=lambda x: M),
        "a derivative of fewer elements": surrogate(derivative=tf.reduce_sum),
        "a complex derivative": surrogate(derivative=lambda x: tf.cast(x, tf.complex64)),
        "a derivative of nothing": surrogate(derivative=lambda x: None),
    },
    "watch_gradient": {
        "an option by position": lambda: cg.watch_gradient(X, "h", True),
        "nothing to do": lambda: cg.watch_gradient(X, "h"),
        **options(
            functools.partial(cg.watch_gradient, **{"x": X, "name": "h", "print": True}),
            x=["text", INTEGERS, []],
            name=[3, ""],
            print=["yes"],
            check_numerics=["yes"],
            call=[[]],
            loss_scale=LOSS_SCALES,
        ),
        "a call that returns a gradient": lambda: derive(lambda x: cg.watch_gradient(x, "h", call=halved)),
        "a gradient that is not finite": lambda: derive(
            lambda x: cg.watch_gradient(x, "h", check_numerics=True), dy=NOT_FINITE
        ),
        "print, under XLA": under_xla(print=True),
        "check_numerics, under XLA": under_xla(check_numerics=True),
        "call, under XLA": under_xla(call=halved),
    },
}


# Layers


def factor_of_a_graph():
    with tf.Graph().as_default():
        return cg.layers.GradientReversal(tf.compat.v1.placeholder(tf.float32, [])).get_config()


def config(layer, **options):
    return eager(lambda: layer(loss_scale=tf.Variable(8.0, trainable=False), **options).get_config())


def factors(layer):
    return {
        **options(layer, factor=["half", 1j]),
        "a trainable variable": eager(lambda: layer(tf.Variable(1.0))),
        "factors for more elements": lambda: layer([1.0, 2.0, 3.0]).call(X),
        "integers": lambda: layer(2.0).call(INTEGERS),
        "factor=True later": lambda: setattr(layer(2.0), "factor", True),
    }


LAYERS = {
    "layers.EmbedGradient": {
        **options(cg.layers.EmbedGradient, axis=[1.5], fx_gx_manually_stopped=["no"]),
        "a single input": lambda: cg.layers.EmbedGradient().call(X),
        "a single input of a model": eager(lambda: cg.layers.EmbedGradient().compute_output_spec(keras.Input([3]))),
        "three arguments": lambda: cg.layers.EmbedGradient()(X, X, X),
        "two inputs": lambda: cg.layers.EmbedGradient().call([X, X]),
        "integers": lambda: cg.layers.EmbedGradient().call([X, INTEGERS, X]),
        "another shape": lambda: cg.layers.EmbedGradient().call([X, tf.ones([3]), X]),
    },
    "layers.GradientClip": {
        "no limit": lambda: cg.layers.GradientClip(),
        **options(cg.layers.GradientClip, norm=["large", -1.0]),
        "limit=-1.0 later": lambda: setattr(cg.layers.GradientClip(norm=1.0), "limit", -1.0),
        **options(functools.partial(cg.layers.GradientClip, norm=1.0), axis=["rows"]),
        "axis out of range": lambda: cg.layers.GradientClip(norm=1.0, axis=7).call(M),
        "integers": lambda: cg.layers.GradientClip(norm=1.0).call(INTEGERS),
        "an optimizer as loss_scale": eager(
            lambda: cg.layers.GradientClip(value=1.0, loss_scale=keras.optimizers.SGD())
        ),
        "a variable as loss_scale, saved": config(cg.layers.GradientClip, value=1.0),
    },
    "layers.GradientReversal": factors(cg.layers.GradientReversal)
    | {"a Tensor of a graph as factor, saved": eager(factor_of_a_graph)},
    "layers.GradientScale": factors(cg.layers.GradientScale),
    "layers.Recompute": {
        **options(
            functools.partial(cg.layers.Recompute, **{"layer": cg.layers.GradientScale(2.0)}),
            layer=[double, 3],
            keep=[3],
            memory=[[1], "much"],
        ),
        "keep=['z'], but no name is given": lambda: derive(
            cg.layers.Recompute(cg.layers.GradientScale(2.0, name="scored"), keep=["z"]).call
        ),
    },
    "layers.StraightThrough": {
        **options(cg.layers.StraightThrough, f=[3, "tanh", "sigmoid"]),
        **options(functools.partial(cg.layers.StraightThrough, "sign"), surrogate=[3, "nope"], slope=["steep", -1.0]),
        "integers": lambda: cg.layers.StraightThrough("sign").call(INTEGERS),
        "another shape": lambda: cg.layers.StraightThrough(lambda x: x[:1]).call(X),
    },
    "layers.WatchGradient": {
        "nothing to do": lambda: cg.layers.WatchGradient(name="hidden"),
        **options(cg.layers.WatchGradient, call=[3], print=["yes"]),
        "a gradient that is not finite": lambda: derive(
            cg.layers.WatchGradient(check_numerics=True, name="hidden").call, dy=NOT_FINITE
        ),
        "a variable as loss_scale, saved": config(cg.layers.WatchGradient, check_numerics=True),
    },
}


# Functional models and Keras itself


def tripled(x):
    return 2.0 * x, lambda dy: 3.0 * dy


def ignoring(x, other):
    return 2.0 * x, lambda dy: [3.0 * dy, *[None] * len(tf.nest.flatten(other))]


def saved(function, *args):
    x = keras.Input([2])
    return keras.Model(x, cg.custom_gradient(function)(x, *args)).get_config()


def loaded():
    config = saved(tripled)
    return keras.Model.from_config(config)


def with_keras(name, value, call):
    """A call while something in Keras is another."""
    with unittest.mock.patch.object(*name, value):
        return call()


BACKEND = (keras.backend, "backend")
NOT_SAVED = {"ragged": tf.ragged.constant([[1.0]]), "strings": tf.constant(["a"]), "a set": {1}, "a function": abs}
KERAS = {
    "a trainable variable": lambda: cg.custom_gradient(lambda x: (x * WEIGHT, lambda dy, variables: (dy, [None])))(
        keras.Input([3])
    ),
    "a value that is no Tensor": lambda: cg.custom_gradient(lambda x: ((x, "name"), lambda dy, _: dy))(
        keras.Input([3])
    ),
    "a closure over its input": lambda: cg.custom_gradient(lambda: (keras.Input([2]) * 2.0, lambda dy: []))(),
    "scan of its input": lambda: cg.scan(lambda carry, x: (carry, x), 0.0, keras.Input([3])),
    "a lambda, saved": lambda: saved(lambda x: (2.0 * x, lambda dy: dy)),
    **{f"{name} as argument, saved": functools.partial(saved, ignoring, other) for name, other in NOT_SAVED.items()},
    "a function that is not registered, loaded": loaded,
    "another backend": lambda: with_keras(BACKEND, lambda: "jax", lambda: cg.reverse_gradient(keras.Input([3]))),
    "enable_remat with another backend": lambda: with_keras(BACKEND, lambda: "jax", cg.layers.enable_remat),
}


# Implicit functions and linear solvers


def kepler(y, x):
    return y - 0.3 * tf.sin(y) - x


def steps(x, number=60):
    y = x
    for _ in range(number):
        y = x + 0.3 * tf.sin(y)
    return y


def steps_of_a_solver(x):
    return steps(x)


def solver(x):
    return 2.0 * x


def two_steps(x):
    """The iteration y = x / y goes back and forth between 1 and x."""
    y = tf.ones_like(x)
    for _ in range(20):
        y = x / y
    return y


def leaves_tensorflow(y, x):
    return 0.5 * (y.numpy() if tf.executing_eagerly() else tf.stop_gradient(y)) + x


def root(residual, solve=solver, x=X, **options):
    return lambda: derive(lambda x: tf.nest.flatten(cg.implicit_root(residual, solve, **options)(x))[0], x)


def fixed_point(function, solve=solver):
    return lambda: derive(lambda x: tf.nest.flatten(cg.implicit_fixed_point(function, solve)(x))[0])


def minimum(objective, solve=solver, x=X):
    return lambda: derive(cg.implicit_minimum(objective, solve), x)


def implicit(make):
    """What all three check at once."""
    return {
        "as in JAX": lambda: make(solver, X, solver, solver),
        "3 for the equations": lambda: make(3, solver),
        "3 for the solver": lambda: make(solver, 3),
        "equations of other parameters": lambda: derive(make(lambda x: x, solver)),
    }


IMPLICIT = {
    "implicit_root": implicit(cg.implicit_root)
    | options(
        functools.partial(cg.implicit_root, kepler, solver),
        x0=[X],
        batched=[3],
        has_aux=["yes"],
        check_solution=[1],
        linear_solve=[3],
    )
    | {
        "a solver that returns text": lambda: cg.implicit_root(kepler, lambda x: "text")(X),
        "too many arguments": lambda: cg.implicit_root(kepler, solver)(X, 1),
        "exchanged": root(steps_of_a_solver, kepler),
        "several dtypes": root(kepler, lambda x: [x, tf.cast(x, tf.float64)]),
        "no unknown": lambda: cg.implicit_root(kepler, lambda x: [])(X),
        "another structure": root(lambda y, x: y["a"] - x, lambda x: {"a": x, "b": x}),
        "another shape": root(lambda y, x: tf.reduce_sum(y - x)),
        "another shape in a structure": root(lambda y, x: [y[0], y[1][:1]], lambda x: [x, x]),
        "another shape at run time": Row(
            lambda: derive(cg.implicit_root(lambda y, x: y[:1] - x[:1], steps), ones(2)), "unknown"
        ),
        "another dtype": root(lambda y, x: tf.cast(y, tf.float64)),
        "no aux": root(kepler, has_aux=True),
        "no batch": root(kepler, x=tf.constant(1.0), batched=True),
        "a shape of linear_solve": root(kepler, steps, linear_solve=lambda vjp, dy: dy[:1]),
        "a shape that linear_solve passes": root(kepler, steps, linear_solve=lambda vjp, dy: vjp(dy[:1])),
        "a linear_solve that does not converge": root(
            kepler, steps, linear_solve=functools.partial(cg.linear.gmres, M=lambda u: 0.0 * u)
        ),
        "one without a derivative in a dict": root(
            lambda y, x: {"a": y["a"] - x, "b": y["a"] - x}, lambda x: {"a": x, "b": x}
        ),
        "integers inside": root(lambda y, x: tf.cast(tf.cast(y, tf.int32), x.dtype) - x, tf.identity),
        "no y": root(lambda y, x: x - x),
        "not solved": root(lambda x, y: y**3 + y - x, steps),
    },
    "implicit_fixed_point": implicit(cg.implicit_fixed_point)
    | {
        "NumPy": fixed_point(leaves_tensorflow),
        "stop_gradient": fixed_point(lambda y, x: 0.5 * tf.stop_gradient(y) + x),
        "round": fixed_point(lambda y, x: 0.5 * tf.round(y) + x),
        "one of several without a derivative": fixed_point(
            lambda y, x: [0.5 * tf.stop_gradient(y[0]) + x, 0.5 * y[1] + x], lambda x: [2.0 * x, 2.0 * x]
        ),
        "another shape": fixed_point(lambda y, x: y[:1]),
        "not solved": fixed_point(lambda y, x: x / y, two_steps),
    },
    "implicit_minimum": implicit(cg.implicit_minimum)
    | {
        "a linear objective": minimum(lambda y, x: tf.reduce_sum(y * x)),
        "a vector as objective": minimum(lambda y, x: y - x),
        "an integer as objective": minimum(lambda y, x: tf.size(y)),
        "complex unknowns": minimum(lambda y, x: tf.abs(y[0]), x=tf.cast(X, tf.complex64)),
        "not solved": minimum(lambda y, x: tf.reduce_sum((y - 3.0 * x) ** 2)),
    },
}
MATRIX = tf.constant([[4.0, 1.0], [1.0, 3.0]])


def no_convergence(solve, **options):
    return lambda: solve(lambda u: tf.linalg.matvec(MATRIX, u), X, maxiter=1, tol=1e-9, **options)


LINEAR = {
    "linear.cg": {
        "exchanged": lambda: cg.linear.cg(X, double),
        "the tolerance by position": lambda: cg.linear.cg(double, X, None, 1e-5),
        **options(
            functools.partial(cg.linear.cg, **{"A": double, "b": X}),
            A=[3, tf.eye(2)],
            b=["text", INTEGERS, None],
            x0=[tf.zeros([3])],
            M=[tf.eye(2)],
            tol=["small", False, -1.0],
            rtol=[1e-5],
            atol=[np.inf],
            maxiter=[1.5, 0],
        ),
        "a LinearOperator": lambda: cg.linear.cg(tf.linalg.LinearOperatorDiag([1.0, 2.0]), X),
        "two dtypes": lambda: cg.linear.cg(double, [X, tf.constant(1.0, tf.float64)]),
        "another structure": lambda: cg.linear.cg(lambda u: u[0], [X, X]),
        "another shape": lambda: cg.linear.cg(lambda u: u[:1], X),
        "another dtype": lambda: cg.linear.cg(lambda u: tf.cast(u, tf.float64), X),
        "nothing": lambda: cg.linear.cg(lambda u: None, X),
        "a list": lambda: cg.linear.cg(lambda u: [u], X),
        "no convergence": no_convergence(cg.linear.cg),
        "numbers that overflow": lambda: cg.linear.cg(lambda u: 1e-4 * u, 1000 * tf.cast(X, tf.float16)),
    },
    "linear.gmres": {
        **options(
            functools.partial(cg.linear.gmres, **{"A": double, "b": X}),
            A=[tf.eye(2)],
            b=[INTEGERS],
            tol=[-1.0],
            maxiter=[0],
            restart=[1.5, 0],
        ),
        "another shape": lambda: cg.linear.gmres(lambda u: u[:1], X),
        "no convergence": no_convergence(cg.linear.gmres, restart=1),
        "no derivative": lambda: derive(
            lambda b: cg.linear.gmres(lambda u: tf.stop_gradient(tf.linalg.matvec(MATRIX, u)), b)
        ),
    },
}


# numpy_function


SPEC = tf.TensorSpec([3], tf.float32)
ZEROS, JACOBIAN, BATCH = np.zeros(3), np.zeros((3, 2)), np.zeros((2, 3))
TWO = [SPEC, tf.TensorSpec([], tf.int32)]


def in_numpy(x):
    return x, np.ones_like(x)


SINGLE = cg.numpy_function(in_numpy)


def returned(answer, output=SPEC, **options):
    """A function of two arrays that returns this answer is called."""

    def simulate(x, y):
        return answer

    return lambda: cg.numpy_function(simulate, output, **options)(X, Y)


def with_vjp(answer=(ZEROS, None), gradients=(ZEROS[:2], ZEROS[:2]), output=SPEC, **options):
    """A function with a vjp that returns these gradients."""

    def simulate(x, y):
        return answer

    return cg.numpy_function(simulate, output, vjp=lambda residuals, *dy: gradients, **options)


def value(*args, **options):
    return lambda: with_vjp(*args, **options)(X, Y)


def first_leaf(function):
    return lambda *args: tf.nest.flatten(function(*args))[0]


def gradient(function):
    return derive(first_leaf(function), X, Y)


def tangent(function):
    with tf.autodiff.ForwardAccumulator([X, Y], [X, Y]) as accumulator:
        y = first_leaf(function)(X, Y)
    return accumulator.jvp(y)


def second(function):
    with tf.GradientTape() as tape:
        tape.watch(X)
        dx, _ = gradient(function)
    return tape.gradient(dx, X)


def gradient_of_tangents():
    function = with_vjp(([ZEROS, 1], None), output=TWO, jvp=lambda *_: [ZEROS, 0])
    with tf.GradientTape() as tape:
        tape.watch(X)
        tangents = tangent(function)
    return tape.gradient(tangents, X)


def vjp_of_tensors(vjp):
    function = cg.numpy_function(
        lambda x, y: (x.numpy() if tf.is_tensor(x) else x, None), tf.TensorSpec([2]), vjp=tf.function(vjp)
    )
    return lambda: gradient(function)


def of_batch(y, **options):
    function = cg.numpy_function(lambda x, y: (BATCH, [BATCH, BATCH]), SPEC, batched=True, **options)
    return Row(lambda: function(ones(2), y()), "eager", "traced", "unknown")


def raising(*_):
    raise KeyError("the solver has diverged")


NUMPY_FUNCTION = {
    "as tf.numpy_function": lambda: cg.numpy_function(in_numpy, [X], tf.float32),
    "the names of tf.numpy_function": lambda: cg.numpy_function(func=in_numpy, inp=[X], Tout=tf.float32),
    **options(
        functools.partial(cg.numpy_function, **{"f": in_numpy}),
        f=[3],
        output=[[3], tf.TensorSpec(None, tf.float32), tf.TensorSpec([3], tf.int32), [SPEC]],
        vjp=[3],
        jvp=[len],
        batched=[32],
        nondiff_argnames=["x", ["z"]],
    ),
    **options(
        functools.partial(cg.numpy_function, in_numpy, vjp=len),
        output=[[], [SPEC, tf.TensorSpec([], tf.string)]],
        jvp=[3],
    ),
    "integers alone": lambda: SINGLE(INTEGERS),
    "inputs that do not broadcast": lambda: cg.numpy_function(lambda x, y: (0, 0))(X, tf.zeros([3])),
    "ragged": lambda: SINGLE(tf.ragged.constant([[1.0], [2.0, 3.0]])),
    "sparse": lambda: SINGLE(tf.SparseTensor([[0]], [1.0], [2])),
    "too many arguments": lambda: SINGLE(X, X),
    "a batch of another size": of_batch(lambda: ones(3)),
    "no batch": of_batch(lambda: ones()),
    "no pair": returned(ZEROS),
    "one gradient of two": returned((ZEROS, JACOBIAN)),
    "three gradients of two": returned((ZEROS, [JACOBIAN] * 3)),
    "None among the gradients": returned((ZEROS, [JACOBIAN, None])),
    "None as the gradient": returned((ZEROS, None), nondiff_argnames=["y"]),
    "a shape of the value": returned((np.zeros(2), [JACOBIAN, JACOBIAN])),
    "a shape of a gradient": returned((ZEROS, [JACOBIAN, JACOBIAN.T])),
    "a shape of a batch": returned((BATCH.T, [BATCH, BATCH]), batched=True),
    "a shape of gradients of a batch": returned((BATCH, [BATCH, np.zeros(3)]), batched=True),
    "a shape without an output": returned((np.zeros(2), [JACOBIAN, np.zeros(2)]), None),
    "a complex value": returned((1j * ZEROS, [JACOBIAN, JACOBIAN])),
    "a complex gradient": returned((ZEROS, [1j * JACOBIAN, JACOBIAN])),
    "a ragged value": returned(([[1.0], [2.0, 3.0]], [JACOBIAN, JACOBIAN])),
    "vjp: no pair": value(np.zeros(3)),
    "vjp: a shape of the value": value((np.zeros(2), None)),
    "vjp: a shape of a leaf": value(([np.zeros(3), [1, 2]], None), output=TWO),
    "vjp: a shape of a batch": value(batched=True),
    "vjp: a shape without an output": value(output=None),
    "vjp: another structure": value(output=TWO),
    "vjp: one gradient of two": lambda: gradient(with_vjp(gradients=[np.zeros(2)])),
    "vjp: None among the gradients": lambda: gradient(with_vjp(gradients=[np.zeros(2), None])),
    "vjp: a shape of a gradient": lambda: gradient(with_vjp(gradients=[np.zeros(2), np.zeros(3)])),
    "vjp: no upstream": lambda: gradient(
        cg.numpy_function(lambda x, y: (ZEROS, None), SPEC, vjp=lambda residuals: None)
    ),
    "vjp: no constant": lambda: gradient(
        cg.numpy_function(lambda x, y: (ZEROS, None), SPEC, vjp=lambda residuals, dy: dy[:2], nondiff_argnames=["y"])
    ),
    "vjp of Tensors: a dtype": eager(vjp_of_tensors(lambda inputs, dy: (dy, tf.cast(dy, tf.int32)))),
    "vjp of Tensors: a shape": eager(vjp_of_tensors(lambda inputs, dy: (dy[:1], dy))),
    "vjp of Tensors: three of two": eager(vjp_of_tensors(lambda inputs, dy: (dy, dy, dy))),
    "jvp: a shape": lambda: tangent(with_vjp(jvp=lambda *_: np.zeros(4))),
    "jvp: another structure": lambda: tangent(
        with_vjp(([np.zeros(3), 1], None), output=TWO, jvp=lambda *_: np.zeros(3)[:1])
    ),
    "jvp: parameters": lambda: tangent(with_vjp(jvp=lambda residuals, dx: dx)),
    "forward mode without a jvp": lambda: tangent(with_vjp()),
    "second derivatives": eager(lambda: second(with_vjp())),
    "second derivatives with a jvp": eager(lambda: second(with_vjp(jvp=lambda *_: np.zeros(3)))),
    "derivatives of tangents beside an integer": lambda: gradient_of_tangents(),
    "an exception of the function": lambda: cg.numpy_function(raising)(X),
    "an exception of vjp": lambda: gradient(cg.numpy_function(lambda x, y: (ZEROS, None), SPEC, vjp=raising)),
    "under XLA": Row(lambda: 2.0 * SINGLE(X), "jit"),
    "with a vjp, under XLA": Row(lambda: cg.numpy_function(in_numpy, vjp=lambda residuals, dy: dy)(X), "jit"),
    "in a function, under XLA": Row(lambda: tf.function(SINGLE)(X), "jit"),
}


GROUPS = {
    "embed_gradient": EMBED_GRADIENT,
    **COMPAT,
    **READY_MADE,
    **LAYERS,
    "Models of Keras": {name: eager(call) for name, call in KERAS.items()},
    **IMPLICIT,
    **LINEAR,
    "numpy_function": NUMPY_FUNCTION,
}
