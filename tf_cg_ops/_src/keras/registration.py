"""The names by which Keras saves functions and classes of this library and finds them again."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# The first part of these names: "tf_cg_ops>reverse_gradient".
PACKAGE = "tf_cg_ops"

# The module here for each Keras package. Importing it registers the functions with that Keras.
MODULES = {"keras": "keras3", "tf_keras": "keras2"}

# The functions that take KerasTensors, by their names in files.
functions: dict[str, Callable[..., Any]] = {}
# The decorators by name. Called with the function inside and the saved options, they make the same function again.
makers: dict[str, Callable[..., Any]] = {}
# The classes that Keras saves by name.
classes: list[type] = []


def register(keras: Any) -> None:
    """Registers the public functions, and the classes of decorated functions, with a Keras."""
    for name, function in functions.items():
        keras.saving.register_keras_serializable(PACKAGE, name)(function)
    for each in classes:
        keras.saving.register_keras_serializable(PACKAGE)(each)


def module_of(package: str) -> Any:
    """The module here for a Keras package."""
    return importlib.import_module(f".{MODULES[package]}", __package__)


def loaded_modules() -> list[Any]:
    """The module here for each imported Keras."""
    return [module_of(package) for package in MODULES if package in sys.modules]


def require_tensorflow(keras: Any, api: str) -> None:
    """Raises RuntimeError if Keras uses another backend than TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"{api}: the backend of Keras must be 'tensorflow', got {keras.backend.backend()!r}. Set "
            "KERAS_BACKEND=tensorflow in the environment before Keras is imported."
        )


def decoration_of(function: Callable[..., Any]) -> Any:
    """The `custom_gradient.decorator.Decoration` of a decorated function or method; None for other functions."""
    record = getattr(function, "__tf_cg_ops__", None)
    return None if record is None else record()


def api_of(function: Callable[..., Any]) -> str:
    """The decorator of a function, or else the function itself, which is one of the library."""
    decoration = decoration_of(function)
    return decoration.api if decoration else function.__name__


def function_config(function: Callable[..., Any]) -> dict[str, Any]:
    """What to save for a decorated function: its registered name, or else its own name.

    For a function of TensorFlow or Keras, decorated or not, also the recipe that makes it again.
    """
    name = function.__name__
    for module in loaded_modules():
        registered_name = module.keras.saving.get_registered_name(function)
        if registered_name != name:
            return {"function": registered_name}
    decoration = decoration_of(function)
    inside = decoration.function if decoration else function
    package, public_name = _public_name(inside)
    if not public_name:
        if not name.isidentifier():
            raise ValueError(
                f"tf_cg_ops: Keras saves functions by their names, so they must be made with def, got {name!r}. "
                "Decorate a named function, and register it with @keras.saving.register_keras_serializable() on top."
            )
        return {"function": name}
    recipe = {"of": public_name} if package == "tf" else {"of": public_name, "package": package}
    if decoration and decoration.options is None:
        raise ValueError(
            f"{decoration.api}: Keras could not find this decorated {package}.{public_name} again to load it. Call "
            f"{package}.{public_name} in a function of your own, decorate that, and register it with "
            "@keras.saving.register_keras_serializable() on top."
        )
    if decoration:
        recipe |= {"decorator": decoration.api, "options": decoration.options}
    return {"function": name, "recipe": recipe}


def argument_config(value: Any) -> Any:
    """What to save for an argument that can be a function."""
    return function_config(value) if callable(value) else value


def argument_from_config(config: Any) -> Any:
    """The inverse of `argument_config`."""
    return function_from_config(config) if isinstance(config, dict) and "function" in config else config


def _public_name(function: Any) -> tuple[str, str]:
    """The package and the name in it, such as ("tf", "math.round"); empty if neither TensorFlow nor Keras has it."""
    name = getattr(function, "__name__", "")
    places = [("tf", tf, module) for module in ("", "math.", "nn.")]
    places += [(m.keras.__name__, m.keras, module) for m in loaded_modules() for module in ("activations.", "ops.")]
    for package, root, module in places:
        holder = getattr(root, module[:-1], None) if module else root
        if getattr(holder, name, None) is function:
            return package, module + name
    return "", ""


def function_from_config(config: dict[str, Any]) -> Callable[..., Any]:
    """The inverse of `function_config`. It looks among the registered functions and `custom_objects`."""
    name, recipe = config["function"], config.get("recipe")
    if recipe:
        function: Any = module_of(recipe["package"]).keras if "package" in recipe else tf
        for part in recipe["of"].split("."):
            function = getattr(function, part)
        return makers[recipe["decorator"]](function, **recipe["options"]) if "decorator" in recipe else function
    if callable(name):  # For H5 files, Keras 2 has already replaced the name by the function.
        return name
    found = (module.keras.saving.get_registered_object(name) for module in loaded_modules())
    function = next(filter(None, found), None)
    if function is None:
        raise ValueError(
            f"tf_cg_ops: a function must be registered with Keras before its model is loaded, got {name!r}. Run the "
            "code that decorates it with @keras.saving.register_keras_serializable() first, or pass "
            f"custom_objects={{{name!r}: the function}}."
        )
    return function
