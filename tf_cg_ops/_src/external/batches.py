"""Calls from a graph, also for all examples of tf.vectorized_map: one with `batched=True`, otherwise one for each.

`lead` are the dimensions for examples, () outside of tf.vectorized_map. Stacked arrays have them in front; the others
are the same for all examples.
"""

import collections
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.external import residuals
from tf_cg_ops._src.external.python_call import Call, Kept

Shape = tuple[int, ...]


class PartOfBatch(NamedTuple):
    """The share of one example in what a call keeps: the one at `place` of `size`, whose first has this number.

    `example` is like `kept`, with the shapes of one example.
    """

    kept: Kept
    example: Kept
    first: int
    place: int
    size: int


def keep(number: int, kept: Kept) -> None:
    """Keeps what a call of a single example left."""
    residuals.keep(number, PartOfBatch(kept, kept, number, 0, 1))


def values(call: Call, lead: Shape, is_stacked: Sequence[bool], number: Any, *arrays: Any) -> list[np.ndarray]:
    """The leaves of the value for one array for each input; keeps what is left under the number of each example."""
    # Copies, because the arrays can share memory with Tensors, and the function can overwrite them.
    inputs = [
        np.array(array, object if spec.dtype == tf.string else None)
        for array, spec in zip(arrays, call.arguments.inputs, strict=True)
    ]
    if not lead:
        row, kept = call.value(inputs)
        keep(int(number), kept)
        return row
    numbers, is_stacked, x = np.ravel(number).tolist(), is_stacked[1:], call.arguments.x
    if call.options.batched and not any(s for i, s in enumerate(is_stacked) if i not in x):
        return _values_at_once(call, lead, is_stacked, numbers, inputs)
    rows = []
    for position, example in zip(np.ndindex(lead), numbers, strict=True):
        own = [np.array(a[position] if s else a, a.dtype) for a, s in zip(inputs, is_stacked, strict=True)]
        row, kept = call.value(own)
        keep(example, kept)
        rows.append(row)
    return _stacked_rows(lead, rows, call.value_specs())


def _values_at_once(
    call: Call, lead: Shape, is_stacked: Sequence[bool], numbers: list[int], inputs: list[np.ndarray]
) -> list[np.ndarray]:
    x, size = call.arguments.x, len(numbers)
    shapes = [inputs[i].shape[len(lead) if is_stacked[i] else 0 :] for i in x]
    if not call.options.is_elementwise:
        call.arguments.check_batch([tf.TensorShape(shape) for shape in shapes])
    for i, shape in zip(x, shapes, strict=True):
        if call.options.is_elementwise:
            # The dimension for examples does not broadcast with dimensions of another input.
            merged = (size, *[1] * (max(map(len, shapes)) - len(shape)), *shape)
        else:
            merged = (size * shape[0], *shape[1:])
        inputs[i] = np.array(np.broadcast_to(inputs[i], (*lead, *shape))).reshape(merged)
    results, kept = call.value(inputs)
    batch = () if call.options.is_elementwise else shapes[0][:1]
    example = kept._replace(x_shapes=shapes, value_shapes=[(*batch, *shape[1:]) for shape in kept.value_shapes])
    for index, number in enumerate(numbers):
        residuals.keep(number, PartOfBatch(kept, example, numbers[0], index, size))
    return [array.reshape(*lead, *shape) for array, shape in zip(results, example.value_shapes, strict=True)]


def derivative(
    call: Call,
    needed: Sequence[bool] | None,
    specs: Sequence[tf.TensorSpec],
    lead: Shape,
    is_stacked: Sequence[bool],
    number: Any,
    *vectors: np.ndarray,
) -> list[np.ndarray]:
    """`Call.derivative` for the number of a call. Examples that one call computed are in one call of `vjp`, too."""
    stacked = [v if s else np.broadcast_to(v, (*lead, *v.shape)) for v, s in zip(vectors, is_stacked[1:], strict=True)]
    numbers = np.ravel(number if is_stacked[0] else np.broadcast_to(number, lead)).tolist()
    # In a Jacobian a number comes several times: then each time belongs to another call.
    calls: dict[tuple[int, int], list[tuple[int, PartOfBatch]]] = collections.defaultdict(list)
    times: dict[int, int] = collections.Counter()
    for position, each in enumerate(numbers):
        part = residuals.find(each)
        calls[part.first, times[each]].append((position, part))
        times[each] += 1
    rows: list[Any] = [None] * len(numbers)
    for examples in calls.values():
        _, (kept, example, _, _, size) = examples[0]
        positions, indices = zip(*((position, part.place) for position, part in examples), strict=True)
        whole = []
        for vector, shape in zip(stacked, kept.x_shapes if needed is None else kept.value_shapes, strict=True):
            flat = vector.reshape(len(numbers), -1)
            padded = np.zeros((size, flat.shape[1]), flat.dtype)  # Examples that are not asked for get zeros.
            padded[list(indices)] = flat[list(positions)]
            whole.append(padded.reshape(shape))
        results = call.derivative(kept, whole, needed)
        after = (example.value_shapes, call.is_number) if needed is None else (example.x_shapes, needed)
        by_example = [
            result.reshape(size, *shape) for result, shape in zip(results, itertools.compress(*after), strict=True)
        ]
        for position, index in zip(positions, indices, strict=True):
            rows[position] = [array[index] for array in by_example]
    return _stacked_rows(lead, rows, specs)


def _stacked_rows(lead: Shape, rows: list[list[np.ndarray]], specs: Sequence[tf.TensorSpec]) -> list[np.ndarray]:
    if not rows:
        return [np.zeros([*lead, *(size or 0 for size in s.shape)], s.dtype.as_numpy_dtype) for s in specs]
    return [np.stack(leaf).reshape((*lead, *leaf[0].shape)) for leaf in zip(*rows, strict=True)]
