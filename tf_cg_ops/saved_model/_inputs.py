"""Inputs for what a SavedModel can be called with, made from its input specs: the same ones each time."""

import pathlib
import zipfile
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from . import _errors, _folder

# What is tried for dimensions of unknown size.
SIZES = (2, 1, 5, 32)

# What TensorFlow lists among the signatures and is none.
_INIT_OP = "__saved_model_init_op"


def generate(specs: Any, size: int) -> Any:
    """Small random values in the structure of the specs; what is no spec, such as a bool, stays as it is."""
    rng = np.random.default_rng(0)
    return tf.nest.map_structure(lambda spec: _value(spec, size, rng), specs)


def _value(spec: Any, size: int, rng: np.random.Generator) -> Any:
    if isinstance(spec, tf.TensorSpec):
        return _dense(spec, size, rng)
    if isinstance(spec, tf.RaggedTensorSpec):
        dense = _dense(tf.TensorSpec(spec.shape, spec.dtype), size, rng)
        return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.sparse.from_dense(_dense(tf.TensorSpec(spec.shape, spec.dtype), size, rng))
    if isinstance(spec, tf.TypeSpec):
        raise TypeError(f"no values can be made up for {spec}")
    return spec


def _dense(spec: tf.TensorSpec, size: int, rng: np.random.Generator) -> tf.Tensor:
    dims = [size] if spec.shape.rank is None else [size if dim is None else dim for dim in spec.shape]
    if spec.dtype == tf.string:
        return tf.constant([f"text {i}" for i in range(int(np.prod(dims)))], shape=dims)
    if spec.dtype == tf.bool:
        return tf.constant(rng.integers(2, size=dims).astype(bool))
    if spec.dtype.is_integer:
        return tf.cast(tf.constant(rng.integers(2, size=dims)), spec.dtype)  # As indices they are small enough.
    if spec.dtype.is_complex:
        return tf.cast(tf.constant(rng.normal(size=dims) + 1j * rng.normal(size=dims)), spec.dtype)
    if spec.dtype.is_floating:
        return tf.cast(tf.constant(rng.normal(size=dims)), spec.dtype)
    raise TypeError(f"no values can be made up for dtype {spec.dtype.name}")


def convert(specs: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """What the user passed for the arguments of a signature, in their dtypes."""
    return {name: tf.convert_to_tensor(value, specs[name].dtype) for name, value in given.items()}


def check_names(api: str, proto: Any, inputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError if inputs name what no meta graph of a SavedModel has."""
    arguments = _arguments(proto.meta_graphs)
    for signature, given in inputs.items():
        if signature not in arguments:
            expected = _some_of(arguments, "none, for the model has no signatures")
            raise ValueError(_errors.INPUTS_UNKNOWN.format(api=api, what="signature", expected=expected, got=signature))
        for argument in given:
            if argument not in arguments[signature]:
                expected = _some_of(arguments[signature], "none, for it has no arguments")
                what = f"argument of {signature}"
                raise ValueError(_errors.INPUTS_UNKNOWN.format(api=api, what=what, expected=expected, got=argument))


def of_meta_graph(meta_graph: Any, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The part of the inputs that is for a meta graph."""
    arguments = _arguments([meta_graph])
    return {
        signature: {name: value for name, value in given.items() if name in arguments[signature]}
        for signature, given in inputs.items()
        if signature in arguments
    }


def _arguments(meta_graphs: Iterable[Any]) -> dict[str, list[str]]:
    """The names of the arguments, by signature."""
    arguments: dict[str, list[str]] = {}
    for meta_graph in meta_graphs:
        for name, signature in sorted(meta_graph.signature_def.items()):
            if name != _INIT_OP:
                known = arguments.setdefault(name, [])
                known += [argument for argument in sorted(signature.inputs) if argument not in known]
    return arguments


def _some_of(names: Collection[str], otherwise: str) -> str:
    return f"some of {', '.join(names)}" if names else otherwise


def read(file: pathlib.Path, model: pathlib.Path) -> dict[str, dict[str, np.ndarray]]:
    """The inputs in an .npz file, by signature and argument; names without a signature are for the only one."""
    api = "saved_model.strip"
    proto = _folder.read(api, model)
    signatures = list(_arguments(proto.meta_graphs))
    expected = "SIGNATURE/ARGUMENT" + (" or ARGUMENT" if len(signatures) == 1 else "")

    def holds_no_inputs(got: str) -> ValueError:
        return ValueError(
            f"{api}: '{file}' holds no inputs; expected an .npz file with arrays named {expected}, got {got}. Write it "
            "with numpy.savez."
        )

    try:
        arrays = np.load(file)
        if isinstance(arrays, np.ndarray):
            raise ValueError("a single array")
        with arrays:
            given = dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        got = str(error).partition("\n")[0].rstrip(".")
        raise holds_no_inputs(got) from error
    inputs: dict[str, dict[str, np.ndarray]] = {}
    for name, array in given.items():
        signature, separator, argument = name.partition("/")
        if not separator and len(signatures) == 1:
            signature, argument = signatures[0], name
        elif not separator:
            raise holds_no_inputs(f"an array named {name}")
        inputs.setdefault(signature, {})[argument] = array
    return inputs
