"""Reads, checks and changes the protos of graphs and functions, and imports them into TensorFlow."""

import contextlib
import functools
import graphlib
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_cg_ops._src.core import tf_internal
from tf_cg_ops._src.core.calls import CALLS, TYPES

# TensorFlow's errors about a graph. Python's own errors say little without their type.
_TENSORFLOW_ERRORS = (ValueError, RuntimeError, tf.errors.OpError)
_NOISE = re.compile(
    r"Graph execution error:|Detected at node .*|<stack traces unavailable>|\{\{function_node .*?\}\}"
    r"|\[\[\{\{node .*|\[Op:.*"
)


def functions_of(graph_def: Any) -> dict[str, Any]:
    """The functions of a graph, by name."""
    return {function.signature.name: function for function in graph_def.library.function}


def nodes_of(graph_def: Any) -> Iterator[Any]:
    """All nodes of a graph and of its functions."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def node_name(reference: str) -> str:
    """The name of the node that an input refers to."""
    return reference.removeprefix("^").partition(":")[0]


def place_of(function: str, node: str) -> str:
    """The name of a node, with the function that contains it, if it is in one: "function/node"."""
    return f"{function}/{node}" if function else node


def set_repeated(repeated: Any, messages: Iterable[Any]) -> None:
    """Sets a repeated field to these messages, even if they are its own."""
    copies = [type(message).FromString(message.SerializeToString()) for message in messages]
    del repeated[:]
    repeated.extend(copies)


def change_references(nodes: Iterable[Any], function: Any, change: Callable[[str], str]) -> None:
    """Changes what nodes read, and what their function returns unless it is None."""
    for node in nodes:
        node.input[:] = [change(reference) for reference in node.input]
    if function is not None:
        for output, reference in list(function.ret.items()):  # A copy: the loop changes it.
            function.ret[output] = change(reference)


def functions_in_nodes(nodes: Iterable[Any], library: Collection[str]) -> Iterator[str]:
    """The functions of the library that nodes name, in an attribute or as their op."""
    for node in nodes:
        if node.op in library:
            yield node.op
        yield from functions_in_attributes(node.attr, library)


def functions_in_attributes(attributes: Mapping[str, Any], library: Collection[str]) -> Iterator[str]:
    """The functions of the library that attributes name, as a function or in a string."""
    for attribute in attributes.values():
        for function in (attribute.func, *attribute.list.func):
            if function.name in library:
                yield function.name
            yield from functions_in_attributes(function.attr, library)
        for text in (attribute.s, *attribute.list.s):
            if text.decode(errors="replace") in library:
                yield text.decode()


def called(nodes: Iterable[Any], library: Collection[str]) -> list[str]:
    """The functions that calls, loops and conditionals among the nodes run."""
    nodes = list(nodes)
    by_name = [node.op for node in nodes if node.op in library]  # A TensorFlow 1 function can be used as an op.
    calls = [node for node in nodes if node.op in TYPES]
    return [*by_name, *(name for node in calls for name in functions_in_attributes(node.attr, library))]


def reachable(names: Iterable[str], named_by: Callable[[str], Iterable[str]]) -> list[str]:
    """The names, and all names that they lead to, each once."""
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting += named_by(name)
    return list(found)


def update_op_list(meta_graph: Any) -> None:
    """Updates the list of the ops that a meta graph needs."""
    used = {node.op for node in nodes_of(meta_graph.graph_def)}
    ops = meta_graph.meta_info_def.stripped_op_list.op
    listed = {op.name: op for op in ops if op.name in used}
    for name in used - listed.keys():
        definition = tf_internal.op_def_registry.get(name)
        if definition is not None:  # A TensorFlow 1 function can be used as an op.
            listed[name] = definition
    set_repeated(ops, [listed[name] for name in sorted(listed)])


@contextlib.contextmanager
def outside_of_functions() -> Iterator[bool]:
    """Leaves a function that the caller traces, and yields whether tapes record: there they do not."""
    if tf.executing_eagerly():
        yield True
    else:
        with tf.init_scope():
            yield False


def reason_of(error: Exception) -> str:
    """The message of an error in one line, without what TensorFlow puts around it."""
    lines = (_NOISE.sub("", line).strip() for line in str(error).splitlines())
    return next(filter(None, lines), "").rstrip(".")


@contextlib.contextmanager
def raised_as_value_error(api: str, path: pathlib.Path, action: str = "build the graphs in") -> Iterator[None]:
    """Raises ValueError for any exception of the block, with its first sentence.

    The block works on the model at `path`. A malformed file can have nodes without attributes, invalid types, and names
    that do not exist.
    """
    try:
        yield
    except Exception as error:
        reason = reason_of(error).partition(". ")[0]
        if not isinstance(error, _TENSORFLOW_ERRORS):
            reason = f"{type(error).__name__}: {reason}"
        raise ValueError(
            f"{api}: TensorFlow cannot {action} '{path}': {reason}. First import the packages that register missing "
            "ops; if the file was changed, save or copy the model again."
        ) from error


def check_graph(graph_def: Any) -> None:
    """Raises ValueError if the graph would make TensorFlow end the process, or use memory without bound.

    TensorFlow follows calls to infer shapes, and overflows its stack if a function calls itself. It makes a list of
    input types as long as an attribute says, before it compares that number with the inputs. It crashes if two nodes
    have the same name after it has inlined calls.
    """
    for node in nodes_of(graph_def):
        for attribute in _length_attributes(node.op):
            length = node.attr[attribute].i if attribute in node.attr else 0
            if length > len(node.input):
                raise ValueError(
                    f"operation '{node.name}' ({node.op}) with {len(node.input)} inputs and an attribute '{attribute}' "
                    f"of {length}"
                )
    library = functions_of(graph_def)
    callees = {name: called(function.node_def, library) for name, function in library.items()}
    try:
        graphlib.TopologicalSorter(callees).prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"function '{error.args[1][0]}' calls itself") from error
    _check_names(graph_def, library)


def _check_names(graph_def: Any, library: Mapping[str, Any]) -> None:
    """Raises ValueError if two nodes of a graph or function have the same name, or will have it with calls inlined."""
    nodes = {"": graph_def.node} | {name: function.node_def for name, function in library.items()}
    names = {body: [node.name for node in nodes[body]] for body in nodes}
    for body, function in library.items():
        names[body] += [argument.name for argument in function.signature.input_arg]
    known = {body: set(names[body]) for body in names}
    scopes = {body: known[body].union(*map(scopes_of, known[body])) for body in known}
    # TensorFlow puts the name of such a call before the inlined names. It makes up names for loops and conditionals.
    callees = {
        body: {node.name: callee for node in nodes[body] if (callee := _callee(node)) in library} for body in nodes
    }

    def is_taken(body: str, name: str, is_call: bool) -> bool:
        """Whether an inlined node has this name, or for a call, a name that begins with it."""
        calls = [scope for scope in scopes_of(name) if scope in callees[body]]
        inside = [(callees[body][call], name.removeprefix(f"{call}/")) for call in calls]
        return any(
            rest in (scopes if is_call else known)[callee] or is_taken(callee, rest, is_call) for callee, rest in inside
        )

    for body in names:
        twice = next((name for name, count in Counter(names[body]).items() if count > 1), None)
        clash = twice or next((name for name in names[body] if is_taken(body, name, name in callees[body])), None)
        if clash is not None:
            where = f"function '{body}'" if body else "the graph"
            raise ValueError(f"two operations with the name '{clash}' in {where}, perhaps after its calls are inlined")


def _callee(node: Any) -> str:
    """The function that a node runs, if it is a call."""
    return node.attr["f"].func.name if node.op in CALLS and "f" in node.attr else node.op


def scopes_of(name: str) -> list[str]:
    """The names of the scopes around a node: "a" and "a/b" for "a/b/c"."""
    return [name[:i] for i, character in enumerate(name) if character == "/"]


@functools.lru_cache(maxsize=2048)  # A file can name any op.
def _length_attributes(op: str) -> tuple[str, ...]:
    """The attributes of an op with the length of an input list."""
    definition = tf_internal.op_def_registry.get(op)
    return tuple(arg.number_attr for arg in definition.input_arg if arg.number_attr) if definition else ()


@dataclass(frozen=True)
class Body:
    """The nodes of the graph or of a function.

    Attributes:
      function: The name of the function; empty for the graph itself.
      proto: The proto of the function; None for the graph itself.
      nodes: The nodes of the graph or function in the proto.
      graph: A graph with an op for each node, the shapes that TensorFlow infers, and all functions.
      references: Maps each output of a node, as the graph names it, to the reference in the proto of the function.
      returned: What the function returned when it was imported, as the graph names it.
    """

    function: str
    proto: Any
    nodes: Any
    graph: tf.Graph
    references: dict[str, str]
    returned: list[str]

    @functools.cached_property
    def inputs(self) -> list[tf.Tensor]:
        """The parameters of the function."""
        return [self.graph.get_tensor_by_name(f"{argument.name}:0") for argument in self.proto.signature.input_arg]

    @functools.cached_property
    def outputs(self) -> list[tf.Tensor]:
        """What the function returns."""
        return [self.graph.get_tensor_by_name(name) for name in self.returned]

    def get_operations(self) -> list[Any]:
        """The ops of the graph."""
        return self.graph.get_operations()

    @property
    def where(self) -> str:
        """What messages say about where its ops are."""
        return f" in the function '{self.function}'" if self.function else ""


def import_bodies(graph_def: Any, wanted: Callable[[str, Any], bool]) -> Iterator[Body]:
    """Imports the bodies for which `wanted(function, nodes)` is true."""
    only_functions = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    bodies: list[tuple[Any, Any, Any, dict[str, str], list[str]]] = []
    if wanted("", graph_def.node):
        bodies.append((None, graph_def.node, graph_def, {}, []))
    with _import(only_functions).as_default():  # Shapes of calls are inferred from the called functions.
        for name, function in functions_of(graph_def).items():
            if wanted(name, function.node_def):
                body, flat_names = tf_internal.function_def_to_graph_def(function)
                for argument, node in zip(function.signature.input_arg, body.node, strict=False):
                    _tell_shape(node, argument)
                references = {flat: reference for reference, flat in flat_names.items()}
                returned = [flat_names[function.ret[output.name]] for output in function.signature.output_arg]
                bodies.append((function, function.node_def, body, references, returned))
    for function, nodes, body, references, returned in bodies:
        only_functions.node.extend(body.node)
        graph = _import(only_functions)
        del only_functions.node[:]
        yield Body(function.signature.name if function else "", function, nodes, graph, references, returned)


def _tell_shape(placeholder: Any, argument: Any) -> None:
    """Makes the node of a function's argument tell the shape of a variable, which a placeholder cannot."""
    if argument.type == tf.resource.as_datatype_enum and argument.handle_data:
        placeholder.op = "VarHandleOp"
        placeholder.attr["dtype"].type = argument.handle_data[0].dtype
        placeholder.attr["shape"].shape.CopyFrom(argument.handle_data[0].shape)


def _import(graph_def: Any) -> tf.Graph:
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    return graph
