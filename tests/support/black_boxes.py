"""Python functions that return a value with its gradient."""

import numpy as np
import scipy.special


def erf(x):
    return scipy.special.erf(x), 2 / np.sqrt(np.pi) * np.exp(-(x**2))
