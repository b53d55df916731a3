#!/usr/bin/env python3
"""What it costs to read from Python: coveyfs beside s3fs, and beside local files.

    make bench-python                                  all of it, some minutes
    make bench-python BENCH_ARGS="--rounds 5 --files 100"

- `column`: `cat_ranges` of one column of many Parquet files, in one call. Cold from the same MinIO on loopback,
  coveyfs beside s3fs: a new process, an empty cache, and the kernel's pages dropped. Opening the filesystem and
  listing the folder is measured apart from the call. The same from a store that answers after 20 ms (the
  tests' `serve-s3`, --store). Warm, coveyfs beside fsspec's local filesystem: the same call again, in the same
  process.
- `weights`: a safetensors file that is mapped (`Tree.map`, without a copy), and every tensor summed. Warm,
  beside a local file that is mapped by `mmap`.

Each work runs in a new process, in turns on all places, and prints a hash of what it read; the hashes are
compared. Targets are printed and not asserted. Needs root, for dropping the kernel's pages.
"""

import argparse
import datetime
import hashlib
import json
import mmap
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from access import MIB, drop_pages, run, start_minio

ROWS = 40_000
COLUMNS = ["time", "price", "size", "bid", "ask", "depth"]
COLUMN = "price"
TENSORS = 16
DELAY_MS = 20
WARM = 7  # how often a warm work is repeated in its process


def make(folder, files, mebibytes):
    """Creates the Parquet files, the weights, and the list of the ranges of the column."""
    import numpy
    import pyarrow
    import pyarrow.parquet
    import safetensors.numpy
    draw = numpy.random.default_rng(7)
    ranges = []
    for number in range(files):
        name = f"ticks/day-{number:03}.parquet"
        table = pyarrow.table({column: draw.random(ROWS) for column in COLUMNS})
        (folder / name).parent.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table, folder / name, compression="none", use_dictionary=False)
        about = pyarrow.parquet.read_metadata(folder / name)
        for group in range(about.num_row_groups):
            part = about.row_group(group).column(COLUMNS.index(COLUMN))
            start = part.data_page_offset
            ranges.append((name, start, start + part.total_compressed_size))
    each = mebibytes * MIB // TENSORS // 4
    tensors = {f"layer.{number}": draw.random(each, "f4") for number in range(TENSORS)}
    safetensors.numpy.save_file(tensors, folder / "weights.safetensors")
    return ranges


# The works. Each runs in its own process. It returns seconds and what it read: first the seconds of opening
# (column) or of the first time (weights), then those of each repetition.

def filesystem(place):
    """The filesystem of a place, and what precedes a name there."""
    if place["name"] == "coveyfs":
        from coveyfs import CoveyFileSystem
        return CoveyFileSystem(**place["options"]), "/"
    if place["name"] == "s3fs":
        from s3fs import S3FileSystem
        return S3FileSystem(client_kwargs={"endpoint_url": place["endpoint"]}), place["folder"] + "/"
    from fsspec.implementations.local import LocalFileSystem
    return LocalFileSystem(), place["folder"] + "/"


def column(place, ranges, repeats):
    filesystem_of = {"coveyfs": "coveyfs", "s3fs": "s3fs"}.get(place["name"], "fsspec")
    __import__(filesystem_of)
    begin = time.perf_counter()
    fs, before = filesystem(place)
    fs.ls(before + "ticks", detail=True)
    seconds, found = [time.perf_counter() - begin], None
    paths, starts, ends = zip(*((before + name, start, end) for name, start, end in ranges))
    for _ in range(repeats):
        begin = time.perf_counter()
        found = fs.cat_ranges(list(paths), list(starts), list(ends), on_error="raise")
        seconds.append(time.perf_counter() - begin)
    return seconds, found


def weights(place, ranges, repeats):
    import numpy
    if place["name"] == "coveyfs":
        fs, _ = filesystem(place)
    seconds, sums, copied = [], [], False
    for _ in range(repeats):
        begin = time.perf_counter()
        if place["name"] == "coveyfs":
            buffer = fs.native.map("weights.safetensors")
            copied = copied or not buffer.is_zero_copy
            view = memoryview(buffer)
        else:
            with open(place["folder"] + "/weights.safetensors", "rb") as file:
                view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        head = int.from_bytes(view[:8], "little")
        about = json.loads(bytes(view[8:8 + head]))
        about.pop("__metadata__", None)
        sums = []
        for name in sorted(about):
            start, end = about[name]["data_offsets"]
            sums.append(numpy.frombuffer(view[8 + head + start:8 + head + end], "f4").sum().tobytes())
        seconds.append(time.perf_counter() - begin)
    if copied and repeats > 1:
        raise SystemExit("the weights were copied and not mapped")
    return seconds, sums


def fill(place, ranges, repeats):
    """Brings every byte onto this machine's disk. Not measured."""
    fs, before = filesystem(place)
    for name in {name for name, _, _ in ranges} | {"weights.safetensors"}:
        fs.cat_file(before + name)
    return [0.0], []


WORKS = {"column": column, "weights": weights, "fill": fill}


def measure(name, place, ranges, repeats):
    """The times of a work in a new process, and a hash of what it read."""
    order = json.dumps({"place": place, "ranges": str(ranges), "repeats": repeats})
    said = json.loads(run(sys.executable, __file__, "--work", name, order, env=os.environ | (place.get("env") or {})))
    return said["seconds"], said["digest"]


def work(name, order):
    order = json.loads(order)
    ranges = json.loads(pathlib.Path(order["ranges"]).read_text())
    seconds, found = WORKS[name](order["place"], ranges, order["repeats"])
    print(json.dumps({"seconds": seconds, "digest": hashlib.sha256(b"".join(found)).hexdigest()}))


class Samples:
    """Seconds by cell, and what was read by work."""

    def __init__(self, ranges):
        self.ranges, self.seconds, self.digests = ranges, {}, {}

    def add(self, cell, seconds):
        self.seconds.setdefault(cell, []).append(seconds)

    def take(self, cell, name, place, repeats):
        """Measures a work. Returns the seconds of its first step."""
        seconds, digest = measure(name, place, self.ranges, repeats)
        self.digests.setdefault(name, set()).add(digest)
        self.add(cell, statistics.median(seconds[1 if repeats == 1 else 2:]))
        return seconds[0]

    def cold(self, place, cell, scratch):
        """The column from a store, with nothing on this machine."""
        empty = scratch / "empty-cache"
        shutil.rmtree(empty, ignore_errors=True)
        drop_pages()
        if "options" in place:
            place = {**place, "options": {**place["options"], "cache_dir": str(empty)}}
        self.add(f"{cell} open", self.take(f"{cell} cold", "column", place, 1))


def in_turns(turn, *names):
    return names if turn % 2 == 0 else names[::-1]


def measure_all(args, scratch):
    files = scratch / "files"
    files.mkdir()
    ranges = make(files, args.files, args.weights)
    (scratch / "ranges.json").write_text(json.dumps(ranges))
    samples = Samples(scratch / "ranges.json")
    server, endpoint = start_minio(args.minio, scratch, ("covey-volume", "files"))
    away = None
    try:
        places = prepare(args, scratch, files, endpoint, "covey-volume", "files")
        measure("fill", places["coveyfs"], samples.ranges, 1)
        if args.store:
            away, said = start_away(args.store, scratch)
            keys = {name: value for name, value in said.items() if name.startswith("AWS_")}
            far = prepare(args, scratch, files, said["ENDPOINT"], said["BUCKET"], f"{said['BUCKET']}/files", keys)
        for turn in range(args.rounds):
            for who in in_turns(turn, "coveyfs", "s3fs"):
                samples.cold(places[who], who, scratch)
                if away:
                    samples.cold(far[who], f"{who} away", scratch)
            for who in in_turns(turn, "coveyfs", "local"):
                samples.take(f"{who} warm", "column", places[who], WARM + 1)
                samples.add(f"{who} first", samples.take(f"{who} weights", "weights", places[who], WARM + 1))
        if any(len(different) != 1 for different in samples.digests.values()):
            raise SystemExit("the places did not give the same bytes")
    finally:
        for process in filter(None, (server, away)):
            process.kill()
            process.wait()
    return samples.seconds, ranges


def start_away(program, scratch):
    """A store that answers later. Returns its process, its endpoint and its bucket."""
    store = subprocess.Popen([program, "--delay-ms", str(DELAY_MS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True, env=os.environ | {"TMPDIR": str(scratch)})
    said = {}
    for line in store.stdout:
        name, value = line.rstrip("\n").split("=", 1)
        said[name] = value
        if name == "READY":
            break
    return store, said


def prepare(args, scratch, files, endpoint, bucket, folder, keys=None):
    """Puts the files into a store as objects and as a published tree. Returns the places. `keys` are the
    environment of the store's clients, if they are not in this one."""
    from s3fs import S3FileSystem
    env = os.environ | (keys or {})
    names = {"key": env["AWS_ACCESS_KEY_ID"], "secret": env["AWS_SECRET_ACCESS_KEY"]}
    store = S3FileSystem(client_kwargs={"endpoint_url": endpoint}, **names)
    store.put(f"{files}/", f"{folder}/", recursive=True)
    volume = pathlib.Path(tempfile.mkdtemp(dir=scratch)) / "volume"
    run(args.covey, "format", volume, "--origin", f"s3://{bucket}/tree", "--endpoint", endpoint, env=env)
    run(args.covey, "import", files, f"{volume}:/", env=env)
    run(args.covey, "publish", volume, "bench", env=env)
    options = {"tree": f"s3://{bucket}/tree@bench", "endpoint": endpoint, "cache_dir": str(scratch / "cache"),
               "options": "cache_size=8G,cache_floor=64M"}
    return {
        "coveyfs": {"name": "coveyfs", "options": options, "env": keys},
        "s3fs": {"name": "s3fs", "endpoint": endpoint, "folder": folder, "env": keys},
        "local": {"name": "local", "folder": str(files)},
    }


def report(args, samples, ranges):
    middle = {cell: statistics.median(seconds) for cell, seconds in samples.items()}
    size = sum(end - start for _, start, end in ranges) / MIB
    met = lambda good: "met" if good else "**not met**"
    cold = middle["s3fs cold"] / middle["coveyfs cold"]
    away = middle["s3fs away cold"] / middle["coveyfs away cold"] if "s3fs away cold" in middle else None
    warm = middle["coveyfs warm"] / middle["local warm"]
    maps = middle["coveyfs weights"] / middle["local weights"]
    ms = lambda cell: f"{middle[cell] * 1000:.1f} ms"
    lines = [
        f"| work | coveyfs | beside | target | measured |", "|---|---:|---:|---|---|",
        f"| one column of {args.files} Parquet files ({size:.0f} MiB), `cat_ranges`, cold | {ms('coveyfs cold')} | "
        f"s3fs {ms('s3fs cold')} | at least 3 x as fast | {cold:.2f} x, {met(cold >= 3)} |",
        f"| before it: open, and list the folder, cold | {ms('coveyfs open')} | s3fs {ms('s3fs open')} | none | |",
    ]
    if away:
        lines.append(f"| the column, cold, from a store that answers after {DELAY_MS} ms | {ms('coveyfs away cold')} | "
                     f"s3fs {ms('s3fs away cold')} | at least 3 x as fast | {away:.2f} x, {met(away >= 3)} |")
    lines += [
        f"| the column again, warm | {ms('coveyfs warm')} | local files {ms('local warm')} | at most 1.2 x | "
        f"{warm:.2f} x, {met(warm <= 1.2)} |",
        f"| safetensors of {args.weights} MiB mapped, every tensor summed, warm | {ms('coveyfs weights')} | "
        f"a local file {ms('local weights')} | at most 1.1 x | {maps:.2f} x, {met(maps <= 1.1)} |",
        f"| the same, first time in a process: coveyfs compares checksums | {ms('coveyfs first')} | "
        f"a local file {ms('local first')} | none | |",
    ]
    facts = f"{datetime.date.today()}, {platform.node()}, Linux {platform.release()}, {os.cpu_count()} processors, " \
            f"Python {platform.python_version()}, {args.rounds} rounds"
    text = f"# From Python\n\n{facts}. Medians. Samples: `python.json`.\n\n" + "\n".join(lines) + "\n"
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / "python.md").write_text(text)
        (args.results / "python.json").write_text(json.dumps({"facts": facts, "samples": samples}, indent=1))


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--covey", help="the program covey")
    ask.add_argument("--minio", help="the program minio")
    ask.add_argument("--store", help="the program serve-s3, for a store that answers later; without it there is no such row")
    ask.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder of the disk that is measured")
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--files", type=int, default=200, help="Parquet files of 1.9 MB")
    ask.add_argument("--weights", type=int, default=256, help="MiB of the safetensors file")
    ask.add_argument("--results", type=pathlib.Path, help="a folder in which python.md and python.json are kept")
    ask.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = ask.parse_args()
    if args.work:
        return work(*args.work)
    if os.geteuid() != 0:
        raise SystemExit("bench-python needs root: it drops the kernel's pages")
    if not args.covey or not args.minio or not shutil.which(args.minio):
        raise SystemExit("bench-python needs --covey and --minio: `make minio` builds one; `make bench-python` finds both")
    if min(args.rounds, args.files, args.weights) < 1:
        raise SystemExit("--rounds, --files and --weights are at least 1")
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="covey-python-") as scratch:
        report(args, *measure_all(args, pathlib.Path(scratch)))
    return None


if __name__ == "__main__":
    sys.exit(main())
