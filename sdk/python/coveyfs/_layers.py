"""Text and compression over a file that appears as a whole.

The classes of Python and of the codecs close the file below them whatever happened, or not at all. So a
``with`` block that failed would publish half a file. These classes discard it.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

from fsspec.compression import compr
from fsspec.core import get_compression

from ._mount import AtomicFile


class CompressedFile(io.BufferedIOBase):
    """Compresses what is written into a file that appears when this is closed."""

    def __init__(self, file: AtomicFile, codec: Any) -> None:
        self._file, self._codec = file, codec
        self.path = file.path

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Writes bytes. Returns how many."""
        if self.closed:
            raise ValueError("the file is closed")
        return int(self._codec.write(data))

    def flush(self) -> None:
        """Passes on what the codec can give."""
        if not self.closed:
            self._codec.flush()

    def tell(self) -> int:
        """How many bytes were written."""
        return int(self._codec.tell())

    def discard(self) -> None:
        """Leaves no trace of the file."""
        self._file.discard()
        # What the codec still has goes nowhere.
        with contextlib.suppress(Exception):
            self._codec.close()

    def close(self) -> None:
        """Writes the end, and gives the file its name."""
        if self.closed:
            return
        try:
            # Codecs may leave the file below open.
            self._codec.close()
            self._file.close()
        except BaseException:
            self.discard()
            raise

    @property
    def closed(self) -> bool:
        """Whether it was closed or discarded."""
        return self._file.closed

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _leave(self, kind)

    def __del__(self) -> None:
        _forget(self)


class TextFile(io.TextIOWrapper):
    """Text for a file that appears when this is closed."""

    def __init__(self, file: Any, **kwargs: Any) -> None:
        super().__init__(file, **kwargs)
        self.path = file.path

    def discard(self) -> None:
        """Leaves no trace of the file."""
        below: Any = self.buffer
        below.discard()

    def close(self) -> None:
        """Writes what is left, and gives the file its name."""
        try:
            if not self.closed:
                self.flush()
        except BaseException:
            self.discard()
            raise
        super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        _leave(self, kind)

    def __del__(self) -> None:
        _forget(self)


def _leave(file: Any, kind: Any) -> None:
    if kind is None:
        file.close()
    else:
        file.discard()


def _forget(file: Any) -> None:
    # Without a path it was not made.
    if hasattr(file, "path") and not file.closed:
        warnings.warn(f"{file.path} was not closed, and is not written", ResourceWarning, stacklevel=3)
        file.discard()


def layered(file: AtomicFile, path: str, compression: str | None, text: dict[str, Any] | None) -> Any:
    """A new file with compression and text over it. ``text`` has the arguments of ``TextIOWrapper``."""
    found: Any = file
    try:
        name = get_compression(path, compression)
        if name is not None:
            found = CompressedFile(file, compr[name](file, mode="w"))
        return found if text is None else TextFile(found, **text)
    except BaseException:
        found.discard()
        raise
