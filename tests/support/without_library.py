"""A Python that has every installed package but this library, and but what only Keras would import."""

import pathlib
import sys
import sysconfig

from .processes import FOR_KERAS_ALONE, run_interpreter

CHECKS = """
import sys, warnings
sys.path.insert(0, sys.argv.pop(1))
warnings.simplefilter("error")
# TensorFlow 2.18 imports it, and without site-packages there is only Python's own.
warnings.filterwarnings("ignore", "The distutils package is deprecated", DeprecationWarning)
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
try:
    import tf_cg_ops
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("the library is there")
for op in ("Barrier", "CheckShape", "Embed", "EmbedGrad", "Rule"):
    assert op_def_registry.get("CustomGradient" + op) is None
"""


def make_site(folder):
    """Fills a folder with links to the installed packages, without this library."""
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for package in pathlib.Path(site).iterdir():
            if not package.name.startswith(("tf_cg_ops", "__editable__", *FOR_KERAS_ALONE)):
                (folder / package.name).symlink_to(package)
    return folder


def run_without_library(site, code, *args, cwd, check=True):
    """Runs `code` in a fresh process that sees the packages in `site` alone; numpy and tensorflow are imported."""
    return run_interpreter([sys.executable, "-I", "-S", "-c", CHECKS + code, site, *args], cwd, check=check)
