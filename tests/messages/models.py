"""SavedModels, whole and damaged, for the calls in messages.txt. A wrong call must leave all files as they were."""

import functools
import os
import shutil

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..support.saved_models import Model, proto_of
from .table import FOLDER

TARGET = FOLDER / "target"
# Things that are in the way.
(FOLDER / "folder").mkdir()
(FOLDER / "file").touch()
(FOLDER / "to nowhere").symlink_to("nowhere")
(FOLDER / "link").symlink_to("source")
OUTSIDE, LARGE = tf.Variable([1.0, 2.0]), tf.constant(np.arange(3000.0), tf.float32)


def saved(name, function, shape=(None,), gradients=True, tracked=None):
    """The path of a model with one function."""
    if not (FOLDER / name).exists():
        module = tf.Module()
        module.tracked = tracked
        module.f = tf.function(function, [tf.TensorSpec(shape, name="x")], autograph=False)
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=gradients)
        tf.saved_model.save(module, FOLDER / name, signatures=module.f, options=options)
    return FOLDER / name


def relu():
    return saved("relu", tf.nn.relu)


def sine_model():
    return saved("sine", tf.sin, (2,))


@tf.custom_gradient
def steep_rule(x):
    return tf.sin(x), lambda dy: 7.0 * dy


def steep(x):
    return steep_rule(x)


def steep_model():
    return saved("steep", steep)


def without_gradients():
    return saved("no gradients", steep, gradients=False)


def outside(x):
    c = tf.cos(x)

    @tf.custom_gradient
    def scaled(y):
        return y + 1.0, lambda dy: dy * c

    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, scaled(y)), (0, x))[1]


def with_op(name, function, *shape):
    w, table = tf.Variable(2.0), tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    return saved(name, lambda x: {"y": function(x, table), "w": w * x}, shape, tracked=[w, table])


@functools.cache
def original():
    module = Model()
    tf.saved_model.save(module, FOLDER / "source", signatures=module.f)
    return FOLDER / "source"


@functools.cache
def without_asset():
    (FOLDER / "words.txt").write_text("one\n")
    keys = tf.lookup.TextFileIndex
    words = tf.lookup.TextFileInitializer(
        str(FOLDER / "words.txt"), tf.string, keys.WHOLE_LINE, tf.int64, keys.LINE_NUMBER
    )
    module = Model()
    module.table = tf.lookup.StaticHashTable(words, -1)
    module.g = tf.function(module.table.lookup, input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, FOLDER / "without asset")
    (FOLDER / "without asset" / "assets" / "words.txt").unlink()
    return FOLDER / "without asset"


@functools.cache
def without_arguments():
    module = tf.Module()
    module.f = tf.function(lambda: {"y": cg.embed_gradient(tf.ones([]), 1.0, 2.0)}, input_signature=[])
    tf.saved_model.save(module, FOLDER / "without arguments", signatures=module.f)
    return FOLDER / "without arguments"


@functools.cache
def several():
    """A model with inputs, outputs and variables of all kinds."""
    module = tf.Module()
    module.w, module.frozen = tf.Variable([1.0, 2.0], name="w"), tf.Variable([1.0, 2.0], trainable=False)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x"), tf.TensorSpec([], tf.int32, name="n")])
    def f(x, n):
        outputs = {"y": x * module.w, "step": tf.round(x) * module.frozen, "total": tf.reduce_sum(x), "n": n + 1}
        image = tf.stack([x, x, x], axis=-1)
        return outputs | {"z": tf.complex(x, x), "red": tf.raw_ops.AdjustHue(images=image, delta=0.5)}

    tf.saved_model.save(module, FOLDER / "several", signatures=f)
    return FOLDER / "several"


@functools.cache
def of_tensorflow_1():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
        tf.compat.v1.saved_model.simple_save(session, str(FOLDER / "tensorflow 1"), {"x": x}, {"y": 2.0 * x})
    return FOLDER / "tensorflow 1"


def refused(function, *args, **options):
    """Calls a function, and checks that it leaves the folder of all models as it was."""

    def files():
        paths = sorted(FOLDER.rglob("*"))
        return [(path, path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths]

    before = files()
    try:
        function(*args, **options)
    finally:
        if files() != before:
            shutil.rmtree(TARGET, ignore_errors=True)
            raise RuntimeError("The call has changed files.")


def add(source, of="y", wrt="x", **options):
    refused(cg.saved_model.add_gradients, source, TARGET, of=of, wrt=wrt, **options)


@functools.cache
def lite_file(size=None, signature=True):
    """A LiteRT file; the first bytes of one, or one that does not name its function."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(relu()))
    if not signature:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [2])
            converter = tf.compat.v1.lite.TFLiteConverter.from_session(session, [x], [tf.nn.relu(x)])
    path = FOLDER / f"{size}{signature}.tflite"
    path.write_bytes(converter.convert()[:size])
    return path


def of_variable(name, value, function, shape=None, called="w"):
    """A model whose only input is multiplied by what the function makes of a variable."""
    w = tf.Variable(value, shape=shape, name=called)
    return saved(name, lambda x: {"y": x * tf.abs(function(w))}, [2], tracked=[w])


# Without our checks, TensorFlow would follow calls until its stack overflows, allocate memory for each input of a list, and
# wait for ever for what a pipe sends.
def damaged(damage, function=cg.saved_model.strip):
    """Calls a function with a changed copy of the model."""
    source = FOLDER / "malformed"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(original(), source)
    damage(source)
    refused(function, source, *([TARGET] if function is cg.saved_model.strip else []))


def in_the_graph(make):
    """Calls `make` with the meta graph, the function with an op of `embed_gradient`, and its node."""

    def damage(source):
        proto = proto_of(source)
        (meta_graph,) = proto.meta_graphs
        functions = meta_graph.graph_def.library.function
        for function, node in [(f, n) for f in functions for n in f.node_def if n.op == "CustomGradientEmbed"]:
            make(meta_graph, function, node)
        (source / "saved_model.pb").write_bytes(proto.SerializeToString())

    return damage


@in_the_graph
def with_a_list_of_64_bits(_, __, node):
    node.attr["N"].i = 2**63 - 1


@in_the_graph
def without_fingerprint(meta_graph, *_):
    functions = meta_graph.object_graph_def.concrete_functions
    functions["../.."].CopyFrom(functions[next(iter(functions))])


@in_the_graph
def calling_itself(_, function, __):
    signature = function.signature
    function.node_def.add(name="call", op=signature.name, input=[signature.input_arg[0].name] * 2)


@in_the_graph
def calling_itself_by_an_op(_, function, __):
    call = function.node_def.add(name="call", op="PartitionedCall", input=[function.signature.input_arg[0].name] * 2)
    call.attr["f"].func.name = function.signature.name
    call.attr["Tin"].list.type.extend(argument.type for argument in function.signature.input_arg)
    call.attr["Tout"].list.type.extend(argument.type for argument in function.signature.output_arg)


def with_a_pipe(source):
    (source / "saved_model.pb").unlink()
    os.mkfifo(source / "saved_model.pb")


def part(file, share=None, bytes=None):
    """Cuts a file to a share of its size, or makes it as long as this many bytes."""
    return lambda source: os.truncate(source / file, bytes or int((source / file).stat().st_size * share))


def without(file):
    return lambda source: (source / file).unlink()


def with_another_shard(source):
    folder = source / "variables"
    (folder / "variables.data-00000-of-00001").rename(folder / "variables.data-00000-of-00002")


def with_a_loop_in_assets(source):
    (source / "assets").mkdir(exist_ok=True)
    (source / "assets" / "loop").symlink_to("..")
