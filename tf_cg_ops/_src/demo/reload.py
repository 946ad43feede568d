"""Saves the trained net, opens it in a fresh process, and compares the gradients of both processes.

As a program (`python -m tf_cg_ops._src.demo.reload MODEL ARRAYS`) this module is the fresh process. It has no Python
code of the net, only the SavedModel and the ops that importing `tf_cg_ops` registers.
"""

import pathlib
import subprocess
import sys

import numpy as np
import tensorflow as tf

from . import digits
from .report import Report

COMPARED_IMAGES = 32


def gradients_of(net: tf.Module, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The gradients of the loss with respect to the images and to every weight."""
    inputs = tf.constant(images)
    named = {"images": inputs, "hidden": net.hidden, "hidden_bias": net.hidden_bias, "votes": net.votes}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = digits.loss_of(net, inputs, tf.constant(labels))
    return {name: gradient.numpy() for name, gradient in tape.gradient(loss, named).items()}


def run(trained: digits.Trained, model: pathlib.Path, report: Report) -> None:
    """Saves the model and the data for the comparison, and compares with the gradients of the fresh process."""
    print("\nReload: the SavedModel in a fresh process")
    tf.saved_model.save(trained.net, str(model), signatures=trained.net.logits)
    images, labels = trained.data.test_images[:COMPARED_IMAGES], trained.data.test_labels[:COMPARED_IMAGES]
    arrays = model / "assets.extra" / "compare.npz"  # TensorFlow does not read this folder of a SavedModel.
    arrays.parent.mkdir(exist_ok=True)
    np.savez(arrays, images=images, labels=labels)
    subprocess.run([sys.executable, "-m", __name__, str(model), str(arrays)], check=True)

    here = gradients_of(trained.net, images, labels)
    with np.load(arrays) as found:
        difference = max(float(np.max(np.abs(found[name] - gradient))) for name, gradient in here.items())
        size = min(float(np.max(np.abs(found[name]))) for name in here)
    report.add("fresh process: smallest over images and weights of max |gradient|", size, "at least", 1e-5)
    report.add("fresh process: largest difference to the gradients before saving", difference, "at most", 1e-6)


def main(model: str, arrays: str) -> None:
    """The fresh process: adds the gradients of the loaded model to the arrays."""
    with np.load(arrays) as data:
        images, labels = data["images"], data["labels"]
    gradients = gradients_of(tf.saved_model.load(model), images, labels)
    np.savez(arrays, allow_pickle=False, **gradients)


if __name__ == "__main__":
    main(*sys.argv[1:])
