"""The comments and docstrings of a Python file."""

import ast
import io
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
