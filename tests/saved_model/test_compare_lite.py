"""compare with a LiteRT file: the gap of each output in steps of its quantizer, and the tensors that stayed float."""

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

RNG = np.random.default_rng(7)
X = RNG.normal(size=[500, 4]).astype(np.float32)
W = RNG.normal(size=[4, 5]).astype(np.float32)
STEP = 0.05
WITHIN = 1.001  # Of a step; both numbers are rounded.


def rounded(x, step, lowest=-128.0):
    return tf.quantization.fake_quant_with_min_max_vars(x, lowest * step, 127 * step, narrow_range=lowest == -127.0)


def quantized(x, shift):
    """Integers from end to end. A shift moves the output by so many steps."""
    return rounded(rounded(x, 0.02) @ rounded(W, 0.02, -127.0) + shift * STEP, STEP)


def mixed(x, shift):
    """The sine is computed with floating-point numbers."""
    return quantized(tf.sin(x), shift)


def plain(x, shift):
    return x @ W + shift


def save(folder, function, shift, outputs=("y",), signature="serving_default"):
    module = tf.Module()
    spec = tf.TensorSpec([None, 4], name="x")
    module.f = tf.function(lambda x: dict.fromkeys(outputs, function(x, shift)), input_signature=[spec])
    tf.saved_model.save(module, folder, signatures={signature: module.f})
    return folder


def convert(folder, optimize, interface=tf.float32):
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    converter.optimizations = [tf.lite.Optimize.DEFAULT] if optimize else []
    converter.inference_input_type = converter.inference_output_type = interface
    file = folder.parent / "model.tflite"
    file.write_bytes(converter.convert())
    return file


# The function, how far its second version is shifted, the types at both ends, and how many tensors stay float.
CASES = {
    "equal": (quantized, 0.0, tf.float32, 0),
    "integers at both ends": (quantized, 0.0, tf.int8, 0),
    "two steps apart": (quantized, 2.0, tf.float32, 0),
    "integers two steps apart": (quantized, 2.0, tf.int8, 0),
    "half a step apart": (quantized, 0.5, tf.float32, 0),
    "a float tensor": (mixed, 0.0, tf.float32, 1),
    "not quantized": (plain, 0.0, tf.float32, 1),
    "not quantized, apart": (plain, 2.0, tf.float32, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gap_is_in_steps(name, tmp_path):
    function, shift, interface, floats = CASES[name]
    model = save(tmp_path / "model", function, 0.0)
    file = convert(save(tmp_path / "second", function, shift), function is not plain, interface)
    output, tensors = cg.saved_model.compare(model, file, {"serving_default": {"x": X}})
    first, second = (np.asarray(function(X, each)) for each in (0.0, shift))
    gaps = np.abs(second.astype(np.float64) - first) / STEP
    assert (output.name, output.what, tensors.what) == ("serving_default", "output y", "float tensors")
    assert len(tensors.float_tensors) == floats
    if function is plain:
        assert output.steps is None
        assert (
            output.verdict == "different" if shift else output.verdict in ("equal, bit for bit", "equal up to rounding")
        )
        return
    # LiteRT rounds a tie, and a sine, in its own way.
    expected = [gaps.mean(), (gaps <= WITHIN).mean(), np.sqrt(12 * np.mean(gaps**2))]
    np.testing.assert_allclose([output.mean_steps, output.within_one_step, output.noise], expected, atol=0.02)
    assert abs(output.steps - gaps.max()) <= WITHIN
    assert (output.verdict == "different") == (output.within_one_step < 1.0)
    np.testing.assert_allclose(output.difference, output.steps * STEP / np.abs(first).max(), rtol=1e-5)


OTHERS = {
    "another signature": ({"signature": "other"}, "values", "the first model does not have it"),
    "another output": ({"outputs": ("y", "z")}, "output z", "it is only in the second model"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_one_model_has(name, tmp_path):
    options, what, told = OTHERS[name]
    file = convert(save(tmp_path / "second", quantized, 0.0, **options), True)
    found = cg.saved_model.compare(save(tmp_path / "model", quantized, 0.0), file)
    assert told in next(str(each) for each in found if each.what == what)


def test_a_damaged_file_is_an_error(tmp_path):
    model = save(tmp_path / "model", quantized, 0.0)
    whole = convert(model, True).read_bytes()
    for damage in (whole[:300], whole[:40] + b"\xff" * 20 + whole[60:], whole[:1000] + b"\xff" * 20 + whole[1020:]):
        (tmp_path / "damaged.tflite").write_bytes(damage)
        with pytest.raises(ValueError, match="must be a complete LiteRT model"):
            cg.saved_model.compare(model, tmp_path / "damaged.tflite")
    with pytest.raises(ValueError, match="a must be a SavedModel, got the LiteRT file"):
        cg.saved_model.compare(tmp_path / "model.tflite", model)


def test_the_first_model_keeps_its_state_and_each_signature_its_own(tmp_path):
    """A training step, whose outputs are from before the step."""
    module = tf.Module()
    module.w = tf.Variable(W, name="w")
    spec = tf.TensorSpec([None, 4], name="x")
    module.f = tf.function(lambda x: {"y": x @ module.w}, input_signature=[spec])
    tf.saved_model.save(module, tmp_path / "model", signatures=module.f)
    options = {"of": "y", "wrt": "variables", "loss": "mse", "update": 0.1, "lite": True}
    cg.saved_model.add_gradients(tmp_path / "model", tmp_path / "train", **options)
    found = cg.saved_model.compare(tmp_path / "train", convert(tmp_path / "train", False))
    values = {(each.name, each.what): each.verdict for each in found if each.what.startswith("output")}
    assert {"gradients", "serving_default", "weights", "set_weights"} == {name for name, _ in values}
    assert set(values.values()) <= {"equal, bit for bit", "equal up to rounding"}
