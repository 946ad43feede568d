"""Whole models with a custom gradient, one training step with each implementation."""
