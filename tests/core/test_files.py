"""Files on disk: whole or not there, durable, private where they must be; one process at a time in a folder."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from dagc import files
from dagc.errors import CheckpointError
from dagc.files import failure, locked, make_folder, remove_partial, write_atomically

posix = pytest.mark.skipif(os.name != "posix", reason="modes and signals of POSIX")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def _failing():
    yield b"second"
    raise ValueError("half-way")


def test_a_file_is_replaced_only_when_the_block_ends_well(tmp_path):
    path = tmp_path / "new" / "below" / "file"
    with write_atomically(path) as file:
        file.write(b"first")
        assert not path.exists()
    with pytest.raises(ValueError, match="half-way"), write_atomically(path) as file:
        file.writelines(_failing())
    assert path.read_bytes() == b"first"
    with write_atomically(str(path)) as file:
        file.write(b"third")
        assert path.read_bytes() == b"first"
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == b"third"


@posix
def test_the_content_is_on_disk_before_the_name_and_the_name_before_it_returns(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, files.Path.replace

    def kind(handle):
        return "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"

    def seen_fsync(handle):
        events.append((kind(handle), os.fstat(handle).st_ino, os.fstat(handle).st_size))
        fsync(handle)

    def seen_replace(path, target):
        events.append("renamed")
        return replace(path, target)

    monkeypatch.setattr(files.os, "fsync", seen_fsync)
    monkeypatch.setattr(files.Path, "replace", seen_replace)
    with write_atomically(tmp_path / "new" / "file") as file:
        file.write(b"content")
    made, synced, renamed, named = events
    assert made[:2] == ("folder", tmp_path.stat().st_ino)
    assert synced == ("file", (tmp_path / "new" / "file").stat().st_ino, 7)
    assert renamed == "renamed"
    assert named[:2] == ("folder", (tmp_path / "new").stat().st_ino)


@posix
def test_private_files_and_the_folders_made_for_them_are_for_the_user_alone(tmp_path):
    open_before = mode(tmp_path)
    private, shared = tmp_path / "a" / "b" / "private", tmp_path / "c" / "shared"
    mask = os.umask(0o022)
    try:
        for path in (private, shared):
            with write_atomically(path, private=path is private):
                pass
        with write_atomically(tmp_path / "c" / "private", private=True):
            pass
    finally:
        os.umask(mask)
    assert (mode(private), mode(private.parent), mode(private.parent.parent)) == (0o600, 0o700, 0o700)
    assert (mode(shared), mode(shared.parent)) == (0o644, 0o755)
    assert mode(tmp_path / "c" / "private") == 0o600
    assert mode(tmp_path) == open_before


def test_a_file_where_a_folder_should_be_is_an_error_of_the_disk(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file" / "below")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")
    make_folder(tmp_path)


KILLED = """
import os, signal, sys
from dagc.files import write_atomically
with write_atomically(sys.argv[1]) as file:
    file.write(bytes(1 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@posix
def test_what_a_killed_process_was_writing_can_be_removed(tmp_path):
    path = tmp_path / "file[1]"
    path.write_bytes(b"before")
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = (each for each in tmp_path.iterdir() if each != path)
    others = [tmp_path / ".file1.0123abcd.partial", tmp_path / "file.0123abcd.partial", tmp_path / ".mine"]
    for other in others:
        other.write_bytes(b"")
    remove_partial(tmp_path, "other")
    assert left.exists()
    remove_partial(tmp_path, path.name)
    assert not left.exists()
    assert path.read_bytes() == b"before"
    assert all(other.exists() for other in others)
    remove_partial(tmp_path)
    assert [other.exists() for other in others] == [False, True, True]
    remove_partial(tmp_path / "nowhere")


HOLDING = """
import sys
from dagc.files import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLDING, tmp_path / "run" / "lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


def test_another_process_is_kept_out_until_the_lock_is_released(tmp_path, holder):
    with pytest.raises(CheckpointError, match=r"another process is working in .*run: wait for it"):
        locked(tmp_path / "run" / "lock").__enter__()
    began = time.monotonic()
    with pytest.raises(CheckpointError), locked(tmp_path / "run" / "lock", patience=0.5):
        pass
    assert time.monotonic() - began >= 0.5
    threading.Timer(0.5, holder.stdin.close).start()
    with locked(tmp_path / "run" / "lock", patience=600):
        holder.wait(600)


def test_a_killed_process_does_not_keep_its_lock(tmp_path, holder):
    holder.kill()
    holder.wait()
    with locked(tmp_path / "run" / "lock"):
        pass


def test_one_process_does_not_lock_twice_and_may_release_on_another_thread(tmp_path):
    lock = locked(tmp_path / "lock")
    lock.__enter__()
    for patience in (0, 0.3):
        with pytest.raises(CheckpointError), locked(tmp_path / "lock", patience):
            pass
    thread = threading.Thread(target=lock.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with locked(tmp_path / "lock"):
        pass


def test_a_full_disk_is_said_so():
    assert failure(OSError(errno.EDQUOT, "Disk quota exceeded")) == "the disk is full: free some space"
    assert "Permission denied" in failure(PermissionError(errno.EACCES, "Permission denied"))
