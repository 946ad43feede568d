"""The installed TensorFlow as a repository, with the Python that it is installed in."""

load("//bazel:python.bzl", "PYTHON_ENVIRON", "run_script")

_BUILD = """\
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

exports_files(["_build_info.py"])

cc_library(
    name = "tensorflow",
    hdrs = glob(["include/**"]),
    # As system headers, so that they cause no warnings.
    includes = {folders},
    # Not files of this repository: Python has loaded them, so the loader finds them by name.
    linkopts = {libraries},
)

py_runtime(
    name = "python",
    interpreter_path = {python},
    python_version = "PY3",
)

py_runtime_pair(
    name = "python_pair",
    py3_runtime = ":python",
)

toolchain(
    name = "python_toolchain",
    toolchain = ":python_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

_FLAGS = """\
PYTHON = {python}
COMPILE_FLAGS = {compile_flags}
LINK_FLAGS = {link_flags}
WITH_CC = {with_cc}
"""

def _installed_tensorflow_impl(repository):
    found = run_script(repository, repository.attr._script, repository.attr._imported)
    repository.symlink(found["headers"], "include")
    repository.file("_build_info.py", found["build_info"])
    values = {name: repr(value) for name, value in found.items()}
    repository.file("BUILD", _BUILD.format(**values))
    repository.file("flags.bzl", _FLAGS.format(**values))

installed_tensorflow = repository_rule(
    implementation = _installed_tensorflow_impl,
    doc = "Finds TensorFlow with the Python of PYTHON_BIN_PATH, or else the first python3 on PATH.",
    attrs = {
        "_script": attr.label(default = "//bazel:find_tensorflow.py"),
        "_imported": attr.label_list(default = [
            "//:build_ops/compiler.py",
            "//:build_ops/machine.py",
            "//:build_ops/tensorflow.py",
        ]),
    },
    environ = PYTHON_ENVIRON + ["CXX"],
    # An upgrade of TensorFlow changes no file that Bazel watches.
    local = True,
)
