"""The table of shapes in the guide "Shapes", row by row."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tf_cg_ops as cg

from ..support.modes import VJP_MODES
from ..support.tensors import pairs, random_array

pytestmark = pytest.mark.core


@dataclass
class Row:
    fx: tuple[int, ...]
    x: tuple[int, ...]
    gx: tuple[int, ...]
    axis: Any
    dx: Any  # A formula of dy and gx.

    def __str__(self):
        return f"fx{list(self.fx)}-x{list(self.x)}-gx{list(self.gx)}-axis={self.axis}".replace(" ", "")


N, B, D, T, H, W, P, Q = 5, 3, 4, 2, 3, 4, 2, 3
ROWS = [
    Row((N,), (N,), (N,), (), lambda dy, gx: dy * gx),
    Row((N,), (), (N,), (), lambda dy, gx: np.sum(dy * gx)),
    Row((B, N), (N,), (B, N), (), lambda dy, gx: np.einsum("bn,bn->n", dy, gx)),
    Row((), (N,), (N,), (), lambda dy, gx: dy * gx),
    Row((), (N,), (N,), None, lambda dy, gx: dy * gx),
    Row((), (N,), (), (), lambda dy, gx: np.full(N, dy * gx)),
    Row((), (N,), (), None, lambda dy, gx: np.full(N, dy * gx)),
    Row((B,), (B, D), (B, D), -1, lambda dy, gx: dy[:, None] * gx),
    Row((B,), (B, D), (B,), -1, lambda dy, gx: np.repeat((dy * gx)[:, None], D, axis=1)),
    Row((B, T), (B, H, T, W), (B, H, T, W), [1, 3], lambda dy, gx: dy[:, None, :, None] * gx),
    Row((N,), (N,), (), (), lambda dy, gx: dy * gx),
    Row((B,), (B, D), (1, D), -1, lambda dy, gx: dy[:, None] * gx),
    Row((B, N), (B, 1, D), (B, N, D), -1, lambda dy, gx: np.einsum("bn,bnd->bd", dy, gx)[:, None, :]),
    Row((B, B), (B, 1, D), (B, B, D), -1, lambda dy, gx: np.einsum("bn,bnd->bd", dy, gx)[:, None, :]),
    Row((N,), (D,), (N, D), None, lambda dy, gx: dy @ gx),
    Row((N,), (P, Q), (N, P, Q), None, lambda dy, gx: np.tensordot(dy, gx, 1)),
]


@pytest.mark.parametrize(("row", "mode"), pairs(ROWS, VJP_MODES, quick=2))
def test_value_and_vjp_of_the_row(row, mode, rng):
    fx, gx, x, dy = (random_array(rng, shape) for shape in (row.fx, row.gx, row.x, row.fx))
    value, (dx,) = VJP_MODES[mode](lambda x: cg.embed_gradient(fx, gx, x, row.axis), [x], dy)
    np.testing.assert_array_equal(value, fx)
    np.testing.assert_allclose(dx, row.dx(dy, gx), rtol=1e-13)
