"""A digit classifier of binary units, trained through the derivative that is embedded in their sign function.

`python -m tf_cg_ops._demo.digits MODEL ARRAYS` is the fresh process that loads the SavedModel. It only uses the
SavedModel and the ops that `import tf_cg_ops` registers, not the Python code of the net.
"""

import dataclasses
import pathlib
import subprocess
import sys

import keras
import numpy as np
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf

from tf_cg_ops import embed_gradient

from .report import Report

HIDDEN_UNITS = 256
VOTERS_PER_CLASS = 30
EPOCHS = 40
BATCH_SIZE = 64
CLASSES = 10
COMPARED_IMAGES = 32


def straight_through_sign(x: tf.Tensor) -> tf.Tensor:
    """The sign, with the derivative of the hard tanh (Hubara et al., 2016, "Binarized Neural Networks")."""
    return embed_gradient(fx=tf.sign(x), gx=tf.cast(tf.abs(x) <= 1.0, x.dtype), x=x)


class BinaryVoters(tf.Module):
    """Two layers of units that are +1 or -1; the logit of each class is the mean vote of its own units.

    No trainable layer follows the last sign: the net learns through the embedded derivative alone.
    """

    def __init__(self, embedded: bool, seed: int) -> None:
        super().__init__()
        self._sign = straight_through_sign if embedded else tf.sign
        init = tf.random.stateless_normal
        voters = CLASSES * VOTERS_PER_CLASS
        self.hidden = tf.Variable(init([64, HIDDEN_UNITS], [seed, 0]) / 8.0, name="hidden")
        self.hidden_bias = tf.Variable(tf.zeros([HIDDEN_UNITS]), name="hidden_bias")
        self.votes = tf.Variable(init([HIDDEN_UNITS, voters], [seed, 1]) / HIDDEN_UNITS**0.5, name="votes")
        self.votes_bias = tf.Variable(tf.zeros([voters]), name="votes_bias")

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name="images")])
    def logits(self, images: tf.Tensor) -> tf.Tensor:
        """The log-odds of the classes, [batch, 10]."""
        hidden = self._sign(images @ self.hidden + self.hidden_bias)
        votes = self._sign(hidden @ self.votes + self.votes_bias)
        return 5.0 * tf.reduce_mean(tf.reshape(votes, [-1, CLASSES, VOTERS_PER_CLASS]), axis=-1)


@dataclasses.dataclass(frozen=True)
class Data:
    """Images of 64 pixels, centred, and their labels."""

    train_images: np.ndarray
    test_images: np.ndarray
    train_labels: np.ndarray
    test_labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Trained:
    """The net with the embedded derivative, the data, and the test accuracy of both nets after each epoch."""

    net: BinaryVoters
    data: Data
    curves: dict[str, list[float]]


def load() -> Data:
    """The 1,797 handwritten digits that come with scikit-learn, a quarter of them held out."""
    digits = sklearn.datasets.load_digits()
    images = (digits.data / 8.0 - 1.0).astype(np.float32)
    return Data(
        *sklearn.model_selection.train_test_split(
            images, digits.target, test_size=0.25, stratify=digits.target, random_state=0
        )
    )


def loss_of(net: tf.Module, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The mean cross-entropy."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=net.logits(images))
    return tf.reduce_mean(losses)


def accuracy(net: tf.Module, images: np.ndarray, labels: np.ndarray) -> float:
    """The fraction of images whose class gets the most votes."""
    return float(np.mean(np.argmax(net.logits(images), axis=-1) == labels))


def train(net: BinaryVoters, data: Data, title: str) -> tuple[list[float], float]:
    """Trains with Adam. Returns the test accuracy after each epoch and the largest gradient of the training."""
    optimizer = keras.optimizers.Adam(1e-3)
    variables = list(net.trainable_variables)
    optimizer.build(variables)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(net, images, labels)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return tf.reduce_max([tf.reduce_max(tf.abs(gradient)) for gradient in gradients])

    print(f"\n{title}")
    batches = tf.data.Dataset.from_tensor_slices((data.train_images, data.train_labels))
    batches = batches.shuffle(len(data.train_labels), seed=0).batch(BATCH_SIZE, drop_remainder=True)
    bar = keras.utils.Progbar(EPOCHS, unit_name="epoch", stateful_metrics=["test accuracy"])
    curve, largest = [accuracy(net, data.test_images, data.test_labels)], 0.0
    for epoch in range(EPOCHS):
        for images, labels in batches:
            largest = max(largest, float(step(images, labels)))
        curve.append(accuracy(net, data.test_images, data.test_labels))
        bar.update(epoch + 1, [("test accuracy", curve[-1])])
    return curve, largest


def run(report: Report) -> Trained:
    """Trains the same net with and without the embedded derivative."""
    data = load()
    with_gradient, without = BinaryVoters(embedded=True, seed=2), BinaryVoters(embedded=False, seed=2)
    curve, _ = train(
        with_gradient, data, f"Digits: binary units, derivative embedded ({len(data.train_labels)} images)"
    )
    plain_curve, plain_largest = train(without, data, "Digits: the same net, without")
    report.add("digits, derivative embedded: test accuracy", curve[-1], "at least", 0.9)
    report.add("digits, without: test accuracy (chance is 0.1)", plain_curve[-1], "at most", 0.2)
    report.add("digits, without: largest gradient of the training", plain_largest, "at most", 0.0)
    return Trained(with_gradient, data, {"embedded derivative": curve, "without": plain_curve})


def gradients_of(net: tf.Module, images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The gradients of the loss with respect to the images and to every weight."""
    inputs = tf.constant(images)
    named = {"images": inputs, "hidden": net.hidden, "hidden_bias": net.hidden_bias, "votes": net.votes}
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = loss_of(net, inputs, tf.constant(labels))
    return {name: gradient.numpy() for name, gradient in tape.gradient(loss, named).items()}


def compare_after_reloading(trained: Trained, model: pathlib.Path, report: Report) -> None:
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
