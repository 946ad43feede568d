"""`recompute_grad` with `memory`, for random programs that are cut at random places, in every mode.

The reference is the plain function in the same mode, with the random numbers that the recomputed function drew.
"""

import contextlib
import dataclasses
import itertools
import types
import warnings
from unittest import mock

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

import tf_cg_ops as cg
from tf_cg_ops._src.memory import recompute_grad
from tf_cg_ops._src.memory.plan import SegmentOps

from . import plan_programs as programs

RTOL = {tf.float64: 1e-9, tf.float32: 1e-3}
INNER = ("called", "function", "jit", "loop")  # What is around the function, and inside the tape.
OUTER = ("eager", "function", "xla", "vectorized_map")  # What is around the tape.
DERIVATIVES = ("gradient", "second", "forward", "forward_over_reverse", "jacobian")
_budgets = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class Case:
    steps: tuple  # Each a name in STEPS, and numbers that choose two matrices and a variant.
    results: tuple = (0,)  # The matrices that are results,
    targets: tuple = (True,)  # and which of them have upstream gradients.
    cuts: tuple | None = ()  # The places of cuts; None for the real plan.
    again: tuple = (True,) * 16  # Which segments are recomputed.
    keeps: bool = False
    dtype: tf.DType = tf.float64
    inner: str = "called"
    outer: str = "eager"
    derivative: str = "gradient"
    known: str = "shape"
    seed: int = 0

    @property
    def action(self):
        """The row in the table of results."""
        return f"{self.outer}, {self.inner}"


@st.composite
def cases(draw):
    outer, inner = draw(st.sampled_from(OUTER)), draw(st.sampled_from(INNER))
    derivative = draw(st.sampled_from(("gradient", "gradient", "gradient", *DERIVATIVES)))
    # TensorFlow cannot map writes of variables; what a loop draws is not one of its results.
    is_pure = outer == "vectorized_map" or inner == "loop"
    without = set(programs.STATEFUL) if is_pure else set()
    if derivative.startswith(
        "forward"
    ):  # TensorFlow's custom gradients have other tangents in a tf.function than outside.
        without |= {"tf_custom"}
    if (outer, derivative) == ("vectorized_map", "jacobian"):  # It takes minutes.
        outer = "function"
    if derivative == "forward_over_reverse":  # There TensorFlow cannot trace functions, branches and lists.
        outer, inner = "function" if outer == "vectorized_map" else outer, "called"
        without |= {"call", "cond", "while", "list"}
    if derivative == "forward" and (outer, inner) != ("eager", "called"):  # Nor loops that read variables.
        inner, without = "called" if inner == "loop" else inner, without | {"while"}
    names = [name for name in programs.STEPS if name not in without]
    number = st.integers(0, 7)
    steps = draw(st.lists(st.tuples(st.sampled_from(names), number, number, number), min_size=1, max_size=20))
    results = draw(st.lists(st.integers(0, len(steps) - 1), min_size=1, max_size=4, unique=True))
    targets = draw(st.lists(st.booleans(), min_size=len(results), max_size=len(results)).filter(any))
    places = st.lists(st.integers(0, 499), max_size=12).map(lambda cuts: tuple(sorted(set(cuts))))
    return Case(
        steps=tuple(steps),
        results=tuple(results),
        targets=tuple(targets),
        cuts=draw(st.one_of(places, places, places, st.none())),
        again=tuple(draw(st.lists(st.booleans(), min_size=13, max_size=13))),
        keeps=draw(st.sampled_from((False, False, True))),
        dtype=draw(st.sampled_from(tuple(RTOL))),
        inner=inner,
        outer=outer,
        derivative=derivative,
        known=draw(st.sampled_from(("shape", "batch", "rank", "nothing"))),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def cut_at(case):
    """Replaces `make_plan`: cuts where the case says, as far as a segment can keep what crosses the cut."""

    def make_plan(api, name, memory, flat, sources, is_kept):
        number_of = {id(op): number for number, op in enumerate(flat.operations)}
        allowed = set(range(1, len(flat.operations)))
        for number, op in enumerate(flat.operations):
            for tensor in op.inputs:
                if tensor.dtype in (tf.variant, tf.resource) and id(tensor.op) in number_of:
                    allowed -= set(range(number_of[id(tensor.op)] + 1, number + 1))
        allowed = sorted(allowed)
        places = sorted({allowed[cut % len(allowed)] for cut in case.cuts}) if allowed else []
        bounds = itertools.pairwise([0, *places, len(flat.operations)])
        parts = [SegmentOps(flat.operations[a:b], again) for (a, b), again in zip(bounds, case.again, strict=False)]
        return types.SimpleNamespace(note=""), parts

    return make_plan


def _program(case, variables, given):
    def function(x, y, z, ids):
        results, others = programs.run(case.steps, case.results, variables, x, y, z, ids, given)
        return results + others

    return function


def _around(case, function, specs):
    """The function in what the case has inside of the tape."""
    if case.inner in ("function", "jit"):
        return tf.function(function, specs, jit_compile=case.inner == "jit" or None, autograph=False)
    if case.inner == "called":
        return function

    def looped(x, *rest):
        def body(i, t, *sums):
            results = function(t, *rest)
            found = [0.5 * t + 0.3 * tf.tanh(results[0]), *map(tf.add, sums, results)]
            for tensor in found:
                tensor.set_shape(x.shape)
            return i + 1, *found

        state = (0, x, *[tf.zeros_like(x)] * len(case.results))
        return list(tf.while_loop(lambda i, *_: i < 2, body, state, maximum_iterations=2)[2:])

    return looped


def _differentiated(case, function, variables, kinds):
    """A function of the arguments: what `function` returns, then derivatives. `kinds` says which are None or slices."""
    rng = np.random.default_rng(case.seed + 1)
    weights = [tf.constant(rng.normal(size=[programs.N] * 2), case.dtype) for _ in case.results]
    trained = [variables.captured, *variables.all]
    directions = [tf.constant(rng.normal(size=t.shape), case.dtype) for t in [*weights[:1] * 3, *trained]]

    # A loop has zeros for what its body captures without need, and a traced branch for what the other branch reads.
    has_branches = case.outer == "eager" and any(step[0] in ("cond", "while") for step in case.steps)
    # A function can also have zeros under a second tape, and what is recomputed has them in higher orders.
    in_order_two = case.derivative == "second" and case.inner != "called"
    unconnected = "zero" if case.inner == "loop" or has_branches or in_order_two else "none"

    def noted(gradients):
        kinds[:] = [None if g is None else type(g).__name__.replace("EagerTensor", "Tensor") for g in gradients]
        kinds[:] = [kind and ("slices" if kind == "IndexedSlices" else "dense") for kind in kinds]
        return [tf.convert_to_tensor(g) for g in gradients if g is not None]

    def chosen(results):
        return [r for r, is_target in zip(results, case.targets, strict=False) if is_target]

    def gradients(*args):
        sources = [*args[:3], *trained]
        with tf.GradientTape() as tape:
            tape.watch([*args[:3], variables.captured])
            values = function(*args)
        if case.derivative == "jacobian":
            return values, tape.jacobian(chosen(values)[0], sources, unconnected_gradients=unconnected)
        return values, tape.gradient(chosen(values), sources, chosen(weights), unconnected_gradients=unconnected)

    def run(*args):
        sources = [*args[:3], *trained]
        if case.derivative in ("gradient", "jacobian"):
            values, found = gradients(*args)
        elif case.derivative == "second":
            with tf.GradientTape() as tape:
                tape.watch([*args[:3], variables.captured])
                values, of_first = gradients(*args)
                of_first = [tf.convert_to_tensor(g) for g in of_first if g is not None]
                loss = tf.add_n([tf.constant(0.0, case.dtype), *[tf.reduce_sum(tf.sin(1.3 * g)) for g in of_first]])
            found = [*of_first, *tape.gradient(loss, sources, unconnected_gradients="zero")]
        else:
            # In a graph TensorFlow loses the tangents of variables that a called function reads. Nor does it trace the
            # lookup in a variable of an accumulator.
            count = len(sources) if case.outer == "eager" and case.inner in ("called", "loop") else 4
            chosen_pairs = [
                pair for pair in zip(sources[:count], directions, strict=False) if pair[0] is not variables.table
            ]
            with tf.autodiff.ForwardAccumulator(*zip(*chosen_pairs, strict=True)) as accumulator:
                values, of_first = (function(*args), []) if case.derivative == "forward" else gradients(*args)
                of_first = [tf.convert_to_tensor(g) for g in of_first if g is not None]
            tangents = accumulator.jvp([*values, *of_first], unconnected_gradients="zero")
            found = [*of_first, *map(tf.convert_to_tensor, tangents)]
        return [*values, *noted(found)]

    return run


def _run(case, decorate, given=None):
    """What the case computes, which of the derivatives are None or slices, and the variables afterwards."""
    variables, kinds = programs.Variables(case.dtype, case.seed), []
    rng = np.random.default_rng(case.seed + 2)
    args = [tf.constant(rng.normal(size=[programs.N] * 2), case.dtype) for _ in range(3)]
    args.append(tf.constant(rng.integers(0, 6, programs.N), tf.int32))
    shape = {"shape": lambda s: s, "batch": lambda s: [None, *s[1:]], "rank": lambda s: [None] * len(s)}
    specs = [tf.TensorSpec(shape.get(case.known, lambda s: None)(t.shape), t.dtype) for t in args]
    function = _around(case, decorate(_program(case, variables, given)), specs)
    run = _differentiated(case, function, variables, kinds)
    if case.outer == "eager":
        found = run(*args)
    elif case.outer == "vectorized_map":
        batch = [tf.stack([tensor, tensor * 2 if tensor.dtype == case.dtype else tensor]) for tensor in args]
        found = tf.vectorized_map(lambda each: run(*each), batch, fallback_to_while_loop=False)
    else:
        found = tf.function(run, specs, jit_compile=case.outer == "xla" or None, autograph=False)(*args)
    return [t.numpy() for t in found], kinds, [v.numpy() for v in variables.all]


def _recomputed(case):
    keep = (lambda op: op.type in ("MatMul", "Sin", "Softmax")) if case.keeps else ()
    # Every case has its own number, because the cuts are built once for equal graphs and equal options.
    memory = "auto" if case.cuts is None else next(_budgets)
    return lambda function: cg.recompute_grad(function, memory=memory, keep=keep)


def check(case, folder=None):
    """Raises AssertionError unless values, derivatives and variables are the plain ones."""
    found = error = None
    cutting = mock.patch.object(recompute_grad, "make_plan", cut_at(case))
    with contextlib.nullcontext() if case.cuts is None else cutting, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = _run(case, _recomputed(case))
        except Exception as exception:
            error = exception
    num_results, num_draws = len(case.results), sum(step[0] == "random" for step in case.steps)
    given = None if found is None else found[0][num_results : num_results + num_draws]
    try:
        expected = _run(case, lambda function: function, given)
        if error is not None:  # TensorFlow cannot trace every function, as in forward mode with branches.
            _run(case, lambda function: tf.function(function, autograph=False))
    except Exception:
        return f"{case.action}: TensorFlow's own failure"
    if error is not None:
        raise AssertionError(f"only the recomputed function raises {type(error).__name__}: {error}") from error
    assert found[1] == expected[1], f"kinds of gradients: {found[1]}, expected {expected[1]}"
    of_found, of_expected = [*found[0], *found[2]], [*expected[0], *expected[2]]
    for number, (a, e) in enumerate(zip(of_found, of_expected, strict=True)):
        about = f"number {number} of {len(expected[0])} results and derivatives, then variables"
        assert (a.shape, a.dtype) == (e.shape, e.dtype), about
        scale = max(1.0, float(np.max(np.abs(e), initial=0.0)))
        np.testing.assert_allclose(a, e, rtol=0, atol=RTOL[case.dtype] * scale, err_msg=about)
    return f"{case.action}: {case.derivative}"


def control(case, folder=None):
    """The same without recomputation."""
    _run(case, lambda function: function)
