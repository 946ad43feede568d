"""Imported before TensorFlow by the process that children are forked from: without what only Keras would import."""

import sys

from tests.support.processes import FOR_KERAS_ALONE

sys.modules.update(dict.fromkeys(FOR_KERAS_ALONE))
