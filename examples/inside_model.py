"""Inside a model: Grad-CAM, integrated gradients at a hidden layer and activation patching, with `capture`.

    python examples/inside_model.py [--output FOLDER]

A convolutional net learns to read digits. `capture` returns what its layers compute, and the gradients of the scores go
through these Tensors, although the layers are in a model inside the model. A fresh process does it with the SavedModel.

Sources: Selvaraju et al., "Grad-CAM" (2017), arXiv:1610.02391; Zhou et al., "Learning deep features for discriminative
localization" (2016), arXiv:1512.04150, for CAM, which Grad-CAM must be equal to in this net; Sundararajan et al.,
"Axiomatic attribution for deep networks" (2017), arXiv:1703.01365, for integrated gradients.

FOLDER gets the picture inside_model.png, the model, reloaded.npy of the fresh process, and results.json.
"""

import argparse
import json
import multiprocessing
import pathlib
import sys
from typing import Any

import keras
import matplotlib
import numpy as np
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

CLASSES, CHANNELS, EPOCHS, SEED, STEPS = 10, 32, 20, 0, 64
LAYERS, PLACE_IN_FILE = ["first_conv", "second_conv", "last_conv"], "last_conv_1"
SHOWN, RECEIVER, DONOR = [0, 2, 3, 4, 6, 8], 3, 8  # Classes, of which the first image is taken.
findings: list[dict[str, Any]] = []


def digits() -> list[np.ndarray]:
    """Images of 8 times 8 pixels between 0 and 1, for training and for testing; then their classes."""
    images, classes = sklearn.datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16.0
    return sklearn.model_selection.train_test_split(images, classes, test_size=0.25, random_state=SEED)


def make_net() -> keras.Model:
    """Three convolutions with ReLU as one model, and a linear layer on the mean over the pixels."""
    convolutions = [keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="relu", name=name) for name in LAYERS]
    head = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES)]
    return keras.Sequential([keras.layers.Input([8, 8, 1]), keras.Sequential(convolutions), keras.Sequential(head)])


def grad_cam(net: Any, place: str, x: np.ndarray, upstream: tf.Tensor) -> np.ndarray:
    """Where the feature maps at a place raise the scores that `upstream` selects."""
    with tf.GradientTape() as tape:
        scores, values = cg.capture(net, {"maps": place})(x)
    gradient = tape.gradient(scores, values["maps"], output_gradients=upstream)
    weights = tf.reduce_mean(gradient, axis=[1, 2], keepdims=True)
    return tf.nn.relu(tf.reduce_sum(weights * values["maps"], axis=-1)).numpy()


def guided_gradient(net: Any, x: tf.Tensor, upstream: tf.Tensor) -> np.ndarray:
    """The gradient by the pixels of guided backpropagation; see saliency_maps.py."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        scores = cg.override_gradients(net, {"Relu": cg.rules.guided})(x)
    return tape.gradient(scores, x, output_gradients=upstream)[..., 0].numpy()


def integrated_gradients(net: Any, x: tf.Tensor, upstream: tf.Tensor) -> np.ndarray:
    """What each value after the first convolution adds to the score, compared with a black image."""
    inner = cg.capture(net, {"hidden": "first_conv"})
    start, end = (inner(images)[1]["hidden"] for images in (tf.zeros_like(x), x))

    @tf.function
    def slope(hidden: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            scores, _ = inner(x, hidden=hidden)
        return tape.gradient(scores, hidden, output_gradients=upstream)

    slopes = [slope(start + (step + 0.5) / STEPS * (end - start)) for step in range(STEPS)]
    return ((end - start) * tf.add_n(slopes) / STEPS).numpy()


def patch(net: Any, image: np.ndarray, other: np.ndarray, channels: np.ndarray) -> np.ndarray:
    """Scores of an image with channels of the second convolution from another one, for each row of `channels`."""
    inner = cg.capture(net, {"hidden": "second_conv"})
    own, given = (inner(x[None])[1]["hidden"] for x in (image, other))
    images = np.repeat(image[None], len(channels), axis=0)
    return inner(images, hidden=tf.where(channels[:, None, None, :], given, own))[0].numpy()


def gradients_in_halves(net: keras.Model, x: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
    """The gradients by the values of the convolutions without this library: the net cut in two after each."""
    layers, found = [layer for part in net.layers for layer in part.layers], []
    for cut in range(1, len(LAYERS) + 1):
        hidden = keras.Sequential(layers[:cut])(x)
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            scores = keras.Sequential(layers[cut:])(hidden)
        found.append(tape.gradient(scores, hidden, output_gradients=upstream))
    return found


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    found = {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound}
    findings.append(found | {"holds": bool(holds)})


def run(output: pathlib.Path) -> None:
    """Trains the net and looks inside, here and in a fresh process."""
    keras.utils.set_random_seed(SEED)
    x_train, x_test, y_train, y_test = digits()
    net = make_net()
    net.compile(keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    net.fit(x_train, y_train, batch_size=32, epochs=EPOCHS, verbose=0)
    x, upstream = tf.constant(x_test), tf.one_hot(y_test, CLASSES)
    with tf.GradientTape() as tape:
        scores, values = cg.capture(net, LAYERS)(x)
    show("test accuracy", np.mean(np.argmax(scores, axis=1) == y_test), "at least", 0.95)
    show("largest difference from a score of the net", np.max(np.abs(scores - net(x))), "at most", 0.0)
    found = tape.gradient(scores, list(values.values()), output_gradients=upstream)
    for name, a, b in zip(values, found, gradients_in_halves(net, x, upstream), strict=True):
        show(f"{name}: largest difference from the gradient of the half", np.max(np.abs(a - b)), "at most", 1e-6)

    heat = grad_cam(net, "last_conv", x_test, upstream)
    weights = net.layers[1].layers[1].kernel.numpy().T[y_test] / 64  # The mean is over 64 pixels.
    expected = np.maximum(np.einsum("nc,nhwc->nhw", weights, values["last_conv"]), 0.0)
    show("Grad-CAM: largest difference from CAM", np.max(np.abs(heat - expected)), "at most", 1e-6)
    parts = integrated_gradients(net, x, upstream)
    expected = np.sum(upstream * (scores - net(tf.zeros_like(x))), axis=1)
    error = np.max(np.abs(np.sum(parts, axis=(1, 2, 3)) - expected)) / np.max(np.abs(expected))
    show("integrated gradients: largest difference between their sum and the change of a score", error, "at most", 1e-2)

    receiver, donor = (x_test[np.argmax(y_test == digit)] for digit in (RECEIVER, DONOR))
    margin = np.eye(CLASSES)[DONOR] - np.eye(CLASSES)[RECEIVER]
    alone = (patch(net, receiver, donor, np.eye(CHANNELS, dtype=bool)) - net(receiver[None]).numpy()) @ margin
    channels = np.zeros([CHANNELS + 1, CHANNELS], bool)  # In row k, the k channels that move the scores most.
    channels[:, np.argsort(-alone)] = np.tri(CHANNELS + 1, CHANNELS, -1)
    together = patch(net, receiver, donor, channels)
    difference = np.max(np.abs(together[-1] - net(donor[None])))
    show("patching all channels: largest difference from a score of the other image", difference, "at most", 1e-5)
    show("channels patched until the other digit has a higher score", np.argmax(together @ margin > 0), "at most", 12)

    net.export(output / "saved_model", verbose=False)
    with multiprocessing.get_context("spawn").Pool(1) as fresh_process:
        fresh_process.apply(in_fresh_process, [output])
    again = np.load(output / "reloaded.npy")
    show("fresh process: largest difference of a Grad-CAM", np.max(np.abs(again - heat)), "at most", 1e-6)
    maps = {"Grad-CAM": heat, "guided\nGrad-CAM": heat * guided_gradient(net, x, upstream)}
    maps = {"image": x_test[..., 0], **maps, "integrated\ngradients": np.sum(parts, axis=-1)}
    rows = [np.argmax(y_test == digit) for digit in SHOWN]
    draw({name: found[rows] for name, found in maps.items()}, (receiver, donor), alone, together @ margin, output)


def in_fresh_process(output: pathlib.Path) -> None:
    """Makes the maps of Grad-CAM from the SavedModel, without the code of the model."""
    _, x_test, _, y_test = digits()
    print(f"The place in the SavedModel is {PLACE_IN_FILE!r}.", flush=True)
    loaded = tf.saved_model.load(output / "saved_model")
    np.save(output / "reloaded.npy", grad_cam(loaded.serve, PLACE_IN_FILE, x_test, tf.one_hot(y_test, CLASSES)))


def draw(maps: dict[str, np.ndarray], pair: Any, alone: np.ndarray, together: np.ndarray, output: pathlib.Path) -> None:
    """A column for each image, with a row for each kind of map, and beside them what patching does."""
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(2, 1), wspace=0.04)
    colours = matplotlib.colormaps["RdBu_r"].resampled(31)  # Few, so that the file is small.
    for row, (name, found) in zip(left.subplots(len(maps), len(SHOWN)), maps.items(), strict=True):
        row[0].set_ylabel(name, fontsize="large")
        for axes, values, image in zip(row, found, maps["image"], strict=True):
            style = {"cmap": colours, "vmin": -np.max(np.abs(values)), "interpolation": "bicubic"}
            axes.imshow(values, vmax=np.max(np.abs(values)), **({"cmap": "gray_r"} if name == "image" else style))
            axes.contour(image, levels=[0.4], colors="black", linewidths=1.2)
            axes.set(xticks=[], yticks=[])
    left.suptitle("What raises the score of the digit (red) and what lowers it (blue)")
    shown, bars, curve = right.subplots(3, 1, height_ratios=(1, 1.3, 1.3))
    shown.imshow(np.hstack([pair[0], np.zeros([8, 4, 1]), pair[1]])[..., 0], cmap="gray_r")
    shown.text(9.5, 3.5, "←", fontsize=24, ha="center", va="center")
    shown.set_axis_off()
    bars.bar(np.arange(1, CHANNELS + 1), np.sort(alone)[::-1], color="tab:orange")
    bars.set(xlabel="channel of the second convolution, sorted", ylabel="change by one channel")
    curve.plot(together, "o-", markersize=4, color="tab:blue")
    curve.axhline(0.0, color="grey", linestyle=":")
    curve.set(xlabel="number of channels patched", ylabel=f"score of {DONOR} - score of {RECEIVER}")
    right.suptitle(f"Activation patching: a {RECEIVER} gets channels of an {DONOR}")
    figure.savefig(output / "inside_model.png", dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/inside_model")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
