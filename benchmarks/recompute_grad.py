"""How much memory recompute_grad saves, and what it costs: a deep chain, plain, with tf.recompute_grad, and with ours.

Run with `python benchmarks/recompute_grad.py [--layers N] [--megabytes M] [--output FILE.csv]`. Every variant runs in a
process of its own, since the peak of resident memory is that of a process. The plain chain is the baseline.
"""

import argparse
import csv
import os
import pathlib
import resource
import subprocess
import sys
import time

VARIANTS = ("plain", "tf.recompute_grad", "tf_cg_ops.recompute_grad")
MODES = ("eager", "traced")


def measure(variant: str, mode: str, layers: int, megabytes: int) -> tuple[float, float]:
    """Peak of resident memory in MB above that before the first pass, and the seconds of the fastest pass."""
    import tensorflow as tf

    import tf_cg_ops as cg

    wrap = {"plain": lambda f: f, "tf.recompute_grad": tf.recompute_grad, "tf_cg_ops.recompute_grad": cg.recompute_grad}

    def block(x: tf.Tensor) -> tf.Tensor:
        for _ in range(layers):
            x = tf.sin(x) * tf.cos(x)
        return x

    blocks = [wrap[variant](block) for _ in range(4)]

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for f in blocks:
                y = f(y)
        return tape.gradient(y, x)

    if mode == "traced":
        step = tf.function(step)
    small, x = tf.ones([8]), tf.ones([megabytes * 250_000])
    step(small)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        step(x)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (peak - before) / 1024, min(seconds)


def main() -> None:
    """Runs all variants and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=8, help="the size of one tensor")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(*measure(*options.measure, options.layers, options.megabytes))
        return

    size = ["--layers", str(options.layers), "--megabytes", str(options.megabytes)]
    print(f"4 blocks of {options.layers} layers, tensors of {options.megabytes} MB, {os.cpu_count()} cores")
    rows = [("mode", "variant", "peak_mb", "seconds")]
    for mode in MODES:
        for variant in VARIANTS:
            command = [sys.executable, __file__, *size, "--measure", variant, mode]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            peak, seconds = map(float, answer.stdout.split()[-2:])
            rows.append((mode, variant, f"{peak:.0f}", f"{seconds:.3f}"))
            print("{:8} {:26} peak {:>6} MB  {:>7} s".format(*rows[-1]), flush=True)
    if options.output:
        with options.output.open("w", newline="") as file:
            csv.writer(file).writerows(rows)


if __name__ == "__main__":
    main()
