"""AutoGraph translates the users' functions and nothing of this library, so a first trace does not cost more."""

import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx  # Only a test may look inside.
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


def users_own(x):
    """If it were not translated, the condition would raise an error."""
    if tf.reduce_sum(x) > 0.0:
        x = 2.0 * x
    return x


def with_rule(decorated):
    decorated.defjvp(lambda primals, tangents: (tf.sin(primals[0]), tangents[0]))
    return decorated


# Each runs inside a tf.function, and makes there the function that it calls.
CALLS = [
    lambda x: cg.custom_gradient(lambda x: (tf.sin(x), lambda dy: dy))(x),
    lambda x: with_rule(cg.custom_jvp(lambda x: 0.5 * tf.sin(x)))(x),
    lambda x: cg.custom_vjp(lambda x: (tf.sin(x), x), lambda x, dy: x * dy)(x),
    lambda x: cg.embed_gradient(x, lambda: 2.0 * x, x),
    lambda x: cg.numpy_function(lambda x: (0.5 * x, np.full_like(x, 0.5)))(x),
    lambda x: cg.grad_pass_through(tf.round)(x),
    lambda x: cg.implicit_root(lambda y, x: y - x)(tf.identity)(x),
    lambda x: cg.implicit_minimum(lambda y, x: tf.reduce_sum((y - x) ** 2), tf.identity)(x),
    lambda x: cg.linear.gmres(lambda u: 2.0 * u, x),
    lambda x: cg.recompute_grad(tf.sin)(x),
    lambda x: cg.override_gradients(tf.nn.relu, {"Relu": cg.rules.guided})(x),
    lambda x: cg.scan(lambda carry, _: (tf.sin(carry), None), x, length=3)[0],
    lambda x: cg.while_loop(lambda x: True, lambda x: (tf.sin(x),), (x,), maximum_iterations=3)[0],
    lambda x: cg.straight_through(surrogate="sigmoid")(tf.round)(x),
    lambda x: cg.watch_gradient(x, "x", check_numerics=True),
    cg.layers.ClipGradient(norm=1.0),
    cg.layers.Recompute(cg.layers.ReverseGradient()),
]


def test_every_public_function_is_marked():
    for module in MODULES:
        for name in getattr(module, "__all__", None) or ["custom_gradient", "get_library"]:
            if isinstance(value := getattr(module, name, None), types.FunctionType):
                assert api.is_autograph_artifact(value), f"{module.__name__}.{name}"


def test_nothing_of_the_library_is_translated(monkeypatch):
    translated, convert = [], api._convert_actual

    def record(entity, *args, **kwargs):
        translated.append(f"{entity.__module__}.{entity.__qualname__}")
        return convert(entity, *args, **kwargs)

    def value(x):
        total = 0.0
        for call in CALLS:
            total += users_own(call(x))
        return total

    monkeypatch.setattr(api, "_convert_actual", record)
    tf.function(derivative(value)).get_concrete_function(tf.TensorSpec([2]))
    assert any(entry.endswith(".users_own") for entry in translated)
    assert [entry for entry in translated if entry.startswith("tf_cg_ops")] == []


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_nothing_is_translated_inside_a_decorated_function_and_all_is_as_before_after_an_error(traced):
    statuses = []

    @cg.custom_gradient
    def function(x, fails):
        statuses.append(ag_ctx.control_status_ctx().status)
        return 1 // (not fails) * x, lambda dy: dy

    def run(x):
        before = ag_ctx.control_status_ctx()
        function(x, False)
        with pytest.raises(ZeroDivisionError):
            function(x, True)
        assert ag_ctx.control_status_ctx() is before

    (tf.function(run, autograph=False) if traced else run)(tf.constant(1.0))
    assert statuses == [ag_ctx.Status.DISABLED] * 2
