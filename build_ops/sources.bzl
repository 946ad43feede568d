"""Where the sources of the two libraries are: build_ops/sources.py and Bazel both collect them by folder."""

# Folders whose sources are compiled together, by the name of the unit: reading TensorFlow's headers takes far longer
# than compiling the sources. The first unit belongs to the op library, which needs libtensorflow_framework alone; the
# second has the parts that need libtensorflow_cc: XLA kernels, and gradients for TF_AddGradients.
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

# What includes no TensorFlow.
LIB = "cc/lib"

# What replaces the kernels for NVIDIA GPUs, all others of its folder, without nvcc.
WITHOUT_CUDA = ["cuda/contraction_stub.cc"]
