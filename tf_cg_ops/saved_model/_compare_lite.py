"""Compares the outputs of a SavedModel with those of a LiteRT (TensorFlow Lite) file, in steps of its quantizers."""

from __future__ import annotations

import functools
import math
import pathlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import tf_internal

from . import _inputs
from ._compare import DIFFERENT, EQUAL, NOT_COMPARED, ROUNDING, VALUES, Comparison, relative_difference, run_function
from ._graphs import raised_as_value_error, reason_of

_MAGIC = b"TFL3"  # The bytes 4 to 7 of the file.
_ONE_STEP = 1.001  # Both numbers of a difference are rounded.
_ROUNDING = 1e-5  # The largest difference of floating-point numbers, divided by the largest element.
_NAMED = 5  # How many float tensors a line names.


@dataclass(frozen=True)
class LiteComparison(Comparison):
    """An output of a signature in a SavedModel and in a LiteRT file, or the float tensors of a signature.

    Attributes:
      name: The signature.
      what: "output" with its name, or "float tensors".
      verdict: "equal, bit for bit", "equal up to rounding" (for a quantized output, within one step), "different" or
        "not compared".
      difference: The largest difference, divided by the largest element in the SavedModel; None without numbers.
      detail: Why there are no numbers.
      steps: The largest difference in steps of the output's quantizer; None for an output that is not quantized.
      mean_steps: The average of the differences in steps.
      within_one_step: The share of elements that differ by at most one step.
      noise: The root mean square of the differences, divided by that of rounding to steps, `step / sqrt(12)`.
      float_tensors: The names of the tensors that LiteRT computes with as floating-point numbers, besides inputs and
        outputs.
    """

    steps: float | None = None
    mean_steps: float | None = None
    within_one_step: float | None = None
    noise: float | None = None
    float_tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.steps is not None:
            return (
                f"{self.what} of {self.name}: {self.verdict} (at most {self.steps:.3g} steps, {self.mean_steps:.2g} on "
                f"average, {100 * (self.within_one_step or 0.0):.4g} % within one; {self.noise:.2g} times the noise of "
                "rounding)"
            )
        if self.what == _FLOATS:
            names = ", ".join([*self.float_tensors[:_NAMED], *["..."][: len(self.float_tensors) - _NAMED]])
            return f"{self.what} of {self.name}: {len(self.float_tensors) or 'none'}{names and f' ({names})'}"
        return super().__str__()


_FLOATS = "float tensors"


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
    except Exception as error:  # What reads a damaged file raises is not documented.
        raise ValueError(
            f"{api}: '{file}' must be a complete LiteRT model, got {reason_of(error)}. Convert it again."
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
            found.append(LiteComparison(name, VALUES, NOT_COMPARED, None, "the first model does not have it"))
            continue
        outputs = {
            f"output {tf.compat.as_str(each.name)}": _Quantizer.of(model, definition.subgraphIndex, each.tensorIndex)
            for each in definition.outputs
        }
        found += _compared(name, loaded.signatures[name], runners[name], inputs.get(name, {}), outputs)
        floats = _float_tensors(model, definition)
        found.append(LiteComparison(name, _FLOATS, NOT_COMPARED, None, float_tensors=floats))
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
        return runner(
            **{
                key: _Quantizer(*each["quantization"]).integers(inputs[key], each["dtype"])
                for key, each in wanted.items()
            }
        )

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
    graph = model.subgraphs[definition.subgraphIndex]
    ends = {each.tensorIndex for each in [*definition.inputs, *definition.outputs]}
    used = {i for operator in graph.operators for i in [*operator.inputs, *operator.outputs] if i >= 0} - ends
    types = tf_internal.lite_schema.TensorType
    floats = (types.FLOAT16, types.FLOAT32, types.FLOAT64)
    return tuple(tf.compat.as_str(graph.tensors[i].name) for i in sorted(used) if graph.tensors[i].type in floats)


def _compared(
    name: str, function: Any, runner: Any, given: Mapping[str, Any], outputs: Mapping[str, _Quantizer]
) -> Iterator[LiteComparison]:
    _, specs = function.structured_input_signature
    for size in _inputs.SIZES:
        made_up = {key: x for key, x in _inputs.generate(specs, size).items() if key not in given}
        tensors = {key: tf.convert_to_tensor(x, specs[key].dtype) for key, x in (made_up | dict(given)).items()}
        expected = run_function(function, tensors, size, VALUES)
        if not isinstance(expected, str):
            break
    if isinstance(expected, str):
        yield LiteComparison(name, VALUES, NOT_COMPARED, None, f"the first model {expected}")
        return
    try:
        found = {f"output {key}": x for key, x in runner({key: x.numpy() for key, x in tensors.items()}).items()}
    except (KeyError, RuntimeError, ValueError) as error:
        yield LiteComparison(name, VALUES, DIFFERENT, None, f"LiteRT raises {type(error).__name__}: {reason_of(error)}")
        return
    for what, quantizer in outputs.items():
        if what not in expected or expected[what].shape != found[what].shape:
            got = f"has the shape {found[what].shape}" if what in expected else "is only in the second model"
            yield LiteComparison(name, what, DIFFERENT, None, f"it {got}")
            continue
        yield _difference(name, what, expected[what], quantizer.numbers(found[what]), quantizer.step)


def _difference(name: str, what: str, expected: np.ndarray, found: np.ndarray, step: float) -> LiteComparison:
    difference = relative_difference(expected, found)
    verdict = EQUAL if expected.tobytes() == found.tobytes() else ROUNDING if difference <= _ROUNDING else DIFFERENT
    if not step or not expected.size:
        return LiteComparison(name, what, verdict, difference)
    gaps = np.abs(found.astype(np.float64) - expected) / step
    within = gaps <= _ONE_STEP
    if verdict != EQUAL:
        verdict = ROUNDING if within.all() else DIFFERENT
    return LiteComparison(
        *(name, what, verdict, difference),
        steps=float(np.max(gaps)),
        mean_steps=float(np.mean(gaps)),
        within_one_step=float(np.mean(within)),
        noise=math.sqrt(12 * np.mean(gaps**2)),
    )
