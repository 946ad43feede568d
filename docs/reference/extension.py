"""An extension of griffe that prepares docstrings for the pages of the API reference; mkdocs.yml names it."""

import html
import pathlib
import re
from typing import Any

import griffe

# A `>>>` example, up to the blank line behind it.
_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
# An indented block with an equation or inequality in its first line. Code has a line that ends with a colon.
_FORMULA = re.compile(r"(?<=\n\n)    \S.* [<>]?= .*(?:\n    .*)*(?=\n|\Z)")
# What changes in a formula, which has been escaped for HTML.
_SIGNS = {
    r"(?<=[\w|)])\*\*(\w+)": r"<sup>\1</sup>",
    r"\^(\w+)": r"<sup>\1</sup>",
    r" \* ": " · ",
    r"&lt;=": "&le;",
    r"&gt;=": "&ge;",
    r"(?<!\w)-": "&minus;",
    r"\b(\w+)(?=\()": r"<b>\1</b>",
}
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
    """Turns parts of docstrings into Markdown or HTML."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes the docstring of one object."""
        if obj.docstring:
            text = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value)
            text = _FORMULA.sub(_as_formula, text)
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


def _as_formula(block: re.Match[str]) -> str:
    """A paragraph for style.css to set, which needs neither a script nor a font; code stays as it is."""
    lines = block[0].split("\n")
    if any(line.endswith(":") for line in lines):
        return block[0]
    return '<p class="formula">' + "".join(f"<span>{_set(line)}</span>" for line in lines) + "</p>"


def _set(line: str) -> str:
    """One line: formulas, and words between or behind them, with at least two spaces around each."""
    parts = re.split(r" {2,}", re.sub(r" +=", " =", html.escape(line.strip(), quote=False)))
    return " &emsp; ".join(_with_signs(part) if "=" in part else f"<small>{part}</small>" for part in parts)


def _with_signs(formula: str) -> str:
    for pattern, sign in _SIGNS.items():
        formula = re.sub(pattern, sign, formula)
    return formula
