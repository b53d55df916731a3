"""What was read most: of a tree in this process, and of a mount by its daemon."""

import errno
import os
import signal
import threading
import time

import pytest
from conftest import BIG, MIB, Mount, covey, publish, status

import coveyfs


def test_the_hottest_part_of_a_file_is_first(tree):
    for _ in range(5):
        tree.read("big.bin", 3 * MIB + 100, 1000)
    tree.read("big.bin", 0, 2 * MIB)
    tree.read_ranges([("big.bin", 7 * MIB, 7 * MIB + 10), ("many/007.bin", 0, None)])
    buffer = bytearray(100)
    tree.read_into("folder/medium.bin", 0, buffer)
    tree.map("big.bin", 3 * MIB, 10)
    found = tree.heat()
    first = found["chunks"][0]
    assert (first["path"], first["mib"], first["reads"], first["bytes"]) == ("big.bin", 3, 6, 5010)
    assert 5 < first["score"] <= 6
    rest = {(chunk["path"], chunk["mib"]): chunk["bytes"] for chunk in found["chunks"][1:]}
    assert rest == {
        ("big.bin", 0): MIB, ("big.bin", 1): MIB, ("big.bin", 7): 10, ("many/007.bin", 0): 2000,
        ("folder/medium.bin", 0): 100,
    }  # fmt: skip
    assert found["known"] == 6 and found["lost"] == 0
    assert [chunk["mib"] for chunk in tree.heat(top=1)["chunks"]] == [3]
    assert tree.heat(0)["chunks"] == []


def test_a_range_over_a_boundary_counts_for_both(tree):
    assert tree.read("big.bin", MIB - 10, 30) == BIG[MIB - 10 : MIB + 20]
    found = {chunk["mib"]: chunk["bytes"] for chunk in tree.heat()["chunks"]}
    assert found == {0: 10, 1: 20}


def test_what_is_remembered_is_bounded(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    with open(source / "sparse", "wb") as file:
        file.truncate(20 << 30)
    with coveyfs.open_tree(publish(tmp_path / "volume", source)) as tree:
        for _ in range(3):
            tree.read("sparse", 5 << 30, 10)
        for at in range(20):
            tree.map("sparse", at << 30, 1 << 30)
        found = tree.heat()
        assert found["known"] <= 8192 and found["known"] + found["lost"] >= 20 << 10, found["known"]
        # The hottest one stays, and the others are the last.
        assert (found["chunks"][0]["mib"], found["chunks"][0]["reads"]) == (5 << 10, 4)


def test_a_child_counts_anew(tree):
    tree.read("small.txt")
    pid = os.fork()
    if pid == 0:
        tree.read("big.bin", 0, 1)
        os._exit(0 if [chunk["path"] for chunk in tree.heat()["chunks"]] == ["big.bin"] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [chunk["path"] for chunk in tree.heat()["chunks"]] == ["small.txt"]


def test_the_figures_of_a_mount(mount, mounted, monkeypatch):
    mounted.pipe_file("/x", b"y" * 5000)
    said = status(mount.path)
    for path in [mount.path, str(mount.path), mounted._backend.mount, mounted._backend.mount + "/x", mount.folder]:
        found = coveyfs.status(path)
        assert found.keys() == said.keys()
        assert found["served"]["pid"] == said["served"]["pid"]
        assert found["volume"] == said["volume"] and found["files"] == said["files"]
    monkeypatch.chdir(mount.path)
    assert coveyfs.status(".")["volume"] == said["volume"]


def test_the_heat_of_a_mount(mount, mounted):
    mounted.pipe_file("/x", b"y" * 5000)
    assert mounted.cat_file("/x") == b"y" * 5000
    try:
        found = coveyfs.heat(mount.path, top=3)
    except OSError as error:
        # A daemon that does not count accesses says so.
        assert error.errno == errno.EOPNOTSUPP and "does not count" in str(error)
        return
    assert found["view"] in ("kernel", "daemon") and len(found["chunks"]) <= 3
    assert {"path", "mib", "score", "hot", "why"} <= found["chunks"][0].keys() if found["chunks"] else True


def test_paths_that_are_on_no_mount(tmp_path):
    for ask in (coveyfs.status, coveyfs.heat):
        with pytest.raises(OSError) as failed:
            ask(tmp_path)
        assert failed.value.errno == errno.ENODEV and "covey df" in str(failed.value)
        with pytest.raises(FileNotFoundError):
            ask(tmp_path / "nothing" / "here")
    with pytest.raises(OverflowError):
        coveyfs.heat(tmp_path, top=-1)


def test_a_daemon_that_is_stopped_and_one_that_died(tmp_path, mount):
    other = Mount(tmp_path)
    pid = coveyfs.status(other.path)["served"]["pid"]
    try:
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(TimeoutError) as failed:
            coveyfs.status(other.path)
        assert time.monotonic() - begin < 30 and "kill -CONT" in str(failed.value)
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            coveyfs.heat(other.path)
        assert time.monotonic() - begin < 10
        os.kill(pid, signal.SIGCONT)
        assert coveyfs.status(other.path)["served"]["pid"] == pid
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 30
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
            time.sleep(0.05)
        with pytest.raises(OSError) as failed:
            coveyfs.status(other.path)
        assert failed.value.errno == errno.ENOTCONN and "covey umount" in str(failed.value)
    finally:
        covey("umount", "--force", other.path)
