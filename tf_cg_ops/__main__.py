"""The program `python -m tf_cg_ops`."""

import sys

from ._command_line import catch_signals
from ._command_line import main as main

if __name__ == "__main__":
    catch_signals()
    sys.exit(main())
