"""An extension of griffe that prepares docstrings for the pages of the API reference; mkdocs.yml names it."""

import re
from typing import Any

import griffe

# A `>>>` example, up to the blank line behind it.
_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
# A section that griffe does not know, and its entries.
_CALL_ARGUMENTS = re.compile(r"^Call arguments:\n((?:  .*(?:\n|\Z))+)", re.MULTILINE)
_ARGUMENT = re.compile(r"^  (\w+): ", re.MULTILINE)


class Extension(griffe.Extension):
    """Turns parts of docstrings into Markdown."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes the docstring of one object."""
        if obj.docstring:
            text = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value)
            obj.docstring.value = _CALL_ARGUMENTS.sub(_as_list, text)


def _as_list(section: re.Match[str]) -> str:
    entries = _ARGUMENT.sub(r"- **`\1`**: ", section[1])
    return f"**Call arguments:**\n\n{entries}"
