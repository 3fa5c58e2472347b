"""Files are written whole or not at all; the same content gives the same bytes."""

import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooffloor.validate.common import files
from rooffloor.validate.common.errors import InputError


@dataclasses.dataclass(frozen=True)
class Fact:
    name: str
    values_ms: np.ndarray


def names(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def test_numpy_dataclasses_and_paths_become_plain_json():
    value = {
        "scalar": np.float32(0.5),
        "count": np.int64(7),
        "flag": np.bool_(True),
        "grid": np.arange(6.0).reshape(2, 3),
        "fact": Fact("a", np.array([1.0, math.nan])),
        "file": Path("a") / "b.csv",
        4: (1, 2),
        np.int64(16): None,
    }
    assert json.loads(files.json_dumps(value)) == {
        "scalar": 0.5,
        "count": 7,
        "flag": True,
        "grid": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
        "fact": {"name": "a", "values_ms": [1.0, None]},
        "file": "a/b.csv",
        "4": [1, 2],
        "16": None,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")])
def test_what_is_not_finite_becomes_null(value):
    assert files.json_dumps([value]) == "[\n  null\n]\n"


def test_last_digits_and_minus_zero_do_not_show():
    forwards, backwards = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert forwards != backwards
    assert files.json_dumps([forwards, -0.0]) == files.json_dumps([backwards, 0.0])


def test_keys_keep_their_order():
    assert list(json.loads(files.json_dumps({"b": 1, "a": 2}))) == ["b", "a"]


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", {True: 1}, {(1, 2): 3}, {1.5: 1}, Fact, 1j])
def test_what_has_no_stable_place_is_refused(value):
    with pytest.raises(TypeError, match="JSON"):
        files.json_dumps({"x": value})


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_ten_digits_survive_and_a_second_pass_changes_nothing(value):
    once = files.json_ready(value)
    assert isinstance(once, float)
    assert once == pytest.approx(value, rel=0.5e-9, abs=0)
    assert files.json_ready(once) == once


def test_writes_make_parents_and_leave_nothing_else(tmp_path):
    target = tmp_path / "a" / "b.json"
    assert files.write_json(target, {"x": 1.0}) == target
    files.write_text(tmp_path / "line.txt", "µ\r\n")
    assert target.read_text() == '{\n  "x": 1.0\n}\n'
    assert (tmp_path / "line.txt").read_bytes() == "µ\r\n".encode()
    assert names(tmp_path) == ["a", "a/b.json", "line.txt"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    target = files.write_text(tmp_path / "report.md", "old")

    def full(self, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"report\.md: cannot be written \(no space left on device\)"):
        files.write_text(target, "new")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["report.md"]


def test_a_folder_where_a_file_should_be_is_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        files.write_text(tmp_path, "x")
    assert names(tmp_path) == []


def test_folder_appears_with_all_its_files_at_the_end(tmp_path):
    target = tmp_path / "reports" / "study"
    with files.folder(target) as temporary:
        files.write_text(temporary / "report.md", "text")
        files.write_bytes(temporary / "figures" / "floors.png", b"png")
        assert not target.exists()
    assert names(target) == ["figures", "figures/floors.png", "report.md"]
    assert names(tmp_path)[0] == "reports"  # no temporary folder beside it


def test_folder_replaces_its_own_files_and_keeps_the_users(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "report.md").write_text("old")
    with files.folder(tmp_path) as temporary:
        files.write_text(temporary / "report.md", "new")
    assert names(tmp_path) == ["mine.txt", "report.md"]
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "report.md").read_text() == "new"


def write_half(target: Path, error: BaseException) -> None:
    with files.folder(target) as temporary:
        files.write_text(temporary / "report.md", "half")
        raise error


@pytest.mark.parametrize("error", [InputError("bad"), KeyboardInterrupt(), ZeroDivisionError()])
def test_folder_leaves_nothing_after_an_exception(tmp_path, error):
    with pytest.raises(type(error)):
        write_half(tmp_path / "new" / "study", error)
    assert names(tmp_path) == []


def test_folder_says_full_disk_in_one_line(tmp_path):
    with pytest.raises(InputError, match="no space left"):
        write_half(tmp_path, OSError(errno.ENOSPC, "No space left on device"))
    assert names(tmp_path) == []


def test_a_file_that_does_not_fit_is_named_as_it_would_have_been(tmp_path, monkeypatch):
    def full(self, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError) as error, files.folder(tmp_path / "out") as temporary:
        files.write_text(temporary / "posterior.nc", "x")
    assert str(error.value) == f"{tmp_path / 'out' / 'posterior.nc'}: cannot be written (no space left on device)"
    assert names(tmp_path) == []


def test_folder_hides_no_other_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_half(tmp_path, FileNotFoundError(errno.ENOENT, "No such file or directory", "x"))


def test_unwritable_target_is_said_on_entry(tmp_path):
    file = tmp_path / "file"
    file.write_text("a file")
    for target in (file, file / "below"):
        with pytest.raises(InputError, match=r"file.*: cannot be written \(.*not a directory"):
            files.check_writable(target)
    assert names(tmp_path) == ["file"]


def test_check_writable_leaves_no_trace(tmp_path):
    files.check_writable(tmp_path / "a" / "b")
    files.check_writable(tmp_path)
    assert names(tmp_path) == []


def test_readable_file_names_what_is_wrong(tmp_path):
    file = tmp_path / "cells.csv"
    with pytest.raises(InputError, match=r"cells\.csv: cannot be read \(no such file or directory\)"):
        files.readable_file(file)
    with pytest.raises(InputError, match=r"cannot be read \(is a directory\)"):
        files.readable_file(tmp_path)
    file.write_text("x")
    assert files.readable_file(str(file)) == file


def test_files_follow_the_umask(tmp_path):
    code = (
        "import os; os.umask(0o022); from rooffloor.validate.common import files\n"
        "with files.folder('out') as folder: files.write_text(folder / 'a.md', 'x')\n"
        "print(oct(os.stat('out').st_mode & 0o777), oct(os.stat('out/a.md').st_mode & 0o777))"
    )
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0o755", "0o644"]


# ---- what killed processes leave ---------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from rooffloor.validate.common import files
moved, replace = 0, Path.replace
def dying(self, target):
    global moved
    if Path(target).parent == Path("out").absolute():
        if moved == {after}:
            os.kill(os.getpid(), signal.SIGKILL)
        moved += 1
    return replace(self, target)
with files.folder("out") as folder:
    for n in range(4):
        files.write_text(folder / f"{{n}}.md", "new")
    if {after} < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    Path.replace = dying
"""


def killed(folder: Path, after: int) -> None:
    """Writing four files into `folder`/out ends by SIGKILL after so many have moved; before any where negative."""
    code = KILLED.format(root=str(Path(__file__).resolve().parents[3] / "src"), after=after)
    assert subprocess.run([sys.executable, "-c", code], cwd=folder).returncode == -9


@pytest.mark.parametrize("after", [0, 1, 3])
def test_the_next_run_finishes_the_moves_of_a_killed_one(tmp_path, after):
    out = tmp_path / "out"
    for n in range(4):
        files.write_text(out / f"{n}.md", "old")
    killed(tmp_path, after)
    assert sum(file.read_text() == "new" for file in out.glob("*.md")) == after
    files.check_writable(out)
    assert {file.name: file.read_text() for file in out.iterdir()} == {f"{n}.md": "new" for n in range(4)}


def test_a_folder_that_was_not_there_appears_as_a_whole(tmp_path, monkeypatch):
    def refuse(self, target):
        raise AssertionError("no file moves on its own")

    with files.folder(tmp_path / "out") as folder:
        files.write_text(folder / "a" / "b.md", "x")
        monkeypatch.setattr(Path, "replace", refuse)
    assert names(tmp_path) == ["out", "out/a", "out/a/b.md"]


def test_folders_that_killed_runs_left_are_removed_once_they_are_stale(tmp_path, monkeypatch):
    out = tmp_path / "out"
    files.write_text(out / "0.md", "old")
    killed(tmp_path, -1)
    [left] = out.glob(".rooffloor-*")
    files.check_writable(out)
    assert left.exists()  # it may be one that is just being made
    monkeypatch.setattr(files, "STALE_S", 0.0)
    with files.folder(out):
        files.check_writable(out)  # another run in the same folder: what is held stays
        assert len(list(out.glob(".rooffloor-*"))) == 1
    assert names(out) == ["0.md"]
    assert (out / "0.md").read_text() == "old"


def test_temporary_files_that_killed_runs_left_are_removed_after_an_hour(tmp_path):
    old, young = tmp_path / ".rooffloor-1-a.tmp", tmp_path / ".rooffloor-1-b.tmp"
    for file in (old, young):
        file.write_text("half")
    os.utime(old, (0, 0))
    files.check_writable(tmp_path)
    assert names(tmp_path) == [young.name]


@pytest.mark.parametrize("name", ["x" * 255, "長" * 85, "x" * 256])
def test_long_names_are_written_or_refused_in_one_line(tmp_path, name):
    if len(name) < 256:
        files.check_writable_file(tmp_path / name)
        files.write_text(tmp_path / name, "x")
        assert names(tmp_path) == [name]
        return
    for write in (files.check_writable_file, lambda path: files.write_text(path, "x")):
        with pytest.raises(InputError, match=r"cannot be written \(file name too long\)"):
            write(tmp_path / name)
    assert names(tmp_path) == []


def test_what_is_not_ours_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "STALE_S", 0.0)
    elsewhere = tmp_path / "elsewhere"
    files.write_text(elsewhere / "mine.txt", "mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / ".rooffloor-finished-link").symlink_to(elsewhere)
    (out / ".rooffloor-notes").write_text("a file")
    files.check_writable(out)
    assert names(out) == [".rooffloor-finished-link", ".rooffloor-notes"]
    assert names(elsewhere) == ["mine.txt"]


def test_two_writers_of_one_file_have_temporary_files_of_their_own(tmp_path, monkeypatch):
    seen = []
    write = Path.write_bytes

    def nested(self, content):
        seen.append(self.name)
        if len(seen) == 1:
            files.write_text(tmp_path / "a.npz", "inner")
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", nested)
    files.write_text(tmp_path / "a.npz", "outer")
    assert len(set(seen)) == 2
    assert (tmp_path / "a.npz").read_text() == "outer"
    assert names(tmp_path) == ["a.npz"]


def test_a_single_file_that_cannot_be_written_is_said_beforehand(tmp_path):
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "folder", Path("/"), Path(".")):
        with pytest.raises(InputError, match=r"cannot be written \(is a directory\)"):
            files.check_writable_file(target)
    files.check_writable_file(tmp_path / "new" / "a.csv")
    assert names(tmp_path) == ["folder"]
