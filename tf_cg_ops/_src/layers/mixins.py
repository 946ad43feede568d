"""The layers, written once for both Kerases: `layer` makes a class of either out of each."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core.convert import to_real
from tf_cg_ops._src.embed_gradient.api import embed_gradient
from tf_cg_ops._src.keras import errors
from tf_cg_ops._src.keras.dispatch import config_of, function_of
from tf_cg_ops._src.ready_made.clip import clip_gradient, to_limit
from tf_cg_ops._src.ready_made.scale import reverse_gradient, scale_gradient
from tf_cg_ops._src.ready_made.straight_through import straight_through, to_derivative


class _Layer:
    """What the layers share: masks pass through them, and numbers in them may change without a new trace."""

    keras: Any  # The package.
    add_weight: Callable[..., Any]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self._number: Any = None  # What the computation reads: a weight of the layer, a Variable or a Tensor.
        self._initial: Any = None  # What the weight started with.

    def _hold(self, name: str, value: Any) -> None:
        """Keeps a number, or an array of them, as a weight, and a Variable or a Tensor as it is."""
        if getattr(value, "trainable", False):
            raise ValueError(
                f"layers.{type(self).__name__}: {name} has no gradient, and would count among what is trained; "
                "expected a number or a Variable that is not trainable, got one that is. Make it with "
                "trainable=False."
            )
        known = None if hasattr(value, "assign") else tf.get_static_value(tf.convert_to_tensor(value))
        if known is None:
            self._number = value
            return
        # As it was given: a Tensor of Python's number would be rounded to float32.
        start = np.asarray(known if tf.is_tensor(value) else value, np.float64)
        self._initial = start.tolist()
        self._number = self.add_weight(
            name=name,
            shape=start.shape,
            initializer=lambda shape, dtype=None, **_: tf.constant(start, dtype),
            trainable=False,
            # In mixed precision it is not to be read in 16 bits, in which a limit may be infinite.
            **{self._no_autocast: False},
        )

    def _held(self, name: str) -> Any:
        """The number for the configuration; a weight's own value is saved with the weights."""
        if self._initial is not None:
            return self._initial
        known = tf.get_static_value(tf.convert_to_tensor(self._number))
        if known is None:
            raise ValueError(
                f"layers.{type(self).__name__}: {name} has no value to be saved; expected a number or a Variable, "
                "got a Tensor of a graph. Pass the Tensor with each call, or hold its value in a Variable."
            )
        return known.tolist()

    @property
    def _no_autocast(self) -> str:
        """What this Keras calls the argument that keeps a weight in its own precision."""
        return "autocast" if "autocast" in inspect.signature(self.add_weight).parameters else "experimental_autocast"

    def save_own_variables(self, store: Any) -> None:
        """Saves the number wherever it is held: a layer that is made from the configuration has a weight for it."""
        if hasattr(self._number, "assign"):
            store["0"] = np.asarray(tf.convert_to_tensor(self._number))

    def load_own_variables(self, store: Any) -> None:
        """Sets the number."""
        if hasattr(self._number, "assign") and "0" in store:
            self._number.assign(np.asarray(store["0"]))

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """That of the inputs."""
        return inputs_shape

    def _config(self) -> dict[str, Any]:
        return super().get_config()  # type: ignore[misc]


class EmbedGradient(_Layer):
    """Returns `fx` with `gx` as its derivative with respect to `x`: `tf_cg_ops.embed_gradient` as a layer.

    Relation to `tf_cg_ops.embed_gradient`: the same formula, shapes and errors. In a functional model the function
    does as well.

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

    Args:
      axis: The dimensions of `x` that are the domain of one function: None, an int or a sequence of ints.
      fx_gx_manually_stopped: Whether gradients flow into the graph behind `fx` and `gx`.
      **kwargs: Those of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A list `[fx, gx, x]`; `gx` and `x` may be lists of the same length.
    """

    def __init__(
        self, axis: int | Sequence[int] | None = (), fx_gx_manually_stopped: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._axis = axis if axis is None or isinstance(axis, int) else tuple(axis)
        self._manually_stopped = fx_gx_manually_stopped

    def call(self, inputs: Sequence[Any]) -> tf.Tensor:
        """The value."""
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 3:
            got = f"{len(inputs)} of them" if isinstance(inputs, (list, tuple)) else type(inputs).__name__
            raise ValueError(errors.EMBED_INPUTS.format(got=got))
        fx, gx, x = inputs
        return embed_gradient(fx, gx, x, self._axis, self._manually_stopped)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """That of `fx`."""
        is_one = not isinstance(inputs_shape, (list, tuple)) or any(
            size is None or isinstance(size, int) for size in inputs_shape
        )
        if is_one or len(inputs_shape) != 3:
            got = "one Tensor" if is_one else f"{len(inputs_shape)} of them"
            raise ValueError(errors.EMBED_INPUTS.format(got=got))
        return inputs_shape[0]

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        axis = list(self._axis) if isinstance(self._axis, tuple) else self._axis
        return self._config() | {"axis": axis, "fx_gx_manually_stopped": self._manually_stopped}


class _Scaling(_Layer):
    """The factor of the gradient."""

    _function: Callable[..., Any]

    def __init__(self, factor: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        to_real(self._function.__name__, "factor", factor, tf.float32)
        self._hold("factor", factor)

    def call(self, inputs: Any, factor: Any = None) -> tf.Tensor:
        """The input."""
        return self._function(inputs, self._number if factor is None else factor)

    # Keras looks for the names of all arguments that are Tensors.
    def compute_output_shape(self, inputs_shape: Any, factor_shape: Any = None) -> Any:
        """That of the inputs."""
        return inputs_shape

    @property
    def factor(self) -> Any:
        """The weight, Variable or Tensor that holds the factor. A number assigned to it takes effect at once."""
        return self._number

    @factor.setter
    def factor(self, value: Any) -> None:
        to_real(self._function.__name__, "factor", value, tf.float32)
        self._number.assign(value)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return self._config() | {"factor": self._held("factor")}


class GradientReversal(_Scaling):
    """Returns its input, with the gradient reversed and scaled: `dx = -factor * dy`.

    Between features and a domain classifier, it makes one training step out of two aims: the classifier learns to tell
    the domains apart, and the features to leave it nothing to tell them by.

    The factor changes without a new trace: assign to `layer.factor`, give a Variable or a Tensor, or pass a factor with
    each call. A number becomes a weight that is not trained, and saved with the others; a Variable comes back as a
    number.

    Relation to `tf_cg_ops.reverse_gradient`: the same formula and errors.

    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> layer = tf_cg_ops.layers.GradientReversal(0.5)
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [-0.5, -5.0]

    Args:
      factor: A number, an array that broadcasts to the input, a Variable that is not trainable, or a Tensor.
      **kwargs: Those of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor.
      factor: Instead of that of the layer, for this call: a number or Tensor, such as a schedule's.

    Source: Ganin and Lempitsky, "Unsupervised domain adaptation by backpropagation" (2015), arXiv:1409.7495.
    """

    _function = staticmethod(reverse_gradient)

    def __init__(self, factor: Any = 1.0, **kwargs: Any) -> None:
        super().__init__(factor, **kwargs)


class GradientScale(_Scaling):
    """Returns its input, with the gradient scaled: `dx = factor * dy`.

    The factor changes without a new trace, as that of `GradientReversal` does.

    Relation to `tf_cg_ops.scale_gradient`: the same formula and errors.

    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> layer = tf_cg_ops.layers.GradientScale(0.5)
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()
    [0.5, 5.0]

    Args:
      factor: A number, an array that broadcasts to the input, a Variable that is not trainable, or a Tensor.
      **kwargs: Those of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor.
      factor: Instead of that of the layer, for this call: a number or Tensor, such as a schedule's.
    """

    _function = staticmethod(scale_gradient)


class GradientClip(_Layer):
    """Returns its input, with a limit on the gradient that comes back: by value, by norm or by global norm.

    The limit changes without a new trace, as the factor of `GradientReversal` does: assign to `layer.limit`.

    Relation to `tf_cg_ops.clip_gradient`: the same formulas and errors. An optimiser's `clipnorm` limits the gradients
    of weights, when they are added up already.

    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> layer = tf_cg_ops.layers.GradientClip(norm=2.5)
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([3.0, -4.0])).numpy().tolist()
    [1.5, -2.0]

    Args:
      value: The limit of each element: a number, a Variable that is not trainable, or a Tensor.
      norm: The limit of the norm of each tensor's gradient, likewise.
      global_norm: The limit of the norm of the gradients of all inputs together, likewise.
      axes: With `norm`: the dimensions that one norm is taken over.
      **kwargs: Those of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor, or a nested structure of Tensors.
    """

    def __init__(
        self,
        value: Any = None,
        norm: Any = None,
        global_norm: Any = None,
        axes: int | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        given = {"value": value, "norm": norm, "global_norm": global_norm}
        # The function knows what is wrong with them.
        clip_gradient(tf.zeros([1]), **given, axes=axes and -1)
        [(self._way, limit)] = [(way, limit) for way, limit in given.items() if limit is not None]
        self._axes = list(axes) if isinstance(axes, (list, tuple)) else axes
        self._hold("limit", limit)

    @property
    def limit(self) -> Any:
        """The weight, Variable or Tensor that holds the limit. A number assigned to it takes effect at once."""
        return self._number

    @limit.setter
    def limit(self, value: Any) -> None:
        to_limit(self._way, value)
        self._number.assign(value)

    def call(self, inputs: Any) -> Any:
        """The inputs."""
        return clip_gradient(inputs, **{self._way: self._number}, axes=self._axes)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return self._config() | {self._way: self._held(self._way), "axes": self._axes}


# Functions that Keras does not save by itself, and whose names it can.
_FUNCTIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "sign": tf.sign,
    "round": tf.round,
    "floor": tf.floor,
    "ceil": tf.math.ceil,
    "heaviside": lambda x: x > 0,
}


class StraightThrough(_Layer):
    """Applies a function without a useful derivative, with that of a surrogate.

    Relation to `tf_cg_ops.straight_through`: the same surrogates and errors.

    >>> import tensorflow as tf
    >>> import tf_cg_ops.layers
    >>> layer = tf_cg_ops.layers.StraightThrough("sign", "hard_tanh")
    >>> x = tf.constant([-2.0, -0.5, 0.5])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = layer(x)
    >>> y.numpy().tolist(), tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0, 100.0])).numpy().tolist()
    ([-1.0, -1.0, 1.0], [0.0, 10.0, 100.0])

    Args:
      function: `"sign"`, `"round"`, `"floor"`, `"ceil"`, `"heaviside"` (1 above 0, else 0), or a function. One of your
        own is saved by its name: register it with `@keras.saving.register_keras_serializable()`.
      surrogate: `"identity"`, `"hard_tanh"`, `"sigmoid"`, `"fast_sigmoid"`, or a function that returns the derivative.
      slope: How quickly the surrogate's derivative falls off.
      **kwargs: Those of every layer: `name`, `dtype`.

    Call arguments:
      inputs: A Tensor.
    """

    def __init__(
        self,
        function: str | Callable[..., Any],
        surrogate: str | Callable[..., Any] = "identity",
        slope: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(function, str) and function not in _FUNCTIONS:
            known = ", ".join(map(repr, _FUNCTIONS))
            raise ValueError(
                f"layers.StraightThrough: the function is not known by this name; expected one of {known}, or a "
                f"function, got {function!r}. Pass the function itself."
            )
        to_derivative(surrogate, slope)
        self._function, self._surrogate, self._slope = function, surrogate, float(slope)
        applied = _FUNCTIONS[function] if isinstance(function, str) else function
        self._apply = straight_through(applied, surrogate, slope)

    def call(self, inputs: Any) -> tf.Tensor:
        """The function of the input."""
        return self._apply(inputs)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        names = {id(function): name for name, function in _FUNCTIONS.items()}
        functions = {"function": names.get(id(self._function), self._function), "surrogate": self._surrogate}
        saved = {key: value if isinstance(value, str) else config_of(value) for key, value in functions.items()}
        return self._config() | saved | {"slope": self._slope}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The layer again."""
        saved = {key: config[key] for key in ("function", "surrogate")}
        return cls(
            **config | {key: value if isinstance(value, str) else function_of(value) for key, value in saved.items()}
        )
