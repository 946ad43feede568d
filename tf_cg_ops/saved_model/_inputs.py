"""Inputs for the entry points of a SavedModel, from the user or made up. Made-up inputs are the same each time."""

import pathlib
import zipfile
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text

from . import _folder

# Tried one after the other for dimensions of unknown size.
SIZES = (2, 1, 5, 32)

# TensorFlow lists this one among the signatures, too.
_INIT_OP = "__saved_model_init_op"


def generate(specs: Any, size: int) -> Any:
    """Small random values with the structure of the specs. A constant, such as a bool, stays as it is."""
    rng = np.random.default_rng(0)
    return tf.nest.map_structure(lambda spec: _random_value(spec, size, rng), specs)


def _random_value(spec: Any, size: int, rng: np.random.Generator) -> Any:
    if isinstance(spec, tf.TensorSpec):
        return _random_tensor(spec, size, rng)
    if isinstance(spec, tf.RaggedTensorSpec):
        dense = _random_tensor(tf.TensorSpec(spec.shape, spec.dtype), size, rng)
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.sparse.from_dense(_random_tensor(tf.TensorSpec(spec.shape, spec.dtype), size, rng))
    if isinstance(spec, tf.TypeSpec):
        raise TypeError(f"values cannot be made up for {spec}")
    return spec


def _random_tensor(spec: tf.TensorSpec, size: int, rng: np.random.Generator) -> tf.Tensor:
    dims = [size] if spec.shape.rank is None else [size if dim is None else dim for dim in spec.shape]
    if spec.dtype == tf.string:
        return tf.constant([f"text {i}" for i in range(int(np.prod(dims)))], shape=dims)
    if spec.dtype == tf.bool:
        return tf.constant(rng.integers(2, size=dims).astype(bool))
    if spec.dtype.is_integer:
        return tf.cast(tf.constant(rng.integers(2, size=dims)), spec.dtype)  # Small enough for indices.
    if spec.dtype.is_complex:
        return tf.cast(tf.constant(rng.normal(size=dims) + 1j * rng.normal(size=dims)), spec.dtype)
    if spec.dtype.is_floating:
        return tf.cast(tf.constant(rng.normal(size=dims)), spec.dtype)
    raise TypeError(f"values cannot be made up for dtype {spec.dtype.name}")


def checked(api: str, inputs: Any) -> Mapping[str, Mapping[str, Any]]:
    """The argument `inputs`. Raises TypeError if it is not a dict of dicts."""
    inputs = {} if inputs is None else inputs
    values = [inputs, *inputs.values()] if isinstance(inputs, Mapping) else [inputs]
    wrong = next((value for value in values if not isinstance(value, Mapping)), None)
    if wrong is not None:
        raise TypeError(
            f"{api}: inputs must be a dict of dicts, {{signature: {{argument: value}}}}, got {text.describe(wrong)}."
        )
    return inputs


def check_names(api: str, proto: Any, inputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError if `inputs` names a signature or an argument that is not in the model."""

    def check(name: str, what: str, known: Collection[str], otherwise: str) -> None:
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else f"left out, because {otherwise}"
            raise ValueError(
                f"{api}: {what} in inputs must be {expected}, got {name}. Name signatures and their arguments as the "
                "model does."
            )

    known = _argument_names(proto)
    for signature, arguments in inputs.items():
        check(signature, "a signature", known, "the model has no signatures")
        for argument in arguments:
            check(argument, f"an argument of {signature}", known[signature], "it has no arguments")


def _argument_names(proto: Any) -> dict[str, list[str]]:
    """The names of the arguments, by signature."""
    names: dict[str, list[str]] = {}
    for meta_graph in proto.meta_graphs:
        for name, signature in sorted(meta_graph.signature_def.items()):
            if name != _INIT_OP:
                known = names.setdefault(name, [])
                known += [argument for argument in sorted(signature.inputs) if argument not in known]
    return names


def read_npz(
    api: str, file: pathlib.Path, model: pathlib.Path, default: str | None = None
) -> dict[str, dict[str, np.ndarray]]:
    """Inputs from an .npz file, by signature and argument. Names can leave out the default, or the only signature."""
    signatures = list(_argument_names(_folder.read_saved_model(api, model)))
    default = signatures[0] if len(signatures) == 1 else default
    expected = "SIGNATURE/ARGUMENT" + (" or ARGUMENT" if default else "")

    def wrong_file(got: str) -> ValueError:
        return ValueError(
            f"{api}: '{file}' must be an .npz file with arrays named {expected}, got {got}. Write it with numpy.savez."
        )

    try:
        arrays = np.load(file)
        if isinstance(arrays, np.ndarray):
            raise ValueError("a single array")
        with arrays:
            arrays_by_name = dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        got = str(error).partition("\n")[0].rstrip(".")
        raise wrong_file(got) from error
    inputs: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays_by_name.items():
        signature, separator, argument = name.partition("/")
        if not separator and default:
            signature, argument = default, name
        elif not separator:
            raise wrong_file(f"an array named {name}")
        inputs.setdefault(signature, {})[argument] = array
    return inputs
