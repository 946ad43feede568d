"""How fast the library is, each time beside what it is compared with: `python -m benchmarks` runs all of it."""
