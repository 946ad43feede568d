"""Faults put into the sources, one at a time, which the tests have to notice."""
