"""Tests that pytest runs."""

def pytest_test(name, srcs, data = [], **kwargs):
    """Runs test files with pytest.

    Args:
      name: the target's name.
      srcs: the files that pytest gets.
      data: what the tests read in addition to the package and tests/support.
      **kwargs: as for py_test.
    """
    native.py_test(
        name = name,
        srcs = ["//bazel:run_pytest.py"],
        main = "//bazel:run_pytest.py",
        args = srcs,
        data = srcs + data + ["//:test_support"],
        # Without this, Bazel adds an __init__.py to every folder.
        legacy_create_init = False,
        python_version = "PY3",
        deps = ["//:tf_cg_ops"],
        **kwargs
    )
