"""Functions that LiteRT (TensorFlow Lite) runs with the ops that it has built in.

The converter tells which these are. It converts a function with TensorFlow's ops allowed, and the result lists its ops.
"""

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.rewrite.graph_copy import GraphCopy

from ._lite_ops import COMPOSITIONS

_API = "saved_model.add_gradients"
# What the converter writes before the name of an op of TensorFlow that LiteRT has not.
_FLEX = "Flex"


def with_lite_ops(function: Any, *, flex: bool) -> Any:
    """Replaces the ops of a concrete function that LiteRT has not by compositions of ops that it has.

    Args:
      function: A concrete function of Tensors.
      flex: Whether other ops of TensorFlow may stay, for a LiteRT with TensorFlow's ops.

    Returns:
      A concrete function with the same inputs, outputs and variables.

    Raises:
      ValueError: LiteRT cannot run an op.
    """
    handles = {id(variable.handle) for variable in function.graph.variables}
    for captured, inside in function.graph.captures:
        if captured.dtype == tf.resource and id(captured) not in handles:
            names = ", ".join(f"{op.type} ('{op.name}')" for op in inside.consumers())
            raise ValueError(f"{_API}: with lite=True, variables must be the only state, got what {names} reads.")
    specs = tf.nest.flatten(function.structured_input_signature)
    places: dict[str, str] = {}  # The first op of each type that was not replaced.

    def replace(_: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
        outputs = COMPOSITIONS[op.type](op, *inputs) if op.type in COMPOSITIONS else None
        if outputs is None:
            places.setdefault(op.type, op.name)
        return outputs if outputs is None or isinstance(outputs, list) else [outputs]

    def call(**tensors: tf.Tensor) -> Any:
        for variable in function.graph.variables:
            tf_internal.variable_accessed(variable)
        values = [*(tensors[spec.name] for spec in specs), *function.captured_inputs]
        copy = GraphCopy(zip(function.inputs, values, strict=True), replace, is_ordered=True)
        outputs = [tf.identity(output) for output in copy.outputs_of(function.graph)]
        return tf.nest.pack_sequence_as(function.structured_outputs, outputs)

    new = tf.function(call, autograph=False).get_concrete_function(**{spec.name: spec for spec in specs})
    _check(_ops_that_are_not_built_in(new), places, flex)
    return new


def _check(others: Sequence[str], places: Mapping[str, str], flex: bool) -> None:
    """Raises ValueError if one of the ops must not be there."""
    missing = [op for op in others if not (flex and op.startswith(_FLEX))]
    if not missing:
        return
    types = [op.removeprefix(_FLEX) for op in missing]
    names = ", ".join(f"{op} ('{places[op]}')" if op in places else op for op in types)
    remedies = []
    if any(op in COMPOSITIONS for op in types):
        remedies.append(
            "Convolutions and pools must have known sizes and the channels last, and batch normalization must be for "
            "inference."
        )
    if all(op.startswith(_FLEX) for op in missing):
        remedies.append("If your LiteRT includes TensorFlow's ops, write flex=True.")
    raise ValueError(
        " ".join([f"{_API}: with lite=True, all ops must be ones that LiteRT has, got {names}.", *remedies])
    )


def _ops_that_are_not_built_in(function: Any) -> list[str]:
    """The ops in the converted function that LiteRT has not built in; Flex stands before TensorFlow's."""
    module = tf.Module()
    module.variables_of_function = list(function.graph.variables)  # The converter reads them from the SavedModel.
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={"function": function})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["function"])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        converter.allow_custom_ops = True  # Such ops are in the result, too.
        converter.experimental_enable_resource_variables = True
        converted = converter.convert()
    return tf_internal.custom_ops_of_lite_model(converted)
