"""Ops that only a gradient reads do not run in inference, and run once if a gradient is computed."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context  # Only a test may look inside.

import tf_cg_ops as cg

from ..support.modes import derivative
from ..support.observed import COUNTS, OURS, bits, counted, ops_of, ops_that_ran, start_counting
from ..support.processes import run_python
from ..support.sources import ROOT
from ..support.without_python import calling, in_functions

tf1 = tf.compat.v1
X = np.array([0.5, -1.0, 2.0])
DISABLE = "TF_CG_OPS_DISABLE_PASSES"


def embedded(x):
    return cg.embed_gradient(fx=tf.sin(x), gx=counted(tf.cos(x)), x=x)


@cg.custom_gradient
def decorated(x):
    slope = counted(tf.cos(x))
    return tf.sin(x), lambda dy: dy * slope


@cg.custom_gradient
def _with_two_results(x):
    slope = counted(tf.cos(x))
    return (tf.sin(x), 2 * tf.sin(x)), lambda dy, dz: dy * slope + 2 * dz * slope


def two_results(x):
    first, second = _with_two_results(x)
    return first - second


def in_a_loop(function, x):
    return tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, function(v)), [0, x])[1]


def carried_for_gx(function, x):
    """A loop carries a value that only gx reads."""

    def body(i, v, slope):
        return i + 1, cg.embed_gradient(fx=function(v), gx=slope, x=v), counted(slope + 1)

    return tf.while_loop(lambda i, v, slope: i < 1, body, [0, x, counted(x)])[1]


def gx_from_outside(function, x):
    slope = counted(tf.cos(x))
    return tf.cond(x[0] > 0, lambda: cg.embed_gradient(fx=function(x), gx=slope, x=x), lambda: x)


# The graph around a function, and how often something is computed for gradients: without the pass, and if a gradient is
# computed (no gradient flows into fx).
AROUND = {
    "alone": (lambda function, x: function(x), 1, 1),
    "cond": (lambda function, x: tf.cond(x[0] > 0, lambda: function(x), lambda: x), 1, 1),
    "branch_not_taken": (lambda function, x: tf.cond(x[0] < 0, lambda: function(x), lambda: tf.sin(x)), 0, 0),
    "switch_case": (lambda function, x: tf.switch_case(tf.size(x) - 2, [lambda: x, lambda: function(x)]), 1, 1),
    "while_loop": (in_a_loop, 3, 3),
    "cond_in_a_loop": (
        lambda function, x: in_a_loop(lambda v: tf.cond(tf.not_equal(v[0], 0.0), lambda: function(v), lambda: v), x),
        3,
        3,
    ),
    "map_fn": (lambda function, x: tf.map_fn(function, x), 3, 3),
    "nested_functions": (lambda function, x: tf.function(tf.function(function))(x), 1, 1),
    "function_that_is_not_inlined": (
        lambda function, x: tf.function(function, experimental_attributes={"_noinline": True})(x),
        1,
        1,
    ),
    "chain": (lambda function, x: function(function(function(x))), 3, 3),
    "two_readers": (lambda function, x: (lambda h: h * h + tf.exp(h))(function(x)), 1, 1),
    "own_value_in_gx": (lambda function, x: (lambda h: cg.embed_gradient(h, counted(h), h))(function(x)), 2, 2),
    "carried_for_gx": (carried_for_gx, 3, 2),
    "gx_from_outside": (gx_from_outside, 2, 1),
}
FUNCTIONS = {"embed_gradient": embedded, "custom_gradient": decorated, "two_results": two_results}
CASES = [("embed_gradient", around) for around in AROUND]
CASES += [(name, around) for name in ("custom_gradient", "two_results") for around in ("cond", "while_loop", "chain")]
# What a graph without a gradient has not.
UNWANTED = OURS | {"PyFuncStateless", "Cos"}


def around_function(name, around):
    return lambda x: AROUND[around][0](FUNCTIONS[name], x)


def in_a_process(function, folder, *arguments, disable="1"):
    """What a function of this module returns in a process of its own, where the variable is read once."""
    code = "import json, sys, tensorflow as tf\n"
    code += (
        "tf.config.threading.set_inter_op_parallelism_threads(2)\n"  # With one, as on one core, it waits for itself.
    )
    code += f"from {__name__} import {function.__name__} as f; print(json.dumps(f(*sys.argv[1:])))"
    environment = {"PYTHONPATH": str(ROOT), DISABLE: disable}
    return json.loads(run_python(code, *arguments, cwd=folder, environment=environment).stdout.splitlines()[-1])


def in_one_thread():
    """With an executor for which loops and conditionals stay functions: the value, and how often gx was computed."""
    x, answers = tf.constant(X), {}
    for around in ("cond", "switch_case", "while_loop", "cond_in_a_loop"):
        start_counting()
        with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
            traced = tf.function(around_function("embed_gradient", around))
            ops = traced.get_concrete_function(x).graph.get_operations()
            (op,) = [op for op in ops if op.type.endswith(("If", "Case", "While"))]
            assert "_lower_using_switch_merge" not in op.node_def.attr
            answers[around] = [traced(x).numpy().tolist(), COUNTS["gx"]]
    return answers


def every_answer(folder):
    answers = {
        "in one thread": in_one_thread(),
        "ops": [*ops_that_ran(pathlib.Path(folder), embedded, tf.constant(X))[1]],
    }
    for name, around in CASES:
        start_counting()
        value = tf.function(around_function(name, around))(tf.constant(X))
        answers[f"{name} {around}"] = [bits(value)[0].hex(), COUNTS["gx"]]
    return answers


@pytest.fixture(scope="module")
def without_the_pass(tmp_path_factory):
    found = in_a_process(every_answer, tmp_path_factory.mktemp("cwd"), tmp_path_factory.mktemp("summary"))
    assert {"CustomGradientEmbed", "PyFuncStateless", "Cos"} <= set(found["ops"])
    return found


def test_a_function_is_pruned_though_a_path_to_it_is_too_long_for_the_pass():
    """The longer path is read first, and there the op stays."""
    called = calling(embedded)
    longer = in_functions(called, 64)
    start_counting()
    value = tf.function(lambda x: longer(x) + called(2.0 * x), autograph=False)(X)
    np.testing.assert_allclose(value, np.sin(X) + np.sin(2.0 * X), rtol=1e-15)
    assert COUNTS["gx"] == 1


@pytest.mark.parametrize(("name", "around"), CASES)
def test_gx_is_computed_once_for_a_gradient_and_never_for_a_value(name, around, without_the_pass, tmp_path):
    wrapped, (_, times_without, times) = around_function(name, around), AROUND[around]
    start_counting()
    value, ops = ops_that_ran(tmp_path, wrapped, tf.constant(X))
    assert not COUNTS
    assert not UNWANTED & set(ops)
    # Without the pass it is computed, and the value is the same, bit for bit.
    assert without_the_pass[f"{name} {around}"] == [bits(value)[0].hex(), times_without]
    gradients = []
    for gradient in (tf.function(derivative(wrapped)), derivative(tf.function(wrapped))):
        start_counting()
        gradients.append(gradient(tf.constant(X)))
        assert COUNTS["gx"] == times
    np.testing.assert_allclose(*gradients, rtol=1e-15)


def test_the_variable_is_read_before_the_first_graph_and_not_again(monkeypatch):
    start_counting()
    tf.function(embedded)(X)
    assert not COUNTS
    monkeypatch.setenv(DISABLE, "1")
    tf.function(embedded)(X)
    assert not COUNTS


SAVED = [("embed_gradient", "cond"), ("embed_gradient", "nested_functions"), ("custom_gradient", "while_loop")]


def ops_of_a_saved_model_and_in_one_thread(path, folder):
    model = tf.saved_model.load(path)
    ops = [[*ops_that_ran(pathlib.Path(folder, name), getattr(model, name), tf.constant(X))[1]] for name in "012"]
    return ops, in_one_thread()


def test_a_saved_model_in_a_fresh_process_and_loops_and_conditionals_that_stay_functions(without_the_pass, tmp_path):
    """Python's functions are not there, so they would fail if they ran."""
    model = tf.Module()
    for i, (name, around) in enumerate(SAVED):
        (tmp_path / f"{i}").mkdir()
        signature = [tf.TensorSpec([3], tf.float64)]
        setattr(model, f"{i}", tf.function(around_function(name, around), input_signature=signature))
    tf.saved_model.save(model, tmp_path / "model")
    program = ops_of_a_saved_model_and_in_one_thread
    found, values = in_a_process(program, tmp_path, tmp_path / "model", tmp_path, disable="0")
    for ops in found:
        assert "Sin" in ops
        assert not UNWANTED & set(ops)
    for around, (value, count) in values.items():
        assert count == 0
        assert without_the_pass["in one thread"][around] == [value, AROUND[around][1]]
        np.testing.assert_allclose(value, AROUND[around][0](tf.sin, tf.constant(X)), rtol=1e-15)


# In TensorFlow 1 control flow, an op stays if only its gradient inputs wait for a Switch or a Merge, as a constant in a
# branch does.
STAYS_IN_TENSORFLOW_1 = {("embed_gradient", "carried_for_gx"), ("embed_gradient", "gx_from_outside")}
STAYS_IN_TENSORFLOW_1 |= {("two_results", "cond"), ("two_results", "while_loop")}


def run_in_a_session(name, around, with_gradient):
    """The value, how often something was computed for gradients, and the types of the ops that ran."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float64, [3])
        y = around_function(name, around)(x)
        fetches = [y, tf.gradients(y, x)] if with_gradient else [y]
        run_metadata = tf1.RunMetadata()
        start_counting()
        [value, *_] = session.run(fetches, {x: X}, tf1.RunOptions(output_partition_graphs=True), run_metadata)
        return value, COUNTS["gx"], set(ops_of(run_metadata))


# All control flow of TensorFlow 1, and some of TensorFlow 2, which is like that in a function.
IN_A_SESSION = [(*case, False) for case in CASES if case[1] not in ("map_fn", "switch_case")]
IN_A_SESSION += [("embed_gradient", around, True) for around in ("alone", "switch_case", "cond_in_a_loop")]
IN_A_SESSION += [("two_results", "while_loop", True)]


@pytest.mark.parametrize(("name", "around", "control_flow"), IN_A_SESSION, indirect=["control_flow"])
def test_in_a_session(name, around, control_flow):
    _, times, times_with_gradient = AROUND[around]
    value, count, ops = run_in_a_session(name, around, with_gradient=False)
    assert "_Retval" in ops
    if not tf1.control_flow_v2_enabled() and (name, around) in STAYS_IN_TENSORFLOW_1:
        assert OURS & ops
        assert max(count, run_in_a_session(name, around, with_gradient=True)[1]) <= times
    else:
        assert count == 0
        assert not UNWANTED & ops
        assert run_in_a_session(name, around, with_gradient=True)[1] == times_with_gradient
    np.testing.assert_allclose(value, around_function(name, around)(tf.constant(X)), rtol=1e-15)


def test_a_dataset():
    start_counting()
    [value] = tf.data.Dataset.from_tensors(X).map(embedded)
    assert not COUNTS
    np.testing.assert_allclose(value, np.sin(X), rtol=1e-15)
