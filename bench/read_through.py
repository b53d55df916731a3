#!/usr/bin/env python3
"""What an object costs that `covey s3` has of a bucket of others, beside a GET from that store itself.

    make bench-read-through

The store is a MinIO on loopback. `covey s3` serves one of its buckets and has every object on its disk already. One
boto3 client for each asks for the same objects, in turns. MinIO's own counters say how many GETs reached the store.
boto3's own time is part of both.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from access import MIB, start_minio

SIZES = {"4 KiB": (4096, 400), "1 MiB": (MIB, 120), "8 MiB": (8 * MIB, 40)}
KEY, SECRET = "read-through", "secret-of-at-least-sixteen"


def client(endpoint, key, secret):
    import boto3
    return boto3.client("s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")


def gets(endpoint):
    """GETs of objects that MinIO has answered."""
    page = urllib.request.urlopen(f"{endpoint}/minio/metrics/v3/api/requests").read().decode()
    return sum(int(float(value)) for value in re.findall(r'minio_api_requests_total\{name="GetObject"[^}]*\} ([\d.e+]+)', page))


def serve(args, scratch, endpoint):
    """Starts `covey s3`. Returns the process and its address."""
    keys = scratch / "keys.toml"
    keys.touch(mode=0o600)
    keys.write_text(f'[[key]]\naccess_key = "{KEY}"\nsecret_key = "{SECRET}"\nbuckets = {{ data = "read" }}\n')
    server = subprocess.Popen([args.covey, "--json", "s3", "--listen", "127.0.0.1:0", "--keys", keys, "--endpoint", endpoint, "--cache",
                               scratch / "cache", "--revalidate", args.revalidate, "data=s3://covey-volume"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    text = b""
    while not text.endswith(b"}\n"):
        line = server.stdout.readline()
        if not line:
            raise SystemExit("covey s3 ended")
        text += line
    return server, "http://" + json.loads(text)["address"]


def get(client, bucket, key, size):
    begin = time.perf_counter()
    body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    took = time.perf_counter() - begin
    if len(body) != size:
        raise SystemExit(f"{key}: {len(body)} bytes")
    return took


def measure(store, covey, metrics):
    results = {}
    for name, (size, count) in SIZES.items():
        key = name.replace(" ", "-")
        store.put_object(Bucket="covey-volume", Key=key, Body=os.urandom(size))
        for _ in range(3):
            get(covey, "data", key, size), get(store, "covey-volume", key, size)
        before, times = gets(metrics), {"store": [], "covey": []}
        for turn in range(count):
            pair = [("store", store, "covey-volume"), ("covey", covey, "data")]
            for name_of, client, bucket in pair[::1 if turn % 2 else -1]:
                times[name_of].append(get(client, bucket, key, size))
        time.sleep(1)
        results[name] = {"times": times, "gets": gets(metrics) - before - count}
    return results


def table(results):
    lines = ["| object | MinIO ms | covey s3 ms | ratio | GETs to the store for covey |", "|---|---|---|---|---|"]
    for name, row in results.items():
        store, covey = (statistics.median(row["times"][place]) * 1000 for place in ("store", "covey"))
        lines.append(f"| {name} | {store:.2f} | {covey:.2f} | {covey / store:.2f} | {row['gets']} |")
    return "\n".join(lines)


def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--covey", help="the program covey")
    ask.add_argument("--minio", help="the program minio")
    ask.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder of a disk")
    ask.add_argument("--revalidate", default="5s", help="as of covey s3")
    ask.add_argument("--results", type=pathlib.Path, help="a folder in which read-through.md and .json are kept")
    args = ask.parse_args()
    if not args.covey or not args.minio or not shutil.which(args.minio):
        raise SystemExit("bench-read-through needs --covey and --minio: `make minio` builds one; the target finds both")
    os.environ["MINIO_PROMETHEUS_AUTH_TYPE"] = "public"
    with tempfile.TemporaryDirectory(dir=args.scratch, prefix="covey-read-through-") as folder:
        scratch = pathlib.Path(folder)
        minio, endpoint = start_minio(args.minio, scratch)
        server = None
        try:
            server, address = serve(args, scratch, endpoint)
            store = client(endpoint, os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
            results = measure(store, client(address, KEY, SECRET), endpoint)
        finally:
            if server:
                server.send_signal(signal.SIGTERM)
                server.wait()
            minio.kill()
            minio.wait()
    facts = f"{datetime.date.today()}, {platform.node()}, Linux {platform.release()}, {os.cpu_count()} processors, --revalidate {args.revalidate}"
    text = f"# An object of a bucket of others, from the gateway's disk\n\n{facts}. Medians, boto3.\n\n{table(results)}\n"
    print(text)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / "read-through.md").write_text(text)
        (args.results / "read-through.json").write_text(json.dumps({"facts": facts, "samples": results}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
