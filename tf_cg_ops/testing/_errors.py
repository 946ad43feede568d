"""The messages of `check_gradient`, in the form of those in `tf_cg_ops/_errors.py`."""

CHECK_NOT_CALLABLE = (
    "{api}: {argument} is no function; expected a callable, got {got}. Pass the function, not its value."
)
CHECK_INTENDED = (
    "{api}: intended_gradient returned other gradients than '{function}' has; expected {expected} (one for each of "
    "{names}), got {got}. Return NumPy arrays of the shapes of the arguments, or None for zeros."
)
CHECK_KIND = "expected {expected}, got {got}. Gradients have the dtype and the shape of the argument."
HINT_FACTOR = "The ratio is {factor} everywhere: a factor is wrong."
HINT_UNCERTAIN = (
    "The numeric derivative itself is known to {error} only: there may be a kink nearby, it may drown in the rounding "
    "of a larger value, or the function computes in a lower precision than float64. Pass other numbers, or step and "
    "rtol."
)
HINT_NOT_LINEAR = (
    "It is not linear in the upstream, so it is no vector-Jacobian product: if that is meant, declare it by "
    "intended_gradient=."
)
HINT_CONJ = "It would be right with the derivative conjugated: TensorFlow's convention is dx = dy * conj(f')."
