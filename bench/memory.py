#!/usr/bin/env python3
"""Virtual machines that start from a snapshot: `covey memory-server`, beside a private mapping of the file.

    make bench-memory

A clone is a process that has 256 MiB of memory and touches 80 MiB of it in pieces of 64 KiB, in no order, and writes
to an eighth of the pages. It gets its memory from `covey memory-server` as Firecracker does (a snapshot in a volume's
published tree, whose blobs are on this disk), or maps the file: on the disk, and on a mount of Covey's. Clones run one
after the other, ten at once, and fifty at once. The order of the kinds changes from round to round.

"load" is the time to have memory, "first" the time from then to the first byte, "all" the time to the last. PSS counts
a shared page once for all that share it. The last table is `covey clone` of a disk image.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout


def pss(pids):
    """MiB that processes take together."""
    total = 0
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


class Server:
    """`covey memory-server`, with a list or without."""

    def __init__(self, args, scratch, source, record):
        self.socket = scratch / "s"
        words = [args.covey, "--json", "memory-server", source, "--on", f"unix:{self.socket}"]
        self.process = subprocess.Popen(words + record, stdout=subprocess.PIPE, stderr=(scratch / "server.log").open("a"), text=True)
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit((scratch / "server.log").read_text())
            text += line

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60):
            raise SystemExit("the server failed")


def clones(args, kind, place, count, at_once):
    """Runs clones. Returns their times, the wall time, and the memory of all that run at once."""
    times, memory, began, running = [], 0, time.perf_counter(), []
    wall = None
    for _ in range(count):
        running.append(subprocess.Popen([args.vmm, kind, place, str(args.mib * MIB), str(args.touched * MIB)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        if not at_once:
            times.append(json.loads(running[-1].stdout.readline()))
            memory = pss([running[-1].pid])
            running.pop().communicate("")
    if at_once:
        times = [json.loads(vmm.stdout.readline()) for vmm in running]
        wall = time.perf_counter() - began
        memory = pss([vmm.pid for vmm in running])
        for vmm in running:
            vmm.communicate("")
    sums = {one.pop("sum") for one in times}
    if len(sums) != 1:
        raise SystemExit(f"{kind}: clones saw different bytes")
    return {"times": times, "wall": wall or time.perf_counter() - began, "pss": memory, "sum": sums.pop()}


def measure(args, scratch, kinds, list_file):
    results = {}
    for turn in range(args.rounds):
        for kind in list(kinds)[::1 if turn % 2 else -1]:
            how, place, serve = kinds[kind]
            for name, count, at_once in [("10 in turn", 10, False), ("10 at once", 10, True), ("50 at once", 50, True)]:
                list_file.unlink(missing_ok=True)
                # A server learns from its first clone. So clones without a list have a server each, or all start with it.
                for part in [1] * count if serve and "no list" in kind and not at_once else [count]:
                    server = serve() if serve else None
                    if server and "no list" not in kind:
                        clones(args, how, place, 1, False)  # the clone from which the others learn
                        time.sleep(0.6)
                    row = clones(args, how, place, part, at_once)
                    row["server"] = pss([server.process.pid]) if server else 0
                    if server:
                        server.end()
                    results.setdefault((kind, name), []).append(row)
    if len({row["sum"] for rows in results.values() for row in rows}) != 1:
        raise SystemExit("the kinds saw different bytes")
    return results


def table(results):
    lines = ["| memory | clones | load, ms | first, ms (worst) | all, ms | wall of all, s | PSS of clones, MiB | server, MiB |",
             "|---|---|---|---|---|---|---|---|"]
    middle = statistics.median
    for (kind, name), rows in results.items():
        times = [one for row in rows for one in row["times"]]
        of = lambda key: middle(one[key] for one in times) / 1000
        worst = max(one["first"] for one in times) / 1000
        lines.append(f"| {kind} | {name} | {of('load'):.2f} | {of('first'):.2f} ({worst:.2f}) | {of('all'):.0f} "
                     f"| {middle(row['wall'] for row in rows):.2f} | {middle(row['pss'] for row in rows):.0f} "
                     f"| {middle(row['server'] for row in rows):.0f} |")
    return "\n".join(lines)


def images(args, at):
    """`covey clone` of an image: the time in the daemon, and that of the whole command."""
    lines = ["| image | in the daemon, ms | whole command, ms |", "|---|---|---|"]
    sparse, full = at / "sparse", at / "full"
    with sparse.open("wb") as file:
        file.truncate(args.image << 30)
        for place in range(0, args.image << 30, 64 * MIB):
            os.pwrite(file.fileno(), os.urandom(4096), place)
    block = os.urandom(8 * MIB)
    with full.open("wb") as file:
        for number in range((args.image << 30) // len(block)):
            file.write(number.to_bytes(8, "big") + block[8:])
        os.fsync(file.fileno())
    samples = {}
    for name, image in [("sparse", sparse), ("full of data", full)]:
        inside, whole = [], []
        for number in range(11):
            began = time.perf_counter()
            done = json.loads(run(args.covey, "--json", "clone", image, at / f"clone-{image.name}-{number}"))
            whole.append((time.perf_counter() - began) * 1000)
            inside.append(done["seconds"] * 1000)
        samples[name] = {"inside": inside, "whole": whole}
        lines.append(f"| {args.image} GiB, {name} | {statistics.median(inside):.2f} | {statistics.median(whole):.1f} |")
    return "\n".join(lines), samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--covey", type=pathlib.Path, required=True)
    parser.add_argument("--vmm", type=pathlib.Path, required=True)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--touched", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=["tree", "file"], default="tree", help="what the server reads")
    parser.add_argument("--image", type=int, default=10, help="GiB of the disk image; 0: none")
    args = parser.parse_args()
    args.covey, args.vmm = args.covey.resolve(), args.vmm.resolve()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="covey-memory-", dir=args.scratch))
    at = scratch / "mnt"
    at.mkdir()
    try:
        report = measure_all(args, scratch, at)
    finally:
        subprocess.run([args.covey, "umount", at], capture_output=True)
        shutil.rmtree(scratch, ignore_errors=True)
    print(report)


def measure_all(args, scratch, at):
    volume, origin, plain, record = scratch / "volume", f"file:{scratch}/origin", scratch / "memory", scratch / "list"
    plain.write_bytes(b"".join(os.urandom(8 * MIB) for _ in range(args.mib // 8)))
    run(args.covey, "format", volume, "--origin", origin)
    run(args.covey, "mount", "-d", volume, at)
    shutil.copyfile(plain, at / "memory")
    run(args.covey, "publish", volume, "latest")
    source = f"{origin}@latest:/memory" if args.serve == "tree" else plain
    socket = str(scratch / "s")
    kinds = {
        "mapping of a file on the disk": ("mmap", str(plain), None),
        "mapping of a file on a mount": ("mmap", str(at / "memory"), None),
        "memory-server, no list": ("uffd", socket, lambda: Server(args, scratch, source, [])),
        "memory-server, list": ("uffd", socket, lambda: Server(args, scratch, source, ["--record", record])),
    }
    for kind in ("mapping of a file on the disk", "mapping of a file on a mount"):
        clones(args, kinds[kind][0], kinds[kind][1], 1, False)  # both files are in the page cache
    results = measure(args, scratch, kinds, record)
    text, samples = images(args, at) if args.image else ("", {})
    load = os.getloadavg()
    head = f"{platform.node()}, {os.cpu_count()} CPUs, Linux {platform.release()}, load {load[0]:.1f}, {args.rounds} rounds"
    report = f"{head}\n\n{table(results)}\n\n{text}\n"
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / "memory.md").write_text(report)
        raw = {"host": head, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(), "images": samples,
               "clones": [{"kind": kind, "name": name, "rows": rows} for (kind, name), rows in results.items()]}
        (args.results / "memory.json").write_text(json.dumps(raw))
    return report


if __name__ == "__main__":
    sys.exit(main())
