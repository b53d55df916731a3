"""A mounted volume behind ``CoveyFileSystem``: reads and writes through the mount.

A file that is written as a whole appears at once. Its bytes go to a file without a name (``O_TMPFILE``),
which gets its name when it is complete and on the disk. A program that is killed before that leaves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
import stat
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, BinaryIO, NoReturn

from fsspec.core import OpenFile

Range = tuple[str, int, int | None]

# Threads that read many ranges.
THREADS = 16
# A copy inside the volume is by reference, however long it is.
COPY = 1 << 30
MODES = {"r", "w", "x", "a"}


# The numbers of an error that says that nothing is at a path.
ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def is_absent(error: OSError) -> bool:
    """Whether an error says that there is nothing at a path. Others say nothing about that."""
    return error.errno in ABSENT or isinstance(error, (FileNotFoundError, NotADirectoryError))


def _stat(path: str, follow: bool = True) -> os.stat_result | None:
    """The attributes of a path. None only if there is nothing: ``os.path.exists`` hides other errors."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except OSError as error:
        if is_absent(error):
            return None
        raise


def _is_folder(path: str) -> bool:
    found = _stat(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


class AtomicFile(io.BufferedWriter):
    """A new file, which appears under its name when it is closed, and as a whole."""

    MODES = ("wb", "xb")

    def __init__(self, path: str, *, exclusive: bool, autocommit: bool = True, sync: bool = True) -> None:
        # A link stays a link: what it leads to is replaced.
        self._target = os.path.realpath(path)
        self._exclusive, self._autocommit, self._sync = exclusive, autocommit, sync
        self._folder = os.path.dirname(self._target)
        self._temporary: str | None = None
        self._held: int | None = None
        old = _stat(self._target)
        if old is not None and stat.S_ISDIR(old.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if exclusive and _stat(path, follow=False) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        try:
            fd = os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise type(error)(error.errno, error.strerror, path) from None
            self._temporary = self._hidden()
            fd = os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        self.path = path
        if old is not None:
            # A file that is replaced passes its permissions on.
            os.fchmod(fd, stat.S_IMODE(old.st_mode))
        super().__init__(io.FileIO(fd, "wb"), 1 << 20)

    def _hidden(self) -> str:
        name = os.path.basename(self._target)[:80]
        return os.path.join(self._folder, f".{name}.{secrets.token_hex(8)}.covey")

    def commit(self) -> None:
        """Gives a closed file of a transaction its name."""
        if self._held is not None:
            fd, self._held = self._held, None
            try:
                self._name(fd)
            finally:
                os.close(fd)

    def discard(self) -> None:
        """Leaves no trace of the file."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
        try:
            if not self.closed:
                # Without a flush of what the buffer still has.
                self.raw.close()
        finally:
            if self._temporary is not None:
                temporary, self._temporary = self._temporary, None
                os.unlink(temporary)

    def close(self) -> None:
        """Writes what is left, and gives the file its name."""
        if self.closed:
            return
        if self._is_of_failed_block():
            self.discard()
            return
        try:
            self.flush()
            if self._autocommit:
                self._name(self.fileno())
            else:
                self._held = os.dup(self.fileno())
        except BaseException:
            self.discard()
            raise
        super().close()

    def _name(self, fd: int) -> None:
        if self._sync:
            os.fsync(fd)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self._temporary is None:
                self._link(fd, folder)
            elif self._exclusive:
                os.link(self._temporary, self._target)
                os.unlink(self._temporary)
            else:
                os.replace(self._temporary, self._target)
            self._temporary = None
            if self._sync:
                os.fsync(folder)
        finally:
            os.close(folder)

    def _link(self, fd: int, folder: int) -> None:
        # The descriptor of a folder makes Python call linkat(2), which follows the link in /proc.
        source = f"/proc/self/fd/{fd}"
        try:
            os.link(source, self._target, src_dir_fd=folder)
        except FileExistsError:
            if self._exclusive:
                raise
            hidden = self._hidden()
            os.link(source, hidden, src_dir_fd=folder)
            try:
                os.replace(hidden, self._target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(hidden)
                raise

    def _is_of_failed_block(self) -> bool:
        """Whether this is closed because the ``with`` block of its ``fsspec.open`` failed.

        ``OpenFile`` closes its files without saying so. That an exception is being handled would prove
        nothing: a program may close a file in an ``except`` block. So the callers are looked at.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is OpenFile.__exit__.__code__:
                known = frame.f_locals
                if any(file is self for file in getattr(known.get("self"), "fobjects", ())):
                    return any(one is not None for one in known.get("args", ()))
            frame = frame.f_back
        return False

    @property
    def closed(self) -> bool:
        """Whether it was closed or discarded."""
        try:
            return super().closed
        except ValueError:
            return True

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"{self.path} was not closed, and is not written", ResourceWarning, stacklevel=2)
            self.discard()


class MountBackend:
    """The operations of ``CoveyFileSystem`` on a mounted volume."""

    native = None

    def __init__(self, mount: str, auto_mkdir: bool, sync: bool) -> None:
        self.mount = os.path.abspath(mount)
        self.auto_mkdir, self.sync = auto_mkdir, sync
        if not _is_folder(self.mount):
            raise FileNotFoundError(errno.ENOENT, "there is no such mount", self.mount)

    def real(self, path: str) -> str:
        """The path of the system."""
        return os.path.join(self.mount, path.lstrip("/"))

    def info(self, path: str) -> dict[str, Any]:
        with _named(path):
            return _describe(path, self.real(path), os.lstat(self.real(path)))

    def ls(self, path: str) -> list[dict[str, Any]]:
        with _named(path):
            if not _is_folder(self.real(path)):
                return [self.info(path)]
            with os.scandir(self.real(path)) as entries:
                found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        folder = path.rstrip("/")
        return [_describe(f"{folder}/{name}", self.real(f"{folder}/{name}"), own) for name, own in found]

    def read(self, path: str, start: int, end: int | None) -> bytes:
        with _named(path), open(self.real(path), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            until = size if end is None else min(end, size)
            parts = []
            while start < until:
                part = os.pread(file.fileno(), until - start, start)
                if not part:
                    break
                parts.append(part)
                start += len(part)
            return b"".join(parts)

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes | OSError]:
        def one(wanted: Range) -> bytes | OSError:
            try:
                return self.read(*wanted)
            except OSError as error:
                return error

        if len(ranges) < 2:
            return [one(wanted) for wanted in ranges]
        with ThreadPoolExecutor(min(THREADS, len(ranges))) as pool:
            return list(pool.map(one, ranges))

    def open(self, fs: Any, path: str, mode: str, block_size: int | None, autocommit: bool) -> Any:
        with _named(path):
            if mode[0] not in MODES:
                raise ValueError(f"invalid mode: {mode}")
            if mode[0] != "r":
                self._parents(path)
            if mode in AtomicFile.MODES:
                return self._new(path, exclusive=mode == "xb", autocommit=autocommit)
            if block_size:
                return open(self.real(path), mode, buffering=max(2, block_size))
            return open(self.real(path), mode)

    def _new(self, path: str, *, exclusive: bool = False, autocommit: bool = True) -> AtomicFile:
        return AtomicFile(self.real(path), exclusive=exclusive, autocommit=autocommit, sync=self.sync)

    def _parents(self, path: str) -> None:
        if self.auto_mkdir:
            os.makedirs(os.path.dirname(self.real(path)), exist_ok=True)

    def get(self, path: str, file: BinaryIO, callback: Any) -> None:
        with _named(path), open(self.real(path), "rb") as source:
            callback.set_size(os.fstat(source.fileno()).st_size)
            while part := source.read(8 << 20):
                callback.relative_update(file.write(part))

    def put(self, source: BinaryIO, path: str, exclusive: bool, callback: Any) -> None:
        with _named(path):
            os.makedirs(os.path.dirname(self.real(path)), exist_ok=True)
            with self._new(path, exclusive=exclusive) as file:
                while part := source.read(8 << 20):
                    callback.relative_update(file.write(part))

    def pipe(self, path: str, value: bytes, exclusive: bool) -> None:
        with _named(path):
            self._parents(path)
            with self._new(path, exclusive=exclusive) as file:
                file.write(value)

    def copy(self, source: str, path: str) -> None:
        with _named(source), open(self.real(source), "rb", buffering=0) as old:
            self._parents(path)
            with self._new(path) as new:
                while os.copy_file_range(old.fileno(), new.fileno(), COPY):
                    pass

    def move(self, source: str, path: str) -> None:
        with _named(source):
            self._parents(path)
            target = self.real(path)
            if _is_folder(target):
                target = os.path.join(target, os.path.basename(source))
            os.replace(self.real(source), target)

    def remove(self, path: str, recursive: bool) -> None:
        real = self.real(path)
        with _named(path):
            if stat.S_ISDIR(os.lstat(real).st_mode):
                if not recursive:
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                if path == "/":
                    raise PermissionError(errno.EPERM, "a mount is not removed", path)
                shutil.rmtree(real)
            else:
                os.remove(real)

    def mkdir(self, path: str, parents: bool, exist_ok: bool) -> None:
        with _named(path):
            if parents:
                os.makedirs(self.real(path), exist_ok=exist_ok)
            else:
                os.mkdir(self.real(path))

    def rmdir(self, path: str) -> None:
        with _named(path):
            os.rmdir(self.real(path))

    def touch(self, path: str, truncate: bool) -> None:
        with _named(path):
            self._parents(path)
            if truncate or _stat(self.real(path)) is None:
                self.pipe(path, b"", False)
            else:
                os.utime(self.real(path))


class _named:
    """Errors name the path of the volume, not that of the system."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError) and error.filename is not None:
            error.filename = self.path


def _describe(path: str, real: str, own: os.stat_result) -> dict[str, Any]:
    """The attributes of a path, with the keys of fsspec."""
    is_link = stat.S_ISLNK(own.st_mode)
    shown = own
    if is_link:
        try:
            shown = _stat(real) or own
        except PermissionError:
            # The link is shown. What it leads to is nobody's but its owner's.
            pass
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(shown.st_mode), "other")
    found: dict[str, Any] = {
        "name": path,
        "type": kind,
        "size": 0 if kind == "directory" else shown.st_size,
        "ino": shown.st_ino,
        "mode": shown.st_mode,
        "uid": shown.st_uid,
        "gid": shown.st_gid,
        "nlink": shown.st_nlink,
        "mtime": shown.st_mtime,
        "ctime": shown.st_ctime,
        "created": shown.st_ctime,
        "islink": is_link,
    }
    if is_link:
        found["destination"] = os.readlink(real)
    return found


def no_volume(path: str) -> NoReturn:
    """The error for a volume that no argument names."""
    raise ValueError(f"{path} is on no volume: name a tree= or a mount=, or set COVEY_TREE or COVEY_MOUNT")
