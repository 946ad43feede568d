"""Functions whose gradients are wrong on purpose: value, first and second derivatives, compared with formulas.

Tests that pass here fill the table in docs/modes.md.
"""

import numpy as np
import pytest

from ..support import functions
from ..support.functions import CASES, EMBED_CASES, READY_MADE
from ..support.mode_table import fills
from ..support.modes import GRAPH_MODES, MODES, assert_orders, orders_in_a_fresh_process

X, DY = np.array([0.7, -1.3, 1.1]), np.array([1.0, 10.0, -3.0])

FUNCTIONS = {**EMBED_CASES, **CASES, **READY_MADE}
ALL_MODES = {**MODES, **GRAPH_MODES}

# The others take turns; tests/same has all modes for what these functions are made of.
IN_EVERY_MODE = ["embed_gradient", "embed_gradient, unstopped", "plain", "compat.tfp_math", "straight_through"]

# TensorFlow fails for these pairs even with built-in ops only, as a test below shows.
LEFT_OUT = [("cond", mode) for mode in ("vectorized_map", "jacobians", "forward_mode")]

# Left out: an eager variable in a TensorFlow 1 graph (custom_gradient/test_arguments.py has a variable of that graph), and
# a clipped gradient in modes that rely on gradients being linear in the upstream.
IMPOSSIBLE = [
    *LEFT_OUT,
    ("with_variable", "tf1"),
    *[("clip_gradient", mode) for mode in ("jacobians", "forward_mode", "forward_mode_eager")],
    *[(function, mode) for function in ("scan", "map_fn", "while_loop") for mode in ("jacobians", "forward_mode")],
]


# Where tests/same has only limits.
MORE = {"custom_vjp": ["forward_mode", "forward_mode_eager"], "override_gradients": ["vectorized_map"]}


def pairs_to_test():
    """The pairs. The core tests are all modes of two functions."""
    modes = list(ALL_MODES)
    for i, function in enumerate(FUNCTIONS):
        chosen = modes if function in IN_EVERY_MODE else [modes[i % len(modes)]]
        for mode in dict.fromkeys([*chosen, *MORE.get(function, [])]):
            if (function, mode) not in IMPOSSIBLE:
                is_core = function in ("plain", "embed_gradient")
                yield pytest.param(function, mode, marks=[pytest.mark.core] * is_core)


def by_hand(function):
    """The orders that are known. The rule of "scan" also gives its own inner derivatives, so it has no second one."""
    return [order for order in FUNCTIONS[function].by_hand(X, DY) if order is not None]


@pytest.mark.mode_table(feature="function", mode="mode")
@pytest.mark.parametrize(("function", "mode"), list(pairs_to_test()))
def test_orders_are_those_by_hand(function, mode):
    expected = by_hand(function)
    assert_orders(ALL_MODES[mode](FUNCTIONS[function].function, X, DY)[: len(expected)], expected)


@pytest.mark.mode_table(feature="function", mode="mode", outcome="unsupported")
@pytest.mark.parametrize(("function", "mode"), LEFT_OUT)
def test_pairs_left_out_fail_with_built_in_ops_too(function, mode, monkeypatch):
    monkeypatch.setattr(functions, "square", lambda x: 10.0 * x**2)
    with pytest.raises((ValueError, TypeError)):
        ALL_MODES[mode](FUNCTIONS[function].function, X, DY)


# What is loaded after saving, and again after saving what was loaded.
QUICK = {name: ["eager", "again traced"] for name in ("with_variable", "custom_jvp", "recompute_grad")}
RELOADED = {name: ["eager", "again traced"] for name in (*CASES, *EMBED_CASES)}
RELOADED |= {name: ["while_loop", "jacobians", "forward_mode"] for name in QUICK}
RELOADED |= {name: ["again jit"] for name in ("plain", "custom_vjp", "embed_gradient, unstopped")}


@pytest.mark.parametrize("modes", [pytest.param(QUICK, marks=pytest.mark.core), RELOADED], ids=["quick", "all"])
@fills(
    "reloaded", "embed_gradient", "custom_gradient", "custom_vjp", "custom_jvp", "recompute_grad", "grad_pass_through"
)
def test_orders_after_a_reload_in_a_fresh_process(modes, tmp_path):
    saved = {name: (FUNCTIONS[name].function, its_modes) for name, its_modes in modes.items()}
    for name, by_mode in orders_in_a_fresh_process(saved, X, DY, tmp_path).items():
        expected = by_hand(name)
        for mode in modes[name]:
            assert_orders(by_mode[mode][: len(expected)], expected)
