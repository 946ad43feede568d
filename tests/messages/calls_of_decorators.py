"""Wrong calls of the functions that decorate a function: its gradient, a copy, a loop."""

import functools
import types

import keras
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from .table import FOLDER, INTEGERS, Row, X, Y, derive, eager, in_tensorflow_1, ones, options, tangents_of

W = tf.Variable([1.0, 1.0], name="w")
SPEC = tf.TensorSpec([None])


def double(x):
    return 2.0 * x


def twice(x):
    return tf.concat([2.0 * x, x], 0)


def pair(x):
    return x, x


def raising(*_):
    raise TypeError("my own")


def in_a_loop(function):
    def loop(x):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, function(x)), (0, x), maximum_iterations=2)[1]

    return loop


def at_run_time(function, **options):
    """The gradient of a function of a Tensor whose shape is not known while tracing."""
    run = tf.function(lambda x, dy: derive(function, x, dy=dy), [SPEC, SPEC], autograph=False, **options)
    return eager(lambda: run(X, Y))


def f(x):
    return x, lambda dy: dy


def answering(answer):
    """A function of x and y whose grad_fn returns `answer(dy)`."""

    def log1pexp(x, y):
        return x + y, answer

    return cg.custom_gradient(log1pexp)


def single(grad_fn):
    return cg.custom_gradient(lambda x: (2.0 * x, grad_fn))


def with_variable(answer):
    def log1pexp(x):
        return W * x, lambda dy, variables=None: answer(dy)

    return lambda: derive(cg.custom_gradient(log1pexp))


def with_argument(value, answer):
    return lambda: derive(lambda x: cg.custom_gradient(lambda x, p: (2.0 * x, answer))(x, value))


def structured(signature, call, answer):
    """Calls a function with the parameters of `signature` with X, Y and Y, in some structure."""
    function = cg.custom_gradient(functools.wraps(signature)(lambda *args, **kwargs: (X, answer)))
    return lambda: derive(lambda *tensors: call(function, *tensors), X, Y, Y)


def of_a_graph_that_is_gone():
    kept = []
    tf.function(kept.append)(tf.constant(1.0))
    return cg.custom_gradient(lambda x: (kept[0], lambda dy: dy * x))(X)


def with_reference_variable():
    with tf.Graph().as_default():
        v = tf.compat.v1.get_variable("v", [2], use_resource=False)
        cg.custom_gradient(lambda x: (v * x, lambda dy: dy))(tf.constant([1.0, 2.0]))


# Parameters, a call and what grad_fn returns for it.
ANSWERS_OF_STRUCTURES = {
    "too many, with a dict": (
        *(lambda x, k: 0, lambda f, x, y, z: f({"a": x}, y)),
        lambda dy: ({"a": dy}, dy, dy),
    ),
    "one more part": (lambda x, y: 0, lambda f, x, y, z: f([x, 3], {"a": y, "b": z}), lambda dy: (dy, dy)),
    "for self, or for a flag": (
        *(lambda self, x, y, flag: 0, lambda f, x, y, z: f(np, x, y, True)),
        lambda dy: (None, dy, None),
    ),
    "flat, or None for a list": (
        *(lambda x, flag, y: 0, lambda f, x, y, z: f([x, y], z, [3])),
        lambda dy: (None, dy, None),
    ),
}
NO_TENSORS = {
    "an int": 3,
    "text": "fast",
    "None": None,
    "a module": np,
}

# What grad_fn of a function of x and y returns.
ANSWERS = {
    "one gradient of two": lambda dy: dy,
    "three gradients of two": lambda dy: (dy, dy, dy),
    "by names, one unknown": lambda dy: {"x": dy, "z": dy},
    "a dict for a Tensor": lambda dy: ({"a": dy}, dy),
    "a shape": lambda dy: (None, tf.ones([7])),
    "rows of slices": lambda dy: (tf.IndexedSlices(tf.ones([1, 7]), tf.constant([0])), None),
    "complex": lambda dy: (tf.cast(dy, tf.complex64), None),
    "integers": lambda dy: (None, tf.cast(dy, tf.int32)),
    "a Tensor of strings": lambda dy: (tf.constant(["a", "b"]), None),
    "text": lambda dy: ("no", None),
    "a set": lambda dy: {None, 1.0},
}
# The same for a function of x that reads a variable.
ANSWERS_WITH_VARIABLE = {
    "the gradients of variables are left out": lambda dy: dy,
    "the gradients of variables in a dict": lambda dy: (dy, {"w": dy}),
    "too few gradients of variables": lambda dy: (dy, []),
    "the shape of a variable": lambda dy: (dy, [tf.ones([3])]),
}
CUSTOM_GRADIENT = {
    "values": lambda: cg.custom_gradient(X, X, X),
    "values by name": lambda: cg.custom_gradient(fx=X, gx=X, x=X),
    "one value": lambda: cg.custom_gradient(X),
    **options(cg.custom_gradient, axis=[-1], saved_orders=["2", True, 0]),
    "no pair": lambda: cg.custom_gradient(double)(X),
    "too many arguments": lambda: cg.custom_gradient(double)(X, X),
    "too few arguments": lambda: cg.custom_gradient(lambda x, z: (x, lambda dy: (dy, None)))(X),
    "a value of a graph that is gone": eager(of_a_graph_that_is_gone),
    "grad_fn without variables": lambda: derive(cg.custom_gradient(lambda x: (W * x, lambda dy: dy))),
    "grad_fn without parameters": lambda: derive(single(lambda: None)),
    "grad_fn with one parameter of two": lambda: derive(cg.custom_gradient(lambda x: ((x, x), lambda dy: dy))),
    **{name: functools.partial(lambda answer: derive(answering(answer), X, Y), of) for name, of in ANSWERS.items()},
    **{name: with_variable(answer) for name, answer in ANSWERS_WITH_VARIABLE.items()},
    "integers of float numbers": with_argument(INTEGERS, lambda dy: (dy, dy)),
    **{f"a gradient for {name}": with_argument(value, lambda dy: (dy, dy)) for name, value in NO_TENSORS.items()},
    **{name: structured(*row) for name, row in ANSWERS_OF_STRUCTURES.items()},
    "other keys": with_argument({"a": X, "b": X}, lambda dy: (dy, {"p": dy, "q": dy})),
    "keywords by position": lambda: derive(
        lambda x: cg.custom_gradient(lambda x, **options: (x, lambda dy: (dy, dy, dy)))(x, scale=X, bias=X)
    ),
    "a Tensor in an object": lambda: cg.custom_gradient(lambda p: (X, lambda dy: dy))(types.SimpleNamespace(a=X)),
    "an object as value": lambda: cg.custom_gradient(f)(Row(X)),
    "a variable of TensorFlow 1": eager(with_reference_variable),
    "a shape at run time": at_run_time(single(twice)),
    "a shape at run time, under XLA": at_run_time(single(twice), jit_compile=True),
    # TensorFlow's optimizer removes an op if its shape function says that two shapes are the same.
    "a constant at run time": at_run_time(single(lambda dy: tf.ones([1]))),
    "a mask": lambda: derive(single(lambda dy: tf.boolean_mask(dy, dy > 3.5)), X, dy=Y),
}


def fwd(x, y):
    return x * y, (x, y)


def keep(x):
    return x, x


def bwd(residuals, dy):
    return residuals[1] * dy


def scaled(scale, first, dy):
    return scale * dy


CUSTOM_VJP = {
    "as a decorator": lambda: cg.custom_vjp(f),
    "three functions": lambda: cg.custom_vjp(f, keep, keep),
    **options(
        functools.partial(cg.custom_vjp, **{"forward": fwd, "backward": bwd}),
        forward=[3.0],
        backward=[3.0],
        nondiff_argnums=[(0,)],
        nondiff_argnames=["x", ["nope"]],
        materialize_grads=[0],
        saved_orders=["1"],
    ),
    "no residuals": lambda: derive(cg.custom_vjp(double, bwd)),
    "a shape": lambda: derive(cg.custom_vjp(keep, lambda x, dy: dy[:1])),
    "backward without residuals": lambda: derive(cg.custom_vjp(keep, lambda dy: dy)),
    "backward as a partial": lambda: derive(cg.custom_vjp(lambda x: ((x, x), x), functools.partial(scaled, 3.0))),
    "backward without the constant": lambda: derive(
        cg.custom_vjp(lambda x, limit=1.0: keep(x), bwd, nondiff_argnames=["limit"])
    ),
    "backward without variables": lambda: derive(cg.custom_vjp(lambda x: (W * x, x), bwd)),
}


def with_rule(rule, function=double):
    decorated = cg.custom_jvp(function)
    decorated.defjvp(rule)
    return decorated


def tangent_rule(*args):
    return lambda: derive(with_rule(*args))


def tangent(of):
    return tangent_rule(lambda primals, tangents: (double(*primals), of(*tangents)))


CUSTOM_JVP = {
    "a value": lambda: cg.custom_jvp(X),
    "two functions": lambda: cg.custom_jvp(f, keep),
    **options(functools.partial(cg.custom_jvp, fwd), nondiff_argnums=[(0,)], nondiff_argnames=["x", ["nope"]]),
    **options(functools.partial(cg.custom_jvp, fwd), saved_orders=["1"]),
    "no rule": lambda: cg.custom_jvp(double)(X),
    "no rule of a lambda": lambda: cg.custom_jvp(lambda x: x)(X),
    "defjvps": lambda: cg.custom_jvp(keep).defjvps(lambda t, y, x: t),
    "defjvp(3)": lambda: cg.custom_jvp(double).defjvp(3),
    "integers": tangent(lambda t: tf.cast(t, tf.int32)),
    "a shape": tangent(lambda t: t[:1]),
    "a shape at run time, in forward mode": eager(
        lambda: tf.function(
            lambda x: tangents_of(with_rule(lambda x, t: (double(*x), twice(t[0]))), x), [SPEC], autograph=False
        )(X)
    ),
    "another structure": tangent_rule(lambda primals, tangents: (pair(*primals), tangents[0]), pair),
    "no value": tangent_rule(lambda primals, tangents: tangents[0]),
    "one parameter": tangent_rule(lambda tangents: tangents),
    "no parameter for the variable": tangent_rule(lambda primals, tangents: (primals, tangents), lambda x: W * x),
}


GRAD_PASS_THROUGH = {
    "a value": lambda: cg.grad_pass_through(X),
    "a function and its argument": lambda: cg.grad_pass_through(tf.round, X),
    "a shape": lambda: derive(cg.grad_pass_through(tf.reduce_sum)),
    "one value for two inputs": lambda: derive(cg.grad_pass_through(tf.add), X, Y),
    "complex": lambda: derive(lambda x: tf.math.real(cg.grad_pass_through(lambda x: tf.cast(x, tf.complex64))(x))),
    "a shape at run time": at_run_time(lambda x: cg.grad_pass_through(twice)(x)[:2]),
}
COPIES = {
    "a loop": in_a_loop,
    "recompute_grad": cg.recompute_grad,
    "scan": lambda f: lambda x: cg.scan(lambda carry, _: (f(carry), None), x, length=1)[0],
    "override_gradients": lambda f: cg.override_gradients(lambda x: f(tf.sign(x)), {"Sign": cg.rules.pass_through}),
}


class Table:
    """Its conversion to a Tensor fails for a reason of its own."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("my own")


# What the user's own functions raise comes unchanged.
USERS = {
    "grad_fn": lambda: derive(single(raising)),
    "backward": lambda: derive(cg.custom_vjp(keep, raising)),
    "a tangent rule": tangent_rule(raising),
    "a surrogate": lambda: derive(cg.straight_through(double, raising)),
    "a predicate": lambda: cg.override_gradients(double, {lambda op: raising(): bwd})(X),
    "a rule for an op": lambda: derive(cg.override_gradients(tf.nn.relu, {"Relu": raising})),
    "a residual": lambda: derive(cg.implicit_root(raising, double)),
    "a function to recompute": lambda: derive(cg.recompute_grad(raising)),
    "a step of scan": lambda: cg.scan(raising, (0, 0.0), X),
    "an array as init": lambda: cg.scan(lambda carry, x: (carry, x), Table(), X),
    "an array as gx": lambda: cg.embed_gradient(X, Table(), X),
    "a function to check": eager(lambda: cg.testing.check_gradient(raising, [X.numpy()])),
    **{
        f"{name} in {place}": functools.partial(lambda copy, grad_fn: derive(copy(single(grad_fn))), copy, grad_fn)
        for place, copy in COPIES.items()
        for name, grad_fn in (("grad_fn", raising), ("two gradients", pair))
    },
}


def with_numpy(dy):
    return tf.constant(dy.numpy())


UNTRACED = {
    "custom_gradient": single(with_numpy),
    "custom_vjp": cg.custom_vjp(lambda x: (2.0 * x, x), lambda x, dy: with_numpy(dy)),
    "grad_pass_through": cg.grad_pass_through(twice),
}


@functools.cache
def saved():
    """A model with these functions, loaded again."""
    model = tf.Module()
    for name, function in UNTRACED.items():
        setattr(model, name, tf.function(function, input_signature=[tf.TensorSpec([2])]))
    tf.saved_model.save(model, FOLDER / "untraced")
    return tf.saved_model.load(FOLDER / "untraced")


def loaded(name):
    def call():
        function = getattr(saved(), name)
        np.testing.assert_array_equal(function(X)[:2], 2.0 * X)
        return derive(function)

    return eager(call)


def vectorized():
    function = UNTRACED["custom_vjp"]
    return tf.vectorized_map(lambda x: derive(function, x), ones(3, 2), fallback_to_while_loop=False)


SAVED = {"saving the model": eager(lambda: saved.cache_clear() or saved())}
SAVED |= {f"{name}, loaded": loaded(name) for name in UNTRACED} | {"custom_vjp, vectorized": Row(vectorized, "traced")}


def model(x):
    return tf.nn.relu(x, name="activation") + tf.nn.relu(-x) + tf.sin(x)


def rule(of, function=model):
    return lambda: derive(cg.override_gradients(function, {lambda op: op.name == "activation": of}))


def with_braces(op):
    return 1.0


with_braces.__qualname__ = "rule{a}"


def loop_of_tensorflow_1():
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
            tf.compat.v1.while_loop(lambda x: x[0] < 10.0, lambda x: [tf.nn.relu(x) + 1.0], [x], name="loop")
    finally:
        tf.compat.v1.enable_control_flow_v2()
    definition = graph.as_graph_def()
    function = lambda x: tf.graph_util.import_graph_def(definition, {"x:0": x}, ["loop/Exit:0"])  # noqa: E731
    return cg.override_gradients(function, {"Relu": bwd})(X)


OVERRIDE_GRADIENTS = {
    "as a decorator": lambda: cg.override_gradients({"Relu": cg.rules.guided}),
    "the rules first": lambda: cg.override_gradients({"Relu": cg.rules.guided}, tf.nn.relu),
    **options(
        functools.partial(cg.override_gradients, **{"f": model, "rules": {"Relu": bwd}}),
        f={"a module": tf.Module()},
        rules=[[bwd], {}, {3: bwd}, {tf.nn.leaky_relu: bwd}, {"Relu": "guided"}],
        unmatched=["warn"],
        inside=[1],
    ),
    "no match": lambda: cg.override_gradients(model, {"ReLU": bwd, "Sin": bwd, lambda op: False: bwd})(X),
    "no match in an op with its own gradient": lambda: cg.override_gradients(tf.nn.silu, {"Sigmoid": bwd})(X),
    "no match in a loop with a rule": lambda: cg.override_gradients(
        in_a_loop(tf.sin), {"Sin": bwd, "StatelessWhile": bwd}
    )(X),
    "a predicate that returns text": lambda: cg.override_gradients(model, {lambda op: op.type: bwd})(X),
    "a predicate without a parameter": lambda: cg.override_gradients(model, {lambda: True: bwd})(X),
    "two gradients": rule(lambda op, dy: [dy, dy]),
    "a shape": rule(lambda op, dy: dy[:1]),
    "a rule without the op": rule(lambda dy: dy),
    "a rule whose name has braces": rule(with_braces),
    "a loop of TensorFlow 1": loop_of_tensorflow_1,
}
RULES = {f"rules.{name}": {"no op": rule} for name, rule in vars(cg.rules).items() if name in cg.rules.__all__}
RULES["rules.built_in"] |= {
    "a Tensor": lambda: cg.rules.built_in(X),
    "an op without a gradient": lambda: derive(
        cg.override_gradients(lambda x: tf.raw_ops.LinSpace(start=x, stop=x, num=3), {"LinSpace": cg.rules.guided}),
        X[0],
    ),
}
RULES["rules.masked"] |= {
    "an op that mixes elements": lambda: derive(cg.override_gradients(tf.squeeze, {"Squeeze": cg.rules.masked})),
    "as a key": lambda: cg.override_gradients(model, {cg.rules.masked: cg.rules.zero})(X),
}
RULES["rules.clip"] = {
    "by position": lambda: cg.rules.clip(1.0),
    "no limit": lambda: cg.rules.clip(),
}


COUNTER = tf.Variable([0.0, 0.0])
TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10.0, 20.0]), -1.0)


def in_python(x):
    return tf.ensure_shape(tf.py_function(tf.sin, [x], tf.float32), x.shape)


def chain(x):
    return tf.tanh(tf.tanh(tf.tanh(x)))


RECOMPUTE_GRAD = {
    **options(
        functools.partial(cg.recompute_grad, **{"f": double}),
        f=[3],
        keep=["a", [1]],
        policy=[None],
        memory=[True, [1], "much", "2 XB", "0 GiB", 0, -1, 0.0, 1.5],
    ),
    "memory below the least peak": eager(lambda: derive(cg.recompute_grad(chain, memory=1))),
    "memory in bytes for unknown sizes": eager(
        lambda: tf.function(cg.recompute_grad(chain, memory="1 GiB"), input_signature=[SPEC]).get_concrete_function()
    ),
    "memory below the least share for unknown sizes": eager(
        lambda: tf.function(cg.recompute_grad(chain, memory=0.1), input_signature=[SPEC]).get_concrete_function()
    ),
    "a plan for a KerasTensor": eager(lambda: cg.recompute_grad(chain, memory=0.5).plan(keras.Input([2]))),
    "memory in a graph of TensorFlow 1": eager(lambda: in_tensorflow_1(cg.recompute_grad(chain, memory=0.5))),
    "keep=['z'], but no name is given": lambda: derive(cg.recompute_grad(double, keep=["z"])),
    "a variable that a loop writes": lambda: derive(cg.recompute_grad(in_a_loop(lambda x: x * COUNTER.assign_add(X)))),
    "Python code": lambda: derive(cg.recompute_grad(in_python)),
}


def numbers_of_steps():
    run = tf.function(lambda a, b: cg.scan(lambda c, x: (c + x[0] * x[1], None), 0.0, (a, b))[0], [SPEC, SPEC])
    return run(tf.ones([3]), tf.ones([4]))


SCAN = {
    **options(
        functools.partial(cg.scan, **{"f": lambda c, x: (c, x), "init": 0.0, "xs": X}),
        f=[3],
        init={"objects": {"a": object()}, "a TensorArray": [0.0, tf.TensorArray(tf.float32, 3)]},
        xs={
            "None": None,
            "a scalar": (1.0,),
            "ragged": tf.ragged.constant([[1.0], []]),
            "two lengths": {"a": X, "b": tf.ones([4])},
        },
        length=[4, "two"],
        reverse=["yes"],
        checkpoint=[True, "cubic", 0],
        initializer=[0.0],
    ),
    "length=-1": lambda: cg.scan(lambda c, x: (c, x), 0.0, length=-1),
    "no pair": lambda: cg.scan(lambda carry, x: carry, 0.0, X),
    "another structure": lambda: cg.scan(lambda c, x: ((c, c), x), 0.0, X),
    "a Tensor for None": lambda: cg.scan(lambda c, x: (x, None), None, X),
    "another dtype": lambda: cg.scan(lambda c, x: ([tf.cast(c[0], tf.float64)], x), [tf.constant(0.0)], X),
    "another shape": lambda: cg.scan(lambda c, x: (tf.stack([c, c]), x), 0.0, X),
    "a hash table": lambda: cg.scan(lambda c, key: (c + TABLE.lookup(key), None), 0.0, INTEGERS),
    "numbers of steps at run time": eager(numbers_of_steps),
}


WHILE_LOOP = {
    "no limit": lambda: cg.while_loop(lambda x: True, lambda x: (x,), [X]),
    "shape_invariants by position": lambda: cg.while_loop(lambda x: True, lambda x: (x,), [X], [X.shape]),
    **options(
        functools.partial(
            cg.while_loop, **{"cond": lambda x: True, "body": lambda x: (x,), "loop_vars": [X], "maximum_iterations": 3}
        ),
        cond=[True],
        body=[None],
        loop_vars=[X, ()],
        maximum_iterations=[None, -3],
        checkpoint=["cubic"],
        swap_memory=[True],
    ),
    "cond returns a number": lambda: cg.while_loop(lambda x: x[0], lambda x: (x,), (X,), maximum_iterations=3),
    "cond returns several": lambda: cg.while_loop(lambda x: x > 0.0, lambda x: (x,), (X,), maximum_iterations=3),
    "another structure": lambda: cg.while_loop(lambda x: True, pair, (X,), maximum_iterations=3),
}


GROUPS = {
    "custom_gradient": CUSTOM_GRADIENT,
    "custom_vjp": CUSTOM_VJP,
    "custom_jvp": CUSTOM_JVP,
    "grad_pass_through": GRAD_PASS_THROUGH,
    "Exceptions of the user's own functions": USERS,
    "Gradients that cannot be traced": SAVED,
    "override_gradients": OVERRIDE_GRADIENTS,
    **RULES,
    "recompute_grad": RECOMPUTE_GRAD,
    "checkpoint_name": {"name=3": lambda: cg.checkpoint_name(X, 3)},
    "scan": SCAN,
    "while_loop": WHILE_LOOP,
}
