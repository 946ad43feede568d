"""Wrong calls print what messages.txt says, which people have reviewed: `python -m tests.messages.write` writes it anew."""

import difflib
import inspect

import numpy as np
import pytest
import tensorflow as tf

import tf_cg_ops as cg

from . import functions, models, table

pytestmark = pytest.mark.core

NAMES = {**{name: getattr(cg, name) for name in cg.__all__}, **vars(functions), **vars(models)}


@pytest.mark.parametrize("group", table.sections())
def test_messages(group):
    expected, only = table.sections()[group]
    found, _ = table.lines_of(expected, only, NAMES)
    difference = "\n".join(difflib.unified_diff(expected, found, "messages.txt", "raised now", lineterm="", n=0))
    assert not difference, f"\n{difference}\n\nIf this is right: python -m tests.messages.write {group!r}"


def test_a_note_is_there_if_autograph_makes_the_exception_anew():
    @tf.function
    def call(x):
        return cg.straight_through(np.sign)(x)

    with pytest.raises(NotImplementedError, match=r"symbolic tf.Tensor(.|\n)* tf.sign for np.sign"):
        call(tf.constant(1.0))


def test_each_call_of_messages_txt_raises_something():
    assert "-> nothing is raised" not in table.FILE.read_text()


def public_functions():
    """The names of all public functions and layers that take an argument."""
    modules = {"": cg, "compat.bayesflow.": cg.compat.bayesflow, "compat.tfp_math.": cg.compat.tfp_math}
    modules |= {f"{n}.": getattr(cg, n) for n in ("layers", "linear", "rules", "saved_model", "testing", "sysconfig")}
    for prefix, module in modules.items():
        for name in module.__all__:
            value = getattr(module, name)
            is_report = inspect.isclass(value) and prefix != "layers."
            if callable(value) and not is_report and inspect.signature(value).parameters:
                yield prefix + name


def test_every_public_function_has_wrong_calls():
    assert not set(public_functions()) - {*table.sections()}
