"""A value with its derivative in PyTorch: `torch.autograd.Function`."""

from typing import Any

import torch

from .names import TORCH
from .samplers import Sampler, Timed


class _Embed(torch.autograd.Function):
    """`fx` with the derivative `gx`."""

    @staticmethod
    def forward(ctx: Any, fx: torch.Tensor, gx: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Forwards `fx`, by reference."""
        ctx.save_for_backward(gx)
        ctx.shape = x.shape
        return fx.detach()

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[None, None, torch.Tensor]:
        """The vector-Jacobian product."""
        (gx,) = ctx.saved_tensors
        dx = dy * gx
        return None, None, dx if dx.shape == ctx.shape else dx.sum_to_size(ctx.shape)


def _tensors(shape: list[int], x_shape: list[int] | None) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    fx, gx, dy = (torch.rand(shape, generator=generator) for _ in range(3))
    x = torch.rand(shape if x_shape is None else x_shape, generator=generator).requires_grad_()
    return fx, gx, x, dy


def forward(shape: list[int]) -> dict[str, Sampler]:
    """The value alone, recorded."""
    fx, gx, x, _ = _tensors(shape, None)
    return {TORCH: Timed(lambda: _Embed.apply(fx, gx, x))}


def gradient(shape: list[int], x_shape: list[int] | None = None) -> dict[str, Sampler]:
    """The value and its gradient."""
    fx, gx, x, dy = _tensors(shape, x_shape)
    return {TORCH: Timed(lambda: torch.autograd.grad(_Embed.apply(fx, gx, x), x, dy))}
