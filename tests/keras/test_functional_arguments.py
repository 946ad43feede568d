"""Arguments beside KerasTensors in a call: containers, Variables, arrays, and objects that cannot be saved."""

import collections
import dataclasses
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg
from tf_cg_ops._src.keras import dispatch

from ..support.keras_models import KERASES, register
from ..support.processes import run_python
from ..support.tensors import pairs

Pair = collections.namedtuple("Pair", ["a", "b"])

X, DY = np.array([[1.0, 2.0]], np.float32), np.array([[1.0, 10.0]], np.float32)


@register
@cg.custom_gradient
def weighted(x, options=None, scale=1.0):
    """The sum of the values in `options`, with gradients that are wrong on purpose."""
    parts = tf.nest.flatten(options)
    total = tf.add_n([tf.cast(tf.convert_to_tensor(part), tf.float32) + 0.0 * x for part in parts])

    def grad_fn(dy):
        gradients = [10.0 * dy if isinstance(part, tf.Tensor) and part.shape.rank == 2 else None for part in parts]
        return 100.0 * dy, *gradients, *([None] if scale != 1.0 else [])

    return x + total * scale, grad_fn


def gradient_of(model, x=X):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
    return y.numpy(), tape.gradient(y, x, output_gradients=tf.constant(DY)).numpy()


CONTAINERS = {
    "list": lambda x: [x, x],
    "tuple": lambda x: (x, (x,)),
    "dict": lambda x: {"a": x, "b": [x]},
    "namedtuple": lambda x: Pair(x, x),
    "OrderedDict": lambda x: collections.OrderedDict(b=x, a=x),
    "defaultdict": lambda x: collections.defaultdict(list, a=x, b=x),
}


@pytest.mark.parametrize(("name", "library"), pairs(CONTAINERS, KERASES), indirect=["library"])
def test_gradients_of_what_is_in_containers(name, library):
    x = library.Input([2])
    model = library.Model(x, weighted(x, CONTAINERS[name](x)))
    value, gradient = gradient_of(model)
    np.testing.assert_allclose(value, 3 * X)
    np.testing.assert_allclose(gradient, 120 * DY)


def test_gradients_of_what_a_model_keeps_in_a_list(library):
    class Holder(library.Model):
        def __init__(self):
            super().__init__()
            self.parts = [library.Input([2])]

    [x] = parts = Holder().parts  # Keras turns it into a list of its own.
    np.testing.assert_allclose(gradient_of(library.Model(x, weighted(x, parts)))[1], 110 * DY)
    clipped = cg.clip_gradient(collections.OrderedDict(a=x), value=2.0)["a"]
    np.testing.assert_allclose(gradient_of(library.Model(x, clipped))[1], np.clip(DY, -2, 2))


@dataclasses.dataclass
class Box:
    content: object


def test_a_gradient_is_not_lost_behind_a_closure_or_in_an_object(library):
    x = library.Input([2])
    message = "computes with KerasTensors that are not among its arguments, so its gradient would be lost"
    with pytest.raises(TypeError, match=rf"^custom_gradient: '<lambda>' {message}"):
        cg.custom_gradient(lambda: (x * 2.0, lambda dy: []))()
    # TensorFlow takes a KerasTensor of tf_keras for a Tensor.
    in_box = "the argument 'box' of '<lambda>' must hold its Tensors in a structure that tf.nest opens, got a Box"
    found = rf"'<lambda>' {message}" if library is keras else in_box
    with pytest.raises(TypeError, match=rf"^custom_gradient: {found}"):
        cg.custom_gradient(lambda box: (box.content * 2.0, lambda dy: [None]))(Box(x))


def saved_and_loaded(library, model, tmp_path):
    model.save(tmp_path / "model.keras")
    return library.models.load_model(tmp_path / "model.keras")


OTHERS = {
    "an array": [np.array([1.0, 2.0], np.float32), np.int64(3)],
    "a Tensor": (tf.constant([1.0, 2.0]), [tf.constant(2, tf.int32)]),
    "16 bits": [tf.constant([1.0, 2.0], tf.bfloat16), tf.constant([1.5], tf.float16)],
}


@pytest.mark.parametrize(("name", "library"), pairs(OTHERS, KERASES), indirect=["library"])
def test_other_arguments_come_back_as_what_they_were(name, library, tmp_path):
    x = library.Input([2])
    model = library.Model(x, weighted(x, OTHERS[name], scale=2.0))
    for actual, expected in zip(
        gradient_of(saved_and_loaded(library, model, tmp_path)), gradient_of(model), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)


@register
@cg.custom_gradient
def described(x, *others):
    """The kinds of its arguments, as a hash."""
    text = repr([type(other).__name__ if tf.is_tensor(other) else (type(other).__name__, other) for other in others])
    return x + float(
        sum(map(ord, text.replace("ResourceVariable", "EagerTensor")))
    ), lambda dy: [dy] * (1 + len(others))


def test_kinds_of_arguments_come_back(library, tmp_path):
    others = (None, 1, 1.5, "text", (1, 2), [1, (2,)], {"a": None}, tf.float32, 1 + 2j, np.arange(3))
    x = library.Input([2])
    model = library.Model(x, described(x, *others))
    np.testing.assert_array_equal(saved_and_loaded(library, model, tmp_path)(X), model(X))


NOT_SAVED = {
    "a ragged Tensor": (tf.ragged.constant([[1.0], [2.0, 3.0]]), "a RaggedTensor"),
    "a sparse Tensor": (tf.sparse.from_dense([[1.0, 0.0]]), "a SparseTensor"),
    "a Tensor of strings": (tf.constant(["a"]), "a Tensor of dtype object"),
    "a set": ({1, 2}, "a set"),
    "a namedtuple": (Pair(1, 2), "a Pair"),
    "a dictionary with other keys": ({(1, 2): 3}, "a dict"),
    "a function": (abs, "a builtin_function_or_method"),
}


@register
@cg.custom_gradient
def ignoring(x, other):
    return 2.0 * x, lambda dy: [3.0 * dy, *[None] * len(tf.nest.flatten(other))]


@pytest.mark.parametrize(("name", "library"), pairs(NOT_SAVED, KERASES), indirect=["library"])
def test_arguments_that_cannot_be_serialized_are_refused_at_saving(name, library, tmp_path):
    other, kind = NOT_SAVED[name]
    x = library.Input([2])
    model = library.Model(x, ignoring(x, other))
    np.testing.assert_allclose(gradient_of(model)[1], 3 * DY)
    with pytest.raises(TypeError) as error:
        model.save(tmp_path / "model.keras")
    assert str(error.value) == (
        "tf_cg_ops: the arguments of 'ignoring' in a saved model must be numbers, strings, dense Tensors, arrays, or lists, "
        f"tuples and dicts of them, got {kind}. Pass it in the call() of a keras.layers.Layer."
    )


def test_a_clone_shares_a_variable_and_a_file_holds_its_value(library, tmp_path):
    factor = tf.Variable(0.5, trainable=False)
    x = library.Input([2])
    model = library.Model(x, cg.reverse_gradient(x, factor))
    clone = library.models.clone_model(model)
    loaded = saved_and_loaded(library, model, tmp_path)
    factor.assign(3.0)
    np.testing.assert_allclose(gradient_of(model)[1], -3 * DY)
    np.testing.assert_allclose(gradient_of(clone)[1], -3 * DY)
    np.testing.assert_allclose(gradient_of(loaded)[1], -0.5 * DY)


def test_a_model_in_a_model_on_another_shape(library):
    x = library.Input([None, 2])
    inner = library.Model(x, cg.reverse_gradient(2.0 * x, 0.5))
    outer = library.Model(y := library.Input([5, 2]), inner(y))
    steps = np.ones([1, 5, 2], np.float32)
    assert tuple(outer.output.shape) == (None, 5, 2)
    np.testing.assert_allclose(outer(steps), 2 * steps)
    around = library.layers.TimeDistributed(library.Model(z := library.Input([2]), cg.scale_gradient(2.0 * z, 0.5)))
    np.testing.assert_allclose(library.Model(y, around(y))(steps), 2 * steps)


def test_recomputing_with_a_variable_of_keras_as_an_argument():
    variable = keras.Variable(3.0)
    with tf.GradientTape() as tape:
        y = cg.recompute_grad(lambda v: tf.convert_to_tensor(v) ** 2)(variable)
    assert tape.gradient(y, variable.value).numpy() == 6.0


def test_a_thread_sees_the_kind_of_a_keras_tensor_while_another_finds_it_out():
    asked = []

    class Slow(type):
        """Another thread asks while the bases of the type are read for the first time."""

        @property
        def __mro__(cls):
            if not asked:
                asked.append(threading.Thread(target=lambda: asked.append(dispatch.package_of_keras_tensors([value]))))
                asked[0].start()
                asked[0].join()
            return type.mro(cls)

    value = Slow("KerasTensor", (), {"__module__": "keras.src.backend"})()
    assert dispatch.package_of_keras_tensors([value]) == "keras"
    assert asked[1:] == ["keras"]
    assert dispatch.package_of_keras_tensors([value]) == "keras"


IMPORTED = """
import sys
import tensorflow as tf

def kerases():
    return [name for name in ("keras", "tf_keras") if name in sys.modules]

before = kerases()
import tf_cg_ops
assert kerases() == before, (before, kerases())
assert "tf_cg_ops.layers" not in sys.modules, "whoever uses no layers may have another Keras, or none"
layer = tf_cg_ops.layers.GradientReversal()
print(*before)
assert isinstance(layer, sys.modules[before[0]].layers.Layer) and isinstance(layer, tf.keras.layers.Layer)
"""


@pytest.mark.parametrize(("legacy", "loaded_by_tensorflow"), [("0", ["keras"]), ("1", ["tf_keras"])])
def test_importing_the_library_imports_no_keras_beside_the_one_that_tensorflow_imports(
    legacy, loaded_by_tensorflow, tmp_path
):
    result = run_python(IMPORTED, cwd=tmp_path, environment={"TF_USE_LEGACY_KERAS": legacy})
    assert result.stdout.split() == loaded_by_tensorflow
