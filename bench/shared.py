#!/usr/bin/env python3
"""Shared volumes: what a database at a distance costs, beside a volume of one node and beside JuiceFS.

    make bench-shared                          Covey; an hour or more
    make bench-shared JUICEFS=path             and JuiceFS, with its names in the same server
    make bench-shared BENCH_ARGS="--quick"     small sizes, under four minutes
    make bench-shared BENCH_ARGS="--only ping,memory --rounds 5"

The names are in a PostgreSQL of its own, with fsync. A relay in front of it adds a round trip of 0, 1 or 5 ms; what
Covey's nodes say to each other goes through such relays too. The bytes are in a MinIO (MINIO=path), otherwise in a
folder, without a delay. All nodes are mounts on this machine: what several nodes do at a time is also limited by
its processors. The volume of one node has the same kind of origin. Works on several systems are done in turns. A
step that reaches the time limit is cut, and its ratio is then a bound. JuiceFS runs with its defaults. Needs root.
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

import shared_works as works
from access import run
from shared_setup import Away, Covey, Juicefs, Origin, Postgres, Relay

FIGURES = ("private", "directories", "one", "ping", "list", "first", "cold", "many")


class Tree:
    """Sources as a git repository and as an archive."""

    def __init__(self, mirrors, name, scratch):
        self.name, self.git, self.tar = name, mirrors / f"{name}.git", scratch / f"{name}.tar"
        run("git", "-c", "safe.directory=*", "-C", self.git, "archive", "-o", self.tar, "HEAD")
        listed = run("tar", "tf", self.tar).splitlines()
        self.entries = len(listed)
        self.files = len({part.rstrip("/") for part in listed})


class Bench:
    """The servers, and what was found."""

    def __init__(self, args, scratch):
        self.args, self.scratch, self.covey, self.juicefs = args, scratch, args.covey, args.juicefs
        self.covey_options, self.juicefs_options = args.covey_options.split(), args.juicefs_options.split()
        self.log = scratch / "step.log"
        self.relays, self.round_trips, self.peaks = {}, {}, {"covey": [], "juicefs": []}
        self.failures, self.complaints, self.volumes, self.open = [], [], 0, []
        self.postgres = self.origin = None

    def start(self):
        self.postgres = Postgres(self.scratch)
        self.origin = Origin(self.args.minio, self.scratch)
        direct = self.postgres.round_trip(self.postgres.port)
        for ms in (0, 1, 5):
            self.relays[ms] = Relay(self.postgres.port, ms)
            self.round_trips[ms] = self.postgres.round_trip(self.relays[ms].port)
        self.round_trips["direct"] = direct
        print(f"select 1: {direct:.2f} ms without the relay; " + self.said_trips(), flush=True)

    def said_trips(self):
        return ", ".join(f"{self.round_trips[ms]:.2f} ms through the relay of {ms} ms" for ms in self.relays)

    def port(self, ms):
        return self.relays[ms].port

    def systems(self):
        return ["covey", "juicefs"] if self.juicefs else ["covey"]

    def volume(self, system, shared=True, origin=None):
        """A new one. It is ended with the figure."""
        self.volumes += 1
        name, origin = f"{system}{self.volumes}", origin or self.origin
        made = Juicefs(self, name, origin) if system == "juicefs" else Covey(self, name, origin, shared)
        self.open.append(made)
        return made

    def note_end(self, system, mount):
        """Ends a mount, and keeps its peak of memory and its complaints."""
        if mount.process.poll() is not None and not os.path.ismount(mount.at):
            if mount.process.returncode != 0:
                self.failures.append(f"{mount.at.name} of {system}: the daemon ended with {mount.process.returncode}")
            return
        self.peaks[system].append(mount.peak())
        if not mount.end():
            self.failures.append(f"{system}: umount had to be forced: {mount.log.read_text(errors='replace')[-300:].strip()}")
        if system == "covey":
            self.complaints += mount.complaints()[:5]

    def end_volumes(self):
        while self.open:
            volume = self.open.pop()
            volume.end()
            shutil.rmtree(volume.folder, ignore_errors=True)

    def end(self):
        for what in (self, *self.relays.values(), self.postgres, self.origin):
            try:
                what.end_volumes() if what is self else what and what.end()
            except Exception as error:
                print(f"at the end: {error}", file=sys.stderr)


def private(bench):
    """One node in directories of its own: every step in every place."""
    delays = (0, 1) if bench.args.quick else (0, 1, 5)
    places = {"exclusive": bench.volume("covey", shared=False).mount(0)}
    for system in bench.systems():
        for ms in delays:
            if not (bench.args.quick and system == "juicefs" and ms == 0):
                places[f"{system} {ms} ms"] = bench.volume(system).mount(ms)
    rows = {}
    for turn in range(max(bench.args.rounds, 3 if bench.args.quick else 1)):
        for name in list(places)[::-1 if turn % 2 else 1]:
            if turn and name.startswith("juicefs"):
                continue
            print(f"  {name}, round {turn + 1}", flush=True)
            done = works.private(places[name], turn, bench.tree, bench.build, bench.args.limit, bench.log)
            for what, row in done.items():
                rows.setdefault(what, {}).setdefault(name, []).append(row)
    return rows


def directories(bench):
    """Files made by four nodes in directories of their own, and by one node alone. Also with fsync of each."""
    rows = {}
    for ms in (1,) if bench.args.quick else (0, 1, 5):
        for system in bench.systems():
            volume = bench.volume(system)
            mounts = [volume.mount(ms) for _ in range(4)]
            for sync in (False, True):
                for turn in range(bench.args.rounds):
                    folders = [mount.at / f"own{number}-{turn}-{sync}" for number, mount in enumerate(mounts)]
                    for folder in folders:
                        folder.mkdir()
                    row = rows.setdefault(f"{system} {ms} ms" + ", fsync" * sync, {"one": [], "four": []})
                    row["one"].append(works.create(folders[:1], bench.args.seconds, sync=sync))
                    row["four"].append(works.create(folders, bench.args.seconds, sync=sync))
            bench.end_volumes()
    return rows


def one(bench):
    """Files made by four nodes in one directory."""
    rows = {}
    for ms in (1,) if bench.args.quick else (0, 1, 5):
        for system in bench.systems():
            volume = bench.volume(system)
            mounts = [volume.mount(ms) for _ in range(4)]
            for turn in range(bench.args.rounds):
                (mounts[0].at / f"all{turn}").mkdir()
                folders = [mount.at / f"all{turn}" for mount in mounts]
                rows.setdefault(f"{system} {ms} ms", []).append(works.create(folders, bench.args.seconds))
            bench.end_volumes()
    return rows


def ping(bench):
    """One node writes and closes a file, another opens and reads it."""
    rows = {}
    for ms in (0, 1, 5):
        for system in bench.systems():
            volume = bench.volume(system)
            writer, reader = volume.mount(ms), volume.mount(ms)
            rounds = 50 if bench.args.quick else 300
            rows[f"{system} {ms} ms"] = works.ping(writer.at, reader.at, rounds, bench.args.limit, bench.log)
            bench.end_volumes()
    return rows


def listed(bench):
    """`ls -lR` on a fresh node of a volume that nobody else mounts."""
    rows, files = {}, 20_000 if bench.args.quick else 100_000
    for system in ["exclusive", *bench.systems()]:
        volume = bench.volume("covey", shared=False) if system == "exclusive" else bench.volume(system)
        maker = volume.mount(0)
        # That is not measured, and JuiceFS needs minutes.
        works.fill(maker.at, files, max(bench.args.limit, 900), bench.log)
        bench.note_end(volume.system, maker)
        for ms in (0,) if system == "exclusive" else (1,) if bench.args.quick else (0, 1, 5):
            # JuiceFS has no extended attributes unless it is told to. Covey is measured with them and without.
            for option in ("", " xattr=off") if system == "covey" else ("",):
                fresh = volume.mount(ms, *(["-o", option.strip()] if option else []))
                rows[f"{system}{option} {ms} ms"] = works.listing(fresh, files, bench.args.limit, bench.log)
                bench.note_end(volume.system, fresh)
        bench.end_volumes()
    return rows


def first(bench):
    """The first look at a tree of sources that another node has made, and still has mounted."""
    rows = {}
    for system in bench.systems():
        volume = bench.volume(system)
        maker = volume.mount(0)
        works.step(["tar", "xf", bench.sources.tar, "-C", maker.at], max(bench.args.limit, 300), bench.log)
        subprocess.run(["sync", "-f", maker.at], check=True)
        # What has changed a moment ago is lent, and this is a tree that is at rest.
        time.sleep(3)
        for turn in range(bench.args.rounds):
            for ms in (0, 1):
                for what, words in works.LOOKS.items():
                    fresh = volume.mount(ms)
                    row = works.look(fresh, words, bench.args.limit, bench.log)
                    rows.setdefault(what, {}).setdefault(f"{system} {ms} ms", []).append(row)
                    bench.note_end(volume.system, fresh)
        bench.end_volumes()
    return rows


def cold(bench):
    """What another node wrote, read by fresh nodes: from a store far away, with the database 1 ms away."""
    size, files = (128 << 20, 1000) if bench.args.quick else (1 << 30, 10_000)
    away, rows = Away(bench.args.store, bench.scratch), {}
    try:
        for system in bench.systems():
            volume = bench.volume(system, origin=away)
            maker = volume.mount(0)
            works.fill_bytes(maker.at, size, files, 900, bench.log)
            if system == "covey":
                run(bench.covey, "publish", maker.at, "tree")
            bench.note_end(volume.system, maker)
            places = {system: lambda: volume.mount(1)}
            if system == "covey":
                places["tree"] = lambda: volume.mount_tree("tree")
            for turn in range(bench.args.rounds if system == "covey" else 1):
                for name, mount in list(places.items())[::-1 if turn % 2 else 1]:
                    for what, words in works.READS.items():
                        fresh, before = mount(), away.gets()
                        row = works.look(fresh, words, bench.args.limit, bench.log)
                        row["gets"] = sum(gets for gets, _ in away.gets().values()) - sum(gets for gets, _ in before.values())
                        rows.setdefault(what, {}).setdefault(name, []).append(row)
                        bench.note_end(volume.system, fresh)
            if system == "covey":
                rows["four nodes"] = {system: [works.together([volume.mount(1, near=True) for _ in range(4)], away, size, bench.args.limit)]}
            bench.end_volumes()
    finally:
        bench.end_volumes()
        away.end()
    return rows


def many(bench):
    """Many files in one volume: made by one node, looked up by a fresh one, and a mount anew."""
    files = bench.args.files // 1000 * 1000
    volume = bench.volume("covey")
    maker = volume.mount(0)
    begin = time.perf_counter()
    works.fill(maker.at, files, 6 * 3600, bench.log)
    subprocess.run(["sync", "-f", maker.at], check=True)
    row = {"files": files, "per_second": files / (time.perf_counter() - begin)}
    bench.note_end(volume.system, maker)
    row["database_bytes"] = bench.postgres.size(volume.database)
    begin = time.perf_counter()
    fresh = volume.mount(0)
    os.stat(fresh.at / "d000" / "f0000")
    row["mount"] = time.perf_counter() - begin
    row["cold"] = works.lookups(fresh.at, files, 5000, bench.args.limit, bench.log)
    row["again"] = works.lookups(fresh.at, files, 5000, bench.args.limit, bench.log)
    return row


def measure(bench):
    results = {}
    for name, figure in zip(FIGURES, (private, directories, one, ping, listed, first, cold, many)):
        if name not in bench.args.only:
            continue
        print(f"{name}: {figure.__doc__}", flush=True)
        try:
            results[name] = figure(bench)
        except Exception as error:
            bench.failures.append(f"{name}: {error}")
            print(f"failed: {error}", file=sys.stderr, flush=True)
        finally:
            bench.end_volumes()
    return results


def seconds(samples):
    return statistics.median(row["seconds"] for row in samples)


def shown(samples):
    """The median, or how far it came."""
    if not any(row["cut"] for row in samples):
        return f"{seconds(samples):.2f} s"
    done = [row for row in samples if row["cut"]][0]
    return f"over {done['seconds']:.0f} s" + (f" ({done['done']} of {done['of']})" if "of" in done else "")


def ratio(above, below):
    """Of two times, and the word that says what it bounds if one of them was cut."""
    word = {(True, False): "over ", (False, True): "under ", (True, True): "about "}
    cuts = tuple(any(row["cut"] for row in samples) for samples in (above, below))
    return {"ratio": seconds(above) / seconds(below), "bound": word.get(cuts, "")}


class Goals:
    def __init__(self):
        self.lines = []

    def add(self, what, ratio, at_least=None, at_most=None, unit="x", bound=""):
        """A ratio beside its goal. A ratio with a bound may leave open whether the goal is met."""
        met = ratio >= at_least if at_least is not None else ratio <= at_most
        open_end = bound == "about " or bound == ("under " if met == (at_least is not None) else "over ")
        verdict = "not known" if open_end else "met" if met else "**not met**"
        goal = f"at least {at_least} {unit}" if at_least is not None else f"at most {at_most} {unit}"
        self.lines.append(f"| {what} | {goal} | {bound}{ratio:.2f} {unit} | {verdict} |")


def say_private(rows, goals):
    places = list(next(iter(rows.values())))
    lines = ["| one node, a directory of its own | " + " | ".join(places) + " |", "|---|" + "---:|" * len(places)]
    for what, row in rows.items():
        lines.append(f"| {what} | " + " | ".join(shown(row[place]) if place in row else "" for place in places) + " |")
        if "covey 1 ms" in row and what != "build" and "juicefs 1 ms" in row:
            goals.add(f"{what}, 1 ms: JuiceFS's time to Covey's", **ratio(row["juicefs 1 ms"], row["covey 1 ms"]), at_least=20)
        if "covey 1 ms" in row and "exclusive" in row:
            goals.add(f"{what}, 1 ms: time to that of a volume of one node", **ratio(row["covey 1 ms"], row["exclusive"]), at_most=1.2)
    return lines


def rate(samples):
    return statistics.median(row["per_second"] for row in samples)


def say_directories(rows, goals):
    lines = ["| files/s, a directory for each node | one node | four nodes | ratio |", "|---|---:|---:|---:|"]
    for name, row in rows.items():
        times = rate(row["four"]) / rate(row["one"])
        lines.append(f"| {name} | {rate(row['one']):.0f} | {rate(row['four']):.0f} | {times:.2f} |")
        if name.startswith("covey 1 ms"):
            goals.add(f"four directories, {name[6:]}: four nodes to one, {os.cpu_count()} processors", times, at_least=3.5)
    return lines


def say_one(rows, goals):
    lines = ["| files/s, four nodes in one directory | in all | fewest by a node | most | slowest |", "|---|---:|---:|---:|---:|"]
    for name, samples in rows.items():
        each = [count for row in samples for count in row["each"]]
        slowest = max(row["slowest_ms"] for row in samples)
        lines.append(f"| {name} | {rate(samples):.0f} | {min(each)} | {max(each)} | {slowest:.0f} ms |")
        peer = rows.get(name.replace("covey", "juicefs"))
        if name.startswith("covey") and peer:
            goals.add(f"one directory, {name[6:]}: files/s to JuiceFS's", rate(samples) / rate(peer), at_least=2)
    return lines


def say_ping(rows, trips, goals):
    lines = ["| ping-pong, medians | write and close | open and read | both | in round trips | old bytes read |", "|---|---:|---:|---:|---:|---:|"]
    for name, row in rows.items():
        ms = int(name.split()[1])
        count = row["both"] / trips[ms]
        told = f"{count:.1f}" if ms else ""
        lines.append(f"| {name} | {row['write']:.2f} ms | {row['read']:.2f} ms | {row['both']:.2f} ms | {told} | {row['stale']} |")
        if ms and name.startswith("covey"):
            goals.add(f"ping-pong, {ms} ms", count, at_most=3, unit="round trips")
    return lines


def say_list(rows, goals):
    lines = ["| `ls -lR` on a fresh node | cold | again |", "|---|---:|---:|"]
    for name, row in rows.items():
        lines.append(f"| {name}, {row['cold']['of']} files | {shown([row['cold']])} | {shown([row['again']])} |")
        peer = rows.get(f"juicefs {' '.join(name.split()[-2:])}")
        if name.startswith("covey") and peer and not name.endswith(" 0 ms"):
            goals.add(f"cold ls -lR, {name[6:]}: JuiceFS's time to Covey's", **ratio([peer["cold"]], [row["cold"]]), at_least=5)
    return lines


def say_first(rows, goals):
    places = list(next(iter(rows.values())))
    lines = ["| the first look at a tree | " + " | ".join(places) + " |", "|---|" + "---:|" * len(places)]
    for what, row in rows.items():
        lines.append(f"| {what} | " + " | ".join(shown(row[place]) for place in places) + " |")
        goals.add(f"first {what}: time at 1 ms to that at 0 ms", **ratio(row["covey 1 ms"], row["covey 0 ms"]), at_most=1.5)
        if "juicefs 1 ms" in row:
            goals.add(f"first {what}, 1 ms: JuiceFS's time to Covey's", **ratio(row["juicefs 1 ms"], row["covey 1 ms"]), at_least=5)
    return lines


def say_cold(rows, goals):
    four = rows.pop("four nodes")["covey"][0]
    places = list(next(iter(rows.values())))
    lines = [f"| cold reads, {Away.kind} | " + " | ".join(places) + " |", "|---|" + "---:|" * len(places)]
    for what, row in rows.items():
        told = (f"{shown(row[place])}, {statistics.median(sample['gets'] for sample in row[place]):.0f} GETs" for place in places)
        lines.append(f"| {what} | " + " | ".join(told) + " |")
        least = {"a large file": 0.9, "small files": 0.8}[what]
        goals.add(f"cold {what}: speed to that of a published tree", **ratio(row["tree"], row["covey"]), at_least=least)
        if what == "small files" and "juicefs" in row:
            goals.add(f"cold {what}: JuiceFS's time to Covey's", **ratio(row["juicefs"], row["covey"]), at_least=20)
    alone = seconds(rows["a large file"]["covey"])
    lines.append(f"| the same large file, four nodes at once | the last after {four['seconds']:.2f} s |" + " |" * (len(places) - 1))
    goals.add("cold, four nodes: bytes from the store to those of the file", four["bytes"], at_most=1.05)
    goals.add("cold, four nodes: the last node's time to that of one alone", four["seconds"] / alone, at_most=1.3)
    return lines


def say_many(row, _):
    files = row["files"]
    lines = ["| many files | |", "|---|---:|"]
    for what, figure in (("files", f"{files:,}"), ("creates/s", f"{row['per_second']:.0f}"),
                         ("bytes a file in the database, indexes included", f"{row['database_bytes'] / files:.0f}"),
                         ("mount and first stat", f"{row['mount']:.2f} s")):
        lines.append(f"| {what} | {figure} |")
    for name, what in (("cold", "stat of random files on a fresh node"), ("again", "the same files again")):
        times = row[name]
        lines.append(f"| {what}: median, p99, slowest | {times['median_ms']:.3f}, {times['p99_ms']:.3f}, {times['slowest_ms']:.1f} ms |")
    return lines


def report(bench, results):
    goals, tables = Goals(), []
    say = {"private": say_private, "directories": say_directories, "one": say_one, "list": say_list, "many": say_many, "first": say_first, "cold": say_cold,
           "ping": lambda rows, goals: say_ping(rows, bench.round_trips, goals)}
    for name, rows in results.items():
        tables += [*say[name](rows, goals), ""]
    if bench.peaks["covey"]:
        goals.add("memory of the largest daemon", max(bench.peaks["covey"]), at_most=200, unit="MiB")
    version = run(bench.juicefs, "version").strip() if bench.juicefs else "JuiceFS was not measured"
    database = "PostgreSQL " + run(bench.postgres.bin / "postgres", "--version").split()[2]
    facts = (f"{datetime.date.today()}, {platform.node()}, Linux {platform.release()}, {os.cpu_count()} processors, load "
             f"{os.getloadavg()[0]:.1f} at the end. {database} with fsync; bytes in {bench.origin.kind}; {version}.")
    trips = f"`select 1` takes {bench.round_trips['direct']:.2f} ms without the relay, {bench.said_trips()}."
    tree = f"The tree is {bench.tree.name}: {bench.tree.files} files. JuiceFS's trees are done once, all else is a median."
    lines = ["# Shared volumes", "", facts, trips, tree, "", *tables, "| figure | target | measured | |", "|---|---|---:|---|", *goals.lines]
    if bench.peaks["juicefs"]:
        lines += ["", f"The largest daemon of JuiceFS: {max(bench.peaks['juicefs']):.0f} MiB."]
    lines += ["", *(f"- failed: {line}" for line in bench.failures), *(f"- said: {line[:300]}" for line in bench.complaints[:20])]
    return "\n".join(lines).rstrip() + "\n"


def asked():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--covey", help="the program covey")
    ask.add_argument("--minio", help="the program minio; without it the bytes go to a folder")
    ask.add_argument("--store", help="the program serve-s3: a store far away, for `cold`")
    ask.add_argument("--juicefs", help="the program juicefs; without it there is no such column")
    ask.add_argument("--mirrors", type=pathlib.Path, help="a folder with nginx.git and python.git, as scripts/workload-sources makes it")
    ask.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder of the disk that is measured")
    ask.add_argument("--only", default=",".join(FIGURES), help="some of: " + ",".join(FIGURES))
    ask.add_argument("--quick", action="store_true", help="small sizes")
    ask.add_argument("--rounds", type=int, help="default: 3; with --quick 1")
    ask.add_argument("--limit", type=float, help="seconds for a step; default: 300; with --quick 30")
    ask.add_argument("--files", type=int, help="of `many`; default: 10,000,000; with --quick 50,000")
    ask.add_argument("--seconds", type=float, help="how long files are made; default: 10; with --quick 2")
    ask.add_argument("--covey-options", default="", help='more for covey mount of a shared volume, such as "-o fsync=local"')
    ask.add_argument("--juicefs-options", default="", help="more for juicefs mount")
    ask.add_argument("--results", type=pathlib.Path, help="a folder in which shared.md and .json are kept")
    args = ask.parse_args()
    for name, quick, full in (("rounds", 1, 3), ("limit", 30, 300), ("seconds", 2, 10), ("files", 50_000, 10_000_000)):
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    args.only = args.only.split(",")
    for name in ("covey", "juicefs", "store"):
        given = getattr(args, name)
        if given and not shutil.which(given):
            raise SystemExit(f"{given}: there is no program {name} here")
        setattr(args, name, given and os.path.abspath(shutil.which(given)))
    if os.geteuid() != 0 or not args.covey or not args.mirrors or ("cold" in args.only and not args.store):
        raise SystemExit("bench-shared needs root, --covey, --store and --mirrors; the target finds them")
    return args


def interrupted(*_):
    """Ends the run in good order. A second signal must not cut that short."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit("interrupted")


def main():
    args = asked()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupted)
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="covey-shared-", ignore_cleanup_errors=True) as folder:
        scratch = pathlib.Path(folder)
        scratch.chmod(0o755)
        bench = Bench(args, scratch)
        bench.tree = Tree(args.mirrors, "nginx" if args.quick else "python", scratch)
        bench.sources = Tree(args.mirrors, "nginx", scratch)
        bench.build = None if args.quick else bench.sources
        try:
            bench.start()
            results = measure(bench)
            text = report(bench, results)
        finally:
            bench.end()
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / "shared.md").write_text(text)
        samples = {"round_trips": bench.round_trips, "peaks_mib": bench.peaks, "samples": results}
        (args.results / "shared.json").write_text(json.dumps(samples, indent=1))
    return 1 if bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
