"""Runs the C++ side under sanitizers: python3 -m qa.sanitize.run [PARTS], or make sanitize.

Every part builds its programs in a folder below build/. If it finds something, it prints the report and the exit status
is 1.
"""

import argparse
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from build_ops.compiler import COMPILE_FLAGS, ROOT, WITH_CC, build_library, build_with_tensorflow, compile_files, run
from build_ops.sources import SOURCES, SOURCES_WITH_CC, WITHOUT_CUDA
from build_ops.tensorflow import tensorflow_flags

FOLDER = ROOT / "build" / "sanitize"
HARNESSES = "qa/sanitize"

# With -O1 and frame pointers, reports name the lines. (The last -O counts.)
LINES = ("-O1", "-g", "-fno-omit-frame-pointer")
FUZZER = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")
# No checks for null pointers: AddressSanitizer finds them anyway, and the checks take half of the compile time.
MEMORY = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute,object-size",
)
THREADS = ("-fsanitize=thread",)
# TensorFlow in the same process is built without sanitizers, so some options must differ:
# - Abseil's and protobuf's types have another layout if their headers see AddressSanitizer.
# - vptr needs type information that TensorFlow's libraries do not export.
# - With checks for null pointers, g++ rejects constant expressions in Abseil.
# - Fortified functions of the C library bypass the sanitizer's.
LIBRARY_FLAGS = (
    *LINES,
    *("-U_FORTIFY_SOURCE", "-U__SANITIZE_ADDRESS__"),
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr,null,nonnull-attribute,returns-nonnull-attribute",
    "-fno-sanitize-recover=undefined",
)
# Only for the passes, in a program that is linked against TensorFlow. Its headers must look the same, too.
PASS_FLAGS = (*LINES, "-U__SANITIZE_THREAD__", *THREADS)

SHAPES = (
    f"{HARNESSES}/fuzz_shapes.cc",
    "cc/lib/alignment.cc",
    "cc/lib/contraction_plan.cc",
    "cc/lib/messages.cc",
    "cuda/schedule.cc",
)
ARITHMETIC = (
    *(source for source in SOURCES if source.startswith("cc/lib/block_kernels")),  # By far the slowest, so first.
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
TESTS = (
    "kernels/test_raw_ops",
    "kernels/test_embed_grad_kernel",
    "kernels/test_shape_functions",
    "embed_gradient/test_shape_errors",
    "kernels/test_built_in_kernel",
    "graph/test_pruning",
    "graph/test_pruning_malformed",
    "graph/test_pruning_side_effects",
    "graph/test_without_python",
    "graph/test_xla",
)

# How programs and pytest print how much they did.
AMOUNT = re.compile(r"number_of_executed_units: \d+|^\d+ runs, .*$|\d+ passed.*?(?= in )", re.MULTILINE)


def build_program(name, compiler, flags, sources):
    """Compiles the changed sources of a program, and links it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    commands = {".cc": [compiler, "-std=c++17", *COMPILE_FLAGS, *LINES, *flags, "-I."]}
    objects = compile_files(commands, sources)
    program = FOLDER / name
    run([compiler, *flags, "-pthread", "-o", str(program), *map(str, objects)])
    return program


@functools.cache
def find_clang():
    """A clang++ of any version that has libFuzzer, or None. (Debian packages libFuzzer's runtime separately.)"""
    probe = ["-fsanitize=fuzzer,address", "-x", "c++", "-", "-o", os.devnull]
    target = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    for name in ("clang++", *(f"clang++-{version}" for version in range(22, 13, -1))):
        if shutil.which(name):
            result = subprocess.run([name, *probe], input=target, text=True, capture_output=True, check=False)
            if result.returncode == 0:
                return name
    return None


@functools.cache
def without_randomized_addresses():
    """A prefix for the command: older sanitizers fail if the kernel randomizes addresses widely."""
    probe = ["setarch", "-R", "true"]
    is_allowed = shutil.which("setarch") and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    return probe[:-1] if is_allowed else []


def check(part, ran, command, **environment):
    """Runs an instrumented program; prints the end of its output if it found something. Returns the outcome."""
    log = FOLDER / f"{part}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [*without_randomized_addresses(), *map(str, command)]
    with log.open("w") as file:
        status = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    text = log.read_text(errors="replace")
    if status != 0:
        print(f"--- {part} ended with {status}; the end of {log}:")
        print("\n".join(text.splitlines()[-60:]), flush=True)
    amounts = AMOUNT.findall(text)
    return {"part": ran, "result": "FOUND" if status else "clean", "amount": amounts[-1] if amounts else ""}


def check_shapes(seconds, seed, tests):
    """The arithmetic on shapes and strides, by libFuzzer."""
    ran = f"libFuzzer on alignment, plans and GPU schedules, {seconds} s"
    clang = find_clang()
    if clang is None:
        skipped = "skipped: clang++ with libFuzzer is missing (make install-clang)"
        return {"part": ran, "result": skipped, "amount": ""}
    program = build_program("fuzz_shapes", clang, FUZZER, SHAPES)
    # The largest memory that a process ever had counts, even that of a large process before it started this one: hence
    # a limit for each allocation alone.
    memory = ["-rss_limit_mb=0", "-malloc_limit_mb=2048"]
    limits = [f"-max_total_time={seconds}", "-max_len=256", "-len_control=0", f"-seed={seed}"]
    return check("shapes", ran, [program, *limits, *memory, "-print_final_stats=1", f"-artifact_prefix={FOLDER}/"])


def check_memory(seconds, seed, tests):
    """The arithmetic of the CPU kernels, by AddressSanitizer and UndefinedBehaviorSanitizer."""
    program = build_program("contract-memory", "g++", MEMORY, ARITHMETIC)
    return check("memory", f"AddressSanitizer, UBSan on the CPU kernels, {seconds} s", [program, seconds, seed, 1])


def check_threads(seconds, seed, tests):
    """The same from several threads at once, by ThreadSanitizer."""
    program = build_program("contract-threads", "g++", THREADS, ARITHMETIC)
    ran = f"ThreadSanitizer on the CPU kernels, 3 calls on 4 threads each, {seconds} s"
    return check("threads", ran, [program, seconds, seed, 4], TSAN_OPTIONS="halt_on_error=1")


def check_passes(seconds, seed, tests):
    """The graph passes from several threads at once, by ThreadSanitizer."""
    graphs = FOLDER / "graphs"
    shutil.rmtree(graphs, ignore_errors=True)
    graphs.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, f"{HARNESSES}/graphs.py", str(graphs)], cwd=ROOT, env=environment, check=True)
    program = FOLDER / "passes"
    paths = [f"-Wl,-rpath,{flag.removeprefix('-L')}" for flag in tensorflow_flags()[1] if flag.startswith("-L")]
    build_with_tensorflow(program, ["-pthread", *paths], PASSES, None, [WITH_CC], PASS_FLAGS)
    ran = f"ThreadSanitizer on the graph passes, 4 threads, {seconds} s"
    # TensorFlow's functions are not instrumented, so the sanitizer does not see their locks. Their accesses are ignored.
    options = {"TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return check("passes", ran, [program, seconds, 4, *sorted(graphs.iterdir())], **options)


def build_instrumented_package():
    """Makes a copy of the project with an instrumented op library. The real one stays as it is."""
    copy = FOLDER / "project"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", "*.so")
    shutil.copytree(ROOT, copy, ignore=ignored, dirs_exist_ok=True)
    build_library(copy / "tf_cg_ops" / "_ops.so", [*WITHOUT_CUDA, *SOURCES], None, [], LIBRARY_FLAGS)
    build_library(copy / "tf_cg_ops" / "_ops_with_cc.so", SOURCES_WITH_CC, None, [WITH_CC], LIBRARY_FLAGS)
    return copy


def check_in_tensorflow(part, ran, command, package, leaks=False):
    """Runs Python with the sanitizer's runtime in it; `package` is the folder that tf_cg_ops is imported from."""
    reports = FOLDER / f"{part}-reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    # Reports go to files, because pytest loses what a test printed if the process dies. As with malloc, too large a request
    # returns null. The quarantine for freed memory is smaller than the growth that tests allow. Other libraries always
    # leak, so leaks do not decide the exit status.
    common = f"log_path={reports}/report"
    # Libraries that must be loaded first: the sanitizer's, and the one whose exceptions it watches.
    ask = [["g++", f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so.6")]
    first = [subprocess.run(a, stdout=subprocess.PIPE, text=True, check=True).stdout.strip() for a in ask]
    options = f"{common}:allocator_may_return_null=1:quarantine_size_mb=64:detect_leaks="
    outcome = check(
        part,
        ran,
        command,
        LD_PRELOAD=" ".join(first),
        ASAN_OPTIONS=options + ("1:exitcode=0" if leaks else "0"),
        UBSAN_OPTIONS=f"{common}:print_stacktrace=1",
        PYTHONPATH=str(package),
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    # These include reports of processes that a test started without checking how they ended.
    for report in sorted(reports.iterdir()):
        for finding in findings_in(report.read_text(errors="replace")):
            outcome["result"] = "FOUND"
            print(f"--- {report}:\n{finding[:20000]}", flush=True)
    return outcome


# Paths of our sources are relative; frames of other libraries have no lines.
OUR_FRAME = re.compile(r"^ +#\d+ .* (cc|cuda|qa|tests)/[\w/]+\.\w+:\d+", re.MULTILINE)


def findings_in(report):
    """What a report says about this library: faults, which end the process, and leaks with our code on the stack.

    Python, TensorFlow and the libraries that they load leak thousands of times. We cannot suppress these by name: a
    suppression looks at the whole stack, and TensorFlow is on every one of ours, too.
    """
    if re.search("ERROR: AddressSanitizer|runtime error: ", report):
        return [report]
    return [record for record in report.split("\n\n") if " leak of " in record and OUR_FRAME.search(record)]


def check_library(seconds, seed, tests):
    """The op library inside of TensorFlow, by AddressSanitizer and UndefinedBehaviorSanitizer."""
    copy = build_instrumented_package()
    where = ["-n", "auto", "--dist", "loadfile", "--rootdir", str(copy), "-c", str(copy / "pyproject.toml")]
    command = [sys.executable, "-m", "pytest", *where, *(str(copy / "tests" / f"{test}.py") for test in tests)]
    ran = f"AddressSanitizer, UBSan on _ops.so in {len(tests)} test files"
    return check_in_tensorflow("library", ran, command, copy)


def check_leaks(seconds, seed, tests):
    """The op library inside of TensorFlow, by LeakSanitizer."""
    copy = build_instrumented_package()
    ran = "LeakSanitizer on _ops.so: kernels, passes, gradients without Python"
    return check_in_tensorflow("leaks", ran, [sys.executable, f"{HARNESSES}/leaks.py"], copy, leaks=True)


PARTS = {
    "shapes": check_shapes,
    "memory": check_memory,
    "threads": check_threads,
    "passes": check_passes,
    "leaks": check_leaks,
    "library": check_library,
}


def main():
    """The command line."""
    parser = argparse.ArgumentParser(prog="python3 -m qa.sanitize.run", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--seconds", type=int, default=30, help="how long each random part runs")
    parser.add_argument("--seed", type=int, default=1, help="for the random parts")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files for the part library, such as graph/test_xla")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the outcomes")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"parts must be among {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    outcomes = [PARTS[part](arguments.seconds, arguments.seed, arguments.tests) for part in arguments.parts or PARTS]
    lines = ",\n".join(map(json.dumps, outcomes))
    print(lines)
    if arguments.json:
        arguments.json.write_text(f"[\n{lines}\n]\n")
    sys.exit(any(outcome["result"] == "FOUND" for outcome in outcomes))


if __name__ == "__main__":
    main()
