"""The wheel, which setup.py makes from the op libraries that Bazel built."""

load("@tensorflow//:flags.bzl", "PYTHON")

def _wheel_impl(context):
    # A folder, because only setuptools knows the file's name, which has the version and the platform.
    folder = context.actions.declare_directory(context.label.name)
    sources = context.files.srcs
    libraries = context.files.libraries
    context.actions.run(
        executable = PYTHON,
        arguments = [file.path for file in [context.file._script, libraries[0], folder] + sources],
        inputs = sources + libraries + [context.file._script],
        outputs = [folder],
        mnemonic = "Wheel",
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([folder]))]

wheel = rule(
    implementation = _wheel_impl,
    doc = "A folder with a wheel of the sources and the libraries.",
    attrs = {
        "srcs": attr.label_list(allow_files = True),
        "libraries": attr.label_list(allow_files = [".so"]),
        "_script": attr.label(default = "//bazel:build_wheel.py", allow_single_file = True),
    },
)
