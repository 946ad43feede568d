"""A deep equilibrium model in Keras that reads digits, with `implicit_fixed_point`.

    python examples/equilibrium_layer.py [--output FOLDER]

The output z of the layer is the fixed point of z = tanh(W z + U x + b). The forward pass repeats the right-hand side
until nothing changes. Backpropagation through these steps would keep every state; the implicit function theorem needs
only the last one, and the solution of a linear system with 64 unknowns for each of 128 digits. `linear.gmres` solves it
with vector-Jacobian products, without the matrix of 8,192 rows and columns. The example compares both gradients.

Source: Bai, Kolter and Koltun, "Deep equilibrium models" (2019).

FOLDER gets the picture equilibrium_layer.png, the curves as curves.json, and results.json.
"""

import argparse
import functools
import json
import pathlib
import sys
from typing import Any

import keras
import matplotlib
import numpy as np
import sklearn.datasets
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

UNITS, BATCH, EPOCHS = 64, 128, 15
MAX_STEPS = 60


def cell(z: tf.Tensor, x: tf.Tensor, w: tf.Tensor, u: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """One step."""
    return tf.tanh(tf.matmul(z, w) + tf.matmul(x, u) + b)


def repeat(x: tf.Tensor, w: tf.Tensor, u: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The fixed point, and the number of steps to it."""

    def goes_on(step: tf.Tensor, _: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
        return (step < MAX_STEPS) & (change > 1e-5)

    def body(step: tf.Tensor, z: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        new = cell(z, x, w, u, b)
        return step + 1, new, tf.reduce_max(tf.abs(new - z))

    zero = tf.matmul(x, tf.zeros_like(u))
    start = (tf.constant(0), zero, tf.constant(1.0))
    steps, z, _ = tf.while_loop(goes_on, body, start, maximum_iterations=MAX_STEPS)
    return z, steps


equilibrium = cg.implicit_fixed_point(
    cell, repeat, has_aux=True, linear_solve=functools.partial(cg.linear.gmres, restart=10)
)


@keras.saving.register_keras_serializable("examples")
class Equilibrium(keras.layers.Layer):
    """The layer; with `is_implicit=False`, backpropagation goes through all steps."""

    def __init__(self, units: int, is_implicit: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.is_implicit = units, is_implicit

    def build(self, input_shape: Any) -> None:
        """Makes the weights. W is small, so that the steps converge."""
        small = keras.initializers.RandomNormal(stddev=0.5 / np.sqrt(self.units), seed=1)
        self.w = self.add_weight(shape=[self.units, self.units], initializer=small)
        self.u = self.add_weight(shape=[input_shape[-1], self.units], initializer=keras.initializers.GlorotNormal(2))
        self.b = self.add_weight(shape=[self.units], initializer="zeros")
        self.steps = self.add_weight(shape=[], initializer="zeros", dtype="int32", trainable=False)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """The fixed point for each example."""
        z, steps = (equilibrium if self.is_implicit else repeat)(x, *self.weights_of_cell())
        self.steps.assign(steps)
        return z

    def weights_of_cell(self) -> list[tf.Tensor]:
        """W, U and b, with W scaled down so that each step brings any two states closer together."""
        w, u, b = (tf.convert_to_tensor(weight) for weight in (self.w, self.u, self.b))
        return [0.8 * w / tf.maximum(0.8, tf.reduce_max(tf.reduce_sum(tf.abs(w), 0))), u, b]


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def make_model(is_implicit: bool) -> keras.Model:
    """The layer between the pixels and the classes, with the same weights each time."""
    return keras.Sequential(
        [
            keras.Input([64]),
            Equilibrium(UNITS, is_implicit),
            keras.layers.Dense(10, kernel_initializer=keras.initializers.GlorotNormal(3)),
        ]
    )


def gradients(model: keras.Model, images: np.ndarray, classes: np.ndarray) -> list[np.ndarray]:
    """The gradients with respect to all weights, in a tf.function."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return loss_of(y, model(x))

    with tf.GradientTape() as tape:
        value = loss(tf.constant(images), tf.constant(classes))
    found = tape.gradient(value, [weight.value for weight in model.trainable_variables])
    return [gradient.numpy() for gradient in found]


class Curves(keras.callbacks.Callback):
    """The accuracy on the test digits and the number of steps after each epoch."""

    def __init__(self, images: np.ndarray, classes: np.ndarray) -> None:
        super().__init__()
        self._test = images, classes
        self.accuracy: list[float] = []
        self.steps: list[int] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Measures both after this epoch."""
        self.steps.append(int(self.model.layers[0].steps))
        images, classes = self._test
        self.accuracy.append(float(np.mean(np.argmax(self.model.predict(images, verbose=0), -1) == classes)))
        print(f"  epoch {epoch + 1}: accuracy {self.accuracy[-1]:.4f}, {self.steps[-1]} steps", flush=True)


def run(output: pathlib.Path) -> None:
    """Compares the gradients, trains, and draws."""
    images, classes = sklearn.datasets.load_digits(return_X_y=True)
    images = (images / 16.0 - 0.3).astype(np.float32)
    order = np.random.default_rng(1).permutation(len(images))
    train, test = order[:1408], order[1408:]

    first = images[train[:BATCH]], classes[train[:BATCH]]
    by_theorem, by_steps = (gradients(make_model(implicit), *first) for implicit in (True, False))
    worst = max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in zip(by_theorem, by_steps, strict=True))
    show("largest difference from backpropagation through the steps", worst, "at most", 1e-3)

    model = make_model(True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, jit_compile=False)
    curves = Curves(images[test], classes[test])
    model.fit(images[train], classes[train], batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[curves])
    show("accuracy on digits that it has not seen", curves.accuracy[-1], "at least", 0.93)
    show("steps to the fixed point after the training", curves.steps[-1], "at least", 5)
    show("steps, of those allowed", curves.steps[-1], "at most", MAX_STEPS - 1)
    layer = model.layers[0]
    x = tf.constant(images[test])
    z = layer(x)
    residual = tf.reduce_max(tf.abs(cell(z, x, *layer.weights_of_cell()) - z))
    show("distance from a fixed point", float(residual), "at most", 1e-4)
    (output / "curves.json").write_text(
        json.dumps({"accuracy": curves.accuracy, "steps": curves.steps}, indent=1) + "\n"
    )
    draw(curves, layer, x, output / "equilibrium_layer.png")


def draw(curves: Curves, layer: Equilibrium, x: tf.Tensor, path: pathlib.Path) -> None:
    """The accuracy and the steps after each epoch, and how the steps converge."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    learning, depth, convergence = figure.subplots(1, 3)
    epochs = np.arange(1, EPOCHS + 1)
    learning.plot(epochs, curves.accuracy, "o-", color="tab:blue")
    learning.set(title="Accuracy on new digits", xlabel="epoch", ylabel="accuracy", ylim=(0.5, 1))
    depth.plot(epochs, curves.steps, "o-", color="tab:orange")
    depth.set(title="Depth: steps to the fixed point", xlabel="epoch", ylabel="steps", ylim=(0, None))
    weights = layer.weights_of_cell()
    z, changes = tf.zeros([x.shape[0], UNITS]), []
    for _ in range(40):
        z, before = cell(z, x, *weights), z
        changes.append(tf.reduce_max(tf.abs(z - before), -1).numpy())
    convergence.semilogy(np.array(changes)[:, :60], color="tab:green", alpha=0.3, linewidth=1)
    convergence.set(title="The change in each step, for 60 digits", xlabel="step", ylabel="largest change")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/equilibrium_layer")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
