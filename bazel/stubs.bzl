"""Stand-ins for repositories that Bazel's own files load, and that Bazel would otherwise download."""

# The rules themselves are part of Bazel; these repositories only forward them.
_FILES = {
    "rules_cc": {
        "cc/defs.bzl": ["cc_binary", "cc_library", "cc_test", "cc_toolchain", "cc_toolchain_suite"],
    },
    "rules_java": {
        "java/defs.bzl": ["java_binary", "java_import", "java_runtime", "java_toolchain"],
    },
    "rules_proto": {
        "proto/defs.bzl": ["proto_library"],
    },
}

# The tools of `bazel coverage`, which is not supported.
_COVERAGE_TOOLS = """
package(default_visibility = ["//visibility:public"])

filegroup(name = "coverage_report_generator")

filegroup(name = "lcov_merger")
"""

def _stub_impl(repository):
    if repository.name == "remote_coverage_tools":
        repository.file("BUILD", _COVERAGE_TOOLS)
        return
    for path, rules in _FILES[repository.name].items():
        repository.file(path, "".join(["{0} = native.{0}\n".format(rule) for rule in rules]))
        repository.file(path.rpartition("/")[0] + "/BUILD")

_stub = repository_rule(implementation = _stub_impl)

def stub_repositories():
    """Defines all stand-ins. Call it before Bazel's own definitions, because the first definition of a name counts."""
    for name in list(_FILES) + ["remote_coverage_tools"]:
        _stub(name = name)
