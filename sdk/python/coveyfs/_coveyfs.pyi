"""The native part of coveyfs."""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypedDict

from typing_extensions import Buffer as _Readable

__version__: str

_Path = str | os.PathLike[str]

class Chunk(TypedDict):
    """One MiB of a file that this process read."""

    path: str
    """A path that it was read by."""
    mib: int
    """Which MiB of the file, from 0 on."""
    score: float
    """The number of reads, where older ones count less."""
    reads: int
    bytes: int

class TreeHeat(TypedDict):
    """Bytes by where they were, and the MiB that were read most."""

    names: int
    memory: int
    disk: int
    beside: int
    mapped: int
    peers: int
    depot: int
    origin: int
    chunks: list[Chunk]
    """The hottest first."""
    half_life_s: float
    """A read counts half after so many seconds."""
    known: int
    """How many MiB are remembered."""
    lost: int
    """How many were forgotten, because the table was full."""

class Buffer:
    """Read-only bytes for ``memoryview``, ``numpy.frombuffer`` and the like."""

    @property
    def is_zero_copy(self) -> bool:
        """Whether the bytes are pages of files on this machine's disk, and not a copy."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Tree:
    """A published tree, ``ORIGIN@NAME``, that is open in this process."""

    def __new__(
        cls,
        tree: str,
        *,
        cache_dir: _Path | None = None,
        key: str | None = None,
        accept_older: bool = False,
        endpoint: str | None = None,
        region: str | None = None,
        options: str | None = None,
        join: str | None = None,
        listen: str | None = None,
        secret_file: _Path | None = None,
        zone: str | None = None,
        tls_cert: _Path | None = None,
        tls_key: _Path | None = None,
        tls_ca: _Path | None = None,
        threads: int = 16,
        lazy: bool = False,
        sequence: int = 0,
    ) -> Tree: ...
    @property
    def tree(self) -> str: ...
    @property
    def sequence(self) -> int:
        """Which publication of its name it is. 0 if a copy has not been used yet."""
    @property
    def closed(self) -> bool: ...
    def info(self, path: _Path) -> dict[str, Any]: ...
    def ls(self, path: _Path) -> list[dict[str, Any]]: ...
    def read(self, path: _Path, offset: int = 0, length: int | None = None) -> bytes: ...
    def read_into(self, path: _Path, offset: int, buffer: _Readable) -> int: ...
    def read_ranges(self, ranges: Sequence[tuple[_Path, int, int | None]]) -> list[bytes | OSError]: ...
    def map(
        self, path: _Path, offset: int = 0, length: int | None = None, verify: bool = True
    ) -> Buffer: ...
    def readlink(self, path: _Path) -> str: ...
    def xattr(self, path: _Path, name: str) -> bytes: ...
    def xattrs(self, path: _Path) -> list[str]: ...
    def status(self) -> dict[str, Any]: ...
    def heat(self, top: int = 50) -> TreeHeat: ...
    def close(self) -> None: ...
    def __enter__(self) -> Tree: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class File:
    """A file of a tree with a position. ``TreeFile`` has its methods."""

    def __new__(cls, tree: Tree, path: _Path, size: int, block_size: int) -> File: ...
    def read(self, size: int | None = None, /) -> bytes: ...
    def read1(self, size: int = -1, /) -> bytes: ...
    def readinto(self, buffer: _Readable) -> int: ...
    def readline(self, size: int | None = None, /) -> bytes: ...
    def peek(self, size: int = 0, /) -> bytes: ...
    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...

def status(path: _Path) -> dict[str, Any]: ...
def heat(path: _Path, top: int = 50) -> dict[str, Any]: ...
def _forked() -> None: ...
def _close_all() -> None: ...
