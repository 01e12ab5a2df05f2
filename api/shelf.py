"""Shelf: what was used last, as much as fits."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Shelf(Generic[T]):
    """Values by name; when their sizes exceed the room, those not used for longest go.

    Parameters
    ----------
    room
        Sum of the sizes that may stay.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._used = 0
        self._items: OrderedDict[str, tuple[T, int]] = OrderedDict()

    def get(self, name: str) -> T | None:
        """Return a value and mark it as used."""
        if name not in self._items:
            return None
        self._items.move_to_end(name)
        return self._items[name][0]

    def put(self, name: str, value: T, size: int = 1) -> None:
        """Place a value, which alone may exceed the room."""
        self.drop(name)
        self._items[name] = (value, size)
        self._used += size
        while self._used > self._room and len(self._items) > 1:
            self.drop(next(iter(self._items)))

    def drop(self, name: str) -> None:
        """Take a value away."""
        _, size = self._items.pop(name, (None, 0))
        self._used -= size
