"""The messages of the Python side, each written once; subpackages with many of their own have an `_errors.py`, too.

The form is `<api>: <what is wrong>; expected <X>, got <Y>. <remedy>`. Messages about shapes come from the op library.
"""

IMPORT_NOT_BUILT = (
    "tf_cg_ops: the op library is missing; expected the file {path}, got none. Build it against the installed "
    "TensorFlow with: pip install --no-build-isolation ."
)
IMPORT_FROM_SOURCES = (
    "tf_cg_ops: this is the source folder, which hides the installed package, and it is not built; expected the file "
    "{path}, got none. Run Python from another folder, or build in place with: pip install --no-build-isolation -e ."
)
IMPORT_OTHER_TENSORFLOW = (
    "tf_cg_ops: the op library does not fit this TensorFlow; expected TensorFlow {built} (what it was compiled "
    "against, {distribution} {built_full}), got TensorFlow {installed}. Install {distribution} {built}, or build "
    "tf_cg_ops against another one of 2.18 to 2.21, in its source folder, with: pip install --no-build-isolation "
    "--force-reinstall --no-deps ."
)

LISTS_DIFFER = (
    "{api}: gx and x do not pair up; expected one gx for each x, got {gx} for gx and {x} for x. Pass two lists of the "
    "same length, or a single gx with a single x."
)
LIST_EMPTY = (
    "{api}: x is empty; expected at least one x, got an empty {kind}. Return fx itself where nothing is embedded."
)
DTYPE_UNSUPPORTED = (
    "{api}: the dtype of {argument} has no gradient; expected one of {supported}, got {dtype}. Cast it, for example "
    "with tf.cast({argument}, tf.float32)."
)
REMEDY_CONVERT = "Convert it before the call."
REMEDY_CALL = "Pass the value of the function, and not the function itself."
GX_TAKES_ARGUMENTS = (
    "{api}: gx is a function that takes arguments; expected a Tensor or a function without arguments, got {value}. "
    "Bind them, as in lambda: f(x)."
)
DTYPES_DIFFER = (
    "{api}: the dtypes differ; expected {first_dtype} for all arguments, which {first} has, got {dtype} for "
    "{argument}. Cast one of the two with tf.cast."
)
NOT_CONVERTIBLE = (
    "{api}: {argument} is not a dense tensor; expected a Tensor or what converts to one, got {value}. {remedy}"
)
STOPPED_IS_NO_BOOL = (
    "{api}: fx_gx_manually_stopped decides how the graph is built; expected True or False, got {value}. Pass a Python "
    "bool."
)
AXIS_IS_BOOL = (
    "{api}: axis is a bool; expected None, an int, a sequence of ints or an integer Tensor, got {value}. If it was "
    "meant for fx_gx_manually_stopped, pass it as that keyword."
)
AXIS_IS_NO_INT = (
    "{api}: axis does not name dimensions; expected None, an int, a sequence of ints or an integer Tensor, got "
    "{value}. Name the dimensions of x that are the domain of one function."
)
AXIS_RANK = (
    "{api}: axis has too many dimensions; expected a scalar or a vector, got a Tensor of shape {shape}. Flatten it."
)
AXIS_VALUE_INVALID = (
    "{api}: axis does not name dimensions of {x}; expected distinct values in [-rank, rank) of {x}, got {got}. Name "
    "each dimension of the domain once."
)
AXIS_UNDER_XLA = (
    "{api}: axis is not known while tracing, and XLA compiles for one axis; expected None, an int or a sequence of "
    "ints under jit_compile=True, got {got}. Pass Python ints, or make the axis a Python argument of the tf.function."
)
AXIS_VALUE_FOLLOWS = "the axis and the shape of {x} that follow"
DOMAINS_DIFFER = (
    "{api}: the shapes do not broadcast together; expected sizes that are equal or 1 in the dimensions that axis "
    "names, got these sizes in {gx} and {x}. Reshape {gx} to the shape of {x}."
)
SCALAR_FX = (
    "{api}: fx has the wrong shape; expected the shape of {x} without the dimensions of axis, or a scalar where {gx} "
    "broadcasts to the shape of {x}, got a scalar with the shapes of {gx} and {x} and the axis that follow. Broadcast "
    "{x} to the shape of {gx}, or check axis."
)
RANK_UNKNOWN_TO_PFOR = (
    "{api}: a rank is unknown inside tf.vectorized_map or a jacobian; expected fx, gx and x of known rank, got one "
    "that is not known while tracing. Name it with tf.ensure_shape, or allow the fallback to a while loop."
)
UPSTREAM_SHAPE = (
    "{api}: the upstream gradient has the wrong shape; expected {value} (the shape of the value), got {upstream}. Pass "
    "one number for each element of the value."
)

BAYESFLOW_SHAPES_FOLLOW = (
    "{api}: the shapes do not broadcast together; expected sizes that are equal or 1, got two of fx, gx and "
    "reduce_sum(x, axis) with the shapes that follow. Reshape fx and gx to the shape of reduce_sum(x, axis)."
)
BAYESFLOW_SHAPES = (
    "{api}: the shapes do not broadcast together; expected sizes that are equal or 1, got fx of shape {fx}, gx of "
    "shape {gx} and reduce_sum(x, axis) of shape {batch}. Reshape fx and gx to the shape of reduce_sum(x, axis)."
)

TFP_SHAPES_DIFFER = (
    "{api}: {gx} and {x} differ in shape; expected the shape of {x}, {x_shape}, for {gx}, got {gx_shape}. Broadcast "
    "{gx} to the shape of {x}, or use tf_cg_ops.embed_gradient, which broadcasts."
)
TFP_SHAPES_DIFFER_AT_RUN_TIME = (
    "{api}: {gx} and {x} differ in shape; expected the same shape for both, got the shapes that follow. Broadcast "
    "{gx} to the shape of {x}, or use tf_cg_ops.embed_gradient, which broadcasts."
)

DEMO_NEEDS = (
    "tf_cg_ops demo: a package is missing; expected scikit-learn, SciPy and Matplotlib, got no {missing}. Install "
    "them with: pip install 'tf_cg_ops[demo]'"
)

KERAS_TENSOR_IN_RESULT = (
    "{api}: '{function}' computes with KerasTensors that are not among its arguments as far as can be seen, and its "
    "gradient would be lost; expected them as arguments, or in lists, tuples and dictionaries, got a value that is a "
    "KerasTensor. Pass them so, or call it in the call() of a keras.layers.Layer."
)
REFERENCE_VARIABLES = (
    "{api}: '{function}' uses reference variables of TensorFlow 1; expected resource variables, got {names}. Make them "
    "with use_resource=True, or pass them as arguments."
)
NONDIFF_ARGNAMES = (
    "{api}: nondiff_argnames does not name arguments of '{function}'; expected some of {names}, got {got}. Pass a list "
    "of names."
)
NOT_A_FUNCTION = (
    "{api}: it decorates functions; expected a function or another callable, got {got}. Pass the function itself, and "
    "its arguments to what comes back."
)
WRONG_ARGUMENTS = (
    "{api}: the arguments do not fit '{function}'; expected {signature}, got a call for which Python says: {error}. "
    "Pass what the signature asks for."
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
BACKWARD_NOT_A_FUNCTION = (
    "custom_vjp: backward is not a function; expected a function or another callable, got {got}. Pass the function "
    "itself: backward(residuals, *dys)."
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
RULE_ORDER = (
    "{api}: the graph holds no gradient rule of '{function}' for a derivative of this order; expected orders up to "
    "{orders} in a loaded model and in tf.vectorized_map, got a higher one. Compute it in the program that traced it."
)

RULE_OUTSIDE_OF_A_GRAPH = (
    "CustomGradientRule: the op was called in eager mode; expected an op of a graph, which holds its rule, "
    "got one on a tape. Use tf_cg_ops.custom_gradient."
)
RULE_POSITIONS = (
    "CustomGradientRule: {attribute} names a position that is not there, or one twice; expected positions among "
    "{expected}, got {got}. Load the graph as it was saved."
)
RULE_NOT_THERE = (
    "CustomGradientRule: the gradient rule is not there; expected a function named '{rule}' in the graph, got none. "
    "Import the functions of a graph with its nodes."
)
RULE_SIGNATURE = (
    "CustomGradientRule: the function '{rule}' is no gradient rule of this op; expected {expected}, got {got}. Load "
    "the graph as it was saved."
)

NOT_REAL = (
    "{api}: {argument} is not a real number; expected a number, or a Variable or Tensor of real numbers, got {got}. "
    "Convert it before the call."
)
FACTOR_SHAPE = (
    "{api}: factor does not broadcast to the shape of x; expected a scalar, or sizes that are 1 or those of {x}, got "
    "{factor}. Give it one number for all, or one for each element of x."
)
LIMITS = (
    "{api}: it clips in one way; expected one of value, norm and global_norm, got {got}. Nest two calls to clip in two "
    "ways."
)
LIMIT_NEGATIVE = "{api}: {argument} is negative; expected a number that is at least 0, got {got}. Pass its size."
LIMIT_SHAPE = "{api}: {argument} is no scalar; expected a single number, got the shape {got}. Reduce it."
AXES_WITHOUT_NORM = (
    "{api}: axes are those of a norm; expected norm together with axes, got {got}. Leave axes out, or clip by norm."
)
CLIP_COMPLEX = "{api}: complex numbers are not ordered; expected a real x to clip by value, got {got}. Clip by norm."
CLIP_NOTHING = "{api}: x holds no Tensor; expected at least one, got {got}. Pass the values whose gradients to clip."
SURROGATE_UNKNOWN = (
    "{api}: the surrogate is not known; expected one of {known}, or a function of x that returns the derivative, got "
    "{got}. Pass one of those names."
)
STRAIGHT_THROUGH_NO_TENSOR = (
    "{api}: '{function}' has nothing to be differentiated by; expected real numbers as its first argument, got "
    "{got}. Pass x, a Tensor or Variable of a floating dtype, first."
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
SLOPE = "{api}: the slope is no positive number; expected a number above 0, got {got}. Pass its size."


OUTPUT_SPEC = (
    "{api}: output does not describe the value; expected a tf.TensorSpec of known rank with a dtype of {supported}, "
    "got {got}. Write for example output=tf.TensorSpec([3], tf.float64), or leave it out for a function of single "
    "elements."
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
NUMPY_SAVED = (
    "{api}: the operation that TensorFlow names is Python code, which a graph cannot hold; expected TensorFlow "
    "operations in what is saved, got a function of this process. Save the weights, and build the model from its "
    "Python code where they are loaded."
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
REMEDY_BATCHED = (
    "With batched=True the value is [batch] + output.shape and a gradient [batch] + output.shape + x.shape[1:]."
)
REMEDY_NOT_BATCHED = "The value has output.shape and a gradient output.shape + x.shape."
REMEDY_ELEMENTWISE = (
    "Without an output, value and gradients have the shape to which the inputs broadcast: for anything else pass "
    "output=tf.TensorSpec(shape, dtype)."
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
