"""Unsent plans, of processes that end as they like."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from api.statements import Found
from api.unsent import Place, Unsent
from heuristic import construct
from tests.api.stored import asked

FOUND = Found.of(construct(asked()))


def leave(place: Place, found: Found) -> None:
    """Lay a plan down and die."""
    with Unsent.at(place) as unsent:
        unsent.put(found)
        os._exit(1)


def test_plan_outlives_the_process_that_found_it() -> None:
    with Unsent.held() as unsent:
        assert unsent.plan() is None
        process = multiprocessing.get_context("spawn").Process(target=leave, args=(unsent.place, FOUND))
        process.start()
        process.join(60)
        assert unsent.plan() == FOUND
        unsent.clear()
        assert unsent.plan() is None
        assert not unsent.is_torn()


def test_shorter_plan_takes_the_place_of_a_longer_one() -> None:
    longer = Found.of(construct(asked(microbatches=9)))
    with Unsent.held() as unsent, Unsent.at(unsent.place) as other:
        for found in (longer, FOUND):
            other.put(found)
            assert unsent.plan() == found


def test_part_of_a_plan_is_none_and_told() -> None:
    with Unsent.held() as unsent:
        unsent.put(FOUND)
        os.truncate(unsent.file, len(FOUND.document) // 2)
        assert unsent.is_torn()
        assert unsent.plan() is None


def test_what_took_the_place_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    with Unsent.held() as unsent:
        place = unsent.place
    other = tmp_path / "other"
    other.write_text("whole")
    with pytest.raises(FileNotFoundError, match="whoever held it is gone"), Unsent.at(Place(other, place.name)):
        pytest.fail("it was opened")
    assert other.read_text() == "whole"


def test_place_that_cannot_be_opened_costs_nothing_but_what_is_laid_down() -> None:
    with Unsent.at(Place(Path("/proc/self/fd/none"), "zbplan-none")) as unsent:
        unsent.put(FOUND)
        assert unsent.plan() == FOUND
