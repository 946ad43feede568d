"""The names of the implementations in the results. This library's names begin with `cg`."""

EMBED = "cg.embed_gradient"
DECORATOR = "cg.custom_gradient"
# One call of the op that `embed_gradient` calls, without its conversions and checks.
RAW_OP = "cg raw op"
# One call of the gradient op: the kernel.
KERNEL = "cg gradient op"

TF = "tf.custom_gradient"
FORMULA = "stop-gradient formula"
TFP = "tfp.math.custom_gradient"
JAX = "jax.custom_vjp"
MULTIPLY = "tf.multiply"
IDENTITY = "tf.identity"
REDUCE_SUM = "tf.reduce_sum"

# The yardsticks.
STREAM = "streaming multiply"
READ_BOTH = "read both"
TRAFFIC = "traffic of the large operand"
YARDSTICKS = (STREAM, READ_BOTH, TRAFFIC)
PLAIN = "without a gradient"

# Loops.
TF_LOOP = "tf.while_loop"
SQRT = "cg.while_loop, sqrt"
LOG = "cg.while_loop, log"

# Blocks of a network.
NO_RECOMPUTATION = "plain"
RECOMPUTED = "cg.recompute_grad"

# What is measured of a model within a memory, and of a plan.
REMAT_SCOPE = "keras.RematScope"
PEAK = "peak memory"
PREDICTED = "predicted peak"
RESIDENT = "growth of a default process"
STEP = "processor time"
COMPILATION = "compilation"
DIFFERENCE = "difference of gradients"
TRACE = "tf.function, trace"
PLAN = "cg.recompute_grad, trace and plan"

# Functions that each call in eager mode traces.
TF_RECOMPUTED = "tf.recompute_grad"
SCAN = "cg.scan"
TF_SCAN = "tf.scan"

# A model with and without masked gradients.
MASKED = "cg.rules.masked"
UNMASKED = "as it is"

# Calls of NumPy.
NUMPY_VJP = "cg.numpy_function with vjp"
NUMPY_GRADIENTS = "cg.numpy_function with gradients"
NUMPY_CALL = "tf.numpy_function"


# Building and importing the library.
LIBRARY_FILE = "the file"
WITHOUT_NVCC = "without nvcc"
WITH_NVCC = "with nvcc"
IMPORT = "tf_cg_ops, after TensorFlow"

# Graphs without ops of the library.
WITH = "with tf_cg_ops imported"
WITHOUT = "without it"


def of_length(name: str, num_steps: int) -> str:
    """The name of an implementation at one of several lengths."""
    return f"{name}, {num_steps:,} steps"


def of_uses(name: str, uses: int) -> str:
    """The name of an implementation used several times."""
    return f"{name}, {uses:,} uses"


# The audit of a run, and of one whose gradient is not finite, which runs several times.
FINITE = "cg.testing.audit"
WITH_NAN = "cg.testing.audit with a nan"
