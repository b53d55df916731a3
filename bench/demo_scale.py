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
import platform
import subprocess
import sys
import time

from access import MIB, run
from demo_net import World, check, chunks, keep, options
from demo_show import Wrong, bars, conduct

ROWS, CHUNKS = 1000, 92
TARGETS = {2: 1.95, 8: 7.8}
SEED = {2: 1.95}
SETUP_S = 2.0
"""About how long it takes to start a node, for the progress bar only."""


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


def named(nodes):
    return f"{nodes} node{'s' * (nodes > 1)}"


def measure(args, nodes, files, say):
    """The seconds until all have read, and the bytes. `say` takes the seconds that are done, and what comes."""
    with World(args.covey, args.minio, args.scratch) as world:
        share, places = -(-len(files) // nodes), []
        for number in range(nodes):
            say(number * SETUP_S, f"{named(nodes)}: filling store {number + 1}")
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
        while any(reader.poll() is None for reader in readers):
            say(nodes * SETUP_S + min(max(0, time.time() - begin), expected(args, nodes)), f"{named(nodes)}: reading")
            time.sleep(0.5)
        if any(reader.returncode for reader in readers):
            raise SystemExit("a reader failed")
        said = [reader.communicate()[0].split() for reader in readers]
        return max(float(end) for _, end in said) - begin, sum(int(total) for total, _ in said)


def expected(args, nodes):
    """The seconds in which the links can carry the data."""
    return args.mb * 8 / args.mbit / nodes


def points(row, alone):
    """A result as points of the two charts."""
    rate = row["bytes"] / 1e6 / row["seconds"]
    return (("MB/s a node", rate / row["nodes"], "MB/s"), ("times faster", alone["seconds"] / row["seconds"], "x"))


def table(results):
    """The table's head and its rows."""
    rows = []
    for row in results:
        nodes, rate = row["nodes"], row["bytes"] / 1e6 / row["seconds"]
        target, seed = (f"{value[nodes]:.2f} x" if nodes in value else "" for value in (TARGETS, SEED))
        (_, each, _), (_, faster, _) = points(row, results[0])
        rows.append([f"{nodes}", f"{row['seconds']:.2f}", f"{rate:.1f}", f"{each:.1f}", f"{faster:.2f} x", target, seed])
    return ["nodes", "seconds", "MB/s", "MB/s a node", "faster than one", "target", "seed"], rows


def chart(results):
    rows = []
    for row in results:
        values = [("Covey", results[0]["seconds"] / row["seconds"])]
        values += [("seed", SEED[row["nodes"]])] if row["nodes"] in SEED else []
        rows.append((named(row["nodes"]), values))
    return bars("How many times faster than one node", "x", rows)


def counts_of(args):
    """The numbers of nodes."""
    try:
        counts = [int(count) for count in args.nodes.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(1 <= count <= 32 for count in counts):
        raise Wrong("--nodes takes numbers from 1 to 32 with commas between them, like 1,2,4,8")
    if args.mb < 1 or not 1 <= args.mbit <= 100_000:
        raise Wrong("--mb is at least 1, and --mbit between 1 and 100000")
    return counts


def work(args, show):
    check("demo-scale", args)
    if args.small:
        args.mb, args.nodes = 20, "1,2"
    counts = counts_of(args)
    show.progress(0, "making the data")
    with World(args.covey, args.minio, args.scratch) as world:
        _, parts, says = chunks(args, world.folder, ROWS, CHUNKS)
    files, total = [], 0
    while total < args.mb * 1e6:
        files.append(parts[len(files) % len(parts)])
        total += len(files[-1])
    results, before = [], 0.0
    whole = sum(nodes * SETUP_S + expected(args, nodes) for nodes in counts)
    for nodes in counts:
        seconds, read_bytes = measure(args, nodes, files, lambda done, step: show.progress((before + done) / whole, step))
        before += nodes * SETUP_S + expected(args, nodes)
        results.append({"nodes": nodes, "seconds": seconds, "bytes": read_bytes})
        for name, value, unit in points(results[-1], results[0]):
            show.point(name, "Covey", nodes, value, unit)
        if nodes in SEED:
            show.point("times faster", "seed", nodes, SEED[nodes], "x")
    facts = f"{datetime.date.today()}, {platform.node()}, Linux {platform.release()}, {os.cpu_count()} processors, {says}: {len(files)} chunks, " \
            f"{total / 1e6:.0f} MB; each node's link {args.mbit} Mbit/s"
    keep(args, "demo-scale", f"# More nodes, each with a store\n\n{facts}.\n\n{show.table(*table(results))}\n",
         {"facts": facts, "results": results}, chart(results))


def main():
    ask = options(__doc__, "demo-scale", "20 MB on one and two nodes")
    ask.add_argument("--mb", type=int, default=600, help="megabytes in all")
    ask.add_argument("--mbit", type=int, default=100, help="the rate of each node's link in Mbit/s")
    ask.add_argument("--nodes", default="1,2,4,8", help="how many nodes")
    ask.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    args = ask.parse_args()
    if args.read:
        return read(*args.read)
    return conduct("scale", lambda show: work(args, show))


if __name__ == "__main__":
    sys.exit(main())
