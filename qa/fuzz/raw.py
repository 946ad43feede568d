"""Makes a raw call of an op in its mode, and compares its answer with the reference."""

import functools

import numpy as np
import tensorflow as tf

from tests.support.tensors import GRADIENT_RTOL
from tf_cg_ops._src.core import library

from .modes import MODES, spec
from .raw_calls import calls as cases
from .raw_reference import is_differentiable, judge

__all__ = ["cases", "check"]

_WRAPPERS = {
    "CustomGradientEmbed": lambda groups, **kw: library.custom_gradient_embed(groups[0][0], *groups[1:], **kw),
    "CustomGradientEmbedGrad": lambda groups, **kw: library.custom_gradient_embed_grad(*(g[0] for g in groups), **kw),
    "CustomGradientCheckShape": lambda groups, **kw: library.custom_gradient_check_shape(*(g[0] for g in groups), **kw),
    "CustomGradientBarrier": lambda groups, **kw: library.custom_gradient_barrier(*groups, **kw),
    "CustomGradientRule": lambda groups, **kw: library.custom_gradient_rule(*groups, **kw),
}


@functools.cache
def _rules():
    """The functions that a rule may name."""
    vector, number = tf.TensorSpec(None, tf.float32), tf.TensorSpec(None, tf.int32)
    functions = {
        "product": (lambda dy, c: dy * c, [vector, vector]),
        "two_outputs": (lambda dy, c: (dy, c), [vector, vector]),
        "of_integers": (lambda dy, c: dy + c, [number, number]),
        "of_nothing": (lambda: None, []),
    }
    with tf.init_scope():
        return {
            name: tf.function(function, autograph=False).get_concrete_function(*specs)
            for name, (function, specs) in functions.items()
        }


def _apply(call, tensors):
    attributes = dict(call.attributes)
    concrete = _rules().get(attributes.get("rule"))
    if concrete is not None:
        concrete.add_to_graph(None if tf.executing_eagerly() else tf.compat.v1.get_default_graph())
        attributes["rule"] = tf.compat.as_str(concrete.name)
    outputs = _WRAPPERS[call.op](call.grouped(tensors), **attributes)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _variable(kind, array):
    """A TensorFlow 1 variable. Without a value, it is not among the variables that get initialized."""
    collections = [] if "without a value" in kind else None
    made = tf.compat.v1.Variable(
        lambda: tf.constant(array), dtype=array.dtype, use_resource="resource" in kind, collections=collections
    )
    return made._ref() if "ref" in kind else made.value()


def _answer(call, upstreams):
    """The outputs and, with upstreams, the gradients. For "infer" the symbolic outputs."""
    arrays = call.arrays()
    is_given = [not each.constant and not each.variable for each in call.inputs]

    def run(*tensors):
        given = iter(tensors)
        inputs = [
            next(given) if is_it else _variable(each.variable, array) if each.variable else tf.constant(array)
            for each, array, is_it in zip(call.inputs, arrays, is_given, strict=True)
        ]
        if upstreams is None:
            return _apply(call, inputs)
        sources = [t for t in inputs if is_differentiable(t)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = _apply(call, inputs)
        targets = [t for t in outputs if is_differentiable(t)]
        return [*outputs, *tape.gradient(targets, sources, output_gradients=list(given))]

    given = [array for array, is_it in zip(arrays, is_given, strict=True) if is_it] + (upstreams or [])
    specs = [spec(a, each.known) for a, each, is_it in zip(arrays, call.inputs, is_given, strict=True) if is_it]
    specs += [spec(upstream, "shape") for upstream in upstreams or []]
    if call.mode == "infer":
        with tf.Graph().as_default():
            return run(*(tf.compat.v1.placeholder(s.dtype, s.shape) for s in specs))
    return MODES[call.mode](run, given, specs)


def check(call, folder=None):
    """Raises AssertionError unless the call has the right answer, or is refused as it should be."""
    verdict = judge(call)
    refused = None
    try:
        answer = _answer(call, verdict.upstreams)
    except Exception as exception:  # Every exception is an answer to judge.
        refused = exception
    if refused is None:
        assert verdict.outputs is not None or verdict.is_open, f"accepted, not refused ({verdict.why}): {answer}"
        if verdict.outputs is not None:
            _compare(call, verdict, answer)
        return f"{call.mode}: right result"
    names = {kind.__name__ for kind in type(refused).__mro__}
    what = f"{type(refused).__name__}: {refused}"
    assert verdict.outputs is None or verdict.is_open, f"refused, where it is accepted: {what}"
    assert names.intersection(verdict.exceptions), f"refused ({verdict.why}), not by {verdict.exceptions}: {what}"
    return f"{call.mode}: exception"


def _compare(call, verdict, answer):
    if call.mode == "infer":
        for e, t in zip(verdict.outputs, answer, strict=True):
            assert t.shape.is_compatible_with(e.value.shape), f"static shape {t.shape} for {e.value.shape}"
            assert t.dtype == e.dtype
        return
    for index, (e, a) in enumerate(zip(verdict.outputs + (verdict.gradients or []), answer, strict=True)):
        name = f"output {index}" if index < len(verdict.outputs) else f"gradient {index - len(verdict.outputs)}"
        assert (e is None) == (a is None), f"{name}: {a}, where there should be {e}"
        if e is not None:
            _compare_one(name, e, np.asarray(a))


def _compare_one(name, expected, actual):
    value, dtype = np.asarray(expected.value), expected.dtype
    assert actual.shape == value.shape, f"{name}: of {actual.shape}, where there should be {value.shape}"
    assert actual.dtype == np.dtype(dtype.as_numpy_dtype), f"{name}: {actual.dtype} instead of {dtype.name}"
    if expected.scale is None:
        assert actual.tobytes() == value.tobytes(), f"{name}: not bit for bit: {actual} for {value}"
    else:
        rtol = GRADIENT_RTOL[dtype]
        wide = actual.astype(np.complex128 if dtype.is_complex else np.float64)
        np.testing.assert_allclose(wide, value, rtol=rtol, atol=rtol * expected.scale, err_msg=name)
