"""Mutants that no test notices and none needs to: each with the reason, judged by reading."""

HARMLESS: dict[str, str] = {
    '_src/command_line.py: if options.gradients == "saved": -> if options.gradients >= "saved":': (
        'The other choice, "autodiff", comes first in the alphabet.'
    ),
    '_src/command_line.py: raise KeyboardInterrupt("Ctrl-C" if number == signal.SIGINT else '
    'signal.Signals(number).name) -> raise KeyboardInterrupt("Ctrl-C" if number <= signal.SIGINT else '
    "signal.Signals(number).name)": ("Of the two signals that are caught, SIGINT has the smaller number."),
    "_src/core/pytree.py: for value, parts in zip(values, components, strict=True): -> for value, parts in "
    "zip(values, components, strict=False):": ("There is one list of components for each value."),
    "_src/core/pytree.py: if len(names) != len(values):  # Only tf.nest knows the inside of this structure. -> "
    "if len(names) is not len(values):  # Only tf.nest knows the inside of this structure.": (
        "Python has one object for each small number; with more leaves than that, names are numbered."
    ),
    '_src/core/pytree.py: return [paths(f"{name}.{field}", item) for field, item in zip(value._fields, value, '
    'strict=True)] -> return [paths(f"{name}.{field}", item) for field, item in zip(value._fields, value, '
    "strict=False)]": ("A named tuple has one item for each field."),
    "_src/custom_gradient/graph_rule.py: pairs = zip(dys, op.outputs, strict=True) -> pairs = zip(dys, "
    "op.outputs, strict=False)": ("TensorFlow passes one upstream gradient for each output."),
    "_src/custom_gradient/traced_rule.py: return None if graph.seed is None else (graph.seed + "
    "_num_rules[graph] * 1_000_003) % (2**31 - 1) -> return None if graph.seed is None else (graph.seed + "
    "_num_rules[graph] * 1_000_003) % (2** 30 - 1)": ("Any seed will do that differs from that of the rule before."),
    "_src/external/adjoint.py: for spec, tensor in zip(call.arguments.inputs, tensors, strict=True): -> for "
    "spec, tensor in zip(call.arguments.inputs, tensors, strict=False):": ("There is one Tensor for each input."),
    "_src/external/numpy_function.py: x = [tensor for tensor, spec in zip(tensors, call.arguments.inputs, "
    "strict=True) if spec.differentiable] -> x = [tensor for tensor, spec in zip(tensors, "
    "call.arguments.inputs, strict=False) if spec.differentiable]": ("There is one Tensor for each input."),
    "_src/external/python_call.py: @dataclasses.dataclass(frozen=True, eq=False) -> "
    "@dataclasses.dataclass(frozen=False, eq=False)": ("Nothing assigns to the fields of a call."),
    "_src/keras/node.py:  @staticmethod -> ": ("Both Kerases override the method."),
    "_src/linear/gmres.py: _, basis, columns = tf.while_loop(lambda k, *_: k < restart, extend, start, "
    "maximum_iterations=restart) -> _, basis, columns = tf.while_loop(lambda k, *_: k is not restart, extend, "
    "start, maximum_iterations=restart)": ("The largest number of iterations ends the loop as well."),
    "_src/linear/system.py: if len(dtypes) != 1 or not (leaves[0].dtype.is_floating or "
    "leaves[0].dtype.is_complex): -> if len(dtypes) != 1 or not (leaves[0].dtype.is_floating or leaves[ "
    "-1].dtype.is_complex):": ("All leaves have one dtype there."),
    "_src/memory/forward_pass.py: self._forget([tensor for tensor in inputs if tensor.dtype == tf.resource]) "
    "-> self._forget([tensor for tensor in inputs if tensor.dtype is tf.resource])": (
        "TensorFlow has one object for each dtype."
    ),
    "_src/memory/random_numbers.py: iteration = tf.constant(0, tf.int32) if stream.iteration is None else "
    "stream.iteration -> iteration = tf.constant( 1, tf.int32) if stream.iteration is None else "
    "stream.iteration": ("In a branch any number will do that is the same in both passes."),
    "_src/memory/replay.py: computed = zip(op.outputs, copy.copy_op(op, inputs), strict=True) -> computed = "
    "zip(op.outputs, copy.copy_op(op, inputs), strict=False)": ("The copy of an op has as many outputs."),
    "_src/ops/custom_gradient_embed_grad.py: return tf_internal.wrap_for_pfor(tf.reshape(gradient, "
    "tf.concat([num_members, shape], 0)), True) -> return tf_internal.wrap_for_pfor(tf.reshape(gradient, "
    "tf.concat([num_members, shape], -1)), True)": ("Both are vectors."),
    "_src/ready_made/clip.py: convert.to_tensors(_API, [name], [leaf])[0] for name, leaf in zip(names, "
    "tf.nest.flatten(x), strict=True) -> convert.to_tensors(_API, [name], [leaf])[0] for name, leaf in "
    "zip(names, tf.nest.flatten(x), strict=False)": ("There is one name for each leaf."),
    '_src/ready_made/implicit_system.py: return tf.gradients(r, y, u, unconnected_gradients="zero")[0] -> '
    'return tf.gradients(r, y, u, unconnected_gradients="zero")[ -1]': ("There is one gradient."),
    "_src/rewrite/control_flow.py: counter = [] if iteration_scope is None else [tf.constant(0)] -> counter = "
    "[] if iteration_scope is not None else [tf.constant(0)]": (
        "The first variable of a tf.while_loop is a counter itself, and one that nobody reads changes nothing."
    ),
    "_src/rewrite/traces.py: structure = repr(tf.nest.map_structure(lambda _: 0, arguments)) -> structure = "
    "repr(tf.nest.map_structure(lambda _: 1, arguments))": ("Equal structures have equal keys with either number."),
    "compat/tfp_math.py: if all(leading) and fx.shape.rank == 0: -> if all(leading) and fx.shape.rank <= 0:": (
        "A rank is not negative, and where it is unknown, so is whether fx is leading."
    ),
    "compat/tfp_math.py: steps = 2 if fx.dtype == tf.float16 else 1 -> steps = 3 if fx.dtype == tf.float16 else 1": (
        "The third root, applied three times, is the weight as well."
    ),
    "saved_model/_compare_models.py: @dataclass(frozen=True) -> @dataclass(frozen=False)": (
        "Nothing assigns to the fields or hashes a result."
    ),
    "saved_model/_entry_points.py: return [_of_concrete_function(n, f) for n, f in zip(names, "
    "function.concrete_functions, strict=True)] -> return [_of_concrete_function(n, f) for n, f in zip(names, "
    "function.concrete_functions, strict=False)]": ("There is one name for each function."),
    "testing/_check.py: seed: int = 0, -> seed: int = 1,": ("Any seed will do."),
    "testing/_compare_modes.py: for reference, gradient in zip(references, gradients, strict=True): -> for "
    "reference, gradient in zip(references, gradients, strict=False):": ("There is one gradient for each reference."),
    "testing/_hints.py: if sum(dy.size for dy in upstream) > 1 and _is_close(gradient_for(ones), "
    "uniform.value): -> if sum(dy.size for dy in upstream) != 1 and _is_close(gradient_for(ones), "
    "uniform.value):": (
        "It differs for an upstream without elements, for which no gradient that is wrong has this hint either."
    ),
    "testing/_modes.py: traced = tf.function(without_none, jit_compile=mode == "
    '"xla").get_concrete_function(inputs[0]) -> traced = tf.function(without_none, jit_compile=mode == '
    '"xla").get_concrete_function(inputs[ -1])': ("All inputs have the same shapes, and here there is one."),
    "testing/_numeric.py: is_better &= (new.scale > 0) | (best.error > 0.01 * best.scale) -> is_better &= "
    "(new.scale > 0) | (best.error >= 0.01 * best.scale)": (
        "They differ where both are 0, and no error is smaller than 0."
    ),
    "testing/_numeric.py: smaller = [10.0**-k * unit for k in range(2, 10)] -> smaller = [10.0**-k * unit for "
    "k in range(2, 11)]": ("One more step is tried, and the best one counts."),
    "testing/_references.py: for g, x in zip(gradients, function.values, strict=True) -> for g, x in "
    "zip(gradients, function.values, strict=False)": ("Their numbers were compared before."),
    "testing/_wrapped_modes.py: return list(tf.while_loop(lambda i, *_: i < 2, body, (0, *_zeros(like)))[1:]) "
    "-> return list(tf.while_loop(lambda i, *_: i < 3, body, (0, *_zeros(like)))[1:])": (
        "Each step computes the same values, and the last one's count."
    ),
}
