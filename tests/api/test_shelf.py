"""The shelf that forgets what was not used for longest."""

from __future__ import annotations

from api.shelf import Shelf


def test_least_recently_used_goes_first() -> None:
    shelf: Shelf[int] = Shelf(2)
    shelf.put("a", 1)
    shelf.put("b", 2)
    assert shelf.get("a") == 1
    shelf.put("c", 3)
    assert [shelf.get(name) for name in "abc"] == [1, None, 3]


def test_sizes_count() -> None:
    shelf: Shelf[int] = Shelf(10)
    shelf.put("a", 1, 4)
    shelf.put("b", 2, 4)
    shelf.put("a", 3, 7)
    assert (shelf.get("a"), shelf.get("b")) == (3, None)
    shelf.put("b", 2, 3)
    assert (shelf.get("a"), shelf.get("b")) == (3, 2)


def test_one_value_may_exceed_the_room() -> None:
    shelf: Shelf[int] = Shelf(10)
    shelf.put("a", 1, 4)
    shelf.put("b", 2, 11)
    assert (shelf.get("a"), shelf.get("b")) == (None, 2)


def test_dropped_value_leaves_room() -> None:
    shelf: Shelf[int] = Shelf(2)
    shelf.put("a", 1)
    shelf.put("b", 2)
    shelf.drop("a")
    shelf.drop("nothing")
    shelf.put("c", 3)
    assert [shelf.get(name) for name in "abc"] == [None, 2, 3]
