"""Mutants that no test notices and none needs to: each with the reason, judged by reading."""

HARMLESS: dict[str, str] = {
    "_command_line.py: text = str(error.args[0][0][2] if isinstance(error, shutil.Error) else error) -> "
    "text = str(error.args[ -1][0][2] if isinstance(error, shutil.Error) else error)": "shutil.Error has one argument.",
    "_eager.py: if type(tensor) is not EagerTensor or tensor.dtype is tf.resource or tensor.dtype is tf.variant: -> "
    "if type(tensor) != EagerTensor or tensor.dtype is tf.resource or tensor.dtype is tf.variant:": (
        "A class is equal to itself alone."
    ),
    "_python_call.py: for own, array in zip(self.inputs, arrays, strict=True): -> "
    "for own, array in zip(self.inputs, arrays, strict=False):": "TensorFlow passes one array for each input.",
    "_tapes.py: probe = tf.constant(0.0) -> probe = tf.constant( 1.0)": "Whether tapes record it is all that is read.",
    "_variants.py: @tf.function(autograph=False) -> @tf.function(autograph=True)": (
        "AutoGraph changes nothing about what can be traced without it."
    ),
    "_variants.py: gradient[0] if len(tensors) == 1 else "
    "_structure.replace_tensors([leaf], [tensors], gradient)[0] -> gradient[ -1] if len(tensors) == 1 else "
    "_structure.replace_tensors([leaf], [tensors], gradient)[0]": "It has one element where it is read.",
    "testing/_hints.py: if sum(dy.size for dy in upstream) > 1 and _equal(of(ones), uniform.value): -> "
    "if sum(dy.size for dy in upstream) != 1 and _equal(of(ones), uniform.value):": (
        "Without elements upstream, no gradient is wrong."
    ),
    'testing/_modes.py: traced = tf.function(without_none, jit_compile=mode == "xla").get_concrete_function(inputs[0]) '
    '-> traced = tf.function(without_none, jit_compile=mode == "xla").get_concrete_function(inputs[ -1])': (
        "All inputs have the same shapes, and here there is one."
    ),
    "testing/_numeric.py: better &= (other.scale > 0) | (one.error > 0.01 * one.scale) -> "
    "better &= (other.scale > 0) | (one.error >= 0.01 * one.scale)": (
        "The two are rounded numbers, equal only where both are zero, and then no other estimate is better."
    ),
    "testing/_numeric.py: smaller = [10.0**-k * unit for k in range(2, 10)] -> "
    "smaller = [10.0**-k * unit for k in range(2, 11)]": "One more step is tried, and the best one counts.",
    "testing/_references.py: np.zeros_like(x) if g is None else np.asarray(g, x.dtype) "
    "for g, x in zip(answer, problem.values, strict=True) -> np.zeros_like(x) if g is None else np.asarray(g, x.dtype) "
    "for g, x in zip(answer, problem.values, strict=False)": "Their numbers were compared just before.",
    "testing/_report.py: scale = size + 1e-3 * np.max(size, initial=0.0) -> "
    "scale = size + 1e-3 * np.max(size, initial= -1.0)": (
        "Sizes are not negative, and where there is none the scale has no element either."
    ),
    "_vectorize.py: for gx, x in zip(others[:pairs], others[pairs:], strict=True) -> "
    "for gx, x in zip(others[:pairs], others[pairs:], strict=False)": "The op has as many of the one as of the other.",
}
