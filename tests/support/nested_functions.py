"""Functions that call functions, to any depth."""

import tensorflow as tf


def calling(function):
    return tf.function(lambda x: function(x), autograph=False)


def in_functions(function, depth):
    """Called by a function that another one calls, and so on, from a vector of float64."""
    for _ in range(depth):
        function = calling(function)
        function.get_concrete_function(tf.TensorSpec([3], tf.float64))  # Or Python would nest too many traces.
    return function
