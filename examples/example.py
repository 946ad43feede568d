"""What the examples share: the command line, the fresh process, and the table of what was shown."""

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Callable

from tf_cg_ops._demo.report import Report


def main(
    description: str,
    run: Callable[[pathlib.Path, Report], None],
    in_fresh_process: Callable[[pathlib.Path], None] | None = None,
) -> int:
    """Runs an example and returns its exit status: 1 if something that it was to show does not hold.

    Args:
      description: The example's docstring.
      run: Gets the folder for all files, and the report that takes the findings.
      in_fresh_process: What `start_fresh_process` does in the process that it starts; gets that folder.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path("demo_output", pathlib.Path(sys.argv[0]).stem)
    parser.add_argument("--output", type=pathlib.Path, default=default, help="the folder for all files (%(default)s)")
    parser.add_argument("--fresh-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fresh_process:
        assert in_fresh_process is not None
        in_fresh_process(options.output)
        return 0
    options.output.mkdir(parents=True, exist_ok=True)
    report = Report()
    run(options.output, report)
    report.save(options.output / "results.json")
    report.show()
    print("\nFiles:", *(str(path) for path in sorted(options.output.iterdir())), sep="\n  ")
    return 0 if report.all_hold() else 1


def start_fresh_process(output: pathlib.Path) -> None:
    """Runs the example's `in_fresh_process` in a process of its own, and waits for it."""
    command = [sys.executable, sys.argv[0], "--fresh-process", "--output", str(output)]
    subprocess.run(command, check=True)
