"""Runs a converted function in LiteRT, and compares it with the function in TensorFlow."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal

from . import _compare, _inputs
from ._compare import VALUES, Comparison, run_function
from ._graphs import reason_of
from ._lite import FUNCTION
from ._training import Training

IN_LITE = "values in LiteRT"
# Rounding is by far smaller, and errors are by far larger. An output that is zero but for rounding is compared with a
# fraction of the largest output.
_TOLERANCE, _FRACTION = 1e-2, 1e-2
# Values that differ in each of these draws are wrong. In one of them, a step such as tf.round may have seen rounding.
_DRAWS = 3


def compare_in_lite(api: str, name: str, function: Any, content: bytes, training: Training) -> Comparison:
    """Compares a concrete function with the signature FUNCTION of a LiteRT model, for random inputs.

    Args:
      api: The function that the user called, for messages.
      name: What the user calls the function.
      function: The concrete function of Tensors.
      content: The LiteRT model. If the function changes variables, it has signatures "weights" and "set_weights".
      training: What the function trains. Values that are arguments are those of its variables.

    Raises:
      RuntimeError: LiteRT fails, or its results differ. The message names the output that differs most.
    """
    if tf_internal.custom_ops_of_lite_model(content):
        return Comparison(name, IN_LITE, _compare.NOT_COMPARED, None, "this LiteRT does not include TensorFlow's ops")
    with training.for_a_check():
        return _compared(api, name, function, content, training)


def _compared(api: str, name: str, function: Any, content: bytes, training: Training) -> Comparison:
    values = {key: variable.numpy() for key, variable in training.variables.items()}
    given, before = (values, {}) if training.as_arguments else ({}, values if training.optimizer else {})
    positions = {key: _position(training.variables[key], function.variables) for key in before}
    runs = (size for size in _inputs.SIZES if not isinstance(run_function(function, given, size, VALUES), str))
    size = next(runs, _inputs.SIZES[0])
    for seed in range(_DRAWS):
        generated = _inputs.generate(function.structured_input_signature[1], size, seed)
        inputs = {key: x.numpy() for key, x in generated.items()} | given
        results = run_function(function, inputs, size, VALUES)
        if isinstance(results, str):
            return Comparison(name, IN_LITE, _compare.NOT_COMPARED, None, f"TensorFlow {results}")
        first = {key: x for key, x in results.items() if key.startswith("output ") and x.dtype != object}
        first |= {f"step of {key}": results[f"variable {i}"] - before[key] for key, i in positions.items()}
        second = _run_in_lite(api, content, inputs, before)
        rounding = {
            f"step of {key}": 2 * np.spacing(np.max(np.abs(x), initial=0.0).astype(np.float32))
            for key, x in before.items()
        }
        difference, key = _difference(first, second, rounding)
        if difference <= _TOLERANCE:
            return Comparison(name, IN_LITE, _compare.ROUNDING, difference, key)
    wrong = Comparison(name, IN_LITE, _compare.DIFFERENT, difference, key)
    raise RuntimeError(
        f"{api}: LiteRT must compute what TensorFlow computes, got {wrong}. Nothing was written. Please report this "
        f"with the model. If the LiteRT on the device is right, write {text.written('check=False', '--no-check')}."
    )


def _position(variable: tf.Variable, variables: Sequence[tf.Variable]) -> int:
    return next(i for i, each in enumerate(variables) if each is variable)


def _run_in_lite(
    api: str, content: bytes, inputs: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The outputs of one call, and the changes of the variables."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # It recommends another package with the same interpreter.
            interpreter = tf.lite.Interpreter(model_content=content)
        if before:
            interpreter.get_signature_runner("set_weights")(**before)
        results = {f"output {key}": x for key, x in interpreter.get_signature_runner(FUNCTION)(**inputs).items()}
        after = interpreter.get_signature_runner("weights")() if before else {}
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"{api}: LiteRT must run the new signature, got {reason_of(error)}. Nothing was written. If you know that "
            f"the LiteRT on the device runs it, write {text.written('check=False', '--no-check')}."
        ) from error
    return results | {f"step of {key}": after[key] - x for key, x in before.items()}


def _difference(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], rounding: Mapping[str, float]
) -> tuple[float, str]:
    """The largest difference, divided by the largest element of the output, and the output."""
    least, difference = _FRACTION * max(map(_compare.largest, first.values())), _compare.relative_difference
    return max((difference(x, second[key], least, rounding.get(key, 0.0)), key) for key, x in first.items())
