"""Measures the library beside its baselines: `python -m benchmarks` runs everything."""
