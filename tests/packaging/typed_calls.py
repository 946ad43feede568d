"""Calls of decorated functions, each with what a type checker must see: a revealed type, or the code of an error.

TensorFlow has no types that mypy finds, so a Tensor is Any here: what is checked is everything else.
"""
# ruff: noqa: F821

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tf_cg_ops as cg

GradFn = Callable[..., Any]


@cg.custom_gradient
def with_gradient(x: tf.Tensor, k: float = 1.0) -> tuple[tf.Tensor, GradFn]:
    return k * x, lambda dy: k * dy


@cg.custom_gradient(saved_orders=2)
def with_orders(x: tf.Tensor, *, k: float) -> tuple[str, GradFn]:
    return "text", lambda dy: k * dy


@cg.custom_jvp
def with_tangent(x: tf.Tensor, k: float) -> float:
    return k


@with_tangent.defjvp
def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return primals, tangents


def forward(x: tf.Tensor, k: int) -> tuple[float, int]:
    return 1.0, 2


def backward(residuals: int, dy: tf.Tensor) -> tf.Tensor:
    return dy


passes = cg.custom_vjp(forward, backward)


def plain(x: tf.Tensor, k: int) -> float:
    return 1.0


class Model(tf.Module):
    @cg.custom_gradient
    def method(self, x: tf.Tensor, k: float) -> tuple[float, GradFn]:
        return k, lambda dy: dy

    @cg.custom_jvp
    def tangent(self, x: tf.Tensor, k: float) -> float:
        return k

    @cg.recompute_grad(keep=["name"])
    def recomputed(self, x: tf.Tensor, k: int) -> float:
        return 1.0


model = Model()

reveal_type(with_gradient)  # def (x: Any, k: float =) -> Any
reveal_type(with_orders)  # def (x: Any, *, k: float) -> str
reveal_type(with_tangent.__call__)  # def (x: Any, k: float) -> float
reveal_type(rule)  # def (primals: Any, tangents: Any) -> tuple[Any, Any]
reveal_type(passes)  # def (x: Any, k: int) -> float
reveal_type(model.tangent.__call__)  # def (x: Any, k: float) -> float
reveal_type(model.recomputed)  # def (x: Any, k: int) -> float
reveal_type(cg.recompute_grad(plain, memory="auto").plan(tf.zeros([2]), 1).peak_bytes)  # int
reveal_type(cg.straight_through(surrogate="sigmoid")(plain))  # def (x: Any, k: int) -> float
reveal_type(cg.override_gradients(plain, {"Relu": lambda op, dy: dy}))  # def (x: Any, k: int) -> float
reveal_type(cg.implicit_root(lambda y, x: y - x, plain))  # def (x: Any, k: int) -> float
reveal_type(cg.recompute_grad(lambda x: x))  # def (x: Any) -> Any

with_gradient(1, "text")  # error: arg-type
with_orders(1, k=2.0).no_such_method()  # error: attr-defined
with_tangent.defjvp(3)  # error: type-var
passes(1, 2, 3)  # error: call-arg
model.method(1, "text")  # error: arg-type
cg.recompute_grad(keep=3)  # error: call-overload
cg.custom_gradient(plain)  # error: arg-type
cg.custom_vjp(forward, 3)  # error: arg-type
cg.implicit_root(plain, plain, batch=True)  # error: call-overload
cg.embed_gradient(1, 2)  # error: call-arg
cg.layers.ScaleGradient(factors=2)  # error: call-arg
