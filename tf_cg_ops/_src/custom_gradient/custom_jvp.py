"""`custom_jvp`: a function with a tangent rule, which reverse mode transposes."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import tensorflow as tf

from tf_cg_ops._src.core import convert, misplaced_calls, pytree, slices, tapes, text, tf_internal
from tf_cg_ops._src.core.signature import arguments_by_name, check_argument_names, check_takes, has_parameter, misfit
from tf_cg_ops._src.core.types import P, R, Structure
from tf_cg_ops._src.custom_gradient.call import GradFn, call_with_gradient
from tf_cg_ops._src.custom_gradient.checks import GradientChecks
from tf_cg_ops._src.custom_gradient.decorator import PASS_THE_FUNCTION, CustomGradient, check_saved_orders
from tf_cg_ops._src.custom_gradient.wording import Wording
from tf_cg_ops._src.keras import registration

_API = "custom_jvp"
_SET_THE_RULE = (
    "Write @tf_cg_ops.custom_jvp above f, or custom_jvp(f, nondiff_argnames=[...]), then @f.defjvp above rule(primals, "
    "tangents)."
)
_WORDING = Wording(
    _API,
    subject="the tangent rule of '{function}'",
    gradient_function="rule",
    parameters="primals, tangents",
    noun="tangent",
    of="output",
    advice="The rule gets two tuples, primals and tangents, with one entry for each input.",
    takes_variables=(
        "the tangent rule must take them. Write rule(primals, tangents, variables=None, variable_tangents=None)."
    ),
)


_Result = TypeVar("_Result", covariant=True)
_Rule = TypeVar("_Rule", bound=Callable[..., Any])
_WithoutSelf = ParamSpec("_WithoutSelf")


class FunctionWithTangent(Protocol[P, _Result]):
    """What `custom_jvp` returns, for type checkers."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> _Result: ...
    def defjvp(self, rule: _Rule) -> _Rule: ...
    @overload
    def __get__(self, instance: None, owner: type) -> FunctionWithTangent[P, _Result]: ...
    @overload
    def __get__(
        self: FunctionWithTangent[Concatenate[Any, _WithoutSelf], _Result], instance: object, owner: type
    ) -> FunctionWithTangent[_WithoutSelf, _Result]: ...


@overload
def custom_jvp(
    f: Callable[P, R], *, nondiff_argnames: Collection[str] = (), saved_orders: int | None = None
) -> FunctionWithTangent[P, R]: ...
@overload
def custom_jvp(
    f: None = None, *, nondiff_argnames: Collection[str] = (), saved_orders: int | None = None
) -> Callable[[Callable[P, R]], FunctionWithTangent[P, R]]: ...
@tf_internal.autograph_artifact
@misplaced_calls.explains(_API, _SET_THE_RULE)
def custom_jvp(
    f: Callable[..., Structure] | None = None,
    *,
    nondiff_argnames: Collection[str] = (),
    saved_orders: int | None = None,
) -> Callable[..., Structure]:
    """Decorates a function whose derivative you write as a Jacobian-vector product, for forward and reverse mode.

    Use it if you have the tangent; the gradient is derived from it.

    >>> import tensorflow as tf
    >>> import tf_cg_ops as cg
    >>> @cg.custom_jvp
    ... def log1pexp(x):
    ...     return tf.maximum(x, 0.0) + tf.math.log1p(tf.exp(-tf.abs(x)))
    >>> @log1pexp.defjvp
    ... def log1pexp_jvp(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return log1pexp(x), tf.sigmoid(x) * t
    >>> x = tf.constant([0.0, 100.0])
    >>> with tf.autodiff.ForwardAccumulator(x, tf.constant([2.0, 10.0])) as accumulator:
    ...     y = log1pexp(x)
    >>> accumulator.jvp(y).numpy().tolist()
    [1.0, 10.0]
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = log1pexp(x)
    >>> tape.gradient(y, x, output_gradients=tf.constant([2.0, 10.0])).numpy().tolist()
    [1.0, 10.0]

    Set the tangent rule with the decorator `defjvp`:

        y, dy = rule(primals, tangents, **nondiff)

    - `primals` is a tuple of the arguments, in the order of the signature, with `**kwargs` sorted by name. They are as
      they were at the call: a Tensor with the value of a variable, and copies of lists, dicts and arrays.
    - `tangents` has their structure, with a Tensor for each floating-point or complex Tensor, zeros for such arrays and
      numbers, and `None` for the rest.
    - `dy` has the structure of `y` and must be linear in the tangents. `None` stands for zeros.
    - `nondiff` has the arguments that you name in `nondiff_argnames`. They are not among the primals.

    Forward mode calls the rule. Reverse mode uses its transpose, which TensorFlow derives: for the upstream gradients
    `v` and the Jacobian `J` that the rule multiplies by,

        dx = J^H v

    A rule that is not linear, such as `dy = t**2`, has no transpose, so its gradients are wrong;
    `tf_cg_ops.testing.check_gradient` finds that.

    If `f` reads trainable variables that are not among its arguments, the rule takes two lists as keyword arguments:
    `variables` and `variable_tangents`.

    Args:
      f: The function or method. Leave it out to use the decorator with parentheses.
      nondiff_argnames: The names of the arguments of `f` that have no derivative.
      saved_orders: The highest order of derivative that a loaded model can compute if the rule calls decorated
        functions, as in `custom_gradient`.

    Returns:
      A function with the signature and the value of `f`, and with the decorator `defjvp`, which returns the rule.

    Raises:
      TypeError: An argument has the wrong type; the rule is missing, does not take the variables that `f` reads, or
        does not return a pair; a tangent has the wrong dtype.
      ValueError: `nondiff_argnames` has a name that is not an argument; `saved_orders` is less than 1; the tangents do
        not fit the value in structure or shape.
      tf.errors.InvalidArgumentError: In forward mode, a shape is wrong at run time.

    Differs from `jax.custom_jvp`: arguments without a derivative are named, and reach the rule as keywords.
    """
    saved_orders = check_saved_orders(_API, saved_orders)
    if f is None:
        return functools.partial(custom_jvp, nondiff_argnames=nondiff_argnames, saved_orders=saved_orders)
    inside = getattr(f, "__func__", f) if isinstance(f, (classmethod, staticmethod)) else f
    misplaced_calls.check_function(_API, "the argument", inside, PASS_THE_FUNCTION)
    names = check_argument_names(_API, inside, nondiff_argnames, _SET_THE_RULE)
    return CustomJvp(_API, f, _JvpCall(inside, names, saved_orders))


class CustomJvp(CustomGradient):
    """A function that `custom_jvp` decorated."""

    @tf_internal.autograph_artifact
    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Sets the tangent rule and returns it."""
        call: _JvpCall = self.__tf_cg_ops__().run
        advice = f"Write @{call.variable}.defjvp above rule(primals, tangents)."
        misplaced_calls.check_function(_API, f"the tangent rule of '{text.name_of(self)}'", rule, advice)
        call.rule = rule
        return rule

    def defjvps(self, *rules: Any) -> None:
        """Raises TypeError, because JAX's function of this name takes one rule for each argument."""
        variable = self.__tf_cg_ops__().run.variable
        raise TypeError(
            f"{_API}: '{text.name_of(self)}' takes one rule for all arguments, unlike the defjvps of JAX. Write "
            f"@{variable}.defjvp above rule(primals, tangents), which returns the value and the sum of the parts."
        )


@dataclasses.dataclass(eq=False)
class _JvpCall:
    """Calls a decorated function or method with its rule."""

    function: Callable[..., Any]
    nondiff_argnames: tuple[str, ...]
    saved_orders: int | None
    rule: Callable[..., Any] | None = None

    @property
    def variable(self) -> str:
        """The name of the function in the user's program; "f" for a lambda, which has none."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return name if name.isidentifier() else "f"

    def __call__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.rule is None:
            name = text.name_of(function)
            raise TypeError(
                f"{_API}: '{name}' has no tangent rule. Before the first call, write @{self.variable}.defjvp above "
                "rule(primals, tangents)."
            )
        rule = self.rule
        if function is not self.function and isinstance(function, types.MethodType):
            rule = types.MethodType(rule, function.__self__)
        elif args and not tf.is_tensor(args[0]) and self._takes_self(rule):
            rule = types.MethodType(rule, args[0])
            function, args = types.MethodType(function, args[0]), args[1:]
        nondiff = arguments_by_name(_API, function, args, kwargs, self.nondiff_argnames)
        nondiff = {name: pytree.with_own_containers(value) for name, value in nondiff.items()}
        arguments = pytree.flatten_arguments(_API, function, args, kwargs, self.nondiff_argnames).arguments
        primals = tuple(pytree.as_at_the_call(argument.value) for argument in pytree.spread_stars(arguments))

        def compute(*args: Any, **kwargs: Any) -> Any:
            value = pytree.with_own_containers(function(*args, **kwargs))
            tangents = _Tangents(text.name_of(function), rule, primals, nondiff, value)
            return value, GradFn(tangents.transpose(), tangents=tangents.for_accumulator)

        return call_with_gradient(
            function,
            args,
            kwargs,
            wording=_WORDING,
            compute=compute,
            nondiff_argnames=self.nondiff_argnames,
            saved_orders=self.saved_orders,
        )

    def _takes_self(self, rule: Callable[..., Any]) -> bool:
        """Whether the rule only takes primals and tangents with an instance before them.

        The caller has bound the instance, as `types.MethodType` and the classmethod of Python 3.13 do.
        """
        nondiff = dict.fromkeys(self.nondiff_argnames)
        too_few, fitting = (misfit(rule, [None] * number, nondiff) for number in (2, 3))
        return bool(too_few) and not fitting


registration.classes.append(CustomJvp)


@dataclasses.dataclass(eq=False)
class _Tangents:
    """The tangent rule at the arguments of one call, as a function of the tangents, and its transpose."""

    function: str
    rule: Callable[..., Any]
    primals: tuple[Any, ...]
    nondiff: dict[str, Any]
    value: Any

    @property
    def _subject(self) -> str:
        return _WORDING.subject_of(self.function)

    def __call__(
        self, tangents: list[Any], variables: Sequence[tf.Variable], variable_tangents: Sequence[Any]
    ) -> list[Any]:
        """The tangent, or None, of each leaf of the value."""
        options = dict(self.nondiff)
        if variables:
            options |= {"variables": list(variables), "variable_tangents": list(variable_tangents)}
        pairs = zip(tf.nest.flatten(self.primals), tangents, strict=True)
        by_leaf = [_zero_of_constant(primal) if t is None else slices.to_dense(t) for primal, t in pairs]
        structured = tf.nest.pack_sequence_as(self.primals, by_leaf)
        try:
            answer = self.rule(self.primals, structured, **options)
        except Exception as error:
            parameters = ", ".join(["primals", "tangents", *options])
            must_take = f"{self._subject} must take ({parameters})"
            check_takes(self.rule, (self.primals, structured), options, must_take)
            entries = f"with two tuples, each of {text.count(len(self.primals), 'entry')}"
            text.add_note(error, f"{self._subject} is called as rule({parameters}), {entries}.")
            raise
        return self._checked_tangents(pytree.pair(self._subject, "y, dy", answer)[1])

    def for_accumulator(
        self,
        tangents: list[Any],
        variables: Sequence[tf.Variable],
        variable_tangents: Sequence[Any],
        inputs: list[tf.Tensor],
    ) -> list[Any]:
        """The same for an accumulator, in which tapes of the rule would not record."""

        def identities(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
            return [tf.identity(tensor) for tensor in tensors]

        primals, nondiff = pytree.map_tensors((self.primals, self.nondiff), identities)
        with tapes.recording_resumed(inputs) as is_inside:
            if is_inside:
                return [None] * len(tf.nest.flatten(self.value))
            copy = dataclasses.replace(self, primals=primals, nondiff=nondiff)
            result = copy(tangents, variables, variable_tangents)
        return pytree.map_tensors(result, identities)

    def transpose(self) -> Callable[..., Any]:
        """Makes the `grad_fn` of the call.

        Differentiating a linear function transposes it: the derivative of `t -> J t` is `J` at every point, so a tape
        computes `J^H v`. The point here is zero.
        """
        values = tf.nest.flatten(self.primals)

        def transposed(*dys: Any, variables: Sequence[tf.Variable] = ()) -> Any:
            components = [pytree.tensors_for_gradients(value) for value in values]
            tensors = [tensor for group in components for tensor in group]
            points = [_zeros(tensor) for tensor in (*tensors, *map(tf.convert_to_tensor, variables))]
            sources = [point for point in points if point is not None]
            with tf.GradientTape() as tape:
                tape.watch(sources)
                at_zero = pytree.regroup(values, components, points[: len(tensors)])
                pairs = zip(tf.nest.flatten(self.value), self(at_zero, variables, points[len(tensors) :]), strict=True)
                tangents = [tangent for leaf, tangent in pairs if leaf is not None]
                targets, upstream = [], []
                for tangent, dy in zip(tangents, dys, strict=True):
                    if tangent is not None and dy is not None:
                        targets += pytree.tensors_for_gradients(tangent)
                        upstream += [slices.to_dense(part) for part in pytree.tensors_for_gradients(dy)]
            found = iter(
                tape.gradient(targets, sources, output_gradients=upstream) if targets else [None] * len(sources)
            )
            by_point = [None if point is None else next(found) for point in points]
            gradients = pytree.regroup(values, components, by_point[: len(tensors)])
            return (gradients, by_point[len(tensors) :]) if variables else gradients

        # GradientChecks looks into the signature for `variables`.
        return transposed if has_parameter(self.rule, "variable_tangents") else lambda *dys: transposed(*dys)

    def _checked_tangents(self, dy: Any) -> list[Any]:
        """The tangents of the leaves of the value."""
        try:
            leaves = pytree.flatten_up_to(self.value, dy)
        except ValueError:
            raise ValueError(
                f"{self._subject} must return tangents in the structure of the value, got {text.describe(dy)}. Return "
                "one tangent for each Tensor of the value."
            ) from None
        # Not earlier, since the function does not read a variable that it only returns.
        outputs = [pytree.to_output(leaf) for leaf in tf.nest.flatten(self.value)]
        checks = GradientChecks(_WORDING, self.function, pytree.Leaves([], list), [], [])
        checked: list[Any] = []
        for name, tangent, output in zip(pytree.leaf_names("y", self.value), leaves, outputs, strict=True):
            tensors = pytree.tensors_for_gradients(output)
            if tangent is None or not any(map(tf_internal.is_trainable, tensors)):
                checked.append(None)
            else:
                checked += pytree.regroup([output], [tensors], checks.of_leaf(repr(name), tangent, output, tensors))
        return checked


def _zero_of_constant(primal: Any) -> Any:
    """The tangent of an array or number, which a tf.function could have made a Tensor; None for other values."""
    if convert.is_inexact_array(primal):
        return tf.zeros(primal.shape, primal.dtype)
    return type(primal)(0) if type(primal) in (float, complex) else None


def _zeros(tensor: tf.Tensor) -> tf.Tensor | None:
    """Zeros for a Tensor that has a tangent. Any other point would do, since the rule is linear."""
    return tf.zeros_like(tensor) if tf_internal.is_trainable(tensor) and tensor.dtype != tf.resource else None
