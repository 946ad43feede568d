"""The comments and docstrings of a Python file, and the comments of a C++ or CUDA file."""

import ast
import io
import re
import tokenize


def comments(text):
    """Pairs of a line number and a comment; comments on consecutive lines are one."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        comment = token.string.lstrip("#").strip()
        is_alone = token.line.strip().startswith("#")
        if is_alone and found and found[-1]["end"] == (line - 1, column):
            found[-1] |= {"text": f"{found[-1]['text']}\n{comment}", "end": (line, column)}
        else:
            found.append({"line": line, "text": comment, "end": (line, column) if is_alone else None})
    return [(comment["line"], comment["text"]) for comment in found]


def docstrings(text):
    """Pairs of a line number and a docstring."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [(node.body[0].lineno, docstring) for node in nodes if (docstring := ast.get_docstring(node))]


def cpp_comments(text):
    """Pairs of a line number and a comment or a text of an op's `.Doc`; `//` on consecutive lines is one comment."""
    blocks = re.compile(
        r"(?:^[ \t]*//[^\n]*\n)+|(?<=\S)[ \t]+//[^\n]*|/\*.*?\*/|R\"doc\(.*?\)doc\"", re.MULTILINE | re.DOTALL
    )
    found = []
    for block in blocks.finditer(text):
        plain = re.sub(r"^R\"doc\(|\)doc\"$", "", block.group().strip())
        plain = re.sub(r"^[ \t]*(?://+|/\*+|\*+/?)[ \t]?|\*/$", "", plain, flags=re.MULTILINE)
        found.append((text.count("\n", 0, block.start()) + 1, plain.strip()))
    return found
