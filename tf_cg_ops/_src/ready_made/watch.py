"""`watch_gradient`: an identity that shows, checks or records the gradient."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, python_op, slices, text, tf_internal
from tf_cg_ops._src.custom_gradient.call import call_with_gradient
from tf_cg_ops._src.custom_gradient.wording import without_gradient_function
from tf_cg_ops._src.keras import dispatch

_API = "watch_gradient"
# Of each dimension, as many elements at its beginning and at its end are printed.
_PRINTED = 3

_Call = Callable[[np.ndarray], Any]


@dispatch.takes_keras_tensors(_API)
def watch_gradient(
    x: Any, name: str, *, check_numerics: bool = False, print: bool = False, call: _Call | None = None
) -> Any:
    """Returns `x`, and shows, checks or records the gradient that passes.

    The gradient with respect to `x` is the upstream gradient itself: `dx = dy`, to the bit. Choose one or more of the
    options; as soon as the gradient is computed,

    - `print` prints its shape, norm, smallest and largest element, and some elements to standard error;
    - `check_numerics` raises an error that holds the name if an element is infinite or no number;
    - `call` is called with it as a NumPy array: `call=history.append` keeps all gradients, and a function may keep only
      their norms.

    A gradient that nobody asks for is not computed and shows nothing. If `x` is used several times, its gradient is the
    sum; watch one use to see its part. The slices of a `tf.gather` pass as they are; you see the dense gradient.

    | | eager mode, `tf.function`, TensorFlow 1 graphs, loops, Keras | XLA | SavedModel |
    |---|---|---|---|
    | `print` | yes | an error | yes |
    | `check_numerics` | yes | an error | yes |
    | `call` | yes | an error | an error |

    Under `tf.vectorized_map`, and so in Jacobians, `print` and `check_numerics` see all members at once, and `call` one
    after the other; TensorFlow also runs the first member alone. Forward mode computes the gradient for an upstream of
    its own, which is shown, too.

    Compared with TensorFlow: `tf.debugging.enable_check_numerics` checks values and gradients of all ops, and
    `tf.debugging.check_numerics` only a value. PyTorch calls such a function a hook; here it cannot change the
    gradient: for that, use `tf_cg_ops.custom_gradient`.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> seen = []
    >>> x = tf.constant([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = tf.reduce_sum(cg.watch_gradient(tf.square(x), "squares", call=seen.append) * [3.0, 4.0])
    >>> tape.gradient(y, x).numpy().tolist(), seen[0].tolist()
    ([6.0, 16.0], [3.0, 4.0])

    Args:
      x: A Tensor or Variable of dtype float16, bfloat16, float32, float64, complex64 or complex128, or a nested
        structure of them.
      name: The name of the gradient in messages. In a structure, the position of the tensor follows it: `name[0]`.
      check_numerics: Whether to check that all elements are finite.
      print: Whether to print the gradient.
      call: A Python function of a NumPy array, whose value is None. In a structure, each tensor's gradient is a call.

    Returns:
      The values of `x`, in its structure.

    Raises:
      TypeError: A dtype has no gradient; `name` is not a string, `check_numerics` or `print` not a bool, or `call` not
        callable. When a gradient is computed in eager mode: `call` returned something.
      ValueError: `name` is empty; `x` holds no Tensor; none of `check_numerics`, `print` and `call` is given.
      NotImplementedError: When a gradient is asked for: it would be compiled by XLA.
      tf.errors.InvalidArgumentError: When a gradient is computed: `check_numerics` found one that is not finite.
      tf.errors.OpError: When a gradient is computed in a graph: `call` raised an exception or returned something.
    """
    return watched(_API, x, name, check_numerics, print, call)


@tf_internal.autograph_artifact
def watched(api: str, x: Any, name: str, check_numerics: bool, print_it: bool, call: _Call | None) -> Any:
    """`watch_gradient`, with the name `api` in messages."""
    check_arguments(api, name, check_numerics, print_it, call)
    leaves = tf.nest.flatten(x)
    if not leaves:
        raise ValueError(
            f"{api}: x holds no Tensor; expected at least one, got {text.describe(x)}. Pass the values whose "
            "gradients to watch."
        )
    is_nested = tf.nest.is_nested(x)
    arguments = [f"x[{i}]" if is_nested else "x" for i in range(len(leaves))]
    names = [f"{name}[{i}]" if is_nested else name for i in range(len(leaves))]
    tensors = [convert.to_tensors(api, [arg], [leaf])[0] for arg, leaf in zip(arguments, leaves, strict=True)]

    wording = without_gradient_function(api)

    def identity(*tensors: tf.Tensor) -> Any:
        def grad_fn(*dys: Any) -> list[Any]:
            return [_watch(api, *row, check_numerics, print_it, call) for row in zip(names, dys, strict=True)]

        return list(tensors), grad_fn

    return tf.nest.pack_sequence_as(x, call_with_gradient(identity, tensors, {}, wording=wording))


def check_arguments(api: str, name: Any, check_numerics: Any, print_it: Any, call: Any) -> None:
    """TypeError or ValueError if one of them is none that `watch_gradient` takes."""
    if not isinstance(name, str):
        raise TypeError(
            f"{api}: name is not a string; expected the name of the gradient in messages, got {text.describe(name)}. "
            "Pass a string."
        )
    if not name:
        raise ValueError(f"{api}: name is empty; expected the name of the gradient in messages, got ''. Pass a name.")
    for argument, value in (("check_numerics", check_numerics), ("print", print_it)):
        if not isinstance(value, bool):
            raise TypeError(
                f"{api}: {argument} is not a bool; expected True or False, got {text.describe(value)}. Pass a Python "
                "bool."
            )
    if call is not None and not callable(call):
        raise TypeError(
            f"{api}: call is not callable; expected a function of an array, or None, got {text.describe(call)}. Pass, "
            "for example, the method append of a list."
        )
    if call is None and not (check_numerics or print_it):
        raise ValueError(
            f"{api}: say what to do with the gradient of {name!r}: pass check_numerics=True, print=True or a function "
            "as call."
        )


def _watch(api: str, name: str, dy: Any, check_numerics: bool, print_it: bool, call: _Call | None) -> Any:
    """The gradient, after what is to be done with it."""
    passed = slices.kept(dy)
    effects: list[Any] = []  # The value waits for them.
    with tf.name_scope(re.sub(r"\W", "_", f"{_API}_{name}", flags=re.ASCII)), tf_internal.stop_recording():
        # Rows of slices that name one position twice are summed: only the sum is the gradient.
        dense = tf.convert_to_tensor(dy) if check_numerics or print_it or call is not None else None
        if check_numerics or print_it:
            _refuse_xla(api, name, "print" if print_it else "check_numerics")
        if print_it:
            effects += _print(name, dense)
        if call is not None:
            effects += _call(api, name, dense, call)
        # Last, so that the others still show what it refuses.
        if check_numerics:
            with tf.control_dependencies(effects):
                message = f"{api}: the gradient of {name!r} is not finite"
                effects += [tf.debugging.check_numerics(part, message) for part in _real_parts(dense)]
    with tf.control_dependencies(effects):
        if isinstance(passed, tf.IndexedSlices):
            return tf.IndexedSlices(tf.identity(passed.values), passed.indices, passed.dense_shape)
        return tf.identity(passed)


def _real_parts(values: tf.Tensor) -> list[tf.Tensor]:
    return [tf.math.real(values), tf.math.imag(values)] if values.dtype.is_complex else [values]


def _refuse_xla(api: str, name: str, argument: str) -> None:
    """XLA has no printing, and drops checks silently."""
    if not tf.executing_eagerly() and tf_internal.is_traced_for_xla(tf.compat.v1.get_default_graph()):
        raise NotImplementedError(
            f"{api}: XLA does not compile {argument}; expected a gradient of {name!r} outside of XLA, got one in a "
            "function with jit_compile=True. Compile a Keras model with jit_compile=False, and leave jit_compile=True "
            "out of every tf.function around it."
        )


def _print(name: str, values: tf.Tensor) -> list[tf.Operation]:
    """Prints the size of a gradient and some of its elements."""
    parts = [tf.cast(part, tf.float64) for part in _real_parts(values)]
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(part)) for part in parts]))
    shown = [f"gradient of {name!r}: shape", tf.shape(values), "norm", norm]
    if values.dtype.is_complex:
        values = tf.strings.as_string(values, shortest=True)  # tf.print shows no complex numbers.
    else:
        shown += ["smallest", tf.reduce_min(values), "largest", tf.reduce_max(values)]
    printed = tf.print(*shown, "elements", values, summarize=_PRINTED)
    return [] if tf.executing_eagerly() else [printed]


def _call(api: str, name: str, dy: tf.Tensor, call: _Call) -> list[tf.Tensor]:
    """Calls the user's function with a copy: the array may be the memory of a Tensor."""

    def call_with_array(array: np.ndarray) -> list[np.ndarray]:
        returned = call(np.array(array))
        if returned is not None:
            raise TypeError(
                f"{api}: {text.name_of(call)!r} returned something for the gradient of {name!r}, which it cannot "
                f"change; expected None, got {text.describe_type(returned)}. To change a gradient, use "
                "tf_cg_ops.custom_gradient."
            )
        return [np.array(True)]  # tf.vectorized_map cannot loop over an op without a result.

    if tf.executing_eagerly():
        call_with_array(dy.numpy())
        return []
    subject, advice = f"{api}: {text.name_of(call)!r}", "Leave call out of a graph that is to run elsewhere."
    return python_op.call_python(subject, advice, call_with_array, [dy], [tf.TensorSpec([], tf.bool)])
