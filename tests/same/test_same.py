"""Each program in each wrapper in each mode equals plain TensorFlow, or stands in a table of limits with its error.

Each pair (program, wrapper) is tested in one mode, and the modes take turns, so each pair (wrapper, mode) is tested, too.
`make fuzz` draws other combinations, with wrappers in wrappers.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from ..support.mode_table import COLUMN_OF, ROWS
from ..support.modes import run_in_a_fresh_process
from .harness import MODES, SOURCES, cell, weights_of
from .programs import PROGRAMS, State, X, Y
from .wrappers import WRAPPERS, floats_of

XLA = ("jit", "jit_unknown_shape", "while_loop_under_xla")
VECTORIZED = ("vectorized_map", "per_example")
# Other names in docs/modes.md.
FEATURES = {"custom_gradient": "plain", "scan": "cg.scan", "while_loop": "cg.while_loop"}
# A file does not change, and in a graph of TensorFlow 1 nothing puts effects in order.
SENSELESS = (("saved and loaded", "changed_state"), ("saved and loaded", "tf1"))
CORE = ("eager", "traced", "unknown_shape", "jit", "tf1", "while_loop", "second_order", "forward_mode", "changed_state")
FORWARD = ("forward_mode", "forward_mode_eager")
EACH = tuple(WRAPPERS)
# In these modes loops take seconds to trace, so each loop is there with one program; others are drawn by `make fuzz`.
LOOPS = ("scan", "while_loop")
SLOW_FOR_LOOPS = (*VECTORIZED, "second_order", "autograph", "jacobians", "while_loop_under_xla", "scan", "map_fn")
# Where TensorFlow itself fails: programs, with all wrappers, modes, and the error.
FAILS_IN_TENSORFLOW = [
    (("a variable that it writes", "a generator"), EACH, VECTORIZED, "No pfor vectorization"),
    (("a variable that is read twice",), EACH, VECTORIZED, "No pfor vectorization"),
    (("a case",), EACH, VECTORIZED, "dynamic_stitch"),
    (("a case",), EACH, ("forward_mode",), "generic TraceType"),
    (("a conditional", "a loop"), EACH, ("per_example",), "stack a variant-dtype tensor"),
    (("a scan",), EACH, ("forward_mode",), "dtype: 'variant'"),
    (("a ragged tensor",), EACH, ("unknown_rank", "tf1"), "'NoneType' and 'int'"),
]
# Where a wrapper is refused, or fails: programs (or all), wrappers, modes, and the error.
ALL = tuple(PROGRAMS)
OF_VARIABLES = ("a variable that is read twice", "a frozen variable", "a variable as two arguments")
LIMITS = [
    (ALL, ("watch_gradient",), XLA, "XLA cannot compile check_numerics"),
    (ALL, ("numpy_function",), XLA, "is Python code, which XLA cannot compile"),
    (ALL, ("numpy_function",), ("unknown_rank", "tf1"), "output_signature must have a known rank"),
    (ALL, ("numpy_function",), (*FORWARD, "second_order", "second_order_eager"), "no second derivatives"),
    (ALL, ("recompute_grad, memory",), ("tf1",), "must be called in eager mode or in a tf.function"),
    (ALL, ("Recompute",), ("unknown_rank", "tf1"), "Could not automatically infer the output shape"),
    (ALL, ("scan",), ("forward_mode",), "dtype: 'variant'"),
    # docs/limits.md: a tape in a rule does not record there.
    (ALL, ("custom_vjp",), ("forward_mode_eager",), "derivative by"),
    # docs/limits.md: every tf.function has this limit when it is vectorized inside another one.
    (("a conditional",), ("override_gradients", "masked"), ("vectorized_map",), "derivative by w"),
    (("a scan",), ("saved and loaded",), XLA, "tf2xla conversion failed"),
    # If functions run eagerly, TensorFlow cannot trace a conditional in forward mode.
    (("a conditional",), ("capture",), ("forward_mode_eager",), "Tensor.graph is undefined"),
    # docs/limits.md: the tangent of a variable does not go through a loop that reads it.
    (("a loop",), ("masked",), ("forward_mode_eager",), "without handle data"),
    (OF_VARIABLES, ("scan",), ("forward_mode_eager",), "without handle data"),
    # TensorFlow's forward mode ignores the gradient of tf.custom_gradient, and differentiates the function itself.
    (("a gradient of tf.custom_gradient",), ("custom_gradient", "custom_vjp"), FORWARD, "derivative by"),
]


def limit_of(limits, program, wrapper, mode):
    """The error of a cell, or None."""
    for programs, wrappers, modes, error in limits:
        if program in programs and wrapper in wrappers and mode in modes:
            return error
    return None


def cells():
    """A cell for each pair (program, wrapper), with the modes in turn, and more of what a function can read.

    All pairs (wrapper, mode) are among them.
    """
    chosen = []
    for i, (program, about) in enumerate(PROGRAMS.items()):
        for j, (wrapper, of_wrapper) in enumerate(WRAPPERS.items()):
            mode = list(MODES)[(i + 2 * j) % len(MODES)]
            is_slow = wrapper in LOOPS and mode in SLOW_FOR_LOOPS
            if is_slow or (wrapper, mode) in SENSELESS or (mode == "tf1" and "writes" in about.traits):
                mode = "eager"
            if set(about.traits).isdisjoint(of_wrapper.senseless):
                chosen.append((program, wrapper, mode))
    chosen += itertools.product(
        ("a Tensor from outside", *OF_VARIABLES),
        ("recompute_grad", "scan", "override_gradients"),
        ("around_traced", "second_order", "forward_mode_eager"),
    )
    compared = [each for each in chosen if limit_of(FAILS_IN_TENSORFLOW + LIMITS, *each) is None]
    there = {(wrapper, mode) for _, wrapper, mode in compared} | set(SENSELESS)
    left = [pair for pair in itertools.product(WRAPPERS, MODES) if pair not in there]
    return dict.fromkeys([*chosen, *(("a dict", *pair) for pair in left)])


# Warnings of what a rule does not reach, and of a plan that saves little.
pytestmark = pytest.mark.filterwarnings("ignore:override_gradients", "ignore:recompute_grad")


def with_marks():
    """The core tests are the first program for each pair of a wrapper and one of these modes."""
    left = set(itertools.product(WRAPPERS, CORE))
    for chosen in cells():
        is_core = chosen[1:] in left
        left.discard(chosen[1:])
        marks, feature = [pytest.mark.core] * is_core, FEATURES.get(chosen[1], chosen[1])
        is_limit = limit_of(FAILS_IN_TENSORFLOW + LIMITS, *chosen) is not None
        # The limits of other wrappers are about a few programs.
        if chosen[2] in ROWS and feature in COLUMN_OF and (not is_limit or chosen[1] == "numpy_function"):
            outcome = "unsupported" if is_limit else "passed"
            marks.append(pytest.mark.mode_table(feature=feature, mode=chosen[2], outcome=outcome))
        yield pytest.param(*chosen, marks=marks)


@pytest.fixture(autouse=True)
def no_caching_device_afterwards():
    """tf.scan and tf.map_fn leave one behind if their body raises an error, and tf.recompute_grad then fails."""
    yield
    tf.compat.v1.get_variable_scope()._caching_device = None


@pytest.mark.parametrize(("program", "wrapper", "mode"), list(with_marks()))
def test_the_wrapper_changes_nothing(program, wrapper, mode):
    error = limit_of(FAILS_IN_TENSORFLOW + LIMITS, program, wrapper, mode)
    if error is None:
        cell(program, wrapper, mode).check()
        return
    with pytest.raises(Exception, match=error):
        cell(program, wrapper, mode).check()


# Python code cannot be saved.
SAVED = list(
    dict.fromkeys(
        (program, wrapper)
        for i, (program, wrapper, _) in enumerate(cells())
        if i % 6 == 0 and wrapper not in ("numpy_function", "saved and loaded")
    )
)


def plain(program, wrapper):
    """The cell in eager mode, and what plain TensorFlow computes there: floating-point outputs, and derivatives."""
    one = cell(program, wrapper, "eager")
    (outputs, derivatives), _ = one.run(lambda name, function: WRAPPERS[name].plain(function))
    return one, [output for output in outputs if output.dtype.kind == "f"], derivatives


def wrap(name, function):
    return WRAPPERS[name].wrap(function)


def saved_function(function):
    return tf.function(lambda x, y: floats_of(function(x, y)), [tf.TensorSpec([3], tf.float64)] * 2, autograph=False)


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """Floating-point outputs and gradients by x, y and the variables, from one model in one fresh process."""
    model, tasks = tf.Module(), {}
    for number, pair in enumerate(SAVED):
        state, name = State(), f"f{number}"
        one, outputs, _ = plain(*pair)
        setattr(model, name, saved_function(one.function(state, wrap)))
        for place in SOURCES[3:]:
            setattr(model, f"{name}_{place}", getattr(state, place))
        setattr(model, f"{name}_generator", state.generator)
        upstream = [(i + 1.0) * weights_of(tf.constant(output)).numpy() for i, output in enumerate(outputs)]
        tasks[name] = [X, Y, *(f"{name}_{place}" for place in SOURCES[3:])], upstream
    found = run_in_a_fresh_process(model, tasks, tmp_path_factory.mktemp("same"))
    return {pair: found[f"f{number}"] for number, pair in enumerate(SAVED)}


@pytest.mark.parametrize("pair", SAVED, ids="-".join)
def test_the_wrapper_changes_nothing_in_a_file(pair, reloaded):
    assert not isinstance(reloaded[pair], str), reloaded[pair]
    values, gradients, _ = reloaded[pair]
    one, outputs, expected = plain(*pair)
    gradients = [np.zeros_like(e) if g is None else g for g, e in zip(gradients, [X, Y, *expected[3:]], strict=True)]
    gradients.insert(2, expected[2])  # The Tensor from outside is a constant in the file.
    one.compare(((values, gradients), []), ((outputs, expected), []))
