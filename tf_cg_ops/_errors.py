"""Every message that the Python side can give, each written once.

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
    "tf_cg_ops against this one, in its source folder, with: pip install --no-build-isolation --force-reinstall "
    "--no-deps ."
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

KERAS_BACKEND = (
    "{function}: Keras does not compute with TensorFlow here; expected the backend 'tensorflow', got {got!r}. Set "
    "KERAS_BACKEND=tensorflow in the environment, before Keras is imported."
)
FUNCTIONAL_VARIABLES = (
    "{api}: '{function}' reads trainable variables, of which a functional model would not know; expected a function of "
    "its arguments alone, got one that reads {names}. Call it in the call() of a keras.layers.Layer that holds them."
)
FUNCTIONAL_OUTPUT = (
    "{api}: '{function}' returns what no functional model can hold; expected Tensors, got a {got} among them. Return "
    "Tensors alone."
)
FUNCTION_WITHOUT_NAME = (
    "tf_cg_ops: Keras saves functions by their names, and this one has none; expected a function made with def, got "
    "{name!r}. Decorate a named function, and register it with @keras.saving.register_keras_serializable() on top."
)
FUNCTION_NOT_FOUND = (
    "tf_cg_ops: the model calls a function that Keras does not know; expected {name!r} among the registered ones, got "
    "none. Run the code that decorates it with @keras.saving.register_keras_serializable() first, or pass "
    "custom_objects={{{name!r}: the function}}."
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
    "{api}: '{function}' did not return its value with its gradient; expected a pair (value, grad_fn), got {got}. End "
    "it with: return value, grad_fn"
)
NEEDS_VARIABLES = (
    "{api}: '{function}' reads variables that are not among its arguments ({names}); expected a grad_fn that takes the "
    "keyword argument 'variables', got {signature}. Write grad_fn(*dy, variables=None) and return (gradients of the "
    "inputs, gradients of the variables)."
)
VARIABLES_NOT_A_PAIR = (
    "{api}: grad_fn of '{function}' did not return gradients for the variables; expected a pair (gradients of the "
    "inputs, gradients of the variables), got {got}. Return None for a variable that has no gradient."
)
GRADIENT_COUNT = (
    "{api}: grad_fn of '{function}' returned {got}; expected {expected} (one per input: {names}). Return None for an "
    "input that has no gradient."
)
VARIABLE_GRADIENT_COUNT = (
    "{api}: grad_fn of '{function}' returned {got} for the variables; expected {expected} (one per variable: {names}). "
    "Return None for a variable that has no gradient."
)
GRADIENT_KIND = (
    "{api}: grad_fn of '{function}' returned a gradient of another kind than {argument}; expected {expected}, got "
    "{got}. Return a gradient with the structure of the input."
)
GRADIENT_DTYPE = (
    "{api}: grad_fn of '{function}' returned a gradient of the wrong dtype for {argument}; expected {expected}, got "
    "{got}. Cast it with tf.cast."
)
GRADIENT_SHAPE = (
    "{api}: grad_fn of '{function}' returned a gradient of the wrong shape for {argument}; expected {expected}, got "
    "{got}. Give it the shape of the input: sum over what was broadcast, broadcast over what was summed."
)
UPSTREAM_NOT_TAKEN = (
    "{api}: grad_fn of '{function}' does not take its upstream gradients; expected parameters for {expected} (one for "
    "each leaf of the value), got {signature}. Write grad_fn(*dys)."
)
NO_RULE = (
    "{api}: the gradient of '{function}' is not there; expected a grad_fn that TensorFlow can trace into a graph, got "
    "this while tracing it: {error}. Use TensorFlow operations in grad_fn."
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
SLOPE = "{api}: the slope is no positive number; expected a number above 0, got {got}. Pass its size."

EMBED_INPUTS = (
    "layers.EmbedGradient: it takes three inputs; expected a list [fx, gx, x], got {got}. Pass several x, and the gx "
    "of each, as lists inside of that list."
)
FUNCTION_UNKNOWN = (
    "layers.StraightThrough: the function is not known by this name; expected one of {known}, or a function, got "
    "{got}. Pass the function itself."
)
NUMBER_NOT_KNOWN = (
    "layers.{layer}: {argument} has no value to be saved; expected a number or a Variable, got a Tensor of a graph. "
    "Pass the Tensor with each call, or hold its value in a Variable."
)

CHECK_ARGS = "{api}: args holds the arguments of the function; expected a list or a tuple, got {got}. Pass [x] for one."
CHECK_MODES = (
    "{api}: modes names no way to run a function; expected some of {known}, got {got}. Leave out what is unknown."
)
CHECK_NOT_EAGER = (
    "{api}: it differentiates numerically, by many calls; expected eager mode, got a graph under construction or "
    "tf.config.run_functions_eagerly(True). Call it outside of a tf.function, with functions that run as graphs."
)
CHECK_NOTHING_BY = (
    "{api}: '{function}' has nothing to differentiate by; expected a float or complex tensor among its arguments, got "
    "none. Integers, bools, strings and None are passed on as they are."
)
CHECK_NOTHING_OF = (
    "{api}: '{function}' returns nothing that has a derivative; expected a float or complex tensor, got {got}. Check "
    "the function before it rounds to integers."
)
CHECK_NOT_FINITE = (
    "{api}: '{argument}' of '{function}' is not finite; expected finite numbers, got inf or nan, around which nothing "
    "can be differentiated numerically. Pass other numbers."
)
CHECK_NOT_REPEATABLE = (
    "{api}: '{function}' gives another value when it is called again; expected a function of its arguments, got random "
    "numbers or a state. Use tf.random.stateless_uniform and the like, with a fixed seed."
)
CHECK_TWO_INTENTIONS = (
    "{api}: the intended gradient is declared twice; expected like or intended_gradient, got both. Leave out one."
)
CHECK_TANGENT_INTENDED = (
    "{api}: intended_gradient says nothing about tangents; expected like for forward_mode=True, got intended_gradient. "
    "Pass a function with that gradient as like, or leave out forward_mode."
)
CHECK_TANGENT_MODES = (
    "{api}: forward_mode=True has no mode to run in; expected 'eager' or 'function' among modes, got {got}. Add one."
)
CHECK_LIKE = (
    "{api}: like returns something else than '{function}'; expected tensors of shapes {expected}, got {got}. Return "
    "what '{function}' returns, with the gradient that is meant."
)
CHECK_INTENDED = (
    "{api}: intended_gradient returned other gradients than '{function}' has; expected {expected} (one for each of "
    "{names}), got {got}. Return NumPy arrays of the shapes of the arguments, or None for zeros."
)
CHECK_MISMATCH = (
    "{api}: {what} is wrong in mode '{mode}'; expected {numeric} ({source}) at element {element}, got {analytic} "
    "(ratio {ratio}; {checked} of {size} elements checked)."
)
CHECK_PROBLEM = "{api}: {what} is wrong in mode '{mode}'; {problem}"
CHECK_KIND = "expected {expected}, got {got}. Gradients have the dtype and the shape of the argument."
CHECK_RAISED = "expected numbers, got this exception: {error}"
HINT_NONE = "The gradient is None: the value does not depend on it for TensorFlow."
HINT_NOT_FINITE = "The gradient is not finite."
HINT_NOT_DIFFERENTIABLE = "The function itself is not finite around the argument: pass other numbers."
HINT_ZERO = "The gradient is zero everywhere."
HINT_SWAPPED = "It is the gradient with respect to '{other}': the gradients may be in the wrong order."
HINT_SIGN = "The ratio is -1 everywhere: the sign is wrong."
HINT_FACTOR = "The ratio is {factor} everywhere: a factor is wrong."
HINT_UNCERTAIN = (
    "The numeric derivative itself is known to {error} only: there may be a kink nearby, or the function computes in a "
    "lower precision than float64. Pass other numbers, or step and rtol."
)
HINT_CONJ = "It would be right with the derivative conjugated: TensorFlow's convention is dx = dy * conj(f')."
HINT_NO_UPSTREAM = "It does not depend on the upstream: multiply by dy."
HINT_UNIFORM = "It is right for a uniform upstream only: it is not a vector-Jacobian product."
HINT_TRANSPOSED = "It is the Jacobian times the upstream: the Jacobian is transposed."

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

ROOT_ORDERS = (
    "{api}: a derivative of '{function}' of too high an order was asked for; expected orders up to {orders} in a "
    "graph, got a higher one. Compute it in eager mode."
)
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

SAVED_MODEL_MISSING = (
    "{api}: there is no SavedModel at '{path}'; expected a folder with saved_model.pb, got {got}. Pass the folder that "
    "tf.saved_model.save wrote."
)
SAVED_MODEL_UNREADABLE = (
    "{api}: '{path}' cannot be read; expected a SavedModel with its graphs, got {got}. It may be cut off: save or copy "
    "the model again."
)
SAVED_MODEL_VARIABLES = (
    "{api}: the values of the variables are missing; expected the file variables.index in '{path}', got none. Copy the "
    "whole folder of the SavedModel."
)
TARGET_EXISTS = (
    "{api}: the target is there already; expected a path that does not exist, got '{path}'. Name another one, or "
    "remove it first."
)
TARGET_IN_SOURCE = (
    "{api}: the target lies inside of the source; expected a path outside of it, got '{path}'. Name another one."
)
TARGET_WITHOUT_FOLDER = (
    "{api}: the target has no folder to lie in; expected that '{path}' is a folder, got none. Make it first."
)
INPUTS_UNKNOWN = (
    "{api}: inputs names no {what}; expected some of {expected}, got {got}. Name signatures and their arguments as the "
    "model does."
)
INPUTS_REFUSED = (
    "{api}: the source refuses the inputs; expected that {name} takes them, got {error}. Pass what the signature takes."
)
TARGET_FAILS = (
    "{api}: the stripped model fails where the source does not; expected that {name} works, got {error}. Nothing was "
    "written; please report it, with the model."
)
OUTPUTS_DIFFER = (
    "{api}: the stripped model computes something else; expected that {name} gives what the source gives, got another "
    "{where}. Nothing was written; please report it, with the model."
)
GRAPH_REFUSED = (
    "{api}: TensorFlow cannot build the graphs in '{path}'; expected ops that are registered, got: {got}. Import the "
    "packages first that bring the other ops."
)
INPUTS_FILE = (
    "{api}: '{path}' holds no inputs; expected an .npz file with arrays named {expected}, got {got}. Write it with "
    "numpy.savez."
)

WRONG_USE = (
    "tf_cg_ops: wrong arguments; expected those that --help describes, got this complaint: {message}. See: {program} "
    "--help"
)
INTERRUPTED = (
    "tf_cg_ops {command}: it was interrupted; expected to run to the end, got Ctrl-C. Run it again; strip leaves no "
    "target that is half written."
)
UNEXPECTED = (
    "tf_cg_ops {command}: it failed; expected no error here, got {got}. Call the function of that name in Python to "
    "see where it comes from, and please report it."
)
