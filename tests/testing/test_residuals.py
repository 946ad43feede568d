"""testing.residuals: what a gradient keeps, against what is known of each op, and against the memory of a plan."""

import keras
import pytest
import tensorflow as tf

import tf_cg_ops as cg

X = tf.ones([100])


@cg.custom_gradient
def with_own_gradient(x):
    y = tf.exp(x)
    return tf.sin(y) * y, lambda dy: dy * tf.cast(tf.cast(y, tf.float16), tf.float32)


# A function, and the op types and bytes of what its gradient reads.
KEPT = {
    "an output": (lambda x: tf.exp(tf.sin(x) + 1.0), [("Exp", 400)]),
    "an input": (lambda x: tf.sin(tf.negative(x)), [("Neg", 400)]),
    "both factors": (lambda x: tf.sin(x) * tf.negative(x), [("Neg", 400), ("Sin", 400)]),
    "nothing": (lambda x: 3.0 * (x + 1.0), []),
    "an argument alone": (tf.sin, []),
    "what a rule reads": (with_own_gradient, [("Exp", 400)]),
    "recomputed": (cg.recompute_grad(lambda x: tf.exp(tf.sin(tf.negative(x)))), []),
    "in a called function": (tf.function(lambda x: tf.exp(-x)), [("Exp", 400)]),
    "without a gradient": (lambda x: tf.exp(tf.stop_gradient(tf.exp(x))), []),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name):
    f, expected = KEPT[name]
    assert sorted((each.op, each.bytes) for each in cg.testing.residuals(f, [X])) == expected


def test_a_loop_keeps_the_values_of_all_steps():
    def f(x):
        return tf.while_loop(lambda i, x: i < 7, lambda i, x: (i + 1, tf.exp(x)), [0, x], maximum_iterations=7)[1]

    found = cg.testing.residuals(f, [X])[0]
    assert found.bytes >= 7 * 400
    assert (found.dtype, found.shape.rank) == ("variant", None)


def test_a_model_the_line_and_the_table():
    model = keras.Sequential(
        [keras.layers.Input([8]), keras.layers.Dense(4, activation="relu", name="hidden"), keras.layers.Dense(1)]
    )
    found = cg.testing.residuals(lambda x: model(x) ** 2, {"x": tf.ones([5, 8])})
    assert [(each.op, each.bytes, each.shape, each.dtype) for each in found] == [
        ("Relu", 80, tf.TensorShape([5, 4]), "float32"),
        ("AddV2", 20, tf.TensorShape([5, 1]), "float32"),
    ]
    assert "hidden" in found[0].node
    assert found[0].line.startswith("test_residuals.py:")
    assert str(found).splitlines()[:2] == [
        "2 values, 100 bytes",
        f"bytes  shape   dtype    op     node{' ' * (max(len(r.node) for r in found) - 4)}  line",
    ]


def test_the_sum_is_what_a_plan_calls_plain():
    """Without the gradients in flight, the plan holds these values at the end of the forward pass."""

    def f(x):
        for _ in range(20):
            x = tf.tanh(x)
        return x

    x = tf.ones([1000])
    plan = cg.recompute_grad(f, memory="auto").plan(x)
    assert cg.testing.residuals(f, [x]).bytes == max(plan.plain_course[: len(plan.plain_course) // 2]) == 80000


@pytest.mark.parametrize(("f", "args"), [(3, [X]), (tf.sin, X), (tf.sin, "x")])
def test_wrong_arguments(f, args):
    with pytest.raises(TypeError, match=r"testing\.residuals: (f|args) must be"):
        cg.testing.residuals(f, args)
