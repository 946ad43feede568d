"""The speed of the library, measured beside its baselines: `python -m benchmarks` runs everything."""
