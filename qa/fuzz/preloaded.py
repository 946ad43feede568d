"""The parent of forked children imports this before TensorFlow, so that packages which only Keras needs stay out."""

import sys

from tests.support.processes import FOR_KERAS_ALONE

sys.modules.update(dict.fromkeys(FOR_KERAS_ALONE))
