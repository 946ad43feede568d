"""The rules that a user gives for ops, and which ops they matched."""

import difflib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_cg_ops._src.core import text
from tf_cg_ops._src.core.signature import mismatched_signature

# An op type, or a predicate on a tf.Operation.
Key = str | Callable[[Any], bool]
# `rule(op, *dy)` returns the gradients of op.inputs, as functions of tf.RegisterGradient do.
Rule = Callable[..., Any]


class RuleTable:
    """Rules by the op type, or the predicate, that they are for. The first one that matches an op is its rule."""

    def __init__(self, api: str, rules: Mapping[Key, Rule]) -> None:
        self._api = api
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
                    f"returns a bool, got the function '{text.name_of(key)}' of {_package(key)}. {_advice(key)}"
                )
            if not callable(rule):
                raise TypeError(
                    f"{api}: the rule for {_described(key)} is not a function; expected rule(op, *dy), which returns "
                    f"the gradients of op.inputs, got {text.describe_type(rule)}."
                )
        self._rules = dict(rules)

    def matching(self) -> "Matching":
        """Finds the rules of the ops of one graph."""
        return Matching(self._api, self._rules)


class Matching:
    """Finds the rules of ops, and counts the ops."""

    def __init__(self, api: str, rules: Mapping[Key, Rule]) -> None:
        self._api = api
        self._rules = rules
        self._unmatched = list(rules)
        self.types: Counter[str] = Counter()
        self.overridden: Counter[str] = Counter()

    def rule_for(self, op: Any) -> Rule | None:
        """The rule of an op, which has inputs and outputs; None if it has none."""
        self.types[op.type] += 1
        for key, rule in self._rules.items():
            if op.type == key if isinstance(key, str) else self._selects(key, op):
                self.overridden[op.type] += 1
                # By identity: a predicate may have an __eq__ of its own.
                self._unmatched = [other for other in self._unmatched if other is not key]
                return rule
        return None

    def _selects(self, predicate: Callable[[Any], Any], op: Any) -> bool:
        """The answer of a predicate; TypeError if it is not one."""
        try:
            answer = predicate(op)
        except TypeError as error:
            signature = mismatched_signature(predicate, [op], {})
            if signature is None:
                raise
            raise TypeError(
                f"{self._api}: {_described(predicate)} must take one argument, a tf.Operation, got "
                f"{text.name_of(predicate)}{signature}."
            ) from error
        if not isinstance(answer, (bool, np.bool_)):
            raise TypeError(
                f"{self._api}: {_described(predicate)} must return a bool for each tf.Operation, got "
                f"{text.describe(answer)} for '{op.name}'. Compare what you look for, as in op.type == 'Relu'."
            )
        return bool(answer)

    def check_all_matched(self, place: str) -> None:
        """Raises ValueError if a rule matched no op."""
        if not self._unmatched:
            return
        there = ", ".join(f"{op_type} ({number})" for op_type, number in self.types.most_common()) or "no ops"
        by_lower_case = {op_type.lower(): op_type for op_type in self.types}
        missing = [key.lower() for key in self._unmatched if isinstance(key, str)]
        similar = [
            by_lower_case[found] for name in missing for found in difflib.get_close_matches(name, by_lower_case, n=1)
        ]
        hint = f"Did you mean {text.quoted(similar)}?" if similar else "Name one of these types, or leave the rule out."
        raise ValueError(
            f"{self._api}: rules matched no op of {place}: {', '.join(map(_described, self._unmatched))}; expected op "
            f"types, or predicates, of ops that compute its value, got ops of the types {there}. {hint}"
        )


def _described(key: Key) -> str:
    return repr(key) if isinstance(key, str) else f"the predicate '{text.name_of(key)}'"


def _package(function: Any) -> str:
    return str(getattr(function, "__module__", None) or "").partition(".")[0]


def _is_of_a_library(key: Any) -> bool:
    """Whether it is a function of TensorFlow or Keras, which stands for an op but takes no tf.Operation."""
    return _package(key) in ("tensorflow", "keras", "tf_keras")


def _advice(function: Any) -> str:
    name = text.name_of(function).replace("_", "").lower()
    op_types = [op_type for op_type in dir(tf.raw_ops) if op_type.lower() == name]
    return f"Write {op_types[0]!r}." if op_types else "Write the type of its op."
