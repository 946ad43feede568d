"""What type checkers see: decorated functions keep their parameters, and wrong calls are errors.

TensorFlow has no types that mypy finds, so a Tensor is Any here: what is checked is everything else.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from ..support.sources import ROOT, source_files

CONFIG = """
[mypy]
python_version = 3.10
check_untyped_defs = True
ignore_missing_imports = True

# It takes a while to read them, and they are not the subject.
[mypy-numpy.*,matplotlib.*,sklearn.*]
follow_imports = skip
follow_imports_for_stubs = True
"""

DECORATED = """
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_cg_ops as cg

GradFn = Callable[..., Any]

@cg.custom_gradient
def with_gradient(x: tf.Tensor, k: float = 1.0) -> tuple[tf.Tensor, GradFn]:
    return k * x, lambda dy: k * dy

@cg.custom_gradient(saved_orders=2)
def with_orders(x: tf.Tensor, *, k: float) -> tuple[str, GradFn]:
    return "text", lambda dy: k * dy

@cg.custom_gradient
def without_types(x, k):
    return k * x, lambda dy: k * dy

@cg.custom_jvp
def with_tangent(x: tf.Tensor, k: float) -> float:
    return k

@with_tangent.defjvp
def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return primals, tangents

@cg.custom_jvp(nondiff_argnames=["k"])
def with_options(x: tf.Tensor, k: float) -> float:
    return k

def forward(x: tf.Tensor, k: int) -> tuple[float, int]:
    return 1.0, 2

def backward(residuals: int, dy: tf.Tensor) -> tf.Tensor:
    return dy

passes = cg.custom_vjp(forward, backward)

def plain(x: tf.Tensor, k: int) -> float:
    return 1.0

class Model(tf.Module):
    @cg.custom_gradient
    def method(self, x: tf.Tensor, k: float) -> tuple[float, GradFn]:
        return k, lambda dy: dy

    @cg.custom_jvp
    def tangent(self, x: tf.Tensor, k: float) -> float:
        return k

    @cg.recompute_grad(keep=["name"])
    def recomputed(self, x: tf.Tensor, k: int) -> float:
        return 1.0

model = Model()
"""

TYPES = {
    "with_gradient": "def (x: Any, k: float =) -> Any",
    "with_orders": "def (x: Any, *, k: float) -> str",
    "without_types": "def (x: Any, k: Any) -> Any",
    "with_tangent.__call__": "def (x: Any, k: float) -> float",
    "rule": "def (primals: Any, tangents: Any) -> tuple[Any, Any]",
    "with_options.__call__": "def (x: Any, k: float) -> float",
    "passes": "def (x: Any, k: int) -> float",
    "model.method": "def (x: Any, k: float) -> float",
    "model.tangent.__call__": "def (x: Any, k: float) -> float",
    "model.recomputed": "def (x: Any, k: int) -> float",
    "cg.recompute_grad(plain)": "def (x: Any, k: int) -> float",
    "cg.grad_pass_through(plain)": "def (x: Any, k: int) -> float",
    "cg.straight_through(plain)": "def (x: Any, k: int) -> float",
    "cg.straight_through(plain, 'sigmoid', slope=2.0)": "def (x: Any, k: int) -> float",
    "cg.straight_through(surrogate='sigmoid')(plain)": "def (x: Any, k: int) -> float",
    "cg.override_gradients(plain, {'Relu': lambda op, dy: dy})": "def (x: Any, k: int) -> float",
    "cg.implicit_root(lambda y, x: y - x, plain)": "def (x: Any, k: int) -> float",
    "cg.implicit_fixed_point(lambda y, x: x, batched=True)(plain)": "def (x: Any, k: int) -> float",
    "cg.implicit_minimum(lambda y, x: y - x)(plain)": "def (x: Any, k: int) -> float",
    "cg.recompute_grad(lambda x: x)": "def (x: Any) -> Any",
}

# Calls that are errors, and the code of the error.
WRONG = {
    "with_gradient(1, 'text')": "arg-type",
    "with_gradient(1, j=2)": "call-arg",
    "with_orders(1, k=2.0).no_such_method()": "attr-defined",
    "with_orders(1)": "call-arg",
    "with_tangent(1, 'text')": "arg-type",
    "with_tangent.defjvp(3)": "type-var",
    "passes(1, 2, 3)": "call-arg",
    "model.method(1, 'text')": "arg-type",
    "model.tangent(1, 2.0, 3)": "call-arg",
    "model.recomputed(1)": "call-arg",
    "cg.recompute_grad(keep=3)": "call-overload",
    "cg.custom_gradient(plain)": "arg-type",
    "cg.custom_vjp(forward, 3)": "arg-type",
    "cg.implicit_root(plain, plain, batch=True)": "call-overload",
    "cg.embed_gradient(1, 2)": "call-arg",
    "cg.clip_gradient(1, values=1)": "call-arg",
    "cg.rules.no_such_rule": "attr-defined",
    "cg.straight_thruogh(plain)": "attr-defined",
    "cg.layers.GradientScale(factors=2)": "call-arg",
    "cg.testing.check_gradient()": "call-arg",
}


def run_mypy(folder, *paths):
    """The lines that mypy prints. It treats the package as an installed one, which needs a file py.typed."""
    (folder / "mypy.ini").write_text(CONFIG)
    command = [pathlib.Path(sys.executable).with_name("mypy"), "--no-error-summary", "--no-pretty", *paths]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache" / "types")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What mypy says about each line."""
    folder = tmp_path_factory.mktemp("types")
    lines = [*DECORATED.splitlines(), *(f"reveal_type({expression})" for expression in TYPES), *WRONG]
    (folder / "calls.py").write_text("\n".join(lines) + "\n")
    answers = {}
    for line in run_mypy(folder, "calls.py"):
        number, kind, text = re.fullmatch(r"calls\.py:(\d+): (\w+): (.*)", line).groups()
        answers.setdefault(lines[int(number) - 1], []).append((kind, text.replace("builtins.", "")))
    return answers


@pytest.mark.parametrize("expression", TYPES)
def test_a_decorated_function_keeps_its_parameters(expression, found):
    assert found[f"reveal_type({expression})"] == [("note", f'Revealed type is "{TYPES[expression]}"')]


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_call_is_an_error(call, found):
    errors = [text for kind, text in found[call] if kind == "error"]
    # An overload is sometimes reported twice.
    assert {re.search(r"\[([\w-]+)\]$", error)[1] for error in errors} == {WRONG[call]}


def test_nothing_else_is_an_error(found):
    assert set(found) == {*(f"reveal_type({expression})" for expression in TYPES), *WRONG}


def test_the_examples_have_no_errors(tmp_path):
    assert run_mypy(tmp_path, *source_files("examples/**/*.py")) == []
