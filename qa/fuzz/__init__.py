"""Fuzzers: random malformed input, each case reproducible from a seed and a number."""
