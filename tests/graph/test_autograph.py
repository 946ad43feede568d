"""AutoGraph translates what users write, and nothing of this library: a first trace costs no more for it."""

import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api  # Only a test may look inside.

import tf_cg_ops as cg

from ..support.modes import derivative

MODULES = [
    cg,
    cg.compat.bayesflow,
    cg.compat.tfp_math,
    cg.layers,
    cg.linear,
    cg.rules,
    cg.saved_model,
    cg.sysconfig,
    cg.testing,
]


def public_names():
    """The public functions and the layers; values and errors are made by them."""
    for module in MODULES:
        for name in getattr(module, "__all__", None) or ["custom_gradient", "get_lib"]:
            value = getattr(module, name, None)
            if isinstance(value, types.FunctionType) or (module is cg.layers and isinstance(value, type)):
                yield f"{module.__name__}.{name}".removeprefix("tf_cg_ops.")


def resolve(name):
    found = cg
    for part in name.split("."):
        found = getattr(found, part)
    return found


def users_own(x):
    """Translated, or the condition would be an error."""
    if tf.reduce_sum(x) > 0.0:
        x = 2.0 * x
    return x


def residual(y, x):
    return y - x


def half_of(x):
    return 0.5 * x, np.full_like(x, 0.5)


def with_grad_fn(x):
    return tf.sin(x), identity


def with_residuals(x):
    return tf.sin(x), x


def identity(dy):
    return dy


def backward(residuals, dy):
    return residuals * dy


def half_sine(x):
    return 0.5 * tf.sin(x)


def with_rule(decorated):
    decorated.defjvp(lambda primals, tangents: (tf.sin(primals[0]), tangents[0]))
    return decorated


# A function for each public name, which a tf.function calls. A decorator is applied inside of it.
CALLS = {
    "clip_gradient": lambda x: cg.clip_gradient(x, norm=1.0),
    "custom_gradient": lambda x: cg.custom_gradient(with_grad_fn)(x),
    "custom_jvp": lambda x: with_rule(cg.custom_jvp(half_sine))(x),
    "custom_vjp": lambda x: cg.custom_vjp(with_residuals, backward)(x),
    "embed_gradient": lambda x: cg.embed_gradient(x, lambda: 2.0 * x, x),
    "numpy_function": lambda x: cg.numpy_function(half_of)(x),
    "grad_pass_through": lambda x: cg.grad_pass_through(tf.round)(x),
    "implicit_root": lambda x: cg.implicit_root(residual)(tf.identity)(x),
    "implicit_fixed_point": lambda x: cg.implicit_fixed_point(lambda y, x: x, tf.identity)(x),
    "implicit_minimum": lambda x: cg.implicit_minimum(lambda y, x: tf.reduce_sum((y - x) ** 2), tf.identity)(x),
    "linear.cg": lambda x: cg.linear.cg(lambda u: 2.0 * u, x),
    "linear.gmres": lambda x: cg.linear.gmres(lambda u: 2.0 * u, x),
    "checkpoint_name": lambda x: cg.checkpoint_name(x, "x"),
    "recompute_grad": lambda x: cg.recompute_grad(tf.sin)(x),
    "override_gradients": lambda x: cg.override_gradients(tf.nn.relu, {"Relu": cg.rules.guided})(x),
    **{
        f"rules.{name}": lambda x, name=name: cg.override_gradients(tf.nn.relu, {"Relu": getattr(cg.rules, name)})(x)
        for name in cg.rules.__all__
    },
    "rules.clip": lambda x: cg.override_gradients(tf.nn.relu, {"Relu": cg.rules.clip(norm=1.0)})(x),
    "reverse_gradient": lambda x: cg.reverse_gradient(x),
    "scale_gradient": lambda x: cg.scale_gradient(x, 0.5),
    "scan": lambda x: cg.scan(lambda carry, _: (tf.sin(carry), None), x, length=3)[0],
    "while_loop": lambda x: cg.while_loop(lambda x: True, lambda x: (tf.sin(x),), (x,), 3)[0],
    "straight_through": lambda x: cg.straight_through(surrogate="sigmoid")(tf.round)(x),
    "watch_gradient": lambda x: cg.watch_gradient(x, "x", check_numerics=True),
    "compat.bayesflow.custom_gradient": lambda x: cg.compat.bayesflow.custom_gradient(x, x, x),
    "compat.tfp_math.custom_gradient": lambda x: cg.compat.tfp_math.custom_gradient(x, x, x),
    "sysconfig.get_lib": lambda x: tf.strings.length(cg.sysconfig.get_lib()) * tf.cast(x, tf.int32),
    "layers.EmbedGradient": lambda x: cg.layers.EmbedGradient()([x, x, x]),
    **{
        f"layers.{type(layer).__name__}": lambda x, layer=layer: layer(x)
        for layer in (
            cg.layers.GradientReversal(),
            cg.layers.GradientScale(0.5),
            cg.layers.GradientClip(norm=1.0),
            cg.layers.StraightThrough(tf.sign),
            cg.layers.WatchGradient(check_numerics=True),
            cg.layers.Recompute(cg.layers.GradientReversal()),
        )
    },
}
# They run models and functions of their own, and are marked all the same.
NOT_FOR_GRAPHS = {
    "layers.disable_remat",
    "layers.enable_remat",
    "saved_model.adopt",
    "saved_model.inspect",
    "saved_model.override",
    "saved_model.strip",
    "testing.check_gradient",
}


@pytest.fixture
def translated(monkeypatch):
    """The functions that AutoGraph translates, by module and name."""
    found = []
    convert = api._convert_actual

    def record(entity, *args, **kwargs):
        found.append(f"{entity.__module__}.{entity.__qualname__}")
        return convert(entity, *args, **kwargs)

    monkeypatch.setattr(api, "_convert_actual", record)
    return found


def test_every_public_name_is_listed():
    assert set(public_names()) == set(CALLS) | NOT_FOR_GRAPHS


@pytest.mark.parametrize("name", [name for name in public_names() if not name.startswith("layers.")])
def test_every_public_function_is_marked(name):
    assert api.is_autograph_artifact(resolve(name))


@pytest.mark.parametrize("name", CALLS)
def test_nothing_of_the_library_is_translated(name, translated):
    def value(x):
        return users_own(CALLS[name](x))

    run = value if name == "sysconfig.get_lib" else derivative(value)
    tf.function(lambda x: run(tf.cast(x, tf.float32))).get_concrete_function(tf.TensorSpec([2]))
    assert any(entry.endswith(".users_own") for entry in translated) or name == "sysconfig.get_lib"
    assert [entry for entry in translated if entry.startswith("tf_cg_ops")] == []
