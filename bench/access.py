#!/usr/bin/env python3
"""What it costs to read a little of large files, cold: time, requests and bytes.

    make bench-access                          Covey and ext4
    make bench-access JUICEFS=path             and JuiceFS
    make bench-access BENCH_ARGS="--only mmap,h5py --rounds 5 --mount-options access=random"

The files are in a MinIO on loopback (MINIO=path, otherwise the one that `make minio` built). Covey mounts a
published tree of it, each time with an empty cache. The ext4 is a new one on a loop device. Each work runs in a new
process, in turns on all places, and prints a hash of what it read; the hashes are compared. Requests and bytes are
Covey's and JuiceFS's own figures for their store, and the block device's figures for ext4. Packages (numpy, h5py,
zarr, pylance) are installed into a venv in the cache folder. A work whose package cannot be installed is skipped,
with a message. Needs root, for ext4 and for dropping the kernel's pages.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PACKAGES = {"np.memmap": "numpy", "h5py": "h5py", "zarr": "zarr", "lance": "pylance"}
MIB = 1 << 20
SIZE = 256 * MIB
SIDE = (16384, 4096)  # of float32: 256 MiB
SLICES = 40


# The works. Each runs in its own process, with the folder as its argument, and returns what it read.

def spots(count, most, step=1):
    draw = random.Random(7)
    return [draw.randrange(0, most // step) * step for _ in range(count)]


def work_pread(folder):
    fd = os.open(folder / "raw", os.O_RDONLY)
    return [os.pread(fd, 8, 0), os.pread(fd, 65536, 100 * MIB)]


def work_mmap(folder):
    import mmap
    with open(folder / "raw", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        return [view[:8], view[100 * MIB:100 * MIB + 65536]]


def work_memmap(folder):
    import numpy
    view = numpy.memmap(folder / "raw", mode="r", dtype="u1")
    return [view[at:at + 1024].tobytes() for at in spots(2000, SIZE - 1024, 1024)]


def work_h5py(folder):
    import h5py
    with h5py.File(folder / "array.h5", "r") as file:
        data = file["data"]
        return [data[at:at + 8, at % 3000:at % 3000 + 512].tobytes() for at in spots(SLICES, SIDE[0] - 8)]


def work_zarr(folder):
    import zarr
    data = zarr.open(str(folder / "array.zarr"), mode="r")
    return [data[at:at + 8, at % 3000:at % 3000 + 512].tobytes() for at in spots(SLICES, SIDE[0] - 8)]


def work_lance(folder):
    import lance
    taken = lance.dataset(str(folder / "rows.lance")).take(sorted(set(spots(500, 200_000))))
    return [str(taken.column("id").to_pylist()).encode(), taken.column("v").combine_chunks().values.to_numpy().tobytes()]


def work_stream(folder):
    with open(folder / "raw", "rb", buffering=0) as file:
        hashed = hashlib.sha1()
        while piece := file.read(MIB):
            hashed.update(piece)
        return [hashed.digest()]


WORKS = {
    "pread": work_pread, "mmap": work_mmap, "np.memmap": work_memmap, "h5py": work_h5py, "zarr": work_zarr,
    "lance": work_lance, "stream": work_stream,
}
SAYS = {
    "pread": "8 B and 64 KiB of 256 MiB, by pread", "mmap": "the same by mmap",
    "np.memmap": "2,000 random KiB of 256 MiB, by np.memmap", "h5py": f"{SLICES} slices of 16 KiB of an HDF5 array, chunks of 256 KiB",
    "zarr": "the same of a zarr array", "lance": "500 random rows of 1 KiB of a lance table",
    "stream": "256 MiB from beginning to end",
}


def make(folder, name):
    """Creates the files of one work."""
    if name in ("pread", "mmap", "np.memmap", "stream"):
        if not (folder / "raw").exists():
            with open(folder / "raw", "wb") as file:
                for _ in range(SIZE // MIB):
                    file.write(os.urandom(MIB))
        return
    import numpy
    noise = numpy.random.default_rng(7)
    if name == "h5py":
        import h5py
        with h5py.File(folder / "array.h5", "w") as file:
            data = file.create_dataset("data", SIDE, "f4", chunks=(256, 256))
            for at in range(0, SIDE[0], 256):
                data[at:at + 256] = noise.random((256, SIDE[1]), "f4")
    elif name == "zarr":
        import zarr
        data = zarr.open(str(folder / "array.zarr"), mode="w", shape=SIDE, chunks=(256, 256), dtype="f4")
        for at in range(0, SIDE[0], 256):
            data[at:at + 256] = noise.random((256, SIDE[1]), "f4")
    elif name == "lance":
        import lance
        import pyarrow
        values = pyarrow.array(noise.random(200_000 * 256, "f4"))
        vectors = pyarrow.FixedSizeListArray.from_arrays(values, 256)
        lance.write_dataset(pyarrow.table({"id": pyarrow.array(range(200_000)), "v": vectors}), str(folder / "rows.lance"))


# The places where the works are measured.

def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise SystemExit(f"{words[0]} {words[1] if len(words) > 1 else ''}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def drop_pages():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


class Ext4:
    name = "ext4"

    def __init__(self, scratch, files):
        self.image, self.at = scratch / "ext4.img", scratch / "ext4"
        self.at.mkdir()
        total = sum(file.stat().st_size for file in files.rglob("*") if file.is_file())
        with open(self.image, "wb") as file:
            file.truncate(total * 2 + 512 * MIB)
        run("mkfs.ext4", "-q", self.image)
        self.device = run("losetup", "--find", "--show", "--direct-io=on", self.image).strip()
        self.mount()
        run("cp", "-a", f"{files}/.", self.at)

    def mount(self):
        run("mount", self.device, self.at)

    def cold(self):
        run("umount", self.at)
        drop_pages()
        self.mount()

    def asked(self):
        fields = pathlib.Path(f"/sys/block/{pathlib.Path(self.device).name}/stat").read_text().split()
        return int(fields[0]), int(fields[2]) * 512

    def end(self):
        subprocess.run(["umount", self.at], capture_output=True)
        subprocess.run(["losetup", "--detach", self.device], capture_output=True)


class Covey:
    name = "covey"

    def __init__(self, scratch, files, covey, endpoint, options):
        self.covey, self.at, self.cache = covey, scratch / "covey", scratch / "covey-cache"
        self.at.mkdir()
        volume = scratch / "volume"
        self.more = ["--endpoint", endpoint]
        run(covey, "format", volume, "--origin", "s3://covey-volume/tree", *self.more)
        run(covey, "mount", "-d", volume, self.at)
        run("cp", "-a", f"{files}/.", self.at)
        run(covey, "publish", self.at, "bench")
        self.more += ["--cache", self.cache] + (["-o", options] if options else [])
        self.cold()

    def cold(self):
        run(self.covey, "umount", self.at)
        shutil.rmtree(self.cache, ignore_errors=True)
        drop_pages()
        run(self.covey, "mount", "-d", "s3://covey-volume/tree@bench", self.at, *self.more)

    def asked(self):
        requests = json.loads(run(self.covey, "status", self.at, "--json"))["far"]["requests"]
        return sum(requests["by_kind"].values()), requests["received_bytes"]

    def end(self):
        subprocess.run([self.covey, "umount", self.at], capture_output=True)


class Juicefs:
    name = "juicefs"

    def __init__(self, scratch, files, juicefs, endpoint):
        self.juicefs, self.at, self.cache = juicefs, scratch / "juicefs", scratch / "juicefs-cache"
        self.at.mkdir()
        self.names = f"sqlite3://{scratch}/juicefs.db"
        run(juicefs, "format", "--storage", "s3", "--bucket", f"{endpoint}/juice-objects", "--access-key", os.environ["AWS_ACCESS_KEY_ID"],
            "--secret-key", os.environ["AWS_SECRET_ACCESS_KEY"], self.names, "bench")
        self.mount()
        run("cp", "-a", f"{files}/.", self.at)

    def mount(self):
        run(self.juicefs, "mount", "-d", "--no-usage-report", "--cache-dir", self.cache, self.names, self.at)

    def cold(self):
        run(self.juicefs, "umount", self.at)
        shutil.rmtree(self.cache, ignore_errors=True)
        drop_pages()
        self.mount()

    def asked(self):
        lines = dict(line.rsplit(" ", 1) for line in (self.at / ".stats").read_text().splitlines() if " " in line)
        number = lambda *words: sum(float(value) for name, value in lines.items() if all(word in name for word in words))
        return int(number("object_request_durations_histogram_seconds", "GET", "total")), int(number("object_request_data_bytes", "GET"))

    def end(self):
        subprocess.run([self.juicefs, "umount", self.at], capture_output=True)


def start_minio(program, scratch, buckets=("covey-volume", "juice-objects")):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(AWS_ACCESS_KEY_ID="bench-access", AWS_SECRET_ACCESS_KEY=os.urandom(16).hex())
    for bucket in buckets:
        (scratch / "store" / bucket).mkdir(parents=True)
    env = os.environ | {"MINIO_ROOT_USER": os.environ["AWS_ACCESS_KEY_ID"], "MINIO_ROOT_PASSWORD": os.environ["AWS_SECRET_ACCESS_KEY"]}
    server = subprocess.Popen([program, "server", "--quiet", "--address", f"127.0.0.1:{port}", scratch / "store"], env=env,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                time.sleep(1)
                return server, f"http://127.0.0.1:{port}"
        time.sleep(0.1)
    server.kill()
    raise SystemExit("minio did not begin to listen within 10 s")


def venv(folder, names):
    """The Python that has the packages, and the names of the works that can run there."""
    python = folder / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
    have = []
    for name in names:
        package = PACKAGES.get(name)
        done = package and subprocess.run([python, "-m", "pip", "install", "--quiet", package], capture_output=True, text=True)
        if done and done.returncode != 0:
            print(f"skipped: {name} lacks {package}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        else:
            have.append(name)
    return python, have


def measure(place, python, name):
    place.cold()
    before = place.asked()
    said = run(python, __file__, "--work", name, place.at)
    seconds, digest = said.split()
    requests, read = place.asked()
    return {"seconds": float(seconds), "requests": requests - before[0], "bytes": read - before[1], "digest": digest}


def table(results, places):
    lines = ["| cold | " + " | ".join(f"{place} s | {place} requests | {place} MiB" for place in places) + " |",
             "|---" * (1 + 3 * len(places)) + "|"]
    for name, rows in results.items():
        cells = []
        for place in places:
            middle = lambda what: statistics.median(row[what] for row in rows[place])
            cells += [f"{middle('seconds'):.3f}", f"{middle('requests'):.0f}", f"{middle('bytes') / MIB:.2f}"]
        lines.append(f"| {SAYS[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--covey", help="the program covey")
    ask.add_argument("--minio", help="the program minio")
    ask.add_argument("--juicefs", help="the program juicefs; without it there is no such column")
    ask.add_argument("--venv", type=pathlib.Path, help="where packages are installed")
    ask.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder of the disk that is measured")
    ask.add_argument("--rounds", type=int, default=5)
    ask.add_argument("--only", help="some of: " + ",".join(WORKS))
    ask.add_argument("--mount-options", default="", help="what covey mount -o is given, like access=random")
    ask.add_argument("--results", type=pathlib.Path, help="a folder in which access.md and access.json are kept")
    ask.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    ask.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = ask.parse_args()
    if args.make:
        return make(pathlib.Path(args.make[1]), args.make[0])
    if args.work:
        folder, work = pathlib.Path(args.work[1]), WORKS[args.work[0]]
        begin = time.monotonic()
        got = work(folder)
        print(time.monotonic() - begin, hashlib.sha256(b"".join(got)).hexdigest())
        return None
    if os.geteuid() != 0:
        raise SystemExit("bench-access needs root: it makes an ext4 and drops the kernel's pages")
    if not args.covey or not args.minio or not shutil.which(args.minio):
        raise SystemExit("bench-access needs --covey and --minio: `make minio` builds one; `make bench-access` finds both")
    names = args.only.split(",") if args.only else list(WORKS)
    if unknown := set(names) - set(WORKS):
        raise SystemExit(f"there is no work {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="covey-access-") as scratch:
        measure_all(args, pathlib.Path(scratch), names)
    return None


def measure_all(args, scratch, names):
    python, names = venv(args.venv or scratch / "venv", names)
    files = scratch / "files"
    files.mkdir()
    for name in names:
        run(python, __file__, "--make", name, files)
    server, endpoint = start_minio(args.minio, scratch)
    places = []
    try:
        places.append(Covey(scratch, files, args.covey, endpoint, args.mount_options))
        places.append(Ext4(scratch, files))
        if args.juicefs:
            places.append(Juicefs(scratch, files, args.juicefs, endpoint))
        results = {name: {place.name: [] for place in places} for name in names}
        for turn in range(args.rounds):
            for name in names:
                for place in places[turn % len(places):] + places[:turn % len(places)]:
                    results[name][place.name].append(measure(place, python, name))
                digests = {row["digest"] for rows in results[name].values() for row in rows}
                if len(digests) != 1:
                    raise SystemExit(f"{name}: the places did not give the same bytes")
    finally:
        for place in places:
            place.end()
        server.kill()
        server.wait()
    facts = f"{datetime.date.today()}, {platform.node()}, Linux {platform.release()}, {os.cpu_count()} processors, " \
            f"{args.rounds} rounds, covey mount -o {args.mount_options or '(defaults)'}"
    text = f"# Reading a little, cold\n\n{facts}. Medians.\n\n{table(results, [place.name for place in places])}\n"
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / "access.md").write_text(text)
        (args.results / "access.json").write_text(json.dumps({"facts": facts, "samples": results}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
