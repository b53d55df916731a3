"""What bench/shared.py measures on: a database, a relay that delays, an object store, and mounts of each system.

    python3 bench/shared_setup.py --relay PORT SECONDS      the relay: delays each direction by so much, until killed
"""

import asyncio
import collections
import ctypes
import os
import pathlib
import pwd
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

from access import start_minio

DELAY_MS = 30
PATIENCE = 60
"""Seconds for a mount, an unmount, a start or an end."""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def stop(process, first=signal.SIGTERM, patience=PATIENCE):
    """Ends a process that leads a group of its own, and what it started."""
    for way, seconds in ((first, patience), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, way)
        except ProcessLookupError:
            pass
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
    return None


def call(words, log, limit=PATIENCE, **more):
    """Runs a program to its end. Raises RuntimeError with the end of its output if it fails or takes too long."""
    with open(log, "a+") as file:
        begin = file.tell()
        process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                   start_new_session=True, **more)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            stop(process, signal.SIGKILL)
            raise RuntimeError(f"{words[0]} {words[1]}: not done after {limit} s") from None
        except BaseException:
            stop(process, signal.SIGKILL)
            raise
        file.seek(begin)
        if status != 0:
            raise RuntimeError(f"{words[0]} {words[1]}: {file.read()[-800:].strip()}")


class Wire(asyncio.Protocol):
    """One end of a connection. What arrives goes out at the other end after the delay, in order. Many pieces can be
    under way at a time."""

    def __init__(self, delay, other=None, to=None):
        self.delay, self.other, self.to = delay, other, to
        self.pieces, self.out = collections.deque(), None

    def connection_made(self, transport):
        self.out, self.loop = transport, asyncio.get_running_loop()
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.to:
            transport.pause_reading()
            self.task = self.loop.create_task(self.connect())

    async def connect(self):
        try:
            _, self.other = await self.loop.create_connection(lambda: Wire(self.delay, self), "127.0.0.1", self.to)
            self.out.resume_reading()
        except OSError:
            self.out.close()

    def data_received(self, data):
        self.send(data)

    def connection_lost(self, _):
        self.send(None)

    def send(self, data):
        """`None` is the end of the connection."""
        if not self.delay and not self.pieces:
            return self.forward(data)
        self.pieces.append((self.loop.time() + self.delay, data))
        if len(self.pieces) == 1:
            self.loop.call_at(self.pieces[0][0], self.deliver)

    def deliver(self):
        while self.pieces and self.pieces[0][0] <= self.loop.time():
            self.forward(self.pieces.popleft()[1])
        if self.pieces:
            self.loop.call_at(self.pieces[0][0], self.deliver)

    def forward(self, data):
        if self.other and self.other.out:
            self.other.out.close() if data is None else self.other.out.write(data)


async def serve(to, delay):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Wire(delay, to=to), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def relay(to, delay):
    # select(2) takes microseconds, epoll_wait(2) whole milliseconds. The kernel adds 50 us to each by default.
    ctypes.CDLL(None).prctl(29, 1000, 0, 0, 0)
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(serve(to, delay))


class Relay:
    """The relay as a process: `port` leads to the port `to`, with a round trip of `ms` more."""

    def __init__(self, to, ms):
        words = [sys.executable, __file__, "--relay", str(to), str(ms / 2000)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.port = int(self.process.stdout.readline())

    def end(self):
        stop(self.process)


class Postgres:
    """A server of Debian's package in a folder of its own, with fsync. It runs as the user postgres."""

    def __init__(self, scratch):
        bins = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
        if not bins:
            raise SystemExit("bench-shared needs PostgreSQL's server: apt-get install postgresql")
        self.bin, self.at, self.port = bins[-1].parent, scratch / "postgres", free_port()
        self.at.mkdir()
        user = pwd.getpwnam("postgres")
        os.chown(self.at, user.pw_uid, user.pw_gid)
        self.tool("initdb", "-D", self.at / "data", "-U", "covey", "-A", "trust", "--no-locale", "-E", "UTF8")
        with open(self.at / "data" / "postgresql.conf", "a") as file:
            file.write(f"max_connections = 400\nlisten_addresses = '127.0.0.1'\nport = {self.port}\n"
                       f"unix_socket_directories = '{self.at}'\nshared_buffers = '256MB'\nmax_wal_size = '2GB'\n")
        self.tool("pg_ctl", "-D", self.at / "data", "-l", self.at / "log", "-w", "start")
        self.made = 0

    def tool(self, name, *words):
        # The server that pg_ctl starts keeps its output open, so it goes to a file.
        words = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", self.bin / name, *words]
        call(words, self.at.parent / "postgres.out", cwd=self.at, env=os.environ | {"LC_ALL": "C"})

    def database(self):
        self.made += 1
        name = f"bench{self.made}"
        self.tool("createdb", "-h", self.at, "-p", self.port, "-U", "covey", name)
        return name

    def size(self, database):
        """Bytes of the rows of a database and their indexes."""
        words = [self.bin / "psql", "-h", self.at, "-p", str(self.port), "-U", "covey", "-Atc",
                 "select pg_total_relation_size('covey_kv')", database]
        return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    def round_trip(self, port, rounds=200):
        """The median time in ms of `select 1` through this port."""
        script = self.at / "ping.sql"
        script.write_text("select 1;\n")
        words = [self.bin / "pgbench", "-h", "127.0.0.1", "-p", str(port), "-U", "covey", "-n", "-f", script, "-t", str(rounds),
                 "-l", "--log-prefix", self.at / "ping", "postgres"]
        subprocess.run(words, check=True, capture_output=True, cwd=self.at)
        ends = []
        for log in self.at.glob("ping.[0-9]*"):
            ends += [int(fields[4]) * 1000 + int(fields[5]) / 1000 for fields in map(str.split, log.read_text().splitlines())]
            log.unlink()
        return statistics.median(after - before for before, after in zip(ends, ends[1:]))

    def end(self):
        self.tool("pg_ctl", "-D", self.at / "data", "-m", "immediate", "-w", "stop")


class Origin:
    """Where bytes are kept: MinIO's buckets, or folders."""

    def __init__(self, minio, scratch):
        self.server, self.scratch = None, scratch
        if minio and shutil.which(minio):
            self.server, self.endpoint = start_minio(minio, scratch)
        self.kind = "MinIO on loopback" if self.server else "a folder"

    def covey(self, name):
        if self.server:
            return ["--origin", f"s3://covey-volume/{name}", "--endpoint", self.endpoint, "--region", "us-east-1"]
        return ["--origin", f"file:{self.scratch / 'blobs' / name}"]

    def juicefs(self, name):
        if self.server:
            return ["--storage", "minio", "--bucket", f"{self.endpoint}/juice-objects", "--access-key",
                    os.environ["AWS_ACCESS_KEY_ID"], "--secret-key", os.environ["AWS_SECRET_ACCESS_KEY"]]
        return ["--storage", "file", "--bucket", f"{self.scratch / 'objects'}/"]

    def end(self):
        if self.server:
            self.server.kill()
            self.server.wait()


class Away:
    """A store in another building: S3, and each answer comes `DELAY_MS` later. It counts what is read."""

    kind = f"a store {DELAY_MS} ms away"
    region = "us-east-1"

    def __init__(self, program, scratch):
        self.process = subprocess.Popen([program, "--delay-ms", str(DELAY_MS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=os.environ | {"TMPDIR": str(scratch)}, start_new_session=True)
        said = dict(line.rstrip("\n").split("=", 1) for line in iter(self.process.stdout.readline, "READY=1\n") if line)
        self.endpoint, self.bucket = said.pop("ENDPOINT"), said.pop("BUCKET")
        said.pop("FOLDER")
        # The mounts and the commands that follow have these keys.
        self.before = {name: os.environ.get(name) for name in said}
        os.environ.update(said)

    def covey(self, name):
        return ["--origin", f"s3://{self.bucket}/{name}", "--endpoint", self.endpoint, "--region", self.region]

    def juicefs(self, name):
        return ["--storage", "minio", "--bucket", f"{self.endpoint}/{self.bucket}", "--access-key",
                os.environ["AWS_ACCESS_KEY_ID"], "--secret-key", os.environ["AWS_SECRET_ACCESS_KEY"]]

    def gets(self):
        """How often each key was read, and how many bytes of it in all."""
        self.process.stdin.write("gets\n")
        self.process.stdin.flush()
        rows = [line.rstrip("\n").split("\t") for line in iter(self.process.stdout.readline, "\n")]
        return {key: (int(gets), int(size)) for key, gets, size in rows}

    def end(self):
        stop(self.process)
        for name, value in self.before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class Mount:
    """A daemon in the foreground, and its mountpoint."""

    def __init__(self, words, at, umount):
        self.at, self.umount, self.log = at, umount, at.with_suffix(".log")
        at.mkdir()
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True, cwd="/")
        end = time.monotonic() + PATIENCE
        while not os.path.ismount(at):
            if self.process.poll() is not None or time.monotonic() > end:
                self.end()
                raise RuntimeError(f"{words[0]} mount: {self.log.read_text()[-800:].strip()}")
            time.sleep(0.02)

    def peak(self):
        """VmHWM in MiB of the daemon: the largest of its processes."""
        peaks = [0]
        for status in pathlib.Path("/proc").glob("[0-9]*/status"):
            try:
                if os.getpgid(int(status.parent.name)) == self.process.pid:
                    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                    peaks.append(int(fields.get("VmHWM", "0 kB").split()[0]) / 1024)
            except OSError:
                continue
        return max(peaks)

    def complaints(self):
        """Lines of the log that tell of a warning or an error."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if any(word in line.lower() for word in ("warn", "error", "panic"))]

    def end(self):
        """Unmounts. False, if that had to be forced."""
        clean = True
        if os.path.ismount(self.at):
            try:
                call([*self.umount, self.at], self.log)
                self.process.wait(PATIENCE)
            except (RuntimeError, subprocess.TimeoutExpired):
                clean = False
        stop(self.process, patience=5)
        if os.path.ismount(self.at):
            subprocess.run(["umount", "-l", self.at], capture_output=True)
        return clean


class Covey:
    """A shared volume, or a volume of one node."""

    system = "covey"

    def __init__(self, bench, name, origin, shared=True):
        self.bench, self.name, self.origin, self.shared, self.relays, self.mounts = bench, name, origin, shared, [], []
        self.database = shared and bench.postgres.database()
        self.folder = bench.scratch / name
        self.folder.mkdir()
        call([bench.covey, "format", self.address(0), *origin.covey(name)], self.folder / "format.log")

    def address(self, ms):
        if not self.shared:
            return str(self.folder / "volume")
        return f"postgres://covey@127.0.0.1:{self.bench.port(ms)}/{self.database}?volume=work&sslmode=disable"

    def mount(self, ms, *more, near=False):
        """A node. What other nodes want from it is delayed as well, unless they are to be a fleet: a relay takes no
        datagrams."""
        number = len(self.mounts)
        words = [self.bench.covey, "mount", self.address(ms), at := self.folder / f"mnt{number}", *more]
        if self.shared:
            listen = free_port()
            words += ["--cache", self.folder / f"node{number}", "--listen", f"127.0.0.1:{listen}", *self.bench.covey_options]
        if self.shared and not near:
            self.relays.append(Relay(listen, ms))
            words += ["--advertise", f"127.0.0.1:{self.relays[-1].port}"]
        self.mounts.append(Mount(words, at, [self.bench.covey, "umount"]))
        return self.mounts[-1]

    def mount_tree(self, tree):
        """Mounts a tree that the volume has published, with a cache of its own."""
        number, origin = len(self.mounts), self.origin
        words = [self.bench.covey, "mount", f"s3://{origin.bucket}/{self.name}@{tree}", at := self.folder / f"mnt{number}",
                 "--endpoint", origin.endpoint, "--region", origin.region, "--cache", self.folder / f"node{number}"]
        self.mounts.append(Mount(words, at, [self.bench.covey, "umount"]))
        return self.mounts[-1]

    def end(self):
        for mount in self.mounts:
            self.bench.note_end(self.system, mount)
        for relay in self.relays:
            relay.end()


class Juicefs:
    """A volume with its names in the same database server and its bytes in the same store."""

    system = "juicefs"

    def __init__(self, bench, name, origin):
        self.bench, self.name, self.mounts = bench, name, []
        self.database = bench.postgres.database()
        self.folder = bench.scratch / name
        self.folder.mkdir()
        call([bench.juicefs, "format", "--no-agent", "--trash-days", "0", *origin.juicefs(name), self.address(0), name],
             self.folder / "format.log")

    def address(self, ms):
        return f"postgres://covey@127.0.0.1:{self.bench.port(ms)}/{self.database}?sslmode=disable"

    def mount(self, ms):
        number = len(self.mounts)
        at = self.folder / f"mnt{number}"
        words = [self.bench.juicefs, "mount", "--no-usage-report", "--no-agent", "--no-syslog", "--backup-meta", "0", "--metrics",
                 "127.0.0.1:0", "--cache-dir", self.folder / f"cache{number}", *self.bench.juicefs_options, self.address(ms), at]
        self.mounts.append(Mount(words, at, [self.bench.juicefs, "umount"]))
        return self.mounts[-1]

    def end(self):
        for mount in self.mounts:
            self.bench.note_end(self.system, mount)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "--relay":
        raise SystemExit(__doc__)
    relay(int(sys.argv[2]), float(sys.argv[3]))
