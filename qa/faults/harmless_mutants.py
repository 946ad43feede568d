"""Mutants that no test notices and none needs to: each with the reason, judged by reading."""

HARMLESS: dict[str, str] = {
    "_src/command_line.py: text = str(error.args[0][0][2] if isinstance(error, shutil.Error) else error) -> "
    "text = str(error.args[ -1][0][2] if isinstance(error, shutil.Error) else error)": (
        "shutil.Error has one argument."
    ),
    "_src/core/tf_internal.py: if not substitutes or graph is forward or not isinstance(graph, FuncGraph): -> "
    "if not substitutes or graph is forward and not isinstance(graph, FuncGraph):": (
        "In the graph of the forward pass the substitutes are what would be captured; only a graph of a function has "
        "gradients of another graph's ops."
    ),
    "_src/custom_gradient/traced_rule.py: return None if graph.seed is None else (graph.seed + _num_rules[graph] * "
    "1_000_003) % (2**31 - 1) -> return None if graph.seed is None else (graph.seed + _num_rules[graph] * 1_000_003) % "
    "(2** 30 - 1)": ("Any seed will do that differs from that of the rule before."),
    "_src/external/python_call.py: @dataclasses.dataclass(frozen=True) -> @dataclasses.dataclass(frozen=False)": (
        "Nothing assigns to the fields or hashes an input."
    ),
    "_src/external/python_call.py: return (x[0][0] if x else None, *shape), [x_shape[1:] for x_shape in x] -> "
    "return (x[ -1][0] if x else None, *shape), [x_shape[1:] for x_shape in x]": (
        "The inputs were found to have one leading dimension in the line above."
    ),
    "_src/layers/mixins.py: clip_gradient(tf.zeros([1]), **limits, axes=axes and -1)  # Checks the arguments. -> "
    "clip_gradient(tf.zeros([1]), **limits, axes=axes and not 1)  # Checks the arguments.": (
        "The first dimension of a vector is the last one."
    ),
    "_src/ops/custom_gradient_embed_grad.py: return tf_internal.wrap_for_pfor(tf.reshape(gradient, "
    "tf.concat([num_members, shape], 0)), True) -> return tf_internal.wrap_for_pfor(tf.reshape(gradient, "
    "tf.concat([num_members, shape], -1)), True)": ("Both are vectors."),
    "_src/memory/forward_pass.py: self._forget([tensor for tensor in inputs if tensor.dtype == tf.resource]) -> "
    "self._forget([tensor for tensor in inputs if tensor.dtype is tf.resource])": (
        "TensorFlow has one object for each dtype."
    ),
    "_src/rewrite/python_gradients.py: return copy[captured[0]] -> return copy[captured[ -1]]": (
        "A graph captures a Tensor once."
    ),
    "_src/memory/random_numbers.py: iteration = tf.constant(0, tf.int32) if stream.iteration is None else "
    "stream.iteration -> iteration = tf.constant( 1, tf.int32) if stream.iteration is None else stream.iteration": (
        "In a branch any number will do that is the same in both passes."
    ),
    "saved_model/_compare_models.py: @dataclass(frozen=True) -> @dataclass(frozen=False)": (
        "Nothing assigns to the fields or hashes a result."
    ),
    "saved_model/_entry_points.py: return [_of_concrete_function(n, f) for n, f in zip(names, "
    "function.concrete_functions, strict=True)] -> return [_of_concrete_function(n, f) for n, f in zip(names, "
    "function.concrete_functions, strict=False)]": ("There is one name for each function."),
    'saved_model/_report_text.py: lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, '
    'strict=True)).rstrip() for row in rows] -> lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, '
    "widths, strict=False)).rstrip() for row in rows]": ("Every row has as many cells as the header."),
    "_src/rewrite/control_flow.py: counter = [] if iteration_scope is None else [tf.constant(0)] -> counter = [] if "
    "iteration_scope is not None else [tf.constant(0)]": (
        "The first variable of a tf.while_loop is a counter itself, and one that nobody reads changes nothing."
    ),
    "_src/rewrite/traces.py: structure = repr(tf.nest.map_structure(lambda _: 0, arguments)) -> structure = "
    "repr(tf.nest.map_structure(lambda _: 1, arguments))": ("Equal structures have equal keys with either number."),
    "testing/_modes.py: traced = tf.function(without_none, jit_compile=mode == "
    '"xla").get_concrete_function(inputs[0]) -> traced = tf.function(without_none, jit_compile=mode == '
    '"xla").get_concrete_function(inputs[ -1])': ("All inputs have the same shapes, and here there is one."),
    "testing/_numeric.py: smaller = [10.0**-k * unit for k in range(2, 10)] -> smaller = [10.0**-k * unit for "
    "k in range(2, 11)]": ("One more step is tried, and the best one counts."),
    "testing/_report.py: scale = size + 1e-3 * np.max(size, initial=0.0) -> scale = size + 1e-3 * "
    "np.max(size, initial= -1.0)": ("Sizes are not negative, and where there is none the scale has no element either."),
}
