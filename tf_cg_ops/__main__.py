"""The command line: `python -m tf_cg_ops demo`."""

import argparse
import pathlib
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tf_cg_ops", description="Custom gradients that are data in the graph."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="train on real data with embedded gradients, show what they do, exit with 1 if any of it fails",
    )
    demo.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("demo_output"),
        help="the folder for the picture, the figures and the trained model (default: %(default)s)",
    )
    options = parser.parse_args(arguments)

    # Not before the command is known to be right: TensorFlow takes seconds to import.
    from . import _demo

    return _demo.run(options.output)


if __name__ == "__main__":
    sys.exit(main())
