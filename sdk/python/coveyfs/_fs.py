"""``CoveyFileSystem``: Covey for everything that uses fsspec.

A URL is ``covey://PATH``, with the volume among the storage options: ``tree="s3://bucket/vol@name"`` for a
published tree, which is opened in this process, or ``mount="/mnt/covey"`` for a mounted volume.
"""

from __future__ import annotations

import datetime
import os
import posixpath
import secrets
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from ._coveyfs import Tree
from ._layers import layered
from ._mount import AtomicFile, MountBackend, is_absent, no_volume
from ._tree import BLOCK, Range, TreeBackend

# The arguments of a file of text.
TEXT = {"encoding", "errors", "newline"}


class CoveyFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A published tree (read-only), or a mounted volume.

    tree: ``ORIGIN@NAME``. Further options are those of ``coveyfs.open_tree``.
    mount: the path of a mount.
    auto_mkdir: on a mount, make missing folders for a file that is written.
    sync: on a mount, a file that was written is on the disk before it gets its name.
    sequence: one publication of the tree's name, as in ``ORIGIN@NAME#NUMBER``. Pickles have it.
    """

    protocol = "covey"
    root_marker = "/"

    def __init__(
        self,
        tree: str | None = None,
        mount: str | os.PathLike[str] | None = None,
        *,
        auto_mkdir: bool = False,
        sync: bool = True,
        cache_dir: str | None = None,
        key: str | None = None,
        accept_older: bool = False,
        endpoint: str | None = None,
        region: str | None = None,
        options: str | None = None,
        join: str | None = None,
        listen: str | None = None,
        secret_file: str | None = None,
        zone: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_ca: str | None = None,
        threads: int = 16,
        sequence: int = 0,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        if tree is None and mount is None:
            tree, mount = os.environ.get("COVEY_TREE"), os.environ.get("COVEY_MOUNT")
        if tree is not None and mount is not None:
            raise ValueError("name a tree= or a mount=, and not both")
        self._backend: TreeBackend | MountBackend
        if mount is not None:
            self._backend = MountBackend(os.fspath(mount), auto_mkdir, sync)
        elif tree is not None:
            self._backend = TreeBackend(
                Tree(
                    tree,
                    cache_dir=cache_dir,
                    key=key,
                    accept_older=accept_older,
                    endpoint=endpoint,
                    region=region,
                    options=options,
                    join=join,
                    listen=listen,
                    secret_file=secret_file,
                    zone=zone,
                    tls_cert=tls_cert,
                    tls_key=tls_key,
                    tls_ca=tls_ca,
                    threads=threads,
                    sequence=sequence,
                )
            )
        else:
            no_volume("covey://")
        self._here = secrets.token_hex(16)
        _HERE[self._here] = self

    @property
    def native(self) -> Tree | None:
        """The tree that is open in this process. None on a mount."""
        return self._backend.native

    def __reduce__(self) -> Any:
        options = dict(self.storage_options)
        if self.native is not None and self.native.sequence:
            # A worker reads what this process reads, also when the name was published again meanwhile.
            options["sequence"] = self.native.sequence
        return _again, (self._here, type(self), self.storage_args, options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        if path.startswith("covey://"):
            path = path[len("covey://") :]
        return posixpath.normpath("/" + path.strip("/"))

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return f"covey://{self._strip_protocol(name).lstrip('/')}"

    @property
    def fsid(self) -> str:
        """What tells this filesystem from others."""
        backend = self._backend
        return "covey:" + (backend.native.tree if isinstance(backend, TreeBackend) else backend.mount)

    def _writable(self, path: str) -> MountBackend:
        if isinstance(self._backend, TreeBackend):
            self._backend.refuse(path)
        return self._backend

    # Reads.

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """The attributes of a path."""
        return self._backend.info(self._strip_protocol(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The entries of a folder."""
        found = self._backend.ls(self._strip_protocol(path))
        return found if detail else sorted(entry["name"] for entry in found)

    # Those of fsspec say that a file is not there whatever the error was.

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is something at a path. An error that says nothing about that is raised."""
        return self._type(path) is not None

    def lexists(self, path: str, **kwargs: Any) -> bool:
        """The same. A symbolic link that leads nowhere is something, too."""
        return self.exists(path)

    def isfile(self, path: str) -> bool:
        """Whether there is a file at a path. Errors are raised as by ``exists``."""
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        """Whether there is a folder at a path. Errors are raised as by ``exists``."""
        return self._type(path) == "directory"

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except OSError as error:
            if is_absent(error):
                return None
            raise

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = "absent",
        **kwargs: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """The folders below a path, each with its folders and files.

        on_error: what to do if a folder cannot be listed. ``absent``: leave it out if it does not exist, and
        raise every other error. ``omit``: leave it out. ``raise``: raise. Or a function that gets the error.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        detail = kwargs.pop("detail", False)
        path = self._strip_protocol(path)
        try:
            listing = self.ls(path, detail=True, **kwargs)
        except OSError as error:
            if on_error == "raise" or (on_error == "absent" and not is_absent(error)):
                raise
            if callable(on_error):
                on_error(error)
            return
        inside: dict[str, str] = {}
        folders: Any = {}
        files: Any = {}
        for info in listing:
            own = info["name"].rstrip("/")
            # Of a file, the listing is the file itself.
            name = "" if own == path else own.rsplit("/", 1)[-1]
            if info["type"] == "directory" and own != path:
                inside[name], folders[name] = own, info
            else:
                files[name] = info
        if not detail:
            folders, files = list(folders), list(files)
        if topdown:
            yield path, folders, files
        if maxdepth != 1:
            below = None if maxdepth is None else maxdepth - 1
            # The caller may have taken names out, or put others in.
            for name in folders:
                folder = inside.get(name, f"{path.rstrip('/')}/{name}")
                yield from self.walk(folder, below, topdown, on_error, detail=detail, **kwargs)
        if not topdown:
            yield path, folders, files

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of a file, or of a range of it. Negative numbers count from its end."""
        return self._backend.read(*self._range(path, start, end))

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int | None] | None,
        ends: int | list[int | None] | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[bytes | OSError]:
        """Many ranges in parallel. Ranges of a file that are near each other are read together."""
        if not isinstance(paths, list):
            raise TypeError("paths is a list")
        first = starts if isinstance(starts, list) else [starts] * len(paths)
        last = ends if isinstance(ends, list) else [ends] * len(paths)
        if len(first) != len(paths) or len(last) != len(paths):
            raise ValueError("there are not as many starts and ends as paths")
        found: list[bytes | OSError] = [b""] * len(paths)
        ranges: list[Range] = []
        places = []
        for place, (path, start, end) in enumerate(zip(paths, first, last)):
            try:
                ranges.append(self._range(path, start, end))
                places.append(place)
            except OSError as error:
                found[place] = error
        for place, result in zip(places, self._backend.read_ranges(ranges)):
            found[place] = result
        if on_error == "raise":
            for result in found:
                if isinstance(result, OSError):
                    raise result
        return found

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **kwargs: Any) -> Any:
        """The bytes of one file; of several, a dictionary. They are read in parallel."""
        if kwargs:
            return super().cat(path, recursive=recursive, on_error=on_error, **kwargs)
        paths = self.expand_path(path, recursive=recursive)
        single = isinstance(path, str) and len(paths) == 1 and paths[0] == self._strip_protocol(path)
        if single:
            return self.cat_file(paths[0])
        if recursive:
            paths = [path for path in paths if not self.isdir(path)]
        found = dict(zip(paths, self.cat_ranges(paths, None, None, on_error=on_error)))
        if on_error == "omit":
            return {path: data for path, data in found.items() if not isinstance(data, OSError)}
        return found

    def _range(self, path: str, start: int | None, end: int | None) -> Range:
        path = self._strip_protocol(path)
        if (start or 0) < 0 or (end or 0) < 0:
            size = self.info(path)["size"]
            start = max(0, size + start) if start is not None and start < 0 else start
            end = max(0, size + end) if end is not None and end < 0 else end
        return path, start or 0, end

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Opens a file. A new one appears when it is closed, as a whole, also with text or compression."""
        how = {"block_size": block_size, "cache_options": cache_options}
        is_text = "b" not in mode
        binary = mode.replace("t", "") + "b" if is_text else mode
        if binary not in AtomicFile.MODES or not (is_text or compression):
            return super().open(path, mode, compression=compression, **how, **kwargs)
        text: dict[str, Any] = {key: kwargs.pop(key) for key in TEXT if key in kwargs}
        file = super().open(path, binary, **how, **kwargs)
        return layered(file, self._strip_protocol(path), compression, text if is_text else None)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        return self._backend.open(self, self._strip_protocol(path), mode, block_size, autocommit)

    def get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **kwargs: Any
    ) -> None:
        """Copies a file to a local path, or into an open file."""
        path = self._strip_protocol(rpath)
        if outfile is not None or hasattr(lpath, "write"):
            self._backend.get(path, outfile or lpath, callback)
        elif self.isdir(path):
            os.makedirs(lpath, exist_ok=True)
        else:
            self.info(path)
            os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            with open(lpath, "wb") as file:
                self._backend.get(path, file, callback)

    def readlink(self, path: str) -> str:
        """The target of a symbolic link."""
        info = self.info(path)
        if "destination" not in info:
            raise OSError(22, "not a symbolic link", path)
        return str(info["destination"])

    def created(self, path: str) -> datetime.datetime:
        """When a file was made."""
        return _moment(self.info(path)["created"])

    def modified(self, path: str) -> datetime.datetime:
        """When a file was changed last."""
        return _moment(self.info(path)["mtime"])

    def as_async(self) -> Any:
        """This filesystem with methods that are awaited, such as ``_cat_file``. They run on threads."""
        from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

        return AsyncFileSystemWrapper(self, asynchronous=True)

    # Writes, on a mounted volume.

    def put_file(
        self,
        lpath: Any,
        rpath: str,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **kwargs: Any,
    ) -> None:
        """Copies a local file. It appears as a whole."""
        path = self._strip_protocol(rpath)
        backend = self._writable(path)
        if os.path.isdir(lpath):
            backend.mkdir(path, True, True)
            return
        with open(lpath, "rb") as file:
            callback.set_size(os.fstat(file.fileno()).st_size)
            backend.put(file, path, mode == "create", callback)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes a file. It appears as a whole."""
        path = self._strip_protocol(path)
        self._writable(path).pipe(path, value, mode == "create")

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies a file inside the volume: its names only."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        backend = self._writable(target)
        if self.isdir(source):
            backend.mkdir(target, True, True)
        else:
            backend.copy(source, target)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, **kwargs: Any) -> None:
        """Renames a file or folder, at once."""
        is_many = isinstance(path1, list) or isinstance(path2, list)
        if is_many or ("*" in str(path1) and self._is_pattern(self._strip_protocol(path1))):
            super().mv(path1, path2, recursive=recursive, **kwargs)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self._writable(source).move(source, target)

    def mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Renames a file."""
        self.mv(path1, path2)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and with ``recursive`` folders. A path that exists is not taken for a pattern."""
        for one in self._strip_protocol(path if isinstance(path, list) else [path]):
            backend = self._writable(one)
            for found in self.expand_path(one) if self._is_pattern(one) else [one]:
                backend.remove(found, recursive)

    def _is_pattern(self, path: str) -> bool:
        """Whether a path stands for others: it has signs of a pattern, and nothing has this very name."""
        if not any(sign in path for sign in "*?["):
            return False
        return not self.exists(path)

    def rm_file(self, path: str) -> None:
        """Removes one file. Its path is not a pattern."""
        path = self._strip_protocol(path)
        self._writable(path).remove(path, False)

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes a folder."""
        path = self._strip_protocol(path)
        self._writable(path).mkdir(path, create_parents, False)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a folder and those above it."""
        path = self._strip_protocol(path)
        self._writable(path).mkdir(path, True, exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty folder."""
        path = self._strip_protocol(path)
        self._writable(path).rmdir(path)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Makes an empty file, or sets its time."""
        path = self._strip_protocol(path)
        self._writable(path).touch(path, truncate)


# The filesystems of this process, and of those that it was forked from.
_HERE: WeakValueDictionary[str, CoveyFileSystem] = WeakValueDictionary()


def _again(here: str, cls: Any, arguments: Any, options: dict[str, Any]) -> CoveyFileSystem:
    """What a pickle holds: the same filesystem if it is here, or one with the same arguments."""
    found = _HERE.get(here)
    return cls(*arguments, **options) if found is None else found


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)


__all__: Sequence[str] = ["BLOCK", "CoveyFileSystem"]
