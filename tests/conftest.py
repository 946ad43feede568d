"""Fixtures and hooks of all tests."""

import importlib
import os

# Before TensorFlow is imported, so that its notes about the machine do not drown the tests' output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Several processes run the tests; by default the first one would take all the memory of a GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import pytest
import tensorflow as tf

from .support.mode_table import ModeTable, cells_of
from .support.order import slowest_first
from .support.tensors import DTYPES
from .support.vjp_modes import VJP_MODES
from .support.workers import number_of_workers


def pytest_configure(config):
    config.pluginmanager.register(ModeTable(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """The number of workers of `pytest -n auto`."""
    return number_of_workers()


def pytest_collection_modifyitems(items):
    slowest_first(items)
    for item in items:
        item.user_properties.extend(cells_of(item))


@pytest.fixture(params=list(VJP_MODES))
def mode(request):
    """Each mode that gives a value and a vector-Jacobian product."""
    return VJP_MODES[request.param]


@pytest.fixture(params=DTYPES, ids=lambda dtype: dtype.name)
def dtype(request):
    return request.param


@pytest.fixture(params=["keras", "tf_keras"])
def library(request):
    """Keras 3, then tf_keras; imported here, since most tests need neither."""
    return importlib.import_module(request.param)


@pytest.fixture(params=["CPU", pytest.param("GPU", marks=pytest.mark.gpu)])
def device(request):
    """The device of the test, CPU or GPU."""
    if not tf.config.list_physical_devices(request.param):
        pytest.skip(f"TensorFlow sees no {request.param} here")
    with tf.device(f"/device:{request.param}:0"):
        yield request.param


@pytest.fixture(autouse=True)
def no_global_seed_afterwards():
    """Makes random tests independent of the tests before them."""
    yield
    tf.random.set_seed(None)


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


@pytest.fixture(params=[False, True], ids=["eager", "traced"])
def gradient(request):
    """tape.gradient of a function's value for an upstream, with the function in eager mode or traced."""

    def compute(function, sources, upstream):
        def run(sources):
            with tf.GradientTape() as tape:
                tape.watch(sources)
                value = function(*sources)
            return tape.gradient(value, sources, output_gradients=upstream)

        sources = [tf.constant(s) if isinstance(s, np.ndarray) else s for s in sources]
        return (tf.function(run) if request.param else run)(sources)

    return compute


@pytest.fixture(params=[False, True], ids=["control_flow_v1", "control_flow_v2"])
def control_flow(request):
    """The control flow of TensorFlow 1 or 2 in graphs; the previous setting is restored."""
    tf1 = tf.compat.v1
    was = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if request.param else tf1.disable_control_flow_v2)()
    yield
    (tf1.enable_control_flow_v2 if was else tf1.disable_control_flow_v2)()
