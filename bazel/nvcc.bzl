"""Kernels for NVIDIA GPUs: nvcc as a repository, if there is one, and a rule that compiles with it."""

load("//bazel:python.bzl", "PYTHON_ENVIRON", "run_script")

_BUILD = """\
cc_import(
    name = "static_runtime",
    static_library = "libcudart_static.a",
    visibility = ["//visibility:public"],
)
"""

def _installed_nvcc_impl(repository):
    found = run_script(repository, repository.attr._script, repository.attr._imported)
    if "command" in found:
        repository.symlink(found["static_runtime"], "libcudart_static.a")
        repository.file("BUILD", _BUILD)
    else:
        print(found["note"])  # buildifier: disable=print
        repository.file("BUILD")
    repository.file("nvcc.bzl", "NVCC = {}\nLINK_FLAGS = {}\n".format(
        repr(found.get("command", [])),
        repr(found.get("link_flags", [])),
    ))

installed_nvcc = repository_rule(
    implementation = _installed_nvcc_impl,
    doc = "Finds nvcc in CUDA_HOME or on PATH; without it, the command is an empty list.",
    attrs = {
        "_script": attr.label(default = "//bazel:find_nvcc.py"),
        "_imported": attr.label_list(default = [
            "//:build_ops/compiler.py",
            "//:build_ops/cuda.py",
        ]),
    },
    environ = PYTHON_ENVIRON + ["CUDA_HOME", "CXX", "TF_CG_OPS_CUDA"],
    local = True,
)

def _cuda_objects_impl(context):
    headers = depset(
        [file for file in context.files.srcs if file.extension == "h"],
        transitive = [dep[CcInfo].compilation_context.headers for dep in context.attr.deps],
    )
    objects = []
    for source in context.files.srcs:
        if source.extension == "h":
            continue
        target = context.actions.declare_file(source.basename + ".o")
        context.actions.run(
            executable = context.attr.nvcc[0],
            arguments = context.attr.nvcc[1:] + ["-c", source.path, "-o", target.path],
            inputs = depset([source], transitive = [headers]),
            outputs = [target],
            mnemonic = "NvccCompile",
            progress_message = "Compiling " + source.short_path,
            use_default_shell_env = True,  # nvcc calls g++.
        )
        objects.append(target)
    return [DefaultInfo(files = depset(objects))]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    doc = "Compiles each source with nvcc, for the device and the host.",
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc", ".cu", ".h"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "nvcc": attr.string_list(doc = "The command."),
    },
)
