"""Neural ODE: a net learns a differential equation, with SciPy's solver and the adjoint equation.

    python examples/neural_ode.py [--output FOLDER]

A net f with 162 weights is the right-hand side of y' = f(y). Starting at each noisy measurement, SciPy predicts the
next four. With the upstream gradients dy_i at the times t_i, the gradients with respect to the weights w and the start
come from another equation, which runs backwards in time:

    a' = -(df/dy)^T a,    g' = -(df/dw)^T a,    and a jumps by dy_i at t_i,

where a and g are zero after the last time. At the start, a and g are the two gradients. The equation needs the solution
at every time, which SciPy returns as an object that interpolates. With `vjp`, `numpy_function` keeps residuals of any
kind until you compute the gradient. (Sensitivities would have 162 columns for each unknown instead.)

Sources: Pontryagin et al., "The mathematical theory of optimal processes" (1962), for the adjoint equation; Chen,
Rubanova, Bettencourt and Duvenaud, "Neural ordinary differential equations" (2018), for the net and the spiral.

FOLDER gets the picture neural_ode.png, the losses as curve.json, and results.json.
"""

import argparse
import gc
import json
import pathlib
import sys
import weakref
from typing import Any

import matplotlib
import numpy as np
import scipy.integrate
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

WIDTH = 32
SHAPES = ([WIDTH, 2], [WIDTH, 1], [2, WIDTH], [2, 1])
SIZES = [int(np.prod(shape)) for shape in SHAPES]
TIMES = np.linspace(0.0, 6.0, 41)  # Of the measurements.
WINDOW = 4  # How many measurements are predicted from each one.
START = np.array([2.0, 0.0])
STEPS = 400
ACCURACY = {"rtol": 1e-7, "atol": 1e-9}

calls = {"solver": 0, "adjoint": 0}
solutions: weakref.WeakSet[Any] = weakref.WeakSet()


def spiral(_: float, y: np.ndarray) -> np.ndarray:
    """The equation that the net should find."""
    return np.array([-0.1 * y[0] ** 3 + 2.0 * y[1] ** 3, -2.0 * y[0] ** 3 - 0.1 * y[1] ** 3])


def unpack(weights: np.ndarray) -> list[np.ndarray]:
    """The weights of both layers."""
    parts = np.split(weights, np.cumsum(SIZES)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def field(y: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """The net: a tanh layer on the cubes of y, and a linear layer. Each column of y, [2, n], is a point."""
    w1, b1, w2, b2 = weights
    return w2 @ np.tanh(w1 @ y**3 + b1) + b2


def field_vjp(y: np.ndarray, weights: list[np.ndarray], a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(df/dy)^T a and (df/dw)^T a."""
    w1, b1, w2, _ = weights
    h = np.tanh(w1 @ y**3 + b1)
    inner = (1 - h**2) * (w2.T @ a)
    by_weights = [inner @ (y**3).T, inner.sum(1), a @ h.T, a.sum(1)]
    return 3 * y**2 * (w1.T @ inner), np.concatenate([part.ravel() for part in by_weights])


def trajectories(starts: np.ndarray, flat: np.ndarray) -> tuple[np.ndarray, Any]:
    """The solutions from each start, [n, 2], at the times of a window, [n, times, 2], and what the adjoint needs."""
    calls["solver"] += 1
    weights, times = unpack(flat), TIMES[: WINDOW + 1]
    solution = scipy.integrate.solve_ivp(
        lambda _, y: field(y.reshape(2, -1), weights).ravel(),
        (times[0], times[-1]),
        starts.T.ravel(),
        t_eval=times,
        dense_output=True,
        **ACCURACY,
    )
    solutions.add(solution.sol)
    return solution.y.reshape(2, len(starts), -1).transpose(1, 2, 0), (weights, solution.sol)


def adjoint(residuals: Any, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradients with respect to the starts and the weights."""
    calls["adjoint"] += 1
    weights, solution = residuals
    n = len(dy)

    def backwards(t: float, state: np.ndarray) -> np.ndarray:
        by_y, by_weights = field_vjp(solution(t).reshape(2, n), weights, state[: 2 * n].reshape(2, n))
        return -np.concatenate([by_y.ravel(), by_weights])

    state = np.zeros(2 * n + sum(SIZES))
    for i in range(WINDOW, 0, -1):
        state[: 2 * n] += dy[:, i].T.ravel()
        span = (TIMES[i], TIMES[i - 1])
        state = scipy.integrate.solve_ivp(backwards, span, state, t_eval=span[1:], **ACCURACY).y[:, -1]
    return state[: 2 * n].reshape(2, n).T + dy[:, 0], state[2 * n :]


solve = cg.numpy_function(trajectories, tf.TensorSpec([None, WINDOW + 1, 2], tf.float64), vjp=adjoint)


def loss_of(starts: tf.Tensor, weights: tf.Tensor, windows: tf.Tensor) -> tf.Tensor:
    """The mean square distance of the solutions from the measurements, [n, times, 2], without the starts."""
    return tf.reduce_mean((solve(starts, weights) - windows)[:, 1:] ** 2)


@tf.function
def loss_and_gradients(starts: tf.Tensor, weights: tf.Tensor, windows: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The loss, and its gradients with respect to the starts and the weights."""
    with tf.GradientTape() as tape:
        tape.watch([starts, weights])
        loss = loss_of(starts, weights, windows)
    return loss, tape.gradient(loss, [starts, weights])


def directional_derivatives(weights: np.ndarray, windows: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Two derivatives of the loss along one random direction: by the adjoint, and by central differences."""
    starts, step = windows[:, 0], 1e-5
    by_starts, by_weights = rng.normal(size=starts.shape), rng.normal(size=weights.shape)
    _, gradients = loss_and_gradients(tf.constant(starts), tf.constant(weights), tf.constant(windows))
    by_adjoint = np.sum(gradients[0].numpy() * by_starts) + np.sum(gradients[1].numpy() * by_weights)
    ahead, behind = (
        loss_of(tf.constant(starts + s * by_starts), tf.constant(weights + s * by_weights), tf.constant(windows))
        for s in (step, -step)
    )
    return by_adjoint, float(ahead - behind) / (2 * step)


def train(weights: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Trains with Adam and a falling learning rate."""
    variable = tf.Variable(weights)
    schedule = tf.keras.optimizers.schedules.CosineDecay(0.03, STEPS, alpha=0.02)
    optimizer = tf.keras.optimizers.Adam(schedule)
    losses = []
    for step in range(STEPS):
        loss, gradients = loss_and_gradients(tf.constant(windows[:, 0]), variable, tf.constant(windows))
        optimizer.apply_gradients([(gradients[1], variable)])
        losses.append(float(loss))
        if step % 25 == 0 or step == STEPS - 1:
            print(f"step {step}: loss {losses[-1]:.6f}", flush=True)
    return variable.numpy(), losses


def follow(weights: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The solution of the learned equation from the start, [2, times]."""
    unpacked = unpack(weights)
    right = lambda _, y: field(y[:, None], unpacked)[:, 0]  # noqa: E731
    return scipy.integrate.solve_ivp(right, (times[0], times[-1]), START, t_eval=times, **ACCURACY).y


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Checks the gradient, counts the calls, trains, and draws."""
    rng = np.random.default_rng(1)
    true = scipy.integrate.solve_ivp(spiral, (TIMES[0], TIMES[-1]), START, t_eval=TIMES, **ACCURACY).y.T
    observed = true + 0.02 * rng.normal(size=true.shape)
    windows = np.stack([observed[i : i + WINDOW + 1] for i in range(len(TIMES) - WINDOW)])
    before = np.concatenate([rng.normal(size=size) * 0.1 for size in SIZES])

    by_adjoint, numeric = directional_derivatives(before, windows, rng)
    error = abs(by_adjoint - numeric) / abs(numeric)
    show("relative error of the gradient against central differences", error, "at most", 1e-4)
    arguments = tf.constant(windows[:, 0]), tf.constant(before), tf.constant(windows)
    calls.update(solver=0, adjoint=0)
    loss_of(*arguments)
    show("calls of the adjoint without a gradient", calls["adjoint"], "at most", 0)
    loss_and_gradients(*arguments)
    show("calls of the solver for loss and gradient", calls["solver"] - 1, "at most", 1)
    show("calls of the adjoint for it", calls["adjoint"], "at most", 1)

    after, losses = train(before, windows)
    gc.collect()
    show("solutions that are still kept after the training", len(solutions), "at most", 0)
    show("mean square error before the training", losses[0], "at least", 0.1)
    show("mean square error after it", losses[-1], "at most", 0.01)
    distance = np.sqrt(np.mean((follow(after, TIMES).T - true) ** 2))
    show("distance from the true solution over all times", distance, "at most", 0.3)
    (output / "curve.json").write_text(json.dumps({"loss": losses}, indent=1) + "\n")
    draw(before, after, observed, losses, output / "neural_ode.png")


def draw(before: np.ndarray, after: np.ndarray, observed: np.ndarray, losses: list[float], path: pathlib.Path) -> None:
    """The measurements with the solutions before and after, the learned field, and the learning curve."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    path_axes, field_axes, learning = figure.subplots(1, 3)
    times = np.linspace(TIMES[0], TIMES[-1], 400)
    path_axes.plot(*follow(before, times), color="grey", linestyle="--", label="before the training")
    path_axes.plot(*follow(after, times), color="tab:blue", linewidth=2.5, label="after it")
    path_axes.plot(*observed.T, "ko", markersize=4, label="measured")
    path_axes.set(title="The solution", xlabel="$y_0$", ylabel="$y_1$", xlim=(-2.4, 2.4), ylim=(-2.4, 2.4))
    path_axes.legend(loc="upper center", ncols=3, fontsize="small")
    grid = np.linspace(-2.4, 2.4, 25)
    points = np.stack(np.meshgrid(grid, grid)).reshape(2, -1)
    arrows = field(points, unpack(after)).reshape(2, 25, 25)
    field_axes.streamplot(grid, grid, *arrows, color="tab:orange", density=1.1)
    field_axes.plot(*observed.T, "ko", markersize=3)
    field_axes.set(title="The equation that the net has learned", xlabel="$y_0$", xlim=(-2.4, 2.4), ylim=(-2.4, 2.4))
    learning.semilogy(losses, color="tab:green")
    learning.set(title="Adam, with gradients by the adjoint", xlabel="step", ylabel="mean square error")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/neural_ode")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
