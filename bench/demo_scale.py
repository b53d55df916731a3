#!/usr/bin/env python3
"""Demo B: the same data read by 1, 2, 4 and 8 nodes, each with a store of its own.

    make demo-scale                            four minutes
    make demo-scale BENCH_ARGS=--small         some seconds

The chunks of an order book are divided among the nodes, each part without gaps. A node is a network namespace with a
MinIO and a mount of an index of its bucket, with an empty cache. Its loopback device is limited (tbf), so that the
link and not the processors of this machine is what nodes have more of. The time is from when all may start until the
last one has read.
"""

import argparse
import datetime
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

from access import MIB, run
from demo_net import World, check, chunks, keep

ROWS, CHUNKS = 1000, 92
TARGETS = {2: 1.95, 8: 7.8}
SEED = {2: 1.95}


def read(folder, begin):
    """Reads all files of a folder from a moment on. Prints the bytes."""
    room, total = bytearray(4 * MIB), 0
    names = sorted(os.listdir(folder))
    time.sleep(max(0.0, float(begin) - time.time()))
    for name in names:
        fd, at = os.open(f"{folder}/{name}", os.O_RDONLY), 0
        while got := os.preadv(fd, [room], at):
            at += got
        os.close(fd)
        total += at
    print(total, time.time())


def measure(args, nodes, files):
    """The seconds until all have read, and the bytes."""
    with World(args.covey, args.minio, args.scratch) as world:
        share, places = -(-len(files) // nodes), []
        for number in range(nodes):
            node, own = world.namespace(f"{nodes}-{number}"), world.folder / f"{number}"
            part = own / "part"
            part.mkdir(parents=True)
            for at, bytes_of in list(enumerate(files))[number * share:(number + 1) * share]:
                (part / f"{at:05}.csv").write_bytes(bytes_of)
            endpoint = world.store(node, "127.0.0.1:9000", own / "store")
            world.fill(node, endpoint, part)
            tree = world.index(node, endpoint, own / "volume")
            run("tc", "-n", node, "qdisc", "replace", "dev", "lo", "root", "tbf", "rate", f"{args.mbit}mbit", "burst", "256kb", "latency", "100ms")
            world.mount(node, tree, own / "at", "--cache", own / "cache")
            places.append((node, own / "at"))
        os.sync()
        begin = time.time() + 2 + nodes / 4
        readers = [world.start(node, sys.executable, __file__, "--read", at, begin, stdout=subprocess.PIPE, text=True)
                   for node, at in places]
        said = [reader.communicate()[0].split() for reader in readers]
        if any(reader.returncode for reader in readers):
            raise SystemExit("a reader failed")
        return max(float(end) for _, end in said) - begin, sum(int(total) for total, _ in said)


def table(results):
    alone = results[0]["seconds"]
    lines = ["| nodes | seconds | MB/s | MB/s a node | faster than one | target | seed |", "|---:|---:|---:|---:|---:|---:|---:|"]
    for row in results:
        nodes, rate = row["nodes"], row["bytes"] / 1e6 / row["seconds"]
        target, seed = (f"{value[nodes]:.2f} x" if nodes in value else "" for value in (TARGETS, SEED))
        lines.append(f"| {nodes} | {row['seconds']:.2f} | {rate:.1f} | {rate / nodes:.1f} | {alone / row['seconds']:.2f} x | {target} | {seed} |")
    return "\n".join(lines)


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("covey", "minio", "bench"):
        ask.add_argument(f"--{option}", help=f"the program {option if option != 'bench' else 'covey-bench'}")
    ask.add_argument("--lobster", help="a folder with real files of LOBSTER")
    ask.add_argument("--mb", type=int, default=600, help="megabytes in all")
    ask.add_argument("--mbit", type=int, default=100, help="the rate of each node's link in Mbit/s")
    ask.add_argument("--nodes", default="1,2,4,8", help="how many nodes")
    ask.add_argument("--small", action="store_true", help="20 MB on one and two nodes")
    ask.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder of a disk")
    ask.add_argument("--results", type=pathlib.Path, help="a folder in which demo-scale.md and demo-scale.json are kept")
    ask.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    args = ask.parse_args()
    if args.read:
        return read(*args.read)
    check("demo-scale", args)
    if args.small:
        args.mb, args.nodes = 20, "1,2"
    try:
        counts = [int(count) for count in args.nodes.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(1 <= count <= 32 for count in counts):
        raise SystemExit("--nodes takes numbers from 1 to 32 with commas between them, like 1,2,4,8")
    if args.mb < 1 or not 1 <= args.mbit <= 100_000:
        raise SystemExit("--mb is at least 1, and --mbit between 1 and 100000")
    with World(args.covey, args.minio, args.scratch) as world:
        _, parts, says = chunks(args, world.folder, ROWS, CHUNKS)
    files, total = [], 0
    while total < args.mb * 1e6:
        files.append(parts[len(files) % len(parts)])
        total += len(files[-1])
    results = []
    for nodes in counts:
        seconds, read_bytes = measure(args, nodes, files)
        print(f"{nodes} nodes: {seconds:.2f} s", file=sys.stderr, flush=True)
        results.append({"nodes": nodes, "seconds": seconds, "bytes": read_bytes})
    facts = f"{datetime.date.today()}, {platform.node()}, Linux {platform.release()}, {os.cpu_count()} processors, {says}: {len(files)} chunks, " \
            f"{total / 1e6:.0f} MB; each node's link {args.mbit} Mbit/s"
    keep(args, "demo-scale", f"# More nodes, each with a store\n\n{facts}.\n\n{table(results)}\n", {"facts": facts, "results": results})
    return None


if __name__ == "__main__":
    sys.exit(main())
