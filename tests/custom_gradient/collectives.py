"""Prints the values and the gradients of an all_reduce in two replicas."""

import tensorflow as tf

import tf_cg_ops as cg

devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def all_sum(x):
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)


function = cg.custom_gradient(lambda x: (all_sum(x), lambda dy: all_sum(dy)))


def replica():
    number = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32) + 1.0
    x = number * tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x, output_gradients=number * tf.constant([1.0, 10.0]))


both = tf.function(lambda: strategy.run(replica))()
print([[t.numpy().tolist() for t in strategy.experimental_local_results(result)] for result in both])
