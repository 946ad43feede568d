"""Injects plausible faults into a copy of the C++ sources, one at a time. Tests must fail for each.

    python -m qa.faults [--only TEXT] [--json FILE]

The exit status is 1 if the tests miss a fault.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

from tests.support.sources import ROOT

# For the tests of one fault, in seconds: a fault can make a program run forever.
TIME_LIMIT = 900


class Fault(NamedTuple):
    """`right` occurs once in the file. If `wrong` replaces it, one of the tests must fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


ARITHMETIC = ("kernels/test_embed_grad_kernel.py", "embed_gradient/test_shape_table.py", "kernels/test_contraction.py")

FAULTS = (
    Fault(
        "a stride that is one too large",
        "cc/lib/contraction_plan.cc",
        "stride *= dims[i];",
        "stride *= dims[i] + (i == 1);",
        ARITHMETIC,
    ),
    Fault(
        "the last number of a row not written",
        "cc/lib/block_kernels_inl.h",
        "if (i < count) multiply_part(i, count - i);",
        "if (i + 1 < count) multiply_part(i, count - i);",
        ARITHMETIC,
    ),
    Fault(
        "earlier partial sums dropped",
        "cc/lib/contraction.cc",
        "sums[i] += partial[i];",
        "sums[i] = partial[i];",
        ARITHMETIC,
    ),
    Fault(
        "float32 summed in float32",
        "cc/lib/arithmetic.h",
        "struct Arithmetic<float> : ArithmeticTypes<float, float, double, 1> {};",
        "struct Arithmetic<float> : ArithmeticTypes<float, float, float, 1> {};",
        ("kernels/test_exact_numbers.py",),
    ),
    Fault(
        "the output written over an operand that is still read",
        "cc/kernels/embed_grad_plan.cc",
        "if (plan.RhsIsElementwise()) reusable.push_back(1);",
        "reusable.push_back(1);",
        ("kernels/test_embed_grad_kernel.py",),
    ),
    Fault(
        "a derivative with the rank of x aligned with the batch",
        "cc/lib/alignment.cc",
        "gx.size() >= x.size() ? gx",
        "gx.size() > x.size() ? gx",
        ("embed_gradient/test_shape_errors.py",),
    ),
    Fault(
        "a gradient that claims the shape of its operand",
        "cc/ops/custom_gradient_embed_grad_op.cc",
        "context->set_output(0, out);",
        "context->set_output(0, context->input(0));",
        ("kernels/test_shape_functions.py",),
    ),
    Fault(
        "XLA: a gradient without the conjugate",
        "cc/xla/xla_kernels.cc",
        "if (attributes_.wrt != kFx) right = xla::MaybeConjugate(right, true);",
        "",
        ("graph/test_xla.py",),
    ),
    Fault(
        "without Python: stopped and unstopped gradients swapped",
        "cc/gradients/function_gradients.cc",
        "if (form.manually_stopped) {\n    function.Return(dy",
        "if (!form.manually_stopped) {\n    function.Return(dy",
        ("graph/test_without_python.py",),
    ),
    Fault(
        "the graph pass: control inputs of the op dropped",
        "cc/passes/prune_gradients.cc",
        "for (Node* effect : effects) graph->AddControlEdge(effect, identity);",
        "",
        ("graph/test_pruning_side_effects.py",),
    ),
)


def run(folder, *arguments, **variables):
    """Runs Python in the copy, which takes precedence over installed packages."""
    # A fault can leave something unused, and the compiler warns about it.
    variables |= {"PYTHONPATH": str(folder), "TF_CG_OPS_WERROR": "0"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": os.environ | variables}
    return subprocess.run([sys.executable, *arguments], cwd=folder, check=False, timeout=TIME_LIMIT, **output)


def build(folder):
    """Compiles what changed."""
    built = run(folder, "setup.py", "-q", "build_ext", "--inplace", TF_CG_OPS_CUDA="0")
    if built.returncode != 0:
        raise SystemExit(f"qa: the sources do not compile; expected a library, got\n{built.stdout}")


def first_failure(folder, tests):
    """The first test that fails, or None. If the process crashes, the signal is the name."""
    try:
        done = run(folder, "-m", "pytest", "-x", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests))
    except subprocess.TimeoutExpired:
        return f"no end within {TIME_LIMIT} s"
    if done.returncode <= 0:
        return f"the process died of signal {-done.returncode}" if done.returncode else None
    found = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    # 2 and 4: pytest cannot even collect the file or the test.
    if done.returncode not in (1, 2, 4) or found is None:
        raise SystemExit(f"qa: the tests could not be run; got\n{done.stdout}")
    return found.group(1)


def inject(fault, folder):
    """The name of the test that notices the fault."""
    path = folder / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.right, fault.wrong))
    try:
        build(folder)
        return first_failure(folder, fault.tests)
    finally:
        path.write_text(text)


def main() -> None:
    """Injects all faults, or those that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this in their name")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the outcomes")
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if arguments.only in fault.name]
    rows = []
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
        folder = pathlib.Path(temporary) / "project"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", ".venv", "build", "*.so"))
        build(folder)
        # A test that fails without a fault proves nothing.
        failed = first_failure(folder, sorted({test for fault in faults for test in fault.tests}))
        if failed is not None:
            raise SystemExit(f"qa: a test fails without a fault: {failed}")
        for fault in faults:
            noticed = inject(fault, folder)
            print(f"{fault.name}: {noticed}", file=sys.stderr, flush=True)
            rows.append({"fault": fault.name, "in": fault.file, "noticed by": (noticed or "none").partition("::")[0]})
    if arguments.json:
        arguments.json.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    sys.exit(any(row["noticed by"] == "none" for row in rows))


if __name__ == "__main__":
    main()
