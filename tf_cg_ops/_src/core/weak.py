"""Dicts by identity that do not keep their keys alive. `weakref.WeakKeyDictionary` compares keys with `==`."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any


class IdentityKey:
    """A key that equals only keys of the same object, while that object lives.

    An object without support for weak references is kept alive.
    """

    def __init__(self, value: Any, when_gone: Callable[[Any], None] | None = None) -> None:
        self._id = id(value)
        try:
            self._get: Callable[[], Any] = weakref.ref(value, when_gone)
        except TypeError:
            self._get = lambda: value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdentityKey) or self._id != other._id:
            return False
        value = self._get()
        return value is not None and value is other._get()

    def __hash__(self) -> int:
        return self._id


class WeakIdentityDict:
    """Keeps a value for an object as long as the object lives. The value must not refer to the object."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Callable[[], Any], Any]] = {}

    def get(self, key: Any) -> Any:
        """The value for an object, or None."""
        found = self._values.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def setdefault(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value for an object, or a new one; without support for weak references a new one each time."""
        value = self.get(key)
        if value is None:
            value = make()
            key_id, values = id(key), self._values
            with contextlib.suppress(TypeError):
                values[key_id] = weakref.ref(key, lambda _: values.pop(key_id, None)), value
        return value
