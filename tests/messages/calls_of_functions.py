"""Wrong calls of embed_gradient, of the ready-made functions and layers, of solvers, and of numpy_function."""

import functools
import unittest.mock

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tf_cg_ops as cg

from .table import INTEGERS, M, Row, X, Y, derive, eager, ones, options, tangents_of


def double(x):
    return 2.0 * x


def f(x):
    return x, lambda dy: dy


WEIGHT = tf.Variable(2.0, name="weight")


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
    "a forgotten axis": ([4], [4, 3], [4, 3]),
    "a Jacobian for each example": ([5, 2], [5, 2, 3], [5, 3], [-1]),
    "an axis that is too large": ([3], [3, 2], [3, 2], 2),
    "the axis of a scalar": ([3], [3], [], 0),
    "an axis twice": ([3], [3, 2], [3, 2], [1, -1]),
}
# The gradient op makes the same texts.
IN_THE_GRADIENT = ["fx too small", "an axis twice"]


def axis_at_run_time(*axis, fx=None, gx=M, x=M, dtype=tf.int32, **options):
    """An axis that is not known while tracing."""

    @functools.partial(tf.function, autograph=False, **options)
    def run(axis):
        return cg.embed_gradient(tf.reduce_sum(M, 1) if fx is None else fx, gx, x, axis)

    return eager(lambda: run(tf.constant(axis, dtype)))


def vectorized():
    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def run(gx):
        function = lambda x: cg.embed_gradient(2.0 * x, gx, x)  # noqa: E731
        return tf.vectorized_map(function, M, fallback_to_while_loop=False)

    return run(X)


EMBED_GRADIENT = {
    "no gx": lambda: cg.embed_gradient(f),
    "no fx": lambda: cg.embed_gradient(),
    "no x": lambda: cg.embed_gradient(X, X, axis=-1),
    **options(
        functools.partial(cg.embed_gradient, **{"fx": X, "gx": X, "x": X}),
        fx=[None, INTEGERS, [[1.0], [1.0, 2.0]]],
        gx=["2 * x", None, tf.cast(X, tf.float64), abs],
        x=[INTEGERS],
        axis=[True, np.bool_(False), tf.constant(True), [True], 1.0, [[0]]],
        fx_gx_manually_stopped=[1],
    ),
    "None in a list": lambda: cg.embed_gradient(X, [X, None], [X, X]),
    "another dtype in a list": lambda: cg.embed_gradient(X, [X, X], [X, tf.cast(X, tf.float16)]),
    "a complex array beside a real x": lambda: cg.embed_gradient(1.0, 1j * np.ones(2), X),
    "integers beside numbers": lambda: cg.embed_gradient(1.0, 1.0, INTEGERS),
    "dicts": lambda: cg.embed_gradient(X, {"a": X}, {"a": X}),
    "a list for x alone": lambda: cg.embed_gradient(X, X, [X]),
    "empty lists": lambda: cg.embed_gradient(X, (), ()),
    "gx returns a function": lambda: derive(lambda x: cg.embed_gradient(X, lambda: lambda: X, x)),
    "shapes that no gx puts right": lambda: cg.embed_gradient(X, lambda: 1.0, tf.zeros([2, 2])),
    "shapes under a tape, with a name": eager(
        lambda: derive(lambda x: cg.embed_gradient(X, M, x, name="a[Op:x] name: "))
    ),
    "a ragged axis": lambda: cg.embed_gradient(X, X, X, tf.ragged.constant([[0]])),
    "a matrix as axis": lambda: cg.embed_gradient(X, X, X, tf.constant([[0]])),
    "an array that is a matrix as axis": lambda: cg.embed_gradient(X, X, X, np.array([[0]])),
    "an axis of more than 64 bits": lambda: cg.embed_gradient(X, X, X, [0, 2**63]),
    "an unsigned axis of 64 bits": lambda: cg.embed_gradient(X, X, X, tf.constant(2**64 - 1, tf.uint64)),
    "an axis of one of two pairs": lambda: cg.embed_gradient(X, [ones(2, 2), ones(2, 2)], [ones(2, 2), X], axis=1),
    **{name: shapes(*misfit) for name, misfit in MISFITS.items()},
    **{f"{name}, in the gradient": shapes_of_gradient(*MISFITS[name]) for name in IN_THE_GRADIENT},
    "an upstream of another size": lambda: derive(lambda x: cg.embed_gradient(x, x, x), dy=tf.ones([5])),
    # Large numbers must not wrap around to a dimension that exists.
    "an axis at run time": axis_at_run_time(5),
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
        **options(functools.partial(function, gx=X, x=X), fx=["text", INTEGERS]),
    }


TFP, CONTRIB = cg.compat.tfp_math.custom_gradient, cg.compat.bayesflow.custom_gradient
COMPAT = {
    "compat.tfp_math.custom_gradient": compat(TFP)
    | {
        **options(functools.partial(TFP, X, X, X), axis=[-1]),
        "another shape": lambda: TFP(X, X, tf.ones([2, 1])),
        "a shape at run time": broadcast_at_run_time(TFP, tf.ones([3, 1]), tf.ones([3])),
    },
    "compat.bayesflow.custom_gradient": compat(CONTRIB)
    | {
        **options(functools.partial(CONTRIB, X, X, M), axis=[1.5, [2]]),
        "shapes": lambda: CONTRIB(X, tf.ones([4]), X),
        "shapes at run time": broadcast_at_run_time(CONTRIB, tf.ones([3]), tf.ones([2, 5]), axis=-1),
    },
}


def with_argument(step):
    return 1.0


LOSS_SCALES = [0.0, np.inf, [1.0, 2.0], with_argument, "dynamic"]
FACTORS = ["half", 1j, tf.constant(1j), with_argument, [1.0, 2.0, 3.0]]
NOT_FINITE = tf.constant([np.inf, np.nan])


READY_MADE = {
    "reverse_gradient": {
        **options(cg.reverse_gradient, x=["text", INTEGERS]),
    },
    "scale_gradient": {
        "no factor": lambda: cg.scale_gradient(X),
        **options(functools.partial(cg.scale_gradient, X), factor=FACTORS),
    },
    "clip_gradient": {
        "a limit by position": lambda: cg.clip_gradient(X, 1.0),
        "no limit": lambda: cg.clip_gradient(X),
        "two limits": lambda: cg.clip_gradient(X, norm=1.0, value=1.0),
        **options(functools.partial(cg.clip_gradient, norm=1.0), x=[INTEGERS, []]),
        **options(functools.partial(cg.clip_gradient, X), norm=["large", -1.0], value=[np.nan, [1.0, 2.0]]),
        **options(functools.partial(cg.clip_gradient, X, norm=1.0), axis=["rows", 7]),
        **options(functools.partial(cg.clip_gradient, X, value=1.0), axis=[-1], loss_scale=LOSS_SCALES),
        "complex numbers by value": lambda: cg.clip_gradient(tf.cast(X, tf.complex64), value=1.0),
    },
    "straight_through": {
        "a slope by position": lambda: cg.straight_through(tf.sign, tf.tanh, 2.0),
        "a surrogate and a derivative": lambda: cg.straight_through(tf.sign, "sigmoid", derivative=tf.cos),
        "a slope of a function": lambda: cg.straight_through(tf.sign, tf.tanh, slope=2.0),
        **options(
            functools.partial(cg.straight_through, **{"f": tf.sign}),
            f=[X, "sigmoid"],
            surrogate=["tanh", 2.0],
            derivative=["sigmoid"],
            slope=["steep", 0, np.inf],
        ),
        "a slope that overflows": lambda: cg.straight_through(tf.sign, "sigmoid", slope=1e5)(tf.cast(X, tf.float16)),
        "a list": lambda: cg.straight_through(tf.sign)([0.5]),
        "integers": lambda: cg.straight_through(tf.sign)(INTEGERS),
        "another shape": lambda: cg.straight_through(tf.argmax)(X),
        "a surrogate of another shape": lambda: derive(cg.straight_through(tf.sign, lambda x: M)),
        "a surrogate without a derivative": lambda: derive(cg.straight_through(tf.sign, tf.ones_like)),
        "a surrogate of another dtype": lambda: derive(cg.straight_through(tf.sign, lambda x: tf.cast(x, tf.float64))),
        "a surrogate of nothing": lambda: derive(cg.straight_through(tf.sign, lambda x: None)),
        "a surrogate of two arguments": lambda: derive(cg.straight_through(tf.sign, lambda x, y: x + y)),
    },
    "watch_gradient": {
        "an option by position": lambda: cg.watch_gradient(X, "h", True),
        "nothing to do": lambda: cg.watch_gradient(X, "h"),
        **options(
            functools.partial(cg.watch_gradient, **{"x": X, "name": "h", "log": True}),
            x=[[]],
            name=[3, ""],
            log=["yes"],
            callback=[[]],
            loss_scale=["dynamic"],
        ),
        "a callback that returns a gradient": lambda: derive(lambda x: cg.watch_gradient(x, "h", callback=tf.sign)),
        "a gradient that is not finite": lambda: derive(
            lambda x: cg.watch_gradient(x, "h", check_numerics=True), dy=NOT_FINITE
        ),
        **{
            f"{name}, under XLA": Row(
                lambda name=name, do=do: derive(lambda x: cg.watch_gradient(x, "h", **{name: do})), "jit"
            )
            for name, do in {"log": True, "check_numerics": True, "callback": tf.sign}.items()
        },
    },
}


def factor_of_a_graph():
    with tf.Graph().as_default():
        return cg.layers.ReverseGradient(tf.compat.v1.placeholder(tf.float32, []))


def config(layer, **options):
    return eager(lambda: layer(loss_scale=tf.Variable(8.0, trainable=False), **options).get_config())


def factors(layer):
    return {
        "a trainable variable": eager(lambda: layer(tf.Variable(1.0))),
    }


LAYERS = {
    "layers.EmbedGradient": {
        "a single input of a model": eager(lambda: cg.layers.EmbedGradient().compute_output_spec(keras.Input([3]))),
        "two inputs": lambda: cg.layers.EmbedGradient().call([X, X]),
        "three arguments": lambda: cg.layers.EmbedGradient()(X, X, X),
    },
    "layers.ClipGradient": {
        "no limit": lambda: cg.layers.ClipGradient(),
        "an optimizer as loss_scale": eager(
            lambda: cg.layers.ClipGradient(value=1.0, loss_scale=keras.optimizers.SGD())
        ),
    },
    "layers.ReverseGradient": factors(cg.layers.ReverseGradient)
    | {"a Tensor of a graph as factor": eager(factor_of_a_graph)},
    "layers.ScaleGradient": factors(cg.layers.ScaleGradient),
    "layers.Recompute": {
        **options(
            cg.layers.Recompute, layer={"double": double, "3": 3, "a layer of tf_keras": tf_keras.layers.Dense(1)}
        ),
    },
    "layers.StraightThrough": {
        **options(cg.layers.StraightThrough, f=[3, "tanh", "sigmoid"]),
    },
    "layers.WatchGradient": {
        "nothing to do": lambda: cg.layers.WatchGradient(name="hidden"),
        "a gradient that is not finite": lambda: derive(
            cg.layers.WatchGradient(check_numerics=True, name="hidden").call, dy=NOT_FINITE
        ),
        "a variable as loss_scale, saved": config(cg.layers.WatchGradient, check_numerics=True),
    },
}


def ignoring(x, other):
    return 2.0 * x, lambda dy: [3.0 * dy, *[None] * len(tf.nest.flatten(other))]


def tripled(x):
    return 2.0 * x, lambda dy: 3.0 * dy


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
NOT_SAVED = {
    "ragged": tf.ragged.constant([[1.0]]),
    "strings": tf.constant(["a"]),
    "a set": {1},
    "a dict with other keys": {(1, 2): 3},
}


def remat(value):
    with cg.layers.enable_remat():
        keras.remat(value)


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
    "recompute_grad of tf.sign, saved": cg.recompute_grad(tf.sign).get_config,
    "another backend": lambda: with_keras(BACKEND, lambda: "jax", lambda: cg.reverse_gradient(keras.Input([3]))),
    "enable_remat with another backend": lambda: with_keras(BACKEND, lambda: "jax", cg.layers.enable_remat),
    "keras.remat(3) with enable_remat": lambda: remat(3),
}


def kepler(y, x):
    return y - 0.3 * tf.sin(y) - x


def steps(x, number=60):
    y = x
    for _ in range(number):
        y = x + 0.3 * tf.sin(y)
    return y


def solver(x):
    return 2.0 * x


def two_steps(x):
    """The iteration y = x / y goes back and forth between 1 and x."""
    y = tf.ones_like(x)
    for _ in range(20):
        y = x / y
    return y


def root(residual, solve=solver, x=X, **options):
    return lambda: derive(lambda x: tf.nest.flatten(cg.implicit_root(residual, solve, **options)(x))[0], x)


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
        "exchanged": root(steps, kepler),
        "several dtypes": root(kepler, lambda x: [x, tf.cast(x, tf.float64)]),
        "another structure": root(lambda y, x: y["a"] - x, lambda x: {"a": x, "b": x}),
        "another shape": root(lambda y, x: tf.reduce_sum(y - x)),
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
        "no y": root(lambda y, x: x - x),
        "not solved": root(lambda x, y: y**3 + y - x, steps),
    },
    "implicit_fixed_point": implicit(cg.implicit_fixed_point)
    | {
        "one of several without a derivative": lambda: derive(
            cg.implicit_fixed_point(
                lambda y, x: [0.5 * tf.stop_gradient(y[0]) + x, 0.5 * y[1] + x], lambda x: [2.0 * x, 2.0 * x]
            )
        ),
        "not solved": lambda: derive(cg.implicit_fixed_point(lambda y, x: x / y, two_steps)),
    },
    "implicit_minimum": implicit(cg.implicit_minimum)
    | {
        "a linear objective": lambda: derive(cg.implicit_minimum(lambda y, x: tf.reduce_sum(y * x), solver)),
        "a vector as objective": lambda: derive(cg.implicit_minimum(lambda y, x: y - x, solver)),
        "an integer as objective": lambda: derive(cg.implicit_minimum(lambda y, x: tf.size(y), solver)),
        "complex unknowns": lambda: derive(
            cg.implicit_minimum(lambda y, x: tf.abs(y[0]), solver), tf.cast(X, tf.complex64)
        ),
        "not solved": lambda: derive(cg.implicit_minimum(lambda y, x: tf.reduce_sum((y - 3.0 * x) ** 2), solver)),
    },
}
MATRIX = tf.constant([[4.0, 1.0], [1.0, 3.0]])


def no_convergence(solve, **options):
    return lambda: solve(lambda u: tf.linalg.matvec(MATRIX, u), X, maxiter=1, tol=1e-9, **options)


LINEAR = {
    "linear.cg": {
        "the tolerance by position": lambda: cg.linear.cg(double, X, None, 1e-5),
        **options(
            functools.partial(cg.linear.cg, **{"A": double, "b": X}),
            A=[3, tf.eye(2)],
            b=["text", INTEGERS],
            x0=[tf.zeros([3])],
            M=[tf.eye(2)],
            tol=["small", False, -1.0],
            atol=[np.inf],
            maxiter=[1.5, 0],
        ),
        "a LinearOperator": lambda: cg.linear.cg(tf.linalg.LinearOperatorDiag([1.0, 2.0]), X),
        "two dtypes": lambda: cg.linear.cg(double, [X, tf.constant(1.0, tf.float64)]),
        "another structure": lambda: cg.linear.cg(lambda u: u[0], [X, X]),
        "another shape": lambda: cg.linear.cg(lambda u: u[:1], X),
        "another dtype": lambda: cg.linear.cg(lambda u: tf.cast(u, tf.float64), X),
        "a list": lambda: cg.linear.cg(lambda u: [u], X),
        "no convergence": no_convergence(cg.linear.cg),
        "numbers that overflow": lambda: cg.linear.cg(lambda u: 1e-4 * u, 1000 * tf.cast(X, tf.float16)),
    },
    "linear.gmres": {
        **options(functools.partial(cg.linear.gmres, double, X), restart=[1.5, 0]),
        "no convergence": no_convergence(cg.linear.gmres, restart=1),
        "no derivative": lambda: derive(
            lambda b: cg.linear.gmres(lambda u: tf.stop_gradient(tf.linalg.matvec(MATRIX, u)), b)
        ),
    },
}


SPEC = tf.TensorSpec([3], tf.float32)
ZEROS, JACOBIAN, BATCH = np.zeros(3), np.zeros((3, 2)), np.zeros((2, 3))
TWO = [SPEC, tf.TensorSpec([], tf.int32)]


def in_numpy(x):
    return x, np.ones_like(x)


def nothing_kept(x, y):
    return ZEROS, None


SINGLE = cg.numpy_function(in_numpy)


def returned(answer, output_signature=SPEC, **options):
    """A function of two arrays that returns this answer is called."""

    def simulate(x, y):
        return answer

    return lambda: cg.numpy_function(simulate, output_signature, **options)(X, Y)


def with_vjp(answer=(ZEROS, None), gradients=(ZEROS[:2], ZEROS[:2]), output_signature=SPEC, **options):
    """A function with a vjp that returns these gradients."""

    def simulate(x, y):
        return answer

    return cg.numpy_function(simulate, output_signature, vjp=lambda residuals, *dy: gradients, **options)


def second(function):
    return derive(lambda x: derive(function, x, Y)[0])


def gradient_of_tangents():
    function = with_vjp(([ZEROS, 1], None), output_signature=TWO, jvp=lambda *_: [ZEROS, 0])
    return derive(lambda x: tangents_of(function, x, Y)[0])


def vjp_of_tensors(vjp):
    function = cg.numpy_function(
        lambda x, y: (x.numpy() if tf.is_tensor(x) else x, None), tf.TensorSpec([2]), vjp=tf.function(vjp)
    )
    return lambda: derive(function, X, Y)


def of_batch(y, **options):
    function = cg.numpy_function(lambda x, y: (BATCH, [BATCH, BATCH]), SPEC, batched=True, **options)
    return Row(lambda: function(ones(2), y()), "eager", "traced", "unknown")


def raising(*_):
    raise KeyError("the solver has diverged")


NUMPY_FUNCTION = {
    "as tf.numpy_function": lambda: cg.numpy_function(in_numpy, [X], tf.float32),
    **options(
        functools.partial(cg.numpy_function, **{"f": in_numpy}),
        f=[3],
        output_signature=[[3], tf.TensorSpec(None, tf.float32), tf.TensorSpec([3], tf.int32)],
        vjp=[3],
        jvp=[len],
        batched=[32],
        nondiff_argnames=["x", ["z"]],
    ),
    **options(functools.partial(cg.numpy_function, in_numpy, vjp=len), output_signature=[[]], jvp=[3]),
    "integers alone": lambda: SINGLE(INTEGERS),
    "inputs that do not broadcast": lambda: cg.numpy_function(lambda x, y: (0, 0))(X, tf.zeros([3])),
    "ragged": lambda: SINGLE(tf.ragged.constant([[1.0], [2.0, 3.0]])),
    "a batch of another size": of_batch(lambda: ones(3)),
    "no pair": returned(ZEROS),
    "one gradient of two": returned((ZEROS, JACOBIAN)),
    "a shape of the value": returned((np.zeros(2), [JACOBIAN, JACOBIAN])),
    "None as the gradient": returned((ZEROS, None), nondiff_argnames=["y"]),
    "a shape of a gradient": returned((ZEROS, [JACOBIAN, JACOBIAN.T])),
    "a shape of a batch": returned((BATCH.T, [BATCH, BATCH]), batched=True),
    "a complex gradient": returned((ZEROS, [1j * JACOBIAN, JACOBIAN])),
    "a shape without an output_signature": returned((np.zeros(2), [JACOBIAN, np.zeros(2)]), None),
    "a ragged value": returned(([[1.0], [2.0, 3.0]], [JACOBIAN, JACOBIAN])),
    "vjp: a shape of a leaf": lambda: with_vjp(([np.zeros(3), [1, 2]], None), output_signature=TWO)(X, Y),
    "vjp: no pair": lambda: with_vjp(np.zeros(3))(X, Y),
    "vjp: a shape without an output_signature": lambda: with_vjp(output_signature=None)(X, Y),
    "vjp: no constant": lambda: derive(
        cg.numpy_function(nothing_kept, SPEC, vjp=in_numpy, nondiff_argnames=["y"]), X, Y
    ),
    "vjp: another structure": lambda: with_vjp(output_signature=TWO)(X, Y),
    "vjp: one gradient of two": lambda: derive(with_vjp(gradients=[np.zeros(2)]), X, Y),
    "vjp: a shape of a gradient": lambda: derive(with_vjp(gradients=[np.zeros(2), np.zeros(3)]), X, Y),
    "vjp of Tensors: a dtype": eager(vjp_of_tensors(lambda inputs, dy: (dy, tf.cast(dy, tf.int32)))),
    "jvp: a shape": lambda: tangents_of(with_vjp(jvp=lambda *_: np.zeros(4)), X, Y),
    "jvp: parameters": lambda: tangents_of(with_vjp(jvp=lambda residuals, dx: dx), X, Y),
    "forward mode without a jvp": lambda: tangents_of(with_vjp(), X, Y),
    "second derivatives": eager(lambda: second(with_vjp())),
    "derivatives of tangents beside an integer": gradient_of_tangents,
    "an exception of the function": lambda: cg.numpy_function(raising)(X),
    "under XLA": Row(lambda: 2.0 * SINGLE(X), "jit"),
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
