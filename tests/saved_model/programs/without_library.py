"""Runs stripped models where the library is not installed: without_library.py PACKAGES MODEL TRAINING READING INPUTS."""

import json
import sys

sys.path.insert(0, sys.argv.pop(1))
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

try:
    import tf_cg_ops  # noqa: F401
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("the library is there")
for op in ("Barrier", "CheckShape", "Embed", "EmbedGrad", "Rule"):
    assert op_def_registry.get("CustomGradient" + op) is None

with open(sys.argv[4]) as file:
    inputs, x = json.load(file)
model, training, reading = map(tf.saved_model.load, sys.argv[1:4])
for name, signature in model.signatures.items():
    names = sorted(signature.structured_input_signature[1])
    given = {n: tf.constant(value, tf.float64) for n, value in zip(names, inputs[name], strict=True)}
    inputs[name] = {n: t.numpy().tolist() for n, t in signature(**given).items()}
x = tf.constant(x, tf.float64)
losses = [float(training.step(x)) for _ in range(20)]
# Freezing comes last, because it removes functions from TensorFlow.
frozen = convert_variables_to_constants_v2(reading.signatures["serving_default"])
assert not frozen.variables
value = frozen(tf.constant([[1.0, -1.0]]))[0].numpy().tolist()
print(json.dumps([inputs, [losses, training.w.numpy().tolist(), training.b.numpy().tolist()], value]))
