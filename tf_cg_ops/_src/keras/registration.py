"""The names by which Keras saves functions and classes of this library and finds them again."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# The first part of these names: "tf_cg_ops>reverse_gradient".
PACKAGE = "tf_cg_ops"

# The module here for each Keras package.
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


def loaded_modules() -> list[str]:
    """The names in `MODULES` for each imported Keras."""
    return [module for package, module in MODULES.items() if package in sys.modules]


def _keras_of(module: str) -> Any:
    # Importing the module registers the functions.
    return importlib.import_module(f".{module}", __package__).keras


def _loaded_kerases() -> list[Any]:
    return [_keras_of(module) for module in loaded_modules()]


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
    python_name = function.__name__
    names = [keras.saving.get_registered_name(function) for keras in _loaded_kerases()]
    name = next((name for name in names if name != python_name), python_name)
    if name != python_name:
        return {"function": name}
    decoration = decoration_of(function)
    inside = decoration.function if decoration else function
    package, public_name = _public_name(inside)
    options = decoration.options if decoration else None
    if public_name and (inside is function or options is not None):
        decorator = {} if inside is function else {"decorator": api_of(function), "options": options}
        of_keras = {} if package == "tf" else {"package": package}
        return {"function": name, "recipe": {"of": public_name, **of_keras, **decorator}}
    if public_name:
        inside_name = f"{package}.{public_name}"
        raise ValueError(
            f"{api_of(function)}: Keras could not find this decorated {inside_name} again to load it. Call "
            f"{inside_name} in a function of your own, decorate that, and register it with "
            "@keras.saving.register_keras_serializable() on top."
        )
    if not python_name.isidentifier():
        raise ValueError(
            f"tf_cg_ops: Keras saves functions by their names, so they must be made with def, got {name!r}. Decorate a "
            "named function, and register it with @keras.saving.register_keras_serializable() on top."
        )
    return {"function": name}


def argument_config(value: Any) -> Any:
    """What to save for an argument that can be a function."""
    return function_config(value) if callable(value) else value


def argument_from_config(config: Any) -> Any:
    """The inverse of `argument_config`."""
    return function_from_config(config) if isinstance(config, dict) else config


def _public_name(function: Any) -> tuple[str, str]:
    """The package and the name in it, such as ("tf", "math.round"); empty if neither TensorFlow nor Keras has it."""
    name = getattr(function, "__name__", "")
    packages = {"tf": tf} | {package: _keras_of(MODULES[package]) for package in MODULES if package in sys.modules}
    for package, root in packages.items():
        for module in ("", "math", "nn") if root is tf else ("activations", "ops"):
            if getattr(getattr(root, module, None) if module else root, name, None) is function:
                return package, f"{module}.{name}".removeprefix(".")
    return "", ""


def function_from_config(config: dict[str, Any]) -> Callable[..., Any]:
    """The inverse of `function_config`. It looks among the registered functions and `custom_objects`."""
    name, recipe = config["function"], config.get("recipe")
    if recipe:
        function: Any = _keras_of(MODULES[recipe["package"]]) if "package" in recipe else tf
        for part in recipe["of"].split("."):
            function = getattr(function, part)
        return makers[recipe["decorator"]](function, **recipe["options"]) if "decorator" in recipe else function
    if callable(name):  # For H5 files, Keras 2 has already replaced the name by the function.
        return name
    for keras in _loaded_kerases():
        function = keras.saving.get_registered_object(name)
        if function is not None:
            return function
    raise ValueError(
        f"tf_cg_ops: a function must be registered with Keras before its model is loaded, got {name!r}. Run the code "
        "that decorates it with @keras.saving.register_keras_serializable() first, or pass "
        f"custom_objects={{{name!r}: the function}}."
    )
