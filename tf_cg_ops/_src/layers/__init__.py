"""The Keras layers: their code in `mixins.py` and `recompute.py`, their classes in `keras3.py` and `keras2.py`."""

import importlib

from tf_cg_ops._src.keras import registration


def register_with_loaded_keras() -> None:
    """Registers the layers with each imported Keras, which can then load models with them."""
    for module in registration.loaded_modules():
        importlib.import_module(f".{module}", __name__)
