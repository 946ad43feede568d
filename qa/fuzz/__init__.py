"""Fuzzers: random hostile input, of which each case can be made again from a seed and a number."""
