"""Derivatives of pointwise functions in clusters that TensorFlow makes for XLA by itself."""

from tests.support.modes import assert_orders, traced_orders
from tests.support.pointwise import DY, POINTWISE, Jet, X

for name in ("stopped", "given", "custom_gradient", "recompute_grad"):
    assert_orders(traced_orders(POINTWISE[name].function, X, DY), POINTWISE[name](Jet(X)).orders(DY))
