"""The gradient and the batching rule of each op, which importing this package registers."""

from tf_cg_ops._src.ops import custom_gradient_barrier as custom_gradient_barrier
from tf_cg_ops._src.ops import custom_gradient_check_shape as custom_gradient_check_shape
from tf_cg_ops._src.ops import custom_gradient_embed as custom_gradient_embed
from tf_cg_ops._src.ops import custom_gradient_embed_grad as custom_gradient_embed_grad
from tf_cg_ops._src.ops import custom_gradient_rule as custom_gradient_rule
from tf_cg_ops._src.ops import custom_gradient_token as custom_gradient_token
