"""Fixtures and hooks of all tests."""

import importlib
import os

# Before TensorFlow is imported, so that its notes about the machine do not drown the tests' output.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Several processes run the tests; by default, the first one would take all memory of a GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import pytest
import tensorflow as tf

from .support.mode_table import cells_of
from .support.modes import VJP_MODES
from .support.sources import ROOT
from .support.tensors import DTYPES

# The slowest files by processor time. They run first, so that no worker is left alone with one at the end.
SLOWEST = (
    "same/test_same.py",
    "ready_made/test_implicit.py",
    "ready_made/test_linear.py",
    "ready_made/test_edges.py",
    "testing/test_audit.py",
    "graph/test_modes.py",
    "memory/test_scan.py",
    "rewrite/test_control_flow.py",
    "rewrite/test_masked.py",
    "docs/test_pages.py",
    "keras/test_fit.py",
    "saved_model/test_override_and_adopt.py",
    "graph/test_orders_around_control_flow.py",
    "saved_model/test_strip_gradients.py",
    "memory/test_plan.py",
    "kernels/test_backends_agree.py",
    "docs/test_site.py",
)
# Bytes for each worker: it uses 2.5 GB after all tests, and the processes that a test starts use up to 1 GB together.
MEMORY = 3.5e9


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """The workers of `pytest -n auto`: one for each core that this process can use, as far as memory allows."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / MEMORY)))


def pytest_collection_modifyitems(items):
    ranks = {ROOT / "tests" / name: rank for rank, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
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
    """Keras 3, then tf_keras; imported here, because most tests need neither."""
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
