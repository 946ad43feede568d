"""The Keras layers: written once as mixins, and made a class of each Keras."""

import importlib

from tf_cg_ops._src.keras import dispatch


def register_with_loaded_keras() -> None:
    """Lets each Keras that is loaded find the layers in the models that it opens."""
    for module in dispatch.loaded_modules():
        importlib.import_module(f".{module}", __name__)
