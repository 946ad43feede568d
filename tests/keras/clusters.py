"""Derivatives of pointwise functions in clusters that TensorFlow makes for XLA by itself."""

from tests.support.modes import MODES, assert_orders
from tests.support.pointwise import DY, POINTWISE, X

for name in ("stopped", "given", "custom_gradient", "recompute_grad"):
    assert_orders(MODES["traced"](POINTWISE[name].function, X, DY), POINTWISE[name].orders(X, DY))
