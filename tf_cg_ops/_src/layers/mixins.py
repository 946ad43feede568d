"""The code of the Keras layers, from which `keras3.py` and `keras2.py` make the classes for each Keras."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text
from tf_cg_ops._src.core.convert import to_axis, to_bool, to_real
from tf_cg_ops._src.core.types import Axis, Structure, TensorLike
from tf_cg_ops._src.embed_gradient.api import embed
from tf_cg_ops._src.keras.registration import argument_config, argument_from_config
from tf_cg_ops._src.ready_made import loss_scale as loss_scales
from tf_cg_ops._src.ready_made.clip import clipped, only_limit, to_limit
from tf_cg_ops._src.ready_made.scale import scaled
from tf_cg_ops._src.ready_made.straight_through import DERIVATIVES, with_surrogate
from tf_cg_ops._src.ready_made.watch import check_arguments, watched

_Base: Any = object  # In each class, a Keras layer follows it.


class _Layer(_Base):
    """The base of all layers: passes masks through, and holds a factor or limit that can change without retracing."""

    _api: str  # The name of the layer in messages.

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self._parameter: Any = None  # A weight of the layer, a Variable or a Tensor.
        self._initial_value: Any = None  # What the weight starts with.

    def _set_parameter(self, name: str, value: Any) -> None:
        """Turns a number or an array into a weight; keeps a Variable or a Tensor as it is."""
        if getattr(value, "trainable", False):
            raise ValueError(
                f"{self._api}: {name} must be a number or a Variable that is not trainable, got a trainable one, "
                "which would have no gradient. Make it with trainable=False."
            )
        static_value = None if hasattr(value, "assign") else tf.get_static_value(tf.convert_to_tensor(value))
        if static_value is None:
            self._parameter = value
            return
        # For a Python number, `static_value` would be rounded to float32.
        initial_value = np.asarray(static_value if tf.is_tensor(value) else value, np.float64)
        self._initial_value = initial_value.tolist()
        is_keras3 = "autocast" in inspect.signature(self.add_weight).parameters
        self._parameter = self.add_weight(
            name=name,
            shape=initial_value.shape,
            initializer=lambda shape, dtype=None, **_: tf.constant(initial_value, dtype),
            trainable=False,
            # Otherwise mixed precision casts the weight to 16 bits, where a large limit becomes infinite.
            **{"autocast" if is_keras3 else "experimental_autocast": False},
        )

    def _parameter_config(self, name: str) -> Any:
        """The parameter as numbers. For a weight: its initial value, because its value is saved with the weights."""
        if self._initial_value is not None:
            return self._initial_value
        static_value = tf.get_static_value(tf.convert_to_tensor(self._parameter))
        if static_value is None:
            raise ValueError(
                f"{self._api}: {name} must be a number or a Variable to be saved, got a Tensor of a graph. Pass the "
                "Tensor with each call, or assign its value to a Variable."
            )
        return static_value.tolist()

    def save_own_variables(self, store: Any) -> None:
        """Saves the value of the weight or Variable. The layer that loads it has a weight."""
        if hasattr(self._parameter, "assign"):
            store["0"] = np.asarray(tf.convert_to_tensor(self._parameter))

    def load_own_variables(self, store: Any) -> None:
        """Assigns the saved number."""
        if hasattr(self._parameter, "assign") and "0" in store:
            self._parameter.assign(np.asarray(store["0"]))

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """Returns the shape of the inputs."""
        return inputs_shape


class EmbedGradient(_Layer):
    """Returns `fx`, with `gx` as its derivative with respect to `x`.

    >>> import keras
    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> x = keras.Input([3])
    >>> h = tf_cg_ops.layers.EmbedGradient()([keras.ops.sign(x), 1 / (1 + x * x), x])
    >>> model = keras.Model(x, h)
    >>> v = tf.constant([[-1.0, 0.0, 3.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(v)
    ...     y = model(v)
    >>> tape.gradient(y, v, output_gradients=tf.constant([[1.0, 10.0, 100.0]])).numpy().tolist()
    [[0.5, 10.0, 10.0]]

    It is `tf_cg_ops.embed_gradient` as a layer. The function works in functional models, too.

    Args:
      axis: The event dimensions of `x`: None, an int or a sequence of ints.
      fx_gx_manually_stopped: Whether gradients flow into what computes `fx` and `gx`.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A list `[fx, gx, x]`. For several `x`, pass `gx` and `x` as lists of the same length.
    """

    _api = "layers.EmbedGradient"

    def __init__(self, *, axis: Axis = (), fx_gx_manually_stopped: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._axis = to_axis(self._api, axis)
        self._manually_stopped = to_bool(self._api, "fx_gx_manually_stopped", fx_gx_manually_stopped)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses several arguments with a better message than Keras's."""
        if len(args) > 1:
            raise TypeError(f"{self._api}: the inputs must be one list, got {len(args)} arguments. Write [fx, gx, x].")
        return super().__call__(*args, **kwargs)

    def call(self, inputs: Sequence[Structure]) -> tf.Tensor:
        """Returns `fx` with its derivative."""
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 3:
            raise _not_three_inputs(len(inputs) if isinstance(inputs, (list, tuple)) else None)
        fx, gx, x = inputs
        return embed(self._api, fx, gx, x, self._axis, self._manually_stopped)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """Returns the shape of `fx`."""
        is_one_shape = not isinstance(inputs_shape, (list, tuple)) or any(
            size is None or isinstance(size, int) for size in inputs_shape
        )
        if is_one_shape or len(inputs_shape) != 3:
            raise _not_three_inputs(None if is_one_shape else len(inputs_shape))
        return inputs_shape[0]

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        return super().get_config() | {"axis": self._axis, "fx_gx_manually_stopped": self._manually_stopped}


def _not_three_inputs(number: int | None) -> Exception:
    """The error for a list of this length, or for something else than a list."""
    got = "a single input" if number is None else f"a list of {number}"
    message = (
        f"layers.EmbedGradient: the inputs must be a list [fx, gx, x], got {got}. For several x, write "
        "[fx, [gx1, gx2], [x1, x2]]."
    )
    return TypeError(message) if number is None else ValueError(message)


class _GradientFactor(_Layer):
    """The base of the layers that multiply the gradient by a factor."""

    _reverse: bool

    def __init__(self, factor: TensorLike, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        to_real(self._api, "factor", factor, tf.float32)
        self._set_parameter("factor", factor)

    def call(self, inputs: TensorLike, factor: TensorLike = None) -> tf.Tensor:
        """Returns the input."""
        return scaled(self._api, inputs, self._parameter if factor is None else factor, self._reverse)

    # Keras passes the shape of each Tensor argument by name.
    def compute_output_shape(self, inputs_shape: Any, factor_shape: Any = None) -> Any:
        """Returns the shape of the inputs."""
        return inputs_shape

    @property
    def factor(self) -> TensorLike:
        """The weight, Variable or Tensor that holds the factor. An assigned number takes effect at once."""
        return self._parameter

    @factor.setter
    def factor(self, value: TensorLike) -> None:
        to_real(self._api, "factor", value, tf.float32)
        self._parameter.assign(value)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        return super().get_config() | {"factor": self._parameter_config("factor")}


class GradientReversal(_GradientFactor):
    """Returns its input, with the gradient reversed and scaled: `dx = -factor * dy`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> layer = tf_cg_ops.layers.GradientReversal(0.5)
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [-0.5, -5.0]

    Put it between features and a domain classifier: the classifier learns to tell the domains apart, and in the same
    step the features learn to hide them.

    You can change the factor without retracing: assign to `layer.factor`, make the layer with a Variable or a Tensor,
    or pass a factor with each call. A number becomes a weight that is not trained, but saved with the other weights.
    After loading, the layer has a weight of its own instead of your Variable.

    It is `tf_cg_ops.reverse_gradient` as a layer.

    Args:
      factor: A number, an array that broadcasts to the input, a Variable with `trainable=False`, or a Tensor.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor.
      factor: Replaces the layer's factor in this call: a number or a Tensor, for example from a schedule.

    Source: Ganin and Lempitsky, "Unsupervised domain adaptation by backpropagation" (2015), arXiv:1409.7495.
    """

    _api = "layers.GradientReversal"
    _reverse = True

    def __init__(self, factor: TensorLike = 1.0, **kwargs: Any) -> None:
        super().__init__(factor, **kwargs)


class GradientScale(_GradientFactor):
    """Returns its input, with the gradient scaled: `dx = factor * dy`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> layer = tf_cg_ops.layers.GradientScale(0.5)
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [0.5, 5.0]

    It is `tf_cg_ops.scale_gradient` as a layer. You can change the factor as in `GradientReversal`.

    Args:
      factor: A number, an array that broadcasts to the input, a Variable with `trainable=False`, or a Tensor.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor.
      factor: Replaces the layer's factor in this call: a number or a Tensor, for example from a schedule.
    """

    _api = "layers.GradientScale"
    _reverse = False

    # So that Python's message for a missing factor names this class.
    def __init__(self, factor: TensorLike, **kwargs: Any) -> None:
        super().__init__(factor, **kwargs)


class _UnderLossScaling(_Layer):
    """The base of the layers that need to know the loss scale of mixed precision."""

    def __init__(self, loss_scale: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not callable(loss_scale):  # The function may need a model that you make later.
            loss_scales.read(self._api, loss_scale)
        # A function, because Keras would track an optimizer or a Variable, and save it with the layer.
        self._loss_scale = lambda: loss_scale

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        loss_scale = self._loss_scale()
        if isinstance(loss_scale, (int, float, np.number)):
            loss_scale = float(loss_scale)
        elif not (loss_scale is None or callable(loss_scale)):
            raise ValueError(
                f"{self._api}: loss_scale must be a number or a function to be saved, got {text.describe(loss_scale)}. "
                "Pass a function that returns it, registered with @keras.saving.register_keras_serializable()."
            )
        return super().get_config() | {"loss_scale": argument_config(loss_scale)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes the layer from its configuration."""
        return cls(**config | {"loss_scale": argument_from_config(config.get("loss_scale"))})


class GradientClip(_UnderLossScaling):
    """Returns its input, with the gradient clipped by value, by norm or by global norm.

    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> layer = tf_cg_ops.layers.GradientClip(norm=2.5)
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([3.0, -4.0])).numpy().tolist()
    [1.5, -2.0]

    It is `tf_cg_ops.clip_gradient` as a layer. To change the limit without retracing, assign to `layer.limit`. An
    optimizer's `clipnorm` is something else: it clips the gradients of weights.

    **Under `mixed_float16`, pass the optimizer as `loss_scale`.** Keras multiplies the loss by some 32,768 there, and
    without `loss_scale` the layer clips the gradient of that loss, so almost nothing of it is left:

    >>> import keras
    >>> optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD())
    >>> layer = tf_cg_ops.layers.GradientClip(norm=2.5, loss_scale=optimizer)

    Compile the model with the same optimizer.

    Args:
      value: The limit for each element: a number, a Variable with `trainable=False`, or a Tensor.
      norm: The limit for the norm of each Tensor's gradient, given like `value`.
      global_norm: The limit for the norm over the gradients of all inputs, given like `value`.
      axis: With `norm`: the dimensions over which each norm is taken.
      loss_scale: What the loss is multiplied by, as in `tf_cg_ops.clip_gradient`. Keras saves a number, and a function
        by its name, but not an optimizer or a Variable.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor, or a nested structure of Tensors.
    """

    _api = "layers.GradientClip"

    def __init__(
        self,
        *,
        value: TensorLike = None,
        norm: TensorLike = None,
        global_norm: TensorLike = None,
        axis: Axis = None,
        loss_scale: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(loss_scale, **kwargs)
        # "value", "norm" or "global_norm".
        self._limit_argument, limit = only_limit(self._api, value, norm, global_norm, axis)
        to_limit(self._api, self._limit_argument, limit)
        self._axis = list(axis) if isinstance(axis, (list, tuple, range)) else axis
        self._set_parameter("limit", limit)

    @property
    def limit(self) -> TensorLike:
        """The weight, Variable or Tensor that holds the limit. An assigned number takes effect at once."""
        return self._parameter

    @limit.setter
    def limit(self, value: TensorLike) -> None:
        to_limit(self._api, self._limit_argument, value)
        self._parameter.assign(value)

    def call(self, inputs: Structure) -> Structure:
        """Returns the inputs."""
        return clipped(
            self._api, inputs, self._limit_argument, self._parameter, self._axis, loss_scale=self._loss_scale()
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        limit = self._parameter_config(self._limit_argument)
        return super().get_config() | {self._limit_argument: limit, "axis": self._axis}


class WatchGradient(_UnderLossScaling):
    """Returns its inputs, and prints, checks or records their gradient.

    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> seen = []
    >>> layer = tf_cg_ops.layers.WatchGradient(call=seen.append, name="hidden")
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([3.0, -4.0])).numpy().tolist(), seen[0].tolist()
    ([3.0, -4.0], [3.0, -4.0])

    It is `tf_cg_ops.watch_gradient` as a layer. The gradient goes by the name of the layer. Compile the model with
    `jit_compile=False`, because none of these options works under XLA. Under `mixed_float16`, pass the optimizer as
    `loss_scale`: otherwise `check_numerics` ends the training at the first overflow, from which the optimizer would
    have recovered with a smaller scale.

    Args:
      check_numerics: Whether to check that all elements are finite.
      print: Whether to print the gradient.
      call: A Python function that gets the gradient as a NumPy array and returns None. Keras saves it by its name:
        register it with `@keras.saving.register_keras_serializable()`.
      loss_scale: What the loss is multiplied by, as in `tf_cg_ops.watch_gradient`. Keras saves a number, and a function
        by its name, but not an optimizer or a Variable.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor, or a nested structure of Tensors.
    """

    _api = "layers.WatchGradient"

    def __init__(
        self,
        *,
        check_numerics: bool = False,
        print: bool = False,
        call: Callable[[np.ndarray], None] | None = None,
        loss_scale: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(loss_scale, **kwargs)
        check_arguments(self._api, self.name, check_numerics, print, call)
        self._check_numerics, self._print = check_numerics, print
        self._record = call

    def call(self, inputs: Structure) -> Structure:
        """Returns the inputs."""
        options = (self._check_numerics, self._print, self._record)
        return watched(self._api, inputs, self.name, *options, loss_scale=self._loss_scale())

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        options = {"check_numerics": self._check_numerics, "print": self._print}
        return super().get_config() | options | {"call": argument_config(self._record)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes the layer from its configuration."""
        return super().from_config(config | {"call": argument_from_config(config["call"])})


# Keras can save these names, but not the functions.
_FUNCTIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "sign": tf.sign,
    "round": tf.round,
    "floor": tf.floor,
    "ceil": tf.math.ceil,
    "heaviside": lambda x: x > 0,
}


class StraightThrough(_Layer):
    """Applies a function that has no useful derivative, with the derivative of a surrogate.

    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> layer = tf_cg_ops.layers.StraightThrough("sign", "hard_tanh")
    >>> x = tf.constant([-2.0, -0.5, 0.5])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    ([-1.0, -1.0, 1.0], [0.0, 10.0, 100.0])

    It is `tf_cg_ops.straight_through` as a layer.

    Args:
      f: `"sign"`, `"round"`, `"floor"`, `"ceil"`, `"heaviside"` (1 above 0, else 0), or a function. Keras saves your
        own function by its name: register it with `@keras.saving.register_keras_serializable()`. Functions of
        TensorFlow, `keras.ops` and `keras.activations` need no registration.
      surrogate: `"identity"`, `"hard_tanh"`, `"sigmoid"`, `"fast_sigmoid"`, or a function whose derivative to use, such
        as `keras.activations.gelu`.
      slope: How quickly the derivative of a named surrogate falls off.
      derivative: Replaces the surrogate: a function that returns the derivative, one number per element or a single
        Python or NumPy number.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor.
    """

    _api = "layers.StraightThrough"

    def __init__(
        self,
        f: str | Callable[[tf.Tensor], TensorLike],
        surrogate: str | Callable[[tf.Tensor], TensorLike] = "identity",
        *,
        slope: float = 1.0,
        derivative: Callable[[tf.Tensor], TensorLike] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(f, str) and f not in _FUNCTIONS:
            advice = f"That is a surrogate: surrogate={f!r}." if f in DERIVATIVES else "Pass the function itself."
            raise ValueError(
                f"{self._api}: f must be one of {text.quoted(_FUNCTIONS)}, or a function, got {f!r}. {advice}"
            )
        applied = _FUNCTIONS[f] if isinstance(f, str) else f
        self._apply = with_surrogate(self._api, applied, surrogate, slope, derivative)
        self._f, self._surrogate, self._derivative, self._slope = f, surrogate, derivative, float(slope)

    def call(self, inputs: TensorLike) -> tf.Tensor:
        """Applies the function."""
        return self._apply(inputs)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        names = {id(function): name for name, function in _FUNCTIONS.items()}
        functions = {
            "f": names.get(id(self._f), self._f),
            "surrogate": self._surrogate,
            "derivative": self._derivative,
        }
        saved = {key: argument_config(value) for key, value in functions.items()}
        return super().get_config() | saved | {"slope": self._slope}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes the layer from its configuration."""
        functions = ("f", "surrogate", "derivative")
        return cls(**config | {key: argument_from_config(config[key]) for key in functions})
