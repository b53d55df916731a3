"""CoveyFileSystem on a folder. Its mount= may be any folder on a filesystem with files without names."""

import bz2
import errno
import gc
import gzip
import os
import pathlib

import fsspec
import pytest

from coveyfs import CoveyFileSystem


class Stop(Exception):
    """What a program raises in the middle of a file."""


@pytest.fixture()
def folder(tmp_path):
    return tmp_path


@pytest.fixture()
def fs(folder):
    return CoveyFileSystem(mount=str(folder), skip_instance_cache=True)


def names(folder):
    """All names, also hidden ones."""
    return sorted(os.listdir(folder))


FORMS = [
    {"mode": "wb"},
    {"mode": "w"},
    {"mode": "wt"},
    {"mode": "x"},
    {"mode": "wb", "compression": "gzip"},
    {"mode": "wt", "compression": "gzip"},
    {"mode": "wb", "compression": "bz2"},
    {"mode": "xb", "compression": "xz"},
]


def _half(form):
    return "half" if "b" not in form["mode"] else b"half"


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_regression_a_block_that_fails_writes_nothing(fs, folder, form):
    """Text was published up to the exception."""
    with pytest.raises(Stop), fs.open("/a", **form) as file:
        file.write(_half(form))
        file.flush()
        raise Stop
    assert file.closed and names(folder) == []


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_regression_a_block_of_fsspec_open_that_fails_writes_nothing(folder, form):
    with pytest.raises(Stop), fsspec.open("covey://a", mount=str(folder), **form) as file:
        file.write(_half(form))
        raise Stop
    assert names(folder) == []
    urls = ["covey://a", "covey://b"]
    with pytest.raises(Stop), fsspec.open_files(urls, mount=str(folder), **form) as files:
        files[0].write(_half(form))
        raise Stop
    assert names(folder) == []


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_regression_a_file_that_is_closed_is_there(fs, folder, form):
    """A compressed file was not written: its codec leaves the file below it open."""
    with fs.open("/a", **form) as file:
        file.write(_half(form))
        assert names(folder) == []
    assert file.closed and names(folder) == ["a"]
    reading = {**form, "mode": "rb" if "b" in form["mode"] else "r"}
    assert fs.open("/a", **reading).read() == _half(form)
    with fsspec.open("covey://b", mount=str(folder), **form) as file:
        file.write(_half(form))
    assert (folder / "b").stat().st_size >= 4
    file = fs.open("/c", **form)
    file.write(_half(form))
    file.close()
    file.close()
    assert fs.open("/c", **reading).read() == _half(form)


def test_compressed_bytes_are_those_of_the_codec(fs, folder):
    with fs.open("/a.gz", "wt", compression="infer", newline="") as file:
        file.writelines(["one\n", "two\r\n"])
    assert gzip.decompress((folder / "a.gz").read_bytes()) == b"one\ntwo\r\n"
    with fs.open("/a.bz2", "wb", compression="infer") as file:
        file.write(b"one")
        assert file.writable() and file.tell() == 3
    assert bz2.decompress((folder / "a.bz2").read_bytes()) == b"one"
    with fs.open("/plain", "w", compression="infer", encoding="utf-16-le") as file:
        file.write("é")
    assert (folder / "plain").read_bytes() == "é".encode("utf-16-le")
    with pytest.raises(ValueError):
        fs.open("/b", "wb", compression="nothing")
    with pytest.raises(LookupError):
        fs.open("/b", "w", encoding="nothing")
    assert names(folder) == ["a.bz2", "a.gz", "plain"]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_regression_a_file_that_is_forgotten_is_not_written(fs, folder, form):
    file = fs.open("/a", **form)
    file.write(_half(form))
    del file
    gc.collect()
    assert names(folder) == []


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_file_may_be_closed_while_an_exception_is_handled(fs, folder, form):
    """Only the failure of the file's own block discards it."""
    late = fs.open("/late", **form)
    late.write(_half(form))
    with fsspec.open("covey://outer", mount=str(folder), **form) as outer:
        try:
            raise Stop
        except Stop:
            late.close()
            with fs.open("/own", **form) as file:
                file.write(_half(form))
            with fsspec.open("covey://url", mount=str(folder), **form) as file:
                file.write(_half(form))
        outer.write(_half(form))
    assert names(folder) == ["late", "outer", "own", "url"]


def test_a_transaction_holds_text_back(fs, folder):
    with fs.transaction:
        with fs.open("/a", "w") as file:
            file.write("1")
        with fs.open("/b.gz", "w", compression="gzip") as file:
            file.write("2")
        assert names(folder) == []
    assert names(folder) == ["a", "b.gz"] and fs.open("/b.gz", "r", compression="gzip").read() == "2"


def test_regression_a_name_that_cannot_be_given_leaves_no_hidden_one(fs, folder):
    file = fs.open("/a", "wb")
    file.write(b"1")
    (folder / "a").mkdir()
    with pytest.raises(OSError):
        file.close()
    assert file.closed and names(folder) == ["a"]


def test_regression_a_folder_that_cannot_be_listed_is_not_left_out(fs, folder, monkeypatch):
    """A listing without it looked complete, so a copy of it was."""
    for name in ["one", "two", "gone"]:
        (folder / name).mkdir()
        (folder / name / "file").write_bytes(b"1")
    real, failures = fs._backend.ls, {}

    def ls(path):
        if path in failures:
            raise failures[path](path)
        return real(path)

    monkeypatch.setattr(fs._backend, "ls", ls)
    everything = ["/gone/file", "/one/file", "/two/file"]
    assert fs.find("/") == everything
    failures["/gone"] = FileNotFoundError
    assert fs.find("/") == everything[1:], "it was removed meanwhile"
    failures["/two"] = TimeoutError
    for work in [
        lambda: fs.find("/"),
        lambda: list(fs.walk("/")),
        lambda: list(fs.walk("/", topdown=False)),
        lambda: fs.glob("/*/file"),
        lambda: fs.glob("/**"),
        lambda: fs.du("/"),
        lambda: fs.expand_path("/", recursive=True),
    ]:
        with pytest.raises(TimeoutError):
            work()
    assert fs.find("/one") == ["/one/file"]
    assert fs.find("/", on_error="omit") == fs.glob("/*/file", on_error="omit") == ["/one/file"]
    assert fs.find("/nothing") == [] and fs.glob("/one/file/*/x") == []
    assert [path for path, _, _ in fs.walk("/", on_error="omit")] == ["/", "/one"]
    with pytest.raises(OSError):
        list(fs.walk("/", on_error="raise"))
    seen = []
    assert len(list(fs.walk("/", on_error=seen.append))) == 2
    assert sorted(type(error).__name__ for error in seen) == ["FileNotFoundError", "TimeoutError"]


def test_a_walk_is_that_of_fsspec(fs, folder):
    for path in ["a/b/c", "d"]:
        (folder / path).mkdir(parents=True)
        (folder / path / "file").write_bytes(b"1")
    local = fsspec.filesystem("file")
    for form in [{}, {"maxdepth": 1}, {"maxdepth": 2}, {"topdown": False}, {"topdown": False, "maxdepth": 1}]:
        found = {(path, *map(frozenset, inside)) for path, *inside in fs.walk("/", **form)}
        wanted = {
            (path[len(str(folder)) :] or "/", *map(frozenset, inside))
            for path, *inside in local.walk(str(folder), **form)
        }
        assert found == wanted, form
    _, folders, files = next(fs.walk("/a/b", detail=True))
    assert folders["c"]["type"] == "directory" and files == {}
    assert list(fs.walk("/d/file")) == [("/d/file", [], [""])]
    pruned = []
    for path, folders, _ in fs.walk("/"):
        pruned.append(path)
        if "b" in folders:
            folders.remove("b")
    assert sorted(pruned) == ["/", "/a", "/d"]
    with pytest.raises(ValueError):
        list(fs.walk("/", maxdepth=0))


def test_regression_a_name_with_signs_of_a_pattern_is_removed_alone(fs, folder):
    """`rm_file("/a[1].txt")` removed /a1.txt."""

    def fill():
        for name in ["a1.txt", "a[1].txt", "ab", "a*"]:
            (folder / name).write_bytes(b"1")

    for remove in [fs.rm_file, fs._rm, fs.rm]:
        fill()
        remove("/a[1].txt")
        remove("/a*")
        assert names(folder) == ["a1.txt", "ab"], remove
    for remove in [fs.rm_file, fs._rm]:
        with pytest.raises(FileNotFoundError):
            remove("/a?")
    fill()
    fs.mv("/a*", "/moved")
    assert names(folder) == ["a1.txt", "a[1].txt", "ab", "moved"]
    (folder / "moved").unlink()
    fs.rm("/a[1].txt")
    fs.rm("/a[1].txt")
    assert names(folder) == ["ab"], "without a file of that name it is a pattern"
    fs.rm("/a*")
    assert names(folder) == []


def test_regression_an_error_does_not_make_a_name_a_pattern(fs, folder, monkeypatch):
    (pathlib.Path(folder) / "a1").write_bytes(b"1")

    def info(path):
        raise TimeoutError(path)

    monkeypatch.setattr(fs._backend, "info", info)
    with pytest.raises(TimeoutError):
        fs.rm("/a[1]")
    assert names(folder) == ["a1"]


def test_regression_an_error_of_the_mount_is_not_an_absent_file(fs, folder, monkeypatch):
    """fsspec and os.path take every error for "no". `touch` then emptied the file."""
    (folder / "file").write_bytes(b"1")
    (folder / "link").symlink_to("file")
    (folder / "nowhere").symlink_to("nothing")
    assert fs.exists("/nowhere") and fs.info("/nowhere")["type"] == "link"
    real = os.stat

    def look(path, **how):
        if str(path).endswith("file") or str(path).endswith("link"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, **how)

    monkeypatch.setattr(os, "stat", look)
    monkeypatch.setattr("coveyfs._mount.os.lstat", lambda path: look(path, follow_symlinks=False))
    for call in [fs.exists, fs.lexists, fs.isfile, fs.isdir, fs.info, fs.ls, fs.rm]:
        for path in ["/file", "/link"]:
            with pytest.raises(OSError) as failed:
                call(path)
            assert failed.value.errno == errno.EIO, call
    for write in [
        lambda: fs.touch("/file", truncate=False),
        lambda: fs.open("/file", "xb"),
        lambda: fs.mv("/nowhere", "/file"),
    ]:
        with pytest.raises(OSError):
            write()
    monkeypatch.undo()
    assert (folder / "file").read_bytes() == b"1" and fs.isfile("/link")
