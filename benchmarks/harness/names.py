"""The names of the implementations in the results; those of this library begin with `cg`."""

EMBED = "cg.embed_gradient"
DECORATOR = "cg.custom_gradient"
# One call of the op that `embed_gradient` calls, without its conversions and checks.
RAW_OP = "cg raw op"
# One call of the gradient op: the kernel.
KERNEL = "cg gradient op"

TF = "tf.custom_gradient"
FORMULA = "stop-gradient formula"
TFP = "tfp.math.custom_gradient"
MULTIPLY = "tf.multiply"
REDUCE_SUM = "tf.reduce_sum"

# The yardsticks.
STREAM = "streaming multiply"
READ_BOTH = "read both"
TRAFFIC = "traffic of the large operand"
ONE_BY_ONE = "one by one in float32"
YARDSTICKS = (STREAM, READ_BOTH, TRAFFIC)
PLAIN = "without a gradient"

# Of graphs that hold no op of the library.
WITH = "with tf_cg_ops imported"
WITHOUT = "without it"
