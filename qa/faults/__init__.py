"""Faults injected into the sources, one at a time; the tests must notice each."""
