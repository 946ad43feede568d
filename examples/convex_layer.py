"""Trains a net through an optimization problem that SciPy solves: a convex layer in Keras, with `numpy_function`.

    python examples/convex_layer.py [--output FOLDER]

A net predicts the returns r of six assets from features. A layer then divides the money between them: for each example
SciPy solves

    maximize r y - |y|^2 / 2,    sum of y = 1,    y >= 0,    y0 + y1 + y2 <= 1/2.

The gradient is a projection. Let A have the rows of the active constraints: y can only move with r where they let it,
so dr = P dy with P = I - A^+ A. The forward pass keeps the active constraints as a list of matrices, and `vjp` computes
dr from them without a Jacobian.

We train two nets, both too simple for these returns. One learns to predict them. The other learns, through the layer,
to divide the money well: it predicts worse and earns more.

Sources: Amos and Kolter, "OptNet: Differentiable optimization as a layer in neural networks" (2017); Elmachtoub and
Grigas, "Smart predict, then optimize" (2022), for the comparison.

FOLDER gets the picture convex_layer.png, the regrets as curves.json, and results.json.
"""

import argparse
import json
import pathlib
import sys
from typing import Any

import keras
import matplotlib
import numpy as np
import scipy.optimize
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

ASSETS, FEATURES, EPOCHS = 6, 4, 12
EQUALITY = np.ones([1, ASSETS])
# The inequalities, one a row: each asset at least 0, and the first three together at most 1/2.
INEQUALITIES = np.vstack([np.eye(ASSETS), -np.repeat([[1.0, 0.0]], 3, axis=1).reshape(1, ASSETS)])
BOUNDS = np.append(np.zeros(ASSETS), -0.5)

calls = {"solver": 0, "adjoint": 0}


def divide(returns: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The best division for each row of returns, and the constraints that are active there."""
    calls["solver"] += 1
    division, active = [], []
    constraints = [
        {"type": "eq", "fun": lambda y: EQUALITY @ y - 1.0, "jac": lambda y: EQUALITY},
        {"type": "ineq", "fun": lambda y: INEQUALITIES @ y - BOUNDS, "jac": lambda y: INEQUALITIES},
    ]
    for r in returns.astype(np.float64):
        y = scipy.optimize.minimize(
            lambda y, r=r: y @ y / 2 - r @ y,
            np.full(ASSETS, 1.0 / ASSETS),
            jac=lambda y, r=r: y - r,
            constraints=constraints,
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 100},
        ).x
        division.append(y)
        active.append(np.vstack([EQUALITY, INEQUALITIES[INEQUALITIES @ y - BOUNDS < 1e-7]]))
    return np.array(division), active


def adjoint(active: list[np.ndarray], dy: np.ndarray) -> np.ndarray:
    """The gradient with respect to the returns: dy without what the active constraints block."""
    calls["adjoint"] += 1
    return np.array([row - np.linalg.pinv(a) @ (a @ row) for a, row in zip(active, dy, strict=True)])


best_division = cg.numpy_function(divide, tf.TensorSpec([ASSETS]), vjp=adjoint, batched=True)


@keras.saving.register_keras_serializable("examples")
class BestDivision(keras.layers.Layer):
    """The layer. It runs Python, which XLA cannot compile."""

    supports_jit = False

    def call(self, returns: tf.Tensor) -> tf.Tensor:
        """The division for each example."""
        return best_division(returns)


def gain(returns: Any, division: Any) -> Any:
    """The earnings of a division, less the price of risk."""
    return tf.reduce_sum(returns * division, -1) - tf.reduce_sum(division**2, -1) / 2


def data(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, and returns that depend on them nonlinearly."""
    mixing = np.random.default_rng(7)
    linear, bent = mixing.normal(size=[2, FEATURES, ASSETS])
    features = rng.normal(size=[count, FEATURES])
    returns = 0.4 * features @ linear + 0.8 * (features @ bent) ** 2 / FEATURES
    return features.astype(np.float32), (returns + 0.1 * rng.normal(size=returns.shape)).astype(np.float32)


class Regret(keras.callbacks.Callback):
    """After each epoch: how much less you earn if you divide by the predictions and not by the true returns."""

    def __init__(self, predictor: keras.Model, features: np.ndarray, returns: np.ndarray) -> None:
        super().__init__()
        self._predictor, self._features, self._returns = predictor, features, returns
        self._best = gain(returns, divide(returns)[0])
        self.values: list[float] = []

    def measure(self) -> float:
        """The mean regret now."""
        division, _ = divide(self._predictor(self._features).numpy())
        return float(tf.reduce_mean(self._best - gain(self._returns, division)))

    def on_train_begin(self, logs: Any = None) -> None:
        """The regret before the training."""
        self.values.append(self.measure())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Measures it after this epoch."""
        self.values.append(self.measure())
        print(f"  epoch {epoch + 1}: regret {self.values[-1]:.4f}", flush=True)


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def check(returns: np.ndarray, rng: np.random.Generator) -> None:
    """Compares the gradient in a tf.function with central differences, and counts the calls."""
    x, weights = tf.constant(returns), tf.constant(rng.normal(size=returns.shape), tf.float32)

    @tf.function
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(weights * best_division(x))
        return tape.gradient(loss, x)

    direction, step = rng.normal(size=returns.shape), 1e-4
    ahead, behind = (divide(returns + s * direction)[0] for s in (step, -step))
    numeric = np.sum(weights * (ahead - behind)) / (2 * step)
    calls.update(solver=0, adjoint=0)
    by_adjoint = np.sum(gradient(x) * direction)
    show("calls of the adjoint for a batch", calls["adjoint"], "at most", 1)
    show("relative error of the gradient", abs(by_adjoint - numeric) / abs(numeric), "at most", 1e-3)
    division = best_division(x).numpy()
    show("violation of the constraints", max(0.0, np.max(BOUNDS - division @ INEQUALITIES.T)), "at most", 1e-5)


def run(output: pathlib.Path) -> None:
    """Checks the layer, trains both nets, and compares."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    (features, returns), test = data(rng, 512), data(rng, 256)
    check(returns[:16], rng)

    regrets, predictors = {}, {}
    for name, has_layer in (("trained to predict", False), ("trained through the layer", True)):
        print(name, flush=True)
        inputs = keras.Input([FEATURES])
        predicted = keras.layers.Dense(ASSETS)(inputs)
        predictors[name] = keras.Model(inputs, predicted)
        model = keras.Model(inputs, BestDivision()(predicted)) if has_layer else predictors[name]
        loss = (lambda returns, division: -gain(returns, division)) if has_layer else "mse"
        model.compile(keras.optimizers.Adam(0.02), loss, jit_compile=False)
        regret = Regret(predictors[name], *test)
        model.fit(features, returns, batch_size=32, epochs=EPOCHS, verbose=0, callbacks=[regret])
        regrets[name] = regret.values
        if has_layer:
            calls.update(solver=0, adjoint=0)
            model.predict(features[:32], verbose=0)
            show("calls of the adjoint in predict", calls["adjoint"], "at most", 0)
    by_prediction, by_layer = (values[-1] for values in regrets.values())
    show("regret of the net trained to predict", by_prediction, "at least", 0.02)
    show("regret of the net trained through the layer, in multiples of it", by_layer / by_prediction, "at most", 0.9)
    errors = [np.mean((predictor(test[0]).numpy() - test[1]) ** 2) for predictor in predictors.values()]
    show("error of its predictions, in multiples of the other net's", errors[1] / errors[0], "at least", 1.2)
    (output / "curves.json").write_text(json.dumps(regrets, indent=1) + "\n")
    draw(regrets, predictors, test, output / "convex_layer.png")


def draw(regrets: dict[str, list[float]], predictors: dict[str, keras.Model], test: Any, path: pathlib.Path) -> None:
    """The regret after each epoch, and for each net the predictions by the returns."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    learning, *scatters = figure.subplots(1, 3)
    colours = ("tab:grey", "tab:blue")
    for (name, values), colour in zip(regrets.items(), colours, strict=True):
        learning.plot(values, "o-", color=colour, label=name)
    learning.set(title="Regret of the division", xlabel="epoch", ylabel="mean regret", ylim=(0, None))
    learning.legend()
    features, returns = test
    for axes, (name, predictor), colour in zip(scatters, predictors.items(), colours, strict=True):
        axes.plot(returns.ravel(), predictor(features).numpy().ravel(), ".", color=colour, markersize=3)
        axes.plot([-2, 4], [-2, 4], "k:", linewidth=1)
        axes.set(title=f"Predictions of the net {name}", xlabel="return", xlim=(-2, 4), ylim=(-4, 6))
    scatters[0].set_ylabel("prediction")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/convex_layer")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
