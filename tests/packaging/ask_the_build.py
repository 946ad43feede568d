"""Prints what the build finds: ask_the_build.py SOURCES QUESTION [ARGUMENTS...].

The question is a hook of the build backend with arguments in JSON; or which TensorFlow is found and required, "backend" if
a front end runs the build, and "tensorflow" if not.
"""

import json
import sys

sys.path[0], question = sys.argv[1:3]

if question in ("backend", "tensorflow"):
    from build_ops import machine, tensorflow  # noqa: F401

    if question == "backend":
        sys.modules["build_ops.backend"] = tensorflow
    found = tensorflow.find_tensorflow()
    answer = (
        found and [found.distribution, found.version, found.environment.python],
        tensorflow.tensorflow_requirement(found),
    )
else:
    from build_ops import backend

    answer = getattr(backend, question)(*map(json.loads, sys.argv[3:]))
print(json.dumps(answer))
