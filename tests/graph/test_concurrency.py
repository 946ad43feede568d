"""Many threads at once that trace, run, differentiate, save and load: the same bits each time, and no deadlock."""

import json

import numpy as np

from ..support.processes import run_python
from ..support.sources import ROOT

# All threads begin together, and each does all of the work with its own numbers. A deadlock is killed. Only results of
# the same kind have equal bits, because TensorFlow optimises graphs, and XLA adds in another order.
THREADS = """
import concurrent.futures, hashlib, sys, tempfile, threading
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

inter_op, intra_op, threads = (int(number) for number in sys.argv[1:])
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
    # In the thread's own order, so that different things meet.
    names = list(WAYS)[seed % len(WAYS):] + list(WAYS)[: seed % len(WAYS)]
    ready.wait()
    return {name: digest(WAYS[name](x, w, dy)) for name in names}

ready = threading.Barrier(threads)
with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    found = list(pool.map(work, range(threads)))
print([by_way[way] for by_way in found for way in sorted(by_way)])
"""


def results(tmp_path, *arguments):
    return run_python(THREADS, *arguments, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}).stdout


def test_the_same_bits_from_many_threads(tmp_path):
    """16 threads of each kind find the same as one."""
    assert results(tmp_path, 16, 16, 6) == results(tmp_path, 1, 1, 6)


# For functions that keep traces: makes a function of x that all threads share, with the value W sin(x).
FIRST_CALLS = """
import concurrent.futures, json, sys, threading
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

names, threads = sys.argv[1].split(), int(sys.argv[2])
W = tf.Variable(1.5, dtype=tf.float64)

def plain(x):
    return W * tf.sin(x)

def custom_gradient():
    def function(x):
        return plain(x), lambda dy, variables: (dy * W * tf.cos(x), [tf.reduce_sum(dy * tf.sin(x))])
    return cg.custom_gradient(function)

def recompute_grad():
    return cg.recompute_grad(lambda x: plain(x))

def override_gradients():
    return cg.override_gradients(lambda x: plain(x), {"Sin": cg.rules.built_in})

def scan():
    def step(carry, x):
        return carry + plain(x), plain(x)
    return lambda x: cg.scan(step, tf.zeros([], tf.float64), x)[1]

def while_loop():
    def body(t, x, total):
        return t + 1, x, total + plain(x) / 3.0
    return lambda x: cg.while_loop(lambda t, x, total: t < 3, body, (0, x, tf.zeros_like(x)), maximum_iterations=5)[2]

def numpy_function():
    function = cg.numpy_function(lambda x: (np.sin(x), np.cos(x)))
    return lambda x: W * function(x)

def implicit_root():
    # y = sin(x), by y**3 + y = sin(x)**3 + sin(x).
    def residual(y, x):
        return y**3 + y - tf.sin(x) ** 3 - tf.sin(x)
    function = cg.implicit_root(residual)(lambda x: tf.sin(x))
    return lambda x: W * function(x)

def Recompute():
    import keras

    class Layer(keras.layers.Layer):
        def call(self, x):
            return plain(x)

    layer = cg.layers.Recompute(Layer(dtype="float64"), dtype="float64")
    layer.build([3])
    return layer

def vjp(function, x, dy):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return [t.numpy().tolist() for t in [y, *map(tf.convert_to_tensor, tape.gradient(y, [x, W], dy))]]

functions, ready = [], threading.Barrier(threads)

def work(number):
    results = []
    x = tf.constant([0.1 * number, 1.0, 2.0 - number], tf.float64)
    dy = tf.constant([1.0, 10.0 + number, 100.0], tf.float64)
    for name in names * 2:
        ready.wait()
        if number == 0:
            functions.append(globals()[name]())
        ready.wait()  # All threads make the first call at once.
        function = functions[-1]
        for _ in range(2):
            results.append([name, x.numpy().tolist(), dy.numpy().tolist(), *vjp(function, x, dy)])
        ready.wait()
    return results

def run(number):
    try:
        return work(number)
    except BaseException:
        ready.abort()  # The other threads stop waiting for this one.
        raise

with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    results = sum(pool.map(run, range(threads)), [])
print(json.dumps({"results": results, "W": float(W)}))
"""

FUNCTIONS = [
    "custom_gradient",
    "recompute_grad",
    "override_gradients",
    "scan",
    "while_loop",
    "numpy_function",
    "implicit_root",
    "Recompute",
]


def test_first_calls_from_many_threads(tmp_path):
    answer = json.loads(run_python(FIRST_CALLS, " ".join(FUNCTIONS), 4, cwd=tmp_path).stdout.splitlines()[-1])
    assert len(answer["results"]) == len(FUNCTIONS) * 2 * 4 * 2
    w = answer["W"]
    for name, x, dy, *found in answer["results"]:
        x, dy = np.array(x), np.array(dy)
        expected = [w * np.sin(x), dy * w * np.cos(x), np.sum(dy * np.sin(x))]
        for actual, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-9, atol=1e-12, err_msg=name)
