"""Fits a spectral line whose profile only SciPy can compute, with its Jacobian.

The Voigt profile is the real part of the Faddeeva function w(z) at z = (x - centre + i gamma) / (sigma sqrt(2)),
divided by sigma sqrt(2 pi). Its derivatives follow from w'(z) = -2 z w(z) + 2i / sqrt(pi) (Abramowitz and Stegun,
7.1.20).
"""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
import scipy.special
import tensorflow as tf

from tf_cg_ops import numpy_function

from .report import Report

STEPS = 400
NOISE = 0.005
TRUE = np.array([0.3, 0.5, 0.25])  # Centre, width sigma of the Gaussian, width gamma of the Lorentzian.
START = np.array([-0.5, 1.0, 1.0])
GRID = np.linspace(-4.0, 4.0, 201)


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The noisy profile, the profiles before and after the fit, and the loss after each step."""

    observed: np.ndarray
    start: np.ndarray
    fitted: np.ndarray
    losses: list[float]


def profile_and_jacobian(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The profile on the grid, [n], and its derivatives by the three parameters, [n, 3], computed by SciPy."""
    centre, sigma, gamma = parameters
    z = (GRID - centre + 1j * gamma) / (sigma * np.sqrt(2.0))
    w = scipy.special.wofz(z)
    dw = -2.0 * z * w + 2j / np.sqrt(np.pi)
    scale = 1.0 / (sigma * np.sqrt(2.0 * np.pi))
    by_centre = -np.real(dw) / (sigma * np.sqrt(2.0))
    by_sigma = -(np.real(dw * z) + np.real(w)) / sigma
    by_gamma = -np.imag(dw) / (sigma * np.sqrt(2.0))
    return scale * np.real(w), scale * np.stack([by_centre, by_sigma, by_gamma], axis=-1)


# The black box as a TensorFlow function with a gradient.
profile = numpy_function(profile_and_jacobian, output_signature=tf.TensorSpec([len(GRID)], tf.float64))


def profile_without_gradient(parameters: tf.Tensor) -> tf.Tensor:
    """The black box in plain TensorFlow."""
    return tf.numpy_function(lambda p: profile_and_jacobian(p)[0], [parameters], tf.float64)


def gradient(
    function: Callable[[tf.Tensor], tf.Tensor], parameters: np.ndarray, upstream: np.ndarray
) -> tf.Tensor | None:
    """The vector-Jacobian product of the black box."""
    x = tf.constant(parameters)
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = function(x)
    return tape.gradient(h, x, output_gradients=tf.constant(upstream))


def numeric_gradient(parameters: np.ndarray, upstream: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The vector-Jacobian product by central differences."""
    offsets = step * np.eye(len(parameters))
    values = [[profile_and_jacobian(parameters + sign * o)[0] @ upstream for o in offsets] for sign in (1, -1)]
    return (np.array(values[0]) - np.array(values[1])) / (2.0 * step)


def run(report: Report) -> Fitted:
    """Checks the gradient, then fits with it."""
    rng = np.random.default_rng(0)
    upstream = rng.normal(size=len(GRID))
    embedded, numeric = gradient(profile, START, upstream), numeric_gradient(START, upstream)
    error = np.max(np.abs(embedded - numeric)) / np.max(np.abs(numeric))
    report.add("black box: relative error of the gradient against central differences", error, "at most", 1e-7)
    paths = float(gradient(profile_without_gradient, START, upstream) is not None)
    report.add("black box, without: gradients that TensorFlow finds on its own", paths, "at most", 0)

    observed = profile_and_jacobian(TRUE)[0] + NOISE * rng.normal(size=len(GRID))
    parameters = tf.Variable(START)
    optimizer = keras.optimizers.Adam(0.02)
    optimizer.build([parameters])

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((profile(parameters) - observed) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, parameters), parameters)])
        return loss

    print("\nBlack box: fitting a Voigt profile that SciPy computes")
    bar = keras.utils.Progbar(STEPS, unit_name="step", stateful_metrics=["rms"])
    losses = []
    for i in range(STEPS):
        losses.append(float(step()))
        bar.update(i + 1, [("rms", losses[-1] ** 0.5)])
    report.add("black box: rms of the fit (the noise is 0.005)", losses[-1] ** 0.5, "at most", 1.1 * NOISE)
    distance = float(np.max(np.abs(parameters.numpy() - TRUE)))
    report.add("black box: largest error of a fitted parameter", distance, "at most", 0.02)
    return Fitted(observed, profile_and_jacobian(START)[0], profile_and_jacobian(parameters.numpy())[0], losses)
