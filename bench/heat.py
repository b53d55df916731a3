#!/usr/bin/env python3
"""What the kernel's view of a mount buys for the cache: three traces, with and without it.

    make bench-heat                            about six minutes
    make bench-heat BENCH_ARGS="--seconds 40"

A published tree lies in a MinIO on loopback. It is mounted twice, with a cache of a third of its size: once with
`--heat`, where eBPF programs count the reads that the page cache answers, and once with `--heat=daemon`, where the
daemon counts its requests. Both mounts get the same reads at the same time. The figure is what each then fetched
from the store. Whether the page cache keeps a file is part of a trace: a file that it does not keep is dropped from
it by posix_fadvise(2) after each read. Needs root and eBPF.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from access import MIB, drop_pages, run, start_minio

FILES, SIZE = 64, 16 * MIB
CACHE = "384M"
HOT = 12
"""Files of the hot set."""


class Reader:
    """Reads whole files from several mounts, and counts the bytes."""

    def __init__(self, mounts):
        self.mounts, self.bytes = mounts, 0

    def read(self, number, keep):
        for mount in self.mounts:
            fd = os.open(mount.at / f"{number:03}", os.O_RDONLY)
            for at in range(0, SIZE, MIB):
                os.pread(fd, MIB, at)
            if not keep:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        self.bytes += SIZE

    def drop(self, number):
        for mount in self.mounts:
            fd = os.open(mount.at / f"{number:03}", os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def scans(reader, seconds):
    """Programs read the hot set again and again, from the page cache. Now and then all others are read once, which
    needs the memory: the page cache then drops the hot set."""
    cycle = seconds / 3
    for _ in range(3):
        end = time.monotonic() + cycle
        while time.monotonic() < end:
            for number in range(HOT):
                reader.read(number, keep=True)
            time.sleep(1)
        for number in range(HOT, FILES):
            reader.read(number, keep=False)
        for number in range(HOT):
            reader.drop(number)
    for number in range(HOT):
        reader.read(number, keep=True)


def popular(reader, seconds, kept):
    """Files by their rank, with Zipf's law. The page cache keeps the first `kept`."""
    draw = random.Random(7)
    weights = [1 / (rank + 1) for rank in range(FILES)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = draw.choices(range(FILES), weights)[0]
        reader.read(number, keep=number < kept)
        time.sleep(0.5)


TRACES = {
    "scans": (scans, f"{HOT} files from the page cache all the time, 3 scans of the other {FILES - HOT}"),
    "popular": (lambda reader, seconds: popular(reader, seconds, 0), f"Zipf over {FILES} files, the page cache keeps none"),
    "kept": (lambda reader, seconds: popular(reader, seconds, HOT), f"the same, the page cache keeps the first {HOT} all the time"),
}


class Mount:
    def __init__(self, covey, scratch, name, endpoint, heat):
        self.covey, self.at, self.cache, self.name = covey, scratch / f"at-{name}", scratch / f"cache-{name}", name
        self.words = ["s3://covey-volume/tree@bench", self.at, "--endpoint", endpoint, "--cache", self.cache,
                      "-o", f"cache_size={CACHE}", *heat]
        self.at.mkdir()

    def mount(self):
        shutil.rmtree(self.cache, ignore_errors=True)
        run(self.covey, "mount", "-d", *self.words)
        if self.name != "kernel":
            return
        view = json.loads(run(self.covey, "heat", self.at, "--json"))
        if view["view"] != "kernel":
            raise SystemExit(f"no view of the kernel here: {'; '.join(view['unseen'])}")

    def fetched(self):
        return json.loads(run(self.covey, "status", self.at, "--json"))["far"]["requests"]["received_bytes"]

    def end(self):
        subprocess.run([self.covey, "umount", self.at], capture_output=True)


def measure(mounts, name, seconds):
    drop_pages()
    for mount in mounts:
        mount.mount()
    try:
        for mount in mounts:
            run("cat", mount.at / f"{FILES - 1:03}", stdin=subprocess.DEVNULL, encoding="latin-1")
        before = {mount.name: mount.fetched() for mount in mounts}
        reader = Reader(mounts)
        TRACES[name][0](reader, seconds)
        time.sleep(1)
        fetched = {mount.name: mount.fetched() - before[mount.name] for mount in mounts}
        heat = json.loads(run(mounts[0].covey, "heat", mounts[0].at, "--json"))
    finally:
        for mount in mounts:
            mount.end()
    return {"read": reader.bytes, "fetched": fetched, "protected": heat["protected"], "events": heat["events"]}


def cost(mounts, rounds=15):
    """The time to read a file from the page cache by preads of a size: ns for each, by mount, in turns."""
    for mount in mounts:
        mount.mount()
    try:
        times = {}
        for size in (4096, 128 << 10):
            files = {mount.name: os.open(mount.at / "000", os.O_RDONLY) for mount in mounts}
            places = [at for _ in range(4) for at in range(0, SIZE, size)]
            taken = {mount.name: [] for mount in mounts}
            for turn in range(-2, rounds):
                for name in list(files)[::1 if turn % 2 else -1]:
                    fd, begin = files[name], time.perf_counter_ns()
                    for at in places:
                        os.pread(fd, size, at)
                    if turn >= 0:
                        taken[name].append((time.perf_counter_ns() - begin) / len(places))
            times[str(size)] = taken
            for fd in files.values():
                os.close(fd)
        heat = json.loads(run(mounts[0].covey, "heat", mounts[0].at, "--json"))
    finally:
        for mount in mounts:
            mount.end()
    return {"times": times, "delay_us": heat["delay_us"]}


def cost_table(results):
    lines = ["| pread from the page cache | counted by eBPF ns | not counted ns | ratio |", "|---|---|---|---|"]
    for size, taken in results["times"].items():
        with_it, without = (statistics.median(taken[name]) for name in ("kernel", "plain"))
        lines.append(f"| {int(size) >> 10} KiB | {with_it:.0f} | {without:.0f} | {with_it / without:.3f} |")
    return "\n".join(lines) + f"\n\nThe daemon knew of a hot part after {results['delay_us']} us at most.\n"


def table(results):
    lines = ["| trace | read MiB | fetched MiB, kernel's view | fetched MiB, daemon's | ratio | hit ratio, kernel's | daemon's |",
             "|---|---|---|---|---|---|---|"]
    for name, row in results.items():
        kernel, daemon = row["fetched"]["kernel"], row["fetched"]["daemon"]
        hits = lambda fetched: f"{max(0.0, 1 - fetched / row['read']):.3f}"
        lines.append(f"| {TRACES[name][1]} | {row['read'] / MIB:.0f} | {kernel / MIB:.0f} | {daemon / MIB:.0f} | "
                     f"{kernel / max(daemon, 1):.2f} | {hits(kernel)} | {hits(daemon)} |")
    return "\n".join(lines)


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--covey", help="the program covey")
    ask.add_argument("--minio", help="the program minio")
    ask.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder of a disk")
    ask.add_argument("--seconds", type=float, default=90, help="the length of each trace")
    ask.add_argument("--results", type=pathlib.Path, help="a folder in which heat.md and heat.json are kept")
    args = ask.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("bench-heat needs root: it loads eBPF programs and drops the kernel's pages")
    if not args.covey or not args.minio or not shutil.which(args.minio):
        raise SystemExit("bench-heat needs --covey and --minio: `make minio` builds one; `make bench-heat` finds both")
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="covey-heat-") as scratch:
        measure_all(args, pathlib.Path(scratch))


def measure_all(args, scratch):
    server, endpoint = start_minio(args.minio, scratch)
    try:
        volume, at = scratch / "volume", scratch / "at"
        at.mkdir()
        run(args.covey, "format", volume, "--origin", "s3://covey-volume/tree", "--endpoint", endpoint)
        run(args.covey, "mount", "-d", volume, at)
        try:
            for number in range(FILES):
                (at / f"{number:03}").write_bytes(os.urandom(SIZE))
            run(args.covey, "publish", at, "bench")
        finally:
            run(args.covey, "umount", at)
        mounts = [Mount(args.covey, scratch, "kernel", endpoint, ["--heat"]),
                  Mount(args.covey, scratch, "daemon", endpoint, ["--heat=daemon"])]
        results = {name: measure(mounts, name, args.seconds) for name in TRACES}
        costs = cost([mounts[0], Mount(args.covey, scratch, "plain", endpoint, [])])
    finally:
        server.kill()
        server.wait()
    facts = f"{datetime.date.today()}, {platform.node()}, Linux {platform.release()}, {os.cpu_count()} processors, " \
            f"{FILES} files of {SIZE // MIB} MiB, cache {CACHE}, {args.seconds:.0f} s for each trace"
    text = f"# What the kernel's view buys\n\n{facts}.\n\n{table(results)}\n\n{cost_table(costs)}"
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / "heat.md").write_text(text)
        (args.results / "heat.json").write_text(json.dumps({"facts": facts, "samples": results, "cost": costs}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
