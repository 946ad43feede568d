"""Mutants that no test notices and none has to: each with the reason, judged by reading."""

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
        "Where an upstream has no element, no gradient is wrong."
    ),
}
