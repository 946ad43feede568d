"""The tests of Keras 3 once with tf_keras, each on a row or two of its table, and what only tf_keras has."""

import importlib
import inspect

import pytest
import tensorflow as tf
import tf_keras

from ..support.keras_models import UNITS, assert_equal, fitted, layers_of
from . import test_loss_scaling

# The warning comes without recomputation, too.
pytestmark = pytest.mark.filterwarnings("ignore:Layer 'sequential.* was passed an input with a mask:UserWarning")

FILES = ["fit", "functional_models", "layers", "loss_scaling", "processes", "recompute", "saved_functions", "scopes"]
# For tests with a table the rows to run, by default the first.
ROWS = {
    "test_layers_in_every_mode_and_in_models_that_are_saved_loaded_and_cloned": [
        {"name": name} for name in ("scale", "clip by norm", "functions of one's own", "watch")
    ],
    "test_a_number_changes_without_a_new_trace_and_is_saved_with_the_weights": [
        {"name": name, "kind": kind} for name, kind in (("reversal", "an array"), ("clip", "a number"))
    ],
    "test_fit_with_recompute_is_that_of_the_plain_model": [
        {"name": "branches", "mode": "eager"},
        {"name": "sequences", "mode": "graph"},
    ],
    "test_mixed_precision_with_loss_scaling": [{"mode": "graph"}],
    "test_fit_with_a_smaller_last_batch_is_that_of_the_plain_model": [{"memory": "auto", "mode": "graph"}],
    "test_a_functional_model_has_value_and_gradient_of_the_function": [
        {"name": "embed_gradient, lists"},
        {"name": "custom_gradient, structures"},
    ],
    "test_a_step_of_fit_clips_the_gradient_of_the_loss_itself": [{"name": "value", "mode": "graph"}],
    "test_the_old_formats": [{"file": "saved_model"}, {"file": "model.h5"}],
    "test_arguments_and_outputs": [{"name": "by name"}, {"name": "structures"}],
    "test_a_stateful_layer_goes_on_where_the_last_call_ended": [{"name": "model", "mode": "traced"}],
    "test_the_layer_finds_its_functions_again": [{"name": "the gelu of tf_keras"}],
    "test_a_variable_that_was_passed_is_read_as_the_function_reads_it": [
        {"outer": outer, "inner": "mixed_float16", "run": tf.function} for outer in (None, "float32")
    ],
}


def first_row(test):
    row = {}
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names, [values, *_] = mark.args[0], mark.args[1]
            row |= {names: values} if isinstance(names, str) else dict(zip(names, values, strict=True))
    return row


def cases():
    for file in FILES:
        for name, test in vars(importlib.import_module(f".test_{file}", __package__)).items():
            if name.startswith("test_") and "library" in inspect.signature(test).parameters:
                marks = [m for m in getattr(test, "pytestmark", []) if m.name in ("core", "filterwarnings")]
                for row in ROWS.get(name) or [first_row(test)]:
                    values = [getattr(value, "__name__", str(value)) for value in row.values()]
                    yield pytest.param(test, row, id="-".join([name, *values]), marks=marks)


@pytest.mark.parametrize(("test", "row"), list(cases()))
def test_with_tf_keras(test, row, request):
    given = row | {"library": tf_keras}
    fixtures = [name for name in inspect.signature(test).parameters if name not in given]
    test(**given, **{name: request.getfixturevalue(name) for name in fixtures})


def test_autograph_translates_the_layer_as_without_recomputation():
    class Branching(tf_keras.layers.Layer):
        def call(self, x):
            if tf.reduce_sum(x) > 0.0:
                x = 2.0 * x
            return x

    found = []
    for wrap in (layers_of(tf_keras).Recompute, lambda layer: layer):
        tf_keras.utils.set_random_seed(1)
        model = tf_keras.Sequential([tf_keras.layers.Dense(2), wrap(Branching()), tf_keras.layers.Dense(1)])
        found.append(fitted(model, UNITS, UNITS[:, :1], "graph"))
    assert_equal(*found)


def test_a_fixed_loss_scale_cannot_shrink_so_the_check_stays():
    options = {"check_numerics": True}
    model = test_loss_scaling.model_with(tf_keras, "WatchGradient", options, 2.0**20, dynamic=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=test_loss_scaling.NOT_FINITE):
        test_loss_scaling.fit(model)
