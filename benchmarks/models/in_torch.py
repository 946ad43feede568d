"""In PyTorch: the networks, and a value with its derivative."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..harness.names import TORCH
from ..harness.peaks import OfFirstCall
from ..harness.samplers import Sampler, Timed
from .networks import Network, Ops, Unit, arrays, networks

OPS = Ops(
    to_float=lambda x, like: x.to(like.dtype),
    sign=torch.sign,
    square_root=torch.sqrt,
    clip_above=lambda x, most: torch.clamp(x, max=most),
    relu=torch.relu,
    total=torch.sum,
    softmax=lambda x: torch.softmax(x, -1),
    log_softmax=lambda x: torch.log_softmax(x, -1),
    mean=lambda x: torch.mean(x, -1, keepdim=True),
    reshape=torch.reshape,
    transpose=torch.permute,
    convolution=lambda x, kernel: torch.nn.functional.conv2d(x, kernel, padding="same"),
    pool=lambda x: torch.nn.functional.max_pool2d(x, 2),
    mean_of_pixels=lambda x: torch.mean(x, (2, 3)),
)


def _function(unit: Unit) -> Callable[[Any], Any]:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            value = unit.value(OPS, x)
            return value.view_as(value) if value is x else value

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
            return unit.vjp(OPS, ctx.saved_tensors[0], dy)

    return Function.apply


def step(network: Network, dtype: type = np.float32) -> Callable[[], Any]:
    """A function that returns the loss and the gradients of the weights, kernels in PyTorch's layout."""
    weights, inputs, labels = arrays(network, dtype)
    is_image = inputs.ndim == 4
    # In PyTorch, channels come before height and width, in kernels and images.
    moved = [w.transpose(3, 2, 0, 1) if w.ndim == 4 else w for w in weights]
    parameters = [torch.tensor(np.ascontiguousarray(w)).requires_grad_() for w in moved]
    x = torch.tensor(np.ascontiguousarray(inputs.transpose(0, 3, 1, 2) if is_image else inputs))
    y = torch.tensor(labels)
    unit = _function(network.unit)

    def gradients() -> tuple[Any, Any]:
        loss = network.loss(OPS, unit, parameters, x, y)
        return loss.detach(), torch.autograd.grad(loss, parameters)

    return gradients


def times(name: str, quick: bool) -> dict[str, Sampler]:
    """The time of a step of one network."""
    return {TORCH: Timed(step(networks(quick)[name]))}


def peak(name: str, quick: bool, unit: int) -> dict[str, Sampler]:
    """The memory of one step of one network."""
    return {TORCH: OfFirstCall(lambda: step(networks(quick)[name]), unit)}


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
