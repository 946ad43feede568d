"""The Keras layers.

`mixins.py` and `recompute.py` have their code, `keras3.py` and `keras2.py` make a class of each for either Keras.
"""

import importlib

from tf_cg_ops._src.keras import registration


def register_with_loaded_keras() -> None:
    """Registers the layers with each Keras that is loaded, so that it can load models with them."""
    for module in registration.loaded_modules():
        importlib.import_module(f".{module}", __name__)
