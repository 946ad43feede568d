"""Calls as other libraries have them: the error names the function that the user wants, and shows the call."""

import inspect
import re

import pytest
import tensorflow as tf

import tf_cg_ops as cg

pytestmark = pytest.mark.core

X = tf.constant([1.0, 2.0])


def f(x):
    return x, lambda dy: dy


def fwd(x):
    return x, x


DECORATES = (
    "It decorates one function, which returns (value, grad_fn): @tf_cg_ops.custom_gradient. For values, as with the "
    "custom_gradient(fx, gx, x) of TFP and contrib, write tf_cg_ops.embed_gradient(fx, gx, x), or "
    "tf_cg_ops.compat.tfp_math.custom_gradient(fx, gx, x) for TFP's shapes"
)
DECORATES_ONE = f"{DECORATES}; for two functions, write tf_cg_ops.custom_vjp(forward, backward)."
USE_THE_DECORATOR = "To decorate a function that returns (value, grad_fn), use tf_cg_ops.custom_gradient."
NOT_AS_IN_JAX = (
    "Write f = tf_cg_ops.custom_vjp(forward, backward, nondiff_argnames=[...]), where forward(*args) returns (value, "
    "residuals): unlike jax.custom_vjp, it takes no third function and is not a decorator."
)
SET_THE_RULE = (
    "Write @tf_cg_ops.custom_jvp above f, or custom_jvp(f, nondiff_argnames=[...]), then @f.defjvp above rule(primals, "
    "tangents)."
)


def without(api, *names):
    return (
        f"{api}: it takes the values fx, gx and x, got a call without {', '.join(names)}. Write {api}(fx, gx, x). "
        f"{USE_THE_DECORATOR}"
    )


TFP, CONTRIB = "compat.tfp_math.custom_gradient", "compat.bayesflow.custom_gradient"

# The call, and the message.
CALLS = {
    "values": (
        lambda: cg.custom_gradient(X, X, X),
        f"custom_gradient: too many positional arguments. {DECORATES_ONE}",
    ),
    "values_by_name": (
        lambda: cg.custom_gradient(fx=X, gx=X, x=X),
        f"custom_gradient: got an unexpected keyword argument 'fx'. {DECORATES_ONE}",
    ),
    "axis": (
        lambda: cg.custom_gradient(X, axis=-1),
        f"custom_gradient: got an unexpected keyword argument 'axis'. {DECORATES_ONE}",
    ),
    "stopped": (
        lambda: cg.custom_gradient(fx_gx_manually_stopped=True),
        f"custom_gradient: got an unexpected keyword argument 'fx_gx_manually_stopped'. {DECORATES_ONE}",
    ),
    "values_after_options": (
        lambda: cg.custom_gradient(saved_orders=2)(X, X, X),
        f"custom_gradient: too many positional arguments. {DECORATES_ONE}",
    ),
    "two_functions": (
        lambda: cg.custom_gradient(f, f),
        f"custom_gradient: too many positional arguments. {DECORATES_ONE}",
    ),
    "one_value": (
        lambda: cg.custom_gradient(X),
        "custom_gradient: cannot decorate this value; expected a function or another callable, got an EagerTensor. "
        f"{DECORATES}.",
    ),
    "decorating_with_embed_gradient": (lambda: cg.embed_gradient(f), without("embed_gradient", "gx", "x")),
    "decorating_with_parentheses": (lambda: cg.embed_gradient(), without("embed_gradient", "fx", "gx", "x")),
    "decorating_with_axis": (lambda: cg.embed_gradient(axis=-1)(f), without("embed_gradient", "fx", "gx", "x")),
    "no_x": (lambda: cg.embed_gradient(X, X, axis=-1), without("embed_gradient", "x")),
    "decorating_with_tfp": (lambda: cg.compat.tfp_math.custom_gradient(f), without(TFP, "gx", "x")),
    "decorating_with_contrib": (lambda: cg.compat.bayesflow.custom_gradient(f), without(CONTRIB, "gx", "x")),
    "custom_vjp_as_a_decorator": (
        lambda: cg.custom_vjp(f),
        f"custom_vjp: missing a required argument: 'backward'. {NOT_AS_IN_JAX}",
    ),
    "custom_vjp_of_three_functions": (
        lambda: cg.custom_vjp(f, fwd, fwd),
        f"custom_vjp: too many positional arguments. {NOT_AS_IN_JAX}",
    ),
    "custom_vjp_with_positions": (
        lambda: cg.custom_vjp(fwd, fwd, nondiff_argnums=(0,)),
        f"custom_vjp: got an unexpected keyword argument 'nondiff_argnums'. {NOT_AS_IN_JAX}",
    ),
    "custom_vjp_with_one_name": (
        lambda: cg.custom_vjp(fwd, fwd, nondiff_argnames="x"),
        f"custom_vjp: nondiff_argnames must be a list of names, got 'x'. {NOT_AS_IN_JAX}",
    ),
    "custom_jvp_of_two_functions": (
        lambda: cg.custom_jvp(f, fwd),
        f"custom_jvp: too many positional arguments. {SET_THE_RULE}",
    ),
    "custom_jvp_with_positions": (
        lambda: cg.custom_jvp(f, nondiff_argnums=(0,)),
        f"custom_jvp: got an unexpected keyword argument 'nondiff_argnums'. {SET_THE_RULE}",
    ),
    "custom_jvp_with_positions_for_names": (
        lambda: cg.custom_jvp(f, nondiff_argnames=(0,)),
        f"custom_jvp: nondiff_argnames must be a list of names, got (0,). {SET_THE_RULE}",
    ),
    "custom_jvp_with_one_name": (
        lambda: cg.custom_jvp(f, nondiff_argnames="x"),
        f"custom_jvp: nondiff_argnames must be a list of names, got 'x'. {SET_THE_RULE}",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_misplaced_call_names_the_function_that_is_wanted(call):
    function, message = CALLS[call]
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        function()


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (cg.custom_gradient, "f saved_orders"),
        (cg.custom_vjp, "forward backward nondiff_argnames materialize_grads saved_orders"),
        (cg.custom_jvp, "f nondiff_argnames saved_orders"),
        (cg.embed_gradient, "fx gx x axis fx_gx_manually_stopped name"),
        (cg.compat.tfp_math.custom_gradient, "fx gx x fx_gx_manually_stopped name"),
        (cg.compat.bayesflow.custom_gradient, "fx gx x axis fx_gx_manually_stopped name"),
    ],
    ids=["custom_gradient", "custom_vjp", "custom_jvp", "embed_gradient", "tfp_math", "bayesflow"],
)
def test_the_signature_that_tools_show_has_the_parameters_and_no_more(function, parameters):
    signature = inspect.signature(function)
    assert " ".join(signature.parameters) == parameters
    required = [name for name in ("fx", "gx", "x", "forward", "backward") if name in signature.parameters]
    assert all(signature.parameters[name].default is inspect.Parameter.empty for name in required)


def test_a_type_error_of_the_decorated_function_is_as_it_is():
    with pytest.raises(TypeError, match=r"^custom_gradient: saved_orders must be an int such as 2, got '2'\.$"):
        cg.custom_gradient(f, saved_orders="2")
