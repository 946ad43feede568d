"""Reads Markdown, and lists the names that its pages document."""

import inspect
import re

import tf_cg_ops as cg

_FENCE = re.compile(r"^(`{3,}).*?^\1$\n?", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", re.DOTALL)


def python_blocks(text):
    """Each block of Python with its output, which can be empty."""
    return _PYTHON.findall(text)


def links(text):
    """The targets of links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", text))


def anchors(text):
    """The anchors of headings and definitions."""
    headings = re.findall(r"^#+ +(.*?) *$", _FENCE.sub("", text), re.MULTILINE)
    plain = [re.sub(r"\{#.*\}|\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    slugs = {re.sub(r"[ -]+", "-", re.sub(r"[^a-z0-9_ -]", "", heading).strip()) for heading in plain}
    return slugs | set(re.findall(r"\{#([\w-]+)\}", text))


def public_objects(module=cg, prefix="tf_cg_ops"):
    """The functions and classes that users call, by names such as "tf_cg_ops.compat.bayesflow.custom_gradient"."""
    found = {}
    for name in _names_of(module):
        value, full_name = getattr(module, name), f"{prefix}.{name}"
        if inspect.ismodule(value):
            found |= public_objects(value, full_name)
        elif callable(value):
            found[full_name] = value
    return found


def _names_of(module):
    """The module's `__all__`; without one, the functions and classes defined there."""
    written = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return getattr(module, "__all__", [name for name in written if not name.startswith("_")])
