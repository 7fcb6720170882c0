"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuload.outputs import AtomicFile, write_all


@pytest.fixture
def umask():
    """Set the umask to 027 for a test."""
    old = os.umask(0o027)
    yield
    os.umask(old)


@pytest.fixture
def read_only(tmp_path):
    """Return a directory that this user may not write to."""
    directory = tmp_path / "locked"
    directory.mkdir(mode=0o555)
    if os.access(directory, os.W_OK):
        pytest.skip("this user may write to every directory")
    yield directory
    directory.chmod(0o755)


def save(path, data, **options):
    with AtomicFile(path, **options) as file:
        os.write(file.fd, data)
        file.commit()


def save_half(path, error):
    with AtomicFile(path) as file:
        os.write(file.fd, b"half")
        raise error


def save_after(path, action, **options):
    """Save a file, with something happening to its directory right before the commit."""
    with AtomicFile(path, **options) as file:
        os.write(file.fd, b"content")
        action()
        file.commit()


def unlink_first(directory):
    next(directory.iterdir()).unlink()


def open_descriptors():
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("open descriptors cannot be listed here")
    return len(os.listdir(descriptors))


class TestCommit:
    def test_the_name_appears_at_commit(self, tmp_path):
        target = tmp_path / "file"
        with AtomicFile(target) as file:
            os.write(file.fd, b"content")
            assert not target.exists()
            file.commit()
            assert target.read_bytes() == b"content"
        assert os.listdir(tmp_path) == ["file"]

    def test_positional_reads_and_writes(self, tmp_path):
        with AtomicFile(tmp_path / "file") as file:
            assert file.regular
            os.pwrite(file.fd, b"world", 5)
            os.pwrite(file.fd, b"hello", 0)
            assert os.pread(file.fd, 10, 0) == b"helloworld"
            file.commit()
        assert (tmp_path / "file").read_bytes() == b"helloworld"

    def test_it_replaces_an_older_file(self, tmp_path):
        target = tmp_path / "file"
        target.write_bytes(b"a longer old content")
        save(target, b"new")
        assert target.read_bytes() == b"new"
        assert os.listdir(tmp_path) == ["file"]

    @pytest.mark.parametrize("kind", [str, os.fsencode, Path])
    def test_kinds_of_paths(self, tmp_path, kind):
        save(kind(tmp_path / "file"), b"content")
        assert (tmp_path / "file").read_bytes() == b"content"

    def test_twice(self, tmp_path):
        with AtomicFile(tmp_path / "file") as file:
            file.commit()
            with pytest.raises(OSError, match="Bad file descriptor"):
                file.commit()
        assert file.fd == -1

    def test_not_entered(self, tmp_path):
        with pytest.raises(OSError, match="Bad file descriptor"):
            AtomicFile(tmp_path / "file").commit()

    def test_a_relative_path_survives_chdir(self, tmp_path, monkeypatch):
        other = tmp_path / "other"
        other.mkdir()
        monkeypatch.chdir(tmp_path)
        with AtomicFile("file") as file:
            monkeypatch.chdir(other)
            file.commit()
        assert sorted(os.listdir(tmp_path)) == ["file", "other"]


class TestAbort:
    def test_leaving_without_commit(self, tmp_path):
        with AtomicFile(tmp_path / "file") as file:
            os.write(file.fd, b"half")
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
    def test_an_error_keeps_the_old_file(self, tmp_path, error):
        target = tmp_path / "file"
        target.write_bytes(b"old")
        with pytest.raises(error):
            save_half(target, error)
        assert target.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]

    def test_an_interrupt_right_after_the_file_was_created(self, tmp_path, monkeypatch):
        real = os.open

        def interrupted(*arguments, **options):
            os.close(real(*arguments, **options))
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "open", interrupted)
        with pytest.raises(KeyboardInterrupt), AtomicFile(tmp_path / "file"):
            pass
        assert os.listdir(tmp_path) == []

    def test_a_file_that_was_never_left(self, tmp_path):
        file = AtomicFile(tmp_path / "file").__enter__()
        assert len(os.listdir(tmp_path)) == 1
        del file
        assert os.listdir(tmp_path) == []

    def test_a_failing_rename(self, tmp_path):
        target = tmp_path / "file"
        with pytest.raises(IsADirectoryError):
            save_after(target, target.mkdir)
        assert os.listdir(tmp_path) == ["file"]

    def test_a_temporary_file_that_somebody_removed(self, tmp_path):
        with AtomicFile(tmp_path / "file"):
            unlink_first(tmp_path)
        with pytest.raises(FileNotFoundError):
            save_after(tmp_path / "file", lambda: unlink_first(tmp_path))
        assert os.listdir(tmp_path) == []

    def test_no_descriptor_is_left(self, tmp_path):
        before = open_descriptors()
        save(tmp_path / "file", b"content")
        with AtomicFile(tmp_path / "file"):
            pass
        with contextlib.suppress(OSError), AtomicFile(tmp_path / "missing" / "file"):
            pass
        with contextlib.suppress(OSError), AtomicFile(tmp_path / "file", overwrite=False):
            pass
        save("/dev/null", b"content")
        assert open_descriptors() == before

    def test_ctrl_c_in_another_process(self, tmp_path):
        script = (
            "import sys, time; from gpuload.outputs import AtomicFile\n"
            "with AtomicFile(sys.argv[1]) as file:\n"
            "    print('ready', flush=True); time.sleep(60)\n"
        )
        target = tmp_path / "file"
        with subprocess.Popen(
            [sys.executable, "-c", script, str(target)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout.readline() == b"ready\n"
            assert len(os.listdir(tmp_path)) == 1
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        assert os.listdir(tmp_path) == []


class TestWithoutOverwriting:
    def test_an_existing_file_is_refused_at_once(self, tmp_path):
        target = tmp_path / "file"
        target.write_bytes(b"old")
        with pytest.raises(FileExistsError, match="file"), AtomicFile(target, overwrite=False):
            pass
        assert os.listdir(tmp_path) == ["file"]

    def test_a_new_file(self, tmp_path):
        save(tmp_path / "file", b"content", overwrite=False)
        assert (tmp_path / "file").read_bytes() == b"content"
        assert os.listdir(tmp_path) == ["file"]

    def test_a_file_that_appears_meanwhile_is_kept(self, tmp_path):
        target = tmp_path / "file"
        with pytest.raises(FileExistsError):
            save_after(target, lambda: target.write_bytes(b"faster"), overwrite=False)
        assert target.read_bytes() == b"faster"
        assert os.listdir(tmp_path) == ["file"]

    def test_the_null_device_may_be_written(self):
        save("/dev/null", b"content", overwrite=False)


class TestWithoutHardLinks:
    @pytest.fixture(autouse=True)
    def _no_links(self, monkeypatch):
        def refuse(*arguments, **options):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refuse)

    def test_a_new_file(self, tmp_path):
        save(tmp_path / "file", b"content", overwrite=False)
        assert (tmp_path / "file").read_bytes() == b"content"
        assert os.listdir(tmp_path) == ["file"]

    def test_a_file_that_appears_meanwhile_is_kept(self, tmp_path):
        target = tmp_path / "file"
        with pytest.raises(FileExistsError):
            save_after(target, lambda: target.write_bytes(b"faster"), overwrite=False)
        assert target.read_bytes() == b"faster"
        assert os.listdir(tmp_path) == ["file"]

    def test_a_failing_rename_leaves_nothing(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            save_after(tmp_path / "file", lambda: unlink_first(tmp_path), overwrite=False)
        assert os.listdir(tmp_path) == []


def test_other_errors_of_link_are_passed_on(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "file", b"content", overwrite=False)
    assert os.listdir(tmp_path) == []


class TestRefusals:
    def test_missing_directory(self, tmp_path):
        target = tmp_path / "missing" / "file"
        with pytest.raises(FileNotFoundError) as caught, AtomicFile(target):
            pass
        assert caught.value.filename == str(target)

    @pytest.mark.parametrize("name", ["", "new/", "new/.", "missing/.."])
    def test_no_name_of_a_file(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        expected = IsADirectoryError if name else FileNotFoundError
        with pytest.raises(expected), AtomicFile(name):
            pass
        assert os.listdir(tmp_path) == []

    def test_directory(self, tmp_path):
        with pytest.raises(IsADirectoryError, match=tmp_path.name), AtomicFile(tmp_path):
            pass

    def test_link_to_a_directory(self, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path)
        with pytest.raises(IsADirectoryError), AtomicFile(tmp_path / "link"):
            pass

    def test_below_a_file(self, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(NotADirectoryError), AtomicFile(tmp_path / "file" / "below"):
            pass

    def test_read_only_directory(self, read_only):
        with pytest.raises(PermissionError) as caught, AtomicFile(read_only / "file"):
            pass
        assert caught.value.filename == str(read_only / "file")

    def test_a_name_that_is_too_long(self, tmp_path):
        with pytest.raises(OSError, match="File name too long"), AtomicFile(tmp_path / ("x" * 256)):
            pass

    def test_a_circle_of_links(self, tmp_path):
        (tmp_path / "a").symlink_to(tmp_path / "b")
        (tmp_path / "b").symlink_to(tmp_path / "a")
        with pytest.raises(OSError, match="symbolic links"), AtomicFile(tmp_path / "a"):
            pass

    def test_no_path_at_all(self):
        with pytest.raises(TypeError):
            AtomicFile(5)


class TestTemporaryName:
    @pytest.mark.parametrize(
        "name", ["x", "a" * 255, "é" * 127, "x" + "é" * 127, "\N{GRINNING FACE}" * 63]
    )
    def test_it_is_hidden_short_and_tells_the_target(self, tmp_path, name):
        with AtomicFile(tmp_path / name) as file:
            (temporary,) = os.listdir(tmp_path)
            file.commit()
        assert temporary.startswith(f".{name[:16]}")
        assert temporary.endswith(".tmp")
        assert len(os.fsencode(temporary)) < 100
        assert os.listdir(tmp_path) == [name]

    def test_a_name_that_is_no_text(self, tmp_path):
        name = b"\xff\xfe" * 100
        save(os.fsencode(tmp_path) + b"/" + name, b"content")
        assert os.listdir(os.fsencode(tmp_path)) == [name]

    def test_two_writers_do_not_meet(self, tmp_path):
        with AtomicFile(tmp_path / "file") as first, AtomicFile(tmp_path / "file") as second:
            os.write(first.fd, b"first")
            os.write(second.fd, b"second")
            first.commit()
            second.commit()
        assert (tmp_path / "file").read_bytes() == b"second"


class TestPermissions:
    @pytest.mark.usefixtures("umask")
    def test_a_new_file_follows_the_umask(self, tmp_path):
        save(tmp_path / "file", b"content")
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640

    @pytest.mark.usefixtures("umask")
    @pytest.mark.parametrize("bits", [0o600, 0o666, 0o755])
    def test_a_replaced_file_keeps_its_bits(self, tmp_path, bits):
        target = tmp_path / "file"
        target.write_bytes(b"old")
        target.chmod(bits)
        with AtomicFile(target) as file:
            assert stat.S_IMODE(os.fstat(file.fd).st_mode) == bits
            file.commit()
        assert stat.S_IMODE(target.stat().st_mode) == bits

    def test_children_do_not_inherit_the_descriptor(self, tmp_path):
        with AtomicFile(tmp_path / "file") as file:
            assert not os.get_inheritable(file.fd)


class TestLinks:
    def test_a_link_stays_and_its_target_is_replaced(self, tmp_path):
        (tmp_path / "there").mkdir()
        target, link = tmp_path / "there" / "file", tmp_path / "link"
        target.write_bytes(b"old")
        link.symlink_to(target)
        save(link, b"new")
        assert link.is_symlink()
        assert target.read_bytes() == b"new"
        assert os.listdir(tmp_path / "there") == ["file"]

    @pytest.mark.parametrize("overwrite", [True, False])
    def test_a_dangling_link_gets_its_target(self, tmp_path, overwrite):
        link = tmp_path / "link"
        link.symlink_to("file")
        save(link, b"new", overwrite=overwrite)
        assert link.is_symlink()
        assert (tmp_path / "file").read_bytes() == b"new"


class TestSpecialFiles:
    def test_null_device(self):
        with AtomicFile("/dev/null") as file:
            assert not file.regular
            assert os.write(file.fd, b"content") == 7
            file.commit()
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)

    def test_fifo(self, tmp_path):
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        received = []
        reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
        reader.start()
        save(fifo, b"content")
        reader.join()
        assert received == [b"content"]
        assert stat.S_ISFIFO(fifo.stat().st_mode)
        assert os.listdir(tmp_path) == ["fifo"]

    def test_a_pipe_by_its_descriptor(self):
        if not Path("/proc/self/fd").exists():
            pytest.skip("descriptors have no names here")
        read_end, write_end = os.pipe()
        with open(read_end, "rb") as pipe:
            save(f"/proc/self/fd/{write_end}", b"content")
            os.close(write_end)
            assert pipe.read() == b"content"

    def test_a_file_without_a_name(self):
        if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").exists():
            pytest.skip("there are no files without a name here")
        with open(os.memfd_create("name"), "r+b", buffering=0) as memory:
            memory.write(b"a longer old content")
            save(f"/proc/self/fd/{memory.fileno()}", b"content")
            memory.seek(0)
            assert memory.read() == b"content"


class TestWriteAll:
    @pytest.mark.parametrize("step", [1, 3, 10, 100])
    def test_short_writes_go_on(self, step):
        taken = bytearray()

        def write(view):
            taken.extend(view[:step])
            return min(step, len(view))

        write_all(write, b"ten bytes!")
        assert taken == b"ten bytes!"

    def test_none_means_all(self):
        taken = []
        write_all(lambda view: taken.append(bytes(view)), b"content")
        assert taken == [b"content"]

    def test_nothing_to_write(self):
        write_all(lambda view: pytest.fail("was called"), b"")

    def test_a_file_that_takes_nothing(self):
        with pytest.raises(OSError, match="took none of 7 bytes"):
            write_all(lambda view: 0, b"content")
