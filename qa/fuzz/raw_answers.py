"""Makes a call and compares its answer with the reference."""

import numpy as np
import tensorflow as tf

from tests.support.tensors import GRADIENT_RTOL

from .raw_inputs import Handle
from .raw_modes import make
from .raw_verdicts import judge


def answer(call, change_verdict=lambda verdict: verdict):
    """The outcome of a call, the name of its exception if there was one, and what is wrong, or None."""
    verdict = change_verdict(judge(call))
    try:
        outputs, gradients = make(call, verdict.upstreams)
        if verdict.outputs is None and call.mode != "infer" and not verdict.is_open:
            return "accepted", None, f"accepted, where the reference refuses ({verdict.why}): {outputs}"[:600]
        return "accepted", None, None if verdict.outputs is None else _compare(call, verdict, outputs, gradients)
    except Exception as exception:  # Every exception is an answer to be judged.
        names = [kind.__name__ for kind in type(exception).__mro__]
        what = f"{names[0]}: {exception}".replace("\n", " ")[:600]
        if verdict.outputs is not None and not verdict.is_open:
            return "refused", names[0], f"refused, where the reference accepts: {what}"
        if not set(names).intersection(verdict.exceptions):
            return (
                "refused",
                names[0],
                f"refused ({verdict.why}) with another exception than {verdict.exceptions}: {what}",
            )
        return "refused", names[0], None


def _compare(call, verdict, outputs, gradients):
    if call.mode == "infer":
        return _compare_static(verdict.outputs, outputs)
    if len(outputs) != len(verdict.outputs):
        return f"{len(outputs)} outputs, where there should be {len(verdict.outputs)}"
    pairs = [("output", e, a) for e, a in zip(verdict.outputs, outputs, strict=True)]
    if verdict.gradients is not None:
        pairs += [("gradient", e, a) for e, a in zip(verdict.gradients, gradients, strict=True)]
    for index, (name, expected, actual) in enumerate(pairs):
        problem = _compare_one(expected, actual)
        if problem:
            return f"{name} {index}: {problem}"[:1000]
    return None


def _compare_static(expected, outputs):
    for e, t in zip(expected, outputs, strict=True):
        if not t.shape.is_compatible_with(e.value.shape) or t.dtype != e.dtype:
            return f"{t.dtype.name} of {t.shape} while tracing, where it is {e.dtype.name} of {e.value.shape}"
    return None


def _compare_one(expected, actual):
    if expected is None or actual is None:
        return None if expected is actual else f"{actual}, where there should be {expected}"
    if isinstance(expected.value, Handle):
        return None if tf.as_dtype(actual.dtype) in (expected.dtype, tf.string) else f"a tensor of {actual.dtype}"
    if isinstance(actual, bytes):  # A session returns this for a string without dimensions.
        actual = np.array(actual, object)
    dtype, value = tf.as_dtype(actual.dtype), np.asarray(expected.value)
    array = np.asarray(actual.numpy() if tf.is_tensor(actual) else actual)
    is_bare = expected.dtype.is_quantized and not tf.is_tensor(actual)  # For NumPy they are integers.
    if array.shape != value.shape or (dtype != expected.dtype and not is_bare):
        return f"{dtype.name} of {array.shape}, where there should be {expected.dtype.name} of {value.shape}"
    if expected.dtype == tf.string:
        return None if array.tolist() == value.tolist() else f"{array}, where there should be {value}"
    if expected.scale is None:
        return None if array.tobytes() == value.tobytes() else f"not bit for bit: {array} for {value}"
    rtol = GRADIENT_RTOL[expected.dtype]
    wide = array.astype(np.complex128 if dtype.is_complex else np.float64)
    if np.allclose(wide, value, rtol=rtol, atol=rtol * expected.scale, equal_nan=True):
        return None
    return f"wrong value: {wide.tolist()}, where there should be {value.tolist()}"
