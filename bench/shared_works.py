"""The works of bench/shared.py. Each runs as a process of its own, so that a time limit can end it.

    python3 bench/shared_works.py create|ping|fill|bytes|lookups WORDS
"""

import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from access import drop_pages
from shared_setup import stop

BUILD = """program=./configure; [ -x $program ] || program=auto/configure
$program --without-http_rewrite_module --without-http_gzip_module --with-cc-opt=-O0 && make -j"$(nproc)" """


LOOKS = {"find": ["find", "."], "grep -r": ["sh", "-c", "grep -r none-has-this . || [ $? = 1 ]"]}
READS = {"a large file": ["dd", "if=large", "of=/dev/null", "bs=1M"], "small files": ["sh", "-c", "cat small/* > /dev/null"]}


def step(words, limit, log, cwd="/", units=None):
    """Runs a program: its seconds, whether the limit cut it, and with `units` how many lines it printed."""
    with open(log, "w+") as out, open(f"{log}.err", "w+") as err:
        begin = time.perf_counter()
        process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   start_new_session=True, cwd=cwd)
        cut = False
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status, cut = 0, True
        finally:
            seconds = time.perf_counter() - begin
            stop(process, signal.SIGKILL)
        if status != 0:
            err.seek(0)
            raise RuntimeError(f"{' '.join(map(str, words))[:200]}: status {status}: {err.read()[-500:].strip()}")
        out.seek(0)
        return {"seconds": seconds, "cut": cut} | ({"done": sum(1 for _ in out), "of": units} if units else {})


def private(mount, turn, tree, build, limit, log):
    """A tree unpacked, cloned, built and removed in a directory of the mount, by one node."""
    at, clone, made = (mount.at / f"{name}{turn}" for name in ("work", "clone", "build"))
    at.mkdir()
    rows = {"untar": step(["tar", "xvf", tree.tar, "-C", at], limit, log, units=tree.entries)}
    if not rows["untar"]["cut"]:
        found = int(subprocess.run(f"find {at} | wc -l", shell=True, capture_output=True, text=True, timeout=limit).stdout)
        if found - 1 != tree.files:
            raise RuntimeError(f"{found - 1} files are there after tar, not {tree.files}")
    rows["git clone"] = step(["git", "clone", "-q", tree.git, clone], limit, log)
    if build:
        made.mkdir()
        if not step(["tar", "xf", build.tar, "-C", made], limit, log)["cut"]:
            rows["build"] = step(["sh", "-c", BUILD], limit, log, cwd=made)
    removed = step(["rm", "-rfv", at], limit, log, units=tree.files + 1)
    if not rows["untar"]["cut"]:
        rows["rm -rf"] = removed
    step(["rm", "-rf", clone, made], limit, log)
    return rows


def create(folders, seconds, size=0, sync=False):
    """Files made at the same time, by one process for each folder: files per second in all, and of each."""
    start = time.time() + 1
    words = [sys.executable, __file__, "create"]
    begun = []
    try:
        for number, folder in enumerate(folders):
            more = [str(folder), f"{len(folders)}-{number}", str(start), str(seconds), str(size), "sync" if sync else ""]
            begun.append(subprocess.Popen(words + more, stdout=subprocess.PIPE, text=True, start_new_session=True))
        counts = []
        for process in begun:
            said, _ = process.communicate(timeout=start - time.time() + seconds + 60)
            if process.returncode != 0:
                raise RuntimeError(f"the process that creates files ended with {process.returncode}")
            counts.append(json.loads(said))
    finally:
        for process in begun:
            stop(process, signal.SIGKILL)
    return {"per_second": sum(row["files"] / row["seconds"] for row in counts), "each": [row["files"] for row in counts],
            "slowest_ms": max(row["slowest_ms"] for row in counts)}


def create_here(folder, prefix, start, seconds, size, sync):
    body, count, slowest = b"x" * int(size), 0, 0
    time.sleep(max(0, float(start) - time.time()))
    begin = last = time.perf_counter()
    while last - begin < float(seconds):
        fd = os.open(f"{folder}/{prefix}-{count:06}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        if body:
            os.write(fd, body)
        if sync:
            os.fsync(fd)
        os.close(fd)
        now = time.perf_counter()
        slowest, last, count = max(slowest, now - last), now, count + 1
    print(json.dumps({"files": count, "seconds": last - begin, "slowest_ms": slowest * 1000}))


def ping(writer, reader, rounds, limit, log):
    """One node writes a file, the other reads it."""
    row = step([sys.executable, __file__, "ping", writer, reader, rounds], limit, log)
    if row["cut"]:
        raise RuntimeError(f"ping-pong: not done after {limit} s")
    return json.loads(pathlib.Path(log).read_text())


def ping_here(writer, reader, rounds):
    times, stale = {"write": [], "read": [], "both": []}, 0
    for turn in range(int(rounds) + 3):
        text = f"turn {turn:08}".encode() * 40
        begin = time.perf_counter()
        with open(f"{writer}/ball", "wb", buffering=0) as file:
            file.write(text)
        middle = time.perf_counter()
        seen = None
        try:
            with open(f"{reader}/ball", "rb", buffering=0) as file:
                seen = file.read(1 << 16)
        except FileNotFoundError:
            pass
        end = time.perf_counter()
        stale += seen != text
        if turn >= 3:
            for name, seconds in (("write", middle - begin), ("read", end - middle), ("both", end - begin)):
                times[name].append(seconds * 1000)
    print(json.dumps({name: statistics.median(row) for name, row in times.items()} | {"stale": stale, "rounds": int(rounds)}))


def fill(root, files, limit, log):
    """Makes that many empty files, a thousand in each directory."""
    row = step([sys.executable, __file__, "fill", root, files], limit, log)
    if row["cut"]:
        raise RuntimeError(f"{files} files: not made after {limit} s")


def fill_here(root, files):
    def folder(number):
        at = f"{root}/d{number:03}"
        os.mkdir(at)
        for name in range(1000):
            os.close(os.open(f"{at}/f{name:04}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(folder, range(int(files) // 1000)))


def fill_bytes(root, size, files, limit, log):
    """Makes a file of `size` random bytes, and that many small ones in one directory."""
    row = step([sys.executable, __file__, "bytes", root, size, files], limit, log)
    if row["cut"]:
        raise RuntimeError(f"{size} bytes and {files} files: not made after {limit} s")


def bytes_here(root, size, files):
    dice = random.Random(7)
    with open(f"{root}/large", "wb") as file:
        for _ in range(int(size) >> 20):
            file.write(dice.randbytes(1 << 20))
        os.fsync(file.fileno())
    os.mkdir(f"{root}/small")
    for number in range(int(files)):
        pathlib.Path(f"{root}/small/f{number:05}").write_bytes(dice.randbytes(4096))
    subprocess.run(["sync", "-f", root], check=True)


def look(mount, words, limit, log):
    """Runs a program that looks at a tree, in the root of a node that has just mounted."""
    drop_pages()
    return step(words, limit, log, cwd=mount.at)


def together(mounts, away, size, limit):
    """Nodes that read the same large file at once: until the last one has it, and what the store has sent to what
    the file has."""
    drop_pages()
    before = sum(sent for _, sent in away.gets().values())
    begin = time.perf_counter()
    readers = [subprocess.Popen(READS["a large file"], cwd=mount.at, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                start_new_session=True) for mount in mounts]
    try:
        for reader in readers:
            if reader.wait(limit) != 0:
                raise RuntimeError("a node could not read the file")
        took = time.perf_counter() - begin
    finally:
        for reader in readers:
            stop(reader, signal.SIGKILL)
    sent = sum(sent for _, sent in away.gets().values()) - before
    return {"seconds": took, "cut": False, "bytes": sent / size}


def listing(mount, files, limit, log):
    """`ls -lR` on a node that has just mounted, then once more."""
    drop_pages()
    units = files + 4 * (files // 1000) + 2
    cold = step(["ls", "-lR", mount.at], limit, log, units=units)
    found = sum(line.startswith("-") for line in open(log))
    if not cold["cut"] and found != files:
        raise RuntimeError(f"ls -lR found {found} files, not {files}")
    return {"cold": cold | {"done": found, "of": files}, "again": step(["ls", "-lR", mount.at], limit, log)}


def lookups(root, files, rounds, limit, log):
    """stat(2) of random files among those of `fill`."""
    row = step([sys.executable, __file__, "lookups", root, files, rounds], limit, log)
    if row["cut"]:
        raise RuntimeError(f"{rounds} lookups: not done after {limit} s")
    return json.loads(pathlib.Path(log).read_text())


def lookups_here(root, files, rounds):
    dice, times = random.Random(7), []
    for _ in range(int(rounds)):
        number = dice.randrange(int(files))
        begin = time.perf_counter()
        os.stat(f"{root}/d{number // 1000:03}/f{number % 1000:04}")
        times.append((time.perf_counter() - begin) * 1000)
    times.sort()
    print(json.dumps({"median_ms": statistics.median(times), "p99_ms": times[len(times) * 99 // 100], "slowest_ms": times[-1]}))


if __name__ == "__main__":
    here = {"create": create_here, "ping": ping_here, "fill": fill_here, "bytes": bytes_here, "lookups": lookups_here}
    if len(sys.argv) < 2 or sys.argv[1] not in here:
        raise SystemExit(__doc__)
    here[sys.argv[1]](*sys.argv[2:])
