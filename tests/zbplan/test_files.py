from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from zbplan import files
from zbplan.errors import InvalidInputError


def test_a_file_reads_back_as_written(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    for text in ("{}", '{"name": "ü"}'):
        files.write(str(target), text)
        assert files.read(str(target)) == text.encode()
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_has_the_mode_that_files_have(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    files.write(str(tmp_path / "written"), "")
    assert stat.S_IMODE((tmp_path / "written").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_link_stays_and_what_it_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "plan.json")
    files.write(str(tmp_path / "link"), "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "plan.json").read_text() == "new"


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        files.write(str(target), "new \ud800")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    files.write(str(pipe), "text")
    reader.join()
    assert received == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["", "missing/plan.json", "file/plan.json", "plan\0.json", "x" * 5000])
def test_a_target_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    target = f"{tmp_path}/{name}"
    for refused in (files.check_writable, lambda target: files.write(target, "text")):
        with pytest.raises(InvalidInputError) as caught:
            refused(target)
        assert caught.value.findings[0].path == repr(target)


@pytest.mark.parametrize("name", ["", "missing", "plan\0.json"])
def test_a_source_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        files.read(f"{tmp_path}/{name}")
    assert caught.value.findings[0].path == repr(f"{tmp_path}/{name}")
