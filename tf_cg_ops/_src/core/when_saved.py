"""Makes saving a graph tell what the file cannot hold: only then does TensorFlow look up the gradients of some ops."""

import collections
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# TensorFlow calls such a gradient without its op, so each text needs a name of its own, which it then keeps for ever.
# Some texts differ in each trace. After this many of a kind, a text that tells less has to do.
_MOST = 1000
_names: collections.defaultdict[str, set[str]] = collections.defaultdict(set)
_lock = threading.Lock()


def gradient_that_tells(kind: str, text: str, otherwise: str, tell: Callable[[str], tf.Tensor]) -> str:
    """The name of a registered gradient that calls `tell` with the text, or after many texts with `otherwise`."""
    name = f"{kind}: {text}"
    with _lock:
        names = _names[kind]
        if name not in names and len(names) >= _MOST:
            name, text = kind, otherwise
        if name not in names:
            names.add(name)

            @tf.RegisterGradient(name)
            @tf.autograph.experimental.do_not_convert
            def gradient(*args: Any) -> Any:
                # A real gradient, in forward mode of a function, passes an op, whose own gradient is at another op.
                return [None] * len(args[0].inputs) if args and isinstance(args[0], tf.Operation) else tell(text)

    return name
