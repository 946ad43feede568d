"""The rules of CONTRIBUTING.md about language that a pattern can check, for any text."""

import re

from . import markdown

# A pattern for what not to write, and what to write instead: the only list of these terms.
TERMS = {
    r"regimes?": "mode",
    r"stock (?:ops?|operations?|kernels?)": "built-in ops",
    r"hostile": "malformed",
    r"damaged": "malformed",
    r"mended": "fixed",
    r"plants|planted": "injected faults",
    r"nothing is left where": "pruning",
    r"what goes along what": "broadcasting",
    r"what does not work(?: yet)?": "known limitations",
    r"where it works": "support matrix",
    r"moving from": "migrating from",
    r"ten lines": "quickstart",
    r"hand(?:s|ed|ing)? (?:(?!one\b)\w+ ){0,2}on(?! hand)": "forward",
    r"live parts?": "backward slice",
    r"repeatable": "safe to recompute",
    r"misfits?": "shape error",
    r"remed(?:y|ies)": "hint",
    r"contenders?": "implementations",
    r"older machines": "glibc compatibility",
    r"that which": "a noun",
    r"by way of": "by, through",
    r"as far as": "a noun, or a sentence of its own",
    r"who(?:so)?ever|whatever": "a noun",
}
_TERM = {re.compile(rf"\b{pattern}\b", re.IGNORECASE): instead for pattern, instead in TERMS.items()}
# Relative clauses in the place of a noun; "Which ...?" is a question.
_OPENING = re.compile(r"(?:What|Who|Whoever|Whatever|Where|Wherever|Which|Whichever)\b")
_SENTENCE_END = re.compile(r"(?<=[.!?:])[\"')*]* +(?=[\"'(*\[]*[A-Z])")


def violations(text):
    """Each sentence that begins with a relative clause, and each term that has a better one, of plain text."""
    found = []
    for sentence in sentences(text):
        if _OPENING.match(sentence) and not sentence.endswith("?"):
            found.append(f"begins with a relative clause: {sentence}")
        for pattern, instead in _TERM.items():
            if pattern.search(sentence):
                found.append(f"{pattern.search(sentence).group()!r} instead of {instead!r}: {sentence}")
    return found


def sentences(text):
    """The sentences of paragraphs that are separated by empty lines, without what surrounds them."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
            yield sentence.strip("\"'()*[] ")


def prose(text):
    """Of Markdown, what is neither code nor a target of a link: headings, items and cells as paragraphs of their own."""
    text = re.sub(r"<!--.*?-->", "\n\n", markdown.without_code_blocks(text), flags=re.DOTALL)
    text = re.sub(r"(!?\[[^\]]*\])\([^)\s]*\)", r"\1", text)
    text = re.sub(r"(`+).*?\1", "`code`", text, flags=re.DOTALL)
    text = re.sub(r"^(#+|\s*(?:[-*]|\d+\.|:)) +(.*)$", r"\n\n\2", text, flags=re.MULTILINE)
    text = re.sub(r"^#+ .*$", r"\g<0>\n", text, flags=re.MULTILINE)
    return re.sub(r"^\|.*\|$", lambda row: row.group().replace("|", "\n\n"), text, flags=re.MULTILINE)
