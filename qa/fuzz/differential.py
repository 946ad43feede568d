"""embed_gradient in every mode against NumPy, for any number of cases by hypothesis."""

import argparse
import collections
import concurrent.futures
import json
import subprocess
import sys

import hypothesis
import numpy as np

from tests.support import reference
from tests.support.tensors import GRADIENT_RTOL

from . import derivatives
from .cases import cases
from .modes import MODES
from .raw_ops import ROOT

# A process ends after so many examples, because TensorFlow keeps much of each trace.
EXAMPLES_OF_A_PROCESS = 2_500

SETTINGS = {
    "deadline": None,  # Traces take as long as they take.
    "database": None,
    "suppress_health_check": list(hypothesis.HealthCheck),
    "print_blob": False,
}


def check(case):
    """Raises AssertionError unless value and gradients are those of NumPy, in eager mode and in the case's mode."""
    arrays, run, expected = case.arrays(), derivatives.by_tensorflow(case), derivatives.by_numpy(case)
    rtol = GRADIENT_RTOL[case.dtype] * (1 if case.order == 1 else 100)
    for mode in dict.fromkeys(("eager", case.mode)):
        value, *gradients = MODES[mode](run, arrays)
        np.testing.assert_array_equal(value, arrays[0], err_msg=f"value, {mode}")
        for index, (actual, e) in enumerate(zip(gradients, expected[1:], strict=True)):
            about = f"gradient {index}, {mode}"
            assert actual.shape == e.shape, about
            assert actual.dtype == case.dtype.as_numpy_dtype, about
            scale = max(4.0 * np.sqrt(1 + arrays[0].size * arrays[1].size), float(np.max(np.abs(e), initial=0.0)))
            np.testing.assert_allclose(reference.widen(actual), e, rtol=rtol, atol=rtol * scale, err_msg=about)


def run_here(examples, seed):
    """The counts, and the smallest case that fails with its error, or None."""
    counts = collections.Counter()
    failed = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=examples, **SETTINGS)
    @hypothesis.given(cases())
    def checked(case):
        counts.update(
            (
                "examples",
                f"mode {case.mode}",
                f"dtype {case.dtype.name}",
                f"order {case.order}",
                f"manually stopped {case.manually_stopped}",
            )
        )
        try:
            check(case)
        except Exception as error:  # Of any kind: hypothesis looks for a smaller case.
            failed["failure"], failed["case"] = f"{type(error).__name__}: {error}"[:2000], repr(case)
            raise

    try:
        checked()
    except Exception as error:
        failed.setdefault("failure", repr(error))
    return counts, failed | {"seed": seed} if failed else None


def run(examples, seed=0, processes=1):
    """The same in processes of their own. Returns the failures, and a summary."""
    sizes = [min(EXAMPLES_OF_A_PROCESS, examples - start) for start in range(0, examples, EXAMPLES_OF_A_PROCESS)]
    counts, failures = collections.Counter(), []
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        for found in pool.map(_run_in_process, sizes, range(seed, seed + len(sizes))):
            counts.update(found["counts"])
            failures += [found["failed"]] if found["failed"] else []
            print(f"{counts['examples']:,} examples, {len(failures)} failures", file=sys.stderr, flush=True)
    return failures, {"counts": counts, "failures": failures, "first_seed": seed}


def _run_in_process(examples, seed):
    result = subprocess.run(
        [sys.executable, "-m", f"{__package__}.differential", str(examples), str(seed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        return {"counts": {}, "failed": {"seed": seed, "failure": result.stderr[-2000:], "status": result.returncode}}
    return json.loads(result.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", type=int)
    parser.add_argument("seed", type=int)
    arguments = parser.parse_args()
    counts, failed = run_here(arguments.examples, arguments.seed)
    print(json.dumps({"counts": counts, "failed": failed}))


if __name__ == "__main__":
    main()
