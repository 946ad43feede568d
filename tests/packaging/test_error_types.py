"""One rule for the errors of all public functions.

A wrong type or dtype is a TypeError; a wrong value, shape, number or structure is a ValueError; what only shows at run
time is a tf.errors.InvalidArgumentError. The message begins with the name of the function.
"""

import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

pytestmark = pytest.mark.core

X = tf.constant([1.0, 2.0])
INTEGERS = tf.constant([1, 2])
OTHER_SHAPE = tf.ones([3])


def double(x):
    return 2.0 * x


def derive(function, x=X):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def answering(answer):
    """A function whose grad_fn returns `answer(dy)`."""
    return lambda x: (2.0 * x, answer)


def to_complex(dy):
    return tf.cast(dy, tf.complex64)


def first(dy):
    return dy[:1]


def two(dy):
    return dy, dy


def with_tangent(tangent):
    function = cg.custom_jvp(double)
    function.defjvp(lambda primals, tangents: (double(*primals), tangent(*tangents)))
    return function


def derive_relu(rule):
    return derive(cg.override_gradients(tf.nn.relu, {"Relu": rule}))


def step(carry, x):
    return carry, x


def body(x):
    return (x,)


def always(x):
    return True


class Rows:
    """Calls that must raise a TypeError, a ValueError, or an InvalidArgumentError."""

    def __init__(self, types, values=(), at_run_time=()):
        self.by_error = {TypeError: types, ValueError: values, tf.errors.InvalidArgumentError: at_run_time}


def of_embedding(function):
    """The rows of a function `(fx, gx, x)`."""
    return Rows(
        types=[
            lambda: function("text", X, X),
            lambda: function(X, None, X),
            lambda: function(INTEGERS, INTEGERS, INTEGERS),
            lambda: function(X, X, tf.cast(X, tf.float64)),
            lambda: function(X, X, X, fx_gx_manually_stopped=1),
            lambda: function(X),
        ],
        values=[lambda: tf.function(function)(X, OTHER_SHAPE, X)],
    )


def of_embed_gradient():
    rows = of_embedding(cg.embed_gradient)
    rows.by_error[TypeError] += [
        lambda: cg.embed_gradient(X, X, X, axis=True),
        lambda: cg.embed_gradient(X, X, X, axis="x"),
        lambda: cg.embed_gradient(X, lambda x: x, X),
        lambda: derive(lambda x: cg.embed_gradient(x, lambda: "text", x)),
    ]
    rows.by_error[ValueError] += [
        lambda: cg.embed_gradient(X, [X, X], X),
        lambda: cg.embed_gradient(X, [X, X], [X]),
        lambda: cg.embed_gradient(X, [], []),
        lambda: cg.embed_gradient(X, X, X, axis=tf.constant([[0]])),
        lambda: tf.function(lambda: cg.embed_gradient(X, X, X, axis=7))(),
    ]
    rows.by_error[tf.errors.InvalidArgumentError] = [
        lambda: cg.embed_gradient(X, OTHER_SHAPE, X),
        lambda: cg.embed_gradient(X, X, X, axis=7),
        lambda: derive(lambda x: cg.embed_gradient(x, lambda: OTHER_SHAPE, x)),
    ]
    return rows


def of_tfp():
    rows = of_embedding(cg.compat.tfp_math.custom_gradient)
    rows.by_error[ValueError] += [
        lambda: cg.compat.tfp_math.custom_gradient(X, OTHER_SHAPE, X),
        lambda: cg.compat.tfp_math.custom_gradient(X, [X, X], X),
    ]
    return rows


def of_contrib():
    rows = of_embedding(cg.compat.bayesflow.custom_gradient)
    rows.by_error[TypeError] += [lambda: cg.compat.bayesflow.custom_gradient(X, X, X, axis=1.5)]
    rows.by_error[ValueError] += [
        lambda: cg.compat.bayesflow.custom_gradient(X, OTHER_SHAPE, X),
        lambda: cg.compat.bayesflow.custom_gradient(X, X, X, axis=7),
    ]
    return rows


def of_implicit(make, wrong_shape):
    """The rows of an implicit function, made from the equations and a solver."""
    return Rows(
        types=[
            lambda: make(3, double),
            lambda: make(double, 3),
            lambda: make(double, double, batched=3),
            lambda: make(double, double, has_aux="yes"),
            lambda: make(double, double, check_solution=3),
            lambda: make(double, double, linear_solve=3),
            lambda: make(lambda y, x: y - x, lambda x: "text")(X),
        ],
        values=[lambda: derive(make(wrong_shape, tf.identity))],
    )


def of_solver(solve, **limit):
    return Rows(
        types=[
            lambda: solve(3, X),
            lambda: solve(double, "text"),
            lambda: solve(double, INTEGERS),
            lambda: solve(double, X, tol="small"),
            lambda: solve(double, X, **{name: 1.5 for name in limit}),
            lambda: solve(lambda u: tf.cast(u, tf.float64), X),
        ],
        values=[
            lambda: solve(double, X, tol=-1.0),
            lambda: solve(double, X, **limit),
            lambda: solve(lambda u: u[:1], X),
            lambda: solve(lambda u: (u, u), X),
        ],
    )


def of_rule(rule):
    return Rows(types=[lambda: rule(), lambda: rule(X), lambda: rule(3, X)])


ROWS = {
    "checkpoint_name": Rows(types=[lambda: cg.checkpoint_name(X, 3)]),
    "clip_gradient": Rows(
        types=[
            lambda: cg.clip_gradient("text", norm=1.0),
            lambda: cg.clip_gradient(INTEGERS, norm=1.0),
            lambda: cg.clip_gradient(X, norm="large"),
            lambda: cg.clip_gradient(X, norm=1j),
            lambda: cg.clip_gradient(X, norm=1.0, axis="rows"),
            lambda: cg.clip_gradient(to_complex(X), value=1.0),
        ],
        values=[
            lambda: cg.clip_gradient(X),
            lambda: cg.clip_gradient(X, norm=1.0, value=1.0),
            lambda: cg.clip_gradient(X, norm=-1.0),
            lambda: cg.clip_gradient(X, norm=[1.0, 2.0]),
            lambda: cg.clip_gradient(X, value=1.0, axis=0),
            lambda: cg.clip_gradient([], norm=1.0),
        ],
    ),
    "compat.bayesflow.custom_gradient": of_contrib(),
    "compat.tfp_math.custom_gradient": of_tfp(),
    "custom_gradient": Rows(
        types=[
            lambda: cg.custom_gradient(X),
            lambda: cg.custom_gradient(X, X, X),
            lambda: cg.custom_gradient(double, saved_orders="2"),
            lambda: cg.custom_gradient(double)(X),
            lambda: cg.custom_gradient(double)(X, X),
            lambda: derive(cg.custom_gradient(answering(to_complex))),
            lambda: derive(cg.custom_gradient(answering(lambda dy: tf.cast(dy, tf.int32)))),
            lambda: derive(cg.custom_gradient(answering(lambda dy: tf.cast(dy, tf.bool)))),
            lambda: derive(cg.custom_gradient(answering(lambda dy: np.array([1, 2])))),
            lambda: derive(cg.custom_gradient(answering(lambda dy: np.array([True, False])))),
            lambda: derive(cg.custom_gradient(answering(lambda dy: True))),
            lambda: derive(cg.custom_gradient(answering(lambda dy: "text"))),
            lambda: derive(cg.custom_gradient(answering(lambda dy: {1.0}))),
            lambda: derive(cg.custom_gradient(answering(lambda: None))),
        ],
        values=[
            lambda: cg.custom_gradient(double, saved_orders=0),
            lambda: derive(cg.custom_gradient(answering(first))),
            lambda: derive(cg.custom_gradient(answering(two))),
            lambda: derive(cg.custom_gradient(answering(lambda dy: {"z": dy}))),
        ],
    ),
    "custom_jvp": Rows(
        types=[
            lambda: cg.custom_jvp(X),
            lambda: cg.custom_jvp(double, double),
            lambda: cg.custom_jvp(double, nondiff_argnames="x"),
            lambda: cg.custom_jvp(double, saved_orders=1.5),
            lambda: cg.custom_jvp(double)(X),
            lambda: cg.custom_jvp(double).defjvp(3),
            lambda: derive(with_tangent(to_complex)),
            lambda: derive(with_tangent(lambda t: tf.cast(t, tf.int32))),
            lambda: derive(with_tangent(lambda t: np.array([1, 2]))),
            lambda: derive(with_tangent(lambda t: "text")),
        ],
        values=[
            lambda: cg.custom_jvp(double, nondiff_argnames=["z"]),
            lambda: cg.custom_jvp(double, saved_orders=0),
            lambda: derive(with_tangent(first)),
            lambda: derive(with_tangent(two)),
        ],
    ),
    "custom_vjp": Rows(
        types=[
            lambda: cg.custom_vjp(X, double),
            lambda: cg.custom_vjp(double, X),
            lambda: cg.custom_vjp(double),
            lambda: cg.custom_vjp(double, double, nondiff_argnames="x"),
            lambda: cg.custom_vjp(double, double, materialize_grads=0),
            lambda: cg.custom_vjp(double, double, saved_orders="1"),
            lambda: cg.custom_vjp(double, double)(X),
            lambda: derive(cg.custom_vjp(lambda x: (x, x), lambda x, dy: to_complex(dy))),
            lambda: derive(cg.custom_vjp(lambda x: (x, x), lambda dy: dy)),
        ],
        values=[
            lambda: cg.custom_vjp(double, double, nondiff_argnames=["z"]),
            lambda: cg.custom_vjp(double, double, saved_orders=0),
            lambda: derive(cg.custom_vjp(lambda x: (x, x), lambda x, dy: first(dy))),
            lambda: derive(cg.custom_vjp(lambda x: (x, x), lambda x, dy: two(dy))),
        ],
    ),
    "embed_gradient": of_embed_gradient(),
    "grad_pass_through": Rows(
        types=[
            lambda: cg.grad_pass_through(X),
            lambda: derive(cg.grad_pass_through(to_complex)),
        ],
        values=[lambda: derive(cg.grad_pass_through(first)), lambda: derive(cg.grad_pass_through(two))],
    ),
    "implicit_fixed_point": of_implicit(cg.implicit_fixed_point, lambda y, x: y[:1]),
    "implicit_minimum": of_implicit(cg.implicit_minimum, lambda y, x: y),
    "implicit_root": of_implicit(cg.implicit_root, lambda y, x: y[:1]),
    "layers.EmbedGradient": Rows(
        types=[
            lambda: cg.layers.EmbedGradient(axis=1.5),
            lambda: cg.layers.EmbedGradient(fx_gx_manually_stopped="no"),
            lambda: cg.layers.EmbedGradient().call(X),
            lambda: cg.layers.EmbedGradient().call([X, INTEGERS, X]),
        ],
        values=[lambda: cg.layers.EmbedGradient().call([X, X])],
    ),
    "layers.GradientClip": Rows(
        types=[
            lambda: cg.layers.GradientClip(norm="large"),
            lambda: cg.layers.GradientClip(norm=1.0, axis="rows"),
            lambda: cg.layers.GradientClip(norm=1.0).call(INTEGERS),
        ],
        values=[lambda: cg.layers.GradientClip(), lambda: cg.layers.GradientClip(norm=-1.0)],
    ),
    "layers.GradientReversal": Rows(
        types=[lambda: cg.layers.GradientReversal("half"), lambda: cg.layers.GradientReversal().call(INTEGERS)],
        values=[
            lambda: cg.layers.GradientReversal(tf.Variable(1.0)),
            lambda: cg.layers.GradientReversal([1.0, 2.0, 3.0]).call(X),
        ],
    ),
    "layers.GradientScale": Rows(
        types=[lambda: cg.layers.GradientScale("half"), lambda: cg.layers.GradientScale(2.0).call(INTEGERS)],
        values=[
            lambda: cg.layers.GradientScale(tf.Variable(1.0)),
            lambda: cg.layers.GradientScale([1.0, 2.0, 3.0]).call(X),
        ],
    ),
    "layers.Recompute": Rows(
        types=[
            lambda: cg.layers.Recompute(double),
            lambda: cg.layers.Recompute(cg.layers.GradientScale(2.0), keep=3),
        ],
        values=[lambda: derive(cg.layers.Recompute(cg.layers.GradientScale(2.0), keep=["z"]).call)],
    ),
    "layers.StraightThrough": Rows(
        types=[
            lambda: cg.layers.StraightThrough(3),
            lambda: cg.layers.StraightThrough("sign", 3),
            lambda: cg.layers.StraightThrough("sign", slope="steep"),
            lambda: cg.layers.StraightThrough("sign").call(INTEGERS),
        ],
        values=[
            lambda: cg.layers.StraightThrough("nope"),
            lambda: cg.layers.StraightThrough("sign", "nope"),
            lambda: cg.layers.StraightThrough("sign", slope=-1.0),
        ],
    ),
    "layers.WatchGradient": Rows(
        types=[lambda: cg.layers.WatchGradient(call=3), lambda: cg.layers.WatchGradient(print="yes")],
        values=[lambda: cg.layers.WatchGradient()],
    ),
    "linear.cg": of_solver(cg.linear.cg, maxiter=0),
    "linear.gmres": of_solver(cg.linear.gmres, restart=0),
    "numpy_function": Rows(
        types=[
            lambda: cg.numpy_function(3),
            lambda: cg.numpy_function(double, 3),
            lambda: cg.numpy_function(double, vjp=3),
            lambda: cg.numpy_function(double, jvp=3),
            lambda: cg.numpy_function(double, batched="yes"),
            lambda: cg.numpy_function(double, nondiff_argnames="x"),
            lambda: cg.numpy_function(lambda x: (x, x))(tf.SparseTensor([[0]], [1.0], [2])),
            lambda: cg.numpy_function(lambda x: x)(X),
            lambda: derive(cg.numpy_function(lambda x: (x, 1j * x))),
        ],
        values=[
            lambda: cg.numpy_function(double, nondiff_argnames=["z"]),
            lambda: derive(cg.numpy_function(lambda x: (x, x[:1]))),
            lambda: cg.numpy_function(lambda x: (x[:1], x))(X),
        ],
    ),
    "override_gradients": Rows(
        types=[
            lambda: cg.override_gradients(3, {"Relu": double}),
            lambda: cg.override_gradients(double, [double]),
            lambda: cg.override_gradients(double, {3: double}),
            lambda: cg.override_gradients(double, {"Relu": 3}),
            lambda: cg.override_gradients(double, {tf.nn.relu: double}),
            lambda: derive_relu(lambda op, dy: to_complex(dy)),
            lambda: derive_relu(lambda op, dy: np.array([1, 2])),
            lambda: derive_relu(lambda op, dy: "text"),
            lambda: derive_relu(lambda dy: dy),
        ],
        values=[
            lambda: cg.override_gradients(double, {}),
            lambda: cg.override_gradients(double, {"Relu": double})(X),
            lambda: derive_relu(lambda op, dy: first(dy)),
            lambda: derive_relu(lambda op, dy: two(dy)),
        ],
    ),
    "recompute_grad": Rows(
        types=[lambda: cg.recompute_grad(3), lambda: cg.recompute_grad(double, keep=3)],
        values=[lambda: derive(cg.recompute_grad(double, keep=["z"]))],
    ),
    "reverse_gradient": Rows(
        types=[
            lambda: cg.reverse_gradient("text"),
            lambda: cg.reverse_gradient(INTEGERS),
            lambda: cg.reverse_gradient(X, "half"),
            lambda: cg.reverse_gradient(X, 1j),
        ],
        values=[lambda: cg.reverse_gradient(X, OTHER_SHAPE)],
    ),
    "rules.built_in": of_rule(cg.rules.built_in),
    "rules.clip": Rows(
        types=[
            lambda: cg.rules.clip(1.0),
            lambda: cg.rules.clip(norm="large"),
            lambda: cg.rules.clip(norm=1.0, axis="rows"),
        ],
        values=[
            lambda: cg.rules.clip(),
            lambda: cg.rules.clip(norm=-1.0),
            lambda: cg.rules.clip(value=1.0, axis=0),
        ],
    ),
    "rules.deconvnet": of_rule(cg.rules.deconvnet),
    "rules.guided": of_rule(cg.rules.guided),
    "rules.pass_through": of_rule(cg.rules.pass_through),
    "rules.zero": of_rule(cg.rules.zero),
    "scale_gradient": Rows(
        types=[
            lambda: cg.scale_gradient("text", 2.0),
            lambda: cg.scale_gradient(INTEGERS, 2.0),
            lambda: cg.scale_gradient(X, "half"),
        ],
        values=[lambda: cg.scale_gradient(X, OTHER_SHAPE)],
    ),
    "scan": Rows(
        types=[
            lambda: cg.scan(3, X, X),
            lambda: cg.scan(lambda carry, x: carry, X, X),
            lambda: cg.scan(lambda carry, x: (tf.cast(carry, tf.float64), x), X, X),
            lambda: cg.scan(step, X, X, length="two"),
            lambda: cg.scan(step, X, X, reverse="yes"),
            lambda: cg.scan(step, X, X, checkpoint=2.5),
            lambda: cg.scan(step, object(), X),
        ],
        values=[
            lambda: cg.scan(step, X),
            lambda: cg.scan(step, X, 3.0),
            lambda: cg.scan(step, X, X, length=7),
            lambda: cg.scan(lambda carry, x: (carry[:1], x), X, X),
            lambda: cg.scan(lambda carry, x: ((carry, carry), x), X, X),
            lambda: cg.scan(step, X, X, checkpoint="cubic"),
            lambda: cg.scan(step, X, X, checkpoint=0),
        ],
    ),
    "straight_through": Rows(
        types=[
            lambda: cg.straight_through(3),
            lambda: cg.straight_through(tf.sign, 3),
            lambda: cg.straight_through(tf.sign, slope="steep"),
            lambda: cg.straight_through(tf.sign)(INTEGERS),
            lambda: derive(cg.straight_through(tf.sign, derivative=to_complex)),
        ],
        values=[
            lambda: cg.straight_through(tf.sign, "nope"),
            lambda: cg.straight_through(tf.sign, slope=-1.0),
            lambda: cg.straight_through(first)(X),
        ],
    ),
    "testing.audit": Rows(
        types=[
            lambda: cg.testing.audit(3, [X]),
            lambda: cg.testing.audit(double, X),
            lambda: cg.testing.audit(double),
            lambda: cg.testing.audit(double, [X], like=3),
            lambda: cg.testing.audit(double, [X], like={"double": 3}),
            lambda: cg.testing.audit(double, [X], max_elements="all"),
        ],
        values=[
            lambda: cg.testing.audit(double, [X], max_elements=0),
            lambda: cg.testing.audit(cg.reverse_gradient, [X], like={"nope": None}),
            lambda: cg.testing.audit(cg.reverse_gradient, [X], upstream=[X, X]),
        ],
    ),
    "testing.check_gradient": Rows(
        types=[
            lambda: cg.testing.check_gradient(3, [X]),
            lambda: cg.testing.check_gradient(double, X),
            lambda: cg.testing.check_gradient(double, [X], kwargs=3),
            lambda: cg.testing.check_gradient(double, [X], modes="eager"),
            lambda: cg.testing.check_gradient(double, [X], like=3),
            lambda: cg.testing.check_gradient(double, [X], intended_gradient=3),
            lambda: cg.testing.check_gradient(double, [X], second_order="yes"),
            lambda: cg.testing.check_gradient(double, [X], forward_mode="yes"),
            lambda: cg.testing.check_gradient(double, [X], rtol="small"),
            lambda: cg.testing.check_gradient(double, [X], step="small"),
            lambda: cg.testing.check_gradient(double, [X], seed="zero"),
            lambda: cg.testing.check_gradient(double, [X], max_elements="all"),
        ],
        values=[
            lambda: cg.testing.check_gradient(double, [X], modes=["nope"]),
            lambda: cg.testing.check_gradient(double, [X], rtol=-1.0),
            lambda: cg.testing.check_gradient(double, [X], atol=-1.0),
            lambda: cg.testing.check_gradient(double, [X], step=0.0),
            lambda: cg.testing.check_gradient(double, [X], max_elements=0),
        ],
    ),
    "watch_gradient": Rows(
        types=[
            lambda: cg.watch_gradient("text", "h", print=True),
            lambda: cg.watch_gradient(INTEGERS, "h", print=True),
            lambda: cg.watch_gradient(X, 3, print=True),
            lambda: cg.watch_gradient(X, "h", print="yes"),
            lambda: cg.watch_gradient(X, "h", check_numerics="yes"),
            lambda: cg.watch_gradient(X, "h", call=3),
        ],
        values=[
            lambda: cg.watch_gradient(X, "", print=True),
            lambda: cg.watch_gradient(X, "h"),
            lambda: cg.watch_gradient([], "h", print=True),
        ],
    ),
    "while_loop": Rows(
        types=[
            lambda: cg.while_loop(3, body, (X,), 3),
            lambda: cg.while_loop(always, 3, (X,), 3),
            lambda: cg.while_loop(always, body, X, 3),
            lambda: cg.while_loop(always, body, (X,), "three"),
            lambda: cg.while_loop(always, body, (X,), 3, checkpoint=2.5),
            lambda: cg.while_loop(lambda x: x[0], body, (X,), 3),
            lambda: cg.while_loop(always, lambda x: (tf.cast(x, tf.float64),), (X,), 3),
        ],
        values=[
            lambda: cg.while_loop(always, body, (), 3),
            lambda: cg.while_loop(always, body, (X,), -3),
            lambda: cg.while_loop(always, body, (X,), 3, checkpoint="cubic"),
            lambda: cg.while_loop(always, body, (X,), 3, checkpoint=0),
            lambda: cg.while_loop(lambda x: x > 0.0, body, (X,), 3),
            lambda: cg.while_loop(always, lambda x: (x[:1],), (X,), 3),
            lambda: cg.while_loop(always, lambda x: (x, x), (X,), 3),
        ],
    ),
}


# The same, as functions of the folder of a SavedModel and of one to write.
OPTIONS = Rows(
    types=[
        lambda change, source, target: change(3, target),
        lambda change, source, target: change(source, 3),
        lambda change, source, target: change(source, target, check="yes"),
        lambda change, source, target: change(source, target, inputs=[X]),
        lambda change, source, target: change(source, target, inputs={"serving_default": X}),
        lambda change, source, target: change(source, target, progress=3),
    ],
    values=[lambda change, source, target: change(source, target, inputs={"nope": {}})],
)


def of_changes(change, types, values):
    """The rows of a function that writes a changed copy."""

    def bound(row):
        return lambda source, target: row(change, source, target)

    return Rows(
        types=[*map(bound, OPTIONS.by_error[TypeError]), *types],
        values=[*map(bound, OPTIONS.by_error[ValueError]), *values],
    )


def keep(op, dy):
    return dy


SAVED_ROWS = {
    "saved_model.adopt": of_changes(
        cg.saved_model.adopt,
        types=[lambda source, target: cg.saved_model.adopt(source, target, 3)],
        values=[
            lambda source, target: cg.saved_model.adopt(source, target, "nope"),
            lambda source, target: cg.saved_model.adopt(source, target, {"nope": "saved"}),
        ],
    ),
    "saved_model.inspect": Rows(types=[lambda source, target: cg.saved_model.inspect(3)]),
    "saved_model.override": of_changes(
        lambda *arguments, **options: cg.saved_model.override(*arguments, {"Relu": keep}, **options),
        types=[
            lambda source, target: cg.saved_model.override(source, target, [keep]),
            lambda source, target: cg.saved_model.override(source, target, {"Relu": lambda dy: dy}),
            lambda source, target: cg.saved_model.override(source, target, {"Relu": lambda op, dy: to_complex(dy)}),
        ],
        values=[
            lambda source, target: cg.saved_model.override(source, target, {}),
            lambda source, target: cg.saved_model.override(source, target, {"Exp": keep}),
            lambda source, target: cg.saved_model.override(source, target, {"Relu": lambda op, dy: two(dy)}),
        ],
    ),
    "saved_model.strip": of_changes(cg.saved_model.strip, types=[], values=[]),
}

# They take no argument.
WITHOUT_ARGUMENTS = {
    "layers.disable_remat",
    "layers.enable_remat",
    "sysconfig.get_lib",
    "sysconfig.get_lib_with_cc",
    "sysconfig.gpu_kernels",
}


def public_names():
    """The names of all public functions and layers."""
    modules = {"": cg} | {
        f"{name}.": getattr(cg, name) for name in ("layers", "linear", "rules", "saved_model", "testing")
    }
    names = {prefix + name for prefix, module in modules.items() for name in module.__all__}
    names |= {f"sysconfig.{name}" for name, value in vars(cg.sysconfig).items() if inspect.isfunction(value)}
    names |= {f"compat.{name}.custom_gradient" for name in ("bayesflow", "tfp_math")}
    return {name for name in names if is_function_or_layer(name)}


def is_function_or_layer(name):
    value = cg
    for part in name.split("."):
        value = getattr(value, part)
    is_report = inspect.isclass(value) and not name.startswith("layers.")
    return callable(value) and not is_report


def test_every_public_function_has_rows():
    assert public_names() - WITHOUT_ARGUMENTS == {*ROWS, *SAVED_ROWS}
    for name in WITHOUT_ARGUMENTS:
        module, function = name.split(".")
        assert not inspect.signature(getattr(getattr(cg, module), function)).parameters


def cases(rows):
    """The name, the error and the number of each row."""
    return [
        pytest.param(name, error, i, id=f"{name}-{error.__name__}-{i}")
        for name, of_name in rows.items()
        for error, calls in of_name.by_error.items()
        for i in range(len(calls))
    ]


def check(name, error, call):
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert re.match(rf"{re.escape(name.removeprefix('testing.'))}: ", str(raised.value)), raised.value


@pytest.mark.parametrize(("name", "error", "i"), cases(ROWS))
def test_a_wrong_argument_raises_the_error_of_its_kind(name, error, i):
    check(name, error, ROWS[name].by_error[error][i])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    model = tf.Module()
    model.f = tf.function(lambda x: tf.nn.relu(x), input_signature=[tf.TensorSpec([None])])
    folder = tmp_path_factory.mktemp("saved") / "model"
    tf.saved_model.save(model, folder, signatures=model.f)
    return folder


@pytest.mark.parametrize(("name", "error", "i"), cases(SAVED_ROWS))
def test_a_wrong_argument_for_a_saved_model_raises_the_error_of_its_kind(name, error, i, source, tmp_path):
    check(name, error, lambda: SAVED_ROWS[name].by_error[error][i](source, tmp_path / "target"))
    assert list(tmp_path.iterdir()) == []
