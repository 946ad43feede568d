"""Functions of the library with variables of a strategy, compared with NumPy: replicas.py STRATEGY.

Logical devices are made before TensorFlow starts, so this needs a process of its own.
"""

import socket
import sys
import warnings

import keras
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

X, A, B, DY = np.array([1.0, 2.0]), np.array([2.0, 3.0]), np.array([5.0, 7.0]), np.array([1.0, 10.0])
NONE = np.zeros(2)


def mirrored():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), lambda run: run()


def parameter_server():
    """Servers in the same process; test_distribution.py has them in other processes."""
    held = [socket.socket() for _ in range(2)]
    for s in held:  # Bound until the process ends, so that no other process gets the port. A server can still listen.
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in held]
    cluster = tf.train.ClusterSpec({"worker": addresses[:1], "ps": addresses[1:]})
    # With one thread, as on one core, the servers wait for each other.
    tf.config.threading.set_inter_op_parallelism_threads(4)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
    servers = [tf.distribute.Server(cluster, job, 0, protocol="grpc", config=config) for job in ("worker", "ps")]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    return strategy, lambda run, servers=(servers, held): coordinator.schedule(tf.function(run)).fetch()


def variables(strategy):
    with strategy.scope():
        return tf.Variable(A, name="z"), tf.Variable(B, name="a")


def cases(a, b):
    """Functions of x with their gradients by x, a and b, and what makes a function of these gradients."""

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

    product = cg.custom_gradient(lambda x: (x * a, lambda dy, variables: (dy * variables[0], [dy * b * x])))

    def first_order(function):
        def gradients(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, [x, a, b], output_gradients=tf.constant(DY), unconnected_gradients="zero")

        return gradients

    def in_five_steps(x):
        x = x * a
        for _ in range(5):
            x = tf.sin(x)
        return x * b

    def five_steps_by_hand(x):
        step, slope = x * A, DY
        for _ in range(5):
            step, slope = np.sin(step), slope * np.cos(step)
        return [slope * A * B, slope * x * B, DY * step]

    def cond(x):
        return tf.cond(x[0] > 1.5, lambda: linear(x), lambda: 1000.0 * x)

    def while_loop(x):
        return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, linear(x)), (0, x))[1]

    def by_the_rule(x):
        return [7 * DY, 10 * DY, 100 * DY]

    return {
        "captured": (linear, by_the_rule),
        "passed": (lambda x: passed(x, a), lambda x: [2 * DY * B, 3 * DY, 5 * DY]),
        "cond": (cond, lambda x: by_the_rule(x) if x[0] > 1.5 else [1000 * DY, NONE, NONE]),
        "while_loop": (while_loop, lambda x: [49 * DY, 80 * DY, 800 * DY]),
        "second_order": (lambda x: sum(first_order(product)(x)[:2]), lambda x: [DY**2 * B, DY**2, DY**2 * x]),
        "recompute_grad": (
            cg.recompute_grad(lambda x: tf.sin(x * a) * b),
            lambda x: [DY * np.cos(x * A) * A * B, DY * np.cos(x * A) * x * B, DY * np.sin(x * A)],
        ),
        "memory": (cg.recompute_grad(in_five_steps, memory="auto"), five_steps_by_hand),
        "embed_gradient": (lambda x: cg.embed_gradient(tf.round(a), x, a), lambda x: [NONE, DY * x, NONE]),
        "scan": (
            lambda x: cg.scan(lambda carry, _: (carry * a, None), x, length=2)[0],
            lambda x: [DY * A**2, DY * 2 * A * x, NONE],
        ),
    }, first_order


def number_of_replica():
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float64) + 1.0


def check_gradients(strategy, call, trace):
    functions, first_order = cases(*variables(strategy))
    for name, (function, by_hand) in functions.items():
        gradients = first_order(function)
        replica = lambda gradients=gradients: gradients(tf.constant(X) * number_of_replica())  # noqa: E731
        run = tf.autograph.experimental.do_not_convert(lambda replica=replica: strategy.run(replica))
        by_source = [strategy.experimental_local_results(g) for g in call(trace(run))]
        assert len(by_source[0]) == strategy.num_replicas_in_sync
        for number, found in enumerate(zip(*by_source, strict=True)):
            np.testing.assert_allclose(found, by_hand(X * (number + 1.0)), rtol=1e-13, err_msg=name)


def check_outside_of_a_replica(strategy, trace):
    """In the scope of the strategy itself, where a mirrored variable has no handle."""
    v, w = variables(strategy)

    @cg.custom_gradient
    def with_captured(x, v):
        def grad_fn(dy, variables):
            (captured,) = variables
            return (6.0 * dy * captured, None), [None]

        return x * v + w, grad_fn

    passed_only = cg.custom_gradient(lambda x, v: (x * v, lambda dy: (4.0 * dy, None)))

    def run():
        x = tf.constant(X)
        with strategy.scope(), tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            values = [passed_only(x, v), with_captured(x, v)]
        return values + [tape.gradient(value, x, output_gradients=tf.constant(DY)) for value in values]

    np.testing.assert_array_equal(trace(run)(), [[2.0, 6.0], [7.0, 13.0], [4.0, 40.0], [30.0, 420.0]])


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


def check_merging(strategy):
    """What merges replicas is not recomputed, and a warning says so."""
    with strategy.scope():
        layers = [Normalized() for _ in range(2)]
        for layer in layers:
            layer.build([None, 2])
    functions = {
        "recompute_grad: 'reduced'": (reduced, cg.recompute_grad(reduced)),
        "layers.Recompute: 'normalized_1'": (layers[0], cg.layers.Recompute(layers[1])),
    }

    def replica(function):
        x = tf.constant([[1.0, 2.0], [-0.5, 3.0]], tf.float64) * number_of_replica()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return y, tape.gradient(y, x, tf.constant([[1.0, 10.0], [-3.0, 7.0]], tf.float64))

    for name, pair in functions.items():
        results = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for function in pair:
                run = tf.autograph.experimental.do_not_convert(lambda function=function: replica(function))
                found = [strategy.experimental_local_results(each) for each in strategy.run(run)]
                results.append([t.numpy() for each in found for t in each])
        np.testing.assert_allclose(*results, rtol=1e-12, err_msg=name)
        assert {str(warning.message) for warning in caught if "recomputed" in str(warning.message)} == {
            f"{name} is not recomputed, because it merges the replicas of a strategy, as an all_reduce or a "
            "synchronized batch normalization does. TensorFlow does not trace that. Values and gradients are the same. "
            "Merge outside of the function to save memory."
        }


def main(name):
    warnings.simplefilter("error")
    strategy, call = globals()[name]()
    check_gradients(strategy, call, tf.function)
    if name == "mirrored":
        check_gradients(strategy, call, lambda run: run)
        for trace in (tf.function, lambda run: run):
            check_outside_of_a_replica(strategy, trace)
        check_merging(strategy)
    print("right")


main(*sys.argv[1:])
