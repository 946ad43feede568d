"""Functions that LiteRT (TensorFlow Lite) runs with its built-in ops.

The converter tells which these are. It converts a function with TensorFlow's ops allowed, and the result lists its ops.
"""

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import text, tf_internal
from tf_cg_ops._src.graphs.graph_copy import GraphCopy

from ._lite_ops import COMPOSITIONS
from ._replace_ops import OUTPUT_NAMES
from ._training import concrete

_API = "saved_model.add_gradients"
# What the converter writes before the name of an op of TensorFlow that LiteRT lacks.
_FLEX = "Flex"
FUNCTION = "tf_cg_ops_function"  # A signature. It must not be the name of a variable.
WEIGHT_SIGNATURES = ("weights", "set_weights")
# An attribute of a model that Keras saved, but not of one that it exported.
_OF_KERAS = "_default_save_signature"


def with_lite_ops(
    function: Any, variables: Sequence[tf.Variable], others: Mapping[str, Any] | None = None, *, flex: bool
) -> tuple[Any, bytes]:
    """Replaces the ops of a concrete function that LiteRT lacks by compositions of its built-in ops.

    Args:
      function: A concrete function of Tensors.
      variables: All variables that it captures. More do no harm.
      others: Concrete functions that are converted beside it, by name.
      flex: Whether other ops of TensorFlow may stay, for a LiteRT with TensorFlow's ops.

    Returns:
      A concrete function with the same inputs, outputs and captured variables, and a LiteRT model with it as the
      signature FUNCTION beside the others.

    Raises:
      ValueError: LiteRT cannot run an op, or the function has other state than variables.
    """
    for captured, inside in function.graph.captures:
        is_variable = any(captured is variable.handle for variable in variables)
        if captured.dtype == tf.resource and not is_variable:
            names = ", ".join(f"{op.type} ('{op.name}')" for op in inside.consumers())
            raise ValueError(f"{_API}: for LiteRT, variables must be the only state, got what {names} reads.")
    specs = function.structured_input_signature[1]
    places: dict[str, str] = {}  # The first op of each type that stays.

    def replace(_: GraphCopy, op: Any, inputs: list[tf.Tensor]) -> Sequence[tf.Tensor] | None:
        outputs = COMPOSITIONS[op.type](op, *inputs) if op.type in COMPOSITIONS else None
        if outputs is None:
            places.setdefault(op.type, op.name)
        return outputs if outputs is None or isinstance(outputs, list) else [outputs]

    def call(**tensors: tf.Tensor) -> Any:
        values = [*(tensors[key] for key in sorted(specs)), *function.captured_inputs]
        copy = GraphCopy(zip(function.inputs, values, strict=True), replace, is_ordered=True, names=True)
        outputs = [tf.identity(output) for output in copy.outputs_of(function.graph)]
        return tf.nest.pack_sequence_as(function.structured_outputs, outputs)

    new = concrete(call, specs)
    # The converter accepts some of the ops that stay, and makes a wrong program of them.
    uncovered = [_FLEX + op for op in places if op in COMPOSITIONS]
    content = _convert({FUNCTION: new, **(others or {})}, variables)
    _check(list(dict.fromkeys([*uncovered, *tf_internal.custom_ops_of_lite_model(content)])), places, flex)
    return new, content


def _convert(functions: Mapping[str, Any], variables: Sequence[tf.Variable]) -> bytes:
    """A LiteRT model of the functions, which may contain ops that LiteRT lacks; Flex stands before TensorFlow's."""
    module = tf.Module()
    module.state = list(variables)  # Only what is saved is converted.
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=dict(functions))
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(functions))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        converter.allow_custom_ops = True  # Ops that LiteRT cannot run at all are then listed, too.
        converter.experimental_enable_resource_variables = True
        return converter.convert()


def _check(others: Sequence[str], places: Mapping[str, str], flex: bool) -> None:
    """Raises ValueError if one of the ops must not be there."""
    missing = [op for op in others if not (flex and op.startswith(_FLEX))]
    if not missing:
        return
    types = list(dict.fromkeys(op.removeprefix(_FLEX) for op in missing))
    names = ", ".join(f"{op} ('{places[op]}')" if op in places else op for op in types)
    message = f"{_API}: for LiteRT, all ops must be ones that LiteRT has, got {names}."
    if any(op in COMPOSITIONS and op not in OUTPUT_NAMES for op in types):
        message += (
            " Convolutions, pools and resizing must have known sizes, channels last and no groups, and batch "
            "normalization must be for inference."
        )
    if all(op.startswith(_FLEX) for op in missing):
        flex_option = text.written("flex=True", "--flex")
        message += f" If your LiteRT includes TensorFlow's ops, write {flex_option}."
    raise ValueError(message)


def weight_signatures(variables: Mapping[str, tf.Variable]) -> dict[str, Any]:
    """Concrete functions that return the values of these variables, and that set them and return them."""

    def weights() -> dict[str, tf.Tensor]:
        return {name: tf.identity(variable) for name, variable in variables.items()}

    def set_weights(**values: tf.Tensor) -> dict[str, tf.Tensor]:
        for name, variable in variables.items():
            variable.assign(values[name])
        return weights()

    specs = {name: tf.TensorSpec(each.shape, each.dtype, name) for name, each in variables.items()}
    return {"weights": concrete(weights, {}), "set_weights": concrete(set_weights, specs)}


def let_the_converter_see_all_signatures(meta_graph: Any) -> None:
    """Gives a model that Keras exported an attribute without which the converter only takes its default signature.

    See `tf.lite.TFLiteConverter.from_saved_model`. It only asks whether the attribute is there; this one is empty.
    """
    nodes = meta_graph.object_graph_def.nodes
    names = {child.local_name for child in nodes[0].children}
    if "serve" in names and _OF_KERAS not in names:
        nodes[0].children.add(local_name=_OF_KERAS, node_id=len(nodes))
        empty = nodes.add().user_object
        empty.identifier = "_generic_user_object"
        empty.version.producer = empty.version.min_consumer = 1
