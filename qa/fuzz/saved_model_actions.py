"""Actions on a mutated SavedModel, and on the same one without ops of this library, to compare.

Every action ends with a result or an exception. `strip`, `override`, `adopt` and `inspect` document their exceptions.
"""

import functools
import shutil

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import tf_cg_ops as cg
from tf_cg_ops.saved_model._replace_ops import OUTPUT_NAMES

from . import saved_model_bases as bases
from . import saved_model_mutations as mutations

PROMISED = (FileNotFoundError, NotADirectoryError, FileExistsError, ValueError, RuntimeError)


class UndocumentedError(Exception):
    """An exception that strip, override, adopt and inspect do not document, by its kind or message; or a file left over."""


def _promised(api, action):
    try:
        return action()
    except PROMISED as error:
        if str(error).startswith(f"{api}: "):
            raise
        raise UndocumentedError(f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise UndocumentedError(f"{type(error).__name__}: {error}") from error


def _contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def inspect(folder):
    return [str(_promised("saved_model.inspect", lambda: cg.saved_model.inspect(folder)))]


def _written(api, write, folder):
    """The report of a function that writes a copy, which must be whole or not there."""
    target, before = folder.parent / "target", _contents(folder)
    report, whole = None, False
    try:
        report = _promised(api, lambda: write(folder, target))
        whole = True
    finally:
        left = sorted(path.name for path in folder.parent.iterdir() if path not in (folder, target))
        if _contents(folder) != before or left or target.exists() != whole:
            raise UndocumentedError(f"it left behind {left}, or another source, or a target: {target.exists()}")
    shutil.rmtree(target)
    return report


def _verdicts(report):
    return str([comparison.verdict for comparison in report.comparisons or []])


def _strip(folder, check):
    report = _written("saved_model.strip", functools.partial(cg.saved_model.strip, check=check), folder)
    return [str(report.replaced), _verdicts(report)]


def strip(folder):
    return _strip(folder, check=False)


def strip_checked(folder):
    return _strip(folder, check=True)


def override(folder):
    """A rule for every op that can have one."""
    rules = {lambda op: True: lambda op, *dy: [None] * len(op.inputs)}
    report = _written("saved_model.override", functools.partial(cg.saved_model.override, rules=rules), folder)
    return [str(report.overridden), _verdicts(report)]


def adopt(folder):
    """Bases without gradients of `tf.custom_gradient` are copied."""
    report = _written("saved_model.adopt", cg.saved_model.adopt, folder)
    return [str([(found.gradients, found.detail) for found in report.adopted]), _verdicts(report)]


def _loaded(folder):
    loaded = tf.saved_model.load(str(folder))
    return loaded, loaded.f if hasattr(loaded, "f") else loaded.signatures["serving_default"]


def _call(function, x):
    return tf.nest.flatten(function(x))[0]


def load(folder):
    """Loads, runs and differentiates with a tape."""
    loaded, f = _loaded(folder)
    x, dy = tf.constant(bases.X), tf.constant(bases.DY)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = _call(f, x)
    gradient = tape.gradient(y, [x, *getattr(loaded, "variables", [])], output_gradients=dy)
    return [_array(t) for t in (y, *gradient)]


def second(folder):
    """The second order, all of it in a function."""
    loaded, f = _loaded(folder)

    @tf.function(autograph=False)
    def derivatives(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = _call(f, x)
            first = inner.gradient(y, x, output_gradients=tf.constant(bases.DY))
        return first, outer.gradient(first, x, unconnected_gradients="zero")

    result = [_array(t) for t in derivatives(tf.constant(bases.X))]
    del loaded
    return result


def signature(folder):
    """The signature, in a vectorized_map and compiled by XLA."""
    loaded = tf.saved_model.load(str(folder))
    f = loaded.signatures["serving_default"]

    @tf.autograph.experimental.do_not_convert
    def call(x):
        return tf.nest.flatten(f(x=x))[0]

    results = [_array(tf.function(call, jit_compile=True)(tf.constant(bases.X)))]
    rows = tf.constant(np.stack([bases.X, bases.X]))
    return [*results, _array(tf.vectorized_map(call, rows))]


def tf1(folder):
    """The loader of TensorFlow 1, and gradients without Python."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        called = meta.signature_def["serving_default"]
        x = graph.get_tensor_by_name(called.inputs["x"].name)
        y = graph.get_tensor_by_name(next(iter(called.outputs.values())).name)
        value = session.run(y, {x: bases.X})
        gradient = tf.gradients(y, x, tf.constant(bases.DY))
        return [_array(v) for v in (value, *session.run(gradient, {x: bases.X}))]


def import_graph(folder):
    """The counterpart of `inspect` for models without our ops: a graph with all functions, and every body."""
    proto = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(proto.meta_graphs[0].graph_def, name="")
    return [str(len(graph.get_operations()))]


def nothing(folder):
    return []


def _array(tensor):
    return None if tensor is None else np.asarray(tensor if not hasattr(tensor, "values") else tensor.values).tolist()


# Those that every mutant goes through, and those of which it goes through one; with what stands for each, once the ops
# of this library are replaced: `strip` alone does nothing that TensorFlow would do, too.
ALWAYS = {"inspect": inspect, "strip": strip, "load": load}
IN_TURN = {
    "second": second,
    "signature": signature,
    "tf1": tf1,
    "strip_checked": strip_checked,
    "override": override,
    "adopt": adopt,
}
CONTROLS = {
    "inspect": import_graph,
    "strip": nothing,
    "load": load,
    "second": second,
    "signature": signature,
    "tf1": tf1,
    "strip_checked": load,
    "override": load,
    "adopt": load,
}


def mutate(seed, number, folder):
    """Makes the mutant of that number of the SavedModels of all bases in `folder`; returns its description."""
    rng = mutations.generator(seed, number)
    base = bases.BASES[number % len(bases.BASES)]
    model = folder / base.__name__
    names = list(IN_TURN)
    info = {"base": base.__name__, "action": rng.choice(names), "neutral": False, "done": []}
    kind = rng.random()
    if kind < 0.08:
        info["done"] = [mutations.change_bytes(rng, model)]
        return model, info
    file = model / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    info["neutral"] = kind < 0.14
    chosen = [mutations.change_nothing] if info["neutral"] else None
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        (change,) = chosen or rng.choices(list(mutations.OF_MESSAGES), list(mutations.OF_MESSAGES.values()))
        try:
            info["done"].append(f"{change.__name__}: {change(rng, proto)}")
        except (IndexError, ValueError) as error:  # An earlier one took what it would change.
            info["done"].append(f"{change.__name__}: nothing left ({error})")
    file.write_bytes(proto.SerializeToString())
    return model, info


def replace_our_ops(folder):
    """Replaces the ops of this library with built-in ops: with identities, and with calls of rules."""
    file = folder / "saved_model.pb"
    proto = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta in proto.meta_graphs:
        library = {f.signature.name: f for f in meta.graph_def.library.function}
        _replace_in(meta.graph_def.node, library)
        for function in library.values():
            ours = _replace_in(function.node_def, library)
            _rename_outputs(function, ours)
    file.write_bytes(proto.SerializeToString())


def _replace_in(body, library):
    """Returns the names of the replaced nodes."""
    nodes = [node for node in body if node.op in OUTPUT_NAMES]
    calls = [call for node in nodes if (call := _replace(node, library))]
    body.extend(calls)
    return {node.name for node in nodes}


def _replace(node, library):
    """Returns the call that is to be added."""
    name = next((n for n in ("Tresults", "Tvalues") if n in node.attr), None)
    types = list(node.attr[name].list.type) if name else [node.attr["T"].type]
    given = [each for each in node.input if not each.startswith("^")]
    controls = [each for each in node.input if each.startswith("^")]
    call = _call_of_rule(node, given, types, library)
    size = node.attr["N"].i if "N" in node.attr else 0
    node.attr.clear()
    if not 0 <= size <= len(given):  # A list that is said to be longer than it is, or of a negative length.
        node.op = "Pack"
        node.attr["N"].i = size
        node.attr["T"].type = types[0]
    else:
        node.op = "IdentityN"
        node.input[:] = [*given[: len(types)], *controls]
        node.attr["T"].list.type.extend(types)
    if call:
        node.input.append("^" + call.name)
    return call


def _call_of_rule(node, given, types, library):
    """Calls the rule as a gradient would, here with results as the upstream gradients. None if that fails."""
    rule = library.get(node.attr["rule"].func.name)
    positions = node.attr["differentiated_results"].list.i
    captured = list(node.attr["Tcaptures"].list.type)
    if rule is None or not all(0 <= i < len(types) <= len(given) for i in positions):
        return None
    call = tf.compat.v1.NodeDef(name=f"{node.name}_rule", op="StatefulPartitionedCall")
    call.input.extend([*(given[i] for i in positions), *given[len(given) - len(captured) :]])
    call.attr["f"].func.name = rule.signature.name
    call.attr["Tin"].list.type.extend([*(types[i] for i in positions), *captured])
    call.attr["Tout"].list.type.extend(argument.type for argument in rule.signature.output_arg)
    return call


def _rename_outputs(function, ours):
    def rename(reference):
        name, _, output = reference.partition(":")
        return f"{name}:output:{output.partition(':')[2]}" if name in ours and output else reference

    for node in function.node_def:
        node.input[:] = [rename(given) for given in node.input]
    for name, reference in list(function.ret.items()):
        function.ret[name] = rename(reference)
