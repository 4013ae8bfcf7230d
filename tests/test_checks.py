"""Atomic file writes, and helpers of the argument checks."""

import os

import pytest
import torch

from elflow._checks import check_rows, is_under_transform, join_names
from elflow._files import replacing


def test_a_failed_write_changes_nothing(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_write_replaces_the_file(tmp_path):
    path, other = tmp_path / "file.txt", tmp_path / "other.txt"
    path.write_text("old")
    other.write_text("")
    with replacing(path) as temporary:
        assert temporary.parent.parent == tmp_path
        assert temporary.suffix == ".txt"
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode == other.stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["file.txt", "other.txt"]


def test_a_writer_may_replace_the_temporary_file(tmp_path):
    with replacing(tmp_path / "file.txt") as temporary:
        (tmp_path / "copy").write_text("new")
        (tmp_path / "copy").replace(temporary)
    assert (tmp_path / "file.txt").read_text() == "new"


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path must be in an existing folder, got .*file\.txt"):
        replacing(tmp_path / "none" / "file.txt").__enter__()


@pytest.mark.parametrize(
    ("count", "expected"), [(0, ""), (1, "'0'"), (3, "'0', '1', '2'"), (4, "'0', '1', '2' and 1 more")]
)
def test_join_names(count, expected):
    assert join_names([str(i) for i in range(count)], most=3) == expected


def test_transforms_are_noticed():
    x, seen = torch.ones(3), []

    def f(x):
        seen.append(is_under_transform())
        check_rows("x", x, 1, "feature")  # there are no values to check
        return x.sum()

    assert not is_under_transform()
    torch.vmap(f)(x[:, None])
    torch.func.grad(f)(x[:1])
    with torch.autograd.forward_ad.dual_level():
        f(x[:1])
    assert seen == [True, True, True]
    assert not is_under_transform()


def test_links_are_followed_and_special_files_refused(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match=r"path must be a regular file, got .*pipe"), replacing(pipe):
        pass
