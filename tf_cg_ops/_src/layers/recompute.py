"""The layer `Recompute`, as mixins: `layers_of` makes the classes of each Keras."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, signature, text, tf_internal
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import keras_internal
from tf_cg_ops._src.keras.registration import argument_config, argument_from_config
from tf_cg_ops._src.layers import layer_call
from tf_cg_ops._src.memory.checkpoint_name import check_keep
from tf_cg_ops._src.memory.plan import Plan, check_memory
from tf_cg_ops._src.memory.recompute_grad import Recomputation, check_plan_arguments

_API = "layers.Recompute"

Layer: TypeAlias = Any  # A layer of either Keras, neither of which is imported here.


class _CallOfTheLayer:
    """`call` with the signature of the wrapped layer, where Keras looks for `training`, masks and names.

    Not a property, because tf_keras assigns another `call` when it loads a SavedModel.
    """

    def __get__(self, wrapper: Any, owner: Any = None) -> Any:
        @tf_internal.autograph_artifact
        def call(*args: Any, **kwargs: Any) -> Any:
            return wrapper._call_layer(args, kwargs)

        signature = getattr(wrapper, "_signature", None)
        if signature is not None:
            call.__signature__ = signature  # type: ignore[attr-defined]
        return call


# AutoGraph must not start here: the layer inside is translated as it would be alone.
@tf_internal.autograph_artifact
class Recompute:
    """Wraps a layer whose gradient runs it again, so that training keeps only its inputs.

    Use it for blocks of a model that needs too much memory, or with `memory` for the whole model. To train that, write
    `keras.Sequential([cg.layers.Recompute(model, memory="auto")])`.

    >>> import keras
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> block = keras.Sequential([keras.layers.Dense(64, activation="gelu"), keras.layers.Dense(2)])
    >>> layer = cg.layers.Recompute(block)
    >>> x = tf.ones([1, 2])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> dx = tape.gradient(y, x, output_gradients=tf.constant([[1.0, 10.0]]))
    >>> dx.shape, len(layer.weights)
    (TensorShape([1, 2]), 4)

    Values, gradients, state, masks and losses stay the same. Keras's own random layers draw the same numbers, and
    TensorFlow's random ops draw others. Each gradient costs one more forward pass.

    The layer is traced, in eager mode in each call under a tape, so an attribute that you change, such as the rate of a
    Dropout, has its effect from the next call on.

    Args:
      layer: A layer or model of this Keras.
      keep: Values inside the layer that are kept instead of computed again: a list of names that
        `tf_cg_ops.checkpoint_name` gave, or a function of a `tf.Operation`. Keras saves a function by its name:
        register it with `@keras.saving.register_keras_serializable()`.
      memory: Cuts the layer, for a whole model: `"auto"`, bytes as an int or as in `"2 GiB"`, or a share of
        the memory of the plain gradient as in `0.5`. `Recompute(model, memory=0.5).plan(x)` returns the plan for
        training with `x`. See `tf_cg_ops.recompute_grad`.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      The call arguments of the layer.

    Raises:
      TypeError: `layer` is not a layer of this Keras; `keep` or `memory` has another type.
      ValueError: When called: as in `tf_cg_ops.recompute_grad`.
      NotImplementedError: When called: the layer has a stateful op that can neither be kept nor run again.

    Unlike `keras.RematScope` alone, it works in `fit` and with dropout, and is saved with the model.
    """

    keras: Any  # The package.
    layer: Layer

    call = _CallOfTheLayer()

    @misplaced_calls.explains(_API, "Write layer = layers.Recompute(inner, memory='auto'), then layer(x).")
    def __init__(
        self,
        layer: Layer,
        *,
        keep: Sequence[str] | Callable[[tf.Operation], bool] = (),
        memory: str | int | float | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(layer, self.keras.layers.Layer):
            package = self.keras.__name__
            remedy = "Use tf_cg_ops.recompute_grad for a function, and the Recompute of the same Keras for a layer."
            if isinstance(layer, (list, tuple)):
                remedy = f"Write Recompute({package}.Sequential(layers))."
            elif isinstance(layer, type):
                remedy = misplaced_calls.use_instance(layer)
            raise TypeError(
                f"{_API}: layer must be a {package}.layers.Layer or a model of {package}, got {_describe(layer)}. "
                f"{remedy}"
            )
        self._signature = inspect.signature(layer.call)  # Keras reads the signature of `call` in its own __init__.
        self._keep = check_keep(keep, _API)
        self._memory = None if memory is None else check_memory(memory, _API)
        # The layer casts its inputs itself.
        super().__init__(layer, **{"autocast": False, **kwargs})  # type: ignore[call-arg]
        keras_internal.forward_arguments(self, layer)

    def __getattr__(self, name: str) -> Any:
        """What resets a stateful layer, if the layer has that, or an error that helps for what only models have."""
        if name in ("stateful", "reset_state", "reset_states"):
            return getattr(self.layer, name)
        if hasattr(self.keras.Model, name) and not hasattr(type(self), name):
            raise AttributeError(
                f"{_API}: a layer has no '{name}'. Write model = {self.keras.__name__}.Sequential([Recompute(...)]), "
                f"then model.{name}. The layer inside is Recompute(...).layer."
            )
        return self.__getattribute__(name)  # Raises the error again, which can be a property's own.

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Returns the plan for a call with these arguments in training, Tensors or their `tf.TensorSpec`."""
        if self._memory is None:
            raise ValueError(f"{_API}: plan needs memory=: write Recompute(layer, memory='auto').")
        check_plan_arguments(_API, args)
        keras_internal.clear_losses(self)  # As in each call.
        call = layer_call.traceable(self.layer, self, args, {"training": True, **kwargs})
        return self._recomputation().plan(*call, {})

    def _call_layer(self, args: Any, kwargs: Any) -> Any:
        return layer_call.recompute(self._recomputation(), self.layer, self, args, kwargs)

    def _recomputation(self) -> Recomputation:
        return Recomputation(without_gradient_function(_API), self._keep, self._memory)

    def compute_output_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output shape of the layer."""
        return self.layer.compute_output_shape(*args, **kwargs)

    def compute_mask(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the mask of the layer, or None if it does not support masks."""
        return self.layer.compute_mask(*args, **kwargs) if self.layer.supports_masking else None

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        keep = self._keep if callable(self._keep) else list(self._keep)
        return super().get_config() | {"keep": argument_config(keep), "memory": self._memory}  # type: ignore[misc]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Makes the layer from its configuration."""
        keep = argument_from_config(config.get("keep", ()))
        return super().from_config({**config, "keep": keep}, custom_objects)  # type: ignore[misc]


class _OfKeras3(Recompute):
    @property
    def metrics(self) -> list[Any]:
        """The layer's metrics. Keras leaves out a model's, because the model around it has its own loss."""
        return [] if isinstance(self.layer, self.keras.Model) else super().metrics  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Builds the layer first, if that needs more than the shape of the first argument."""
        if not self.layer.built:
            parameters = inspect.signature(self.layer.build).parameters
            if keras_internal.has_default_build(self.layer):  # Then a call builds it.
                signature.traced(_API, self.compute_output_spec, "to build it", self.layer.name)(*args, **kwargs)
            elif len(parameters) > 1:  # Named as Keras names them.
                arguments = self._signature.bind(*args, **kwargs).arguments
                shapes = {f"{n}_shape": self.keras.tree.map_structure(_shape, arguments[n]) for n in arguments}
                self.layer.build(**{name: shapes[name] for name in parameters if name in shapes})
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns KerasTensors with the shapes and dtypes of the outputs."""
        return self.keras.Operation.compute_output_spec(self, *args, **kwargs)


class _OfKeras2(Recompute):
    def build(self, input_shape: Any = None) -> None:
        """Builds the layer, except a model in a replica of a strategy, which its first call builds.

        The `build` of a model calls it in another graph, where replicas cannot be merged.
        """
        is_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        if is_replica and isinstance(self.layer, self.keras.Model):
            self.keras.layers.Layer.build(self, input_shape)
        else:
            super().build(input_shape)  # type: ignore[misc]


keras_internal.has_mask_of_call(_OfKeras2)
MIXINS = {"keras": _OfKeras3, "tf_keras": _OfKeras2}


def _shape(leaf: Any) -> tuple[int | None, ...] | None:
    return tuple(leaf.shape) if hasattr(leaf, "shape") else None


def _describe(value: Any) -> str:
    if isinstance(value, type) or not callable(value):
        return text.describe_type(value)
    if not hasattr(value, "add_weight"):
        return f"the function '{text.name_of(value)}'"
    return f"{text.describe_type(value)} of {type(value).__module__.partition('.')[0]}"
