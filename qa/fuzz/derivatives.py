"""The derivatives of the first three orders of embed_gradient, by TensorFlow and in NumPy.

The target is sum(w * sin(h)) for orders above one, and h with the upstream w for order one.
Each order is the gradient of the order before, contracted with weights for each of fx, gx and x.
"""

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg
from tests.support import reference

from . import rules


def _split(case, values):
    """Values for fx, each gx, each x; the upstream; and lists of weights like the first."""
    count = 1 + 2 * case.pairs
    weights = values[count + 1 :]
    return values[:count], values[count], [weights[i : i + count] for i in range(0, len(weights), count)]


def by_tensorflow(case):
    """A function of tensors: the value, and of each order the gradients by fx, each gx and each x."""

    def run(*tensors):
        variables, upstream, weights = _split(case, list(tensors))
        gx, x = variables[1 : 1 + case.pairs], variables[1 + case.pairs :]
        axis = tf.constant(case.axis, tf.int32, [len(case.axis)]) if case.axis_is_a_tensor else case.axis
        if case.axis_is_a_tensor:
            axis = tf.identity(axis) + tf.size(variables[0], tf.int32) * 0  # Known at run time alone.
        if case.pairs == 1:
            (gx,), (x,) = gx, x
        tapes = [tf.GradientTape(persistent=True) for _ in range(case.order)]
        gradients = []
        for tape in tapes:
            tape.__enter__()
            tape.watch(variables)
        h = cg.embed_gradient(variables[0], gx, x, axis, fx_gx_manually_stopped=case.manually_stopped)
        target = h if case.order == 1 else tf.reduce_sum(upstream * tf.sin(h))
        for order, tape in enumerate(reversed(tapes)):
            tape.__exit__(None, None, None)
            upstreams = {"output_gradients": upstream} if case.order == 1 else {}
            gradients.append(tape.gradient(target, variables, unconnected_gradients="zero", **upstreams))
            if order < len(weights):
                terms = zip(gradients[-1], weights[order], strict=True)
                target = tf.add_n([tf.reduce_sum(gradient * weight) for gradient, weight in terms])
        return [h, *(gradient for of_order in gradients for gradient in of_order)]

    return run


class _Bilinear:
    """h = fx + B(gx, d), with d = x - stop(x) = 0, and its derivatives along directions (of fx, each gx, each x).

    h_u = u_fx + B(gx, u_x) is the first derivative along u, h_uv = B(u_gx, v_x) + B(v_gx, u_x) the second.
    """

    def __init__(self, case, variables):
        self.case, self.pairs = case, case.pairs
        self.gx = variables[1 : 1 + self.pairs]
        self.fx_shape = variables[0].shape
        self.alignment = {"axis": case.axis or (), "all_axes": case.axis is None}

    def _b(self, gx, x):
        forms = (
            rules.gradient_of_form("fx", {"gx": g, "x": t}, self.fx_shape, **self.alignment)[0]
            for g, t in zip(gx, x, strict=True)
        )
        return sum(forms)

    def _parts(self, u):
        return u[0], u[1 : 1 + self.pairs], u[1 + self.pairs :]

    def along(self, u):
        fx, _, x = self._parts(u)
        return fx + self._b(self.gx, x)

    def along_both(self, u, v):
        (_, u_gx, u_x), (_, v_gx, v_x) = self._parts(u), self._parts(v)
        return self._b(u_gx, v_x) + self._b(v_gx, u_x)

    def gradient_along(self, c):
        """The gradient of sum(c * h_v) by v."""
        dx = [reference.vjp(c, g, self.case.x, self.case.axis) for g in self.gx]
        return [reference.widen(c), *[np.zeros(self.case.gx)] * self.pairs, *dx]

    def gradient_along_both(self, c, u):
        """The gradient of sum(c * h_uv) by v."""
        _, u_gx, u_x = self._parts(u)
        dgx = [rules.gradient_of_form("gx", {"fx": c, "x": t}, self.case.gx, **self.alignment)[0] for t in u_x]
        return [np.zeros(self.fx_shape), *dgx, *(reference.vjp(c, g, self.case.x, self.case.axis) for g in u_gx)]


def _sum(*gradients):
    return [sum(terms) for terms in zip(*gradients, strict=True)]


def by_numpy(case):
    """The same as arrays of float64 or complex128."""
    arrays = [reference.widen(a) for a in case.arrays()]
    variables, w, weights = _split(case, arrays)
    h, form = variables[0], _Bilinear(case, variables)
    if not case.manually_stopped:  # Then x alone has derivatives.
        weights = [[np.zeros_like(a) for a in of[: -case.pairs]] + of[-case.pairs :] for of in weights]
    if case.order == 1:
        orders = [form.gradient_along(w)]
    else:
        sin, cos = w * np.sin(h), w * np.cos(h)
        u = weights[0]
        h_u = form.along(u)
        orders = [form.gradient_along(cos), _sum(form.gradient_along(-sin * h_u), form.gradient_along_both(cos, u))]
    if case.order == 3:
        v = weights[1]
        h_v, h_uv = form.along(v), form.along_both(u, v)
        orders.append(
            _sum(
                form.gradient_along(-cos * h_u * h_v - sin * h_uv),
                form.gradient_along_both(-sin * h_u, v),
                form.gradient_along_both(-sin * h_v, u),
            )
        )
    if not case.manually_stopped:
        orders = [[np.zeros_like(g) for g in of[: -case.pairs]] + of[-case.pairs :] for of in orders]
    return [variables[0], *(gradient for of_order in orders for gradient in of_order)]
