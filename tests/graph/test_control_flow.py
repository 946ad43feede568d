"""Embedded gradients with an axis that is known at run time only, and in the control flow of TensorFlow 1."""

import pytest
import tensorflow as tf

from ..support.modes import GRAPH_MODES, MODES, assert_all_close, assert_orders, orders_in_a_fresh_process
from ..support.pointwise import DY, POINTWISE, X


@pytest.mark.parametrize("mode", ["unknown_shape", "while_loop", "cond", "map_fn"])
def test_an_axis_at_run_time(mode):
    found = (MODES | GRAPH_MODES)[mode](POINTWISE["run_time_axis"].function, X, DY)
    assert_orders(found, POINTWISE["run_time_axis"].orders(X, DY))


@pytest.mark.mode_table(feature="embed_gradient", mode="reloaded")
def test_orders_and_tangents_after_loading_what_was_loaded_and_saved(tmp_path):
    modes = {"given": ["again traced"], "run_time_axis": ["while_loop", "forward_mode_eager"]}
    functions = {name: (POINTWISE[name].function, its_modes) for name, its_modes in modes.items()}
    for name, found in orders_in_a_fresh_process(functions, X, DY, tmp_path).items():
        for mode in modes[name]:
            assert_orders(found[mode], POINTWISE[name].orders(X, DY))


def cond(f):
    return lambda x: tf.cond(x[0] > -100.0, lambda: f(x), lambda: -x)


def while_loop(f):
    return lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, f(x)), (0, x))[1]


# What is around a function, and how often it is called there, one call after the other.
PLACES = {
    "cond": (cond, 1),
    "while_loop": (while_loop, 2),
    "map_fn": (lambda f: lambda x: tf.map_fn(f, x), 1),
    "cond_in_a_loop": (lambda f: while_loop(cond(f)), 2),
    "loop_in_a_cond": (lambda f: cond(while_loop(f)), 2),
}


@pytest.mark.parametrize("control_flow", [False], indirect=True)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["given", "custom_gradient"])
def test_control_flow_of_tensorflow_1(name, place, control_flow):
    """First derivatives through Switch, Merge, Enter and Exit work everywhere, second ones in a conditional."""
    f, (around, calls) = POINTWISE[name], PLACES[place]
    y, slope = X, 1.0
    for _ in range(calls):
        y, slope = f.value(y), f.slope(y) * slope
    with tf.Graph().as_default() as graph:
        x, dy = (tf.compat.v1.placeholder(tf.float64, a.shape) for a in (X, DY))
        value = around(f.function)(x)
        assert "Switch" in {op.type for op in graph.get_operations()}
        fetches = [value, *tf.gradients(value, x, grad_ys=dy)]
        second = tf.gradients(tf.reduce_sum(fetches[1] * dy), x) if place == "cond" else []
        with tf.compat.v1.Session() as session:
            found = session.run([*fetches, *second], {x: X, dy: DY})
    assert_all_close(found[:2], [y, DY * slope], rtol=1e-12)
    if second:
        assert_orders(found, POINTWISE[name].orders(X, DY))
