"""What `python -m tf_cg_ops` does before TensorFlow is imported, which takes seconds.

Python imports a package before it runs it, so this stands first among the imports of the package. In every other
process it does nothing.
"""

import os
import signal
import sys

# While Python imports the package of `-m`, this is the name of the program, and the original arguments tell whose.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in (__package__, f"-m{__package__}"):
    from . import _command_line, _errors

    options = _command_line.parse(sys.argv[1:])  # Ends the program if they are wrong, or ask for help.
    # What TensorFlow notes about the machine would drown the output. One note comes whatever the level is.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.command != "demo":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

    # Nothing is there to be removed yet, and the import of TensorFlow could take an exception for something else.
    def end(*_: object) -> None:
        os.write(2, (_errors.INTERRUPTED.format(command=options.command, got="Ctrl-C") + "\n").encode())
        os._exit(1)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
