"""Compiles the op library for setup.py; the installed package does not use it."""
