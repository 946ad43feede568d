"""Compiles the op library against the installed TensorFlow and packages it; everything static is in pyproject.toml."""

import concurrent.futures
import hashlib
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent

# The names under which TensorFlow is published. Each satisfies requirements on itself only, so the wheel has to ask
# for the one that it was compiled against.
DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")

# Slowest first: what starts last decides when all is done.
SOURCES = (
    "cc/xla/xla_kernels.cc",
    "cc/gradients/graph_gradients.cc",
    "cc/gradients/function_gradients.cc",
    "cc/gradients/flat_function.cc",
    "cc/gradients/gradient_function.cc",
    "cc/gradients/gradient_inputs.cc",
    "cc/gradients/live_part.cc",
    "cc/gradients/repeatable.cc",
    "cc/gradients/split_function.cc",
    "cc/passes/drop_gradients.cc",
    "cc/passes/function_bodies.cc",
    "cc/passes/gates.cc",
    "cc/passes/refuse_lost_gradients.cc",
    "cc/passes/side_effects.cc",
    "cc/passes/split_gradients.cc",
    "cc/passes/unread.cc",
    "cc/passes/values.cc",
    "cc/kernels/custom_gradient_embed_grad_kernel.cc",
    "cc/kernels/custom_gradient_embed_kernel.cc",
    "cc/kernels/custom_gradient_check_shape_kernel.cc",
    "cc/kernels/hand_on_kernel.cc",
    "cc/ops/custom_gradient_barrier_op.cc",
    "cc/ops/custom_gradient_check_shape_op.cc",
    "cc/ops/custom_gradient_embed_grad_op.cc",
    "cc/ops/custom_gradient_embed_op.cc",
    "cc/ops/custom_gradient_rule_op.cc",
    "cc/ops/embed_shapes.cc",
    "cc/lib/alignment.cc",
    "cc/lib/block_kernels.cc",
    "cc/lib/contraction.cc",
    "cc/lib/contraction_plan.cc",
    "cc/lib/messages.cc",
)

# NDEBUG: without it absl's containers have another layout than those inside TensorFlow's wheels.
# -ffp-contract=off: fused operations round otherwise, and only some machines have them.
COMPILE_FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-DNDEBUG", "-Wall", "-Wextra", "-Wpedantic")


def installed_tensorflow() -> tuple[str, str]:
    """The distribution and the version of the TensorFlow to compile against, found without importing it."""
    for distribution in DISTRIBUTIONS:
        try:
            return distribution, importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise SystemExit(
        "tf_cg_ops: the build found no TensorFlow; expected one of "
        + ", ".join(DISTRIBUTIONS)
        + " beside setuptools in this Python, got none. Install the TensorFlow that you will use (pip install "
        "'tensorflow==2.21.*'), then build against it: pip install 'setuptools>=70.1' wheel && "
        "pip install --no-build-isolation ."
    )


def tensorflow_requirement() -> str:
    """The requirement on the minor version that the op library is compiled against."""
    distribution, version = installed_tensorflow()
    major, minor = (int(part) for part in version.split(".")[:2])
    return f"{distribution}>={major}.{minor},<{major}.{minor + 1}"


def tensorflow_flags() -> tuple[list[str], list[str]]:
    """TensorFlow's own compile and link flags, asked in a process of its own."""
    script = (
        "import json, tensorflow as tf;"
        "print(json.dumps([tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()]))"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    answer = subprocess.run([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, check=True)
    compile_flags, link_flags = json.loads(answer.stdout.splitlines()[-1])
    # What tf2xla's headers include and the wheel keeps in folders of its own.
    includes = [flag[2:] for flag in compile_flags if flag.startswith("-I")]
    externals = ("external/highwayhash", "external/farmhash_archive/src")
    compile_flags += [f"-I{include}/{external}" for include in includes for external in externals]
    # Warnings are for this library's sources; TensorFlow's headers have their own.
    compile_flags = ["-isystem" + flag[2:] if flag.startswith("-I") else flag for flag in compile_flags]
    return compile_flags, link_flags


class BuildOpLibrary(build_ext):
    """Compiles with g++ in parallel, only what changed, and links a library that belongs to no Python version."""

    def get_ext_filename(self, fullname: str) -> str:
        """The library's name, without the tag of a Python version."""
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Builds the op library and the module that tells what it was built for."""
        library = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve()
        library.parent.mkdir(parents=True, exist_ok=True)
        compile_flags, link_flags = tensorflow_flags()
        compiler = (os.environ.get("CXX") or "g++").split()
        if shutil.which("ccache"):
            compiler = ["ccache", *compiler]
        command = [*compiler, *COMPILE_FLAGS, *compile_flags, "-I."]
        if os.environ.get("TF_CG_OPS_WERROR") == "1":
            command.append("-Werror")
        # Objects of another TensorFlow, compiler or flag must not be mixed up with these.
        digest = hashlib.sha256(json.dumps([command, installed_tensorflow()]).encode()).hexdigest()[:12]
        objects = ROOT / "build" / f"objects-{digest}"
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            built = list(pool.map(lambda source: compile_source(command, source, objects), ext.sources))
        # The order of the link line and -z defs: a symbol that is missing shows here and not at import.
        libraries = ["-l:libtensorflow_cc.so.2", "-Wl,-z,defs"]
        run([*compiler, "-shared", "-o", str(library), *map(str, built), *link_flags, *libraries])
        write_build_info(library.parent / "_build_info.py")

    def copy_extensions_to_source(self) -> None:
        """For editable installs, which use the package in the source tree."""
        super().copy_extensions_to_source()
        write_build_info(ROOT / "tf_cg_ops" / "_build_info.py")


def compile_source(command: list[str], source: str, objects: pathlib.Path) -> pathlib.Path:
    """Compiles one file, unless its object is newer than it and all that it includes."""
    target = objects / (source.replace("/", "-") + ".o")
    dependencies = target.with_suffix(".d")
    if not is_up_to_date(target, dependencies):
        objects.mkdir(parents=True, exist_ok=True)
        run([*command, "-MMD", "-MF", str(dependencies), "-c", source, "-o", str(target)])
    return target


def is_up_to_date(target: pathlib.Path, dependencies: pathlib.Path) -> bool:
    """Whether the object exists and is newer than every file in the compiler's list for it."""
    if not target.exists() or not dependencies.exists():
        return False
    files = dependencies.read_text().replace("\\\n", " ").split()[1:]
    built = target.stat().st_mtime
    return all((ROOT / file).exists() and (ROOT / file).stat().st_mtime <= built for file in files)


def run(command: list[str]) -> None:
    """Runs a command of the build in the project's folder and shows it."""
    print(" ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def write_build_info(path: pathlib.Path) -> None:
    """Notes down what the op library was compiled against, for the check at import."""
    distribution, version = installed_tensorflow()
    path.write_text(
        '"""What the op library beside this file was compiled against; written by the build."""\n\n'
        f'TENSORFLOW_DISTRIBUTION = "{distribution}"\n'
        f'TENSORFLOW_VERSION = "{version}"\n'
    )


class AnyPythonWheel(bdist_wheel):
    """Tags the wheel for one platform and every Python 3: the op library does not use Python's ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's Python, ABI and platform tags."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("tf_cg_ops._ops", sources=list(SOURCES))],
    cmdclass={"build_ext": BuildOpLibrary, "bdist_wheel": AnyPythonWheel},
    install_requires=[tensorflow_requirement(), "numpy>=1.26"],
)
