"""Files of a tree as Python's file objects."""

import functools
import gc
import io
import operator
import threading

import numpy
import pytest
from conftest import BIG, FILES, MIB

from coveyfs import CoveyFileSystem

TEXT = b"".join(b"%d: %s\n" % (n, b"x" * (n * 37 % 400)) for n in range(3000)) + b"no newline at the end"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    from conftest import publish

    source = tmp_path_factory.mktemp("texts")
    (source / "text").write_bytes(TEXT)
    return CoveyFileSystem(tree=publish(tmp_path_factory.mktemp("volume") / "v", source), skip_instance_cache=True)


@pytest.mark.parametrize("block_size", [1, 100, 4096, 1 << 20])
def test_it_does_what_a_file_in_memory_does(texts, block_size):
    draw = numpy.random.default_rng(block_size)
    model = io.BytesIO(TEXT)
    with texts.open("/text", block_size=block_size) as file:
        for number in range(2000 if block_size > 1 else 100):
            size = int(draw.integers(-1, 3000))
            at = int(draw.integers(len(TEXT) + 100))
            match int(draw.integers(7)):
                case 0:
                    assert file.seek(at) == model.seek(at)
                case 1:
                    assert file.read(size) == model.read(size), number
                case 2:
                    assert file.readline() == model.readline()
                case 3:
                    assert file.readline(size) == model.readline(size)
                case 4:
                    ours, theirs = bytearray(max(size, 0)), bytearray(max(size, 0))
                    assert file.readinto(ours) == model.readinto(theirs) and ours == theirs
                case 5:
                    back = -int(draw.integers(50))
                    assert file.seek(back, io.SEEK_END) == model.seek(back, io.SEEK_END)
                case 6:
                    seen = file.peek(10)
                    assert TEXT[model.tell() :].startswith(seen) and (seen or model.tell() >= len(TEXT))
            assert file.tell() == model.tell()
        file.seek(0)
        part = file.read1()
        assert part == TEXT[: min(block_size, len(TEXT))]


def test_lines_text_and_the_end(texts):
    with texts.open("/text") as file:
        assert list(file) == TEXT.splitlines(keepends=True)
        assert file.read() == file.read(5) == file.readline() == b""
        file.seek(len(TEXT) + 5)
        assert file.read() == b"" and file.tell() == len(TEXT) + 5
        assert not file.writable() and file.readable() and file.seekable()
        for wrong in (lambda: file.seek(-1), lambda: file.seek(-10, io.SEEK_CUR - 1)):
            with pytest.raises(OSError):
                wrong()
        with pytest.raises(ValueError):
            file.seek(0, 7)
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    assert file.closed
    for call in (file.read, file.tell, lambda: file.seek(0), file.readline, lambda: file.readinto(bytearray(1))):
        with pytest.raises(ValueError):
            call()
    with texts.open("/text", "rt") as file:
        assert file.read() == TEXT.decode()
        file.seek(0)
        assert file.readline() == "0: \n"


def test_arrays_are_filled(texts):
    with texts.open("/text") as file:
        array = numpy.zeros(100, "u2")
        assert file.readinto(array) == 200 and array.tobytes() == TEXT[:200]
        with pytest.raises(BufferError):
            file.readinto(memoryview(b"not writable"))


def test_regression_a_method_is_used_without_its_file(texts):
    # `fs.open(path).read()` lets go of the file before its native method runs. That closed the file.
    for _ in range(3):
        assert texts.open("/text").read() == TEXT
        assert texts.open("/text").read1(7) == TEXT[:7]
        assert texts.open("/text").readline() == TEXT.splitlines(keepends=True)[0]
        assert TEXT.startswith(texts.open("/text").peek(1)) and texts.open("/text").peek(1)
        assert texts.open("/text").seek(2) == 2 and texts.open("/text").tell() == 0
        assert b"".join(iter(texts.open("/text").readline, b"")) == TEXT
        assert b"".join(texts.open("/text")) == TEXT
        array = bytearray(5)
        assert texts.open("/text").readinto(array) == 5 and array == TEXT[:5]
    read = texts.open("/text").read
    gc.collect()
    assert read(3) == TEXT[:3] and read() == TEXT[3:]


def test_buffers_and_methods_outlive_what_they_came_from(local):
    def part(data):
        return memoryview(CoveyFileSystem(tree=local, skip_instance_cache=True).native.map("big.bin", 5, data))

    views = [part(length) for length in (10, 300_000, None)]
    read = CoveyFileSystem(tree=local, skip_instance_cache=True).native.read
    gc.collect()
    assert [bytes(view) for view in views] == [BIG[5:15], BIG[5:300_005], BIG[5:]]
    assert read("big.bin", 5, 10) == BIG[5:15]


@pytest.mark.parametrize("name, longest", [("big.bin", 300_000), ("folder/medium.bin", 5000)])
def test_regression_a_seek_and_its_read_belong_together(local, name, longest):
    # Threads that call `seek` and `read` of one file without Python code in between, as DuckDB does, got bytes
    # of another thread's place: the file was an io.BufferedReader, which lets other threads in when it waits.
    data, failed = FILES[name], []
    with CoveyFileSystem(tree=local, skip_instance_cache=True).open("/" + name, block_size=64 << 10) as file:

        def work(seed):
            draw = numpy.random.default_rng(seed)
            for _ in range(400):
                start, length = int(draw.integers(len(data))), int(draw.integers(1, longest))
                calls = [functools.partial(file.seek, start), functools.partial(file.read, length)]
                # `map` and `call` are native: no Python code runs from one to the next.
                _, found = list(map(operator.call, calls))
                if found != data[start : start + length]:
                    failed.append(start)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert not failed, len(failed)


def test_small_reads_are_read_ahead(local):
    fs = CoveyFileSystem(tree=local, skip_instance_cache=True)
    with fs.open("/big.bin", block_size=MIB) as file:
        found = b"".join(iter(lambda: file.read(1000), b""))
    assert found == BIG
    assert max(chunk["reads"] for chunk in fs.native.heat()["chunks"]) <= 4
