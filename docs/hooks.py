"""The pages that mkdocs makes of other files: the README, the notebook of the quickstart, and the examples."""

import itertools
import json
import pathlib
import re
import struct
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).parents[1]
_SOURCES = "https://github.com/tf-cg-ops/tf_cg_ops/blob/main/"
# Words that readers search for, and the page that they want.
_SEARCHED = {
    "ship.md": ["save", "load", "export", "TFLite", "Lite"],
    "recipes.md": ["clip", "clipping"],
    "quantization.md": ["quantize"],
}
# Where to cut a picture between its panels, as fractions of its width. On a phone, the panels are one below the other.
_CUTS: dict[str, list[float]] = {
    "audit": [0.455],
    "binary_net": [0.41],
    "convex_layer": [0.337, 0.676],
    "equilibrium_layer": [0.332, 0.661],
    "fit_in_memory": [0.332, 0.671],
    "growth": [0.335, 0.662],
    "headline": [0.493],
    "inside_model": [0.664],
    "learning_curves": [0.332, 0.67],
    "lite_training": [0.514],
    "log1pexp": [0.33, 0.66],
    "long_sequence": [0.339, 0.671],
    "nan_in_training": [0.68],
    "neural_ode": [0.336, 0.658],
    "readme": [0.307, 0.605],
    "saliency_maps": [0.508],
}
# Where rows of panels begin and end, as fractions of the height. What is outside of them is on the page, too.
_ROWS: dict[str, list[float]] = {"audit": [0.34, 0.94], "growth": [0, 0.48, 0.915], "headline": [0, 0.347, 0.64, 0.91]}
_BANNER = """<div class="banner" markdown>

{}
[Quickstart](quickstart.md){{.md-button .md-button--primary}}
[Install](#install){{.md-button}}
[Choose a function](#choose-a-function){{.md-button}}

</div>

"""
_LANGUAGES = {".py": "python", ".c": "c"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages to those under docs/."""
    pages = {"index.md": start_page(), "quickstart.md": notebook_page(ROOT / "docs" / "quickstart.ipynb")}
    pages |= {f"examples/{path.stem}.md": example_page(path) for path in examples()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turns links to examples, which work on GitHub, into links to their pages, and drops what is only for GitHub."""
    # A search leads to guides first, then to the reference. The gallery leads to the examples.
    folder = page.file.src_uri.partition("/")[0]
    page.meta["search"] = {"exclude": folder == "examples", "boost": 0.5 if folder == "reference" else 1}
    page.meta["tags"] = _SEARCHED.get(page.file.src_uri, [])
    markdown = re.sub(r"^On GitHub, .*\n", "", markdown, flags=re.MULTILINE)
    return re.sub(r"\]\(\.\./examples/(?:\w+/)?(\w+)\.(?:py|c)\)", r"](examples/\1.md)", markdown)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Says where names in tables and pictures can break, and gives the support matrix classes for style.css."""
    html = re.sub(r"<t[hd].*?</t[hd]>", _with_breaks, html, flags=re.DOTALL)
    html = re.sub(r'<img alt="([^"]*)" src="([^"]*figures/(\w+)\.png)" ?/>', _with_panels, html)
    if page.file.src_uri == "modes.md":
        html = re.sub(r"<td>(yes|partly|no)</td>", r'<td class="\1">\1</td>', html)
        # The class also keeps the theme from wrapping the table in elements of its own.
        html = html.replace("<table>", '<div class="matrix"><table class="matrix">').replace(
            "</table>", "</table></div>"
        )
    return html


def _with_breaks(cell: re.Match[str]) -> str:
    return re.sub("<code>([^<]*)</code>", _with_breaks_in_name, cell[0])


def _with_breaks_in_name(code: re.Match[str]) -> str:
    if len(code[1]) <= 24:
        return f'<code class="name">{code[1]}</code>'
    breakable = re.sub(r"(?<=[^\W\d]\.)(?=\w)", "<wbr>", code[1])
    return f"<code>{breakable}</code>"


def _with_panels(image: re.Match[str]) -> str:
    """The picture, and its panels: style.css shows one or the other."""
    alt, source, name = image.groups()
    if name not in _CUTS:
        return image[0]
    width, height = struct.unpack(">II", (ROOT / f"docs/figures/{name}.png").read_bytes()[16:24])
    panels = [image[0].replace("<img", '<img class="whole"')]
    for top, bottom in itertools.pairwise(_ROWS.get(name, [0, 1])):
        for left, right in itertools.pairwise([0, *_CUTS[name], 1]):
            box = f"{left * width:.0f} {top * height:.0f} {(right - left) * width:.0f} {(bottom - top) * height:.0f}"
            panels.append(
                f'<svg class="panel" data-of="{source}" viewBox="{box}" role="img" aria-label="{alt}">'
                f'<image href="{source}" width="{width}" height="{height}"/></svg>'
            )
            alt = ""
    return "".join(panels)


def start_page() -> str:
    """The README with links from the folder of the pages, its first lines as a banner, and its first list as cards."""
    pages = {"examples/README.md": "gallery.md", "docs/quickstart.ipynb": "quickstart.md"}

    def target(link: re.Match[str]) -> str:
        page = pages.get(link[1], link[1].removeprefix("docs/"))
        return "](" + (_SOURCES + page if page == link[1] else page)

    text = re.sub(r"\]\((?!https?:|#)([^)\s]+)", target, (ROOT / "README.md").read_text())
    banner, code = text.split("```", maxsplit=1)
    before, cards, after = re.split(r"^(- (?:.+\n)+)", code, maxsplit=1, flags=re.MULTILINE)
    return f"{_BANNER.format(banner)}```{before}<div class='cards' markdown>\n\n{cards}\n</div>\n{after}"


def examples() -> list[pathlib.Path]:
    """The programs under examples/."""
    return sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in _LANGUAGES)


def example_page(path: pathlib.Path) -> str:
    """The source of an example."""
    return f"# {path.name}\n\n[All examples](../gallery.md)\n\n{_block(path.read_text(), _LANGUAGES[path.suffix])}"


def notebook_page(path: pathlib.Path) -> str:
    """The cells of a notebook and their outputs."""
    cells = json.loads(path.read_text())["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source + "\n")
        else:
            parts.append(_block(source, "python"))
            printed = "".join(map(_text_of, cell["outputs"]))
            parts += [_block(printed, "text")] if printed else []
    return "\n".join(parts).replace("](../README.md", "](index.md")


def _text_of(output: dict[str, Any]) -> str:
    """What a cell prints; the page shows no other outputs."""
    if output["output_type"] != "stream" or output["name"] != "stdout":
        raise ValueError(f"quickstart.ipynb: outputs must be text on stdout, got {output}")
    return "".join(output["text"])


def _block(text: str, language: str) -> str:
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"
