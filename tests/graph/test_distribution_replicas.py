"""Variables of a strategy (mirrored or on parameter servers) in functions of the library, and Keras under a strategy.

Each script runs in its own process, because logical devices are made before TensorFlow starts.
"""

import json

import numpy as np
import pytest

from ..support.processes import run_python

SETUP = """
import json, os, socket, sys, warnings
warnings.simplefilter("error")
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg
"""

MIRRORED = """
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
call = lambda run: run()
"""

# Servers in the same process. tests/graph/test_distribution.py has them in other processes.
PARAMETER_SERVER = """
held = [socket.socket() for _ in range(2)]
for s in held:  # Bound until the process ends, so that no other process gets the port. A server can still listen.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in held]
cluster = tf.train.ClusterSpec({"worker": addresses[:1], "ps": addresses[1:]})
tf.config.threading.set_inter_op_parallelism_threads(4)  # With one, as on one core, the servers wait for each other.
config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
servers = [tf.distribute.Server(cluster, job, 0, protocol="grpc", config=config) for job in ("worker", "ps")]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
call = lambda run: coordinator.schedule(tf.function(run)).fetch()
"""

CASES = """
with strategy.scope():
    a = tf.Variable(tf.constant([2.0, 3.0], tf.float64), name="z")
    b = tf.Variable(tf.constant([5.0, 7.0], tf.float64), name="a")
dy = tf.constant([1.0, 10.0], tf.float64)

@cg.custom_gradient
def linear(x):
    def grad_fn(dy, variables):
        return 7.0 * dy, [10.0 ** (i + 1) * dy for i, _ in enumerate(variables)]
    return x + b + a, grad_fn

@cg.custom_gradient
def passed(x, v):
    def grad_fn(dy, variables):
        (captured,) = variables
        return (2.0 * dy * captured, 3.0 * dy), [5.0 * dy]
    return x * v + b, grad_fn

@cg.custom_gradient
def product(x):
    return x * a, lambda dy, variables: (dy * variables[0], [dy * b * x])

def first_order(function):
    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, [x, a, b], output_gradients=dy, unconnected_gradients="zero")
    return gradients

def second_order(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        dx, da, _ = first_order(product)(x)
        total = tf.reduce_sum(dx * dy) + tf.reduce_sum(da * dy)
    return tape.gradient(total, [x, a, b])

cases = {
    "captured": first_order(linear),
    "passed": first_order(lambda x: passed(x, a)),
    "cond": first_order(lambda x: tf.cond(x[0] > 1.5, lambda: linear(x), lambda: 1000.0 * x)),
    "while_loop": first_order(lambda x: tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, linear(x)), (0, x))[1]),
    "second_order": second_order,
    "recompute_grad": first_order(cg.recompute_grad(lambda x: tf.sin(x * a) * b)),
    "embed_gradient": first_order(lambda x: cg.embed_gradient(tf.round(a), x, a)),
    "scan": first_order(lambda x: cg.scan(lambda carry, _: (carry * a, None), x, length=2)[0]),
}

def replica(case):
    replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
    return case(tf.constant([1.0, 2.0], tf.float64) * (tf.cast(replica_id, tf.float64) + 1.0))

found = {}
for name, case in cases.items():
    run = tf.autograph.experimental.do_not_convert(lambda: strategy.run(lambda: replica(case)))
    per_gradient = [strategy.experimental_local_results(g) for g in call(tf.function(run) if sys.argv[1] == "traced" else run)]
    found[name] = [[np.asarray(g).tolist() for g in gradients] for gradients in zip(*per_gradient, strict=True)]
print(json.dumps(found))
"""


def by_hand(replica):
    """The gradients by x, a and b in each case."""
    x, a, b, dy = (
        np.array([1.0, 2.0]) * (replica + 1),
        np.array([2.0, 3.0]),
        np.array([5.0, 7.0]),
        np.array([1.0, 10.0]),
    )
    none = np.zeros(2)
    return {
        "captured": [7 * dy, 10 * dy, 100 * dy],
        "passed": [2 * dy * b, 3 * dy, 5 * dy],
        "cond": [7 * dy, 10 * dy, 100 * dy] if replica else [1000 * dy, none, none],
        "while_loop": [49 * dy, 80 * dy, 800 * dy],
        "second_order": [dy**2 * b, dy**2, dy**2 * x],
        "recompute_grad": [dy * np.cos(x * a) * a * b, dy * np.cos(x * a) * x * b, dy * np.sin(x * a)],
        "embed_gradient": [none, dy * x, none],
        "scan": [dy * a**2, dy * 2 * a * x, none],
    }


def cells(mode):
    """The cells of the support matrix for the functions of the library in the cases."""
    functions = ("embed_gradient", "custom_gradient", "recompute_grad", "cg.scan")
    return [pytest.mark.mode_table(feature=function, mode=mode) for function in functions]


@pytest.mark.parametrize(
    ("strategy", "mode", "replicas"),
    [
        pytest.param(MIRRORED, "traced", 2, marks=cells("mirrored")),
        (MIRRORED, "eager", 2),
        pytest.param(PARAMETER_SERVER, "traced", 1, marks=cells("parameter_server")),
    ],
    ids=["mirrored-traced", "mirrored-eager", "parameter_server"],
)
def test_variables_of_a_strategy(strategy, mode, replicas, tmp_path):
    result = run_python(SETUP + strategy + CASES, mode, cwd=tmp_path)
    found = json.loads(result.stdout.splitlines()[-1])
    for replica in range(replicas):
        expected = by_hand(replica)
        assert list(found) == list(expected)
        for name, gradients in expected.items():
            assert len(found[name]) == replicas
            np.testing.assert_allclose(found[name][replica], gradients, rtol=1e-13, err_msg=name)


OUTSIDE_OF_A_REPLICA = """
with strategy.scope():
    v = tf.Variable([2.0, 3.0])
    w = tf.Variable([5.0, 7.0])

@cg.custom_gradient
def passed_only(x, v):
    return x * v, lambda dy: (4.0 * dy, None)

@cg.custom_gradient
def with_captured(x, v):
    def grad_fn(dy, variables):
        (captured,) = variables
        return (6.0 * dy * captured, None), [None]
    return x * v + w, grad_fn

def gradients():
    x = tf.constant([1.0, 2.0])
    with strategy.scope(), tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        values = [passed_only(x, v), with_captured(x, v)]
    return values + [tape.gradient(value, x, output_gradients=tf.constant([1.0, 10.0])) for value in values]

print(json.dumps([[t.numpy().tolist() for t in run()] for run in (gradients, tf.function(gradients))]))
"""


def test_variables_that_are_passed_outside_of_a_replica_are_not_captured(tmp_path):
    """In the scope of the strategy itself, where a mirrored variable has no handle."""
    result = run_python(SETUP + MIRRORED + OUTSIDE_OF_A_REPLICA, cwd=tmp_path)
    expected = [[2.0, 6.0], [7.0, 13.0], [4.0, 40.0], [30.0, 420.0]]
    assert json.loads(result.stdout.splitlines()[-1]) == [expected, expected]


MERGING = """
import keras

class Normalized(keras.layers.Layer):
    def __init__(self):
        super().__init__(dtype="float64")
        self.normalization = keras.layers.BatchNormalization(synchronized=True, dtype="float64")

    def build(self, shape):
        self.normalization.build(shape)

    def call(self, x):
        return self.normalization(x, training=True)

def reduced(x):
    context = tf.distribute.get_replica_context()
    return tf.sin(x) * context.all_reduce(tf.distribute.ReduceOp.SUM, x * x)

with strategy.scope():
    layers = [Normalized() for _ in range(2)]
    for layer in layers:
        layer.build([None, 2])
functions = {
    "all_reduce": (reduced, cg.recompute_grad(reduced)),
    "batch normalization": (layers[0], cg.layers.Recompute(layers[1])),
}

def replica(function):
    replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
    x = tf.constant([[1.0, 2.0], [-0.5, 3.0]], tf.float64) * (tf.cast(replica_id, tf.float64) + 1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x, tf.constant([[1.0, 10.0], [-3.0, 7.0]], tf.float64))

found = {}
for name, pair in functions.items():
    results, texts = [], set()
    for function in pair:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pair = strategy.run(tf.autograph.experimental.do_not_convert(lambda: replica(function)))
        results.append([np.asarray(t).tolist() for each in pair for t in strategy.experimental_local_results(each)])
        texts |= {str(warning.message) for warning in caught if "recomputed" in str(warning.message)}
    found[name] = [*results, sorted(texts)]
print(json.dumps(found))
"""


def test_what_merges_replicas_is_not_recomputed_and_a_warning_says_so(tmp_path):
    result = run_python(SETUP + MIRRORED + MERGING, cwd=tmp_path)
    found = json.loads(result.stdout.splitlines()[-1])
    names = {"all_reduce": ("recompute_grad", "reduced"), "batch normalization": ("layers.Recompute", "normalized_1")}
    for name, (expected, recomputed, texts) in found.items():
        np.testing.assert_allclose(recomputed, expected, rtol=1e-12, err_msg=name)
        api, function = names[name]
        assert texts == [
            f"{api}: '{function}' is not recomputed, because it merges the replicas of a strategy, as an all_reduce or a "
            "synchronized batch normalization does. TensorFlow does not trace that. Values and gradients are the same. "
            "Merge outside of the function to save memory."
        ]
