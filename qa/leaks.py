"""Leaks of many traces, loads of SavedModels, eager calls and tapes: memory, registry entries, graphs.

    python -m qa.leaks [--fraction 0.05] [--json FILE]

Each scenario runs in processes of its own, with this library and, for comparison, with TensorFlow's own operations in
its place; it fails where this library leaves more than those. Growth is a slope: the median of the slopes between
all pairs of samples (Theil and Sen), so that a cache that fills up at once does not count.
"""

import argparse
import ctypes
import gc
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from tests.support.sources import ROOT

SAMPLES = 20
# The repetitions of each scenario in a whole run, and the bytes that one may leave beyond those that TensorFlow's own
# operations leave. The tolerance is far below the smallest leak and above the noise of the allocator: a graph with its
# functions takes about 100 kB, an eager tensor with its tape's record about 1 kB, a reference to either 64 bytes.
SCENARIOS = {
    "traces": (10_000, 4096),
    "loads": (10_000, 4096),
    "eager": (100_000, 32),
    "persistent": (100_000, 32),
}
# Counted beside memory: no number of repetitions may add anything.
COUNTS = ("registry entries", "graphs", "functions")


def slope(samples: list[tuple[float, float]]) -> float:
    """The growth of the second number by the first."""
    return statistics.median(
        (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(samples, 2) if x2 != x1
    )


def resident() -> int:
    """The bytes of memory that this process has, without those that the allocator can give back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def counts() -> list[int]:
    """The numbers of `COUNTS`."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import func_graph, ops

    graphs = sum(issubclass(type(o), func_graph.FuncGraph) for o in gc.get_objects())
    return [len(ops.gradient_registry.list()), graphs, len(context.context().list_function_names())]


def functions(which: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two functions of one argument with the same values and gradients: of this library or of TensorFlow."""
    import tensorflow as tf

    if which == "built-in":
        return (lambda x: tf.sin(x) * x), (lambda x: x**2)
    import tf_cg_ops as cg

    @cg.custom_gradient
    def decorated(x: Any) -> Any:
        return tf.sin(x) * x, lambda dy: dy * (tf.cos(x) * x + tf.sin(x))

    if which == "injected":  # Leaks a kilobyte each time, so that a test can show that leaks are found.
        kept = []
        return (lambda x: (kept.append(bytearray(1024)), decorated(x))[1]), (lambda x: x**2)
    return decorated, lambda x: cg.embed_gradient(x**2, 2.0 * x, x)


def scenario(name: str, which: str) -> Callable[[], None]:
    """The function to repeat."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # Its advice not to trace that often.
    one, other = functions(which)
    x, dy = tf.constant([1.0, 2.0]), tf.constant([1.0, 10.0])

    def differentiate(x: Any, persistent: bool = False) -> Any:
        with tf.GradientTape(persistent=persistent) as tape:
            tape.watch(x)
            values = [one(x), other(x)]
        if not persistent:
            return tape.gradient(values, x, [dy, dy])
        return [tape.gradient(value, x, dy) for value in values]

    if name == "traces":
        return lambda: tf.function(lambda x: differentiate(x), autograph=False)(x)
    if name == "loads":
        module = tf.Module()
        module.run = tf.function(lambda x: one(x) + other(x), input_signature=[tf.TensorSpec([2])], autograph=False)
        folder = tempfile.mkdtemp(prefix="tf_cg_ops-")
        tf.saved_model.save(module, folder)

        def load() -> None:
            loaded = tf.saved_model.load(folder)
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = loaded.run(x)
            tape.gradient(value, x, dy)

        return load
    return lambda: differentiate(x, persistent=name == "persistent")


def measure(name: str, which: str, repetitions: int) -> list[list[int]]:
    """The repetitions done, the bytes and the counts, from time to time."""
    repeat = scenario(name, which)
    step = max(1, repetitions // SAMPLES)
    for _ in range(step):  # Caches fill up.
        repeat()
    samples = [[0, resident(), *counts()]]
    for number in range(1, SAMPLES + 1):
        for _ in range(step):
            repeat()
        samples.append([number * step, resident(), *counts()])
        print(f"{name}, {which}: {number * step:,} of {SAMPLES * step:,}", file=sys.stderr, flush=True)
    return samples


def measure_alone(name: str, which: str, repetitions: int) -> list[list[int]]:
    """The same in a process of its own."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    command = [sys.executable, "-m", "qa.leaks", "--child", name, which, str(repetitions)]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def row(name: str, which: str, samples: list[list[int]]) -> dict[str, Any]:
    """The bytes that one repetition leaves, and the counts that all of them added."""
    added = {count: last - first for count, first, last in zip(COUNTS, samples[0][2:], samples[-1][2:], strict=True)}
    per_repetition = slope([(sample[0], sample[1]) for sample in samples])
    found = {"scenario": name, "with": which, "repetitions": samples[-1][0], "bytes each": round(per_repetition, 1)}
    return found | added


def is_leak(ours: dict[str, Any], built_in: dict[str, Any]) -> bool:
    """Whether the first leaks more than the second, beyond the tolerance."""
    _, tolerance = SCENARIOS[ours["scenario"]]
    return ours["bytes each"] > built_in["bytes each"] + tolerance or any(
        ours[count] > built_in[count] for count in COUNTS
    )


def main() -> None:
    """Measures all scenarios and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fraction", type=float, default=1.0, help="of the repetitions; caches show in small ones")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    parser.add_argument("--child", nargs=3, metavar=("SCENARIO", "WHICH", "REPETITIONS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, which, repetitions = options.child
        print(json.dumps(measure(name, which, int(repetitions))))
        return
    rows, leaking = [], []
    for name, (repetitions, _) in SCENARIOS.items():
        times = max(SAMPLES, int(options.fraction * repetitions))
        ours, built_in = (row(name, which, measure_alone(name, which, times)) for which in ("ours", "built-in"))
        for found in (ours, built_in):
            print(found, flush=True)
        rows += [ours, built_in]
        leaking += [name] if is_leak(ours, built_in) else []
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if leaking:
        raise SystemExit(f"qa: more is left behind than by TensorFlow's own operations: {', '.join(leaking)}")


if __name__ == "__main__":
    main()
