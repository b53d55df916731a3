"""What the tests need: volumes made by the real program, mounts, and an object store.

COVEY_BIN names the program, COVEY_S3 the test's object store (`make test-python` sets both). A test that
cannot run here is skipped, with what is missing.
"""

import json
import os
import pathlib
import shutil
import subprocess
import time
import uuid

import numpy
import pytest

import coveyfs

COVEY = os.environ.get("COVEY_BIN", "covey")
MIB = 1 << 20


def covey(*words, **kwargs):
    """Runs the program."""
    done = subprocess.run([COVEY, *map(str, words)], capture_output=True, text=True, timeout=120, **kwargs)
    assert done.returncode == 0, f"covey {words}: {done.stderr}"
    return done.stdout


def noise(size, seed=7):
    return numpy.random.default_rng(seed).bytes(size)


# What the volumes of these tests contain.
BIG = noise(9 * MIB + 1234)
FILES = {
    "small.txt": b"hello\n",
    "folder/medium.bin": noise(300_000, 1),
    "folder/deep/er/x.txt": b"x" * 5000,
    "big.bin": BIG,
    "empty": b"",
    **{f"many/{n:03}.bin": noise(2000, n) for n in range(50)},
}


def fill(folder):
    for name, data in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "link").symlink_to("folder/medium.bin")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "links").symlink_to("folder")
    with open(folder / "hole", "wb") as file:
        file.write(noise(4 * MIB, 3))
        file.seek(12 * MIB)
        file.write(noise(4 * MIB, 4))
    try:
        os.setxattr(folder / "small.txt", "user.note", b"a note")
    except OSError:
        pass


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A folder with the files."""
    folder = tmp_path_factory.mktemp("source")
    fill(folder)
    return folder


def publish(folder, source, name="data", *, origin=None, env=None):
    """A new volume with the contents of a folder, published. Returns ORIGIN@NAME."""
    words = ["--origin", origin[0], "--endpoint", origin[1]] if origin else []
    covey("format", folder, *words, env=env)
    covey("import", source, f"{folder}:/", env=env)
    covey("publish", folder, name, env=env)
    return f"{origin[0] if origin else f'file:{folder}/blobs'}@{name}"


@pytest.fixture(scope="session")
def local(tmp_path_factory, source):
    """ORIGIN@NAME of a tree in a folder."""
    return publish(tmp_path_factory.mktemp("local") / "volume", source)


@pytest.fixture()
def tree(local):
    with coveyfs.open_tree(local) as tree:
        yield tree


class Store:
    """An object store in a process of its own."""

    def __init__(self, program):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.said = {}
        for line in self.process.stdout:
            name, value = line.rstrip("\n").split("=", 1)
            if name == "READY":
                break
            self.said[name] = value
        self.endpoint, self.bucket = self.said["ENDPOINT"], self.said["BUCKET"]
        self.folder = pathlib.Path(self.said["FOLDER"])

    @property
    def environment(self):
        return {name: value for name, value in self.said.items() if name.startswith("AWS_")}

    def counts(self):
        """Gets, listings, and bytes sent."""
        self.process.stdin.write("counts\n")
        return [int(word) for word in self.process.stdout.readline().split()]

    def gets(self):
        """GETs and bytes of each key."""
        self.process.stdin.write("gets\n")
        rows = iter(lambda: self.process.stdout.readline().rstrip("\n"), "")
        fields = (row.rsplit("\t", 2) for row in rows)
        return {key: (int(gets), int(sent)) for key, gets, sent in fields}

    @staticmethod
    def is_blob(key):
        """Whether an object of a volume is a blob: its name is a hash."""
        return len(key.rsplit("/", 1)[-1]) >= 64

    def at_rest(self):
        """The same once nothing has been asked for a second: prefetches have ended."""
        last = None
        while (now := self.counts()) != last:
            last = now
            time.sleep(1)
        return last

    def stop(self):
        self.process.stdin.close()
        self.process.wait(20)


@pytest.fixture(scope="session")
def store():
    program = os.environ.get("COVEY_S3")
    if not program:
        pytest.skip("COVEY_S3 names no object store: skipped")
    store = Store(program)
    os.environ.update(store.environment)
    yield store
    store.stop()


@pytest.fixture(scope="session")
def remote(tmp_path_factory, source, store):
    """ORIGIN@NAME of a tree in the object store."""
    origin = (f"s3://{store.bucket}/volume", store.endpoint)
    return publish(tmp_path_factory.mktemp("remote") / "volume", source, origin=origin)


@pytest.fixture()
def cached(remote, store, tmp_path):
    """The arguments for that tree, with an empty cache."""
    return {
        "tree": remote,
        "endpoint": store.endpoint,
        "cache_dir": str(tmp_path / "cache"),
        "options": "cache_size=512M,cache_floor=64M",
    }


class Mount:
    """A mounted volume."""

    def __init__(self, folder):
        self.folder, self.path = folder / "volume", folder / "mnt"
        self.path.mkdir()
        covey("format", self.folder)
        covey("mount", "-d", self.folder, self.path)

    def end(self):
        covey("umount", self.path)


@pytest.fixture(scope="session")
def mount(tmp_path_factory):
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) and not shutil.which("fusermount3"):
        pytest.skip("there is no /dev/fuse: skipped")
    mount = Mount(tmp_path_factory.mktemp("mounted"))
    yield mount
    mount.end()


@pytest.fixture()
def mounted(mount):
    """A filesystem on an empty folder of a mounted volume."""
    folder = pathlib.Path(mount.path) / uuid.uuid4().hex
    folder.mkdir()
    yield coveyfs.CoveyFileSystem(mount=str(folder), auto_mkdir=True, skip_instance_cache=True)
    shutil.rmtree(folder)


def status(folder):
    return json.loads(covey("status", folder, "--json"))
