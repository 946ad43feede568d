"""Compares the outputs of a SavedModel with those of a LiteRT (TensorFlow Lite) file, in steps of its quantizers."""

from __future__ import annotations

import functools
import math
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal

from . import _inputs
from ._compare import (
    DIFFERENT,
    EQUAL,
    FLOAT_TENSORS,
    NOT_COMPARED,
    ROUNDING,
    VALUES,
    Comparison,
    relative_difference,
    run_function,
)
from ._graphs import raised_as_value_error, reason_of
from ._lite import WEIGHT_SIGNATURES

_MAGIC = b"TFL3"  # The bytes 4 to 7 of the file.
_ONE_STEP = 1.001  # Both numbers of a difference are rounded.
_ROUNDING = 1e-5  # The largest difference of floating-point numbers, divided by the largest element.


def is_lite_model(path: pathlib.Path) -> bool:
    """Whether the path is a LiteRT file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8)[4:] == _MAGIC


def compare_with_lite(
    api: str, path: pathlib.Path, file: pathlib.Path, inputs: Mapping[str, Mapping[str, Any]]
) -> list[Comparison]:
    """Compares each signature of the LiteRT file with the signature of this name in the SavedModel."""
    content = file.read_bytes()
    try:
        model = tf_internal.lite_schema.ModelT.InitFromPackedBuf(content, 0)
        runners = _runners(content)
    except Exception as error:  # The parser raises many kinds, such as struct.error, and the interpreter others.
        raise ValueError(
            f"{api}: '{file}' must be a complete LiteRT model, which this LiteRT can load, got {reason_of(error)}. If "
            "the file is damaged, convert it again; if not, change the model."
        ) from error
    if not runners:
        raise ValueError(
            f"{api}: '{file}' must have a signature, got none. Convert with TFLiteConverter.from_saved_model."
        )
    with raised_as_value_error(api, path, "load"):
        loaded = tf.saved_model.load(str(path))  # Its signatures do not keep its variables alive.
    found: list[Comparison] = []
    for definition in model.signatureDefs:
        name = tf.compat.as_str(definition.signatureKey)
        if name not in loaded.signatures:
            found.append(Comparison(name, VALUES, NOT_COMPARED, None, "the first model does not have it"))
            continue
        outputs = {
            f"output {tf.compat.as_str(each.name)}": _Quantizer.of(model, definition.subgraphIndex, each.tensorIndex)
            for each in definition.outputs
        }
        weights = loaded.signatures.get("weights", dict) if name not in WEIGHT_SIGNATURES else dict
        found += _compared(name, loaded.signatures[name], weights, runners[name], inputs.get(name, {}), outputs)
        floats = _float_tensors(model, definition)
        found.append(Comparison(name, FLOAT_TENSORS, NOT_COMPARED, None, float_tensors=floats))
    return found


def _runners(content: bytes) -> dict[str, Any]:
    """A function of arrays for each signature. Each has an interpreter of its own, so that none changes another."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It recommends another package with the same interpreter.
        names = tf.lite.Interpreter(model_content=content).get_signature_list()
        interpreters = {name: tf.lite.Interpreter(model_content=content) for name in names}

    def run(name: str, interpreter: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        runner = interpreter.get_signature_runner(name)
        wanted = runner.get_input_details()
        if wanted.keys() != inputs.keys():
            raise ValueError(f"its inputs are {text.quoted(wanted)}")
        quantizers = {key: _Quantizer(*each["quantization"]) for key, each in wanted.items()}
        given = {key: each.integers(inputs[key], wanted[key]["dtype"]) for key, each in quantizers.items()}
        results = {f"output {key}": x for key, x in runner(**given).items()}
        has_weights = "weights" in names and name not in WEIGHT_SIGNATURES
        after = interpreter.get_signature_runner("weights")() if has_weights else {}
        return results | {f"weight {key}": x for key, x in after.items()}

    return {name: functools.partial(run, name, each) for name, each in interpreters.items()}


@dataclass(frozen=True)
class _Quantizer:
    """Integers stand for numbers: `step * (integer - zero_point)`. Without a step they stand for themselves."""

    step: float
    zero_point: int

    @classmethod
    def of(cls, model: Any, subgraph: int, tensor: int) -> _Quantizer:
        """The one of a tensor, or of the integers from which the last op of the model makes its numbers."""
        graph = model.subgraphs[subgraph]
        producer = next((each for each in graph.operators if tensor in each.outputs), None)
        if producer is not None and _builtin(model, producer) == tf_internal.lite_schema.BuiltinOperator.DEQUANTIZE:
            tensor = producer.inputs[0]
        scales, zeros = ([], []) if (q := graph.tensors[tensor].quantization) is None else (q.scale, q.zeroPoint)
        return cls(float(scales[0]), int(zeros[0])) if scales is not None and len(scales) == 1 else cls(0.0, 0)

    def integers(self, x: np.ndarray, dtype: Any) -> np.ndarray:
        if not self.step or not np.issubdtype(dtype, np.integer):
            return x
        limits = np.iinfo(dtype)
        return np.clip(np.round(x / self.step) + self.zero_point, limits.min, limits.max).astype(dtype)

    def numbers(self, x: np.ndarray) -> np.ndarray:
        if not self.step or not np.issubdtype(x.dtype, np.integer):
            return x
        return (np.float32(self.step) * (x.astype(np.int64) - self.zero_point)).astype(np.float32)


def _builtin(model: Any, operator: Any) -> int:
    code = model.operatorCodes[operator.opcodeIndex]
    return max(code.builtinCode, code.deprecatedBuiltinCode)  # Older files only have the second one.


def _float_tensors(model: Any, definition: Any) -> tuple[str, ...]:
    """The names of tensors in a signature, and in the loops and branches of it."""
    types = tf_internal.lite_schema.TensorType
    ends = {each.tensorIndex for each in [*definition.inputs, *definition.outputs]}
    names: list[str] = []
    reached = [definition.subgraphIndex]
    for index in reached:  # It grows.
        graph = model.subgraphs[index]
        used = {i for operator in graph.operators for i in [*operator.inputs, *operator.outputs] if i >= 0}
        for i in sorted(used - ends if index == definition.subgraphIndex else used):
            if graph.tensors[i].type in (types.FLOAT16, types.FLOAT32, types.FLOAT64):
                names.append(tf.compat.as_str(graph.tensors[i].name))
        for operator in graph.operators:
            options = vars(operator.builtinOptions) if operator.builtinOptions is not None else {}
            called = [i for key, i in options.items() if key.lower().endswith("subgraphindex")]
            reached += [i for i in called if i not in reached]
    return tuple(names)


def _compared(
    name: str,
    function: Any,
    weights: Callable[[], Mapping[str, Any]],
    runner: Any,
    given: Mapping[str, Any],
    outputs: Mapping[str, _Quantizer],
) -> Iterator[Comparison]:
    _, specs = function.structured_input_signature
    for size in _inputs.SIZES:
        inputs = _inputs.generate(specs, size) | dict(given)
        expected = run_function(
            function, inputs, size, VALUES, lambda: {f"weight {k}": x for k, x in weights().items()}
        )
        if not isinstance(expected, str):
            break
    if isinstance(expected, str):
        yield Comparison(name, VALUES, NOT_COMPARED, None, f"the first model {expected}")
        return
    arrays = {key: tf.convert_to_tensor(x, specs[key].dtype).numpy() for key, x in inputs.items()}
    try:
        found = runner(arrays)
    except (RuntimeError, ValueError) as error:
        yield Comparison(name, VALUES, DIFFERENT, None, f"LiteRT raises {type(error).__name__}: {reason_of(error)}")
        return
    steps = [each for each in expected if each.startswith("weight ") and each in found]
    if steps:  # One line for all.
        yield max((_difference(name, each, expected[each], found[each], 0.0) for each in steps), key=_size)
    for what in [each for each in expected | found if each.startswith("output ")]:
        if what not in expected or what not in found or expected[what].shape != found[what].shape:
            only = f"is only in the {'second' if what in found else 'first'} model"
            got = f"has the shape {found[what].shape} in LiteRT" if what in expected and what in found else only
            yield Comparison(name, what, DIFFERENT, None, f"it {got}")
            continue
        yield _difference(name, what, expected[what], outputs[what].numbers(found[what]), outputs[what].step)


def _size(found: Comparison) -> float:
    return found.difference or 0.0


def _difference(name: str, what: str, expected: np.ndarray, found: np.ndarray, step: float) -> Comparison:
    difference = relative_difference(expected, found)
    rounding = _ROUNDING if np.issubdtype(expected.dtype, np.inexact) else 0.0
    verdict = EQUAL if expected.tobytes() == found.tobytes() else ROUNDING if difference <= rounding else DIFFERENT
    if not step or not expected.size:
        return Comparison(name, what, verdict, difference)
    gaps = np.abs(found.astype(np.float64) - expected) / step
    within = gaps <= _ONE_STEP
    if verdict != EQUAL:
        verdict = ROUNDING if within.all() else DIFFERENT
    return Comparison(
        *(name, what, verdict, difference),
        steps=float(np.max(gaps)),
        mean_steps=float(np.mean(gaps)),
        within_one_step=float(np.mean(within)),
        noise=math.sqrt(12 * np.mean(gaps**2)),
    )
