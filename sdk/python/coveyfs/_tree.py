"""A published tree behind ``CoveyFileSystem``: read-only, in this process."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from ._coveyfs import File, Tree

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_ONLY = "rb"
# What a file object reads ahead. Covey itself prefetches streams, so this only saves calls.
BLOCK = 256 << 10
# How much is copied to a local file at a time.
COPY = 8 << 20

Range = tuple[str, int, int | None]


class TreeFile(io.BufferedIOBase):
    """A file of a tree: seekable, and buffered by a block."""

    def __init__(self, fs: Any, path: str, block_size: int = BLOCK) -> None:
        self.fs, self.path, self.blocksize = fs, path, block_size
        self.details = fs.info(path)
        if self.details["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.size: int = self.details["size"]
        self._native = File(fs.native, path, self.size, block_size)
        # These are native methods, and not methods of this class, which would run Python code: another thread
        # could come in between a seek and its read.
        for name in ("read", "read1", "readline", "peek", "seek", "tell"):
            setattr(self, name, getattr(self._native, name))

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Reads into a writable buffer. Returns how many bytes."""
        return self._native.readinto(memoryview(buffer).cast("B"))

    def readinto1(self, buffer: Buffer) -> int:
        """The same."""
        return self.readinto(buffer)

    def close(self) -> None:
        """Closes it. The tree stays open."""
        if "_native" in self.__dict__:
            self._native.close()
        super().close()

    def __del__(self) -> None:
        """Closes nothing. A native method may be in use without this object, as in ``fs.open(path).read()``."""

    @property
    def mode(self) -> str:
        """How it was opened."""
        return READ_ONLY

    @property
    def full_name(self) -> str:
        """Its URL."""
        return f"covey://{self.path.lstrip('/')}"

    def __reduce__(self) -> Any:
        return _reopen, (self.fs, self.path, self.blocksize, self.tell())


def _reopen(fs: Any, path: str, block_size: int, at: int) -> TreeFile:
    file = TreeFile(fs, path, block_size)
    file.seek(at)
    return file


class TreeBackend:
    """The operations of ``CoveyFileSystem`` on a tree."""

    def __init__(self, tree: Tree) -> None:
        self.native = tree

    def info(self, path: str) -> dict[str, Any]:
        return self.native.info(path)

    def ls(self, path: str) -> list[dict[str, Any]]:
        return self.native.ls(path)

    def read(self, path: str, start: int, end: int | None) -> bytes:
        return self.native.read(path, start, None if end is None else max(0, end - start))

    def read_ranges(self, ranges: Sequence[Range]) -> list[bytes | OSError]:
        return self.native.read_ranges(ranges)

    def open(self, fs: Any, path: str, mode: str, block_size: int | None, autocommit: bool) -> TreeFile:
        if mode != READ_ONLY:
            self.refuse(path)
        return TreeFile(fs, path, block_size or BLOCK)

    def get(self, path: str, file: BinaryIO, callback: Any) -> None:
        size = self.info(path)["size"]
        callback.set_size(size)
        for at in range(0, size, COPY):
            callback.relative_update(file.write(self.native.read(path, at, COPY)))

    def refuse(self, path: str) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
