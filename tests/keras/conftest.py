"""Fixtures of the tests of layers that recompute."""

import pytest

import tf_cg_ops as cg
from tf_cg_ops._src.rewrite import traced_call


@pytest.fixture
def remat():
    cg.layers.enable_remat()
    yield
    cg.layers.disable_remat()


@pytest.fixture
def traces(monkeypatch):
    """One entry for each trace."""
    found, make = [], traced_call.TracedCall.__init__

    def count(self, *args):
        found.append(self)
        make(self, *args)

    monkeypatch.setattr(traced_call.TracedCall, "__init__", count)
    return found
