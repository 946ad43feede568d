"""Fixtures of the tests with Keras."""

import pytest

import tf_cg_ops as cg
from tf_cg_ops._src.memory import replay
from tf_cg_ops._src.rewrite import built_functions, traced_call

from ..support.observed import made


@pytest.fixture
def remat():
    cg.layers.enable_remat()
    yield
    cg.layers.disable_remat()


@pytest.fixture
def traces(monkeypatch):
    """One entry for each trace."""
    return made(monkeypatch, traced_call.TracedCall)


@pytest.fixture
def builds(monkeypatch):
    """One entry for each forward and backward pass that is built from a trace."""
    built_functions._table.entries.cache_clear()
    return made(monkeypatch, replay.Replay)
