"""A store that does not answer: signals, errors and their reasons."""

import hashlib
import os
import signal
import threading
import time

import pytest
from conftest import BIG, MIB, Store, publish

import coveyfs
from coveyfs import CoveyFileSystem

# More names than a tree reads when it is opened. They do not compress.
FOLDERS, NAMES = 20, 500


def path_of(folder, number):
    """The path of a small file."""
    return f"/d{folder:02}/{hashlib.sha256(b'%d/%d' % (folder, number)).hexdigest()}"


class Silent:
    """A tree in a store that can be silent."""

    def __init__(self, folder):
        self.store = Store(os.environ["COVEY_S3"])
        source = folder / "source"
        for number in range(FOLDERS):
            (source / f"d{number:02}").mkdir(parents=True)
            for name in range(NAMES):
                (source / path_of(number, name)[1:]).write_bytes(b"x" * 700)
        (source / "big.bin").write_bytes(BIG)
        (source / "link").symlink_to(path_of(11, 77)[1:])
        origin = (f"s3://{self.store.bucket}/silent", self.store.endpoint)
        self.tree = publish(folder / "volume", source, origin=origin, env=self.environment)

    @property
    def environment(self):
        return {**os.environ, **self.store.environment}

    def stop(self):
        self.store.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.store.process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    if not os.environ.get("COVEY_S3"):
        pytest.skip("COVEY_S3 names no object store: skipped")
    volume = Silent(tmp_path_factory.mktemp("silent"))
    yield volume
    volume.go_on()
    volume.store.stop()


@pytest.fixture()
def silent(volume, tmp_path, monkeypatch):
    """The arguments of the tree, and a function after which its store is silent."""
    for name, value in volume.store.environment.items():
        monkeypatch.setenv(name, value)
    options = {"endpoint": volume.store.endpoint, "cache_dir": str(tmp_path / "cache")}
    yield {"tree": volume.tree, **options}, volume
    volume.go_on()


def with_ctrl_c(call):
    """Makes a call. Ctrl-C arrives a second later, and must end it long before its deadline."""
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        try:
            call()
        finally:
            # If the call did not wait, nothing else shall be interrupted.
            timer.cancel()
            timer.join()
    assert time.monotonic() - begin < 30


def opened(options, deadline):
    return coveyfs.open_tree(**options, options=f"deadline={deadline},cache_size=512M,cache_floor=64M")


DEEP = path_of(13, 77)
CALLS = {
    "read": lambda tree: tree.read("/big.bin"),
    "read_into": lambda tree: tree.read_into("/big.bin", 5, bytearray(3 * MIB)),
    "read_ranges": lambda tree: tree.read_ranges([("/big.bin", 0, 10), ("/big.bin", 5 * MIB, None)]),
    "map": lambda tree: tree.map("/big.bin"),
    "info": lambda tree: tree.info(DEEP),
    "ls": lambda tree: tree.ls("/d12"),
    "xattrs": lambda tree: tree.xattrs(path_of(14, 1)),
}


@pytest.mark.parametrize("name", CALLS)
def test_regression_ctrl_c_ends_a_call_that_waits_for_the_store(silent, name):
    # A native call kept the exception of a signal back until it returned, up to its deadline later.
    options, volume = silent
    with opened(options, 120) as tree:
        tree.info("/big.bin")
        volume.stop()
        with_ctrl_c(lambda: CALLS[name](tree))
        volume.go_on()
        # The tree can be used as before.
        assert tree.read("/big.bin") == BIG


@pytest.mark.parametrize("name", ["read", "readline", "peek", "readinto"])
def test_regression_ctrl_c_ends_a_read_of_a_file(silent, name):
    options, volume = silent
    fs = CoveyFileSystem(**options, options="deadline=120", skip_instance_cache=True)
    with fs.open("/big.bin") as file:
        volume.stop()
        with_ctrl_c({**vars(file), "readinto": lambda: file.readinto(bytearray(MIB))}[name])
        volume.go_on()
        assert file.tell() == 0 and file.read() == BIG
    fs.native.close()


def test_regression_ctrl_c_ends_the_opening_of_a_tree(silent):
    options, volume = silent
    volume.stop()
    with_ctrl_c(lambda: opened(options, 120))
    volume.go_on()
    with opened(options, 120) as tree:
        assert tree.read("/big.bin", 0, 10) == BIG[:10]


def test_a_read_after_a_signal_writes_nothing_to_memory_of_the_program(silent):
    options, volume = silent
    with opened(options, 120) as tree:
        tree.info("/big.bin")
        volume.stop()
        array = bytearray(3 * MIB)
        with_ctrl_c(lambda: tree.read_into("/big.bin", 0, array))
        volume.go_on()
        # It joins the fetches that the other began, or comes after them.
        assert tree.read("/big.bin", 0, 3 * MIB) == BIG[: 3 * MIB]
        time.sleep(0.5)
        assert array == bytes(3 * MIB)


def test_another_signal_is_handled_and_the_call_goes_on(silent):
    options, volume = silent
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: (seen.append(time.monotonic()), volume.go_on()))
    try:
        with opened(options, 120) as tree:
            tree.ls("/")
            volume.stop()
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            assert tree.read("/big.bin") == BIG and len(seen) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("threaded", [False, True])
def test_regression_a_read_of_a_silent_store_is_a_timeout_with_its_reason(silent, capfd, threaded):
    # It was an OSError with EIO if the fetch had ended a moment before the read, and the reason was written to
    # standard error, which a notebook does not show.
    options, volume = silent
    failed = []

    def read(call):
        try:
            failed.append(call())
        except OSError as error:
            failed.append(error)

    def reads():
        for call in (lambda: tree.read("/big.bin"), lambda: tree.info(DEEP), lambda: tree.map("/big.bin")):
            read(call)
        failed.extend(tree.read_ranges([("/big.bin", 0, 10)]))

    with opened(options, 2) as tree:
        tree.info("/big.bin")
        volume.stop()
        capfd.readouterr()
        if threaded:
            thread = threading.Thread(target=reads)
            thread.start()
            thread.join()
        else:
            reads()
        said = capfd.readouterr()
        volume.go_on()
    assert [type(error) for error in failed] == [TimeoutError] * 4, failed
    for error in failed:
        assert "127.0.0.1" in str(error) or "answer" in str(error), error
    assert "big.bin" not in said.err and "failed" not in said.err, said.err


def test_regression_a_silent_store_is_not_an_absent_file(silent):
    # fsspec's exists, isfile and isdir take every error for "no".
    options, volume = silent
    fs = CoveyFileSystem(**options, options="deadline=1", skip_instance_cache=True)
    volume.stop()
    calls = [(fs.exists, DEEP), (fs.isfile, DEEP), (fs.isdir, DEEP), (fs.lexists, DEEP), (fs.glob, DEEP)]
    calls += [(fs.exists, "/link"), (fs.ls, "/d14"), (fs.info, "/link"), (fs.find, DEEP)]
    calls += [(fs.get_mapper("/d12").__contains__, path_of(12, 1)[5:])]
    for call, path in calls:
        with pytest.raises(TimeoutError):
            call(path)
    volume.go_on()
    deadline = time.monotonic() + 60
    while True:
        try:
            assert fs.exists(DEEP) and fs.isfile(DEEP) and not fs.isdir(DEEP) and fs.isdir("/d12")
            break
        except TimeoutError:
            assert time.monotonic() < deadline
    for path in ("/nothing", DEEP + "/below", "/" + "n" * 300):
        assert not fs.exists(path) and not fs.isfile(path) and not fs.isdir(path)
    fs.native.close()
