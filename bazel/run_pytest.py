"""The main program of Bazel's tests: pytest in the Python that TensorFlow is installed in."""

import sys

import pytest

sys.exit(pytest.main(sys.argv[1:]))
