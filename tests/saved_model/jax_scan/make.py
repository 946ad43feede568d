"""Writes `model/` and `expected.npz`, which test_jax.py reads. Run it only to make these files anew.

The model is a JAX function, converted by jax2tf: a `jax.custom_vjp` in a `jax.lax.scan`. JAX 0.5.3 still converts to
ops of TensorFlow, like the models that people saved over the years; newer versions wrap compiled code. It needs an
environment of its own, with TensorFlow 2.21:

    pip install tensorflow==2.21 jax==0.5.3 jaxlib==0.5.3
    python tests/saved_model/jax_scan/make.py
"""

import pathlib
import shutil

import jax
import numpy as np
import tensorflow as tf
from jax import numpy as jnp
from jax.experimental import jax2tf
from tensorflow.core.protobuf import saved_model_pb2

HERE = pathlib.Path(__file__).parent


@jax.custom_vjp
def steep(x):
    """The sine, with 7 as its derivative instead of the cosine, so that a test can tell whose gradient it got."""
    return jnp.sin(x)


steep.defvjp(lambda x: (jnp.sin(x), None), lambda _, dy: (7.0 * dy,))


def scan_of(step):
    """Four steps from `w`. The gradient needs each carry, since `w` is a factor, too."""

    def scanned(x, w):
        return jax.lax.scan(lambda carry, _: (step(carry * w) + x, None), w, None, length=4)[0]

    return scanned


def without_traces(path):
    """Drops the places in Python code, which are paths of this machine."""
    proto = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for meta_graph in proto.meta_graphs:
        meta_graph.graph_def.ClearField("debug_info")
    path.write_bytes(proto.SerializeToString(deterministic=True))


def main():
    """Writes the files."""
    jax.config.update("jax_enable_x64", True)
    x, w, dy = np.array([0.25, -1.5, 2.0]), np.array([0.5, -1.25, 2.0]), np.array([1.0, 10.0, -3.0])
    y, vjp = jax.vjp(scan_of(steep), x, w)
    dx, dw = vjp(dy)
    true_dx, true_dw = jax.vjp(scan_of(jnp.sin), x, w)[1](dy)

    module = tf.Module()
    module.w = tf.Variable(w, name="w")
    converted = jax2tf.convert(scan_of(steep), with_gradient=True, native_serialization=False)
    module.f = tf.function(
        lambda x: {"y": converted(x, module.w)},
        input_signature=[tf.TensorSpec(x.shape, tf.float64, name="x")],
        autograph=False,
    )
    shutil.rmtree(HERE / "model", ignore_errors=True)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, HERE / "model", signatures=module.f, options=options)
    without_traces(HERE / "model" / "saved_model.pb")
    for name in ("assets", "debug"):
        shutil.rmtree(HERE / "model" / name, ignore_errors=True)
    np.savez(HERE / "expected.npz", x=x, dy=dy, y=y, dx=dx, dw=dw, true_dx=true_dx, true_dw=true_dw)


if __name__ == "__main__":
    main()
