#!/usr/bin/env python3
"""Demo A: market data that is read again and again, beside the object store that holds it.

    make demo-cache                            two minutes
    make demo-cache LOBSTER=folder             with real files of LOBSTER
    make demo-cache BENCH_ARGS=--small         some seconds

An order book of 91,997 rows with 50 levels lies in a MinIO as 92 objects of 1,000 rows. Readers get one chunk after
the other: from the local CSV file, from MinIO by boto3, from a mount of an index of the bucket (three passes), and by
the same boto3 program with its connections redirected to this node's S3 endpoint. All of it on loopback, and over a
link on which a cold chunk takes 57.8 ms: a relay in the store's namespace passes all bytes on later. The figure is the time for all chunks, divided
by their number.
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
import tempfile
import time

from access import MIB, drop_pages
from demo_net import BUCKET, KEY, SECRET, World, check, chunks, keep

ROWS, CHUNKS = 1000, 92
COLD_MS = 57.8
SEED = {"loopback": 9.0, "link": 327.0}
"""How many times faster than a cold chunk the seed's cache was."""


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
    """Runs a reader in a namespace. Returns the mean for a chunk in ms, so that what read-ahead does in between counts."""
    enter = lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid())) if cgroup else None
    done = subprocess.run(world.inside(name, sys.executable, __file__, "--read", kind, where, count), env=world.env, capture_output=True,
                          text=True, preexec_fn=enter)
    if done.returncode != 0:
        raise SystemExit(f"reading {kind}: {done.stderr.strip()[-500:]}")
    return statistics.mean(map(int, done.stdout.split())) / 1e6


def lengthen(world, store, node, listen, to, count):
    """Delays what comes and goes until a cold chunk takes as long as the seed's. Returns the delay each way in ms."""
    delay, most = 10.0, min(count, 15)
    for _ in range(6):
        relay = world.relay(store, listen, to, delay)
        took = timed(world, node, "minio", f"http://{listen}", most)
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


def measure(world, place, parts, book):
    node = world.namespace(f"{place}-node")
    count, store, delay = len(parts), node, 0.0
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
    drop_pages()
    took = {"csv": timed(world, node, "csv", book, count)}
    say = lambda what: print(f"{place}: {what}", file=sys.stderr, flush=True)
    drop_pages()
    took["minio"] = timed(world, node, "minio", endpoint, count)
    say("MinIO is read")
    tree, at = world.index(node, endpoint, world.folder / f"volume-{place}"), world.folder / f"at-{place}"
    world.mount(node, tree, at, "--cache", world.folder / f"cache-{place}")
    for number in (1, 2, 3):
        took[f"pass {number}"] = timed(world, node, "files", at, count)
    took["mapped"] = timed(world, node, "mapped", at, count)
    world.umount(at)
    say("the mount is read")
    cgroup, processes = gateway(world, node, endpoint, place)
    for number in (1, 2, 3):
        took[f"redirected {number}"] = timed(world, node, "minio", endpoint, count, cgroup)
    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    world.cgroups.pop().rmdir()
    say("the redirected client has read")
    return took, delay


SAYS = {
    "csv": "local CSV file, cold", "minio": "MinIO by boto3, cold", "pass 1": "mount, first pass", "pass 2": "mount, second pass",
    "pass 3": "mount, third pass", "mapped": "mount, mapped: one row of a chunk", "redirected 1": "boto3 redirected, first pass",
    "redirected 2": "boto3 redirected, second pass", "redirected 3": "boto3 redirected, third pass",
}


def table(results):
    head = ["| a chunk of 1,000 rows |", "|---|"]
    for place in results:
        head[0] += f" {place} ms | faster than MinIO cold |"
        head[1] += "---:|---:|"
    lines = list(head)
    for kind, says in SAYS.items():
        # One row is less than the chunk that the others read.
        faster = lambda took: "" if kind == "mapped" else f"{took['minio'] / took[kind]:,.1f} x"
        cells = "".join(f" {took[kind]:.4f} | {faster(took)} |" for took in results.values())
        lines.append(f"| {says} |{cells}")
    seed = "".join(f" | {SEED[place]:.1f} x |" for place in results)
    return "\n".join([*lines, f"| the seed's cache |{seed}"])


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("covey", "minio", "bench"):
        ask.add_argument(f"--{option}", help=f"the program {option if option != 'bench' else 'covey-bench'}")
    ask.add_argument("--lobster", help="a folder with real files of LOBSTER")
    ask.add_argument("--small", action="store_true", help="few chunks")
    ask.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder of a disk")
    ask.add_argument("--results", type=pathlib.Path, help="a folder in which demo-cache.md and demo-cache.json are kept")
    ask.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    args = ask.parse_args()
    if args.read:
        kind, where, count = args.read
        print(*READERS[kind](where, int(count)))
        return
    check("demo-cache", args)
    with World(args.covey, args.minio, args.scratch) as world:
        book, parts, says = chunks(args, world.folder, ROWS, 5 if args.small else CHUNKS)
        results, delays = {}, {}
        for place in ("loopback", "link"):
            results[place], delays[place] = measure(world, place, parts, book)
    facts = f"{datetime.date.today()}, {platform.node()}, Linux {platform.release()}, {os.cpu_count()} processors, {says}: {len(parts)} chunks of " \
            f"{len(parts[0]) / 1e6:.2f} MB; the link delays by {delays['link']:.1f} ms each way"
    keep(args, "demo-cache", f"# Market data read again and again\n\n{facts}. Means for a chunk.\n\n{table(results)}\n",
         {"facts": facts, "ms": results, "delay_ms": delays})


if __name__ == "__main__":
    sys.exit(main())
