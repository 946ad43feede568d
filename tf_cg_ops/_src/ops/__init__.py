"""Each op as Python knows it: its gradient, and how it computes a batch. Importing the package registers them."""

from tf_cg_ops._src.ops import custom_gradient_barrier as custom_gradient_barrier
from tf_cg_ops._src.ops import custom_gradient_check_shape as custom_gradient_check_shape
from tf_cg_ops._src.ops import custom_gradient_embed as custom_gradient_embed
from tf_cg_ops._src.ops import custom_gradient_embed_grad as custom_gradient_embed_grad
from tf_cg_ops._src.ops import custom_gradient_rule as custom_gradient_rule
