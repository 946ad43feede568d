"""Calls in the style of other libraries: the error names the right function, and shows the right call."""

import functools
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


def derive(function, dy=None):
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = function(X)
    return tape.gradient(y, X, output_gradients=dy)


def with_annotations(x):
    def grad_fn(dy: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        return dy

    return x, grad_fn


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

WRITE_SCAN = (
    "Write scan(f, init, xs), in the order of jax.lax.scan: init is the initializer of tf.scan, and xs its elems. Leave out "
    "options such as unroll and parallel_iterations."
)
WRITE_WHILE_LOOP = (
    "Write while_loop(cond, body, loop_vars, maximum_iterations), with a list or tuple of loop_vars and an upper limit of "
    "the steps; cond still ends the loop. Leave out options such as parallel_iterations and shape_invariants."
)
NAME_THE_IMPLICIT_OPTIONS = (
    "Name the options, such as linear_solve: unlike jax.lax.custom_root, it needs neither an initial guess nor a solver for "
    "tangents."
)
TWO_LISTS = "Pass the values in two lists, gx and x, in the same order."


def without(api, name):
    return f"{api}: missing a required argument: {name!r}. Write {api}(fx, gx, x). {USE_THE_DECORATOR}"


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
        f"custom_gradient: the argument must be a function, got an EagerTensor. {DECORATES}.",
    ),
    "decorating_with_embed_gradient": (lambda: cg.embed_gradient(f), without("embed_gradient", "gx")),
    "decorating_with_parentheses": (lambda: cg.embed_gradient(), without("embed_gradient", "fx")),
    "decorating_with_axis": (lambda: cg.embed_gradient(axis=-1)(f), without("embed_gradient", "fx")),
    "no_x": (lambda: cg.embed_gradient(X, X, axis=-1), without("embed_gradient", "x")),
    "decorating_with_tfp": (lambda: cg.compat.tfp_math.custom_gradient(f), without(TFP, "gx")),
    "decorating_with_contrib": (lambda: cg.compat.bayesflow.custom_gradient(f), without(CONTRIB, "gx")),
    "tfp_with_axis": (
        lambda: cg.compat.tfp_math.custom_gradient(X, X, X, axis=-1),
        f"{TFP}: got an unexpected keyword argument 'axis'. Write {TFP}(fx, gx, x). {USE_THE_DECORATOR}",
    ),
    "option_by_position": (
        lambda: cg.clip_gradient(X, 1.0),
        "clip_gradient: too many positional arguments. Write clip_gradient(x, *, value=None, norm=None, global_norm=None, "
        "axis=None, loss_scale=None).",
    ),
    "no_factor": (
        lambda: cg.scale_gradient(X),
        "scale_gradient: missing a required argument: 'factor'. Write scale_gradient(x, factor).",
    ),
    "grad_pass_through_of_a_function_and_its_argument": (
        lambda: cg.grad_pass_through(tf.round, X),
        "grad_pass_through: too many positional arguments. Decorate the function, then call the result: "
        "grad_pass_through(f)(x).",
    ),
    "straight_through_with_a_slope_by_position": (
        lambda: cg.straight_through(tf.sign, tf.tanh, 2.0),
        "straight_through: too many positional arguments. Name the options, as in slope=2.0.",
    ),
    "override_gradients_as_a_decorator": (
        lambda: cg.override_gradients({"Relu": cg.rules.guided}),
        "override_gradients: missing a required argument: 'rules'. Write override_gradients(f, {'Relu': rule}). As a "
        "decorator, write @functools.partial(override_gradients, rules=...).",
    ),
    "override_gradients_with_the_rules_first": (
        lambda: cg.override_gradients({"Relu": cg.rules.guided}, tf.nn.relu),
        "override_gradients: f must be a function, a model, or a function of a loaded SavedModel such as "
        "loaded.signatures['serving_default'], got a dict. Write override_gradients(f, {'Relu': rule}).",
    ),
    "strip_with_options_by_position": (
        lambda: cg.saved_model.strip("source", "target", False),
        "saved_model.strip: too many positional arguments. Name the options, as in check=False.",
    ),
    "custom_jvp_of_a_lambda_without_a_rule": (
        lambda: cg.custom_jvp(lambda x: x)(X),
        "custom_jvp: '<lambda>' has no tangent rule. Before the first call, write @f.defjvp above rule(primals, tangents).",
    ),
    "value_that_is_none": (
        lambda: cg.embed_gradient(X, None, X),
        "embed_gradient: gx must be a dense Tensor or a value that converts to one, got None. A function without a return "
        "statement returns None.",
    ),
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
    "scan_with_an_initializer": (
        lambda: cg.scan(fwd, X, initializer=0.0),
        f"scan: got an unexpected keyword argument 'initializer'. {WRITE_SCAN}",
    ),
    "scan_unrolled": (
        lambda: cg.scan(fwd, 0.0, X, unroll=2),
        f"scan: got an unexpected keyword argument 'unroll'. {WRITE_SCAN}",
    ),
    "while_loop_without_a_limit": (
        lambda: cg.while_loop(f, f, X),
        f"while_loop: missing a required argument: 'maximum_iterations'. {WRITE_WHILE_LOOP}",
    ),
    **{
        f"while_loop_with_{option}": (
            functools.partial(cg.while_loop, f, f, [X], 9, **{option: True}),
            f"while_loop: got an unexpected keyword argument {option!r}. {WRITE_WHILE_LOOP}",
        )
        for option in ("parallel_iterations", "shape_invariants", "swap_memory")
    },
    "recompute_grad_with_a_policy": (
        lambda: cg.recompute_grad(fwd, policy=None),
        "recompute_grad: got an unexpected keyword argument 'policy'. Write recompute_grad(f, keep=['name']), or "
        "keep=lambda op: op.type == 'MatMul', where keep says what the policy of jax.checkpoint does. Bind other arguments, "
        "such as static ones, with functools.partial.",
    ),
    "implicit_root_as_in_jax": (
        lambda: cg.implicit_root(fwd, X, fwd, fwd),
        "implicit_root: too many positional arguments. Write implicit_root(residual, solve), where residual(y, *args) and "
        f"solve(*args) take the same arguments, or @implicit_root(residual) above solve. {NAME_THE_IMPLICIT_OPTIONS}",
    ),
    "implicit_fixed_point_as_in_jax": (
        lambda: cg.implicit_fixed_point(fwd, X, fwd),
        "implicit_fixed_point: too many positional arguments. Write implicit_fixed_point(f, solve), where f(y, *args) and "
        f"solve(*args) take the same arguments, or @implicit_fixed_point(f) above solve. {NAME_THE_IMPLICIT_OPTIONS}",
    ),
    "implicit_minimum_with_a_start": (
        lambda: cg.implicit_minimum(fwd, fwd, x0=X),
        "implicit_minimum: got an unexpected keyword argument 'x0'. Write implicit_minimum(objective, solve), where "
        "objective(y, *args) and solve(*args) take the same arguments, or @implicit_minimum(objective) above solve. "
        f"{NAME_THE_IMPLICIT_OPTIONS}",
    ),
    "defjvps": (
        lambda: cg.custom_jvp(fwd).defjvps(lambda t, y, x: t),
        "custom_jvp: 'fwd' takes one rule for all arguments, unlike the defjvps of JAX. Write @fwd.defjvp above "
        "rule(primals, tangents), which returns the value and the sum of the parts.",
    ),
    "embed_gradient_of_dicts": (
        lambda: cg.embed_gradient(X, {"a": X}, {"a": X}),
        f"embed_gradient: gx must be a Tensor or a list of Tensors, got a dict. {TWO_LISTS}",
    ),
    "embed_gradient_of_a_dict_and_a_list": (
        lambda: cg.embed_gradient(X, [X], {"a": X}),
        f"embed_gradient: x must be a Tensor or a list of Tensors, got a dict. {TWO_LISTS}",
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


def scaled(scale, first, dy):
    return scale * dy


# A functools.partial has the remaining parameters.
PARTIAL = functools.partial(scaled, 3.0)
PARTIALS = {
    "backward": (
        cg.custom_vjp(lambda x: ((x, x), None), PARTIAL),
        "custom_vjp: backward 'scaled' of '<lambda>' must take the residuals and 2 upstream gradients (one for each leaf "
        "of the value), got backward(first, dy). Write backward(residuals, *dys).",
    ),
    "rule": (
        cg.override_gradients(lambda x: tf.split(x, 2), {"Split": PARTIAL}),
        "override_gradients: the rule 'scaled' for the op split (Split) must take the op and 2 upstream gradients (one for "
        "each output), got rule(first, dy). Write rule(op, *dys).",
    ),
    "annotated": (
        cg.custom_gradient(with_annotations),
        "custom_gradient: grad_fn of 'with_annotations' must take 1 upstream gradient (one for each leaf of the value), "
        "got grad_fn(dy, second). Write grad_fn(*dys).",
    ),
}


@pytest.mark.parametrize("name", PARTIALS)
def test_a_message_shows_the_parameters_that_the_library_has_to_pass(name):
    function, message = PARTIALS[name]
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        derive(function)


def test_a_partial_is_a_backward():
    dx = derive(cg.custom_vjp(fwd, PARTIAL), tf.constant([1.0, 10.0]))
    assert dx.numpy().tolist() == [3.0, 30.0]


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (cg.custom_gradient, "f saved_orders"),
        (cg.custom_vjp, "forward backward nondiff_argnames materialize_grads saved_orders"),
        (cg.custom_jvp, "f nondiff_argnames saved_orders"),
        (cg.scan, "f init xs length reverse checkpoint"),
        (cg.while_loop, "cond body loop_vars maximum_iterations checkpoint"),
        (cg.recompute_grad, "f keep"),
        (cg.implicit_root, "residual solve batched linear_solve has_aux check_solution"),
        (cg.embed_gradient, "fx gx x axis fx_gx_manually_stopped name"),
        (cg.compat.tfp_math.custom_gradient, "fx gx x fx_gx_manually_stopped name"),
        (cg.compat.bayesflow.custom_gradient, "fx gx x axis fx_gx_manually_stopped name"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_signature_that_tools_show_has_the_parameters_and_no_more(function, parameters):
    signature = inspect.signature(function)
    assert " ".join(signature.parameters) == parameters
    required = [name for name in ("fx", "gx", "x", "forward", "backward") if name in signature.parameters]
    assert all(signature.parameters[name].default is inspect.Parameter.empty for name in required)


def test_a_type_error_of_the_decorated_function_is_as_it_is():
    with pytest.raises(TypeError, match=r"^custom_gradient: saved_orders must be an int such as 2, got '2'\.$"):
        cg.custom_gradient(f, saved_orders="2")
