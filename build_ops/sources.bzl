"""The folders of the two libraries' sources, for build_ops/sources.py and for Bazel."""

# Folders whose sources are compiled as one unit, because reading TensorFlow's headers takes far longer than compiling the
# sources. The first unit is for the op library, which needs only libtensorflow_framework. The second has the parts that
# need libtensorflow_cc: XLA kernels, and gradients for TF_AddGradients.
UNITS = {
    "ops": [
        "cc/functions",
        "cc/gradients",
        "cc/kernels",
        "cc/ops",
        "cc/passes",
    ],
    "ops_with_cc": [
        "cc/graph_gradients",
        "cc/xla",
    ],
}

# Sources that do not include TensorFlow.
LIB = "cc/lib"

# Without nvcc, this replaces all other sources of its folder, the kernels for NVIDIA GPUs.
WITHOUT_CUDA = ["cuda/contraction_stub.cc"]
