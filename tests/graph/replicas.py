"""Functions of the library with variables of a strategy: replicas.py STRATEGY TASKS prints what each task finds.

A task is a function and a mode. Logical devices are made before TensorFlow starts, so this needs a process of its own.
"""

import functools
import json
import socket
import sys
import warnings

import keras
import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

DY = np.array([1.0, 10.0])


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
    tf.config.threading.set_inter_op_parallelism_threads(
        4
    )  # With one, as on one core, the servers wait for each other.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
    servers = [tf.distribute.Server(cluster, job, 0, protocol="grpc", config=config) for job in ("worker", "ps")]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    return strategy, lambda run, servers=(servers, held): coordinator.schedule(tf.function(run)).fetch()


def variables(strategy):
    with strategy.scope():
        a = tf.Variable(tf.constant([2.0, 3.0], tf.float64), name="z")
        return a, tf.Variable(tf.constant([5.0, 7.0], tf.float64), name="a")


def cases(a, b):
    """Functions from x to gradients by x, a and b."""

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

    def second_order(x):
        return first_order(lambda x: sum(first_order(product)(x)[:2]))(x)

    return {
        "captured": first_order(linear),
        "passed": first_order(lambda x: passed(x, a)),
        "cond": first_order(lambda x: tf.cond(x[0] > 1.5, lambda: linear(x), lambda: 1000.0 * x)),
        "while_loop": first_order(
            lambda x: tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, linear(x)), (0, x))[1]
        ),
        "second_order": second_order,
        "recompute_grad": first_order(cg.recompute_grad(lambda x: tf.sin(x * a) * b)),
        "memory": first_order(cg.recompute_grad(in_five_steps, memory="auto")),
        "embed_gradient": first_order(lambda x: cg.embed_gradient(tf.round(a), x, a)),
        "scan": first_order(lambda x: cg.scan(lambda carry, _: (carry * a, None), x, length=2)[0]),
    }


def number_of_replica():
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float64) + 1.0


def gradients(strategy, call, mode):
    found = {}
    for name, case in cases(*variables(strategy)).items():
        replica = lambda case=case: case(tf.constant([1.0, 2.0], tf.float64) * number_of_replica())  # noqa: E731
        run = tf.autograph.experimental.do_not_convert(lambda replica=replica: strategy.run(replica))
        results = call(tf.function(run) if mode == "traced" else run)
        by_source = [strategy.experimental_local_results(g) for g in results]
        found[name] = [[np.asarray(g).tolist() for g in each] for each in zip(*by_source, strict=True)]
    return found


def outside_of_a_replica(strategy, call, mode):
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
        x = tf.constant([1.0, 2.0], tf.float64)
        with strategy.scope(), tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            values = [passed_only(x, v), with_captured(x, v)]
        return values + [tape.gradient(value, x, output_gradients=tf.constant(DY)) for value in values]

    return [t.numpy().tolist() for t in (tf.function(run) if mode == "traced" else run)()]


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


def merging(strategy, call, mode):
    """What merges replicas: as it is, and where it would be recomputed, with the warnings."""
    with strategy.scope():
        layers = [Normalized() for _ in range(2)]
        for layer in layers:
            layer.build([None, 2])
    functions = {
        "all_reduce": (reduced, cg.recompute_grad(reduced)),
        "batch normalization": (layers[0], cg.layers.Recompute(layers[1])),
    }

    def replica(function):
        x = tf.constant([[1.0, 2.0], [-0.5, 3.0]], tf.float64) * number_of_replica()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return y, tape.gradient(y, x, tf.constant([[1.0, 10.0], [-3.0, 7.0]], tf.float64))

    found = {}
    for name, pair in functions.items():
        results = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for function in pair:
                run = tf.autograph.experimental.do_not_convert(lambda function=function: replica(function))
                found_here = [strategy.experimental_local_results(each) for each in strategy.run(run)]
                results.append([np.asarray(t).tolist() for each in found_here for t in each])
        texts = {str(warning.message) for warning in caught if "recomputed" in str(warning.message)}
        found[name] = [*results, sorted(texts)]
    return found


def training(strategy, call, mode):
    """The weights of a model after a few steps, plain and within a memory."""
    found = []
    for wrap in (lambda layer: layer, functools.partial(cg.layers.Recompute, memory="auto")):
        keras.utils.set_random_seed(1)
        layers = keras.layers
        with strategy.scope():
            blocks = [
                layer
                for seed in range(3)
                for layer in (layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dropout(0.3, seed=seed))
            ]
            model = keras.Sequential([keras.Input([4]), wrap(keras.Sequential(blocks)), layers.Dense(1)])
            model.compile("sgd", "mse")
        x = np.random.default_rng(1).normal(size=[24, 4]).astype(np.float32)
        model.fit(x, x[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0)
        found.append([weight.numpy().tolist() for weight in model.trainable_weights])
    return found


def main(name, *tasks):
    warnings.simplefilter("error")
    strategy = globals()[name]()
    print(json.dumps({task: globals()[task.split()[0]](*strategy, task.split()[1]) for task in tasks}))


main(*sys.argv[1:])
