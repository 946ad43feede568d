"""The TensorFlow to compile against, found without importing it into the process of the build."""

import importlib.metadata
import json
import os
import subprocess
import sys

# The minor versions that the sources compile against; `make matrix` tests them all.
SUPPORTED = ("2.18", "2.19", "2.20", "2.21")

# The names under which TensorFlow is published. Each satisfies requirements on itself only, so the wheel has to ask
# for the one that it was compiled against.
DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")


def installed_tensorflow() -> tuple[str, str]:
    """The distribution and the version of the TensorFlow to compile against, found without importing it."""
    for distribution in DISTRIBUTIONS:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if minor_of(version) not in SUPPORTED:
            raise SystemExit(
                f"tf_cg_ops: the build does not know this TensorFlow; expected {SUPPORTED[0]} to {SUPPORTED[-1]}, got "
                f"{distribution} {version}. Install one of those (pip install '{distribution}=={SUPPORTED[-1]}.*')."
            )
        return distribution, version
    raise SystemExit(
        "tf_cg_ops: the build found no TensorFlow; expected one of "
        + ", ".join(DISTRIBUTIONS)
        + " beside setuptools in this Python, got none. Install the TensorFlow that you will use (pip install "
        "'tensorflow==2.21.*'), then build against it: pip install 'setuptools>=77' wheel && "
        "pip install --no-build-isolation ."
    )


def minor_of(version: str) -> str:
    """The minor version of a version."""
    return ".".join(version.split(".")[:2])


def tensorflow_requirement() -> str:
    """The requirement on the minor version that the op library is compiled against."""
    distribution, version = installed_tensorflow()
    major, minor = (int(part) for part in version.split(".")[:2])
    return f"{distribution}>={major}.{minor},<{major}.{minor + 1}"


def build_info() -> str:
    """The text of _build_info.py: what the op library was compiled against, for the check at import."""
    distribution, version = installed_tensorflow()
    return (
        '"""The TensorFlow that the op library beside this file was compiled against; written by the build."""\n\n'
        f'TENSORFLOW_DISTRIBUTION = "{distribution}"\n'
        f'TENSORFLOW_VERSION = "{version}"\n'
    )


def tensorflow_flags() -> tuple[list[str], list[str]]:
    """TensorFlow's own compile and link flags, asked in a process of its own."""
    script = (
        "import json, tensorflow as tf;"
        "print(json.dumps([tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()]))"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    answer = subprocess.run([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, check=True)
    compile_flags, link_flags = json.loads(answer.stdout.splitlines()[-1])
    # Headers that tf2xla includes and the wheel keeps in folders of its own.
    includes = [flag[2:] for flag in compile_flags if flag.startswith("-I")]
    externals = ("external/highwayhash", "external/farmhash_archive/src")
    compile_flags += [f"-I{include}/{external}" for include in includes for external in externals]
    # Warnings are for this library's sources; TensorFlow's headers have their own.
    compile_flags = ["-isystem" + flag[2:] if flag.startswith("-I") else flag for flag in compile_flags]
    return compile_flags, link_flags
