"""Embedded gradients in loops, branches, data pipelines and translated Python, compared with exact derivatives."""

import itertools

import pytest
import tensorflow as tf

from ..support.modes import MODES, assert_orders, orders_in_a_fresh_process
from ..support.pointwise import CONTROLS, DY, POINTWISE, Jet, X

# Each loop or branch, with the modes in turn.
IN_TURN = itertools.cycle(["traced", "around_traced", "tf1"])
CASES = [("given", control, next(IN_TURN)) for control in CONTROLS]
CASES += [("run_time_axis", control, "unknown_shape") for control in ("while_loop", "cond", "map_fn")]
CASES += [("run_time_axis", "cond_in_a_loop", "traced"), ("stopped", "while_loop", "traced")]
CASES += [("given", "autograph_for", "eager"), ("recompute_grad", "switch_case", "traced")]


def by_hand(name, control):
    return CONTROLS[control].by_hand(POINTWISE[name], Jet(X)).orders(DY)


@pytest.mark.parametrize(("name", "control", "mode"), CASES)
def test_orders_are_those_by_hand(name, control, mode):
    function = CONTROLS[control].around(POINTWISE[name].function)
    assert_orders(MODES[mode](function, X, DY), by_hand(name, control))


@pytest.mark.mode_table(feature="embed_gradient", mode="reloaded")
def test_orders_after_loading_what_was_loaded_and_saved(tmp_path):
    """And tangents after loading. AutoGraph writes the same loops and conditionals."""
    modes = {("given", control): ["again traced"] for control in CONTROLS if not control.startswith("autograph")}
    modes |= {("run_time_axis", "while_loop"): ["again traced"]}
    modes |= {("run_time_axis", "nested_functions"): ["forward_mode_eager"]}
    functions = {pair: (CONTROLS[pair[1]].around(POINTWISE[pair[0]].function), modes[pair]) for pair in modes}
    for pair, found in orders_in_a_fresh_process(functions, X, DY, tmp_path).items():
        for mode in modes[pair]:
            assert_orders(found[mode], by_hand(*pair))


@pytest.mark.parametrize("control_flow", [False], indirect=True)
@pytest.mark.parametrize("control", ["cond", "while_loop", "map_fn", "cond_in_a_loop", "loop_in_a_cond"])
@pytest.mark.parametrize("name", ["given", "custom_gradient"])
def test_control_flow_of_tensorflow_1(name, control, control_flow):
    """First derivatives through Switch, Merge, Enter and Exit work everywhere, second ones in a conditional."""
    with tf.Graph().as_default() as graph:
        x, dy = (tf.compat.v1.placeholder(tf.float64, a.shape) for a in (X, DY))
        value = CONTROLS[control].around(POINTWISE[name].function)(x)
        assert "Switch" in {op.type for op in graph.get_operations()}
        fetches = [value, *tf.gradients(value, x, grad_ys=dy)]
        if control == "cond":
            fetches += tf.gradients(tf.reduce_sum(fetches[1] * dy), x, unconnected_gradients="zero")
        with tf.compat.v1.Session() as session:
            assert_orders(session.run(fetches, {x: X, dy: DY}), by_hand(name, control)[: len(fetches)])
