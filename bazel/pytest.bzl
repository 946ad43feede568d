"""Tests that pytest runs."""

def pytest_test(name, srcs, data = [], **kwargs):
    """A test of the package by test files.

    Args:
      name: the target's name.
      srcs: the files that pytest gets.
      data: what the tests read beside the package and tests/support.
      **kwargs: as for py_test.
    """
    native.py_test(
        name = name,
        srcs = ["//bazel:run_pytest.py"],
        main = "//bazel:run_pytest.py",
        args = srcs,
        data = srcs + data + ["//:test_support"],
        # No __init__.py in folders that are no packages.
        legacy_create_init = False,
        python_version = "PY3",
        deps = ["//:tf_cg_ops"],
        **kwargs
    )
