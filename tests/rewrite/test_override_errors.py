"""Wrong uses of override_gradients. Each message says what must be there, what came instead, and what to do."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import RUNS, vjp
from ..support.tensors import pairs

X = np.array([-1.5, 0.5, 2.0])


def keep(op, dy):
    return dy


def model(x):
    return tf.nn.relu(x, name="activation") + tf.nn.relu(-x) + tf.sin(x)


def derive(function, x=X):
    x = tf.convert_to_tensor(x)
    return vjp(lambda: function(x), x)[1]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([keep], "rules must be a dict such as {'Relu': rule}, got a list."),
        (
            {3: keep},
            "a key of rules must be an op type such as 'Relu', or a function of a tf.Operation that returns a bool, got "
            "3.",
        ),
        (
            {"Relu": "guided"},
            "the rule for 'Relu' must be a function rule(op, *dy) that returns the gradients of op.inputs, got a str.",
        ),
        (
            {tf.nn.relu: keep},
            "a key of rules must be an op type such as 'Relu', or a function of a tf.Operation that returns a bool, got "
            "the function 'relu' of tensorflow. Write 'Relu'.",
        ),
        (
            {tf.nn.leaky_relu: keep},
            "a key of rules must be an op type such as 'Relu', or a function of a tf.Operation that returns a bool, got "
            "the function 'leaky_relu' of tensorflow. Write 'LeakyRelu'.",
        ),
    ],
)
def test_rules_of_a_wrong_type(rules, message):
    with pytest.raises(TypeError, match=f"^override_gradients: {re.escape(message)}$"):
        cg.override_gradients(model, rules)


def test_an_empty_dict_of_rules():
    message = "override_gradients: rules must name at least one op, as in {'Relu': rule}, got an empty dict."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cg.override_gradients(model, {})


def test_something_that_is_not_a_function():
    message = (
        "override_gradients: f must be a function, a model, or a function of a loaded SavedModel "
        "such as loaded.signatures['serving_default'], got a Module. Write override_gradients(f, {'Relu': rule})."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        cg.override_gradients(tf.Module(), {"Relu": keep})


def test_rules_that_match_nothing():
    function = cg.override_gradients(model, {"ReLU": keep, "Sin": keep, lambda op: False: keep})
    message = (
        "override_gradients: each key of rules must match an op of 'model', got no match for 'ReLU', the predicate "
        "'<lambda>'. The op types are Relu (2), AddV2 (2), Neg (1), Sin (1), Identity (1). Did you mean 'Relu'?"
    )
    for call in (function, tf.function(function)):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(tf.constant(X))


def test_rules_that_match_nothing_and_resemble_nothing():
    message = "The op types are Sin (1), Identity (1). Name one of these types, or leave the rule out."
    with pytest.raises(ValueError, match=re.escape(message)):
        cg.override_gradients(tf.sin, {"Relu": keep})(tf.constant(X))


def test_an_error_of_a_predicate_comes_unchanged():
    with pytest.raises(ZeroDivisionError):
        cg.override_gradients(model, {lambda op: 1 / 0: keep})(tf.constant(X))


OP = "the op activation (Relu)"
WRONG_RULES = [
    (
        lambda op, dy: [dy, dy],
        ValueError,
        f"the rule '<lambda>' for {OP} must return one gradient for each of 'op.inputs[0]', got 2 gradients. Return None "
        "for an input that has no gradient.",
    ),
    (
        lambda op, dy: dy[:2],
        ValueError,
        f"the rule '<lambda>' for {OP} returned a gradient of the wrong shape for 'op.inputs[0]'; expected (3,), got "
        "(2,). Give it the shape of the input: sum over what was broadcast, broadcast over what was summed.",
    ),
    (
        lambda op, dy: tf.cast(dy, tf.int32),
        TypeError,
        f"the rule '<lambda>' for {OP} must return a gradient of dtype float64 for 'op.inputs[0]', got int32. Cast it "
        "with tf.cast.",
    ),
    (
        lambda dy: dy,
        TypeError,
        f"the rule '<lambda>' for {OP} must take the op and 1 upstream gradient (one for each output), got rule(dy). Write "
        "rule(op, *dys).",
    ),
]


@pytest.mark.parametrize(("rule", "error", "message"), WRONG_RULES)
def test_a_rule_with_wrong_gradients(rule, error, message):
    function = cg.override_gradients(model, {lambda op: op.name == "activation": rule})
    with pytest.raises(error, match=f"override_gradients: {re.escape(message)}"):
        derive(function)


def test_a_wrong_rule_costs_nothing_until_you_compute_a_gradient():
    function = cg.override_gradients(model, {"Relu": lambda op, dy: [dy, dy]})
    np.testing.assert_array_equal(function(tf.constant(X)), model(X))


def test_an_error_of_a_rule_comes_unchanged():
    def rule(op, dy):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        derive(cg.override_gradients(model, {"Relu": rule}))


def test_an_op_without_a_gradient_function():
    message = (
        "rules.built_in: op must have a gradient function that a rule can call, as Relu and MatMul have, got '{}' ({}). "
        "Write a rule that computes the gradients of its inputs."
    )
    function = lambda x: tf.raw_ops.LinSpace(start=x[0], stop=x[1], num=3, name="points")  # noqa: E731
    guided = cg.override_gradients(function, {"LinSpace": cg.rules.guided})
    with pytest.raises(NotImplementedError, match=re.escape(message.format("points", "LinSpace"))):
        derive(guided)
    loop = lambda x: tf.while_loop(lambda x: x[0] < 0, lambda x: [x + 1], [x], name="loop")[0]  # noqa: E731
    with pytest.raises(NotImplementedError, match=re.escape(message.format("loop", "StatelessWhile"))):
        derive(cg.override_gradients(loop, {"StatelessWhile": cg.rules.built_in}))


def test_a_rule_that_is_called_without_an_op_says_how_to_pass_it():
    advice = "Pass the rule itself, as in tf_cg_ops.override_gradients(f, {'Relu': tf_cg_ops.rules.guided})."
    for call, message in (
        (lambda: cg.rules.guided(), "missing a required argument: 'op'."),
        (lambda: cg.rules.guided(tf.ones([2])), "op must be a tf.Operation, got a Tensor of dtype float32."),
    ):
        with pytest.raises(TypeError, match=f"^rules.guided: {re.escape(f'{message} {advice}')}$"):
            call()


def test_a_type_error_of_a_rule_is_as_it_is():
    """TensorFlow calls a trace a second time after a TypeError, and joins both messages."""

    def rule(op, dy):
        raise TypeError("my own")

    for function in (tf.nn.relu, tf.function(tf.nn.relu)):
        with pytest.raises(TypeError, match=r"^my own$"):
            derive(cg.override_gradients(function, {"Relu": rule}))


def test_wrong_limits():
    with pytest.raises(
        ValueError, match=re.escape("rules.clip: pass exactly one of value, norm and global_norm, got none.")
    ):
        cg.rules.clip()
    with pytest.raises(ValueError, match=re.escape("rules.clip: norm must be a number that is at least 0, got -1.0.")):
        cg.rules.clip(norm=-1.0)
    with pytest.raises(ValueError, match=re.escape("rules.clip: axis is for norm only, got value")):
        cg.rules.clip(value=1.0, axis=0)


def test_control_flow_of_tensorflow_1():
    tf.compat.v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float64, [3], name="x")
            tf.compat.v1.while_loop(lambda x: x[0] < 10.0, lambda x: [tf.nn.relu(x) + 1.0], [x], name="loop")
    finally:
        tf.compat.v1.enable_control_flow_v2()
    loop = graph.as_graph_def()

    def function(x):
        return tf.graph_util.import_graph_def(loop, {"x:0": x}, ["loop/Exit:0"])

    with pytest.raises(
        NotImplementedError, match=r"^tf_cg_ops: loops and conditionals must be TensorFlow 2's, got 'import/loop/"
    ):
        cg.override_gradients(function, {"Relu": keep})(tf.constant(X))


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        (
            lambda op: op.type,
            "the predicate '<lambda>' must return a bool for each tf.Operation, got 'Relu' for 'activation'. Compare what "
            "you look for, as in op.type == 'Relu'.",
        ),
        (
            lambda op: None,
            "the predicate '<lambda>' must return a bool for each tf.Operation, got None for 'activation'. Compare what "
            "you look for, as in op.type == 'Relu'.",
        ),
        (lambda: True, "the predicate '<lambda>' must take one argument, a tf.Operation, got <lambda>()."),
    ],
)
def test_a_predicate_that_does_not_return_a_bool(predicate, message):
    with pytest.raises(TypeError, match=f"override_gradients: {re.escape(message)}"):
        cg.override_gradients(model, {predicate: keep})(tf.constant(X))


NO_TENSOR = "must return a Tensor for 'op.inputs[0]', got 'no'. Return None for an input that has no gradient."
OTHER_DTYPE = "must return a gradient of dtype float64 for 'op.inputs[0]', got"
NO_GRADIENTS = {
    "text": ("no", NO_TENSOR),
    "list": (["no"], NO_TENSOR),
    "bool": (True, f"{OTHER_DTYPE} bool. Cast it with tf.cast."),
    "complex": (1j, f"{OTHER_DTYPE} complex128. Take its real part with tf.math.real."),
    "integers": (np.array([1, 2, 3]), f"{OTHER_DTYPE} int64. Cast it with tf.cast."),
}


@pytest.mark.parametrize(("name", "run"), pairs(NO_GRADIENTS, RUNS))
def test_a_rule_that_returns_no_gradient(name, run):
    answer, message = NO_GRADIENTS[name]
    function = cg.override_gradients(model, {lambda op: op.name == "activation": lambda op, dy: answer})
    with pytest.raises(TypeError, match=re.escape(f"override_gradients: the rule '<lambda>' for {OP} {message}")):
        RUNS[run](lambda: derive(function))()


def test_predicates_are_told_apart_by_identity():
    class Selects(functools.partial):
        __hash__ = object.__hash__

        def __eq__(self, other):
            return True

    def has_type(op_type, op):
        return op.type == op_type

    function = cg.override_gradients(model, {Selects(has_type, op_type): keep for op_type in ("Relu", "Gelu")})
    with pytest.raises(ValueError, match=r"an op of 'model', got no match for the predicate '"):
        function(tf.constant(X))


def test_a_rule_whose_name_has_braces():
    def rule(op):
        return 1.0

    rule.__qualname__ = "rule{a}"
    with pytest.raises(TypeError, match=re.escape("the rule 'rule{a}' for the op")):
        derive(cg.override_gradients(model, {"Relu": rule}))
