"""The gradient and the batching of each op, which importing this package registers."""

from tf_cg_ops._src.ops import custom_gradient_embed as custom_gradient_embed
from tf_cg_ops._src.ops import custom_gradient_embed_grad as custom_gradient_embed_grad
from tf_cg_ops._src.ops import passing_ops as passing_ops
