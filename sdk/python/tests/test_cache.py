"""A tree in an object store: the cache on this disk, errors of the store, several processes."""

import errno
import multiprocessing
import os
import pathlib
import pickle

import pytest
from conftest import BIG, FILES, MIB, noise, publish

import coveyfs


def test_what_was_read_is_on_the_disk(cached, store):
    with coveyfs.open_tree(**cached) as tree:
        for name, data in FILES.items():
            assert tree.read(name) == data, name
        tree.read("hole")
        assert tree.heat()["origin"] > len(BIG)
        again = store.at_rest()
        assert tree.read("big.bin") == BIG
        assert store.at_rest() == again
    with coveyfs.open_tree(**cached) as tree:
        assert tree.read("big.bin") == BIG
        assert tree.heat()["origin"] < 100_000
        buffer = tree.map("big.bin")
        assert buffer.is_zero_copy and memoryview(buffer) == BIG


def test_what_is_not_on_the_disk_is_copied(cached):
    with coveyfs.open_tree(**cached) as tree:
        buffer = tree.map("big.bin", 100, 50_000)
        assert not buffer.is_zero_copy and memoryview(buffer) == BIG[100:50_100]


def test_a_blob_that_is_missing_is_read_into_the_mapping(store, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    data = noise(40 * MIB + 77, 31)
    (source / "weights").write_bytes(data)
    origin = (f"s3://{store.bucket}/weights", store.endpoint)
    named = publish(tmp_path / "volume", source, origin=origin)
    options = "cache_size=512M,cache_floor=64M,access=random"
    with coveyfs.open_tree(named, endpoint=store.endpoint, cache_dir=str(tmp_path / "cache"), options=options) as tree:
        assert tree.read("weights", 0, 8 * MIB) == data[: 8 * MIB]
        # Too much is missing.
        assert not tree.map("weights").is_zero_copy
    cache = str(tmp_path / "other")
    with coveyfs.open_tree(named, endpoint=store.endpoint, cache_dir=cache, options=options) as tree:
        for start, end in [(0, 12), (16, 40)]:
            assert tree.read("weights", start * MIB, (end - start) * MIB) == data[start * MIB : end * MIB]
        store.at_rest()
        before = tree.heat()["origin"]
        buffer = tree.map("weights")
        assert buffer.is_zero_copy and memoryview(buffer) == data
        assert 4 * MIB <= tree.heat()["origin"] - before < 6 * MIB
        part = tree.map("weights", 11 * MIB + 5, 20 * MIB)
        assert memoryview(part) == data[11 * MIB + 5 : 31 * MIB + 5]


def test_ranges_fetch_little(cached, store):
    with coveyfs.open_tree(**cached) as tree:
        tree.info("big.bin")
        before = store.counts()
        ranges = [("big.bin", start, start + 100) for start in range(0, 60_000, 1000)]
        found = tree.read_ranges(ranges)
        assert found == [BIG[start:end] for _, start, end in ranges]
        assert store.counts()[0] - before[0] <= 4 and tree.heat()["origin"] < 1_000_000


def test_an_error_of_the_store_is_one_of_python(cached, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        coveyfs.open_tree(**{**cached, "tree": cached["tree"].replace("@data", "@other")})
    with pytest.raises(OSError):
        coveyfs.open_tree(**{**cached, "tree": "s3://no-such-bucket/volume@data"})
    options = cached["options"] + ",deadline=5"
    nowhere = {"endpoint": "http://127.0.0.1:9", "cache_dir": str(tmp_path / "x"), "options": options}
    with pytest.raises(ConnectionError):
        coveyfs.open_tree(**{**cached, **nowhere})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(PermissionError):
        coveyfs.open_tree(**{**cached, "cache_dir": str(tmp_path / "y")})


def _read_all(tree, results):
    try:
        same = all(tree.read(name) == data for name, data in FILES.items())
        results.put((same, tree.heat()))
    except BaseException as error:
        results.put((repr(error), {}))


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_processes_share_what_is_on_the_disk(cached, how):
    context = multiprocessing.get_context(how)
    with coveyfs.open_tree(**cached) as tree:
        for name, data in FILES.items():
            assert tree.read(name) == data
        results = context.Queue()
        workers = [context.Process(target=_read_all, args=(tree, results)) for _ in range(3)]
        [worker.start() for worker in workers]
        found = [results.get(timeout=60) for _ in workers]
        [worker.join(60) for worker in workers]
        assert [same for same, _ in found] == [True] * 3, found
        # Each has a cache of its own, and reads the parent's first.
        assert all(heat["beside"] >= 8 * MIB for _, heat in found), found
        assert all(heat["origin"] < 4 * MIB for _, heat in found), found
        assert tree.read("big.bin") == BIG
    folders = [folder for folder in pathlib.Path(cached["cache_dir"]).iterdir() if (folder / "blobs").is_dir()]
    assert 2 <= len(folders) <= 4


def test_two_trees_of_one_process_have_a_cache_each(cached):
    with coveyfs.open_tree(**cached) as one, coveyfs.open_tree(**cached) as two:
        assert one.read("big.bin") == two.read("big.bin") == BIG
        copy = pickle.loads(pickle.dumps(one))
        assert copy.read("big.bin") == BIG
        copy.close()


def test_a_store_that_went_away_is_a_timeout(tmp_path, source):
    from conftest import Store, publish

    program = os.environ.get("COVEY_S3")
    if not program:
        pytest.skip("COVEY_S3 names no object store: skipped")
    store = Store(program)
    try:
        origin = (f"s3://{store.bucket}/other", store.endpoint)
        environment = {**os.environ, **store.environment}
        named = publish(tmp_path / "volume", source, origin=origin, env=environment)
        options = {"cache_dir": str(tmp_path / "cache"), "options": "deadline=2,cache_size=512M,cache_floor=64M"}
        tree = coveyfs.open_tree(named, endpoint=store.endpoint, **options)
        assert tree.read("small.txt") == b"hello\n"
    finally:
        store.stop()
    with pytest.raises(OSError) as failed:
        tree.read("big.bin")
    assert isinstance(failed.value, TimeoutError) or failed.value.errno == errno.EIO
    assert tree.read("small.txt") == b"hello\n"
    tree.close()
