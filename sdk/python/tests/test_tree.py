"""A published tree, opened in this process."""

import errno
import os
import pickle
import threading

import numpy
import pytest
from conftest import BIG, FILES, MIB, publish

import coveyfs


def test_every_file_is_what_was_imported(tree, source):
    for name, data in FILES.items():
        assert tree.read(name) == data, name
        assert tree.read("/" + name) == data, name
        info = tree.info(name)
        about = os.stat(source / name)
        assert (info["type"], info["size"]) == ("file", len(data))
        assert (info["mode"], info["uid"]) == (about.st_mode, about.st_uid)
        assert info["mtime"] == pytest.approx(about.st_mtime, abs=1e-3)


@pytest.mark.parametrize("offset, length", [(0, 10), (5, None), (MIB, 5 * MIB), (9 * MIB, None), (1 << 40, 3)])
def test_a_part_is_a_part(tree, offset, length):
    end = None if length is None else offset + length
    assert tree.read("big.bin", offset, length) == BIG[offset:end]
    buffer = bytearray(length or 100)
    read = tree.read_into("big.bin", offset, buffer)
    assert bytes(buffer[:read]) == BIG[offset : offset + len(buffer)]


def test_reads_fill_arrays(tree):
    array = numpy.zeros(MIB, "u1")
    assert tree.read_into("big.bin", 17, array) == MIB
    assert array.tobytes() == BIG[17 : 17 + MIB]
    with pytest.raises(BufferError):
        tree.read_into("big.bin", 0, b"not writable")


def test_a_folder_is_listed_with_details(tree):
    found = {entry["name"]: entry for entry in tree.ls("/")}
    assert set(found) == {
        "/small.txt", "/folder", "/big.bin", "/empty", "/many", "/link", "/dangling", "/links", "/hole"
    }  # fmt: skip
    assert found["/folder"]["type"] == "directory"
    assert found["/big.bin"]["size"] == len(BIG)
    link = found["/link"]
    assert (link["islink"], link["destination"], link["type"], link["size"]) == (
        True, "folder/medium.bin", "file", 300_000
    )  # fmt: skip
    assert found["/dangling"]["type"] == "link"
    assert [entry["name"] for entry in tree.ls("small.txt")] == ["small.txt"]
    assert len(tree.ls("many")) == 50


def test_links_and_attributes(tree):
    assert tree.readlink("link") == "folder/medium.bin"
    assert tree.read("links/deep/er/x.txt") == b"x" * 5000
    if tree.xattrs("small.txt"):
        assert tree.xattr("small.txt", "user.note") == b"a note"
    with pytest.raises(OSError) as failed:
        tree.xattr("small.txt", "user.nothing")
    assert failed.value.errno == errno.ENODATA


def test_ranges_in_any_order_and_with_errors(tree):
    draw = numpy.random.default_rng(1)
    ranges = []
    for _ in range(300):
        name = ["big.bin", "folder/medium.bin", "small.txt", "many/007.bin"][draw.integers(4)]
        start = int(draw.integers(len(FILES[name]) + 10))
        ranges.append((name, start, start + int(draw.integers(200_000))))
    ranges += [("big.bin", 0, None), ("empty", 0, None), ("no", 0, 1), ("folder", 0, 1), ("big.bin", 5, 2)]
    found = tree.read_ranges(ranges)
    for (name, start, end), data in zip(ranges, found):
        if name == "no":
            assert isinstance(data, FileNotFoundError) and data.filename == "no"
        elif name == "folder":
            assert isinstance(data, IsADirectoryError)
        else:
            assert data == FILES[name][start:end], (name, start, end)


def test_errors_are_those_of_python(tree, local):
    for work, kind in [
        (lambda: tree.read("nothing"), FileNotFoundError),
        (lambda: tree.read("small.txt/x"), NotADirectoryError),
        (lambda: tree.read("folder"), IsADirectoryError),
        (lambda: tree.map("folder"), IsADirectoryError),
        (lambda: tree.ls("nothing"), FileNotFoundError),
        (lambda: tree.read("dangling"), FileNotFoundError),
        (lambda: tree.read("x" * 300), OSError),
        (lambda: coveyfs.open_tree(local.replace("@data", "@other")), FileNotFoundError),
        (lambda: coveyfs.open_tree(local, key="ab" * 32), OSError),
        (lambda: coveyfs.open_tree("somewhere"), ValueError),
        (lambda: coveyfs.open_tree(local, options="nonsense=1"), ValueError),
        (lambda: coveyfs.open_tree(local, threads=0), ValueError),
    ]:
        with pytest.raises(kind):
            work()
    with pytest.raises(FileNotFoundError) as failed:
        tree.info("folder/nothing")
    assert (failed.value.errno, failed.value.filename) == (errno.ENOENT, "folder/nothing")


def test_a_closed_tree_says_so_and_its_buffers_stay(local):
    tree = coveyfs.open_tree(local)
    buffer = tree.map("big.bin")
    tree.close()
    tree.close()
    assert tree.closed
    with pytest.raises(ValueError):
        tree.read("small.txt")
    assert memoryview(buffer) == BIG


def test_what_is_on_this_disk_is_mapped(tree):
    buffer = tree.map("big.bin")
    assert buffer.is_zero_copy and len(buffer) == len(BIG)
    view = memoryview(buffer)
    assert view.readonly and view == BIG
    array = numpy.frombuffer(buffer, "u1")
    assert array.tobytes() == BIG
    with pytest.raises(ValueError):
        array[0] = 1
    for offset, length in [(0, 1), (4095, 2), (4 * MIB - 1, 2), (5 * MIB + 7, MIB), (9 * MIB, None)]:
        part = tree.map("big.bin", offset, length)
        assert memoryview(part) == BIG[offset : None if length is None else offset + length]
        assert part.is_zero_copy
    assert tree.heat()["mapped"] >= len(BIG)


def test_holes_are_mapped_as_zeros_and_small_files_are_copied(tree, source):
    buffer = tree.map("hole")
    assert buffer.is_zero_copy
    assert memoryview(buffer) == (source / "hole").read_bytes()
    small = tree.map("small.txt")
    assert not small.is_zero_copy and bytes(small) == b"hello\n"
    assert bytes(tree.map("empty")) == b""


def test_regression_the_end_of_a_file_may_share_a_blob(tmp_path, source):
    # Such an end does not begin at a page in its blob. The whole file was copied then.
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a").write_bytes(b"x" * 1001)
    (folder / "b").write_bytes(BIG[: 8 * MIB + 1144])
    (folder / "c").write_bytes(b"y" * 1001)
    with coveyfs.open_tree(publish(tmp_path / "volume", folder)) as tree:
        buffer = tree.map("b")
        assert buffer.is_zero_copy and memoryview(buffer) == BIG[: 8 * MIB + 1144]
        for offset, length in [(8 * MIB - 5, None), (8 * MIB - 5, 100), (8 * MIB, None), (8 * MIB + 7, 1000)]:
            part = tree.map("b", offset, length)
            end = 8 * MIB + 1144 if length is None else offset + length
            assert memoryview(part) == BIG[offset:end]


def test_a_damaged_blob_is_not_mapped(tmp_path, source):
    named = publish(tmp_path / "volume", source)
    blobs = [path for path in (tmp_path / "volume/blobs").glob("??/*") if path.stat().st_size == 4 * MIB]
    for blob in blobs:
        os.chmod(blob, 0o600)
        with open(blob, "r+b") as file:
            file.seek(100_000)
            file.write(b"damage")
    with coveyfs.open_tree(named) as tree:
        with pytest.raises(OSError) as failed:
            tree.map("big.bin")
        assert failed.value.errno == errno.EIO


def test_threads_read_at_the_same_time(tree):
    failed = []

    def work(seed):
        draw = numpy.random.default_rng(seed)
        for _ in range(50):
            start = int(draw.integers(len(BIG)))
            if tree.read("big.bin", start, 100_000) != BIG[start : start + 100_000]:
                failed.append(start)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed


def test_a_pickle_is_the_arguments(tree, local):
    again = pickle.loads(pickle.dumps(tree))
    assert again.tree == local and again.read("small.txt") == b"hello\n"
    again.close()


def test_figures(tree):
    tree.read("big.bin")
    assert tree.heat()["disk"] >= len(BIG)
    status = tree.status()
    assert status["mode"] == "frozen" and status["tree"]["name"] == "data"
    assert status["files"] > len(FILES)
