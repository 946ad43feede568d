"""The messages of the Python side, each written once; subpackages with many of their own have an `_errors.py`, too.

The form is `<api>: <what is wrong>; expected <X>, got <Y>. <remedy>`. Messages about shapes come from the op library.
"""

NOT_A_FUNCTION = (
    "{api}: it decorates functions; expected a function or another callable, got {got}. Pass the function itself, and "
    "its arguments to what comes back."
)
NOT_A_PAIR = (
    "{api}: '{function}' did not return its value with its {what}; expected a pair (value, {second}), got {got}. End "
    "it with: return value, {second}"
)
NEEDS_VARIABLES = (
    "{api}: '{function}' reads variables that are not among its arguments ({names}); expected a {gradient} that takes "
    "the keyword argument 'variables', got {signature}. Write {gradient}({parameters}) and return (gradients of the "
    "inputs, gradients of the variables)."
)
VARIABLES_NOT_A_PAIR = (
    "{api}: {rule} did not return gradients for the variables; expected a pair (gradients of the inputs, gradients of "
    "the variables), got {got}. Return None for a variable that has no gradient."
)
GRADIENT_COUNT = (
    "{api}: {rule} returned {got}; expected {expected} (one per input: {names}). Return None for an input that has no "
    "gradient."
)
VARIABLE_GRADIENT_COUNT = (
    "{api}: {rule} returned {got} for the variables; expected {expected} (one per variable: {names}). Return None for "
    "a variable that has no gradient."
)
GRADIENT_KIND = (
    "{api}: {rule} returned a gradient of another kind than {argument}; expected {expected}, got {got}. Return a "
    "gradient with the structure of the input."
)
GRADIENT_DTYPE = (
    "{api}: {rule} returned a gradient of the wrong dtype for {argument}; expected {expected}, got {got}. Cast it with "
    "tf.cast."
)
GRADIENT_SHAPE = (
    "{api}: {rule} returned a gradient of the wrong shape for {argument}; expected {expected}, got {got}. Give it the "
    "shape of the input: sum over what was broadcast, broadcast over what was summed."
)
UPSTREAM_NOT_TAKEN = (
    "{api}: {rule} does not take its {leading}upstream gradients; expected parameters for {leading}{expected} (one for "
    "each leaf of the value), got {signature}. Write {gradient}({parameters})."
)
PASS_THROUGH_COUNT = (
    "{api}: '{function}' has another number of tensors in its value than among its arguments; expected {expected} (one "
    "per input: {names}), got {number}. Use custom_gradient for it."
)
PASS_THROUGH_KIND = (
    "{api}: '{function}' returned another kind of value than {argument}; expected {expected}, got {got}. Use "
    "custom_gradient for it."
)
PASS_THROUGH_DTYPE = (
    "{api}: '{function}' does not keep the dtype of {argument}; expected {expected}, got {got}. Cast its value with "
    "tf.cast, or use custom_gradient."
)
PASS_THROUGH_SHAPE = (
    "{api}: '{function}' does not keep the shape of {argument}; expected {expected}, got {got}. Use custom_gradient "
    "for a function that changes shapes."
)
RECOMPUTED_OTHERWISE = (
    "recompute_grad: '{function}' returned another structure when it was computed again; expected {expected}, got "
    "{got}. Make it a function of its arguments alone."
)
NO_RULE = (
    "{api}: the gradient of '{function}' is not there; expected {traced} that TensorFlow can trace into a graph, got "
    "this while tracing it: {error}. Use TensorFlow operations in {traced_in}."
)

STRAIGHT_THROUGH_SHAPE = (
    "{api}: '{function}' does not keep the shape of x; expected {x}, got {got}. The gradient goes straight through to "
    "where it came from: use custom_gradient for anything else."
)
SURROGATE_DTYPE = (
    "{api}: the surrogate {surrogate} of '{function}' returned a derivative of the wrong dtype; expected {expected}, "
    "the dtype of x, got {got}. Cast it with tf.cast."
)
SURROGATE_SHAPE = (
    "{api}: the surrogate {surrogate} of '{function}' returned a derivative of the wrong shape; expected {expected}, "
    "the shape of x, got {got}. Return one number for each element of x."
)
SURROGATE_NO_TENSOR = (
    "{api}: the surrogate {surrogate} of '{function}' returned no derivative; expected a Tensor, got {got}. Return the "
    "derivative at x, in its shape and dtype."
)
SURROGATE_ARGUMENTS = (
    "{api}: the surrogate {surrogate} of '{function}' does not take x alone; expected a function of one argument, got "
    "{signature}. Write it as a function of x."
)

BATCHED_IS_NO_BOOL = "{api}: batched is not a bool; expected True or False, got {value}. Pass a Python bool."
NUMPY_ARGUMENT = (
    "{api}: an argument of '{function}' is not a dense tensor; expected a Tensor or an array for {argument!r}, got "
    "{got}. Convert it before the call."
)
NO_OUTPUT_WITHOUT_INPUTS = (
    "{api}: '{function}' has no differentiable input that its output could be like; expected a floating-point or "
    "complex input or an output, got neither. Pass output=tf.TensorSpec(shape, dtype)."
)
NUMPY_INPUTS_BROADCAST = (
    "{api}: the differentiable inputs of '{function}' do not broadcast; expected shapes that broadcast, since there is "
    "no output, got {got}. Pass output=tf.TensorSpec(shape, dtype) if it is no function of single elements."
)
NUMPY_UNDER_XLA = (
    "{api}: '{function}' is Python code, which XLA cannot compile; expected a graph without XLA, got one with "
    "jit_compile=True. Compile a Keras model with jit_compile=False, and leave jit_compile=True out of every "
    "tf.function around it."
)
NUMPY_OTHER_PROCESS = (
    "{api}: '{function}' is Python code, which lived in the process that made this graph; expected that process, got "
    "another one. Build the model from its Python code here, and load its weights. (Function {number})"
)
NUMPY_NOT_A_PAIR = (
    "{api}: '{function}' did not return its value with its gradient; expected a pair (value, gradients), got {got}. "
    "End it with: return value, gradients"
)
NUMPY_COUNT = (
    "{api}: '{function}' returned a wrong number of gradients; expected {expected} (one for each differentiable input: "
    "{names}), got {got}. Name inputs that have no gradient in nondiff_argnames."
)
NUMPY_NO_GRADIENT = (
    "{api}: '{function}' returned no gradient for {argument!r}; expected an array, got None. Name an input that has no "
    "gradient in nondiff_argnames."
)
NUMPY_NO_NUMBERS = (
    "{api}: '{function}' returned a {kind} that is not an array of numbers; expected numbers, got {got}. Return NumPy "
    "arrays."
)
NUMPY_COMPLEX = (
    "{api}: '{function}' returned a complex {kind}; expected {expected}, got {got}. Return its real part, or make the "
    "dtype of output complex."
)
NUMPY_BATCH_SIZES = (
    "{api}: the differentiable inputs of '{function}' are not one batch; expected the same leading dimension for all, "
    "got {got}. Broadcast them, or name an input that has no gradient in nondiff_argnames."
)
NUMPY_SHAPE = "{api}: '{function}' returned a {kind} of the wrong shape; expected {expected}, got {got}. {remedy}"

ROOT_NO_TENSOR = (
    "{api}: '{function}' did not return a root; expected one Tensor of floating-point or complex numbers, got {got}. "
    "Concatenate several unknowns into one Tensor."
)
ROOT_NO_BATCH = (
    "{api}: '{function}' did not return a batch; expected a leading dimension for the batch, got a scalar. Leave out "
    "batched=True for a single system."
)
RESIDUAL_NO_TENSOR = (
    "{api}: the residual '{residual}' of '{function}' is not like the root; expected a Tensor of dtype {expected}, got "
    "{got}. Return one equation for each unknown, in their dtype."
)
RESIDUAL_SHAPE = (
    "{api}: the residual '{residual}' of '{function}' has the wrong shape; expected {expected} (the shape of the "
    "root), got {got}. Return one equation for each unknown."
)
ROOT_LINEAR_SOLVE = (
    "{api}: the linear_solve for '{function}' returned no solution; expected {expected}, got {got}. Return the u with "
    "vjp(u) = dy."
)
