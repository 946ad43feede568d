"""Prints values and gradients of functions with variables of two devices."""

import tensorflow as tf

import tf_cg_ops as cg

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
with tf.device("CPU:0"):
    a = tf.Variable(2.0)
with tf.device("CPU:1"):
    b = tf.Variable(3.0)


def value_and_gradient(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tape.gradient(y, x)


in_the_rule = cg.custom_gradient(lambda x: (1.0 * x, lambda dy: dy * a * b))
for function in in_the_rule, cg.recompute_grad(lambda x: x * a * b):
    print(*(t.numpy() for t in tf.function(value_and_gradient)(function, tf.constant(5.0))))
