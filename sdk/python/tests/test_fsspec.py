"""CoveyFileSystem: fsspec's own suites, and what they leave out."""

import asyncio
import errno
import os
import pickle

import fsspec
import pytest
from conftest import BIG, FILES
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from coveyfs import CoveyFileSystem


class MountedFixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, mounted):
        return mounted

    @pytest.fixture
    def fs_path(self):
        return ""

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/" + "/".join(part.lstrip("/") for part in parts if part)


class TestMountedGet(AbstractGetTests, MountedFixtures):
    pass


class TestMountedPut(AbstractPutTests, MountedFixtures):
    pass


class TestMountedCopy(AbstractCopyTests, MountedFixtures):
    pass


class TestMountedOpen(AbstractOpenTests, MountedFixtures):
    pass


class TestMountedPipe(AbstractPipeTests, MountedFixtures):
    pass


@pytest.fixture()
def fs(local):
    return CoveyFileSystem(tree=local)


def test_the_entry_point_and_urls(local):
    fs = fsspec.filesystem("covey", tree=local)
    assert isinstance(fs, CoveyFileSystem)
    assert fs is fsspec.filesystem("covey", tree=local), "one instance for the same arguments"
    with fsspec.open("covey://small.txt", tree=local) as file:
        assert file.read() == b"hello\n"
    fs, path = fsspec.url_to_fs("covey://folder/medium.bin", tree=local)
    assert path == "/folder/medium.bin" and fs.size(path) == 300_000
    assert fs.unstrip_protocol(path) == "covey://folder/medium.bin"
    with fsspec.open("simplecache::covey://small.txt", covey={"tree": local}, mode="rt") as file:
        assert file.read() == "hello\n"
    with pytest.raises(ValueError):
        CoveyFileSystem()
    for url in ["covey://../../etc/passwd", "covey:///../etc/passwd"]:
        assert CoveyFileSystem._strip_protocol(url) == "/etc/passwd"


def test_the_environment_names_the_tree(local, monkeypatch):
    monkeypatch.setenv("COVEY_TREE", local)
    assert CoveyFileSystem(skip_instance_cache=True).cat_file("covey://small.txt") == b"hello\n"


def test_names_of_a_tree(fs, source):
    assert sorted(fs.find("/folder")) == ["/folder/deep/er/x.txt", "/folder/medium.bin"]
    assert len(fs.glob("/many/*.bin")) == 50 and fs.glob("/many/00[12].bin") == ["/many/001.bin", "/many/002.bin"]
    assert "/folder/deep/er/x.txt" in fs.glob("**/*.txt")
    walked = {folder: (sorted(folders), sorted(files)) for folder, folders, files in fs.walk("/folder")}
    assert walked["/folder"] == (["deep"], ["medium.bin"]) and walked["/folder/deep/er"] == ([], ["x.txt"])
    assert fs.exists("small.txt") and not fs.exists("nothing") and fs.isdir("folder") and fs.isfile("/big.bin")
    assert fs.du("/many") == 50 * 2000
    assert fs.modified("/small.txt").timestamp() == pytest.approx(os.stat(source / "small.txt").st_mtime, abs=1)


def test_bytes_of_a_tree(fs):
    assert fs.cat("/small.txt") == b"hello\n"
    assert fs.cat(["/small.txt", "/empty"]) == {"/small.txt": b"hello\n", "/empty": b""}
    assert fs.cat("/folder", recursive=True) == {
        "/folder/medium.bin": FILES["folder/medium.bin"],
        "/folder/deep/er/x.txt": FILES["folder/deep/er/x.txt"],
    }
    assert fs.cat_file("/big.bin", -100, -50) == BIG[-100:-50]
    assert fs.head("/big.bin", 10) == BIG[:10] and fs.tail("/big.bin", 10) == BIG[-10:]
    found = fs.cat_ranges(["/big.bin", "/small.txt", "/no"], [0, -3, 0], [5, None, 1])
    assert found[:2] == [BIG[:5], b"lo\n"] and isinstance(found[2], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["/no"], 0, 1, on_error="raise")


def test_a_file_of_a_tree(fs):
    with fs.open("/big.bin") as file:
        assert file.size == len(BIG) and file.seekable() and file.readable() and not file.writable()
        assert file.read(10) == BIG[:10] and file.tell() == 10
        assert file.seek(-5, 2) == len(BIG) - 5 and file.read() == BIG[-5:] and file.read() == b""
        file.seek(1000)
        again = pickle.loads(pickle.dumps(file))
        assert again.read(5) == BIG[1000:1005]
        buffer = bytearray(100)
        assert file.readinto(buffer) == 100 and buffer == BIG[1000:1100]
        file.seek(0)
        assert file.read() == BIG
    with fs.open("/small.txt", "r") as file:
        assert list(file) == ["hello\n"]
    with pytest.raises(IsADirectoryError):
        fs.open("/folder")


def test_a_tree_is_copied_to_a_folder(fs, tmp_path):
    fs.get("/folder", str(tmp_path / "folder"), recursive=True)
    assert (tmp_path / "folder/deep/er/x.txt").read_bytes() == FILES["folder/deep/er/x.txt"]
    fs.get_file("/big.bin", str(tmp_path / "big"))
    assert (tmp_path / "big").read_bytes() == BIG


def test_a_tree_refuses_writes(fs, tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    for work in [
        lambda: fs.open("/x", "wb"),
        lambda: fs.pipe_file("/x", b"x"),
        lambda: fs.put_file(str(tmp_path / "x"), "/x"),
        lambda: fs.mkdir("/d"),
        lambda: fs.makedirs("/d/e"),
        lambda: fs.rm("/small.txt"),
        lambda: fs.rm_file("/small.txt"),
        lambda: fs.mv("/small.txt", "/y"),
        lambda: fs.cp_file("/small.txt", "/y"),
        lambda: fs.touch("/y"),
        lambda: fs.rmdir("/folder"),
    ]:
        with pytest.raises(OSError) as failed:
            work()
        assert failed.value.errno == errno.EROFS


def test_the_awaited_form(fs):
    async def read():
        aio = fs.as_async()
        names = [f"/many/{n:03}.bin" for n in range(20)]
        found = await asyncio.gather(*[aio._cat_file(name) for name in names])
        info = await aio._info("/big.bin")
        return dict(zip(names, found)), info["size"]

    found, size = asyncio.run(read())
    assert size == len(BIG)
    assert found == {f"/many/{n:03}.bin": FILES[f"many/{n:03}.bin"] for n in range(20)}


def test_writes_on_a_mount(mounted, tmp_path):
    mounted.pipe({"/a/b": b"1", "/a/c": b"22"})
    assert mounted.cat("/a", recursive=True) == {"/a/b": b"1", "/a/c": b"22"}
    mounted.mv("/a/b", "/d")
    assert mounted.cat_file("/d") == b"1" and not mounted.exists("/a/b")
    mounted.cp("/d", "/e")
    assert mounted.cat_file("/e") == b"1"
    with mounted.open("/d", "ab") as file:
        file.write(b"2")
    assert mounted.cat_file("/d") == b"12"
    with mounted.open("/d", "r+b") as file:
        file.write(b"9")
    assert mounted.cat_file("/d") == b"92"
    with pytest.raises(FileExistsError):
        mounted.open("/d", "xb")
    with pytest.raises(FileExistsError):
        mounted.pipe_file("/d", b"", mode="create")
    os.chmod(mounted._backend.real("/d"), 0o640)
    mounted.pipe_file("/d", b"new")
    assert mounted.info("/d")["mode"] & 0o777 == 0o640, "what is replaced keeps its permissions"
    mounted.rm("/a", recursive=True)
    mounted.rm(["/d", "/e"])
    assert mounted.ls("/") == []
    with pytest.raises(FileNotFoundError) as failed:
        mounted.cat_file("/nothing")
    assert failed.value.filename == "/nothing"
    mounted.pipe_file("/big", BIG)
    assert mounted.cat_ranges(["/big"] * 3, [0, 5, -9], [3, 100, None]) == [BIG[:3], BIG[5:100], BIG[-9:]]
    mounted.get("/big", str(tmp_path / "big"))
    assert (tmp_path / "big").read_bytes() == BIG


def test_a_transaction_is_all_or_nothing(mounted):
    with pytest.raises(RuntimeError), mounted.transaction:
        with mounted.open("/a", "wb") as file:
            file.write(b"1")
        raise RuntimeError
    assert mounted.ls("/") == []
    with mounted.transaction:
        with mounted.open("/a", "wb") as file:
            file.write(b"1")
        assert not mounted.exists("/a")
    assert mounted.cat_file("/a") == b"1"

