"""Every public function in every way that TensorFlow runs a graph: value, first and second order against numbers by hand.

What passes here makes the table in docs/regimes.md.
"""

import numpy as np
import pytest

from .support import functions
from .support.embed_functions import EMBED_CASES
from .support.functions import CASES
from .support.graph_modes import GRAPH_MODES
from .support.modes import MODES, assert_orders

X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])

FUNCTIONS = {**EMBED_CASES, **CASES}
REGIMES = {**MODES, **GRAPH_MODES}

# What TensorFlow itself cannot do, with stock ops alone; the last test shows it.
LEFT_OUT = [
    ("cond", "vectorized_map"),
    *[(function, regime) for function in ("cond", "scan", "map_fn") for regime in ("jacobians", "forward_mode")],
]

# A variable of eager mode is none of a TensorFlow 1 graph; test_custom_gradient_variables.py has one that is.
OTHER_GRAPH = ("with_variable", "tf1")

PAIRS = [(f, r) for f in FUNCTIONS for r in REGIMES if (f, r) not in (*LEFT_OUT, OTHER_GRAPH)]


def by_hand(case):
    value, dx, second = case.by_hand(X, DY)
    if second is None:  # By central differences of the first order, of which the formula is above.
        step = 1e-6
        differences = [
            np.sum(DY * (case.by_hand(X + s, DY)[1] - case.by_hand(X - s, DY)[1])) for s in step * np.eye(len(X))
        ]
        second = np.array(differences) / (2 * step)
    return value, dx, second


@pytest.mark.regime_table(feature="function", regime="regime")
@pytest.mark.parametrize(("function", "regime"), PAIRS)
def test_orders_are_those_by_hand(function, regime):
    actual = REGIMES[regime](FUNCTIONS[function].function, X, DY)
    expected = by_hand(FUNCTIONS[function])
    if function == "scan":
        # The inner derivatives of the rule are again by the rule; only first order is derived there.
        actual, expected = actual[:2], expected[:2]
    assert_orders(actual, expected)


@pytest.mark.regime_table(feature="function", regime="regime", outcome="left out")
@pytest.mark.parametrize(("function", "regime"), LEFT_OUT)
def test_what_is_left_out_fails_with_stock_ops_too(function, regime, monkeypatch):
    monkeypatch.setattr(functions, "square", lambda x: 10.0 * x**2)
    with pytest.raises((ValueError, TypeError)):
        REGIMES[regime](FUNCTIONS[function].function, X, DY)
