"""numpy_function with vjp: how often its functions are called, and how long the residuals live."""

import gc
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.core import library
from tf_cg_ops._src.external import residuals

from ..support.modes import tape_vjp
from ..support.observed import new_objects_alone
from ..support.processes import run_python
from ..support.sources import ROOT

X = tf.constant([0.5, 1.0, 1.5], tf.float64)
DY = tf.constant([1.0, 10.0, 100.0], tf.float64)
SPEC = tf.TensorSpec([3], tf.float64)


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects():
    with new_objects_alone():
        yield


class Residuals:
    """A user's object that a weak reference can watch."""

    def __init__(self, cosine):
        self.cosine = cosine


class Sine:
    """A function with its adjoint. It counts its calls and knows which residuals are alive."""

    def __init__(self):
        self.calls = {"f": 0, "vjp": 0, "jvp": 0}
        self._living = 0
        self._none_lives = threading.Condition()
        self.function = cg.numpy_function(self.f, SPEC, vjp=self.vjp)

    def f(self, x):
        self.calls["f"] += 1
        left = Residuals(np.cos(x))
        self._count(1)
        weakref.finalize(left, self._count, -1)
        return np.sin(x), left

    def vjp(self, left, dy):
        self.calls["vjp"] += 1
        return left.cosine * dy

    def jvp(self, left, t):
        self.calls["jvp"] += 1
        return left.cosine * t

    def _count(self, change):
        with self._none_lives:
            self._living += change
            self._none_lives.notify_all()

    def num_living(self, wait=True):
        """How many residuals are alive. It waits, because a token can die in a TensorFlow thread just after the run."""
        gc.collect()
        with self._none_lives:
            self._none_lives.wait_for(lambda: self._living == 0, 10 if wait else 0)
            return self._living


def gradient(function, x=X):
    return tape_vjp(function, [x], DY)[1][0]


def in_a_loop(function):
    return lambda x: tf.while_loop(lambda i, _: i < 20, lambda i, x: (i + 1, function(x)), (0, x))[1]


def unused_gradient(function, x):
    gradient(function, x)
    return 2 * x


def forward_mode(function, x):
    with tf.autodiff.ForwardAccumulator(x, DY) as accumulator:
        y = function(x)
    return accumulator.jvp(y)


def jacobian(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.jacobian(y, x)


def in_a_session(function, x):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.compat.v1.placeholder(tf.float64, [3])
        y = function(fed)
        dx = tf.gradients(y, fed, grad_ys=tf.constant(DY.numpy()))[0]
        session.run(y, {fed: x.numpy()})
        return session.run(dx, {fed: x.numpy()})


# What to compute of a function and x, where it is traced ("inside": the tape, too), and how often that calls.
PROGRAMS = {
    "value": (lambda f, x: f(x), ["eager", "inside"], {"f": 1, "vjp": 0, "jvp": 0}),
    "gradient": (gradient, ["eager", "around", "inside"], {"f": 1, "vjp": 1, "jvp": 0}),
    "unused gradient": (unused_gradient, ["inside"], {"f": 1, "vjp": 0, "jvp": 0}),
    "forward mode": (forward_mode, ["eager", "inside"], {"f": 1, "vjp": 0, "jvp": 1}),
    "jacobian": (jacobian, ["eager", "around"], {"f": 1, "vjp": 3, "jvp": 0}),
    "session": (in_a_session, ["eager"], {"f": 2, "vjp": 1, "jvp": 0}),
    "loop": (lambda f, x: gradient(in_a_loop(f), x), ["around", "inside"], {"f": 20, "vjp": 20, "jvp": 0}),
}


@pytest.mark.parametrize(
    ("name", "where"), [(name, where) for name, (_, places, _) in PROGRAMS.items() for where in places]
)
def test_functions_are_called_as_often_as_needed_and_leave_nothing(name, where):
    compute, _, expected = PROGRAMS[name]
    sine = Sine()
    function = cg.numpy_function(sine.f, SPEC, vjp=sine.vjp, jvp=sine.jvp if name == "forward mode" else None)
    if where == "around":
        function = tf.function(in_a_loop(function) if name == "loop" else function)
        compute = gradient if name == "loop" else compute
    run = tf.function(compute, autograph=False) if where == "inside" else compute
    for times in (1, 2):
        run(function, X)
        assert sine.calls == {kind: times * count for kind, count in expected.items()}
        assert sine.num_living() == 0


@pytest.mark.parametrize("is_traced", [False, True], ids=["eager", "traced"])
def test_residuals_live_as_long_as_the_tape(is_traced):
    sine = Sine()
    function = tf.function(sine.function) if is_traced else sine.function
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        y = function(X)
    assert sine.num_living(wait=False) == 1
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(y, X, output_gradients=DY), DY * np.cos(X))
    assert sine.calls == {"f": 1, "vjp": 2, "jvp": 0}
    del tape
    assert sine.num_living() == 0


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_run_that_fails(step):
    """The run fails before `vjp`, or in it."""
    sine = Sine()

    def fails(_, dy):
        raise ArithmeticError("by design")

    function = sine.function if step == "before" else cg.numpy_function(sine.f, SPEC, vjp=fails)

    @tf.function
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            with tf.control_dependencies([tf.debugging.check_numerics(y / 0 if step == "before" else y, "by design")]):
                y = 2 * y
        return tape.gradient(y, x)

    for _ in range(3):
        with pytest.raises(tf.errors.OpError, match="by design"):
            run(X)
    assert sine.calls["f"] == 3
    assert sine.num_living() == 0


def test_threads():
    """Some run one graph and some run eagerly, while the main thread is always busy."""
    sine = Sine()
    traced, most, before = tf.function(sine.function), [], len(residuals._kept)

    def work(function):
        for _ in range(20):
            np.testing.assert_allclose(gradient(function), DY * np.cos(X))
            most.append(len(residuals._kept))

    threads = [threading.Thread(target=work, args=(f,)) for f in (traced, traced, sine.function, traced)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sine.calls["vjp"] == 80
    assert max(most) <= 20 + before
    assert sine.num_living() == 0


def test_the_numbers_of_tokens():
    """A batch of tokens dies together, an empty batch has none, and a shape that is not a vector is an error."""
    token, ids = library.custom_gradient_token(tf.constant([2, 3], tf.int64))
    numbers = ids.numpy().ravel()
    assert list(numbers) == list(range(numbers[0], numbers[0] + 6))
    for number in numbers:
        residuals.keep(int(number), "left")
    assert [residuals.find(int(number)) for number in numbers] == ["left"] * 6
    del token, ids
    residuals.keep(-1, "never")
    assert not any(int(number) in residuals._kept for number in numbers)
    assert -1 not in residuals._kept
    assert library.custom_gradient_token(tf.constant([0], tf.int64))[1].shape == [0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="CustomGradientToken"):
        library.custom_gradient_token(tf.constant(3, tf.int64))


PROGRAM = """
import gc, weakref
import numpy as np
import tensorflow as tf
import tf_cg_ops as cg

def run(**options):
    big = tf.Variable([1.0, 2.0])
    f = cg.numpy_function(lambda x: (x, np.ones_like(x)), **options)
    traced = tf.function(lambda x: f(x * big))
    with tf.GradientTape() as tape:
        y = traced(tf.ones([2]))
    tape.gradient(y, big)
    graph = traced.get_concrete_function(tf.ones([2])).graph
    return [weakref.ref(graph), weakref.ref(big)]

references = run() + run(vjp=lambda residuals, dy: residuals * dy)
gc.collect()
x = tf.ones([2])
tape = tf.GradientTape(persistent=True)
with tape:  # Its token outlives the interpreter.
    tape.watch(x)
    y = tf.function(cg.numpy_function(lambda x: (x, x), vjp=lambda r, dy: dy))(x)
print([reference() is None for reference in references])
"""


def test_a_program_frees_its_graphs_and_ends_with_a_token(tmp_path):
    """Only the Python function is kept, as with tf.numpy_function."""
    result = run_python(PROGRAM, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert result.stdout.splitlines()[-1] == "[True, True, True, True]"
