"""README.md for a package index, which does not have the files that it links to."""

import pathlib
import re

_HOME = "github.com/tf-cg-ops/tf_cg_ops"


def long_description(readme: pathlib.Path, version: str) -> str:
    """The text with full addresses, which lead to the files of this version."""

    def whole(link: re.Match[str]) -> str:
        folder = f"https://raw.githubusercontent.com/{_HOME.split('/', 1)[1]}" if link[1] else f"https://{_HOME}/blob"
        return f"{link[1]}[{link[2]}]({folder}/v{version}/{link[3]})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)", whole, readme.read_text())
