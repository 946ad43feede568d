"""The layers that apply a function of this library, as mixins: `layers_of` makes the classes of each Keras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import misplaced_calls, text
from tf_cg_ops._src.core.convert import to_axis, to_bool, to_real, to_tensors
from tf_cg_ops._src.core.types import Axis, Structure, TensorLike
from tf_cg_ops._src.embed_gradient.api import embed
from tf_cg_ops._src.keras.registration import argument_from_config, function_config
from tf_cg_ops._src.ready_made import loss_scale as loss_scales
from tf_cg_ops._src.ready_made.clip import clipped, only_limit, to_limit
from tf_cg_ops._src.ready_made.fake_quant import Options, quantized
from tf_cg_ops._src.ready_made.scale import scaled
from tf_cg_ops._src.ready_made.straight_through import DERIVATIVES, with_surrogate
from tf_cg_ops._src.ready_made.watch import check_arguments, watched

_Base: Any = object  # In each class, a Keras layer follows it.


class _Layer(_Base):
    """The base of all layers: passes masks through, and saves its arguments."""

    keras: Any  # The package.
    _api: str  # The name of the layer in messages.

    def __init__(self, arguments: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        loss_scale = arguments.get("loss_scale")
        if not callable(loss_scale):  # The function may need a model that you make later.
            loss_scales.read(self._api, loss_scale)
        # A function, because Keras would wrap a list, and track an optimizer or a Variable and save it with the layer.
        self._arguments = lambda: arguments

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        return super().get_config() | {name: self._saved(name, value) for name, value in self._arguments().items()}

    def _saved(self, name: str, value: Any) -> Any:
        """What Keras saves for an argument: numbers, or a name."""
        if callable(value):
            return function_config(value)
        if name == "loss_scale" and not (value is None or isinstance(value, (int, float, np.number))):
            raise ValueError(
                f"{self._api}: loss_scale must be a number or a function to be saved, got {text.describe(value)}. "
                "Pass a function that returns it, registered with @keras.saving.register_keras_serializable()."
            )
        return np.asarray(tf.convert_to_tensor(value) if hasattr(value, "assign") else value).tolist()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Makes the layer from its configuration."""
        return super().from_config({name: argument_from_config(value) for name, value in config.items()})

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """Returns the shape of the inputs."""
        return inputs_shape


class EmbedGradient(_Layer):
    """Returns `fx`, with `gx` as its derivative with respect to `x`.

    >>> import keras
    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> x = keras.Input([3])
    >>> h = cg.layers.EmbedGradient()([keras.ops.sign(x), 1 / (1 + x * x), x])
    >>> model = keras.Model(x, h)
    >>> v = tf.constant([[-1.0, 0.0, 3.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(v)
    ...     y = model(v)
    >>> tape.gradient(y, v, output_gradients=tf.constant([[1.0, 10.0, 100.0]])).numpy().tolist()
    [[0.5, 10.0, 10.0]]

    It is `tf_cg_ops.embed_gradient` as a layer, with the same formula, shapes and errors. The function works in
    functional models, too.

    Args:
      axis: The event dimensions of `x`: None, an int or a sequence of ints.
      fx_gx_manually_stopped: Whether gradients flow into what computes `fx` and `gx`.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A list `[fx, gx, x]`. For several `x`, pass `gx` and `x` as lists of the same length.
    """

    _api = "layers.EmbedGradient"

    @misplaced_calls.explains(_api, "Write layer = layers.EmbedGradient(axis=()), then layer([fx, gx, x]).")
    def __init__(self, *, axis: Axis = (), fx_gx_manually_stopped: bool = False, **kwargs: Any) -> None:
        stopped = to_bool(self._api, "fx_gx_manually_stopped", fx_gx_manually_stopped)
        super().__init__({"axis": to_axis(self._api, axis), "fx_gx_manually_stopped": stopped}, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses several arguments with a better message than Keras's."""
        if len(args) > 1:
            raise TypeError(f"{self._api}: the inputs must be one list, got {len(args)} arguments. Write [fx, gx, x].")
        return super().__call__(*args, **kwargs)

    def call(self, inputs: Sequence[Structure]) -> tf.Tensor:
        """Returns `fx` with its derivative."""
        return embed(self._api, *_three(inputs), **self._arguments())

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """Returns the shape of `fx`."""
        return _three(inputs_shape)[0]


def _three(inputs: Any) -> Sequence[Any]:
    """The inputs `[fx, gx, x]`, or their shapes; TypeError or ValueError for something else."""
    is_list = isinstance(inputs, (list, tuple)) and not all(size is None or isinstance(size, int) for size in inputs)
    if not is_list or len(inputs) != 3:
        got = f"a list of {len(inputs)}" if is_list else "a single input"
        raise (ValueError if is_list else TypeError)(
            f"layers.EmbedGradient: the inputs must be a list [fx, gx, x], got {got}. For several x, write "
            "[fx, [gx1, gx2], [x1, x2]]."
        )
    return inputs


class _WithNumber(_Layer):
    """The base of the layers with a factor or limit. A Variable holds it, so it can change without retracing."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses to replace the Variable, and what would look like it and change nothing."""
        if name in ("factor", "limit", "value", "norm", "global_norm"):
            own = "factor" if hasattr(self, "factor") else "limit"
            raise AttributeError(f"{self._api}: a Variable holds {name}. Write layer.{own}.assign({value!r}).")
        super().__setattr__(name, value)

    def _set_number(self, name: str, value: Any) -> None:
        """Turns a number or an array into a weight; keeps a Variable as it is."""
        if getattr(value, "trainable", False):
            raise ValueError(
                f"{self._api}: {name} must be a number or a Variable that is not trainable, got a trainable one, "
                "which would have no gradient. Make it with trainable=False."
            )
        self._number = value
        if hasattr(value, "assign"):
            return
        # For a Python number, a Tensor's value would be rounded to float32.
        start = tf.get_static_value(value) if tf.is_tensor(value) else value
        if start is None:
            raise ValueError(
                f"{self._api}: {name} must be a number or a Variable, got a Tensor of a graph. Assign its value to a "
                "Variable."
            )
        start = np.asarray(start, np.float64)
        self._arguments()[name] = start.tolist()  # A file has its present value among the weights.
        self._number = self.add_weight(
            name=name,
            shape=start.shape,
            initializer=lambda shape, dtype=None, **_: tf.constant(start, dtype),
            trainable=False,
            # Otherwise mixed precision casts the weight to 16 bits, where a large limit becomes infinite.
            **{"autocast" if self.keras.__name__ == "keras" else "experimental_autocast": False},
        )

    def save_own_variables(self, store: Any) -> None:
        """Saves the value of the weight or Variable. The layer that loads it has a weight."""
        store["0"] = np.asarray(tf.convert_to_tensor(self._number))

    def load_own_variables(self, store: Any) -> None:
        """Assigns the saved number."""
        self._number.assign(np.asarray(store["0"]))


class _GradientFactor(_WithNumber):
    """The base of the layers that multiply the gradient by a factor."""

    _reverse: bool

    def __init__(self, factor: TensorLike, **kwargs: Any) -> None:
        super().__init__({"factor": factor}, **kwargs)
        to_real(self._api, "factor", factor, tf.float32)
        self._set_number("factor", factor)

    def call(self, inputs: TensorLike, factor: TensorLike = None) -> tf.Tensor:
        """Returns the input."""
        return scaled(self._api, inputs, self._number if factor is None else factor, self._reverse)

    @property
    def factor(self) -> Any:
        """The Variable that holds the factor."""
        return self._number


class ReverseGradient(_GradientFactor):
    """Returns its input, with the gradient reversed and scaled: `dx = -factor * dy`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> layer = cg.layers.ReverseGradient(0.5)
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [-0.5, -5.0]

    Put it between features and a domain classifier: the classifier learns to tell the domains apart, and in the same
    step the features learn to hide them.

    You can change the factor without retracing: write `layer.factor.assign(2.0)`, make the layer with your own
    Variable, or pass a factor with each call. A number becomes a weight that is not trained, but saved with the other
    weights. After loading, the layer has a weight of its own instead of your Variable.

    It is `tf_cg_ops.reverse_gradient` as a layer, with the same formula, shapes and errors.

    Args:
      factor: A number, an array that broadcasts to the input, or a Variable with `trainable=False`.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor.
      factor: Replaces the layer's factor in this call: a number or a Tensor, for example from a schedule.

    Source: Ganin and Lempitsky, "Unsupervised domain adaptation by backpropagation" (2015), arXiv:1409.7495.
    """

    _api, _reverse = "layers.ReverseGradient", True

    @misplaced_calls.explains(_api, "Write layer = layers.ReverseGradient(factor=1.0, **kwargs), then layer(x).")
    def __init__(self, factor: TensorLike = 1.0, **kwargs: Any) -> None:
        super().__init__(factor, **kwargs)


class ScaleGradient(_GradientFactor):
    """Returns its input, with the gradient scaled: `dx = factor * dy`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> layer = cg.layers.ScaleGradient(0.5)
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [0.5, 5.0]

    It is `tf_cg_ops.scale_gradient` as a layer, with the same formula, shapes and errors. You can change the factor as
    in `ReverseGradient`.

    Args:
      factor: A number, an array that broadcasts to the input, or a Variable with `trainable=False`.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor.
      factor: Replaces the layer's factor in this call: a number or a Tensor, for example from a schedule.
    """

    _api, _reverse = "layers.ScaleGradient", False

    @misplaced_calls.explains(_api, "Write layer = layers.ScaleGradient(factor, **kwargs), then layer(x).")
    def __init__(self, factor: TensorLike, **kwargs: Any) -> None:
        super().__init__(factor, **kwargs)


class ClipGradient(_WithNumber):
    """Returns its input, with the gradient clipped by value, by norm or by global norm.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> layer = cg.layers.ClipGradient(norm=2.5)
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([3.0, -4.0])).numpy().tolist()
    [1.5, -2.0]

    It is `tf_cg_ops.clip_gradient` as a layer, with the same formula, shapes and errors. To change the limit without
    retracing, write `layer.limit.assign(2.0)`. An optimizer's `clipnorm` clips the gradients of weights instead.

    **Under `mixed_float16`, pass the optimizer as `loss_scale`.** Keras multiplies the loss by some 32,768 there, and
    without `loss_scale` the layer clips the gradient of that loss, so almost nothing of it is left:

    >>> import keras
    >>> optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD())
    >>> layer = cg.layers.ClipGradient(norm=2.5, loss_scale=optimizer)

    Compile the model with the same optimizer.

    Args:
      value: The limit for each element: a number or a Variable with `trainable=False`.
      norm: The limit for the norm of each Tensor's gradient, given like `value`.
      global_norm: The limit for the norm over the gradients of all inputs, given like `value`.
      axis: With `norm`: the dimensions over which each norm is taken.
      loss_scale: What the loss is multiplied by, as in `tf_cg_ops.clip_gradient`. Keras saves a number, and a function
        by its name, but not an optimizer or a Variable.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor, or a nested structure of Tensors.
    """

    _api = "layers.ClipGradient"

    @misplaced_calls.explains(_api, "Name the limit, as in layers.ClipGradient(norm=1.0).")
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
        name, limit = only_limit(self._api, value, norm, global_norm, axis, kwargs)
        super().__init__({name: limit, "axis": axis, "loss_scale": loss_scale}, **kwargs)
        to_limit(self._api, name, limit)
        self._mode = name
        self._set_number(name, limit)

    @property
    def limit(self) -> Any:
        """The Variable that holds the limit."""
        return self._number

    def call(self, inputs: Structure) -> Structure:
        """Returns the inputs."""
        arguments = self._arguments()
        return clipped(self._api, inputs, self._mode, self._number, arguments["axis"], arguments["loss_scale"])


class WatchGradient(_Layer):
    """Returns its inputs, and prints, checks or records their gradient.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> seen = []
    >>> layer = cg.layers.WatchGradient(callback=seen.append, name="hidden")
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([3.0, -4.0])).numpy().tolist(), seen[0].tolist()
    ([3.0, -4.0], [3.0, -4.0])

    It is `tf_cg_ops.watch_gradient` as a layer, with the same formula, shapes and errors. The gradient goes by the name
    of the layer. Compile the model with `jit_compile=False`, because none of these options works under XLA. Under
    `mixed_float16`, pass the optimizer as `loss_scale`: otherwise `check_numerics` ends the training at the first
    overflow, from which the optimizer would have recovered with a smaller scale.

    Args:
      log: Whether to print the gradient.
      check_numerics: Whether to check that all elements are finite.
      callback: A Python function that gets the gradient as a NumPy array and returns None. Keras saves it by its name:
        register it with `@keras.saving.register_keras_serializable()`.
      loss_scale: What the loss is multiplied by, as in `tf_cg_ops.watch_gradient`. Keras saves a number, and a function
        by its name, but not an optimizer or a Variable.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor, or a nested structure of Tensors.
    """

    _api = "layers.WatchGradient"

    @misplaced_calls.explains(_api, "Name the options, as in layers.WatchGradient(check_numerics=True, name='hidden').")
    def __init__(
        self,
        *,
        log: bool = False,
        check_numerics: bool = False,
        callback: Callable[[np.ndarray], None] | None = None,
        loss_scale: Any = None,
        **kwargs: Any,
    ) -> None:
        options = {"log": log, "check_numerics": check_numerics, "callback": callback}
        super().__init__(options | {"loss_scale": loss_scale}, **kwargs)
        check_arguments(self._api, self.name, *options.values())

    def call(self, inputs: Structure) -> Structure:
        """Returns the inputs."""
        return watched(self._api, inputs, self.name, *self._arguments().values())


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
    >>> import tf_cg_ops as cg
    >>> layer = cg.layers.StraightThrough("sign", "hard_tanh")
    >>> x = tf.constant([-2.0, -0.5, 0.5])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    ([-1.0, -1.0, 1.0], [0.0, 10.0, 100.0])

    It is `tf_cg_ops.straight_through` as a layer, with the same formula, shapes and errors.

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

    @misplaced_calls.explains(_api, "Write layer = layers.StraightThrough(f, surrogate), then layer(x).")
    def __init__(
        self,
        f: str | Callable[[tf.Tensor], TensorLike],
        surrogate: str | Callable[[tf.Tensor], TensorLike] = "identity",
        *,
        slope: float = 1.0,
        derivative: Callable[[tf.Tensor], TensorLike] | None = None,
        **kwargs: Any,
    ) -> None:
        options = {"surrogate": surrogate, "slope": slope, "derivative": derivative}
        super().__init__({"f": f} | options, **kwargs)
        if isinstance(f, str) and f not in _FUNCTIONS:
            advice = f"That is a surrogate: surrogate={f!r}." if f in DERIVATIVES else "Pass the function itself."
            raise ValueError(
                f"{self._api}: f must be one of {text.quoted(_FUNCTIONS)}, or a function, got {f!r}. {advice}"
            )
        self._apply = with_surrogate(self._api, _FUNCTIONS[f] if isinstance(f, str) else f, **options)

    def call(self, inputs: TensorLike) -> tf.Tensor:
        """Applies the function."""
        return self._apply(inputs)


class FakeQuant(_Layer):
    """Rounds its input as an int8 model does, to multiples of a scale that the layer learns or measures.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> layer = cg.layers.FakeQuant(bits=4, scale="calibrated")
    >>> layer(tf.constant([0.3, -0.9, 3.5]), training=True).numpy().tolist(), float(layer.scale.numpy())
    ([0.5, -1.0, 3.5], 0.5)
    >>> layer(tf.constant([0.3, -0.9, 9.0])).numpy().tolist()
    [0.5, -1.0, 3.5]

    It is `tf_cg_ops.fake_quant` as a layer, with the same formula, shapes and errors. `layer.scale` is its scale. Put
    it after the input and each activation of a model, and call it on the kernels: `docs/quantization.md` shows both.

    The first call with `training=True`, such as the first step of `fit`, sets the scale, and each element of it at its
    first batch of finite numbers that are not all zeros. Until then the layer returns nan in inference. A `"learned"`
    scale starts at `2 * mean(abs(x)) / sqrt(L)`, where `L` is the level that is farthest from zero, and the layer
    trains the logarithm of the factor by which it changes. A `"calibrated"` one is the moving average of the scale that
    just holds the batch's largest and smallest number, and is not trained. For kernels pass `momentum=0.0` with it: a
    moving average follows a kernel too slowly, and numbers outside of the range get no gradient. If the layer is not
    `trainable`, the scale stays as it is.

    The gradient of a learned scale is a sum over the whole input. Adam does not mind. For SGD pass a `gradient_factor`,
    as in `tf_cg_ops.fake_quant`.

    Args:
      bits: From 2 to 16. This and the other arguments of `tf_cg_ops.fake_quant` are described there.
      axis: The dimension of the channels, for one scale per channel. By default all have one scale.
      scale: `"learned"` or `"calibrated"`.
      momentum: How much of the moving average each batch keeps, from 0 to 1.
      **kwargs: Arguments of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor, or the kernel of the layer that calls this one.
      training: Whether to set or move the scale. Keras passes it on.

    Sources: Esser et al. (2020), arXiv:1902.08153, for the learned scale; Jain et al. (2020), arXiv:1903.08066, for its
    logarithm; Jacob et al. (2018), arXiv:1712.05877, for the calibrated one.
    """

    _api = "layers.FakeQuant"

    @misplaced_calls.explains(_api, "Name the options, as in layers.FakeQuant(bits=8, axis=-1).")
    def __init__(
        self,
        bits: int = 8,
        axis: int | None = None,
        *,
        zero_point: int = 0,
        narrow_range: bool = False,
        rounding: str = "up",
        scale: str = "learned",
        momentum: float = 0.99,
        gradient_factor: float = 1.0,
        **kwargs: Any,
    ) -> None:
        options = Options.of(self._api, bits, zero_point, narrow_range, axis, rounding, gradient_factor)
        if scale not in ("learned", "calibrated"):
            raise ValueError(f"{self._api}: scale must be 'learned' or 'calibrated', got {text.describe(scale)}.")
        if isinstance(momentum, bool) or not isinstance(momentum, (int, float, np.number)) or not 0 <= momentum <= 1:
            raise ValueError(f"{self._api}: momentum must be a number from 0 to 1, got {text.describe(momentum)}.")
        arguments = {"bits": bits, "axis": axis, "zero_point": zero_point, "narrow_range": narrow_range}
        how = {"rounding": rounding, "scale": scale, "momentum": momentum, "gradient_factor": gradient_factor}
        super().__init__(arguments | how, **kwargs)
        self._options, self._is_learned, self._momentum = options, scale == "learned", momentum

    def build(self, inputs_shape: Any) -> None:
        """Makes the weights."""
        if getattr(inputs_shape, "rank", 0) is None:
            raise ValueError(f"{self._api}: the input must have a known rank. Set its shape with tf.ensure_shape.")
        shape, axis = tuple(inputs_shape), self._options.axis
        if axis is not None and (not -len(shape) <= axis < len(shape) or shape[axis] is None):
            raise ValueError(
                f"{self._api}: axis must name a dimension of known size, got {axis} for the shape {shape} of the input."
            )
        is_keras3, shape = self.keras.__name__ == "keras", () if axis is None else (shape[axis],)
        options: dict[str, Any] = {"autocast" if is_keras3 else "experimental_autocast": False}
        options |= {"shape": shape, "initializer": "zeros", "dtype": "float32"}
        mean = "mean" if is_keras3 else tf.VariableAggregation.MEAN
        self._measured = self.add_weight(name="measured_scale", trainable=False, aggregation=mean, **options)
        if self._is_learned:
            # Not the scale itself: a step of Adam is as large as the learning rate, and a scale is often smaller.
            self._log_factor = self.add_weight(
                name="log_factor", constraint=lambda value: tf.clip_by_value(value, -10.0, 10.0), **options
            )
        super().build(inputs_shape)

    @property
    def scale(self) -> tf.Tensor:
        """The scale as a Tensor; 0 where it is not set."""
        if not self.built:
            raise AttributeError(f"{self._api}: scale must be read after the first call, which makes it.")
        measured = tf.convert_to_tensor(self._measured)
        return measured * tf.exp(self._log_factor) if self._is_learned else measured

    def call(self, inputs: TensorLike, training: bool | None = None) -> tf.Tensor:
        """Rounds the inputs."""
        [inputs] = to_tensors(self._api, ["inputs"], [inputs])
        found = self._measure(tf.cast(inputs, tf.float32)) if training and self.trainable else None
        scale = self.scale
        # A channel that only had zeros takes any scale in training, and the largest later. If that is 0, it gets nan.
        unset = tf.reduce_max(scale) if found is None else tf.where(found == 0, 1.0, np.float32(np.nan))
        scale = tf.where(scale > 0, scale, unset)
        return quantized(self._api, inputs, scale, self._options)

    def _measure(self, x: tf.Tensor) -> tf.Tensor:
        """Sets or moves the scale, and returns the one of this batch."""
        low, high, axis = self._options.low, self._options.high, self._options.axis
        others = None if axis is None else [i for i in range(x.shape.rank) if i != axis % x.shape.rank]
        if self._is_learned:
            found = 2 * tf.reduce_mean(tf.abs(x), others) / max(high, -low) ** 0.5
        else:
            found = tf.reduce_max(tf.maximum(x / (high or np.inf), x / (low or -np.inf)), others)
        before = tf.convert_to_tensor(self._measured)
        usable = tf.where((found > 0) & tf.math.is_finite(found), found, before)
        moved = before if self._is_learned else self._momentum * before + (1 - self._momentum) * usable
        self._measured.assign(tf.where(before > 0, moved, usable))
        return found
