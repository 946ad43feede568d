"""What `python -m tf_cg_ops` does before TensorFlow is imported, which takes seconds.

Python imports a package before it runs it, so this stands first among the imports of the package. In every other
process it does nothing.
"""

import os
import sys

# While Python imports the package of `-m`, this is the name of the program, and the original arguments tell whose.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in (__package__, f"-m{__package__}"):
    from . import _command_line

    options = _command_line.parse(sys.argv[1:])  # Ends the program if they are wrong, or ask for help.
    # What TensorFlow notes about the machine would drown the output. One note comes whatever the level is.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.command != "demo":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
