"""Whole models with a custom gradient, in TensorFlow, PyTorch and JAX."""
