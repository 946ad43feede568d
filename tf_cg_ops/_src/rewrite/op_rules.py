"""The user's rules for ops, and which ops they matched."""

import difflib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import convert, misplaced_calls, signature, text
from tf_cg_ops._src.core.types import Structure

# An op type, a name with a slash, or a predicate on a tf.Operation. Public functions take any key: for type checkers, a
# dict whose keys are functions is not one whose keys may be either.
Key: TypeAlias = str | Callable[[tf.Operation], bool]
# `rule(op, *dy)` returns the gradients of op.inputs, like a function for tf.RegisterGradient.
Rule: TypeAlias = Callable[..., Structure]

# The attribute of a predicate of this library to which the type or name of an op is preferred.
YIELDS = "yields_to_names"
# The attribute of a rule of this library with a predicate: whether it would perhaps have to change an op, but cannot.
UNREACHED = "is_unreached"


class RuleTable:
    """Rules by op type or predicate. An op gets the first rule that matches, and `rules.elementwise` yields to names.

    `inside` and `unmatched` are the arguments of `override_gradients`.
    """

    def __init__(self, api: str, rules: Mapping[Key, Rule], inside: bool, unmatched: str) -> None:
        self._api = api
        self.inside = convert.to_bool(api, "inside", inside)
        if unmatched not in ("error", "ignore"):
            raise ValueError(f"{api}: unmatched must be 'error' or 'ignore', got {text.describe(unmatched)}.")
        self._ignores_unmatched = unmatched == "ignore"
        if not isinstance(rules, Mapping):
            raise TypeError(f"{api}: rules must be a dict such as {{'Relu': rule}}, got {text.describe_type(rules)}.")
        if not rules:
            raise ValueError(f"{api}: rules must name at least one op, as in {{'Relu': rule}}, got an empty dict.")
        for key, rule in rules.items():
            if not isinstance(key, str) and not callable(key):
                raise TypeError(
                    f"{api}: a key of rules must be an op type such as 'Relu', or a function of a tf.Operation that "
                    f"returns a bool, got {text.describe(key)}."
                )
            if not isinstance(key, str) and _is_of_a_library(key):
                raise TypeError(
                    f"{api}: a key of rules must be an op type such as 'Relu', or a function of a tf.Operation that "
                    f"returns a bool, got the function '{text.name_of(key)}' of {_package(key)}. {_advice_for_key(key)}"
                )
            name = f"the rule for {_described_key(key)}"
            noun = "a function rule(op, *dy) that returns the gradients of op.inputs"
            advice = "Ready-made ones are functions, such as tf_cg_ops.rules.guided."
            misplaced_calls.check_function(api, name, rule, advice, noun)
            must_take = f"{api}: {name} must take the op and the upstream gradients by position"
            advice = "If that makes a rule, call it, as in tf_cg_ops.rules.clip(norm=1.0)."
            signature.check_takes(rule, [None], {}, must_take, advice, partial=True)
        self._rules = dict(rules)
        self._warned: set[str] = set()

    def matching(self) -> "Matching":
        """Finds the rules for ops, and counts the ops."""
        return Matching(self._api, self._rules, self._ignores_unmatched, self._warned)


class Matching:
    """Finds the rules of ops, and counts the ops."""

    def __init__(self, api: str, rules: Mapping[Key, Rule], ignores_unmatched: bool, warned: set[str]) -> None:
        self._api = api
        self._rules = rules
        self._warned = warned
        self._ignores_unmatched = ignores_unmatched
        # By identity, because a predicate can define __eq__: each key with the ops that it matched.
        self._matched: dict[int, tuple[Key, list[Any]]] = {id(key): (key, []) for key in rules}
        self.ops: list[Any] = []
        self._ids: set[int] = set()
        self._unmatched: list[Any] = []
        self.types: Counter[str] = Counter()
        self.overridden: Counter[str] = Counter()

    def rule_for(self, op: Any) -> Rule | None:
        """The rule for an op with inputs and outputs, or None."""
        self.types[op.type] += 1
        key = next((key for key in self._rules if self._matches(key, op)), None)
        if key is None:
            self._unmatched.append(op)
            return None
        if hasattr(key, YIELDS):
            key = next((name for name in self._rules if isinstance(name, str) and _is_named(op, name)), key)
        self.overridden[op.type] += 1
        self._matched[id(key)][1].append(op)
        self.ops.append(op)
        self._ids.add(id(op))
        return self._rules[key]

    def _matches(self, key: Key, op: Any) -> bool:
        return _is_named(op, key) if isinstance(key, str) else selects(self._api, _described_key(key), key, op)

    def matched(self, op: Any) -> bool:
        """Whether the op has a rule."""
        return id(op) in self._ids

    def check_all_matched(self, place: str) -> None:
        """Raises ValueError if a rule matched no op."""
        unmatched = [key for key, ops in self._matched.values() if not ops]
        if self._ignores_unmatched or not unmatched:
            return
        for key in unmatched:
            others = [other for other, ops in self._matched.values() if any(self._matches(key, op) for op in ops)]
            if others:
                raise ValueError(
                    f"{self._api}: each rule must match an op of {place} that has no other rule, got "
                    f"{_described_key(key)}, whose ops all have the rule for {', '.join(map(_described_key, others))}. "
                    f"{'Leave it out' if hasattr(key, YIELDS) else 'Put it first'}."
                )
        counts = sorted(
            self.types.items(), key=lambda item: (-item[1], item[0])
        )  # A file has its functions in any order.
        there = ", ".join(f"{op_type} ({number})" for op_type, number in counts) or "none"
        by_lower_case = {op_type.lower(): op_type for op_type in self.types}
        missing = [key.lower() for key in unmatched if isinstance(key, str)]
        similar = [
            by_lower_case[found] for name in missing for found in difflib.get_close_matches(name, by_lower_case, n=1)
        ]
        predicate = text.written("pass a predicate such as tf_cg_ops.rules.elementwise", "write elementwise")
        no_match = f"Name one of these types, {predicate}, or leave the rule out."
        hint = f"Did you mean {text.quoted(similar)}?" if similar else no_match
        raise ValueError(
            f"{self._api}: each rule must match an op of {place}, got no match for "
            f"{', '.join(map(_described_key, unmatched))}. The op types are {there}. {hint}"
        )

    def check_all_reached(self, place: str, reached: Collection[int], around: Mapping[int, str]) -> None:
        """Raises ValueError for a rule whose ops all lie in functions with their own gradient; warns if some do.

        Args:
          place: The function, for messages.
          reached: The ids of the ops that gradients reach.
          around: The names of such functions, by the ids of the ops that gradients skip because of them.
        """
        for key, ops in self._matched.values():
            names = Counter(around[id(op)] for op in ops if id(op) in around and id(op) not in reached)
            if not names:
                continue
            functions = ", ".join(f"'{name}' ({number})" for name, number in names.most_common())
            to = "to replace their gradients by TensorFlow's gradient of their ops, with your rules"
            advice = f"{inside_option(self._api)} {to}."
            if self._ignores_unmatched or any(id(op) in reached for op in ops):
                warnings.warn(
                    f"{self._api}: the rule for {_described_key(key)} has no effect on ops of {place} inside functions "
                    f"that have their own gradient: {functions}. {advice}",
                    stacklevel=2,
                )
            else:
                raise ValueError(
                    f"{self._api}: each rule must match an op of {place} that gradients reach, got "
                    f"{_described_key(key)}, which only matches ops inside functions that have their own gradient: "
                    f"{functions}. {advice}"
                )

    def warn_of_unreached(self, place: str, functions: Collection[str]) -> None:
        """Warns once of ops and functions with their own gradient that a rule such as `rules.masked` cannot serve."""
        for rule in self._rules.values():
            is_unreached = getattr(rule, UNREACHED, None)
            if is_unreached is None:
                continue
            types = Counter(op.type for op in self._unmatched if is_unreached(op))
            own = Counter(f"the gradient of '{name}'" for name in functions)
            counts = [f"{name} ({number})" for part in (types, own) for name, number in sorted(part.items())]
            message = (
                f"{self._api}: the rule '{text.name_of(rule)}' does not reach {', '.join(counts)} in {place}. There, a "
                "zero times an infinite number is still nan."
            )
            if counts and message not in self._warned:
                self._warned.add(message)
                warnings.warn(message, stacklevel=2)


def inside_option(api: str) -> str:
    """What makes rules and places reach into functions that have their own gradient."""
    option = text.written("inside=True", "--inside")
    return f"First use override with {option}" if api == "saved_model.add_gradients" else f"Pass {option}"


def _is_named(op: Any, key: str) -> bool:
    """Whether a key is the type of an op, or, with a slash, its name or the end of it."""
    return op.type == key if "/" not in key else f"/{op.name}".endswith(f"/{key}")


def selects(api: str, name: str, predicate: Callable[[Any], Any], op: Any) -> bool:
    """The answer of a predicate. Raises TypeError if it is not a bool, or if the predicate does not take an op."""
    answer = signature.call(predicate, [op], {}, f"{api}: {name} must take one argument, a tf.Operation")
    if not isinstance(answer, (bool, np.bool_)):
        raise TypeError(
            f"{api}: {name} must return a bool for each tf.Operation, got {text.describe(answer)} for '{op.name}'. "
            "Compare what you look for, as in op.type == 'Relu'."
        )
    return bool(answer)


def _described_key(key: Key) -> str:
    return repr(key) if isinstance(key, str) else f"the predicate '{text.name_of(key)}'"


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", None) or "").partition(".")[0]


def _is_of_a_library(key: Any) -> bool:
    """Whether it is a function of TensorFlow or Keras: such a function does not take a tf.Operation."""
    return _package(key) in ("tensorflow", "keras", "tf_keras")


def _advice_for_key(function: Any) -> str:
    name = text.name_of(function).replace("_", "").lower()
    op_types = [op_type for op_type in dir(tf.raw_ops) if op_type.lower() == name]
    return f"Write {op_types[0]!r}." if op_types else "Write the type of its op."
