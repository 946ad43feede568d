"""The variable behind a value."""

import sys
from typing import Any

import tensorflow as tf


def as_variable(value: Any) -> tf.Variable | None:
    """The tf.Variable behind a TensorFlow or Keras variable; None for other values."""
    if isinstance(value, tf.Variable):
        return value
    # Without Keras there are no Keras variables, so do not import it.
    keras_variable = getattr(sys.modules.get("keras"), "Variable", None)
    if keras_variable is None or not isinstance(value, keras_variable):
        return None
    inner = getattr(value, "_value", None)
    return inner if isinstance(inner, tf.Variable) else None
