"""The library's version; read by setup.py and by `tf_cg_ops.__version__`."""

__version__ = "0.1.0"
