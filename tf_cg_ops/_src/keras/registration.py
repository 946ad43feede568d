"""What a Keras has to know by name, so that it finds the library's functions in the models that it loads."""

from typing import Any

from tf_cg_ops._src.keras.dispatch import classes, functions

# The first part of these names: "tf_cg_ops>reverse_gradient".
PACKAGE = "tf_cg_ops"


def register(keras: Any) -> None:
    """Tells a Keras about the public functions, and how decorated functions are saved."""
    for name, function in functions.items():
        keras.saving.register_keras_serializable(PACKAGE, name)(function)
    for kind in classes:
        keras.saving.register_keras_serializable(PACKAGE)(kind)
