"""Atomic file writes, locks, signals, and helpers of the argument checks."""

import errno
import os
import resource
import signal

import pytest
import torch

import elflow
from elflow import _files
from elflow._checks import check_rows, is_under_transform, join_names
from elflow._files import locking, remove_temporaries, replacing
from elflow._interrupts import Interrupted, deferring_interrupts, raising_interrupts


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


def test_temporary_files_of_killed_processes_are_removed(tmp_path):
    path = tmp_path / "file.txt"
    abandoned, other = tmp_path / ".file.txt.01234567.tmp", tmp_path / ".other.txt.01234567.tmp"
    for folder in (abandoned, other):
        folder.mkdir()
        (folder / "file.txt").write_text("half")
    with replacing(path) as first:
        first.write_text("first")
        assert not abandoned.exists()
        with replacing(path) as second:  # the folder of a writer at work stays
            second.write_text("second")
        assert first.exists()
    assert path.read_text() == "first"
    assert sorted(os.listdir(tmp_path)) == [other.name, "file.txt"]


def test_an_interrupt_in_the_cleanup_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(_files.shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "file.txt"):
        raise OSError("first")
    assert os.listdir(tmp_path)
    remove_temporaries()
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_is_reported_with_the_real_path(tmp_path, number):
    with (
        pytest.raises(OSError, match=os.strerror(number)) as error,
        replacing(tmp_path / "file.txt") as temporary,
    ):
        raise OSError(number, os.strerror(number), str(temporary))
    assert error.value.filename == str(tmp_path / "file.txt")


def test_a_full_disk_while_a_model_is_written(tmp_path, file_limit):
    path = tmp_path / "model.elf"
    elflow.save(elflow.ELF(1, transforms=1, units=2), path)
    before = path.read_bytes()
    file_limit(4096)
    with pytest.raises(OSError, match="File too large") as error:
        elflow.save(elflow.ELF(3), path)
    file_limit(-1)
    assert error.value.filename == str(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.elf"]


@pytest.fixture
def file_limit():
    """Limit the size of the files of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_has_one_writer(tmp_path):
    path = tmp_path / "model.elf"
    with locking(path):
        with pytest.raises(ValueError, match=r"model\.elf must have one writer, got a second one"), locking(path):
            pass
        with locking(tmp_path / "other.elf"):
            pass
    assert not os.listdir(tmp_path)


def test_a_lock_does_not_outlive_its_process(tmp_path):
    path = tmp_path / "model.elf"
    ready, done = os.pipe()
    if not (pid := os.fork()):
        with locking(path):
            os.write(done, b"x")
            signal.pause()
    os.read(ready, 1)
    with pytest.raises(ValueError, match="must have one writer"), locking(path):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert os.listdir(tmp_path) == [".model.elf.lock"]
    with locking(path):
        pass
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_are_exceptions_that_can_be_deferred(number):
    before, steps = signal.getsignal(number), []
    signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    with pytest.raises(Interrupted, match=number.name), raising_interrupts():
        signal.raise_signal(number)
    with pytest.raises(Interrupted):
        count_steps(number, steps)
    assert steps == [0, 1, 2]
    with pytest.raises(Interrupted):
        send_twice(number)
    signal.signal(number, before)


def count_steps(number, steps):
    with raising_interrupts(), deferring_interrupts() as check_interrupt:
        for step in range(5):
            check_interrupt()
            steps.append(step)
            if step == 2:
                signal.raise_signal(number)


def send_twice(number):
    with raising_interrupts(), deferring_interrupts():
        signal.raise_signal(number)
        signal.raise_signal(number)  # the second one is not deferred
        pytest.fail("unreachable")


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with raising_interrupts():
        signal.raise_signal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, before)
