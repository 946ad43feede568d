"""Fixtures of the tests with Keras."""

import keras
import pytest

import tf_cg_ops as cg
from tf_cg_ops._src.memory import replay
from tf_cg_ops._src.rewrite import built_functions, traced_call


@pytest.fixture
def library():
    """Keras 3. `test_tf_keras` runs rows of the same tests with tf_keras."""
    return keras


@pytest.fixture
def remat():
    cg.layers.enable_remat()
    yield
    cg.layers.disable_remat()


def calls_of(monkeypatch, kind):
    """One entry for each object of this kind that is made from now on."""
    found, make = [], kind.__init__

    def count(self, *args):
        found.append(None)
        make(self, *args)

    monkeypatch.setattr(kind, "__init__", count)
    return found


@pytest.fixture
def traces(monkeypatch):
    """One entry for each trace."""
    return calls_of(monkeypatch, traced_call.TracedCall)


@pytest.fixture
def builds(monkeypatch):
    """One entry for each forward and backward pass that is built from a trace."""
    built_functions._table.entries.cache_clear()
    return calls_of(monkeypatch, replay.Replay)
