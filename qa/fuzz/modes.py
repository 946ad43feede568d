"""The modes in which TensorFlow runs a function of tensors; each takes and returns arrays."""

import tempfile

import tensorflow as tf


def eager(run, arrays):
    return [t.numpy() for t in run(*map(tf.constant, arrays))]


def _traced_for(shape_of, **options):
    def traced(run, arrays):
        specs = [tf.TensorSpec(shape_of(a), a.dtype) for a in arrays]
        return eager(tf.function(run, input_signature=specs, autograph=False, **options), arrays)

    return traced


def vectorized_map(run, arrays):
    """The second member of a batch, of which the first has other numbers."""
    batch = [tf.stack([2 * tf.constant(a), tf.constant(a)]) for a in arrays]
    mapped = tf.function(
        lambda *tensors: tf.vectorized_map(lambda each: run(*each), list(tensors), fallback_to_while_loop=False),
        autograph=False,
    )
    return [t[1].numpy() for t in mapped(*batch)]


def reloaded(run, arrays):
    """Saves the function and runs it from the SavedModel."""
    module = tf.Module()
    specs = [tf.TensorSpec([None] * a.ndim, a.dtype) for a in arrays]
    module.run = tf.function(run, input_signature=specs, autograph=False)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        return eager(tf.saved_model.load(folder).run, arrays)


def session(run, arrays):
    with tf.Graph().as_default():
        fed = [tf.compat.v1.placeholder(a.dtype) for a in arrays]
        fetches = run(*fed)
        with tf.compat.v1.Session() as running:
            return running.run(fetches, dict(zip(fed, arrays, strict=True)))


MODES = {
    "eager": eager,
    "function": _traced_for(lambda a: a.shape),
    "function of unknown dimensions": _traced_for(lambda a: [None] * a.ndim),
    "function of unknown rank": _traced_for(lambda a: None),
    "xla": _traced_for(lambda a: a.shape, jit_compile=True),
    "xla of unknown dimensions": _traced_for(lambda a: [None] * a.ndim, jit_compile=True),
    "vectorized_map": vectorized_map,
    "reloaded": reloaded,
    "session": session,
}
