"""Edits any field of a message in a SavedModel, or the bytes of its files.

An edit consists of numbers that hypothesis draws and shrinks. Each number chooses one of the possibilities in turn.
"""

import dataclasses

import tensorflow as tf
from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import strategies as st

OUR_OPS = tuple(f"CustomGradient{kind}" for kind in ("Barrier", "CheckShape", "Embed", "EmbedGrad", "Rule"))

INTEGERS = (-(2**63), -(2**31), -(10**6), -2, -1, 0, 1, 2, 3, 7, 100, 10**6, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
TEXTS = ("", ":", "^", "x:0", "a:b:c", "gx", "x" * 10000, "{expected} {got} {", "\u00e9\u2028", "%s%n", "../..")
WORDS = (b"", b"\xff\xfe", b"\0", b"fx", b"wx", b"loc:@nothing", b"CustomGradient-7", b"y" * 100000)


@dataclasses.dataclass(frozen=True)
class Edit:
    part: str  # Of PARTS.
    which: int  # Of the messages of this part,
    place: int  # and of its fields.
    change: str  # What becomes of the field: "value", "clear", "add" or "twice",
    value: int  # and which value.


def _functions(proto):
    return list(proto.meta_graphs[0].graph_def.library.function)


def _our_nodes(proto):
    return [node for function in _functions(proto) for node in function.node_def if node.op in OUR_OPS]


def _calls(proto):
    """The places that name functions, so that an edit can make a function call itself."""
    nodes = [node for function in _functions(proto) for node in function.node_def]
    return [a.func for node in nodes for _, a in sorted(node.attr.items()) if a.HasField("func")]


PARTS = {
    "our attributes": lambda proto: [node.attr[key] for node in _our_nodes(proto) for key in sorted(node.attr)],
    "our nodes": _our_nodes,
    "calls": _calls,
    "functions": _functions,
    "signatures": lambda proto: [function.signature for function in _functions(proto)],
    "graph": lambda proto: [proto.meta_graphs[0].graph_def.versions, *proto.meta_graphs[0].graph_def.node],
    "objects": lambda proto: [proto.meta_graphs[0].object_graph_def],
    "meta": lambda proto: [proto.meta_graphs[0].saver_def, proto.meta_graphs[0].meta_info_def],
    "called": lambda proto: [called for _, called in sorted(proto.meta_graphs[0].signature_def.items())],
    "op list": lambda proto: list(proto.meta_graphs[0].meta_info_def.stripped_op_list.op),
    "bytes": None,
}

_SHARES = ["our attributes"] * 8 + ["our nodes", "functions", "signatures", "calls", "bytes"] * 3 + list(PARTS)
edits = st.builds(
    Edit,
    part=st.sampled_from(_SHARES),
    which=st.integers(0, 2**10),
    place=st.integers(0, 2**12),
    change=st.sampled_from(("value", "value", "clear", "add", "twice")),
    value=st.integers(0, 2**12),
)


def apply(edit, proto):
    """Changes the message; returns what it did."""
    messages = PARTS[edit.part](proto)
    if not messages:
        return f"{edit.part}: there are none"
    message = messages[edit.which % len(messages)]
    slots = _slots(message)
    owner, field, key = slots[edit.place % len(slots)]
    functions = [function.signature.name for function in _functions(proto)]
    nodes = [node.name for function in _functions(proto) for node in function.node_def]
    texts = functions if edit.part == "calls" else [*functions, *TEXTS, "While", "NoOp", *OUR_OPS, *nodes]
    try:
        _change(owner, field, key, edit, texts)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        return f"{edit.part}: nothing done ({error})"
    return f"{edit.part}: {owner.DESCRIPTOR.name}.{field.name}[{key!r}], {edit.change}"


def apply_to_bytes(edit, folder):
    """Flips, cuts off or repeats bytes of a file of the SavedModel, or removes it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "fingerprint.pb")
    file = (folder / "saved_model.pb", *files)[edit.which % (len(files) + 1)]
    data = bytearray(file.read_bytes())
    place = edit.place * 37 % max(1, len(data))
    if edit.change == "clear" and edit.value % 4 == 0:
        file.unlink()
    elif edit.change == "clear":
        file.write_bytes(data[:place])
    elif edit.change == "twice":
        file.write_bytes(data[: place + 1 + edit.value % 64] + data[place:])
    elif data:
        data[place] ^= 1 << edit.value % 8
        file.write_bytes(data)
    return f"{file.name}, at {place}: {edit.change}"


def _slots(message):
    """Every field that could be set, in the message and those inside it: (message, field, key or index)."""
    found, pending = [], [message]
    while pending:
        current = pending.pop()
        for field in current.DESCRIPTOR.fields:
            value = getattr(current, field.name)
            is_message = field.type == Field.TYPE_MESSAGE
            if is_message and field.message_type.GetOptions().map_entry:
                found += [(current, field, key) for key in sorted(value)]
                if field.message_type.fields_by_name["value"].type == Field.TYPE_MESSAGE:
                    pending += [value[key] for key in sorted(value)]
            elif field.is_repeated:
                found += [(current, field, i) for i in [*range(len(value)), None]]
                pending += list(value) if is_message else []
            else:
                found.append((current, field, None))
                if is_message and current.HasField(field.name):
                    pending.append(value)
    return found


def _change(owner, field, key, edit, texts):
    value = getattr(owner, field.name)
    is_message = field.type == Field.TYPE_MESSAGE
    if is_message and field.message_type.GetOptions().map_entry:
        _change_entry(value, key, field.message_type.fields_by_name["value"], edit, texts)
    elif field.is_repeated:
        _change_list(value, key, field, edit, texts)
    elif edit.change == "clear" or (is_message and owner.HasField(field.name)):
        owner.ClearField(field.name)
    elif is_message:
        value.SetInParent()
    else:
        setattr(owner, field.name, _scalar(field, value, edit.value, texts))


def _change_entry(entries, key, field, edit, texts):
    if edit.change == "clear":
        del entries[key]
    elif field.type == Field.TYPE_MESSAGE and edit.change in ("add", "twice"):
        entries[texts[edit.value % len(texts)] if isinstance(key, str) else 7].CopyFrom(entries[key])
    elif field.type == Field.TYPE_MESSAGE:
        entries[key].CopyFrom(entries[sorted(entries)[edit.value % len(entries)]])
    else:
        entries[key] = _scalar(field, entries[key], edit.value, texts)


def _change_list(items, index, field, edit, texts):
    is_message = field.type == Field.TYPE_MESSAGE
    if index is None or edit.change == "add":
        zero = {Field.TYPE_STRING: "", Field.TYPE_BYTES: b""}.get(field.type, 0)
        items.add() if is_message else items.append(_scalar(field, zero, edit.value, texts))
    elif edit.change == "clear":
        del items[index]
    elif edit.change == "twice":
        items.extend([items[index]])
    elif is_message:
        items[index].CopyFrom(items[edit.value % len(items)])
    else:
        items[index] = _scalar(field, items[index], edit.value, texts)


def _scalar(field, old, number, texts):
    """Another value of the field."""
    if field.type == Field.TYPE_BOOL:
        return not old
    if field.type == Field.TYPE_ENUM:
        options = [*field.enum_type.values_by_number, 999]
    elif field.type == Field.TYPE_STRING:
        options = texts
    elif field.type == Field.TYPE_BYTES:
        flipped = bytearray(old or b"0")
        flipped[number % len(flipped)] ^= 1 << number % 8
        options = [bytes(flipped), old[: len(old) // 2], *WORDS]
    elif field.cpp_type in (Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE):
        options = [0.0, -1.0, float("nan"), float("inf"), 1e300]
    else:
        width = 32 if field.cpp_type in (Field.CPPTYPE_INT32, Field.CPPTYPE_UINT32) else 64
        signed = field.cpp_type in (Field.CPPTYPE_INT32, Field.CPPTYPE_INT64)
        low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
        options = [i for i in (old - 1, old + 1, *INTEGERS) if low <= i <= high]
    return options[number % len(options)]


def replace_our_ops(proto):
    """Replaces the ops of this library with built-in ops: with identities, and with calls of rules."""
    for meta in proto.meta_graphs:
        library = {f.signature.name: f for f in meta.graph_def.library.function}
        _replace_in(meta.graph_def.node, library)
        for function in library.values():
            ours = _replace_in(function.node_def, library)
            references = [(node.input, i) for node in function.node_def for i in range(len(node.input))]
            for where, key in [*references, *((function.ret, key) for key in list(function.ret))]:
                name, _, output = where[key].partition(":")
                if name in ours and output:
                    where[key] = f"{name}:output:{output.partition(':')[2]}"


def _replace_in(body, library):
    """Returns the names of the replaced nodes."""
    nodes = [node for node in body if node.op in OUR_OPS]
    body.extend([call for node in nodes if (call := _replace(node, library))])
    return {node.name for node in nodes}


def _replace(node, library):
    """Returns a call to add: of the rule, as its gradient would call it, with results as upstream gradients."""
    name = next((n for n in ("Tresults", "Tvalues") if n in node.attr), None)
    types = list(node.attr[name].list.type) if name else [node.attr["T"].type]
    given = [each for each in node.input if not each.startswith("^")]
    controls = [each for each in node.input if each.startswith("^")]
    rule = library.get(node.attr["rule"].func.name)
    positions = node.attr["differentiated_results"].list.i
    captured = list(node.attr["Tcaptures"].list.type)
    size = node.attr["N"].i
    node.attr.clear()
    if not 0 <= size <= len(given):  # A list that claims to be longer than it is, or to have a negative length.
        node.op, node.attr["N"].i, node.attr["T"].type = "Pack", size, types[0]
    else:
        node.op, node.input[:] = "IdentityN", [*given[: len(types)], *controls]
        node.attr["T"].list.type.extend(types)
    if rule is None or not all(0 <= i < len(types) <= len(given) for i in positions):
        return None
    call = tf.compat.v1.NodeDef(name=f"{node.name}_rule", op="StatefulPartitionedCall")
    call.input.extend([*(given[i] for i in positions), *given[len(given) - len(captured) :]])
    call.attr["f"].func.name = rule.signature.name
    call.attr["Tin"].list.type.extend([*(types[i] for i in positions), *captured])
    call.attr["Tout"].list.type.extend(argument.type for argument in rule.signature.output_arg)
    node.input.append("^" + call.name)
    return call
