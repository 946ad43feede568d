"""Fits a differential equation to data, hares and lynxes: SciPy solves it, with `numpy_function`.

    python examples/fit_ode.py [--output FOLDER]

TensorFlow cannot differentiate SciPy's solver. `numpy_function` takes a Python function that returns a value and its
derivatives: here the solution of the Lotka-Volterra equations, for the logarithms u of hares and v of lynxes,

    u' = a - b exp(v),    v' = d exp(u) - c,

and its derivatives with respect to the rates a, b, c, d and to u and v at the start. The solver gets them in the same
run from the variational equations. TensorFlow keeps the rates positive and computes the residuals. `tape.jacobian` goes
through all of it and calls the solver once; each step of the Levenberg-Marquardt method needs one such Jacobian.

The data are the pelts, in thousands, that the Hudson's Bay Company collected from 1900 to 1920, as tabulated by Howard,
"Modeling basics" (2009). The fit has other minima, with a wrong period, and can end there if it starts elsewhere.

Sources: Hairer, Norsett and Wanner, "Solving ordinary differential equations I" (1993), section I.14, for the
variational equations; Marquardt, "An algorithm for least-squares estimation of nonlinear parameters" (1963).

FOLDER gets the picture fit_ode.png, the parameters and the loss of each step as fit.json, and results.json.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import Any

import matplotlib
import numpy as np
import scipy.integrate
import scipy.optimize
import tensorflow as tf
from matplotlib.figure import Figure

import tf_cg_ops as cg

matplotlib.use("Agg")

HARES = "30 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22 25.4 27.1 40.3 57 76.6 52.3 19.5 11.2 7.6 14.6 16.2 24.7"
LYNXES = "4 6.1 9.8 35.2 59.4 41.7 19 13 8.3 9.1 7.4 8 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 8.6"
OBSERVED = np.log(np.array([HARES.split(), LYNXES.split()], np.float64))  # [2, years].
YEARS = np.arange(OBSERVED.shape[1], dtype=np.float64)
# The logarithms of a, b, c and d, rounded, and u and v in 1900.
START = np.concatenate([np.log([1.0, 0.05, 1.0, 0.05]), OBSERVED[:, 0]])
STEPS = 12

solver_calls = 0


def right_hand_side(_: float, state: np.ndarray, a: float, b: float, c: float, d: float) -> np.ndarray:
    """The time derivatives of u and v, and of their derivatives with respect to the 6 parameters."""
    hares, lynxes = np.exp(state[:2])
    by_state = np.array([[0.0, -b * lynxes], [d * hares, 0.0]])
    by_rates = np.array([[1.0, -lynxes, 0.0, 0.0], [0.0, 0.0, -1.0, hares]])
    sensitivities = by_state @ state[2:].reshape([2, 6])
    sensitivities[:, :4] += by_rates
    return np.concatenate([[a - b * lynxes, d * hares - c], sensitivities.ravel()])


def integrate(rates: np.ndarray, start: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The solution, [2, times], and its derivatives with respect to rates and start, [2, times, 6]."""
    identity = np.hstack([np.zeros([2, 4]), np.eye(2)])  # The derivatives at the start.
    state = scipy.integrate.solve_ivp(
        right_hand_side,
        (times[0], times[-1]),
        np.concatenate([start, identity.ravel()]),
        method="LSODA",
        t_eval=times,
        args=tuple(rates),
        rtol=1e-9,
        atol=1e-9,
    ).y
    return state[:2], state[2:].reshape([2, 6, -1]).transpose([0, 2, 1])


def solve_with_gradients(rates: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The solution in each year, [2, years], and its derivatives: rates, [2, years, 4], and start, [2, years, 2]."""
    global solver_calls
    solver_calls += 1
    solution, sensitivities = integrate(rates, start, YEARS)
    return solution, [sensitivities[..., :4], sensitivities[..., 4:]]


solve = cg.numpy_function(solve_with_gradients, tf.TensorSpec(OBSERVED.shape, tf.float64))


def residuals(parameters: tf.Tensor) -> tf.Tensor:
    """The solution minus the observed logarithms: a TensorFlow function that calls the solver."""
    return tf.reshape(solve(tf.exp(parameters[:4]), parameters[4:]) - OBSERVED, [-1])


@tf.function
def residuals_and_jacobian(parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The residuals and their derivatives with respect to the parameters, [2 * years, 6]."""
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        r = residuals(parameters)
    return r, tape.jacobian(r, parameters)


def numeric_jacobian(parameters: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The same by central differences."""
    offsets = step * np.eye(len(parameters))
    columns = [residuals(parameters + offset) - residuals(parameters - offset) for offset in offsets]
    return np.stack(columns, axis=-1) / (2.0 * step)


@dataclasses.dataclass(frozen=True)
class Fit:
    """The parameters after each step, and their root mean square residuals."""

    parameters: list[np.ndarray]
    rms: list[float]


def fit(start: np.ndarray) -> Fit:
    """The Levenberg-Marquardt method: more damping after a step that did not help, less after one that did."""
    damping, best = 1e-2, start
    r, jacobian = residuals_and_jacobian(tf.constant(best))
    found = Fit([best], [rms(r)])
    for _ in range(STEPS):
        normal = tf.matmul(jacobian, jacobian, transpose_a=True).numpy()
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -tf.linalg.matvec(jacobian, r, True))
        new_r, new_jacobian = residuals_and_jacobian(tf.constant(best + step))
        if rms(new_r) < rms(r):
            best, r, jacobian, damping = best + step, new_r, new_jacobian, damping / 10.0
        else:
            damping *= 10.0
        found.parameters.append(best)
        found.rms.append(rms(r))
    return found


def rms(r: tf.Tensor) -> float:
    """The root mean square."""
    return float(tf.sqrt(tf.reduce_mean(r**2)))


findings: list[dict[str, Any]] = []


def show(subject: str, measured: float, relation: str, bound: float) -> None:
    """Prints a measured number and whether it keeps its bound."""
    holds = measured >= bound if relation == "at least" else measured <= bound
    print(f"{subject}: {measured:.4g}, {relation} {bound:.4g}: {'yes' if holds else 'NO'}", flush=True)
    findings.append(
        {"subject": subject, "measured": float(measured), "relation": relation, "bound": bound, "holds": bool(holds)}
    )


def run(output: pathlib.Path) -> None:
    """Checks the Jacobian, fits, and compares with what SciPy finds without derivatives."""
    before = solver_calls
    _, jacobian = residuals_and_jacobian(tf.constant(START))
    show("calls of the solver for residuals and Jacobian", solver_calls - before, "at most", 1)
    numeric = numeric_jacobian(START)
    error = np.max(np.abs(jacobian - numeric)) / np.max(np.abs(numeric))
    show("relative error of the Jacobian against central differences", error, "at most", 1e-5)

    found = fit(START)
    for i, value in enumerate(found.rms):
        print(f"step {i}: rms of the residuals {value:.6f}", flush=True)
    other = scipy.optimize.least_squares(lambda p: residuals(p).numpy(), START, jac="3-point", xtol=1e-12, ftol=1e-12)
    show("rms of the residuals at the start", found.rms[0], "at least", 1.0)
    show("rms of the residuals after the fit", found.rms[-1], "at most", 0.25)
    distance = np.max(np.abs(found.parameters[-1] - other.x))
    show("distance to the minimum that SciPy finds without derivatives", distance, "at most", 1e-3)
    final = found.parameters[-1]
    figures = dict(zip("abcd", np.exp(final[:4]), strict=True)) | {
        "hares": np.exp(final[4]),
        "lynxes": np.exp(final[5]),
    }
    (output / "fit.json").write_text(json.dumps({"parameters": figures, "rms": found.rms}, indent=1) + "\n")
    draw(found, output / "fit_ode.png")


def draw(found: Fit, path: pathlib.Path) -> None:
    """The data, the solutions before and after the fit, and the residuals after each step."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    times = np.linspace(YEARS[0], YEARS[-1], 300)
    *animals, learning = figure.subplots(1, 3)
    for i, (axes, name, colour) in enumerate(
        zip(animals, ("Hares", "Lynxes"), ("tab:blue", "tab:orange"), strict=True)
    ):
        for parameters, style in (
            (found.parameters[0], {"color": "grey", "linestyle": "--", "label": "start"}),
            (found.parameters[-1], {"color": colour, "linewidth": 2.5, "label": "fitted"}),
        ):
            solution, _ = integrate(np.exp(parameters[:4]), parameters[4:], times)
            axes.plot(1900 + times, np.exp(solution[i]), **style)
        axes.plot(1900 + YEARS, np.exp(OBSERVED[i]), "ko", markersize=4, label="observed")
        axes.set(title=name, xlabel="year", ylabel="pelts, thousands", xticks=range(1900, 1921, 5))
    animals[0].legend(loc="upper right")
    learning.plot(found.rms, "o-", color="tab:green")
    learning.set(title="Levenberg-Marquardt", xlabel="step", ylabel="rms of the residuals of the logarithms")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, metavar="FOLDER", default="demo_output/fit_ode")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    run(output)
    (output / "results.json").write_text(json.dumps(findings, indent=1) + "\n")
    sys.exit(0 if all(finding["holds"] for finding in findings) else 1)
