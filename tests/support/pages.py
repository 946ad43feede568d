"""Reads pages: the code, prose, links and anchors of Markdown; and the public names that pages document."""

import inspect
import re
import string

import yaml

import tf_cg_ops as cg

_FENCE = re.compile(r"^(`{3,}).*?^\1$\n?", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:\A|(?<=\n\n))(?: {4}.*\n+)+")
_PYTHON = re.compile(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", re.DOTALL)


def python_blocks(text):
    """Each block of Python with what it prints, or the empty text."""
    return _PYTHON.findall(text)


def code_blocks(text):
    """Each block between fences, or with an indent of four, as it stands."""
    fenced = [match.group() for match in _FENCE.finditer(text)]
    return fenced + _INDENTED.findall(_FENCE.sub("", text))


def without_code_blocks(text):
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)  # The YAML of an issue template.
    return _INDENTED.sub("", _FENCE.sub("", text))


def links(text):
    """The targets of links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", without_code_blocks(text))


def paths_in_code(text):
    """The files and folders of the project that code spans name."""
    folders = "benchmarks|bazel|build_ops|cc|cuda|docs|examples|qa|tests|tf_cg_ops"
    return re.findall(rf"`((?:{folders})/[\w./]*)`", without_code_blocks(text))


def anchors(text):
    """The anchors that headings, definitions and the names of a reference page make."""
    headings = re.findall(r"^#+ +(.*?) *$", without_code_blocks(text), re.MULTILINE)
    found = {_slug(re.sub(r"\{#.*\}|\[([^]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings}
    return found | set(re.findall(r"\{#([\w-]+)\}", text))


def reference_names(text):
    """The objects that a page of the reference documents: names, and modules with all their members."""
    return re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)


def _slug(heading):
    kept = set(string.ascii_lowercase + string.digits + "_- ")
    return re.sub(r"[ -]+", "-", "".join(letter for letter in heading.lower() if letter in kept).strip())


def front_matter(text):
    """The YAML between dashes at the top of an issue template."""
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL).group(1))


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
