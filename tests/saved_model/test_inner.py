"""add_gradients with values inside: in Python, in C without the library, and from the command line."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
import tf_cg_ops_cli
from tf_cg_ops import _command_line

from ..support import c_program

SHAPE = [2, 3]
X = np.array([[0.3, -1.2, 0.7], [1.5, 0.2, -0.4]])
DY = np.array([[1.0, -2.0, 0.5], [3.0, 0.1, -1.0]])
W = np.array([2.0, -1.0, 0.5])


@cg.custom_gradient
def clipped(x):
    return tf.identity(x), lambda dy: tf.clip_by_value(dy, -1.0, 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a layer, a loop and a gradient of its own: sin(h) * h * 2 for h = tanh(x * w)."""
    module, folder = tf.Module(), tmp_path_factory.mktemp("inner")
    module.w = tf.Variable(W)

    @tf.function(input_signature=[tf.TensorSpec(SHAPE, tf.float64, name="x")])
    def f(x):
        with tf.name_scope("hidden"):
            h = tf.tanh(clipped(x) * module.w)
        s = tf.sin(h, name="sine")
        return {"y": tf.while_loop(lambda i, y: i < 1, lambda i, y: (i + 1, 2.0 * y), [0, s * h])[1]}

    tf.saved_model.save(module, folder / "model", signatures=f)
    report = cg.saved_model.add_gradients(
        folder / "model", folder / "inner", of="y", wrt=["x", "inner:hidden", "variables"], outputs="inner:sine"
    )
    assert [each.name for each in report.outputs] == ["y", "sine", "d_x", "d_hidden", "d_Variable"]
    cg.saved_model.add_gradients(
        folder / "model", folder / "given", of="y", wrt="inner:hidden", given="inner:hidden", outputs="inner:sine"
    )
    for name in ("inner", "given"):
        cg.saved_model.strip(folder / name, folder / f"{name} stripped")
    return folder


def results(h):
    slope = 2 * (np.cos(h) * h + np.sin(h))
    return {"y": 2 * np.sin(h) * h, "sine": np.sin(h), "d_hidden": DY * slope}


def run(where, folder, name, inputs):
    if where == "C":
        return c_program.run_signature(folder / f"{name} stripped", "gradients", inputs)
    loaded = tf.saved_model.load(folder / name)
    return loaded.signatures["gradients"](**{key: tf.constant(x) for key, x in inputs.items()})


def assert_are(found, expected):
    assert found.keys() >= expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(np.ravel(found[key]), np.ravel(value), rtol=1e-12, err_msg=key)


@pytest.mark.parametrize("where", ["Python", "C"])
def test_values_inside_and_gradients_by_them(folder, where):
    h = np.tanh(X * W)
    expected = results(h)
    by_product = expected["d_hidden"] * (1 - h**2)
    expected |= {"d_x": np.clip(by_product * W, -1, 1), "d_Variable": np.sum(by_product * X, 0)}
    assert_are(run(where, folder, "inner", {"x": X, "d_y": DY}), expected)


@pytest.mark.parametrize("where", ["Python", "C"])
def test_integrated_gradients_of_a_hidden_layer(folder, where):
    """The path goes from zero to the value, in its middle points; the sum is the difference of the results."""
    h, steps = np.tanh(X * W), 200
    total = np.zeros_like(h)
    for i in range(steps if where == "Python" else 2):
        at = h * (i + 0.5) / steps
        found = run(where, folder, "given", {"x": X, "d_y": DY, "hidden": at}) if i < 2 else results(at)
        assert_are(found, results(at))
        total += np.reshape(found["d_hidden"], h.shape) / steps
    if where == "Python":
        np.testing.assert_allclose(np.sum(total * h), np.sum(DY * results(h)["y"]), rtol=1e-4)


def test_the_command(folder, tmp_path, capsys):
    command = [folder / "model", tmp_path / "new", "--of", "y", "--wrt", "inner:hidden", "--output", "inner:sine"]
    options = tf_cg_ops_cli.parse(["add-gradients", *map(str, command), "--given", "inner:hidden"])
    assert _command_line.run(options) == 0
    printed = capsys.readouterr().out
    for name in ("value of hidden", "value of sine", "gradient of hidden"):
        assert name in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrt": "inner:hiden"}, "nearest names are 'hidden'"),
        ({"wrt": "x", "outputs": "sine"}, "outputs must be values inside, such as 'inner:relu', got 'sine'"),
        ({"wrt": "inner:clipped", "given": "inner:x"}, "no such op, layer or scope"),
    ],
)
def test_what_is_refused(folder, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        cg.saved_model.add_gradients(folder / "model", tmp_path / "new", of="y", **options)
    assert not (tmp_path / "new").exists()
