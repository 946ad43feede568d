"""The public functions and classes, found through `__all__`."""

import inspect

import tf_cg_ops as cg


def public_objects(module=cg, prefix="tf_cg_ops"):
    """The functions and classes that users call, by names such as "tf_cg_ops.compat.bayesflow.custom_gradient"."""
    found = {}
    for name in names_of(module):
        value, full_name = getattr(module, name), f"{prefix}.{name}"
        if inspect.ismodule(value):
            found |= public_objects(value, full_name)
        elif callable(value):
            found[full_name] = value
    return found


def names_of(module):
    """Its `__all__`; without one, the functions and classes that are written there."""
    written = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return getattr(module, "__all__", [name for name in written if not name.startswith("_")])
