"""Random tensors of every dtype, and where a tensor's numbers are in memory."""

import ctypes

import numpy as np
import tensorflow as tf

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128]


def random_array(rng, shape, dtype=tf.float64):
    """Normal numbers that `dtype` holds exactly, as a NumPy array of it: no rounding before the op under test."""
    numbers = rng.normal(size=shape)
    if dtype.is_complex:
        numbers = numbers + 1j * rng.normal(size=shape)
    return np.asarray(numbers).astype(dtype.as_numpy_dtype)


def address(tensor):
    """The address of the tensor's buffer."""
    if tensor.dtype == tf.bfloat16:
        tensor = tf.bitcast(tensor, tf.uint16)  # Shares the buffer; Python's buffer protocol knows no bfloat16.
    return np.asarray(memoryview(tensor)).ctypes.data


def device_address(tensor):
    """The same for a tensor in the memory of any device."""
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # The capsule points to a struct that begins with the pointer to the numbers.
    return ctypes.cast(pointer_of(capsule, b"dltensor"), ctypes.POINTER(ctypes.c_void_p))[0]


def bits(array):
    """The array's bytes, so that nan payloads and the sign of zero count."""
    return np.ascontiguousarray(array).view(np.uint8)


def ones(shape, dtype=tf.float32):
    return tf.ones(shape, dtype)
