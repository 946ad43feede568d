"""Objects by identity, without keeping them alive. The keys of `weakref.WeakKeyDictionary` are compared with `==`."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any


class IdentityKey:
    """A key that equals only the keys of the same living object.

    An object that takes no weak reference is kept alive instead.
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
    """Values for objects, kept as long as the object. A value must not refer to its object."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Callable[[], Any], Any]] = {}

    def get(self, key: Any) -> Any:
        """The value for an object; None if there is none."""
        found = self._values.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def setdefault(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value for an object, or a new one; for an object without weak references, a new one each time."""
        value = self.get(key)
        if value is None:
            value = make()
            key_id, values = id(key), self._values
            with contextlib.suppress(TypeError):
                values[key_id] = weakref.ref(key, lambda _: values.pop(key_id, None)), value
        return value
