"""The whole models that benchmarks measure: all implementations compute the same thing, but for TFP's gradient."""

import warnings

import numpy as np
import pytest

from benchmarks.harness.names import DECORATOR, EMBED, TF, TFP
from benchmarks.models import networks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow Probability warns about itself while it is imported.
    from benchmarks.models import in_tensorflow

NETWORKS = networks.networks(quick=True)


def in_torch_layout(array):
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    return NETWORKS[request.param]


@pytest.fixture(scope="module")
def expected(network):
    """The loss and the gradients of TensorFlow's decorator, in float64."""
    loss, gradients = in_tensorflow.steps(network, "eager", np.float64)[TF]()
    assert all(np.any(gradient.numpy() != 0) for gradient in gradients)
    return float(loss), [gradient.numpy() for gradient in gradients]


def assert_same(loss, gradients, expected):
    np.testing.assert_allclose(loss, expected[0], rtol=1e-12)
    for got, wanted in zip(gradients, expected[1], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize("mode", in_tensorflow.MODES)
def test_the_implementations_agree(network, mode, expected):
    steps = in_tensorflow.steps(network, mode, np.float64)
    assert {TF, DECORATOR} <= set(steps)
    assert (EMBED in steps) == (network.unit.factor is not None)
    for name in steps.keys() - {TFP}:
        loss, gradients = steps[name]()
        assert_same(loss, gradients, expected)


def test_a_unit_without_a_factor_has_no_implementation_by_values(network):
    expected = set() if network.unit.factor is None else {EMBED, TFP}
    assert {EMBED, TFP} & set(in_tensorflow.units(network.unit)) == expected


@pytest.mark.parametrize("network", [n for n in NETWORKS if NETWORKS[n].unit.factor is not None], indirect=True)
def test_the_gradient_of_tfp_is_another_one(network, expected):
    """The loss is the same, the gradients are others: TFP's model is trained differently."""
    loss, gradients = in_tensorflow.steps(network, "eager", np.float64)[TFP]()
    np.testing.assert_allclose(loss, expected[0], rtol=1e-12)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_same(loss, gradients, expected)


def test_pytorch_agrees(network, expected):
    pytest.importorskip("torch")
    from benchmarks.models import in_torch

    loss, gradients = in_torch.step(network, np.float64)()
    assert_same(loss, gradients, (expected[0], [in_torch_layout(gradient) for gradient in expected[1]]))


def test_jax_agrees(network, expected):
    jax = pytest.importorskip("jax")
    from benchmarks.models import in_jax

    with jax.enable_x64(True):
        loss, gradients = in_jax.step(network, np.float64)()
    assert_same(loss, gradients, expected)
