"""The messages of `check_gradient`, in the form of those in `tf_cg_ops/_errors.py`."""

CHECK_ARGS = "{api}: args holds the arguments of the function; expected a list or a tuple, got {got}. Pass [x] for one."
CHECK_MODES = (
    "{api}: modes names no way to run a function; expected some of {known}, got {got}. Leave out what is unknown."
)
CHECK_NOT_CALLABLE = (
    "{api}: {argument} is no function; expected a callable, got {got}. Pass the function, not its value."
)
CHECK_NUMBER = "{api}: {argument} is no number to check a gradient with; expected {expected}, got {got}. Correct it."
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
CHECK_PRECISIONS = (
    "{api}: '{function}' mixes its arguments with tensors of lower precision; expected a function of float64 or "
    "complex128, to which the arguments are converted, got {error}. Cast the arguments inside the function, and pass "
    "rtol=1e-3 and step=0.1."
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
CHECK_RAISED = (
    "{api}: {what} could not be computed in mode '{mode}'; expected numbers, got {error}. Leave the mode out by "
    "modes=[...] if TensorFlow cannot run the function in it."
)
HINT_NONE = "The gradient is None: the value does not depend on it for TensorFlow."
HINT_NOT_FINITE = "The gradient is not finite."
HINT_NOT_DIFFERENTIABLE = "The function itself is not finite around the argument: pass other numbers."
HINT_ZERO = "The gradient is zero everywhere."
HINT_SWAPPED = "It is the gradient with respect to '{other}': the gradients may be in the wrong order."
HINT_SIGN = "The ratio is -1 everywhere: the sign is wrong."
HINT_FACTOR = "The ratio is {factor} everywhere: a factor is wrong."
HINT_UNCERTAIN = (
    "The numeric derivative itself is known to {error} only: there may be a kink nearby, it may drown in the rounding "
    "of a larger value, or the function computes in a lower precision than float64. Pass other numbers, or step and "
    "rtol."
)
HINT_FLAT = (
    "The numeric derivative is zero wherever it is known: if another gradient is meant, as that of a straight-through "
    "estimator is, declare it by like= or intended_gradient=."
)
HINT_NOT_LINEAR = (
    "It is not linear in the upstream, so it is no vector-Jacobian product: if that is meant, declare it by "
    "intended_gradient=."
)
HINT_CONJ = "It would be right with the derivative conjugated: TensorFlow's convention is dx = dy * conj(f')."
HINT_NO_UPSTREAM = "It does not depend on the upstream: multiply by dy."
HINT_UNIFORM = "It is right for a uniform upstream only: it is not a vector-Jacobian product."
HINT_TRANSPOSED = "It is the Jacobian times the upstream: the Jacobian is transposed."
