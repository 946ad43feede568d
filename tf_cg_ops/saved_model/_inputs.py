"""Makes up inputs for the functions of a SavedModel. They are the same each time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ._graphs import reason_of

_KINDS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
# Tried one after the other for dimensions of unknown size.
SIZES = (2, 1, 5, 32)


def generate(specs: Any, size: int, seed: int = 0) -> Any:
    """Small random values with the structure of the specs. A constant, such as a bool, stays as it is."""
    rng = np.random.default_rng(seed)
    return tf.nest.map_structure(lambda spec: _random_value(spec, size, rng), specs)


def unknown(specs: Any) -> list[str]:
    """The types of specs for which no values can be made up, such as datasets."""
    found = [spec for spec in tf.nest.flatten(specs) if isinstance(spec, tf.TypeSpec)]
    return [type(spec).__name__ for spec in found if not isinstance(spec, _KINDS)]


def to_tensors(api: str, signature: str, given: Mapping[str, Any], specs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """The inputs in the dtypes of a signature. Raises ValueError for another kind of values, or another shape."""
    try:
        found = {name: tf.convert_to_tensor(x, specs[name].dtype) for name, x in given.items() if name in specs}
        return {name: tf.ensure_shape(x, specs[name].shape) for name, x in found.items()}
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        wanted = ", ".join(f"'{name}': {spec.dtype.name} {spec.shape}" for name, spec in sorted(specs.items()))
        raise ValueError(f"{api}: '{signature}' must get inputs like {wanted}, got: {reason_of(error)}.") from error


def _random_value(spec: Any, size: int, rng: np.random.Generator) -> Any:
    if not isinstance(spec, tf.TypeSpec):
        return spec
    dims = [size] if spec.shape.rank is None else [size if dim is None else dim for dim in spec.shape]
    numbers = rng.normal(size=dims) + 1j * rng.normal(size=dims)
    if not spec.dtype.is_complex:  # Integers are small enough for indices.
        numbers = numbers.real if spec.dtype.is_floating else numbers.real > 0.0
    dense = tf.strings.as_string(numbers) if spec.dtype == tf.string else tf.cast(numbers, spec.dtype)
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
    return tf.sparse.from_dense(dense) if isinstance(spec, tf.SparseTensorSpec) else dense
