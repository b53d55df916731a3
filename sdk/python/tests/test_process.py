"""Forked and spawned processes."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
from conftest import BIG, COVEY, FILES, covey, publish

import coveyfs
from coveyfs import CoveyFileSystem


def _sum(job):
    tree, start = job
    return sum(tree.read("big.bin", start, 10_000))


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_pool_of_workers(tree, how):
    starts = list(range(0, len(BIG), 1_000_000))
    with multiprocessing.get_context(how).Pool(3) as pool:
        sums = pool.map(_sum, [(tree, start) for start in starts])
    assert sums == [sum(BIG[start : start + 10_000]) for start in starts]


class Dataset:
    """Samples, as a data set of a training program gives them."""

    def __init__(self, fs):
        self.fs = fs
        self.names = sorted(fs.ls("/many", detail=False))

    def __getitem__(self, at):
        return self.fs.cat_file(self.names[at])


def _worker(dataset, indices, results):
    results.put([(at, dataset[at]) for at in indices])


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_of_a_loader(local, how):
    dataset = Dataset(CoveyFileSystem(tree=local))
    context = multiprocessing.get_context(how)
    results = context.Queue()
    shares = [range(start, 50, 4) for start in range(4)]
    workers = [context.Process(target=_worker, args=(dataset, share, results)) for share in shares]
    [worker.start() for worker in workers]
    found = dict(pair for _ in workers for pair in results.get(timeout=60))
    [worker.join(60) for worker in workers]
    assert found == {at: FILES[f"many/{at:03}.bin"] for at in range(50)}


def _forks_while_reading(tree, rounds):
    """Threads read all the time, and this one forks. Each child reads, too."""
    stop = threading.Event()
    failed = []

    def read():
        draw = numpy.random.default_rng(threading.get_ident() % 1000)
        while not stop.is_set():
            start = int(draw.integers(len(BIG)))
            if tree.read("big.bin", start, 200_000) != BIG[start : start + 200_000]:
                failed.append(start)

    readers = [threading.Thread(target=read) for _ in range(3)]
    [reader.start() for reader in readers]
    try:
        for number in range(rounds):
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                same = tree.read("big.bin", number, 500_000) == BIG[number : number + 500_000]
                os._exit(0 if same and tree.read("small.txt") == b"hello\n" else 1)
            _, status = os.waitpid(pid, 0)
            assert status == 0, f"fork {number}: {status}"
    finally:
        stop.set()
        [reader.join() for reader in readers]
    assert not failed


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_forks_while_it_reads(tree):
    _forks_while_reading(tree, 60)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_same_over_a_store(cached):
    with coveyfs.open_tree(**cached) as tree:
        _forks_while_reading(tree, 20)


def test_a_grandchild_and_a_closed_tree(tree):
    """A child of a child opens its own, and a child may close without the parent."""
    pid = os.fork()
    if pid == 0:
        good = tree.read("small.txt") == b"hello\n"
        inner = os.fork()
        if inner == 0:
            os._exit(0 if tree.read("small.txt") == b"hello\n" else 1)
        good = good and os.waitpid(inner, 0)[1] == 0
        tree.close()
        os._exit(0 if good else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert tree.read("small.txt") == b"hello\n"


def _listed(tree):
    return tree.ls("/")


def _first_of(fs):
    return fs.ls("/", detail=False)


@pytest.fixture()
def republished(tmp_path):
    """ORIGIN@NAME of a tree with the file `one`, and what publishes it anew, with `two` beside it."""
    volume, source = tmp_path / "volume", tmp_path / "source"
    source.mkdir()
    (source / "one").write_bytes(b"1")
    named = publish(volume, source)

    def again(keep):
        (tmp_path / "more").mkdir()
        (tmp_path / "more" / "two").write_bytes(b"2")
        covey("import", tmp_path / "more", f"{volume}:/")
        covey("publish", "--keep", keep, volume, "data")

    return named, again


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_regression_workers_read_the_publication_of_their_parent(republished, how):
    """A worker that began after another publication read that one, beside workers that read the first."""
    named, again = republished
    with coveyfs.open_tree(named) as tree:
        fs = CoveyFileSystem(tree=named, skip_instance_cache=True)
        assert _first_of(fs) == ["/one"] and tree.sequence == fs.native.sequence == 1
        again(5)
        with multiprocessing.get_context(how).Pool(1) as pool:
            assert [entry["name"] for entry in pool.apply(_listed, (tree,))] == ["/one"]
            assert pool.apply(_first_of, (fs,)) == ["/one"]
        copy = pickle.loads(pickle.dumps(tree))
        assert copy.tree == named and len(copy.ls("/")) == 1 and copy.sequence == 1
        copy.close()
    assert pickle.loads(pickle.dumps(fs)) is fs
    with coveyfs.open_tree(named) as tree:
        assert len(tree.ls("/")) == 2 and tree.sequence == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_regression_a_publication_that_is_gone_is_an_error_in_a_worker(republished):
    named, again = republished
    with coveyfs.open_tree(named) as tree:
        again(1)
        with pytest.raises(FileNotFoundError, match="data#1 was not published, or is not kept"):
            pickle.loads(pickle.dumps(tree)).ls("/")
        assert len(tree.ls("/")) == 1


PUT = """
import coveyfs, sys
fs = coveyfs.CoveyFileSystem(mount=sys.argv[1])
print("ready", flush=True)
while True:
    fs.put_file(sys.argv[2], "/target.bin")
"""


def test_an_interpreter_that_is_killed_in_put_leaves_nothing_half(mounted, tmp_path):
    mount = mounted._backend.mount
    local = tmp_path / "big"
    data = BIG * 3
    local.write_bytes(data)
    draw = numpy.random.default_rng(5)
    for number in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", PUT, mount, str(local)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(float(draw.random()) * 0.3)
        process.kill()
        process.wait()
        visible = [name for name in os.listdir(mount) if not name.startswith(".")]
        assert visible in ([], ["target.bin"]), f"round {number}: {visible}"
        if visible:
            assert mounted.cat_file("/target.bin") == data
        for name in os.listdir(mount):
            if name.startswith("."):
                # Killed between two names of a complete file.
                assert os.path.getsize(os.path.join(mount, name)) == len(data)


def test_a_write_that_fails_leaves_the_old_file(mounted):
    mounted.pipe_file("/a", b"old")
    with pytest.raises(RuntimeError), mounted.open("/a", "wb") as file:
        file.write(b"new" * 1_000_000)
        raise RuntimeError
    assert mounted.cat_file("/a") == b"old"
    file = mounted.open("/a", "wb")
    file.write(b"never closed")
    with pytest.warns(ResourceWarning):
        del file
    assert mounted.cat_file("/a") == b"old"
    assert os.listdir(mounted._backend.mount) == ["a"]


def test_the_program_is_there():
    assert subprocess.run([COVEY, "--version"], capture_output=True).returncode == 0
