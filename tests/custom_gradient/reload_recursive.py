"""Loads a model of functions and prints their derivatives, or errors, up to the fourth: reload_recursive.py MODEL NAME..."""

import json
import sys

import tensorflow as tf

import tf_cg_ops  # noqa: F401
from tests.custom_gradient.test_recursive_rules import X, orders

model, found, x = tf.saved_model.load(sys.argv[1]), {}, tf.constant(X)
for name in sys.argv[2:]:
    function, found[name] = getattr(model, name), {}
    for order in range(1, 5):
        try:
            found[name][order] = orders(function, x, order)[-1].numpy().tolist()
        except RuntimeError as error:
            found[name][order] = str(error)
    found[name]["traced"] = tf.function(lambda x, f=function: orders(f, x, 1))(x)[-1].numpy().tolist()
print(json.dumps(found))
