"""Network namespaces, links and stores of the demos. What is made here is removed by `World.end`, also after a
failure."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from access import run
from demo_show import SIGNALS, Wrong

KEY, SECRET = "covey-demo-key", "covey-demo-secret-of-length"
BUCKET = "market"


def options(says, name, small):
    """The options of all demos."""
    ask = argparse.ArgumentParser(description=says.splitlines()[0])
    for option in ("covey", "minio", "bench"):
        ask.add_argument(f"--{option}", help=f"the program {option if option != 'bench' else 'covey-bench'}")
    ask.add_argument("--lobster", help="a folder with real files of LOBSTER")
    ask.add_argument("--small", action="store_true", help=small)
    ask.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder of a disk")
    ask.add_argument("--results", type=pathlib.Path, help=f"a folder in which {name}.md, its data and its chart are kept")
    return ask


def check(name, args):
    """Refuses to begin if something that a demo needs is missing."""
    if os.geteuid() != 0:
        raise Wrong("needs root: it makes network namespaces and mounts")
    for program in ("ip", "tc", "nsenter"):
        if not shutil.which(program):
            raise Wrong(f"needs {program}. On Debian: apt-get install iproute2 util-linux")
    for option, target in (("covey", "build"), ("minio", "minio"), ("bench", "bench-build")):
        if not shutil.which(path := getattr(args, option) or ""):
            raise Wrong(f"--{option} must name a program, and {path!r} is none. `make {target}` builds it; `make {name}` finds it")
    if args.lobster and not books(args.lobster):
        raise Wrong(f"{args.lobster} has no *_orderbook_*.csv")
    if not os.path.isdir(args.scratch):
        raise Wrong(f"--scratch must name a folder, and {args.scratch!r} is none")


def books(folder):
    """The order books among the files of LOBSTER."""
    return sorted(pathlib.Path(folder).glob("*orderbook*.csv"))


def delay(listen, to, ms):
    """A long link: takes connections and passes their bytes on, each way this much later. Not every kernel has netem."""
    import asyncio

    def address(text):
        host, port = text.rsplit(":", 1)
        return host, int(port)

    async def line(reader, writer):
        loop, queue = asyncio.get_running_loop(), asyncio.Queue(4096)

        async def leave():
            while (item := await queue.get()) is not None:
                due, data = item
                await asyncio.sleep(max(0, due - loop.time()))
                writer.write(data)
                await writer.drain()
            writer.close()

        leaving = asyncio.create_task(leave())
        try:
            while data := await reader.read(1 << 18):
                await queue.put((loop.time() + ms / 1000, data))
        except ConnectionError:
            pass
        await queue.put(None)
        await asyncio.gather(leaving, return_exceptions=True)

    async def serve(reader, writer):
        there = await asyncio.open_connection(*address(to))
        await asyncio.gather(line(reader, there[1]), line(there[0], writer))

    async def main():
        async with await asyncio.start_server(serve, *address(listen)) as server:
            await server.serve_forever()

    asyncio.run(main())


class World:
    """Namespaces, processes and mounts, and a scratch folder."""

    def __init__(self, covey, minio, scratch):
        self.covey, self.minio = covey, minio
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=scratch, prefix="covey-demo-"))
        self.made = []
        """What is removed in the end, each with the function that removes it. The last one is removed first."""
        self.env = os.environ | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def namespace(self, name):
        name = f"covey-demo-{os.getpid()}-{name}"
        with SIGNALS.whole():
            self.made.append((self.forget, name))
            run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def link(self, one, other, net):
        """Joins two namespaces. They have the addresses NET.1 and NET.2."""
        a, b = f"cd{os.getpid() % 100000}a{net[-1]}", f"cd{os.getpid() % 100000}b{net[-1]}"
        run("ip", "link", "add", a, "netns", one, "type", "veth", "peer", "name", b, "netns", other)
        for name, device, end in ((one, a, 1), (other, b, 2)):
            run("ip", "-n", name, "addr", "add", f"{net}.{end}/24", "dev", device)
            run("ip", "-n", name, "link", "set", device, "up")
        return a, b

    def inside(self, name, *words):
        return ["nsenter", f"--net=/run/netns/{name}", *map(str, words)]

    def start(self, name, *words, **more):
        """A process in a namespace. Ctrl-C at a terminal does not reach it: the demo ends it."""
        with SIGNALS.whole():
            process = subprocess.Popen(self.inside(name, *words), start_new_session=True, **{"env": self.env} | more)
            self.made.append((self.stop, process))
        return process

    def store(self, name, address, folder):
        """A MinIO in a namespace, with an empty bucket."""
        (folder / BUCKET).mkdir(parents=True)
        env = self.env | {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET}
        self.start(name, self.minio, "server", "--quiet", "--address", address, folder, env=env, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
        host, port = address.rsplit(":", 1)
        probe = f"import socket; socket.create_connection(('{host}', {port}), 2)"
        for _ in range(100):
            if subprocess.run(self.inside(name, sys.executable, "-c", probe), capture_output=True).returncode == 0:
                time.sleep(0.5)
                return f"http://{address}"
            time.sleep(0.1)
        raise SystemExit("minio did not begin to listen within 10 s")

    def relay(self, name, listen, to, ms):
        """A long link to an address, in a namespace."""
        script = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); import demo_net; demo_net.delay({listen!r}, {to!r}, {ms})"
        process = self.start(name, sys.executable, "-c", script, stderr=subprocess.DEVNULL)
        time.sleep(0.7)
        if process.poll() is not None:
            raise SystemExit(f"the relay at {listen} ended at once")
        return process

    def stop(self, process):
        self.made.remove((self.stop, process))
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def fill(self, name, endpoint, folder):
        """Puts the files of a folder into the bucket."""
        script = "import boto3, pathlib, sys\nclient = boto3.client('s3', endpoint_url=sys.argv[1])\n" \
                 f"for path in sorted(pathlib.Path(sys.argv[2]).iterdir()): client.put_object(Bucket='{BUCKET}', Key=path.name, Body=path.read_bytes())"
        run(*self.inside(name, sys.executable, "-c", script, endpoint, folder), env=self.env)

    def index(self, name, endpoint, volume):
        """A tree of the bucket's objects. Returns its name."""
        run(self.covey, "format", volume)
        run(*self.inside(name, self.covey, "index", f"s3://{BUCKET}", volume, "data", "--endpoint", endpoint), env=self.env)
        return f"file:{volume}/blobs@data"

    def mount(self, name, tree, at, *more):
        at.mkdir(exist_ok=True)
        with SIGNALS.whole():
            run(*self.inside(name, self.covey, "mount", "-d", tree, at, *more), env=self.env, start_new_session=True)
            self.made.append((self.detach, at))

    def umount(self, at):
        with SIGNALS.whole():
            run(self.covey, "umount", at, start_new_session=True)
            self.made.remove((self.detach, at))

    def cgroup(self):
        """A new cgroup of version 2."""
        lines = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        at = next((pathlib.Path(line[1]) for line in lines if line[2] == "cgroup2"), None)
        if at is None:
            raise SystemExit("no cgroup of version 2 is mounted: the kernel cannot redirect connections")
        path = at / f"covey-demo-{os.getpid()}"
        with SIGNALS.whole():
            path.mkdir()
            self.made.append((self.drop, path))
        return path

    def end(self):
        with SIGNALS.whole():
            self.remove()

    def remove(self):
        for undo, what in reversed(list(self.made)):
            undo(what)
        shutil.rmtree(self.folder, ignore_errors=True)

    def detach(self, at):
        subprocess.run([self.covey, "umount", "--force", at], capture_output=True, start_new_session=True)

    def forget(self, name):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, start_new_session=True)

    def drop(self, path):
        """Removes a cgroup. A process that was just killed still counts for a moment."""
        for _ in range(100):
            try:
                path.rmdir()
                self.made.remove((self.drop, path))
                return
            except OSError as error:
                why = error
            time.sleep(0.05)
        print(f"{path} is left: {why}", file=sys.stderr)


def chunks(args, folder, rows, most):
    """The order book in files of `rows` rows, and a line that says where the data is from."""
    source = args.lobster or folder / "lobster"
    if not args.lobster:
        run(args.bench, "lobster", source, "--rows", rows * most - 3)
    book = books(source)[0]
    lines = book.read_bytes().splitlines(keepends=True)
    parts = [b"".join(lines[at:at + rows]) for at in range(0, min(len(lines), rows * most), rows)]
    return book, parts, f"real files of {source}" if args.lobster else "synthetic LOBSTER-format data"


def keep(args, name, text, data, chart):
    print(text)
    # A small run must not replace figures that documents show.
    if args.results and not args.small:
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / f"{name}.md").write_text(f"{text}\n![{name}]({name}.svg)\n")
        (args.results / f"{name}.json").write_text(json.dumps(data, indent=1))
        (args.results / f"{name}.svg").write_text(chart)
