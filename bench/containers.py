"""The first output of a container on a node that has nothing yet: an image that is pulled and unpacked, the same image
of a published tree, and that tree with a list of what a start reads.

The image has this machine's shared libraries, commands and Python, in two layers. A registry and a MinIO serve it. All of
it runs in one network namespace whose loopback device is limited (tbf), so that nothing else has the link."""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from access import run

KEY, SECRET = "covey-bench-key", "covey-bench-secret-of-length"
SAYS = "import json, ssl, email.message, sqlite3; print('hello')"
SPACE = f"covey-containers-{os.getpid()}"
ENVIRONMENT = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "COVEY_CONFIG": "",
               "MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "AWS_REGION": "us-east-1"}


def within(*words):
    return ["nsenter", f"--net=/run/netns/{SPACE}", *[str(word) for word in words]]


def inside(*words, **more):
    return run(*within(*words), env=ENVIRONMENT, **more)


def drop_pages():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def root(folder):
    """The two layers' files: commands and libraries, then Python."""
    lib = pathlib.Path("/usr/lib/x86_64-linux-gnu")
    base, python = folder / "base", folder / "python"
    for made in (base / "usr/bin", base / lib.relative_to("/"), base / "usr/lib64", base / "etc", python / "usr/bin",
                 python / "usr/lib"):
        made.mkdir(parents=True)
    for link in ("bin", "lib", "lib64"):
        os.symlink(f"usr/{link}", base / link)
    for name in ("proc", "sys", "dev", "tmp"):
        (base / name).mkdir()
    for command in ("bash", "cat", "ls", "grep", "sed", "tar", "find", "env", "sort", "perl"):
        shutil.copy2(f"/usr/bin/{command}", base / "usr/bin")
    os.symlink("bash", base / "usr/bin/sh")
    for file in sorted(lib.glob("*.so*")):
        if file.is_symlink() or file.stat().st_size < 20 << 20:
            shutil.copy2(file, base / lib.relative_to("/"), follow_symlinks=False)
    for file in pathlib.Path("/usr/lib64").iterdir():
        shutil.copy2(file, base / "usr/lib64", follow_symlinks=False)
    shutil.copy2("/etc/ld.so.cache", base / "etc")
    shutil.copytree("/usr/lib/python3.11", python / "usr/lib/python3.11", symlinks=True)
    shutil.copy2("/usr/bin/python3.11", python / "usr/bin")
    os.symlink("python3.11", python / "usr/bin/python3")
    return base, python


def image(folder):
    """An OCI layout of it."""
    layers = root(folder)
    run("umoci", "init", "--layout", folder / "app")
    run("umoci", "new", "--image", f"{folder}/app:1")
    for layer in layers:
        run("umoci", "insert", "--image", f"{folder}/app:1", layer, "/")
    size = sum(file.lstat().st_size for layer in layers for file in layer.rglob("*") if file.is_file() and not file.is_symlink())
    for layer in layers:
        shutil.rmtree(layer)
    return size


class World:
    def __init__(self, args, folder):
        self.args, self.folder, self.ends = args, folder, []
        self.covey = str(pathlib.Path(args.covey).resolve())
        run("ip", "netns", "add", SPACE)
        inside("ip", "link", "set", "lo", "up")
        self.serve(args.minio, "server", folder / "minio", "--address", "127.0.0.1:9000", port=9000)
        config = folder / "registry.yml"
        config.write_text(f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\n"
                          "http: {addr: 127.0.0.1:5000}\n")
        self.serve("docker-registry", "serve", config, port=5000)

    def serve(self, *words, port):
        self.ends.append(subprocess.Popen(within(*words), env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"
        for _ in range(200):
            if subprocess.run(within(sys.executable, "-c", probe), capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        raise SystemExit(f"{words[0]} does not start")

    def limit(self):
        inside("tc", "qdisc", "replace", "dev", "lo", "root", "tbf", "rate", f"{self.args.mbit}mbit", "burst", "256kb",
               "latency", "100ms")

    def end(self):
        for end in self.ends:
            end.terminate()
            end.wait()
        subprocess.run(["ip", "netns", "del", SPACE], capture_output=True)

    def publish(self):
        """Pushes the image to the registry, and imports and publishes it."""
        folder = self.folder
        inside("skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{folder}/app:1", "docker://127.0.0.1:5000/app:1")
        (folder / "minio/bucket").mkdir(exist_ok=True)
        self.origin = ["--origin", "s3://bucket/p", "--endpoint", "http://127.0.0.1:9000"]
        inside(self.covey, "format", folder / "volume", *self.origin)
        inside(self.covey, "import", "docker://127.0.0.1:5000/app:1", f"{folder}/volume:/images", "--name", "app:1")
        inside(self.covey, "publish", f"{folder}/volume:/images", "images")

    def start(self, rootfs):
        """Runs the container until it has said something."""
        bundle = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        run("runc", "spec", cwd=bundle)
        spec = json.loads((bundle / "config.json").read_text())
        spec["process"].update(terminal=False, args=["/usr/bin/python3", "-c", SAYS], rlimits=[])
        spec["root"] = {"path": str(rootfs), "readonly": False}
        (bundle / "config.json").write_text(json.dumps(spec))
        said = run("runc", "--root", bundle / "state", "run", "--bundle", bundle, bundle.name)
        if said != "hello\n":
            raise SystemExit(f"the container says {said!r}")
        shutil.rmtree(bundle)

    def pulled(self):
        at = self.folder / "pulled"
        began = time.monotonic()
        inside("skopeo", "copy", "-q", "--src-tls-verify=false", "docker://127.0.0.1:5000/app:1", f"oci:{at}:1")
        run("umoci", "unpack", "--image", f"{at}:1", self.folder / "unpacked")
        self.start(self.folder / "unpacked/rootfs")
        took = time.monotonic() - began
        shutil.rmtree(at), shutil.rmtree(self.folder / "unpacked")
        return took

    def mounted(self, listed=None, record=None):
        tree, at, cache = self.folder / "tree", self.folder / "image", self.folder / "cache"
        began = time.monotonic()
        tree.mkdir()
        inside(self.covey, "mount", "-d", "--endpoint", "http://127.0.0.1:9000", "--cache", cache, "s3://bucket/p@images", tree)
        try:
            if listed:
                inside(self.covey, "warm", tree, "--from-list", listed)
            trace = record and subprocess.Popen([self.covey, "trace", str(tree), "--record", str(record)],
                                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            if trace:
                time.sleep(2)
            inside(self.covey, "image", "mount", "app:1", at, "--volume", tree)
            try:
                self.start(at)
                took = time.monotonic() - began
            finally:
                inside(self.covey, "image", "umount", at)
            if trace:
                trace.send_signal(2)
                trace.wait(30)
            fetched = json.loads(inside(self.covey, "status", tree, "--json"))
        finally:
            inside(self.covey, "umount", tree)
        shutil.rmtree(cache), tree.rmdir()
        return took, fetched


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--covey", required=True)
    ask.add_argument("--minio", required=True)
    ask.add_argument("--mbit", type=int, default=200)
    ask.add_argument("--rounds", type=int, default=3)
    ask.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder of a disk")
    ask.add_argument("--results", type=pathlib.Path)
    args = ask.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("needs root: it makes a network namespace and mounts")
    lacking = [name for name in ("runc", "umoci", "skopeo", "docker-registry", "ip", "tc", "nsenter") if not shutil.which(name)]
    if lacking:
        raise SystemExit(f"lacks {', '.join(lacking)}: install what has these programs (docker-registry is a package of that name)")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="covey-containers-", dir=args.scratch))
    world = None
    try:
        size = image(folder)
        packed = sum(file.stat().st_size for file in (folder / "app/blobs").rglob("*") if file.is_file())
        world = World(args, folder)
        world.publish()
        world.limit()
        listed = folder / "app.reads"
        world.mounted(record=listed)
        ways = {"pulled and unpacked": world.pulled, "published tree": lambda: world.mounted()[0],
                "published tree, with the list": lambda: world.mounted(listed)[0]}
        times = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                drop_pages()
                times[name].append(way())
                print(f"{name}: {times[name][-1]:.2f} s", file=sys.stderr, flush=True)
        report(args, size, packed, listed, times)
    finally:
        if world:
            world.end()
        shutil.rmtree(folder, ignore_errors=True)


def report(args, size, packed, listed, times):
    reads = [line.split(" ", 2) for line in listed.read_text().splitlines()[1:]]
    whole = statistics.median(times["pulled and unpacked"])
    lines = [f"Image: {size / 1e6:.0f} MB, {packed / 1e6:.0f} MB as it is pulled; a start reads "
             f"{sum(int(line[1]) for line in reads) / 1e6:.1f} MB of {len({line[2] for line in reads})} files. "
             f"Link: {args.mbit} Mbit/s. Rounds: {args.rounds}.", "", "| way | first output, median | of the first | all |",
             "|---|---:|---:|---|"]
    for name, all in times.items():
        middle = statistics.median(all)
        lines.append(f"| {name} | {middle:.2f} s | {middle / whole:.2f} x | {', '.join(f'{one:.2f}' for one in all)} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / "containers.md").write_text(text)
        kept = {"image_bytes": size, "pulled_bytes": packed, "mbit": args.mbit, "seconds": times}
        (args.results / "containers.json").write_text(json.dumps(kept, indent=2) + "\n")


main()
