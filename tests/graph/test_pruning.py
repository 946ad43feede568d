"""Inference pays nothing: ops that only a gradient reads run 0 times without a gradient, and once with one."""

import json

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

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
    """A loop carries what nothing but gx reads."""

    def body(i, v, slope):
        return i + 1, cg.embed_gradient(fx=function(v), gx=slope, x=v), counted(slope + 1)

    return tf.while_loop(lambda i, v, slope: i < 1, body, [0, x, counted(x)])[1]


def gx_from_outside(function, x):
    slope = counted(tf.cos(x))
    return tf.cond(x[0] > 0, lambda: cg.embed_gradient(fx=function(x), gx=slope, x=x), lambda: x)


# The graph around a function, and how often something is computed for gradients: without the pass, and where one is
# taken (no gradient flows into fx).
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
every_case = pytest.mark.parametrize(
    ("function", "around"),
    [(FUNCTIONS["embed_gradient"], around) for around in AROUND]
    + [
        (function, around)
        for function in (decorated, two_results)
        for around in ("alone", "cond", "while_loop", "chain")
    ],
)


def around_function(function, around):
    return lambda x: AROUND[around][0](function, x)


def run_traced(function, around):
    """The bits of the value, and how often something was computed for gradients."""
    start_counting()
    value = tf.function(around_function(function, around))(X)
    return text_of_bits(value), COUNTS["gx"]


def text_of_bits(tensors):
    return [one.hex() for one in bits(tensors)]


# In a process without the pass: the variable is read once.
WITHOUT_THE_PASS = """
import json, pathlib, sys
import tensorflow as tf
from tests.graph import test_pruning as tests

tf1, answers = tf.compat.v1, {}
for name, function in tests.FUNCTIONS.items():
    for around in tests.AROUND:
        answers[f"{name} {around}"] = tests.run_traced(function, around)
for is_v2 in (False, True):
    (tf1.enable_control_flow_v2 if is_v2 else tf1.disable_control_flow_v2)()
    for name in tests.FUNCTIONS:
        for around in tests.IN_SESSIONS:
            answers[f"{name} {around} {is_v2}"] = tests.run_in_a_session(name, around, with_gradient=False)[:2]
ops = tests.ops_that_ran(pathlib.Path(sys.argv[1]), tests.embedded, tf.constant(tests.X))
print(json.dumps({**answers, "ops": sorted(ops)}))
"""


@pytest.fixture(scope="module")
def without_the_pass(tmp_path_factory):
    folder = tmp_path_factory.mktemp("without_the_pass")
    (folder / "summary").mkdir()
    environment = {"PYTHONPATH": str(ROOT), DISABLE: "true"}
    result = run_python(WITHOUT_THE_PASS, folder / "summary", cwd=folder, environment=environment)
    return json.loads(result.stdout.splitlines()[-1])


def name_of(function):
    return next(name for name, one in FUNCTIONS.items() if one is function)


@every_case
def test_nothing_is_computed_for_gradients(function, around, without_the_pass):
    value, count = run_traced(function, around)
    assert count == 0
    # Without the pass it is, and the value has the same bits.
    assert without_the_pass[f"{name_of(function)} {around}"] == [value, AROUND[around][1]]


def test_a_function_is_pruned_though_a_path_to_it_is_too_long_for_the_pass():
    """The longer path is read first; there the op stays."""
    called = calling(embedded)
    longer = in_functions(called, 64)
    start_counting()
    value = tf.function(lambda x: longer(x) + called(2.0 * x), autograph=False)(X)
    np.testing.assert_allclose(value, np.sin(X) + np.sin(2.0 * X), rtol=1e-15)
    assert COUNTS["gx"] == 1


@every_case
def test_gx_is_computed_once_when_a_gradient_is_taken(function, around):
    wrapped, (_, _, times) = around_function(function, around), AROUND[around]

    def gradient(function, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    x = tf.constant(X)
    start_counting()
    inside = tf.function(lambda x: gradient(wrapped, x))(x)
    assert COUNTS["gx"] == times
    traced = tf.function(wrapped)
    start_counting()
    traced(x)
    assert not COUNTS
    outside = gradient(traced, x)
    assert COUNTS["gx"] == times
    np.testing.assert_allclose(inside, outside, rtol=1e-15)


@every_case
def test_no_op_is_left(function, around, tmp_path):
    ops = ops_that_ran(tmp_path, around_function(function, around), tf.constant(X))
    assert not (OURS | {"PyFuncStateless", "Cos"}) & set(ops)


def test_without_the_pass_the_ops_are_there(without_the_pass):
    """So the test above can fail."""
    assert {"CustomGradientEmbed", "PyFuncStateless", "Cos"} <= set(without_the_pass["ops"])


def test_the_variable_is_read_before_the_first_graph_and_not_again(monkeypatch):
    start_counting()
    tf.function(embedded)(X)
    assert not COUNTS
    monkeypatch.setenv(DISABLE, "1")
    tf.function(embedded)(X)
    assert not COUNTS


NO_TRUTH_VALUE = """
import tensorflow as tf
import tf_cg_ops as cg

def function(x):
    gx = tf.numpy_function(lambda x: print("gx") or x, [x], tf.float32, stateful=False)
    return cg.embed_gradient(fx=x, gx=tf.ensure_shape(gx, []), x=x)

for _ in range(2):
    print(tf.function(function)(tf.constant(1.0)).numpy())
"""


def test_a_variable_that_is_no_truth_value_counts_as_not_set(tmp_path):
    """It is said once, and no graph fails."""
    environment = {DISABLE: "perhaps", "TF_CPP_MIN_LOG_LEVEL": "1"}
    result = run_python(NO_TRUTH_VALUE, cwd=tmp_path, environment=environment)
    assert result.stdout == "1.0\n1.0\n"
    assert result.stderr.count(DISABLE) == result.stderr.count("perhaps") == 1


ONE_THREAD = """
import sys
import tensorflow as tf
from tensorflow.python.eager import context
from tests.graph.test_pruning import AROUND, COUNTS, X, around_function, embedded

tf.config.threading.set_inter_op_parallelism_threads(2)  # With one, as on one core, TensorFlow waits for itself.
around, x = sys.argv[1], tf.constant(X)
with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
    traced = tf.function(around_function(embedded, around))
    [op] = [op for op in traced.get_concrete_function(x).graph.get_operations() if op.type.endswith(("If", "Case", "While"))]
    assert "_lower_using_switch_merge" not in op.node_def.attr
    print(traced(x).numpy().tolist(), COUNTS["gx"], sep=";")
"""


@pytest.mark.parametrize("around", ["cond", "switch_case", "while_loop", "cond_in_a_loop"])
def test_loops_and_conditionals_that_stay_functions(around, tmp_path):
    """As they do for the executor of one thread."""
    for disable, times in [("0", 0), ("1", AROUND[around][1])]:
        environment = {"PYTHONPATH": str(ROOT), DISABLE: disable}
        result = run_python(ONE_THREAD, around, cwd=tmp_path, environment=environment)
        value, count = result.stdout.splitlines()[-1].split(";")
        assert int(count) == times
        np.testing.assert_allclose(json.loads(value), around_function(tf.sin, around)(tf.constant(X)), rtol=1e-15)


# In the control flow of TensorFlow 1, ops stay whose gradient-only inputs alone wait for a Switch or a Merge, as a constant
# in a branch does.
STAYS_IN_TENSORFLOW_1 = {
    (function, around) for function in FUNCTIONS for around in ("carried_for_gx", "gx_from_outside")
}
STAYS_IN_TENSORFLOW_1 |= {
    ("two_results", around) for around in ("cond", "branch_not_taken", "while_loop", "cond_in_a_loop")
}


IN_SESSIONS = [name for name in AROUND if name not in ("map_fn", "switch_case")]


def run_in_a_session(function, around, with_gradient):
    """The bits of the value, how often something was computed for gradients, and the types of the ops that ran."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float64, [3])
        y = around_function(FUNCTIONS[function], around)(x)
        fetches = [y, tf.gradients(y, x)] if with_gradient else [y]
        run_metadata = tf1.RunMetadata()
        start_counting()
        [value, *_] = session.run(fetches, {x: X}, tf1.RunOptions(output_partition_graphs=True), run_metadata)
        return text_of_bits(value), COUNTS["gx"], set(ops_of(run_metadata))


@pytest.mark.parametrize("around", IN_SESSIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_in_a_session(function, around, control_flow, without_the_pass):
    _, times, times_with_gradient = AROUND[around]
    value, count, ops = run_in_a_session(function, around, with_gradient=False)
    assert "_Retval" in ops
    if not tf1.control_flow_v2_enabled() and (function, around) in STAYS_IN_TENSORFLOW_1:
        assert OURS & ops
        assert max(count, run_in_a_session(function, around, with_gradient=True)[1]) <= times
    else:
        assert count == 0
        assert not (OURS | {"PyFuncStateless", "Cos"}) & ops
        assert run_in_a_session(function, around, with_gradient=True)[1] == times_with_gradient
    assert without_the_pass[f"{function} {around} {tf1.control_flow_v2_enabled()}"] == [value, times]


SAVE = """
import sys
import tensorflow as tf
from tests.graph.test_pruning import FUNCTIONS, SAVED, around_function

for function, around in SAVED:
    model = tf.Module()
    wrapped = around_function(FUNCTIONS[function], around)
    model.f = tf.function(wrapped, input_signature=[tf.TensorSpec([3], tf.float64, "x")])
    tf.saved_model.save(model, f"{sys.argv[1]}/{function}-{around}", signatures=model.f)
"""

RELOAD = """
import json, pathlib, sys
import numpy as np
import tensorflow as tf
import tf_cg_ops

X, folder = np.array(json.loads(sys.argv[1])), pathlib.Path(sys.argv[2])
count = 0

def counted(x):
    global count
    count += 1
    return x

# A graph names a Python function by its number in its process. In this process, all count.
keep = tf.Graph()
with keep.as_default():
    for _ in range(200):
        tf.numpy_function(counted, [tf.constant(0.0)], tf.float32)

def counts(run):
    global count
    count = 0
    value = np.asarray(run())
    return value.tolist(), count

def gradient(model):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model.f(x)
    return tape.gradient(y, x)

def answers(path):
    model = tf.saved_model.load(str(path))
    yield "function", counts(lambda: model.f(tf.constant(X)))
    yield "signature", counts(lambda: model.signatures["serving_default"](x=tf.constant(X))["output_0"])
    yield "gradient", counts(lambda: gradient(model))
    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], str(path)).signature_def["serving_default"]
        x, y = (graph.get_tensor_by_name(info.name) for info in (signature.inputs["x"], signature.outputs["output_0"]))
        yield "v1 loader", counts(lambda: session.run(y, {x: X}))

print(json.dumps({path.name: dict(answers(path)) for path in folder.iterdir()}))
"""
SAVED = [
    (function, around)
    for function in ("embed_gradient", "custom_gradient")
    for around in ("alone", "cond", "while_loop", "nested_functions")
]


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """For each saved model what it returned, in each way to run it, and how often Python was called."""
    folder = tmp_path_factory.mktemp("inference")
    run_python(SAVE, folder / "models", cwd=folder, environment={"PYTHONPATH": str(ROOT)})
    result = run_python(RELOAD, json.dumps(X.tolist()), folder / "models", cwd=folder)
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize(("function", "around"), SAVED)
def test_a_saved_model_in_a_fresh_process(reloaded, function, around):
    answers, (_, _, times) = reloaded[f"{function}-{around}"], AROUND[around]
    value = around_function(tf.sin, around)(tf.constant(X))
    for run in ("function", "signature", "v1 loader"):
        assert answers[run][1] == 0, run
        np.testing.assert_allclose(answers[run][0], value, rtol=1e-15)
    assert answers["gradient"][1] == times


def test_a_dataset():
    start_counting()
    [value] = tf.data.Dataset.from_tensors(X).map(embedded)
    assert not COUNTS
    np.testing.assert_allclose(value, np.sin(X), rtol=1e-15)
