"""`watch_gradient` passes the gradient to the bit, and prints, checks and records that same gradient."""

import functools
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.modes import VJP_MODES, assert_all_close, eager, gradients, traced, vjp
from ..support.observed import new_objects_alone

X, DY = np.array([1.0, 2.0, -0.5]), np.array([3.0, -4.0, 12.0])


def gradient_of(function, x=X, dy=DY):
    x = tf.constant(x)
    return vjp(lambda: function(x), x, tf.constant(dy))[1]


def everything(x, seen):
    return cg.watch_gradient(x, "h", log=True, check_numerics=True, callback=seen.append)


@pytest.mark.core
@pytest.mark.parametrize("name", ["eager", "unknown_rank", "tf1"])
def test_each_mode_calls_once_with_the_upstream_gradient(name, capfd):
    seen = []
    value, (dx,) = VJP_MODES[name](functools.partial(everything, seen=seen), [X], DY)
    np.testing.assert_array_equal(value, X)
    np.testing.assert_array_equal(dx, DY)
    np.testing.assert_array_equal(seen, [DY])
    lines = [line for line in capfd.readouterr().err.splitlines() if "'h'" in line]
    assert lines == ["gradient of 'h': shape [3] norm 13 smallest -4 largest 12 elements [3 -4 12]"]


@pytest.mark.core
def test_nothing_is_shown_without_a_gradient(capfd):
    seen, x = [], tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        everything(x, seen)
        tf.function(everything)(x, seen)
    del tape
    np.testing.assert_array_equal(tf.function(everything, jit_compile=True)(x, seen), X)
    assert seen == []
    assert "'h'" not in capfd.readouterr().err


@pytest.mark.core
@pytest.mark.parametrize(
    ("bad", "dtype", "run"),
    [(np.nan, tf.bfloat16, eager), (np.inf, tf.complex64, traced), (-np.inf, tf.float64, eager)],
)
def test_a_gradient_that_is_not_finite_is_an_error_with_its_name(run, bad, dtype):
    x, dy = (np.array(a).astype(dtype.as_numpy_dtype) for a in (X, [1.0, bad * 1j if dtype.is_complex else bad, 2.0]))
    seen = []

    def function(x):
        return cg.watch_gradient(x, "the logits", check_numerics=True, callback=seen.append)

    with pytest.raises(tf.errors.InvalidArgumentError, match="watch_gradient: the gradient of `the logits` must be "):
        run(function, [x], dy)
    assert [gradient.dtype for gradient in seen] == [x.dtype]  # Recorded before the check, so that you can look at it.


def test_a_structure_has_a_name_for_each_tensor(capfd):
    """Complex numbers have no smallest one."""
    seen = []

    def watched(a, b):
        y = cg.watch_gradient({"a": a, "b": [b]}, "state", log=True, callback=seen.append)
        return [y["a"], y["b"][0]]

    dys = [np.array([3.0 + 4.0j, 0.0, -12.0j]), np.float32([5.0])]
    assert_all_close(eager(watched, [X + 0j, np.float32([1.0])], dys)[1], dys)
    assert sorted(len(gradient) for gradient in seen) == [1, 3]
    printed = capfd.readouterr().err
    assert 'gradient of \'state[0]\': shape [3] norm 13 elements ["(3,4)" "(0,0)" ' in printed
    assert "gradient of 'state[1]': shape [1] norm 5 " in printed


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_slices_stay_slices(mode):
    seen, table = [], tf.Variable(tf.ones([4, 2], tf.float64))
    dy = tf.constant([[1.0, 2.0], [3.0, 4.0]], tf.float64)
    (found,) = gradients(mode, lambda table: tf.gather(everything(table, seen), [3, 1]), [table], dy)
    assert isinstance(found, tf.IndexedSlices)
    np.testing.assert_array_equal(found.indices, [3, 1])
    np.testing.assert_array_equal(found.values, [[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(seen[-1], [[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [1.0, 2.0]])


@pytest.mark.parametrize("mode", ["eager", "traced"])
def test_rows_that_slices_name_twice_are_seen_as_their_sum(mode, capfd):
    def gradient(dy, **options):
        x = tf.constant([[1.0], [2.0], [3.0]])
        return gradients(mode, lambda x: tf.gather(cg.watch_gradient(x, "rows", **options), [1, 1]), [x], dy)

    gradient(tf.constant([[3.0], [-1.0]]), log=True)
    assert "gradient of 'rows': shape [3 1] norm 2 " in capfd.readouterr().err
    with pytest.raises(tf.errors.InvalidArgumentError, match="the gradient of `rows` must be finite"):
        gradient(tf.constant([[3e38], [3e38]]), check_numerics=True)


def test_each_step_of_a_loop_is_seen():
    seen = []

    @tf.function
    def run(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(4):
                y = cg.watch_gradient(2.0 * y, "step", callback=seen.append)
        return tape.gradient(y, x, output_gradients=dy)

    np.testing.assert_array_equal(run(tf.constant(X), tf.constant(DY)), 16.0 * DY)
    np.testing.assert_array_equal(seen, [DY, 2.0 * DY, 4.0 * DY, 8.0 * DY])


def test_members_of_a_batch():
    """`log` and `check_numerics` see the batch, `callback` sees each member. TensorFlow also runs the first one alone."""
    seen = []

    def one(x, dy):
        return vjp(lambda: everything(x, seen), x, dy)[1]

    found = tf.function(lambda x, dy: tf.vectorized_map(lambda pair: one(*pair), (x, dy)))(X, DY)
    np.testing.assert_array_equal(found, DY)
    assert {float(gradient) for gradient in seen} == set(DY)


def test_a_saved_model_prints_and_checks_in_its_gradient_and_calls_no_python(tmp_path, capfd):
    module = tf.Module()
    spec = tf.TensorSpec([None], tf.float64)
    module.f = tf.function(lambda x: cg.watch_gradient(x, "h", log=True, check_numerics=True), input_signature=[spec])
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    np.testing.assert_array_equal(gradient_of(loaded.f), DY)
    assert "gradient of 'h': shape [3] norm 13 " in capfd.readouterr().err
    with pytest.raises(tf.errors.InvalidArgumentError, match="watch_gradient: the gradient of `h` must be finite"):
        gradient_of(loaded.f, dy=DY * np.inf)
    module.f = tf.function(lambda x: cg.watch_gradient(x, "h", callback=print), input_signature=[spec])
    with pytest.raises(ValueError, match="watch_gradient: 'print' is Python code, which a saved function"):
        tf.saved_model.save(module, tmp_path)


@pytest.mark.parametrize("run", [eager, traced])
def test_a_call_cannot_change_the_gradient(run):
    def spoil(gradient):
        gradient[:] = 0.0

    _, (dx,) = run(lambda x: cg.watch_gradient(x, "h", callback=spoil), [X], DY)
    np.testing.assert_array_equal(dx, DY)


@pytest.mark.parametrize(("run", "error"), [(eager, KeyError), (traced, tf.errors.OpError)])
def test_an_exception_of_the_function_comes_out(run, error):
    def fails(gradient):
        raise KeyError("no such thing")

    with pytest.raises(error, match="no such thing"):
        run(lambda x: cg.watch_gradient(x, "h", callback=fails), [X], DY)


def test_the_function_is_freed_with_the_tape():
    """(A graph keeps it, as TensorFlow keeps the functions of `tf.numpy_function`.)"""

    def use():
        recorder = lambda gradient: None  # noqa: E731
        gradient_of(lambda x: cg.watch_gradient(x, "h", callback=recorder))
        return weakref.ref(recorder)

    with new_objects_alone():
        reference = use()
        gc.collect()
        assert reference() is None


@pytest.mark.parametrize("run", [eager, traced])
def test_an_overflow_passes_the_check_while_the_loss_scale_can_shrink(run):
    """It is above 1, and not a number."""

    def overflown(scale):
        return run(lambda x: cg.watch_gradient(x, "h", check_numerics=True, loss_scale=scale), [X], DY * np.inf)[1][0]

    for scale in (tf.Variable(1024.0), lambda: tf.constant(2.0)):
        np.testing.assert_array_equal(overflown(scale), DY * np.inf)
    for scale in (tf.Variable(1.0), 1024.0):
        with pytest.raises(tf.errors.InvalidArgumentError, match="watch_gradient: the gradient of `h` must be finite"):
            overflown(scale)


@pytest.mark.parametrize(("dtype", "run"), [(tf.bfloat16, eager), (tf.complex64, traced)])
def test_under_loss_scaling_the_gradient_is_shown_unscaled(dtype, run, capfd):
    seen = []

    def function(x):
        return cg.watch_gradient(x, "h", log=True, callback=seen.append, loss_scale=4.0)

    dy = DY.astype(dtype.as_numpy_dtype)
    _, (dx,) = run(function, [X.astype(dtype.as_numpy_dtype)], dy)
    np.testing.assert_array_equal(dx, dy)
    np.testing.assert_array_equal(seen, [DY / 4])
    assert seen[0].dtype == (dtype.as_numpy_dtype if dtype.size > 2 else np.float32)
    assert "norm 3.25 " in capfd.readouterr().err
