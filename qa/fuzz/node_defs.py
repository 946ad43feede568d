"""Calls as NodeDefs, which may be malformed in ways that Python's wrappers refuse."""

import tensorflow as tf

# The attributes that follow from the inputs, and those with a default.
DEFAULTS = {
    "fx_gx_manually_stopped": False,
    "axis": [],
    "all_axes": False,
    "zero_x": False,
    "sliced_inputs": [],
    "function_name": "",
    "error": "",
}
INFERRED = {
    "CustomGradientEmbed": ("T", "N"),
    "CustomGradientEmbedGrad": ("T", "Tshape"),
    "CustomGradientCheckShape": ("T", "Tshape"),
    "CustomGradientBarrier": ("Tvalues", "Tafter"),
    "CustomGradientRule": ("Tresults", "Tinputs", "Tcaptures"),
}

# Changes of a node after which it must be refused.
BAD = (
    "drop an attribute",
    "an attribute of another kind",
    "a placeholder for an attribute",
    "one input more",
    "one input less",
    "an input that is not there",
    "an output that is not there",
    "reads itself",
    "other types",
)


def draw_mutation(chance, call):
    """None, or a change with its attribute."""
    required = [*INFERRED[call.op], *(name for name in call.attributes if name not in DEFAULTS)]
    kind = chance.choice(("", "", "drop a default", "an attribute that the op has not", *BAD))
    does_not_fit = call.op == "CustomGradientEmbed" and call.counts[1] != call.counts[2]
    if does_not_fit and kind in ("one input more", "one input less"):
        return ()  # It might fit then.
    if kind == "drop a default":
        names = [name for name, value in call.attributes.items() if name in DEFAULTS and value == DEFAULTS[name]]
        return (kind, chance.choice(names)) if names else ()
    if kind == "drop an attribute":
        return kind, chance.choice(required)
    if kind in ("an attribute of another kind", "a placeholder for an attribute"):
        return kind, chance.choice([*required, *call.attributes])
    if kind in ("one input less", "an input that is not there", "an output that is not there", "reads itself"):
        return (kind, chance.randrange(len(call.inputs))) if call.inputs else ()
    return (kind,) if kind else ()


def is_refused(call):
    if call.mutation == ("drop an attribute", "Tshape") and tf.as_dtype(call.inputs[-1].dtype) == tf.int64:
        return False  # The default.
    return bool(call.mutation) and call.mutation[0] in BAD


def build(call, dtypes, references, rule):
    """The node of a call whose inputs are `references` of these dtypes; `rule`: the name of the rule's function."""
    node = tf.compat.v1.NodeDef(name="call", op=call.op, input=references)
    kinds = [dtype.as_datatype_enum for dtype in dtypes]
    grouped = call.grouped(kinds)
    for index, name in enumerate(INFERRED[call.op]):
        if name == "N":
            node.attr[name].i = len(grouped[1])
        elif name == "T":
            node.attr[name].type = kinds[0]
        elif name == "Tshape":
            node.attr[name].type = kinds[-1]
        else:
            node.attr[name].list.type[:] = grouped[index]
            node.attr[name].list.SetInParent()
    for name, value in call.attributes.items():
        _set(node.attr[name], value)
    if "rule" in call.attributes:
        node.attr["rule"].func.name = rule
    if call.mutation:
        _change(node, *call.mutation)
    return node


def _set(attribute, value):
    if isinstance(value, bool):
        attribute.b = value
    elif isinstance(value, list):
        attribute.list.i[:] = value
        attribute.list.SetInParent()
    else:
        attribute.s = value.encode()


def _change(node, kind, subject=None):
    if kind in ("drop a default", "drop an attribute"):
        del node.attr[subject]
    elif kind == "an attribute of another kind":
        attribute = node.attr[subject]
        was = attribute.WhichOneof("value")
        attribute.Clear()
        if was == "s":
            attribute.i = 3
        else:
            attribute.s = b"text"
    elif kind == "a placeholder for an attribute":
        node.attr[subject].placeholder = "T"
    elif kind == "an attribute that the op has not":
        node.attr["unheard"].i = 3
    elif kind == "one input more":
        node.input.append("other")
    elif kind == "one input less":
        del node.input[subject]
    elif kind == "an input that is not there":
        node.input[subject] = "nothing"
    elif kind == "an output that is not there":
        node.input[subject] = node.input[subject].partition(":")[0] + ":7"
    elif kind == "reads itself":
        node.input[subject] = "call"
    else:
        _change_types(node)


def _change_types(node):
    """To types that the inputs are not of."""
    for name in ("T", "Tvalues", "Tresults"):
        if name in node.attr:
            attribute = node.attr[name]
            if attribute.HasField("list"):
                attribute.list.type.append(tf.float32.as_datatype_enum)
            else:
                is_float = attribute.type == tf.float32.as_datatype_enum
                attribute.type = (tf.float64 if is_float else tf.float32).as_datatype_enum
