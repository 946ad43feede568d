"""An extension of griffe that prepares docstrings for the pages of the API reference; mkdocs.yml names it."""

import pathlib
import re
from typing import Any

import griffe

# A `>>>` example, up to the blank line behind it.
_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
# The titles of the guides, which docstrings name, and their pages.
_GUIDES = {
    path.read_text().partition("\n")[0].removeprefix("# "): path.stem
    for path in pathlib.Path(__file__).parents[1].glob("*.md")
}
# What a terminal shows as text, as links.
_LINKS = {
    r"`(tf_cg_ops(?:\.\w+)+)`": r'<autoref optional identifier="\1"><code>\1</code></autoref>',
    r"(?<!\S)https://\S+(?<![.,])": r"<\g<0>>",
    r"arXiv:(\d+\.\d+)": r"[\g<0>](https://arxiv.org/abs/\1)",
}
# A section that griffe does not know, and its entries.
_CALL_ARGUMENTS = re.compile(r"^Call arguments:\n((?:  .*(?:\n|\Z))+)", re.MULTILINE)
_ARGUMENT = re.compile(r"^  (\w+): ", re.MULTILINE)


class Extension(griffe.Extension):
    """Turns parts of docstrings into Markdown."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes the docstring of one object."""
        if obj.docstring:
            text = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value)
            for pattern, link in _LINKS.items():
                text = re.sub(pattern, link, text)
            text = re.sub(r'guide\s+"([^"]+)"', _as_guide, text)
            obj.docstring.value = _CALL_ARGUMENTS.sub(_as_list, text)


def _as_guide(named: re.Match[str]) -> str:
    title = " ".join(named[1].split())
    return f'guide <a href="../{_GUIDES[title]}.html">{title}</a>'


def _as_list(section: re.Match[str]) -> str:
    entries = _ARGUMENT.sub(r"- **`\1`**: ", section[1])
    return f"**Call arguments:**\n\n{entries}"
