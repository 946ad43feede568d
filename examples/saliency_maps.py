"""Saliency maps: guided backpropagation and a deconvolutional net, with `override_gradients`.

    python examples/saliency_maps.py [--output FOLDER]

A convolutional net learns to read digits. The gradient of the score of a class with respect to the image says which
pixels raise the score, but it is noisy: negative and positive contributions cancel in the layers below. Guided
backpropagation passes only positive gradients back through each ReLU, and only if its input was positive; a
deconvolutional net passes them for any input. Both replace the gradient of one op in a finished model. TensorFlow 1 had
`gradient_override_map` for this; in TensorFlow 2 people rebuild the model layer by layer. The example does that, too,
and compares.

A fresh process without the model's code makes the same maps from the SavedModel.

Sources: Simonyan, Vedaldi and Zisserman, "Deep inside convolutional networks" (2014), arXiv:1312.6034, for the maps;
Zeiler and Fergus, "Visualizing and understanding convolutional networks" (2014), arXiv:1311.2901, and Springenberg et
al., "Striving for simplicity" (2015), arXiv:1412.6806, for the rules.

FOLDER gets the picture saliency_maps.png, the model as saved_model, the maps of the fresh process as reloaded.npz, and
results.json.
"""

import argparse
import json
import multiprocessing
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import matplotlib
import numpy as np
import sklearn.datasets
import sklearn.model_selection
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

CLASSES, EPOCHS, SEED, SHOWN = 10, 12, 0, 8
RULES = {"deconvnet": cg.rules.deconvnet, "guided": cg.rules.guided}


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images of 8 times 8 pixels between 0 and 1, and their classes: for training and for testing."""
    images, classes = sklearn.datasets.load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16.0
    x_train, x_test, y_train, y_test = sklearn.model_selection.train_test_split(
        images, classes, test_size=0.25, random_state=SEED, stratify=classes
    )
    return x_train, y_train, x_test, y_test


def make_net() -> keras.Model:
    """Three convolutions and two dense layers, with a ReLU after each except the last."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input([8, 8, 1]),
            layers.Conv2D(16, 3, padding="same"),
            layers.ReLU(),
            layers.Conv2D(32, 3, padding="same"),
            layers.ReLU(),
            layers.Conv2D(32, 3, strides=2, padding="same"),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(64),
            layers.ReLU(),
            layers.Dense(CLASSES),
        ]
    )


def saliency_map(net: Callable[[tf.Tensor], tf.Tensor], images: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The gradient of the score of each image's class with respect to the image."""
    x = tf.constant(images)
    with tf.GradientTape() as tape:
        tape.watch(x)
        scores = net(x)
    return tape.gradient(scores, x, output_gradients=tf.one_hot(classes, CLASSES)).numpy()


def maps(net: Callable[[tf.Tensor], tf.Tensor], images: np.ndarray, classes: np.ndarray) -> dict[str, np.ndarray]:
    """The maps by the plain gradient and by each rule."""
    found = {"gradient": saliency_map(net, images, classes)}
    for name, rule in RULES.items():
        found[name] = saliency_map(cg.override_gradients(net, {"Relu": rule}), images, classes)
    return found


def layer_by_layer(net: keras.Model, images: np.ndarray, classes: np.ndarray, guided: bool) -> np.ndarray:
    """The map without this library: layer after layer, forward and back."""
    inputs = [tf.constant(images)]
    for layer in net.layers:
        inputs.append(layer(inputs[-1]))
    upstream = tf.one_hot(classes, CLASSES)
    for layer, x in zip(reversed(net.layers), reversed(inputs[:-1]), strict=True):
        if isinstance(layer, keras.layers.ReLU):
            upstream = tf.nn.relu(upstream)
            if guided:
                upstream = tf.where(x > 0.0, upstream, 0.0)
        else:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            upstream = tape.gradient(y, x, output_gradients=upstream)
    return upstream.numpy()


def correlation(found: np.ndarray, images: np.ndarray) -> float:
    """The mean correlation of a map with its image."""
    return float(np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(found, images, strict=True)]))


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Trains the net and makes the maps, here and in a fresh process."""
    keras.utils.set_random_seed(SEED)
    x_train, y_train, x_test, y_test = digits()
    net = make_net()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    for epoch in range(EPOCHS):
        logs = net.fit(x_train, y_train, batch_size=32, verbose=0).history
        print(f"epoch {epoch + 1} of {EPOCHS}: loss {logs['loss'][0]:.3f}", flush=True)
    show("test accuracy", net.evaluate(x_test, y_test, verbose=0)[1], "at least", 0.95)

    found = maps(net, x_test, y_test)
    for name, rule in RULES.items():
        overridden = cg.override_gradients(net, {"Relu": rule})
        difference = np.max(np.abs(overridden(x_test) - net(x_test)))
        show(f"{name}: largest difference from a score of the net", difference, "at most", 0.0)
        by_hand = layer_by_layer(net, x_test, y_test, guided=name == "guided")
        difference = np.max(np.abs(found[name] - by_hand)) / np.max(np.abs(by_hand))
        show(f"{name}: largest difference from the map layer by layer", difference, "at most", 1e-5)
    for name in RULES:
        gained = correlation(found[name], x_test) - correlation(found["gradient"], x_test)
        show(f"{name}: correlation of map and image, minus the gradient's", gained, "at least", 0.1)

    net.export(output / "saved_model", verbose=False)
    with multiprocessing.get_context("spawn").Pool(1) as fresh_process:
        fresh_process.apply(in_fresh_process, [output])
    reloaded = np.load(output / "reloaded.npz")
    difference = max(np.max(np.abs(reloaded[name] - found[name])) for name in found)
    show("fresh process: largest difference of a map", difference / np.max(found["guided"]), "at most", 1e-5)
    draw(x_test[:SHOWN], {name: values[:SHOWN] for name, values in found.items()}, output / "saliency_maps.png")


def in_fresh_process(output: pathlib.Path) -> None:
    """Makes the maps from the SavedModel, without the code of the model."""
    *_, x_test, y_test = digits()
    loaded = tf.saved_model.load(output / "saved_model")
    np.savez(output / "reloaded.npz", **maps(loaded.serve, x_test, y_test))


def draw(images: np.ndarray, found: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """A column for each image: the image, and below it a map for each rule."""
    titles = {"gradient": "gradient", "deconvnet": "deconvolutional net", "guided": "guided"}
    figure = Figure(figsize=(1.5 * len(images), 6.6), layout="constrained")
    rows = figure.subplots(1 + len(found), len(images))
    for column, image in enumerate(images):
        rows[0, column].imshow(image[..., 0], cmap="gray_r")
        for row, name in enumerate(found, start=1):
            values = found[name][column, ..., 0]
            limit = np.max(np.abs(values))
            rows[row, column].imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
    for axes in rows.flat:
        axes.set(xticks=[], yticks=[])
    for axes, title in zip(rows[:, 0], ["image", *(titles[name] for name in found)], strict=True):
        axes.set_ylabel(title, fontsize="small")
    figure.suptitle("The pixels that raise the score of the class (red) and lower it (blue)", x=0.01, ha="left")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/saliency_maps")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
