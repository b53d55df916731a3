"""The objects of a bucket that Covey did not write, as a tree."""

import errno
import uuid

import pytest
from conftest import MIB, covey, noise

import coveyfs

OBJECTS = {
    "a.bin": noise(3 * MIB + 17, 21),
    "deep/er/b.bin": noise(100_000, 22),
    "deep/tiny": b"1",
    "empty": b"",
    "large.bin": noise(9 * MIB, 23),
}


@pytest.fixture()
def lake(store, tmp_path):
    """A folder of the store's bucket with objects, the arguments that open their tree, and a new index."""
    name = f"lake-{uuid.uuid4().hex}"
    folder = store.folder / name
    for key, data in OBJECTS.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    volume = tmp_path / "volume"
    covey("format", volume, "--origin", f"s3://{store.bucket}/names-{name}", "--endpoint", store.endpoint)

    def index():
        covey("index", f"s3://{store.bucket}/{name}", volume, "lake", "--endpoint", store.endpoint)

    index()
    return folder, index, {
        "tree": f"s3://{store.bucket}/names-{name}@lake",
        "endpoint": store.endpoint,
        "cache_dir": str(tmp_path / "cache"),
        "options": "cache_size=512M,cache_floor=64M",
    }  # fmt: skip


def test_a_bucket_is_read_as_a_tree(lake):
    _, _, arguments = lake
    with coveyfs.open_tree(**arguments) as tree:
        assert {entry["name"] for entry in tree.ls("/")} == {"/a.bin", "/deep", "/empty", "/large.bin"}
        for name, data in OBJECTS.items():
            assert tree.info(name)["size"] == len(data)
            assert tree.read(name) == data, name
        assert tree.read("large.bin", 5 * MIB - 3, 10) == OBJECTS["large.bin"][5 * MIB - 3 : 5 * MIB + 7]
        ranges = [("a.bin", 5, 50), ("large.bin", 8 * MIB, None), ("deep/tiny", 0, 5)]
        assert tree.read_ranges(ranges) == [OBJECTS[name][start:end] for name, start, end in ranges]
        assert bytes(tree.map("deep/er/b.bin")) == OBJECTS["deep/er/b.bin"]
        assert tree.heat()["origin"] >= sum(map(len, OBJECTS.values()))
    frame = coveyfs.CoveyFileSystem(**arguments, skip_instance_cache=True)
    assert frame.cat_file("/a.bin", -10) == OBJECTS["a.bin"][-10:]


def test_an_object_that_changed_is_stale_and_the_others_are_not(lake):
    folder, index, arguments = lake
    with coveyfs.open_tree(**arguments) as tree:
        assert tree.read("deep/er/b.bin") == OBJECTS["deep/er/b.bin"]
        changed = noise(3 * MIB + 17, 99)
        (folder / "a.bin").write_bytes(changed)
        (folder / "large.bin").unlink()
        for name in ("a.bin", "large.bin"):
            with pytest.raises(OSError) as failed:
                tree.read(name)
            assert (failed.value.errno, failed.value.filename) == (errno.ESTALE, name)
        found = tree.read_ranges([("a.bin", 0, 10), ("deep/tiny", 0, 1)])
        assert isinstance(found[0], OSError) and found[0].errno == errno.ESTALE and found[1] == b"1"
        with pytest.raises(OSError) as failed:
            tree.map("a.bin")
        assert failed.value.errno == errno.ESTALE
        # What was read before is on this machine's disk.
        assert tree.read("deep/er/b.bin") == OBJECTS["deep/er/b.bin"]
    index()
    with coveyfs.open_tree(**arguments) as tree:
        assert tree.read("a.bin") == changed
        with pytest.raises(FileNotFoundError):
            tree.read("large.bin")
