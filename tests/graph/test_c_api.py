"""The C program of examples/c_api, compiled and run: its output, and errors for unsupported gradients."""

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..support import c_program
from ..support.mode_table import fills
from ..support.modes import assert_all_close
from ..support.processes import run_script
from ..support.saved_models import proto_of
from ..support.without_python import CASES, DY, FAILURES, MODULE, Case, X, embed, gathering, log1pexp, several, spike

DY2 = np.array([3.0, -1.0, 0.5])
# test_without_python.py has many more cases, without C.
SAVED = [CASES[name] for name in ("embed", "rule", "vjp", "jvp", "recompute", "pass_through", "unrolled")]


def run(*arguments, library=None):
    return c_program.run(library or f"{cg.sysconfig.get_library()},{cg.sysconfig.get_library_with_cc()}", *arguments)


@fills("c_api", "embed_gradient", "custom_gradient", "custom_vjp", "custom_jvp", "recompute_grad", "grad_pass_through")
def test_a_saved_model(tmp_path):
    """The ops are in functions. All cases are added up, so one call shows all of them."""
    total, (loop, message) = (
        Case(lambda x: sum(case.function(x) for case in SAVED), None),
        FAILURES["while_loop"],
    )
    MODULE.saved = {"total": total.save(), "loop": loop.save()}
    tf.saved_model.save(MODULE, tmp_path, signatures=MODULE.saved)
    signatures = proto_of(tmp_path).meta_graphs[0].signature_def

    def call(name, library=None):
        parts = signatures[name].inputs, signatures[name].outputs
        return run(tmp_path, *(next(iter(part.values())).name for part in parts), X, DY, library=library)

    found = call("total", cg.sysconfig.get_library())
    assert not isinstance(found, str), found
    expected = [sum(each) for each in zip(*(case.by_hand() for case in SAVED), strict=True)]
    assert_all_close(found.values(), expected, rtol=1e-12, atol=1e-12)
    error = call("loop")
    assert isinstance(error, str), f"numbers instead of an error: {error}"
    assert "gradient: TF_SessionRun: " in error
    assert message in error


TENS = 10.0 ** np.arange(6)


@cg.custom_gradient
def many(*xs):
    return tf.add_n(xs), lambda dy: [(i + 1.0) * dy for i in range(len(xs))]


# In the graph itself: functions and their gradients.
IN_THE_GRAPH = [
    # For more than eight inputs, TensorFlow keeps the edges of a node in another order.
    (lambda x: embed(tf.sign(x), [i + 1.0 for i in range(6)], [x * ten for ten in TENS]), DY * 654321),
    (lambda x: many(*[x * ten for ten in TENS]), DY * 654321),
    # Their values overflow.
    (lambda x: embed(tf.math.log(1.0 + tf.exp(1e3 * x)), np.array([5.0, 7.0, 11.0]), x), DY * [5.0, 7.0, 11.0]),
    (lambda x: log1pexp(1e3 * x), 1e3 * DY * (X > 0.0)),
    (gathering, 4 * DY * X),
    (lambda x: several(x, x)[0], 3 * DY * X),
    (cg.recompute_grad(tf.identity), DY),
    (lambda x: embed(x, 3.0, x) + embed(x, 0.0, tf.stop_gradient(x)), 3 * DY),
]


def save_graph(function, path, shape=(3,)):
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float64, shape, name="x")
        tf.identity(function(x), name="y")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def test_ops_in_the_graph_itself(tmp_path):
    """The factors tell the functions apart."""

    def weighted(x):
        return sum((i + 1.0) * function(x) for i, (function, _) in enumerate(IN_THE_GRAPH))

    found = run(save_graph(weighted, tmp_path / "graph.pb"), "x", "y:0", X, DY)
    assert not isinstance(found, str), found
    expected = sum((i + 1.0) * gradient for i, (_, gradient) in enumerate(IN_THE_GRAPH))
    np.testing.assert_allclose(found["gradient"], expected, rtol=1e-9)


def test_gradient_ops_in_the_graph_itself(tmp_path):
    """Differentiates a gradient from Python again: CustomGradientEmbedGrad, and the shape check of a rule."""

    def gradient(x):
        y = embed(x, x**3, x**2, fx_gx_manually_stopped=True) + spike(x)
        return tf.gradients(y, x, grad_ys=tf.constant(DY2))[0]

    found = run(save_graph(gradient, tmp_path / "graph.pb", [None]), "x", "y", X, DY)
    np.testing.assert_allclose(found["value"], DY2 * (1 + 2 * X**4 + 4 * X))
    # d/dx of dy2 (1 + 2 x gx + d(gx)/dx (x**2 - stop(x**2)) + 4 x), where gx = x**3.
    np.testing.assert_allclose(found["gradient"], DY * DY2 * (2 * X**3 + 6 * X**3 + 6 * X**3 + 4))


def test_missing_files_and_tensors_are_errors(tmp_path):
    graph = save_graph(spike, tmp_path / "graph.pb")
    for text, arguments, library in [
        ("cannot open shared object file", [graph, "x", "y", X, DY], tmp_path / "no.so"),
        ("MODEL cannot be opened; expected a folder or a file, got ", [tmp_path / "no.pb", "x", "y", X, DY], None),
        ("expected the name of a tensor in the model's graph, got 'no'", [graph, "no", "y", X, DY], None),
        ("expected comma-separated numbers, got '1,two,3'", [graph, "x", "y", "1,two,3", DY], None),
        ("expected as many numbers as the input has elements, got '1,2'", [graph, "x", "y", "1,2", DY], None),
    ]:
        assert text in run(*arguments, library=library)


def test_the_model_of_the_example(tmp_path):
    output = run_script(c_program.EXAMPLE / "save_model.py", tmp_path / "saved", cwd=tmp_path).stdout
    first, *others = [line.split()[1:] for line in output.splitlines() if line.startswith("./gradient ")]
    spikes = 3 * np.array([1.0, 10.0]) / (1 + 10 * np.abs(3 * np.array([0.5, 0.25]) - 1)) ** 2
    for found, expected in zip(c_program.run(*first).values(), ([1, 0], spikes), strict=True):  # Without the library.
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    expected = [([0.5, 0.1875], [10, 210]), ([1, 0], spikes), ([0.25, 0.0625], [5, 70]), ([1, 0], spikes)]
    for (library, *arguments), (value, gradient) in zip(others, expected, strict=True):
        found = run(*arguments, library=library)
        np.testing.assert_allclose(found["value"], value, rtol=1e-6)
        np.testing.assert_allclose(found["gradient"], gradient, rtol=1e-6)
