"""Many threads at once that trace, run, differentiate, save and load: the same bits each time, and no deadlock."""

import pytest

from ..support.processes import run_python
from ..support.sources import ROOT

# Each thread does all of the work several times, with numbers of its own; all begin together. A deadlock is killed.
THREADS = """
import hashlib, sys, tempfile, threading
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

inter_op, intra_op, threads, rounds = (int(number) for number in sys.argv[1:])
tf.config.threading.set_inter_op_parallelism_threads(inter_op)
tf.config.threading.set_intra_op_parallelism_threads(intra_op)
tf.get_logger().setLevel("ERROR")

@cg.custom_gradient
def decorated(x, w):
    y = tf.sin(x) * w
    return y, lambda dy: (dy * w * tf.cos(x), tf.reduce_sum(dy * tf.sin(x), 0))

def embedded(x, w):
    rows = x * w
    fx = tf.reduce_sum(rows**2, -1)
    return cg.embed_gradient(fx, 2.0 * rows, rows, axis=-1)

def differentiate(x, w, dy):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, w])
        values = [decorated(x, w), embedded(x, w)]
    return [*values, *tape.gradient(values[0], [x, w], dy), *tape.gradient(values[1], [x, w], dy[:, 0])]

def saved_and_loaded(x, w, dy):
    module = tf.Module()
    module.decorated = tf.function(decorated, input_signature=[tf.TensorSpec(x.shape), tf.TensorSpec(w.shape)])
    module.embedded = tf.function(embedded, input_signature=[tf.TensorSpec([None, 64]), tf.TensorSpec(w.shape)])
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, w])
        values = [loaded.decorated(x, w), loaded.embedded(x, w)]
    return [*values, *tape.gradient(values[0], [x, w], dy), *tape.gradient(values[1], [x, w], dy[:, 0])]

def digest(tensors):
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()

shared = tf.function(differentiate)
WAYS = {
    "eager": differentiate,
    "shared": shared,
    "traced": lambda *args: tf.function(differentiate)(*args),
    "jit": lambda *args: tf.function(differentiate, jit_compile=True)(*args),
    "saved": saved_and_loaded,
}

def work(seed):
    rng = np.random.default_rng(seed)
    x, w, dy = (tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in ([999, 64], [64], [999, 64]))
    # With the thread's own order, so that different things meet.
    names = list(WAYS)[seed % len(WAYS):] + list(WAYS)[: seed % len(WAYS)]
    for _ in range(rounds):
        for name in names:
            found[seed].setdefault(name, set()).add(digest(WAYS[name](x, w, dy)))

found = [{} for _ in range(threads)]
errors, ready = [], threading.Barrier(threads)

def run(seed):
    try:
        ready.wait()
        work(seed)
    except BaseException as error:
        errors.append(repr(error))
        raise

running = [threading.Thread(target=run, args=[seed]) for seed in range(threads)]
for thread in running:
    thread.start()
for thread in running:
    thread.join()
assert not errors, errors
for by_way in found:
    # Graphs are optimised, and XLA adds up in an order of its own: only the same way gives the same bits.
    assert all(len(digests) == 1 for digests in by_way.values()), by_way
print([sorted(by_way[way])[0] for by_way in found for way in sorted(by_way)])
"""


def results(tmp_path, *arguments):
    return run_python(THREADS, *arguments, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}).stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The results of each thread's work with one thread of each kind."""
    return results(tmp_path_factory.mktemp("alone"), 1, 1, 6, 1)


@pytest.mark.parametrize(
    ("inter_op", "intra_op"),
    [(16, 16), *(pytest.param(*threads, marks=pytest.mark.slow) for threads in ((1, 16), (2, 2), (16, 1)))],
)
def test_the_same_bits_from_many_threads(alone, inter_op, intra_op, tmp_path):
    assert results(tmp_path, inter_op, intra_op, 6, 1) == alone
