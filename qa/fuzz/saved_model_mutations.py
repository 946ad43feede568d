"""Mutations of a SavedModel: of the messages in its file, of their structure, and of the bytes of its files.

Each mutation takes a random generator and an object to change, and returns a description of the change.
"""

import random

import tensorflow as tf
from google.protobuf.descriptor import FieldDescriptor

from tf_cg_ops.saved_model._replace_ops import OUTPUT_NAMES

INTEGERS = (-(2**63), -(2**31), -(10**6), -2, -1, 0, 1, 2, 3, 7, 100, 10**6, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
TEXTS = (
    "",
    ":",
    "^",
    "x",
    "x:0",
    "a:b:c",
    "fx",
    "gx",
    "x" * 10000,
    "{expected} {got} {",
    "\u00e9\u2028",
    "%s%n",
    "../..",
)
WORDS = (b"", b"\xff\xfe", b"\0", b"fx", b"gx", b"wx", b"loc:@nothing", b"y" * 100000)


def functions_of(proto):
    return proto.meta_graphs[0].graph_def.library.function


def our_nodes(proto):
    """The nodes of the library's ops, each with its function."""
    return [(f, node) for f in functions_of(proto) for node in f.node_def if node.op in OUTPUT_NAMES]


def _slots(message):
    """Every field of a message that could be set, as deep as it is filled: (message, field, key or index)."""
    found, pending = [], [message]
    while pending:
        current = pending.pop()
        for field in current.DESCRIPTOR.fields:
            value = getattr(current, field.name)
            is_message = field.type == FieldDescriptor.TYPE_MESSAGE
            if is_message and field.message_type.GetOptions().map_entry:
                found += [(current, field, key) for key in sorted(value)]
                if field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_MESSAGE:
                    pending += [value[key] for key in sorted(value)]
            elif field.is_repeated:
                found += [(current, field, i) for i in range(len(value))]
                found += [(current, field, None)]
                pending += list(value) if is_message else []
            else:
                found.append((current, field, None))
                if is_message and current.HasField(field.name):
                    pending.append(value)
    return found


def _texts(rng, proto):
    functions = functions_of(proto)
    function = rng.choice(functions) if functions else None
    names = [f.signature.name for f in functions] + [node.name for node in function.node_def] if function else []
    ops = ["Identity", "PartitionedCall", "While", "NoOp", *OUTPUT_NAMES]
    return rng.choice([rng.choice(TEXTS), rng.choice(names or TEXTS), rng.choice(ops)])


def _scalar(rng, field, old, proto):
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not old
    if field.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice([*field.enum_type.values_by_number, 999])
    if field.type == FieldDescriptor.TYPE_STRING:
        return _texts(rng, proto)
    if field.type == FieldDescriptor.TYPE_BYTES:
        flipped = bytearray(old or b"0")
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        return rng.choice([bytes(flipped), old[: rng.randrange(len(old) + 1)], rng.choice(WORDS)])
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e300])
    width = 32 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    signed = field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    near = [min(max(old + d, low), high) for d in (-1, 1)]
    return rng.choice([*near, *(i for i in INTEGERS if low <= i <= high)])


def change_field(rng, message, proto):
    """Changes any field: another value, one less, one more, one twice, another order, one from elsewhere."""
    owner, field, key = rng.choice(_slots(message))
    where = f"{owner.DESCRIPTOR.name}.{field.name}" + (f"[{key!r}]" if key is not None else "")
    value = getattr(owner, field.name)
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    if is_message and field.message_type.GetOptions().map_entry:
        return f"{where}: {_change_entry(rng, value, key, field, proto)}"
    if field.is_repeated:
        return f"{where}: {_change_list(rng, value, key, field, proto)}"
    if is_message:
        if owner.HasField(field.name) and rng.random() < 0.8:
            owner.ClearField(field.name)
            return f"{where}: cleared"
        value.SetInParent()
        return f"{where}: set to nothing"
    if rng.random() < 0.1:
        owner.ClearField(field.name)
        return f"{where}: cleared"
    new = _scalar(rng, field, value, proto)
    try:
        setattr(owner, field.name, new)
    except ValueError:  # An enumeration of the closed kind.
        owner.ClearField(field.name)
    return f"{where}: {str(value)[:40]!r} became {str(new)[:40]!r}"


def _change_entry(rng, entries, key, field, proto):
    other = rng.choice(sorted(entries))
    if rng.random() < 0.4:
        del entries[key]
        return "dropped"
    value_field = field.message_type.fields_by_name["value"]
    if value_field.type == FieldDescriptor.TYPE_MESSAGE:
        if rng.random() < 0.5:
            entries[key].CopyFrom(entries[other])
            return f"became that of {other!r}"
        entries[_texts(rng, proto) if isinstance(key, str) else 7].CopyFrom(entries[key])
        return "another key, too"
    entries[key] = _scalar(rng, value_field, entries[key], proto) if rng.random() < 0.5 else entries[other]
    return f"became {str(entries[key])[:40]!r}"


def _change_list(rng, items, index, field, proto):
    what = rng.choice(["drop", "clear", "twice", "shuffle", "more", "value"])
    if index is None or what == "more":
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            items.add()
        else:
            items.append(_new_scalar(rng, field, proto))
        return "one more"
    if what == "drop":
        del items[index]
    elif what == "clear":
        del items[:]
    elif what == "twice":
        items.extend([items[index]])
    elif what == "shuffle" or field.type == FieldDescriptor.TYPE_MESSAGE:
        copies = [type(i).FromString(i.SerializeToString()) if hasattr(i, "SerializeToString") else i for i in items]
        rng.shuffle(copies)
        del items[:]
        items.extend(copies)
        what = "shuffle"
    else:
        old = items[index]
        items[index] = _known(field, _scalar(rng, field, old, proto), old)
        return f"{str(old)[:40]!r} became {str(items[index])[:40]!r}"
    return what


def _new_scalar(rng, field, proto):
    zero = {FieldDescriptor.TYPE_STRING: "", FieldDescriptor.TYPE_BYTES: b""}.get(field.type, 0)
    return _known(field, _scalar(rng, field, zero, proto), zero)


def _known(field, value, default):
    closed = field.type == FieldDescriptor.TYPE_ENUM and value not in field.enum_type.values_by_number
    return default if closed else value


def change_our_node(rng, proto):
    function, node = rng.choice(our_nodes(proto))
    return f"{node.op} in {function.signature.name}: {change_field(rng, node, proto)}"


def change_our_attribute(rng, proto):
    function, node = rng.choice(our_nodes(proto))
    name = rng.choice(sorted(node.attr))
    if rng.random() < 0.15:
        other = rng.choice(sorted(node.attr))
        node.attr[name].CopyFrom(node.attr[other])
        return f"{node.op} in {function.signature.name}: {name} is that of {other}"
    return f"{node.op} in {function.signature.name}, {name}: {change_field(rng, node.attr[name], proto)}"


def change_function(rng, proto):
    function = rng.choice(functions_of(proto))
    return f"{function.signature.name}: {change_field(rng, function, proto)}"


def change_signature(rng, proto):
    function = rng.choice(functions_of(proto))
    return f"{function.signature.name}: {change_field(rng, function.signature, proto)}"


def change_rule(rng, proto):
    """The function that a rule names, or its signature."""
    names = {node.attr["rule"].func.name for _, node in our_nodes(proto) if "rule" in node.attr}
    rules = [f for f in functions_of(proto) if f.signature.name in names] or list(functions_of(proto))
    function = rng.choice(rules)
    part = rng.choice([function, function.signature, function.signature])
    return f"{function.signature.name}: {change_field(rng, part, proto)}"


def change_graph(rng, proto):
    graph_def = proto.meta_graphs[0].graph_def
    part = rng.choice([graph_def.versions, *graph_def.node])
    return f"graph, {getattr(part, 'name', 'versions')}: {change_field(rng, part, proto)}"


def change_objects(rng, proto):
    return f"objects: {change_field(rng, proto.meta_graphs[0].object_graph_def, proto)}"


def change_meta(rng, proto):
    meta = proto.meta_graphs[0]
    parts = [meta.signature_def[key] for key in sorted(meta.signature_def)]
    part = rng.choice([*parts, meta.saver_def, meta.meta_info_def])
    return f"{part.DESCRIPTOR.name}: {change_field(rng, part, proto)}"


def change_op_list(rng, proto):
    ops = proto.meta_graphs[0].meta_info_def.stripped_op_list.op
    op = rng.choice([op for op in ops if op.name in OUTPUT_NAMES] or list(ops))
    return f"op list, {op.name}: {change_field(rng, op, proto)}"


def change_structure(rng, proto):
    """Removes, doubles and renames nodes and functions; makes inputs dangle, swaps them, makes cycles."""
    function = rng.choice([rng.choice(functions_of(proto)), rng.choice(our_nodes(proto))[0]])
    ours = [node for node in function.node_def if node.op in OUTPUT_NAMES]
    node = rng.choice(ours if ours and rng.random() < 0.6 else list(function.node_def) or [tf.compat.v1.NodeDef()])
    what = rng.choice(
        ["drop", "twice", "rename", "op", "input", "swap", "loop", "control", "more", "function", "function twice"]
    )
    if what == "drop" and node in function.node_def:
        function.node_def.remove(node)
    elif what == "twice":
        function.node_def.append(node)
    elif what == "rename":
        node.name = _texts(rng, proto)
    elif what == "op":
        node.op = rng.choice([*OUTPUT_NAMES, "Identity", "IdentityN", "PartitionedCall", "While", "Unheard"])
    elif what == "function":
        functions_of(proto).remove(function)
    elif what == "function twice":
        functions_of(proto).append(function)
    elif what == "control":
        node.input.append("^" + rng.choice(list(function.node_def)).name)
    elif what == "more" or not node.input:
        node.input.append(_texts(rng, proto))
    elif what == "input":
        node.input[rng.randrange(len(node.input))] = _texts(rng, proto)
    elif what == "swap":
        inputs = list(node.input)
        rng.shuffle(inputs)
        node.input[:] = inputs
    else:
        outputs = OUTPUT_NAMES.get(node.op, "output")
        node.input[rng.randrange(len(node.input))] = f"{node.name}:{outputs}:0"
    return f"{function.signature.name}, {node.op} {node.name[:60]!r}: {what}"


def recurse(rng, proto):
    """A rule, a called function, or the body of a loop is itself, its caller, or any other function."""
    holders = [
        (function, node, name)
        for function in functions_of(proto)
        for node in function.node_def
        for name in sorted(node.attr)
        if node.attr[name].HasField("func")
    ]
    function, node, name = rng.choice(holders)
    all_names = [f.signature.name for f in functions_of(proto)]
    target = rng.choice([function.signature.name, node.attr[name].func.name, *all_names])
    what = rng.choice(["name", "rule", "call", "gradient"])
    if what == "name":
        node.attr[name].func.name = target
    elif what == "gradient":
        proto.meta_graphs[0].graph_def.library.gradient.add(function_name=function.signature.name, gradient_func=target)
    else:
        _insert(rng, proto, target, what)
    return f"{what} {node.op} {name} in {function.signature.name} -> {target}"


def _insert(rng, proto, target, what):
    """Puts a call or a rule behind an argument of a function that is called, or is a rule."""
    called = {f.signature.name: f for f in functions_of(proto)}
    body = called[target] if rng.random() < 0.5 else rng.choice(list(functions_of(proto)))
    if not body.signature.input_arg:
        return
    argument = body.signature.input_arg[0]
    node = body.node_def.add(name="inserted", input=[argument.name])
    if what == "rule":
        node.op = "CustomGradientRule"
        node.attr["Tresults"].list.type.append(argument.type)
        node.attr["Tinputs"].list.type.append(argument.type)
        node.attr["Tcaptures"].list.SetInParent()
        node.input.append(argument.name)
        for name in ("differentiated_results", "differentiated_inputs"):
            node.attr[name].list.i.append(0)
        node.attr["rule"].func.name = target
        output = "inserted:outputs:0"
    else:
        node.op = "PartitionedCall"
        signature = called[target].signature
        node.attr["f"].func.name = target
        node.attr["Tin"].list.type.extend(a.type for a in signature.input_arg)
        node.attr["Tout"].list.type.extend(a.type for a in signature.output_arg)
        node.input.extend([argument.name] * (len(signature.input_arg) - 1))
        output = "inserted:output:0"
    for reader in body.node_def:
        if reader.name != "inserted":
            reader.input[:] = [output if given == argument.name else given for given in reader.input]


def change_gradient_type(rng, proto):
    function = rng.choice(functions_of(proto))
    node = rng.choice(list(function.node_def) or [tf.compat.v1.NodeDef()])
    node.attr["_gradient_op_type"].s = rng.choice(
        [b"", b"Unheard", b"CustomGradient-7", b"CustomGradientRule", b"\xff"]
    )
    return f"{function.signature.name}, {node.name}: _gradient_op_type {node.attr['_gradient_op_type'].s!r}"


OF_MESSAGES = {
    change_our_attribute: 8,
    change_our_node: 4,
    change_rule: 4,
    change_structure: 4,
    recurse: 3,
    change_function: 3,
    change_signature: 3,
    change_graph: 1,
    change_objects: 2,
    change_meta: 1,
    change_op_list: 1,
    change_gradient_type: 1,
}


def change_nothing(rng, proto):
    """Changes that may not change any result: another order, unused nodes, notes."""
    graph_def = proto.meta_graphs[0].graph_def
    what = rng.choice(
        ["order of nodes", "order of functions", "an unread function", "notes", "an unread node", "op list"]
    )
    if what == "order of functions":
        _shuffle(rng, graph_def.library.function)
    elif what == "order of nodes":
        _shuffle(rng, rng.choice(graph_def.library.function).node_def)
    elif what == "an unread function":
        graph_def.library.function.add().signature.name = f"nobody_names_it_{rng.random()}"
    elif what == "notes":
        function, node = rng.choice(our_nodes(proto))
        node.attr["_note"].s = rng.choice(WORDS)
        node.experimental_debug_info.original_node_names.append("here")
    elif what == "an unread node":
        function = next(
            f for f in functions_of(proto) if "inference_f_" in f.signature.name
        )  # Of rules, all is counted.
        node = function.node_def.add(name=f"nobody_reads_it_{len(function.node_def)}", op="Const")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0))
    else:
        _shuffle(rng, proto.meta_graphs[0].meta_info_def.stripped_op_list.op)
    return f"no change: {what}"


def _shuffle(rng, items):
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    rng.shuffle(copies)
    del items[:]
    items.extend(copies)


def change_bytes(rng, folder):
    """Flips, cuts off or repeats bytes of a file of the SavedModel."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "fingerprint.pb")
    file = rng.choice([folder / "saved_model.pb", rng.choice(files)])
    data = bytearray(file.read_bytes())
    what = rng.choice(["flip", "flip", "flip", "cut", "repeat", "missing" if rng.random() < 0.3 else "flip"])
    if what == "missing":
        file.unlink()
    elif what == "cut":
        file.write_bytes(data[: rng.randrange(len(data))])
    elif what == "repeat":
        start, place = rng.randrange(len(data)), rng.randrange(len(data))
        data[place:place] = data[start : start + rng.randrange(1, 64)]
        file.write_bytes(data)
    else:
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
    return f"{what} bytes of {file.name}"


def generator(seed, number):
    return random.Random(f"{seed}/{number}")
