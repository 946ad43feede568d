"""How the op library is compiled: used by setup.py, and by nothing of the installed package."""
