"""Wrong calls of the functions that change SavedModels. Each must leave all files as they were."""

import functools
import os
import shutil

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

from ..support.saved_models import Model, proto_of
from .table import FOLDER, X, eager, nothing_is_written

CHANGES = cg.saved_model


@functools.cache
def original():
    """A model, and things beside it that are in the way."""
    module = Model()
    tf.saved_model.save(module, FOLDER / "source", signatures=module.f)
    (FOLDER / "folder").mkdir()
    (FOLDER / "file").touch()
    for link, place in (("to nowhere", "nowhere"), ("link", "source")):
        (FOLDER / link).symlink_to(place)
    return FOLDER / "source"


@functools.cache
def saved(name, function, shape=(None,), gradients=True, signatures=True):
    module = tf.Module()
    module.f = tf.function(function, input_signature=[tf.TensorSpec(shape, name="x")])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=gradients)
    tf.saved_model.save(module, FOLDER / name, signatures=module.f if signatures else {}, options=options)
    return FOLDER / name


def relu():
    return saved("relu", tf.nn.relu)


def sine():
    return saved("sine", tf.sin, (2,))


@tf.custom_gradient
def steep_rule(x):
    return tf.sin(x), lambda dy: 7.0 * dy


def steep(x):
    return steep_rule(x)


def call(function, source=original, target="target", *args, **options):
    """A call with the folder of a model and the name of a new one."""

    def run():
        original()
        path = FOLDER / source if isinstance(source, str) else source()
        try:
            with nothing_is_written():
                function(path, *([] if function is CHANGES.inspect else [FOLDER / target]), *args, **options)
        finally:
            if target == "target":
                shutil.rmtree(FOLDER / target, ignore_errors=True)

    return eager(run)


# Malformed models


def graph_as(make):
    def change(source):
        (source / "saved_model.pb").unlink()
        make(source / "saved_model.pb")

    return change


def in_the_graph(make):
    """Calls `make` with the meta graph, the function with an op of `embed_gradient`, and its node."""

    def change(source):
        proto = proto_of(source)
        (meta_graph,) = proto.meta_graphs
        functions = meta_graph.graph_def.library.function
        for function, node in [(f, n) for f in functions for n in f.node_def if n.op == "CustomGradientEmbed"]:
            make(meta_graph, function, node)
        (source / "saved_model.pb").write_bytes(proto.SerializeToString())

    return change


def name_a_function_that_has_no_fingerprint(meta_graph, *_):
    functions = meta_graph.object_graph_def.concrete_functions
    functions["../.."].CopyFrom(functions[next(iter(functions))])


def call_itself(_, function, __):
    signature = function.signature
    function.node_def.add(name="call", op=signature.name, input=[signature.input_arg[0].name] * 2)


def call_itself_by_an_op(_, function, __):
    call = function.node_def.add(name="call", op="PartitionedCall", input=[function.signature.input_arg[0].name] * 2)
    call.attr["f"].func.name = function.signature.name
    call.attr["Tin"].list.type.extend(argument.type for argument in function.signature.input_arg)
    call.attr["Tout"].list.type.extend(argument.type for argument in function.signature.output_arg)


def length(size):
    return in_the_graph(lambda _, __, node: setattr(node.attr["N"], "i", size))


def part(file, share=None, bytes=None):
    """Cuts a file to a share of its size, or makes it as long as this many bytes."""
    return lambda source: os.truncate(source / file, bytes or int((source / file).stat().st_size * share))


def without(file):
    return lambda source: (source / file).unlink()


def rename_a_shard(source):
    folder = source / "variables"
    (folder / "variables.data-00000-of-00001").rename(folder / "variables.data-00000-of-00002")


def loop_in_assets(source):
    (source / "assets").mkdir(exist_ok=True)
    (source / "assets" / "loop").symlink_to("..")


# Without our checks, TensorFlow would follow calls until its stack overflows, and it would allocate memory for each input
# of a list.
FOR_BOTH = {
    "no graph": without("saved_model.pb"),
    "a list of 64 bits": length(2**63 - 1),
    "a function that calls itself": in_the_graph(call_itself),
}
FOR_STRIP = FOR_BOTH | {
    "a pipe as graph": graph_as(os.mkfifo),  # To open it would wait for ever.
    "an empty graph": part("saved_model.pb", 0.0),
    "half a graph": part("saved_model.pb", 0.5),
    "a graph of 2 GiB": part("saved_model.pb", bytes=2**31),
    "a PartitionedCall of itself": in_the_graph(call_itself_by_an_op),
    "a function without a fingerprint": in_the_graph(name_a_function_that_has_no_fingerprint),
    "a missing shard": rename_a_shard,
    "no index": without("variables/variables.index"),
    "no data": without("variables/variables.data-00000-of-00001"),
    "half an index": part("variables/variables.index", 0.5),
    "half the data": part("variables/variables.data-00000-of-00001", 0.5),
    "a link to the folder in it": loop_in_assets,
}


@functools.cache
def with_missing_asset():
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


def malformed(function, change):
    """A call with a changed copy of the model."""

    def run():
        shutil.rmtree(FOLDER / "malformed", ignore_errors=True)
        shutil.copytree(original(), FOLDER / "malformed")
        change(FOLDER / "malformed")
        call(function, "malformed").call()

    return eager(run)


def changes(function, own, *args):
    """What all functions that write a changed copy check; `own` is a model that this one changes."""
    return {
        "a number as source": eager(lambda: function(3, FOLDER / "target", *args)),
        "a source that is not there": call(function, "no", "target", *args),
        "a target that is there": call(function, own, "folder", *args),
    }


STRIP = changes(CHANGES.strip, relu) | {
    "a number as target": eager(lambda: CHANGES.strip(relu(), 3)),
    "check='yes'": call(CHANGES.strip, check="yes"),
    "options by position": eager(lambda: CHANGES.strip("source", "target", False)),
    "a link as target": call(CHANGES.strip, target="to nowhere"),
    "a target in the source": call(CHANGES.strip, target="source/assets/target"),
    "a target in the source by a link": call(CHANGES.strip, target="link/target"),
    "a target in no folder": call(CHANGES.strip, target="no/target"),
    "a file as source": call(CHANGES.strip, "file"),
    "a missing asset": call(CHANGES.strip, with_missing_asset),
    **{name: malformed(CHANGES.strip, change) for name, change in FOR_STRIP.items()},
}


@functools.cache
def without_arguments():
    module = tf.Module()
    module.f = tf.function(lambda: {"y": cg.embed_gradient(tf.ones([]), 1.0, 2.0)}, input_signature=[])
    tf.saved_model.save(module, FOLDER / "without arguments", signatures=module.f)
    return FOLDER / "without arguments"


def compared(inputs, source=original):
    return eager(lambda: CHANGES.compare(source(), source(), inputs=inputs))


COMPARE = {
    "a source that is not there": eager(lambda: CHANGES.compare(original(), FOLDER / "no")),
    "inputs of an unknown signature": compared({"nope": {}}),
    "inputs as a list": compared([X]),
    "inputs of an unknown argument": compared({"serving_default": {"z": 1.0}}),
    "inputs of a signature without arguments": compared({"serving_default": {"x": 1.0}}, lambda: without_arguments()),
}


def keep(op, dy):
    return dy


def override(rules, **options):
    return call(CHANGES.override, sine, "target", rules, **options)


VARIABLE, TENSOR = tf.Variable(X), tf.constant(np.arange(3000.0), tf.float32)
OVERRIDE = changes(CHANGES.override, relu, {"Relu": keep}) | {
    "no match": override({"sin": keep}),
    "a rule with a variable": override({"Sin": lambda op, dy: dy * VARIABLE[0]}),
    "a rule with a large Tensor": override({"Sin": lambda op, dy: dy * TENSOR[0]}),
}


def adopt(gradients="saved", source=None):
    return call(CHANGES.adopt, source or (lambda: saved("steep", steep)), "target", gradients)


def outside(x):
    c = tf.cos(x)

    @tf.custom_gradient
    def scaled(y):
        return y + 1.0, lambda dy: dy * c

    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, scaled(y)), (0, x))[1]


ADOPT = changes(CHANGES.adopt, lambda: saved("steep", steep)) | {
    "a number": adopt(3),
    "an unknown choice": adopt("auto"),
    "a number for a place": adopt({"IdentityN": 3}),
    "an unknown place": adopt({"Identity": "autodiff"}),
    "a rule with three gradients": adopt({"IdentityN": lambda op, dy: [dy] * 3}),
    "a file without the gradient": adopt(source=lambda: saved("no gradients", steep, gradients=False)),
    "a gradient that reads something outside": adopt(source=lambda: saved("outside", outside, (2,))),
}


@functools.cache
def several():
    """A model with inputs, outputs and variables of all kinds."""
    module = tf.Module()
    module.w, module.frozen = tf.Variable(X, name="w"), tf.Variable(X, trainable=False)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x"), tf.TensorSpec([], tf.int32, name="n")])
    def f(x, n):
        outputs = {"y": x * module.w, "step": tf.round(x) * module.frozen, "total": tf.reduce_sum(x), "n": n + 1}
        image = tf.stack([x, x, x], axis=-1)
        return outputs | {"z": tf.complex(x, x), "red": tf.raw_ops.AdjustHue(images=image, delta=0.5)}

    tf.saved_model.save(module, FOLDER / "several", signatures=f)
    return FOLDER / "several"


@functools.cache
def with_op(name, function, *shape):
    module = tf.Module()
    module.w, module.table = tf.Variable(2.0), tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    f = lambda x: {"y": function(x, module.table), "w": module.w * x}  # noqa: E731
    module.f = tf.function(f, input_signature=[tf.TensorSpec(shape, name="x")])
    tf.saved_model.save(module, FOLDER / name, signatures=module.f)
    return FOLDER / name


with_scale = functools.partial(with_op, "scale", lambda x, _: x, 2)
with_erf = functools.partial(with_op, "erf", lambda x, _: tf.math.erf(x), 2)
with_erfc = functools.partial(with_op, "erfc", lambda x, _: tf.math.erfc(x), 2)
with_pool = functools.partial(with_op, "pool", lambda x, _: tf.nn.max_pool2d(x, 2, 2, "SAME"), 1, None, None, 3)
with_table = functools.partial(with_op, "table", lambda x, table: x * table.lookup(tf.constant(1, tf.int64)), 2)


@functools.cache
def of_tensorflow_1():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2], name="x")
        tf.compat.v1.saved_model.simple_save(session, str(FOLDER / "tensorflow 1"), {"x": x}, {"y": 2.0 * x})
    return FOLDER / "tensorflow 1"


def add(source=several, of="y", wrt="x", **options):
    return call(CHANGES.add_gradients, source, of=of, wrt=wrt, **options)


ADD_GRADIENTS = changes(functools.partial(CHANGES.add_gradients, of="y", wrt="x"), several) | {
    "no options": eager(lambda: CHANGES.add_gradients("source", "target")),
    "an unknown signature": add(signature="serve"),
    "an unknown output": add(of="scores"),
    "an unknown input": add(wrt=["image", "x"]),
    "no input": add(wrt=[]),
    "a number as input": add(wrt=[1]),
    "an integer output": add(of=["y", "n"]),
    "an integer input": add(wrt="n"),
    "an output that does not depend on the input": add(of="step"),
    "an output that does not depend on variables": add(of="total", wrt=["x", "variables"]),
    "a model without variables": add(relu, "output_0", ["x", "variables"]),
    "an op without a gradient": add(of="red"),
    "name='serving_default'": add(name="serving_default"),
    "name='my gradients'": add(name="my gradients"),
    "name=3": add(name=3),
    "loss='mae'": add(loss="mae"),
    "a loss of two outputs": add(of=["y", "total"], loss="mse"),
    "a loss of complex numbers": add(of="z", loss="mse"),
    "update='fast'": add(wrt="variables", update="fast"),
    "update=0.0": add(wrt="variables", update=0.0),
    "an update without variables": add(update=0.1),
    "lite=1": add(lite=1),
    "flex without lite": add(flex=True),
    "lite: an op that LiteRT lacks": add(with_erf, lite=True),
    "lite: an op that LiteRT lacks, and flex": add(with_erfc, lite=True, flex=True),
    "lite: a pool of unknown size": add(with_pool, lite=True),
    "lite: a table": add(with_table, lite=True),
    "lite: name='weights'": add(with_scale, "w", "variables", update=0.1, lite=True, name="weights"),
    "a rule with a large Tensor": add(rules={"Mul": lambda op, dy: [dy * TENSOR[0], None]}),
    "a model of TensorFlow 1": add(of_tensorflow_1),
    "a file without a gradient": add(lambda: saved("no gradients", steep, gradients=False), of="output_0"),
}


GROUPS = {
    "saved_model.add_gradients": ADD_GRADIENTS,
    "saved_model.compare": COMPARE,
    "saved_model.strip": STRIP,
    "saved_model.override": OVERRIDE,
    "saved_model.adopt": ADOPT,
    "saved_model.inspect": {
        "a number": eager(lambda: CHANGES.inspect(3)),
        "a source that is not there": call(CHANGES.inspect, "no"),
        **{name: malformed(CHANGES.inspect, change) for name, change in FOR_BOTH.items()},
    },
}
