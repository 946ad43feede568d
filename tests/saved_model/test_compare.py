"""The check of strip accepts equal bits or rounding, and nothing else."""

import numpy as np
import pytest
import tensorflow as tf

from tf_cg_ops.saved_model import _compare_models

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128]


def verdict(expected, actual, again=None):
    answers = [
        _compare_models._Result({"output y": np.asarray(a)}) for a in (expected, expected if again is None else again)
    ]
    return _compare_models._compare_results(
        "strip", "f", *answers, _compare_models._Result({"output y": np.asarray(actual)})
    ).verdict


def array(values, dtype=tf.float32):
    return tf.cast(tf.constant(values, tf.float64), dtype).numpy()


EPS = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7, tf.float32: 2.0**-23, tf.float64: 2.0**-52}


def eps(dtype):
    return EPS[dtype.real_dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_the_same_bits(dtype):
    assert verdict(array([1.0, np.nan, np.inf], dtype), array([1.0, np.nan, np.inf], dtype)) == "equal, bit for bit"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_one_unit_in_the_last_place_is_rounding(dtype):
    assert verdict(array([1.0, 8.0], dtype), array([1.0 + eps(dtype), 8.0], dtype)) == "equal up to rounding"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_more_than_rounding_is_an_error(dtype):
    with pytest.raises(RuntimeError, match="gives another output y"):
        verdict(array([1.0, 2.0], dtype), array([1.0, 2.0 + 4.0 * eps(dtype) ** 0.75], dtype))


def test_the_sign_of_zero_counts():
    assert verdict(array([0.0, 1.0]), array([-0.0, 1.0])) == "equal up to rounding"


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (array([1.0, np.nan]), array([1.0, 2.0])),
        (array([1.0, 2.0]), array([1.0, np.nan])),
        (array([1.0, np.inf]), array([1.0, 3e38])),
        (array([0.0, 0.0]), array([0.0, 1e-30])),
        (array([1.0]), array([1.0, 1.0])),
        (array([1.0]), array([[1.0]])),
        (array([1.0]), array([1.0], tf.float64)),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([True]), np.array([False])),
        (np.array([b"a"], object), np.array([b"b"], object)),
    ],
    ids=["nan", "new nan", "inf", "zeros", "size", "rank", "dtype", "int", "bool", "string"],
)
def test_anything_else_is_an_error(expected, actual):
    with pytest.raises(RuntimeError, match="gives another output y"):
        verdict(expected, actual)


@pytest.mark.parametrize("same", [np.array([1, 2]), np.array([True]), np.array([b"a"], object), np.zeros([0, 2])])
def test_integers_bools_strings_and_empty_arrays_are_compared(same):
    assert verdict(same, same.copy()) == "equal, bit for bit"


def test_a_source_that_differs_from_itself_is_not_compared():
    assert verdict(array([1.0]), array([1.0]), again=array([2.0])) == "not compared"


def test_an_output_that_is_not_there_is_an_error():
    first = _compare_models._Result({"output y": array([1.0]), "output z": array([1.0])})
    other = _compare_models._Result({"output y": array([1.0])})
    with pytest.raises(RuntimeError, match="gives another output z"):
        _compare_models._compare_results("strip", "f", first, first, other)


@pytest.mark.parametrize(
    "text",
    [
        "what is wrong\nwhere that is",
        "Graph execution error:\n\nDetected at node f\nwhere that is\nwhat is wrong\n\t [[{{node f}}]]",
    ],
)
def test_the_line_of_an_error_that_tells_most(text):
    """The first one, or the last one where TensorFlow begins with what it says of any error."""
    assert _compare_models._in_one_line(ValueError(text)) == "ValueError: what is wrong"
