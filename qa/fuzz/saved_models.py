"""Does one thing with an edited SavedModel, which must end with a result or an exception.

`inspect`, `strip`, `override` and `adopt` document their exceptions. If the process dies, `control` does the same with
built-in ops instead of this library's. If it dies there, too, the failure is TensorFlow's.
"""

import dataclasses
import functools
import shutil

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from tensorflow.core.protobuf import saved_model_pb2

import tf_cg_ops as cg
from tests.support import functions
from tests.support.modes import derivative

from . import saved_model_edits as edits

PROMISED = (FileNotFoundError, NotADirectoryError, FileExistsError, ValueError, RuntimeError)
X, DY = np.array([0.5, -1.0, 2.0]), np.array([1.0, 10.0, 100.0])


@tf.custom_gradient
def foreign(x):
    """A function of `tf.custom_gradient`, with a variable."""
    return x * functions.WEIGHT, lambda dy, variables: (3.0 * dy, [dy * x for _ in variables])


# The small models to edit. Together they have every op of the library, in graphs, functions, loops and conditionals.
BASES = {
    "embed": lambda x: functions.stopped(x) + functions.unstopped(x) + functions.two_inputs(x),
    "axis": lambda x: functions.along_an_axis(x) + functions.recomputed(x),
    "rule": lambda x: functions.outer(x) + functions.with_keywords(x) + functions.with_variable(x),
    "control_flow": lambda x: functions.while_loop(x) + functions.cond(x),
    "step": derivative(lambda x: functions.square(x) + functions.stopped(x) * functions.WEIGHT),
    "foreign": lambda x: tf.sin(tf.function(foreign)(x)),
}


def save(name, folder):
    """Saves a function of three numbers, also as the signature."""
    module = tf.Module()
    module.w = functions.WEIGHT
    spec = tf.TensorSpec([None if name in ("step", "axis") else 3], tf.float64, name="x")
    module.f = tf.function(lambda x: BASES[name](x), input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures=module.f)


class UndocumentedError(AssertionError):
    """An exception whose type or message strip, override, adopt and inspect do not document, or a file left over."""


def _promised(api, action):
    try:
        return action()
    except Exception as error:
        if isinstance(error, PROMISED) and str(error).startswith(f"{api}: "):
            raise
        raise UndocumentedError(f"{type(error).__name__}: {error}") from error


def _contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def inspect(folder):
    str(_promised("saved_model.inspect", lambda: cg.saved_model.inspect(folder)))


def _written(name, folder, **options):
    """The report of a function that writes a copy. The copy must be complete, or not exist."""
    target, before, write = folder.parent / "target", _contents(folder), getattr(cg.saved_model, name)
    is_whole = False
    try:
        str(_promised(f"saved_model.{name}", lambda: write(folder, target, **options)))
        is_whole = True
    finally:
        left = sorted(path.name for path in folder.parent.iterdir() if path not in (folder, target))
        if _contents(folder) != before or left or target.exists() != is_whole:
            raise UndocumentedError(f"it left behind {left}, or another source, or a target: {target.exists()}")


def load(folder):
    """Loads, runs and differentiates with a tape."""
    loaded = tf.saved_model.load(str(folder))
    f = loaded.f if hasattr(loaded, "f") else loaded.signatures["serving_default"]
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nest.flatten(f(x))[0]
    tape.gradient(y, [x, *getattr(loaded, "variables", [])], output_gradients=tf.constant(DY))


def signature(folder):
    """Runs the signature in a vectorized_map and under XLA."""
    loaded = tf.saved_model.load(str(folder))  # Keeps its variables alive.

    @tf.autograph.experimental.do_not_convert
    def call(x):
        return tf.nest.flatten(loaded.signatures["serving_default"](x=x))[0]

    tf.function(call, jit_compile=True)(tf.constant(X))
    tf.vectorized_map(call, tf.constant(np.stack([X, X])))


def tf1(folder):
    """The loader of TensorFlow 1, and gradients without Python."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        called = meta.signature_def["serving_default"]
        x = graph.get_tensor_by_name(called.inputs["x"].name)
        y = graph.get_tensor_by_name(next(iter(called.outputs.values())).name)
        session.run(y, {x: X})
        session.run(tf.gradients(y, x, tf.constant(DY)), {x: X})


def import_graph(folder):
    """The counterpart of `inspect` for models without our ops: a graph with all functions."""
    proto = read(folder)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(proto.meta_graphs[0].graph_def, name="")


def _stop(op, *dy):
    """A rule for every op that can have one."""
    return [None] * len(op.inputs)


# What `check` does, and what `control` does instead. Only `strip` does nothing that TensorFlow would do, too.
ACTIONS = {
    "inspect": (inspect, import_graph),
    "strip": (functools.partial(_written, "strip", check=False), None),
    "load": (load, load),
    "signature": (signature, signature),
    "tf1": (tf1, tf1),
    "strip_checked": (functools.partial(_written, "strip", check=True), load),
    "override": (functools.partial(_written, "override", rules={lambda op: True: _stop}), load),
    "adopt": (functools.partial(_written, "adopt"), load),
}


@dataclasses.dataclass(frozen=True)
class Case:
    base: str
    action: str
    edits: tuple


@st.composite
def cases(draw):
    return Case(
        base=draw(st.sampled_from(list(BASES))),
        action=draw(st.sampled_from([*["inspect", "strip", "load", "tf1"] * 2, *ACTIONS])),
        edits=tuple(draw(st.lists(edits.edits, min_size=1, max_size=3))),
    )


def _edited(case, folder):
    """The folder of the edited model, in a folder of its own."""
    original = folder / "bases" / case.base
    if not original.exists():
        save(case.base, folder / "saving")
        shutil.copytree(folder / "saving", original)
        shutil.rmtree(folder / "saving")
    shutil.rmtree(folder / "work", ignore_errors=True)
    model = folder / "work" / "model"
    shutil.copytree(original, model)
    proto = read(model)
    for edit in case.edits:
        if edit.part != "bytes":
            print(edits.apply(edit, proto), flush=True)
    (model / "saved_model.pb").write_bytes(proto.SerializeToString())
    for edit in case.edits:
        if edit.part == "bytes":
            print(edits.apply_to_bytes(edit, model), flush=True)
    return model


def read(model):
    return saved_model_pb2.SavedModel.FromString((model / "saved_model.pb").read_bytes())


def check(case, folder):
    """Raises UndocumentedError or nothing."""
    model = _edited(case, folder)
    try:
        ACTIONS[case.action][0](model)
    except UndocumentedError:
        raise
    except Exception:
        return f"{case.action}: exception"
    return f"{case.action}: result"


def control(case, folder):
    """The same for a model without our ops."""
    model = _edited(case, folder)
    proto = read(model)
    edits.replace_our_ops(proto)
    (model / "saved_model.pb").write_bytes(proto.SerializeToString())
    action = ACTIONS[case.action][1]
    if action:
        action(model)
