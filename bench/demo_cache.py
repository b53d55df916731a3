#!/usr/bin/env python3
"""Demo A: market data that is read again and again, beside the object store that holds it.

    make demo-cache                            two minutes
    make demo-cache LOBSTER=folder             with real files of LOBSTER
    make demo-cache BENCH_ARGS=--small         some seconds

An order book of 91,997 rows with 50 levels lies in a MinIO as 92 objects of 1,000 rows. Readers get one chunk after
the other: from the local CSV file, from MinIO by boto3, from a mount of an index of the bucket (three passes), and by
the same boto3 program with its connections redirected to this node's S3 endpoint. All of it on loopback, and over a
link on which a cold chunk takes 57.8 ms: a relay in the store's namespace passes all bytes on later. The figure is the time for all chunks, divided
by their number. The times of single chunks are shown (demo_show.py) after each pass, because a program that reads them
meanwhile would disturb it.
"""

import argparse
import datetime
import mmap
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import time

from access import MIB, drop_pages
from demo_net import BUCKET, KEY, SECRET, World, check, chunks, keep, options
from demo_show import bars, conduct

ROWS, CHUNKS = 1000, 92
COLD_MS = 57.8
SEED = {"loopback": 9.0, "link": 327.0}
"""How many times faster than a cold chunk the seed's cache was. It is compared with the third pass of the mount."""


# What a reader does. It prints the time of each chunk in ns.

def read_minio(endpoint, count):
    import boto3
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.head_bucket(Bucket=BUCKET)
    for number in range(count):
        begin = time.perf_counter_ns()
        client.get_object(Bucket=BUCKET, Key=f"{number:03}.csv")["Body"].read()
        yield time.perf_counter_ns() - begin


def read_files(folder, count):
    room = bytearray(4 * MIB)
    for number in range(count):
        begin = time.perf_counter_ns()
        fd, at = os.open(f"{folder}/{number:03}.csv", os.O_RDONLY), 0
        while (got := os.preadv(fd, [room], at)) == len(room):
            at += got
        os.close(fd)
        yield time.perf_counter_ns() - begin


def read_mapped(folder, count):
    """One row in the middle of each chunk, from mappings that the program keeps."""
    views = []
    for number in range(count):
        with open(f"{folder}/{number:03}.csv", "rb") as file:
            views.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    for turn in range(2):
        for view in views:
            begin = time.perf_counter_ns()
            at = view.find(b"\n", len(view) // 2) + 1
            view[at:view.find(b"\n", at)]
            if turn:
                yield time.perf_counter_ns() - begin


def read_csv(path, count):
    size = os.path.getsize(path)
    fd = os.open(path, os.O_RDONLY)
    for number in range(count):
        begin = time.perf_counter_ns()
        os.pread(fd, size // count, size // count * number)
        yield time.perf_counter_ns() - begin


READERS = {"minio": read_minio, "files": read_files, "mapped": read_mapped, "csv": read_csv}


def timed(world, name, kind, where, count, cgroup=None):
    """Runs a reader in a namespace. Returns the time of each chunk in ms."""
    enter = lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid())) if cgroup else None
    done = subprocess.run(world.inside(name, sys.executable, __file__, "--read", kind, where, count), env=world.env, capture_output=True,
                          text=True, preexec_fn=enter)
    if done.returncode != 0:
        raise SystemExit(f"reading {kind}: {done.stderr.strip()[-500:]}")
    return [int(ns) / 1e6 for ns in done.stdout.split()]


def lengthen(world, store, node, listen, to, count):
    """Delays what comes and goes until a cold chunk takes as long as the seed's. Returns the delay each way in ms."""
    delay, most = 10.0, min(count, 15)
    for _ in range(6):
        relay = world.relay(store, listen, to, delay)
        took = statistics.mean(timed(world, node, "minio", f"http://{listen}", most))
        if abs(took - COLD_MS) < 1.5:
            break
        delay = max(0.1, delay + (COLD_MS - took) / 2)
        world.stop(relay)
    else:
        world.relay(store, listen, to, delay)
    return delay


def gateway(world, node, endpoint, place):
    keys = world.folder / f"keys-{place}.toml"
    keys.touch(mode=0o600)
    keys.write_text(f'[[key]]\naccess_key = "{KEY}"\nsecret_key = "{SECRET}"\nbuckets = {{ {BUCKET} = "read" }}\n')
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = world.start(node, world.covey, "s3", "--listen", "127.0.0.1:9878", "--keys", keys, "--endpoint", endpoint, "--cache",
                         world.folder / f"s3-{place}", "--revalidate", "60s", f"{BUCKET}=s3://{BUCKET}", **quiet)
    cgroup = world.cgroup()
    redirect = world.start(node, world.covey, "watch", "redirect", cgroup, "--store", endpoint.removeprefix("http://"), "--gateway",
                           "127.0.0.1:9878", **quiet)
    time.sleep(3)
    for process in (server, redirect):
        if process.poll() is not None:
            raise SystemExit("covey s3 or covey watch redirect ended at once; covey watch status says what the kernel permits")
    return cgroup, (server, redirect)


def measure(world, place, parts, book, show):
    """The mean for a chunk of each reader in ms, so that what read-ahead does in between counts; and the link's delay."""
    show.step(f"{place}: filling MinIO")
    node = world.namespace(f"{place}-node")
    count, store, delay, took = len(parts), node, 0.0, {}
    if place == "link":
        store = world.namespace(f"{place}-store")
        world.link(node, store, "10.88.0")
    endpoint = world.store(store, "127.0.0.1:9001", world.folder / f"store-{place}")
    folder = world.folder / "chunks"
    if not folder.exists():
        folder.mkdir()
        for number, part in enumerate(parts):
            (folder / f"{number:03}.csv").write_bytes(part)
    world.fill(store, endpoint, folder)
    if place == "link":
        delay = lengthen(world, store, node, "10.88.0.2:9000", "127.0.0.1:9001", count)
        endpoint = "http://10.88.0.2:9000"

    def reader(name, kind, where, cgroup=None):
        show.step(f"{place}: {SAYS[name]}")
        every = timed(world, node, kind, where, count, cgroup)
        for number, ms in enumerate(every):
            show.point(place, SAYS[name], number, ms, "ms")
        took[name] = statistics.mean(every)

    drop_pages()
    reader("csv", "csv", book)
    drop_pages()
    reader("minio", "minio", endpoint)
    tree, at = world.index(node, endpoint, world.folder / f"volume-{place}"), world.folder / f"at-{place}"
    world.mount(node, tree, at, "--cache", world.folder / f"cache-{place}")
    for number in (1, 2, 3):
        reader(f"pass {number}", "files", at)
    reader("mapped", "mapped", at)
    world.umount(at)
    cgroup, processes = gateway(world, node, endpoint, place)
    for number in (1, 2, 3):
        reader(f"redirected {number}", "minio", endpoint, cgroup)
    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    world.drop(cgroup)
    return took, delay


SAYS = {
    "csv": "local CSV file, cold", "minio": "MinIO by boto3, cold", "pass 1": "mount, first pass", "pass 2": "mount, second pass",
    "pass 3": "mount, third pass", "mapped": "mount, mapped: one row of a chunk", "redirected 1": "boto3 redirected, first pass",
    "redirected 2": "boto3 redirected, second pass", "redirected 3": "boto3 redirected, third pass",
}


def table(results):
    """The table's head and its rows."""
    head, rows = ["a chunk of 1,000 rows"], []
    for place in results:
        head += [place, f"{place}: faster than MinIO", f"{place}: seed"]
    for kind, says in SAYS.items():
        row = [says]
        for place, took in results.items():
            ms = took[kind]
            # One row is less than the chunk that the others read.
            compared = kind not in ("mapped", "minio")
            row += [f"{ms:.3f} ms" if ms >= 0.01 else f"{ms * 1000:.1f} us", f"{took['minio'] / ms:,.1f} x" if compared else "",
                    f"{SEED[place]:.1f} x" if kind == "pass 3" else ""]
        rows.append(row)
    return head, rows


def chart(results):
    rows = [(says, [(place, took[kind]) for place, took in results.items()]) for kind, says in SAYS.items()]
    return bars("Time for a chunk of 1,000 rows", "ms", rows, logarithmic=True)


def work(args, show):
    check("demo-cache", args)
    show.steps = 2 * (len(SAYS) + 1)
    with World(args.covey, args.minio, args.scratch) as world:
        book, parts, says = chunks(args, world.folder, ROWS, 5 if args.small else CHUNKS)
        results, delays = {}, {}
        for place in ("loopback", "link"):
            results[place], delays[place] = measure(world, place, parts, book, show)
    facts = f"{datetime.date.today()}, {platform.node()}, Linux {platform.release()}, {os.cpu_count()} processors, {says}: {len(parts)} chunks of " \
            f"{len(parts[0]) / 1e6:.2f} MB; the link delays by {delays['link']:.1f} ms each way"
    keep(args, "demo-cache", f"# Market data read again and again\n\n{facts}. Means for a chunk.\n\n{show.table(*table(results))}\n",
         {"facts": facts, "ms": results, "delay_ms": delays}, chart(results))


def main():
    ask = options(__doc__, "demo-cache", "few chunks")
    ask.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    args = ask.parse_args()
    if args.read:
        kind, where, count = args.read
        print(*READERS[kind](where, int(count)))
        return 0
    return conduct("cache", lambda show: work(args, show))


if __name__ == "__main__":
    sys.exit(main())
