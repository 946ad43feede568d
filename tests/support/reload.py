"""Loads a model, runs and differentiates some of its functions, and writes what it finds: reload.py MODEL TASKS RESULTS."""

import pathlib
import pickle
import sys

import tensorflow as tf

import tf_cg_ops  # noqa: F401


def to_arrays(structure):
    return tf.nest.map_structure(lambda t: None if t is None else tf.convert_to_tensor(t).numpy(), structure)


def vjp(model, name, args, dy):
    """The values, the gradients by all arguments, and what the variables hold then."""
    args = [getattr(model, arg) if isinstance(arg, str) else tf.constant(arg) for arg in args]
    with tf.GradientTape() as tape:
        tape.watch([arg for arg in args if arg.dtype.is_floating])
        values = tf.nest.flatten(getattr(model, name)(*[arg for arg in args if isinstance(arg, tf.Tensor)]))
    gradients = tape.gradient(values, args, output_gradients=[tf.constant(each) for each in tf.nest.flatten(dy)])
    return to_arrays((values, gradients, [arg for arg in args if not isinstance(arg, tf.Tensor)]))


def orders(model, again, name, x, dy, modes):
    """The value with first and second derivatives in some modes; "again" stands for the model that was saved again."""
    from tests.support.modes import GRAPH_MODES, MODES

    def in_mode(mode):
        function = getattr(again if mode.startswith("again ") else model, name)
        return to_arrays(list((MODES | GRAPH_MODES)[mode.removeprefix("again ")](function, x, dy)))

    return {mode: in_mode(mode) for mode in modes}


def main(path, tasks, results):
    tasks = pickle.loads(pathlib.Path(tasks).read_bytes())
    model, again, found = tf.saved_model.load(path), None, {}
    if any(len(task) == 3 for task in tasks.values()):
        tf.saved_model.save(model, f"{path}_again")
        again = tf.saved_model.load(f"{path}_again")
    for name, task in tasks.items():
        try:
            found[name] = vjp(model, name, *task) if len(task) == 2 else orders(model, again, name, *task)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    pathlib.Path(results).write_bytes(pickle.dumps(found))


main(*sys.argv[1:])
