"""Copies of graphs: ops one by one, loops and conditionals, and inlined functions."""
