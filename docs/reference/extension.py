"""What the API reference needs beside the docstrings as they are: an extension of griffe, which mkdocs.yml names."""

import re
from typing import Any

import griffe

# A `>>>` example, up to the blank line behind it.
_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
# A section that griffe does not know, and its entries.
_CALL_ARGUMENTS = re.compile(r"^Call arguments:\n((?:  .*(?:\n|\Z))+)", re.MULTILINE)
_ARGUMENT = re.compile(r"^  (\w+): ", re.MULTILINE)


class Extension(griffe.Extension):
    """Makes Markdown of examples and of the layers' call arguments, and shows the layers under their public names."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes the docstring of one object."""
        if obj.docstring:
            text = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value)
            obj.docstring.value = _CALL_ARGUMENTS.sub(_as_list, text)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Shows the layers with the members and docstrings of their mixins, which have all of the code."""
        modules = [pkg["_src.layers"][module] for module in ("mixins", "recompute", "remat")]
        for name in pkg["layers"].exports or ():
            module = next(module for module in modules if name in module.members)
            pkg["layers"].set_member(name, griffe.Alias(name, f"{module.path}.{name}"))


def _as_list(section: re.Match[str]) -> str:
    entries = _ARGUMENT.sub(r"- **`\1`**: ", section[1])
    return f"**Call arguments:**\n\n{entries}"
