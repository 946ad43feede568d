"""Mutants that no test notices and none needs to: each with the reason, judged by reading."""

HARMLESS: dict[str, str] = {
    "_src/command_line.py: text = str(error.args[0][0][2] if isinstance(error, shutil.Error) else error) -> "
    "text = str(error.args[ -1][0][2] if isinstance(error, shutil.Error) else error)": (
        "shutil.Error has one argument."
    ),
    "_src/memory/forward_pass.py: self._forget([tensor for tensor in inputs if tensor.dtype == tf.resource]) -> "
    "self._forget([tensor for tensor in inputs if tensor.dtype is tf.resource])": (
        "TensorFlow has one object for each dtype."
    ),
    "_src/memory/python_gradients.py: return copy[captured[0]] -> return copy[captured[ -1]]": (
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
    "testing/_modes.py: traced = tf.function(without_none, jit_compile=mode == "
    '"xla").get_concrete_function(inputs[0]) -> traced = tf.function(without_none, jit_compile=mode == '
    '"xla").get_concrete_function(inputs[ -1])': ("All inputs have the same shapes, and here there is one."),
    "testing/_numeric.py: smaller = [10.0**-k * unit for k in range(2, 10)] -> smaller = [10.0**-k * unit for "
    "k in range(2, 11)]": ("One more step is tried, and the best one counts."),
    "testing/_report.py: scale = size + 1e-3 * np.max(size, initial=0.0) -> scale = size + 1e-3 * "
    "np.max(size, initial= -1.0)": ("Sizes are not negative, and where there is none the scale has no element either."),
}
