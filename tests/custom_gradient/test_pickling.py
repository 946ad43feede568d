"""Decorated functions in other processes: by name where a module has them, else by value."""

import pickle

import cloudpickle
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from ..support.processes import run_script

X, DY = tf.constant([0.3, -2.0]), tf.constant([1.0, 10.0])


def gradient(f):
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = f(X)
    return tape.gradient(y, X, output_gradients=DY).numpy().tolist()


MAKE = {
    "straight_through": cg.straight_through,
    "surrogate": lambda f: cg.straight_through(f, "hard_tanh"),
    "grad_pass_through": cg.grad_pass_through,
    "recompute_grad": cg.recompute_grad,
    "custom_gradient": lambda f: cg.custom_gradient(lambda x: (f(x), lambda dy: 3.0 * dy)),
    "custom_vjp": lambda f: cg.custom_vjp(lambda x: (f(x), x), lambda x, dy: dy * x),
    "override_gradients": lambda f: cg.override_gradients(f, {"Sign": lambda op, dy: 2.0 * dy}),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_decorated_function_of_tensorflow_is_pickled_by_value(name):
    decorated = MAKE[name](tf.sign)
    assert gradient(cloudpickle.loads(cloudpickle.dumps(decorated))) == gradient(decorated)


def test_custom_jvp_is_pickled_with_its_rule():
    decorated = cg.custom_jvp(lambda x: tf.sin(x))
    decorated.defjvp(lambda primals, tangents: (tf.sin(*primals), 5.0 * tangents[0]))
    assert gradient(cloudpickle.loads(cloudpickle.dumps(decorated))) == [5.0, 50.0]


def test_tensorflows_own_attributes_stay_with_its_function():
    assert [name for name in vars(cg.straight_through(tf.sign)) if name.startswith("_tf_")] == []


def test_attributes_of_the_function_are_those_of_the_decorated_one():
    def f(x):
        return x

    f.author = "me"
    assert cg.recompute_grad(f).author == "me"


def test_a_function_that_no_module_has_cannot_be_pickled_by_name():
    message = (
        r"^straight_through: 'sign' cannot be pickled because the module 'tensorflow\.python\.ops\.math_ops' has another "
        r"object, or none, under this name\. Decorate a function at the top level of a module, or use cloudpickle\.$"
    )
    with pytest.raises(pickle.PicklingError, match=message):
        pickle.dumps(cg.straight_through(tf.sign))


PROGRAM = """
import json, multiprocessing, pickle, subprocess, sys
import tensorflow as tf
import tf_cg_ops as cg

@cg.custom_gradient
def function(x):
    # The rule calls the function itself.
    return tf.sin(x), lambda dy: dy * (2.0 + function(0.0 * x))

vjp = cg.custom_vjp(lambda x: (tf.sin(x), x), lambda x, dy: 3.0 * dy)
factor = 4.0
rounded = cg.straight_through(lambda x: tf.round(x), lambda x: factor * tf.ones_like(x))

@cg.custom_jvp
def jvp(x):
    return tf.sin(x)

@jvp.defjvp
def rule(primals, tangents):
    return tf.sin(*primals), 5.0 * tangents[0]

class Scale:
    def __init__(self, factor):
        self.factor = factor

    @cg.custom_gradient
    def method(self, x):
        return tf.sin(x), lambda dy: self.factor * dy

@cg.recompute_grad
def recomputed(x):
    return 7.0 * x

def gradient(f):
    x = tf.constant([0.3, -2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, output_gradients=tf.constant([1.0, 10.0])).numpy().tolist()

CHILD = "import sys, pickle; f, g = pickle.load(sys.stdin.buffer); print([f(each) for each in g])"

if __name__ == "__main__":
    import cloudpickle
    functions = [function, vjp, rounded, jvp, Scale(6.0).method, recomputed]
    sent = cloudpickle.dumps((gradient, functions))
    print(subprocess.run([sys.executable, "-c", CHILD], input=sent, check=True, capture_output=True).stdout.decode())
    named = [function, jvp, Scale(6.0).method, recomputed]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(gradient, named))
    print(pickle.loads(pickle.dumps(function)) is function)
"""


def test_functions_of_a_program_run_in_processes_of_cloudpickle_and_multiprocessing(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    lines = run_script(tmp_path / "program.py", cwd=tmp_path).stdout.split("\n")
    of = {factor: [factor, 10.0 * factor] for factor in (2.0, 3.0, 4.0, 5.0, 6.0, 7.0)}
    assert [line for line in lines if line] == [
        str(list(of.values())),
        str([of[2.0], of[5.0], of[6.0], of[7.0]]),
        "True",
    ]
