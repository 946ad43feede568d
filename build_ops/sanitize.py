"""Runs the C++ side under sanitizers: python3 -m build_ops.sanitize [PARTS], or make sanitize.

Every part builds its programs in a folder below build/. If it finds something, its report is printed and the exit
status is 1.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from .compiler import COMPILE_FLAGS, ROOT, WITH_CC, build_library, build_with_tensorflow, compile_source, run
from .sources import SOURCES, SOURCES_WITH_CC, WITHOUT_CUDA
from .tensorflow import tensorflow_flags

FOLDER = ROOT / "build" / "sanitize"
HARNESSES = "qa/sanitize"

# -O1 and frame pointers: reports name the lines. The last -O counts.
FLAGS = (*COMPILE_FLAGS, "-O1", "-g", "-fno-omit-frame-pointer")
FUZZER = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
# AddressSanitizer finds null pointers by itself, and the checks for them take half of the compiler's time.
MEMORY = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute,object-size",
)
THREADS = ("-fsanitize=thread",)
# The op library lives beside TensorFlow, which knows of no sanitizer:
# - Abseil's and protobuf's types have another layout where their headers see AddressSanitizer.
# - vptr asks for type information that TensorFlow's libraries keep to themselves.
# - With the checks for null pointers g++ rejects constant expressions in Abseil.
# - Fortified functions of the C library go past the sanitizer's own.
LIBRARY_FLAGS = (
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-U_FORTIFY_SOURCE", "-U__SANITIZE_ADDRESS__"),
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr,null,nonnull-attribute,returns-nonnull-attribute",
    "-fno-sanitize-recover=undefined",
)
# For the passes alone, in a program that is linked against TensorFlow. Its headers are to look the same, too.
PASS_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-U__SANITIZE_THREAD__", *THREADS)

SHAPES = (
    f"{HARNESSES}/fuzz_shapes.cc",
    "cc/lib/alignment.cc",
    "cc/lib/contraction_plan.cc",
    "cc/lib/messages.cc",
    "cuda/schedule.cc",
)
ARITHMETIC = (
    *(source for source in SOURCES if source.startswith("cc/lib/block_kernels")),  # By far the slowest.
    f"{HARNESSES}/contract.cc",
    "cc/lib/alignment.cc",
    "cc/lib/contraction.cc",
    "cc/lib/contraction_plan.cc",
    "cc/lib/messages.cc",
    "cc/lib/short_sums.cc",
)
PASSES = (
    f"{HARNESSES}/passes.cc",
    *(source for source in SOURCES if source.startswith(("cc/gradients/", "cc/functions/", "cc/passes/", "cc/ops/"))),
    "cc/lib/alignment.cc",
    "cc/lib/glibc_compatibility.cc",
    "cc/lib/messages.cc",
)

# The tests of the C++ side of the op library: raw calls, kernels, shapes, gradients and passes.
CORE_TESTS = (
    "kernels/test_raw_ops",
    "kernels/test_embed_grad_kernel",
    "kernels/test_shape_functions",
    "embed_gradient/test_shape_errors",
    "kernels/test_built_in_kernel",
    "graph/test_pruning",
    "graph/test_pruning_malformed",
    "graph/test_pruning_order",
    "graph/test_without_python",
    "saved_model/test_fresh_process",
    "graph/test_xla",
)
# Tests that do not run the op library inside of TensorFlow, but compilers and other programs, or only read the sources;
# and those that measure memory, of which a sanitizer takes its share.
OTHER_TESTS = (
    "docs/test_benchmarks",
    "docs/test_demo",
    "docs/test_examples",
    "docs/test_pages",
    "kernels/test_contraction",
    "kernels/test_cuda_check",
    "kernels/test_cuda_kernels",
    "packaging/test_bazel_files",
    "packaging/test_build",
    "packaging/test_build_cuda",
    "packaging/test_build_library",
    "packaging/test_structure",
    "packaging/test_tensorflow_versions",
    "qa/",
    "support/",
)


@dataclasses.dataclass
class Outcome:
    """The outcome of one part."""

    part: str
    ran: str
    result: str  # "clean", "FOUND", or why it was skipped.
    seconds: float = 0.0
    figures: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The choices of the command line."""

    seconds: int = 30
    seed: int = 1
    tests: tuple[str, ...] = CORE_TESTS


def build_program(
    name: str, compiler: Sequence[str], flags: Sequence[str], sources: Sequence[str], folder: pathlib.Path = FOLDER
) -> pathlib.Path:
    """Compiles the changed sources of a program, and links it."""
    folder.mkdir(parents=True, exist_ok=True)
    commands = {".cc": [*compiler, "-std=c++17", *FLAGS, *flags, "-I."]}
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(lambda source: compile_source(commands, source), sources))
    program = folder / name
    run([*compiler, *flags, "-pthread", "-o", str(program), *map(str, objects)])
    return program


@functools.cache
def find_clang() -> str | None:
    """A clang++ that has libFuzzer, of any version; Debian has its runtime in a package of its own."""
    probe = ["-fsanitize=fuzzer,address", "-x", "c++", "-", "-o", os.devnull]
    target = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    for name in ("clang++", *(f"clang++-{version}" for version in range(22, 13, -1))):
        if shutil.which(name):
            result = subprocess.run([name, *probe], input=target, text=True, capture_output=True, check=False)
            if result.returncode == 0:
                return name
    return None


@functools.cache
def without_randomized_addresses() -> list[str]:
    """The command before a program: older sanitizers fail where the kernel spreads addresses widely."""
    probe = ["setarch", "-R", "true"]
    is_allowed = shutil.which("setarch") and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    return probe[:-1] if is_allowed else []


def check(part: str, ran: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Outcome:
    """Runs an instrumented program; prints the end of its output if it found something."""
    start = time.monotonic()
    log = FOLDER / f"{part}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        status = subprocess.run(
            [*without_randomized_addresses(), *map(str, command)],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if status != 0:
        print(f"--- {part} ended with {status}; the end of {log}:")
        print("\n".join(log.read_text(errors="replace").splitlines()[-60:]), flush=True)
    seconds = time.monotonic() - start
    return Outcome(part, ran, "clean" if status == 0 else "FOUND", seconds, figures_in(log.read_text(errors="replace")))


# The figures that the programs and pytest print.
FIGURES = {
    "runs": r"number_of_executed_units: (\d+)|^(\d+) runs, \d+ (?:products|graphs)",
    "products": r"^\d+ runs, (\d+) products",
    "coverage_edges": r"cov: (\d+) ft: \d+.*\Z",
    "tests_passed": r"(\d+) passed",
    "tests_failed": r"(\d+) failed",
}


def figures_in(text: str) -> dict[str, float]:
    """The last of each of the figures that are there."""
    figures = {}
    for name, pattern in FIGURES.items():
        found = re.findall(pattern.removesuffix(r".*\Z"), text, re.MULTILINE)
        if found:
            last = found[-1]
            figures[name] = int(last if isinstance(last, str) else next(filter(None, last)))
    return figures


def fuzz_shapes(settings: Settings) -> Outcome:
    """The arithmetic on shapes and strides, by libFuzzer."""
    ran = f"libFuzzer on alignment, plans and GPU schedules, {settings.seconds} s"
    clang = find_clang()
    if clang is None:
        return Outcome("shapes", ran, "skipped: there is no clang++ with libFuzzer (make install-clang)")
    program = build_program("fuzz_shapes", [clang], FUZZER, SHAPES)
    # The largest memory that a process ever had counts, even that of a large process before it started this one: hence
    # a limit for each allocation alone.
    memory = ["-rss_limit_mb=0", "-malloc_limit_mb=2048"]
    limits = [f"-max_total_time={settings.seconds}", "-max_len=256", "-len_control=0", f"-seed={settings.seed}"]
    return check("shapes", ran, [program, *limits, *memory, "-print_final_stats=1", f"-artifact_prefix={FOLDER}/"])


def check_memory(settings: Settings) -> Outcome:
    """The arithmetic of the CPU kernels, by AddressSanitizer and UndefinedBehaviorSanitizer."""
    program = build_program("contract-memory", ["g++"], MEMORY, ARITHMETIC)
    ran = f"AddressSanitizer, UBSan on the CPU kernels, {settings.seconds} s"
    return check("memory", ran, [program, str(settings.seconds), str(settings.seed), "1"])


def check_threads(settings: Settings) -> Outcome:
    """The same from several threads at once, by ThreadSanitizer."""
    program = build_program("contract-threads", ["g++"], THREADS, ARITHMETIC)
    ran = f"ThreadSanitizer on the CPU kernels, 3 calls on 4 threads, {settings.seconds} s"
    options = {"TSAN_OPTIONS": "halt_on_error=1"}
    return check("threads", ran, [program, str(settings.seconds), str(settings.seed), "4"], options)


def check_passes(settings: Settings) -> Outcome:
    """The graph passes from several threads at once, by ThreadSanitizer."""
    graphs = FOLDER / "graphs"
    shutil.rmtree(graphs, ignore_errors=True)
    graphs.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, f"{HARNESSES}/graphs.py", str(graphs)], cwd=ROOT, env=environment, check=True)
    program = FOLDER / "passes"
    paths = [f"-Wl,-rpath,{flag.removeprefix('-L')}" for flag in tensorflow_flags()[1] if flag.startswith("-L")]
    build_with_tensorflow(program, ["-pthread", *paths], PASSES, None, [WITH_CC], PASS_FLAGS)
    ran = f"ThreadSanitizer on the graph passes, 4 threads, {settings.seconds} s"
    # How TensorFlow's own functions lock is not seen, since they are not instrumented: what they read and write is left
    # out.
    options = {"TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return check("passes", ran, [program, str(settings.seconds), "4", *sorted(graphs.iterdir())], options)


def build_instrumented_package() -> pathlib.Path:
    """Makes a copy of the project with an instrumented op library; the real one stays unchanged."""
    copy = FOLDER / "project"
    for name in ("tf_cg_ops", "tests", "qa", "build_ops", "docs", "examples", "pyproject.toml", "README.md"):
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.log")
            shutil.copytree(source, copy / name, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy(source, copy / name)
    build_library(copy / "tf_cg_ops" / "_ops.so", [*WITHOUT_CUDA, *SOURCES], None, [], LIBRARY_FLAGS)
    build_library(copy / "tf_cg_ops" / "_ops_with_cc.so", SOURCES_WITH_CC, None, [WITH_CC], LIBRARY_FLAGS)
    return copy


def preload() -> str:
    """Libraries that must be loaded first: the sanitizer's, and the one whose exceptions it watches."""
    names = ("libasan.so", "libstdc++.so.6")
    ask = [["g++", f"-print-file-name={name}"] for name in names]
    return " ".join(subprocess.run(a, stdout=subprocess.PIPE, text=True, check=True).stdout.strip() for a in ask)


def check_in_tensorflow(
    part: str, ran: str, command: Sequence[str], package: pathlib.Path, leaks: bool = False
) -> Outcome:
    """Runs Python with the sanitizer's runtime in it; `package` is the folder that tf_cg_ops is imported from."""
    reports = FOLDER / f"{part}-reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    # pytest keeps what a test prints, and loses it when the process dies: hence files. Requests for more memory than
    # there is are answered as malloc answers them, and less is kept of what was freed than tests allow memory to grow.
    # There are always leaks, of others: they must not decide the status.
    common = f"log_path={reports}/report"
    options = f"{common}:allocator_may_return_null=1:quarantine_size_mb=64:detect_leaks="
    memory = options + ("1:exitcode=0" if leaks else "0")
    environment = {
        "LD_PRELOAD": preload(),
        "ASAN_OPTIONS": memory,
        "UBSAN_OPTIONS": f"{common}:print_stacktrace=1",
        "PYTHONPATH": str(package),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    outcome = check(part, ran, command, environment)
    # Also of processes that a test started and did not ask how they ended.
    for report in sorted(reports.iterdir()):
        for finding in findings_in(report.read_text(errors="replace")):
            outcome.result = "FOUND"
            print(f"--- {report}:\n{finding[:20000]}", flush=True)
    return outcome


# The paths of sources are relative, and others have no lines.
OUR_FRAME = re.compile(r"^ +#\d+ .* (cc|cuda|qa|tests)/[\w/]+\.\w+:\d+", re.MULTILINE)


def findings_in(report: str) -> list[str]:
    """The findings of a report about this library: faults, which end the process, and leaks with our code on the stack.

    Python and TensorFlow leak thousands of times, and so do libraries that they load. To suppress these by name would
    suppress ours as well, since a suppression looks at the whole stack, and TensorFlow is on each of ours.
    """
    if re.search("ERROR: AddressSanitizer|runtime error: ", report):
        return [report]
    return [record for record in report.split("\n\n") if " leak of " in record and OUR_FRAME.search(record)]


def all_tests() -> list[str]:
    """The files of tests that run the op library."""
    tests = sorted(f"{path.parent.name}/{path.stem}" for path in (ROOT / "tests").glob("*/test_*.py"))
    return [test for test in tests if not test.startswith(OTHER_TESTS)]


def check_library(settings: Settings) -> Outcome:
    """The op library inside of TensorFlow, by AddressSanitizer and UndefinedBehaviorSanitizer."""
    copy = build_instrumented_package()
    files = [str(copy / "tests" / f"{test}.py") for test in settings.tests]
    parallel = ["-n", str(len(os.sched_getaffinity(0))), "--dist", "loadfile"]
    where = ["--rootdir", str(copy), "-c", str(copy / "pyproject.toml")]
    command = [sys.executable, "-m", "pytest", *parallel, *where, *files]
    ran = f"AddressSanitizer, UBSan on _ops.so in {len(files)} test files"
    return check_in_tensorflow("library", ran, command, copy)


def check_leaks(_: Settings) -> Outcome:
    """The op library inside of TensorFlow, by LeakSanitizer."""
    copy = build_instrumented_package()
    ran = "LeakSanitizer on _ops.so: kernels, passes, gradients without Python"
    return check_in_tensorflow("leaks", ran, [sys.executable, f"{HARNESSES}/leaks.py"], copy, leaks=True)


PARTS: Mapping[str, Callable[[Settings], Outcome]] = {
    "shapes": fuzz_shapes,
    "memory": check_memory,
    "threads": check_threads,
    "passes": check_passes,
    "leaks": check_leaks,
    "library": check_library,
}


def table(outcomes: Sequence[Outcome]) -> str:
    """One line for each part."""
    rows = [("part", "what ran", "result", "seconds")]
    rows += [(o.part, o.ran, o.result, f"{o.seconds:.0f}") for o in outcomes]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python3 -m build_ops.sanitize", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--seconds", type=int, default=30, help="how long each random part runs")
    parser.add_argument("--seed", type=int, default=1, help="for the random parts")
    parser.add_argument(
        "--tests", nargs="+", default=CORE_TESTS, help="files for the part library, as graph/test_xla; or all"
    )
    parser.add_argument("--json", type=pathlib.Path, help="a file for the outcomes")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    tests = all_tests() if arguments.tests == ["all"] else arguments.tests
    missing = [test for test in tests if not (ROOT / "tests" / f"{test}.py").is_file()]
    if missing:
        parser.error(f"--tests: expected names of files in tests, such as graph/test_xla, got {', '.join(missing)}")
    settings = Settings(arguments.seconds, arguments.seed, tuple(tests))
    outcomes = [PARTS[part](settings) for part in arguments.parts or PARTS]
    print(table(outcomes))
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(o) for o in outcomes], indent=2) + "\n")
    sys.exit(any(outcome.result == "FOUND" for outcome in outcomes))


if __name__ == "__main__":
    main()
