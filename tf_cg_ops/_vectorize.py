"""How the library's ops compute a whole batch at once, for tf.vectorized_map and jacobians: one converter an op.

An input is stacked if it has the batch as a new first dimension, and loop-invariant if it has not.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _dynamic_shapes, _errors, _library, _rule, _tf_internal


@_tf_internal.RegisterPFor("CustomGradientRule")
def _convert_rule(pfor_input: Any) -> Sequence[Any]:
    """The same results, with a rule that maps the rule."""
    pfor_input.stack_inputs(range(len(pfor_input.op.outputs)))
    wrapped = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    outputs = _rule.vectorize(pfor_input.op, [w.t for w in wrapped], [w.is_stacked for w in wrapped])
    return [_tf_internal.wrap_for_pfor(output, True) for output in outputs]


@_tf_internal.RegisterPFor("CustomGradientBarrier")
def _convert_barrier(pfor_input: Any) -> Sequence[Any]:
    wrapped = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    count = len(pfor_input.op.outputs)
    outputs = _library.custom_gradient_barrier([w.t for w in wrapped[:count]], [w.t for w in wrapped[count:]])
    return [_tf_internal.wrap_for_pfor(o, w.is_stacked) for o, w in zip(outputs, wrapped, strict=False)]


@_tf_internal.RegisterPFor("CustomGradientCheckShape")
def _convert_check_shape(pfor_input: Any) -> Any:
    gradient, shape = pfor_input.input(0), _shape_of_one(pfor_input, 1)
    if gradient.is_stacked:
        shape = tf.concat([tf.shape(gradient.t, out_type=shape.dtype)[:1], shape], 0)
    checked = _library.custom_gradient_check_shape(gradient.t, shape, message=pfor_input.get_attr("message"))
    return _tf_internal.wrap_for_pfor(checked, gradient.is_stacked)


@_tf_internal.RegisterPFor("CustomGradientEmbed")
def _convert_embed(pfor_input: Any) -> Any:
    pfor_input.stack_inputs([0])  # The value is one for each member of the batch, since its derivative is.
    pairs = (pfor_input.num_inputs - 1) // 2
    fx, *others = [pfor_input.input(i) for i in range(pfor_input.num_inputs)]
    aligned = [
        _Aligned.of(pfor_input, _dims(fx), _dims(gx), _dims(x))
        for gx, x in zip(others[:pairs], others[pairs:], strict=True)
    ]
    new_gx = [a.lay_out(gx, a.gx) for a, gx in zip(aligned, others[:pairs], strict=True)]
    new_x = [a.lay_out(x, a.x) for a, x in zip(aligned, others[pairs:], strict=True)]
    axes = [a.axis() for a in aligned]
    if any(axis != axes[0] for axis in axes):  # One op has one axis: the domains are moved to the end.
        size = max(len(axis) for axis in axes)
        new_gx = [a.move_domain_last(gx, size) for a, gx in zip(aligned, new_gx, strict=True)]
        new_x = [a.move_domain_last(x, size) for a, x in zip(aligned, new_x, strict=True)]
        axes = [list(range(-size, 0))]
    stopped = pfor_input.get_attr("fx_gx_manually_stopped")
    h = _library.custom_gradient_embed(fx.t, new_gx, new_x, axis=axes[0], fx_gx_manually_stopped=stopped)
    return _tf_internal.wrap_for_pfor(h, True)


@_tf_internal.RegisterPFor("CustomGradientEmbedGrad")
def _convert_embed_grad(pfor_input: Any) -> Any:
    wrt = tf.compat.as_str(pfor_input.get_attr("wrt"))
    roles = [role for role in ("fx", "gx", "x") if role != wrt]
    if "fx" in roles:
        pfor_input.stack_inputs([0])
    operands = {role: pfor_input.input(i) for i, role in enumerate(roles)}
    shape = _shape_of_one(pfor_input, 2)
    if not any(operand.is_stacked for operand in operands.values()):  # Only the shape was; the members do not differ.
        names = ("zero_x", "fx_gx_manually_stopped", "axis", "all_axes")
        attributes = {name: pfor_input.get_attr(name) for name in names}
        lhs, rhs = (operand.t for operand in operands.values())
        same = _library.custom_gradient_embed_grad(lhs, rhs, shape, wrt=wrt, **attributes)
        return _tf_internal.wrap_for_pfor(same, False)
    dims = {role: _dims(operand) for role, operand in operands.items()}
    dims[wrt] = None if shape.shape[0] is None else tf.unstack(shape)
    aligned = _Aligned.of(pfor_input, dims["fx"], dims["gx"], dims["x"])
    if aligned.scalar_fits is not True:
        message = _errors.SCALAR_FX.format(api="CustomGradientEmbedGrad", gx="gx", x="x")
        data = [message, _vector(aligned.gx), _vector(aligned.x), pfor_input.get_attr("axis")]
        with tf.control_dependencies([tf.debugging.Assert(aligned.scalar_fits, data)]):
            shape = tf.identity(shape)
    new = {"fx": aligned.fx, "gx": aligned.gx, "x": aligned.x}
    lhs, rhs = (aligned.lay_out(operands[role], new[role]) for role in roles)
    batch = next(tf.shape(o.t, out_type=shape.dtype)[:1] for o in operands.values() if o.is_stacked)
    out = _library.custom_gradient_embed_grad(
        lhs,
        rhs,
        tf.concat([batch, tf.cast(tf.stack(new[wrt]), shape.dtype) if new[wrt] else shape[:0]], 0),
        wrt=wrt,
        zero_x=pfor_input.get_attr("zero_x"),
        fx_gx_manually_stopped=pfor_input.get_attr("fx_gx_manually_stopped"),
        axis=aligned.axis(),
    )
    return _tf_internal.wrap_for_pfor(tf.reshape(out, tf.concat([batch, shape], 0)), True)


# The sizes of the dimensions of one member of the batch, as Python ints or scalar Tensors.
_Dims = list[Any]


def _dims(wrapped: Any) -> _Dims | None:
    """None where not even the rank is known."""
    if wrapped.t.shape.rank is None:
        return None
    sizes = wrapped.t.shape.as_list()
    if None in sizes:
        known, sizes = sizes, tf.unstack(_dynamic_shapes.shape_of(wrapped.t), num=len(sizes))
        sizes = [size if k is None else k for k, size in zip(known, sizes, strict=True)]
    return sizes[1:] if wrapped.is_stacked else sizes


def _shape_of_one(pfor_input: Any, index: int) -> tf.Tensor:
    """An input that is a shape; it is the same for all members of a batch."""
    wrapped = pfor_input.input(index)
    return wrapped.t[0] if wrapped.is_stacked else wrapped.t


@dataclasses.dataclass(frozen=True)
class _Aligned:
    """One pair: fx as it is, gx and x with a dimension for each of the joint shape.

    So the batch can come before all of them. The rules are those of cc/lib/alignment.h.
    """

    fx: _Dims
    gx: _Dims
    x: _Dims
    domain: list[bool]  # For each dimension of x, whether it belongs to the domain of one function.
    scalar_fits: Any  # Whether fx may be a scalar if it is one: True, or a Tensor where that does not show yet.

    @classmethod
    def of(cls, pfor_input: Any, fx: _Dims | None, gx: _Dims | None, x: _Dims | None) -> "_Aligned":
        """Aligns the dimensions of one member of the batch."""
        if fx is None or gx is None or x is None:
            message = _errors.RANK_UNKNOWN_TO_PFOR.format(api="embed_gradient")
            raise _tf_internal.ConversionNotImplementedError(message)
        rank = len(x)
        named = {axis % rank for axis in pfor_input.get_attr("axis")}
        domain = [pfor_input.get_attr("all_axes") or i in named for i in range(rank)]
        spread_fx = _spread_along_x(fx, domain)
        spread_gx = gx if len(gx) >= rank else _spread_along_x(gx, domain)
        joint_rank = max(len(spread_fx), len(spread_gx), rank)
        domain = [False] * (joint_rank - rank) + domain
        scalar_fits = bool(fx) or all(domain) or _adds_nothing_to(x, spread_gx)
        if not fx:  # A scalar is a function of all of x, whatever the axis; with a batch that has to be said.
            domain = [True] * joint_rank
        return cls(fx, _pad(spread_gx, joint_rank), _pad(x, joint_rank), domain, scalar_fits)

    def axis(self) -> list[int]:
        """The domain counted from the end."""
        return [i - len(self.domain) for i, named in enumerate(self.domain) if named]

    def lay_out(self, wrapped: Any, dims: _Dims) -> tf.Tensor:
        """A Tensor with these dimensions behind the batch, of which a loop-invariant one has a single member."""
        batch = _dynamic_shapes.shape_of(wrapped.t)[0] if wrapped.is_stacked else 1
        if wrapped.is_stacked and wrapped.t.shape[0] is not None:
            batch = wrapped.t.shape[0]
        return _reshape(wrapped.t, [batch, *dims])

    def move_domain_last(self, tensor: tf.Tensor, size: int) -> tf.Tensor:
        """Puts the domain at the end, with dimensions of size 1 in front of it up to `size`."""
        places = [i + 1 for i, named in enumerate(self.domain) if named]
        others = [i + 1 for i, named in enumerate(self.domain) if not named]
        moved = tf.transpose(tensor, [0, *others, *places])
        for _ in range(size - len(places)):
            moved = tf.expand_dims(moved, 1 + len(others))
        return moved


def _adds_nothing_to(x: _Dims, gx: _Dims) -> Any:
    """Whether gx broadcasts to x: True, or a scalar Tensor where that does not show yet."""
    if len(gx) > len(x):
        return tf.constant(False)
    pairs = zip(_pad(gx, len(x)), x, strict=True)
    open_ = [(a, b) for a, b in pairs if not (isinstance(a, int) and (a == 1 or (isinstance(b, int) and a == b)))]
    if not open_:
        return True
    sizes, expected = map(_vector, zip(*open_, strict=True))
    return tf.reduce_all(tf.equal(sizes, 1) | tf.equal(sizes, expected))


def _reshape(tensor: tf.Tensor, dims: _Dims) -> tf.Tensor:
    if all(isinstance(dim, int) for dim in dims):
        return tf.reshape(tensor, tf.constant(dims, tf.int64))
    return tf.reshape(tensor, _vector(dims))


def _vector(dims: Sequence[Any]) -> tf.Tensor:
    return tf.stack([tf.cast(dim, tf.int64) for dim in dims]) if dims else tf.constant([], tf.int64)


def _pad(dims: _Dims, rank: int) -> _Dims:
    return [1] * (rank - len(dims)) + dims


def _spread_along_x(dims: _Dims, domain: list[bool]) -> _Dims:
    """Puts a 1 at each place of the domain, so that dimensions along the batch lie along x."""
    along_batch = _pad(dims, domain.count(False))
    extra = len(along_batch) - domain.count(False)
    own = iter(along_batch[extra:])
    return along_batch[:extra] + [1 if named else next(own) for named in domain]
