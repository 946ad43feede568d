"""The Keras layers: written once, in `identity.py` and `recompute.py`, and made into classes of each Keras here."""

import functools
from typing import Any

from tf_cg_ops._src.keras import registration
from tf_cg_ops._src.layers import identity, recompute

# In the alphabetical order of their names.
_LAYERS: tuple[Any, ...] = (
    identity.ClipGradient,
    identity.EmbedGradient,
    identity.FakeQuant,
    recompute.Recompute,
    identity.ReverseGradient,
    identity.ScaleGradient,
    identity.StraightThrough,
    identity.WatchGradient,
)


@functools.cache
def layers_of(package: str) -> list[Any]:
    """The layers, in the alphabetical order of their names, as classes of "keras" or "tf_keras" that it can load."""
    keras = registration.module_of(package).keras
    module = "tf_cg_ops.layers.tf_keras" if package == "tf_keras" else "tf_cg_ops.layers"
    wrapper = recompute.MIXINS[package], keras.layers.Wrapper
    made = []
    for layer in _LAYERS:
        bases = wrapper if layer is recompute.Recompute else (layer, keras.layers.Layer)
        # Documentation tools read `__doc__`, which classes do not inherit. Files and pickles name the module.
        made.append(type(layer.__name__, bases, {"__doc__": layer.__doc__, "__module__": module, "keras": keras}))
    return list(map(keras.saving.register_keras_serializable(registration.PACKAGE), made))


def register_with_loaded_keras() -> None:
    """Registers the layers with each imported Keras, which can then load models with them."""
    for module in registration.loaded_modules():
        layers_of(module.keras.__name__)
