"""The sources of the two libraries."""

from collections.abc import Sequence

# The op library, which needs libtensorflow_framework alone. Slowest first: the last one sets the build's time.
SOURCES = (
    "cc/gradients/function_gradients.cc",
    "cc/functions/function_builder.cc",
    "cc/passes/op_search.cc",
    "cc/passes/prune_gradients.cc",
    "cc/passes/refuse_lost_gradients.cc",
    "cc/passes/replace_node.cc",
    "cc/kernels/custom_gradient_embed_grad_gpu_kernel.cc",
    "cc/kernels/custom_gradient_embed_grad_kernel.cc",
    "cc/kernels/custom_gradient_embed_kernel.cc",
    "cc/kernels/custom_gradient_check_shape_kernel.cc",
    "cc/kernels/custom_gradient_refusal_kernel.cc",
    "cc/kernels/custom_gradient_token_kernel.cc",
    "cc/kernels/embed_grad_plan.cc",
    "cc/kernels/forward_kernel.cc",
    "cc/kernels/composed_embed_grad.cc",
    "cc/ops/custom_gradient_barrier_op.cc",
    "cc/ops/custom_gradient_check_shape_op.cc",
    "cc/ops/custom_gradient_embed_grad_op.cc",
    "cc/ops/custom_gradient_embed_op.cc",
    "cc/ops/custom_gradient_refusal_op.cc",
    "cc/ops/custom_gradient_rule_op.cc",
    "cc/ops/custom_gradient_token_op.cc",
    "cc/ops/embed_shapes.cc",
    "cc/lib/block_kernels_avx512.cc",
    "cc/lib/block_kernels_avx2.cc",
    "cc/lib/block_kernels_baseline.cc",
    "cc/lib/block_kernels.cc",
    "cc/lib/contraction.cc",
    "cc/lib/alignment.cc",
    "cc/lib/contraction_plan.cc",
    "cc/lib/short_sums.cc",
    "cc/lib/live_tokens.cc",
    "cc/lib/messages.cc",
    "cc/lib/glibc_compatibility.cc",
)

# The library of the parts that need libtensorflow_cc: XLA kernels, and gradients for TF_AddGradients.
SOURCES_WITH_CC = (
    "cc/xla/xla_kernels.cc",
    "cc/graph_gradients/gradient_inputs.cc",
    "cc/graph_gradients/graph_gradients.cc",
    "cc/lib/alignment.cc",
    "cc/lib/messages.cc",
    "cc/lib/glibc_compatibility.cc",
)

# Folders whose sources are compiled together, by the name of the unit: reading TensorFlow's headers takes far longer
# than compiling the sources.
UNITS = {
    "ops": ("cc/functions", "cc/gradients", "cc/kernels", "cc/ops", "cc/passes"),
    "ops_with_cc": ("cc/graph_gradients", "cc/xla"),
}

# The kernels for NVIDIA GPUs, and the source that replaces them without nvcc.
CUDA_SOURCES = ("cuda/contraction.cu", "cuda/schedule.cc")
WITHOUT_CUDA = ("cuda/contraction_stub.cc",)


def units(sources: Sequence[str]) -> dict[str, list[str]]:
    """The sources that are compiled together, by the name of their unit; others are a unit each."""
    unit_of = {folder: unit for unit, folders in UNITS.items() for folder in folders}
    by_name: dict[str, list[str]] = {}
    for source in sources:
        unit = unit_of.get(source.rpartition("/")[0], source.replace("/", "-"))
        by_name.setdefault(unit, []).append(source)
    return by_name
