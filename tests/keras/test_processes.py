"""What needs a process of its own: loading what another one has saved, imports, and flags of XLA."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tf_keras

from ..support.keras_models import (
    UNITS,
    X,
    assert_equal,
    deep_model,
    layers_of,
    network,
    two_values,
    value_and_gradients,
)
from ..support.mode_table import fills
from ..support.processes import run_python
from ..support.sources import ROOT
from .test_functional_models import FEATURES, IN_THE_DEEP_MODEL, add_up
from .test_layers import LAYERS

SOME_LAYERS = ("a function of TensorFlow", "embedding, elements", "scale", "clip by norm", "reversal")


def run(program, *arguments, cwd, **environment):
    code = pathlib.Path(__file__).with_name(program).read_text()
    return run_python(code, *arguments, cwd=cwd, environment=environment)


def chain(library):
    layers = layers_of(library)
    x = library.Input([3])
    h = layers.ReverseGradient(0.5)(layers.ClipGradient(norm=3.0)(layers.StraightThrough("round")(x)))
    return library.Model(x, layers.EmbedGradient()([h, h, layers.ScaleGradient(4.0)(h)]))


def recomputed(library):
    return network(library, layers_of(library).Recompute)


def everything(library):
    layers = layers_of(library)
    x = h = library.Input([3])
    for make, _, _ in LAYERS.values():
        h = make(layers)(h)
    if library.__name__ == "tf_keras":  # Keras 3 cannot load its own operations from such a file.
        h = add_up(two_values(h))
    return library.Model(x, layers.Recompute(library.layers.Dense(2))(h))


MODELS = {"deep": (deep_model, FEATURES), "chain": (chain, [X]), "recomputed": (recomputed, [UNITS])}


@pytest.mark.core
@fills("keras_fresh", *IN_THE_DEEP_MODEL, *SOME_LAYERS)
@fills("keras_export", *IN_THE_DEEP_MODEL, *SOME_LAYERS)
def test_a_fresh_process_has_value_and_gradients_of_saved_and_exported_models(library, tmp_path):
    expected = {}
    for name, (make, inputs) in MODELS.items():
        model = make(library)
        model.save(tmp_path / f"{name}.keras")
        model.export(tmp_path / f"{name}_exported", **({"verbose": False} if library.__name__ == "keras" else {}))
        found = value_and_gradients(model, inputs if len(inputs) > 1 else inputs[0])
        expected |= {name: found, f"{name}_exported": found[: 1 + len(inputs)]}
        for file in (name, f"{name}_exported"):
            np.savez(tmp_path / f"{file}.npz", *inputs)
    run("fresh.py", library.__name__, tmp_path, "tests.support.keras_models", cwd=tmp_path, PYTHONPATH=str(ROOT))
    for name, wanted in expected.items():
        with np.load(tmp_path / f"{name}.found.npz") as found:
            assert_equal(
                [*found.values()][: len(wanted)], wanted, rtol=1e-5, atol=1e-5
            )  # A graph adds up in another order.


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning")
@pytest.mark.parametrize(("library", "file"), [(keras, "model.h5"), (tf_keras, "model.h5"), (tf_keras, "saved_model")])
def test_the_old_formats(library, file, tmp_path):
    model = everything(library)
    model.save(tmp_path / file)
    loaded = library.models.load_model(tmp_path / file)
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    assert_equal(value_and_gradients(loaded), value_and_gradients(model))


@pytest.mark.parametrize(("legacy", "loaded_by_tensorflow"), [("0", ["keras"]), ("1", ["tf_keras"])])
def test_importing_the_library_imports_no_keras_beside_the_one_that_tensorflow_imports(
    legacy, loaded_by_tensorflow, tmp_path
):
    assert run("imports.py", cwd=tmp_path, TF_USE_LEGACY_KERAS=legacy).stdout.split() == loaded_by_tensorflow


# Derivatives of pointwise functions.
CLUSTERS = """
from tests.support.modes import MODES, assert_orders
from tests.support.pointwise import DY, POINTWISE, X

for name in ("stopped", "given", "custom_gradient", "recompute_grad"):
    assert_orders(MODES["traced"](POINTWISE[name].function, X, DY), POINTWISE[name].orders(X, DY))
"""


def test_clusters_that_tensorflow_makes_by_itself(tmp_path):
    """XLA writes down what it compiles, each instruction with the op that it comes from."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1",
        "XLA_FLAGS": f"--xla_dump_to={tmp_path / 'dump'} --xla_dump_hlo_as_text",
    }
    run_python(CLUSTERS, cwd=tmp_path, environment=environment)
    compiled = set()
    for path in (tmp_path / "dump").glob("*before_optimizations.txt"):
        compiled.update(re.findall(r'op_type="(CustomGradient\w+)"', path.read_text()))
    assert compiled >= {"CustomGradientEmbedGrad", "CustomGradientBarrier"}
