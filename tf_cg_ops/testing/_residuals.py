"""`residuals`: what the gradient of a function keeps of the forward pass."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, signature, text, tf_internal
from tf_cg_ops._src.core.types import Structure
from tf_cg_ops._src.memory.flat_trace import FlatTrace
from tf_cg_ops._src.memory.graph_costs import GraphCosts
from tf_cg_ops._src.rewrite.traced_call import TracedCall, arrays_to_tensors

from ._audit_record import line_of

_API = "testing.residuals"


@dataclasses.dataclass(frozen=True)
class Residual:
    """A value that a gradient keeps.

    Attributes:
      bytes: Its size.
      shape: Its shape.
      dtype: The name of its dtype.
      op: The type of the op that computes it, such as "Relu".
      node: The name of this op, which holds the name of its Keras layer.
      line: The line of your code that made the op, such as "model.py:12"; empty in a loaded model.
    """

    bytes: int
    shape: tf.TensorShape
    dtype: str
    op: str
    node: str
    line: str


class Residuals(list[Residual]):
    """The values that a gradient keeps, the largest first. It prints as a table."""

    @property
    def bytes(self) -> int:
        """The sum of their sizes."""
        return sum(residual.bytes for residual in self)

    def __str__(self) -> str:
        rows = [("bytes", "shape", "dtype", "op", "node", "line")]
        rows += [(f"{r.bytes:,}", str(r.shape), r.dtype, r.op, r.node, r.line) for r in self]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [
            "  ".join([cells[0].rjust(widths[0]), *map(str.ljust, cells[1:], widths[1:])]).rstrip() for cells in rows
        ]
        return "\n".join([f"{text.count(len(self), 'value')}, {self.bytes:,} bytes", *table])


@tf_internal.autograph_artifact
@misplaced_calls.explains(_API)
def residuals(f: Callable[..., Structure], args: Sequence[Structure] | Mapping[str, Structure]) -> Residuals:
    """Lists the values that the gradient of `f` keeps between the forward and the backward pass.

    Use it to find out what takes the memory of a training step, before you decide what `recompute_grad` computes again.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> found = cg.testing.residuals(lambda x: tf.exp(tf.sin(x) + 1.0), [tf.ones([100])])
    >>> [(each.op, each.bytes) for each in found]
    [('Exp', 400)]

    `f` is traced, and does not run. The gradient of each op reads some of the inputs and outputs of the op, and these
    values are listed once each. Arguments, variables and constants, which are there anyway, are not. What a loop keeps
    of all steps is one row, of dtype "variant". A size that is not known while tracing counts as 32.

    Args:
      f: A function, a Keras model, or a function of a loaded SavedModel.
      args: A list or tuple of its arguments, or a dict of them by name.

    Returns:
      A list of `Residual`, the largest first, which prints as a table. `bytes` is their sum.

    Raises:
      TypeError: `f` is not a function, or `args` not a list, tuple or dict.

    Like JAX's `jax.ad_checkpoint.print_saved_residuals`; TensorFlow has nothing like it.
    """
    misplaced_calls.check_function(_API, "f", f)
    if not isinstance(args, (list, tuple, Mapping)):
        got = text.describe_type(args)
        raise TypeError(f"{_API}: args must be a list, tuple or dict of arguments, got {got}. Pass [x].")
    positional, keywords = ([], dict(args)) if isinstance(args, Mapping) else (list(args), {})
    call = TracedCall(signature.traced(_API, f, "to find what is kept"), *arrays_to_tensors((positional, keywords)))
    flat = FlatTrace(call)
    costs = GraphCosts(flat.graph, flat.inside, [*itertools.compress(flat.inside, call.are_sources)], lambda op: False)
    kept = [value for value in costs.values if value.first_saver is not None and value.size]
    rows = []
    for value in sorted(kept, key=lambda value: -value.size):
        op = costs.operations[value.first]
        # What a loop keeps of all steps is in lists, which are no output of it.
        output = next((t for t in op.outputs if costs.value_of(t) is value), tf.TensorSpec(None, tf.variant))
        rows.append(Residual(value.size, output.shape, output.dtype.name, op.type, op.name, line_of(op)))
    return Residuals(rows)
