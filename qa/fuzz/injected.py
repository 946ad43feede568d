"""The faults that the command line injects, to test the fuzzers."""

import argparse


def fault_of(*kinds):
    """The type of an argument KIND@NUMBER: what goes wrong, and in which call or mutant."""

    def parse(text):
        kind, _, number = text.partition("@")
        if kind not in kinds or not number.isdecimal():
            raise argparse.ArgumentTypeError(f"expected KIND@NUMBER with a kind of {', '.join(kinds)}; got {text!r}")
        return text

    return parse
