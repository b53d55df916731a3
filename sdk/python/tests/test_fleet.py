"""Processes as nodes of a fleet, on loopback, over a store."""

import json
import subprocess
import sys
import time

from conftest import BIG, FILES, MIB, covey

import coveyfs

# Opens a tree, says its address, and does what each line of its input asks for.
NODE = """
import coveyfs, hashlib, json, sys
with coveyfs.open_tree(**json.loads(sys.argv[1])) as tree:
    print(tree.status()["fleet"]["address"], flush=True)
    for line in sys.stdin:
        word, *names = line.split()
        if word == "read":
            said = {name: hashlib.sha256(tree.read(name)).hexdigest() for name in names}
        elif word == "heat":
            said = tree.heat(0)
        elif word == "fleet":
            said = tree.status()["fleet"]
        print(json.dumps(said), flush=True)
"""


class Node:
    """A Python process that is a node."""

    def __init__(self, **arguments):
        words = [sys.executable, "-c", NODE, json.dumps(arguments)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.address = self.process.stdout.readline().strip()
        assert self.address, "the node did not start"

    def ask(self, *words):
        self.process.stdin.write(" ".join(words) + "\n")
        line = self.process.stdout.readline()
        assert line, f"the node ended at {words}"
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()


def _digests(names):
    import hashlib

    return {name: hashlib.sha256(FILES[name]).hexdigest() for name in names}


def test_the_second_process_reads_from_the_first(cached, store, tmp_path):
    secret = tmp_path / "secret"
    covey("fleet", "secret", secret)
    fleet = {"secret_file": str(secret), "listen": "127.0.0.1:0"}
    # A node that is alone fetches of a small file only its part of a blob, which it does not share.
    names = ["big.bin", "folder/deep/er/x.txt", "small.txt"]
    nodes = []
    try:
        first = Node(**cached, **fleet)
        nodes.append(first)
        assert first.ask("read", *names) == _digests(names)
        store.at_rest()
        assert first.ask("heat")["peers"] == 0
        before = {key: gets for key, (gets, _) in store.gets().items() if store.is_blob(key)}
        second = Node(**{**cached, "cache_dir": str(tmp_path / "other")}, **fleet, join=first.address)
        nodes.append(second)
        end = time.monotonic() + 60
        while not all(node.ask("fleet")["nodes"] == 2 for node in nodes):
            assert time.monotonic() < end, "the nodes do not see each other"
            time.sleep(0.1)
        assert second.ask("read", *names) == _digests(names)
        store.at_rest()
        seen = second.ask("heat")
        # A busy machine may be late, and then asks the store once more.
        fleet = second.ask("fleet")
        late = sum(fleet[name] for name in ("origin_hedged", "origin_alone", "asks_late", "failed"))
        after = {key: gets for key, (gets, _) in store.gets().items() if store.is_blob(key)}
        again = sum(after.values()) - sum(before.values())
        assert seen["origin"] <= (1 + 4 * late) * MIB, (seen, late)
        assert seen["peers"] >= len(BIG) - late * 4 * MIB and seen["peers"] > 0, (seen, late)
        assert again <= late, f"{again} GETs of blobs that the first has; {late} times late: {fleet}"
    finally:
        for node in nodes:
            node.end()


def test_regression_a_node_that_is_alone_counts_what_the_store_sends(cached, tmp_path):
    # Without other nodes the store is asked directly, which the fleet does not count: `origin` stayed 0.
    secret = tmp_path / "secret"
    covey("fleet", "secret", secret)
    with coveyfs.open_tree(**cached, secret_file=str(secret), listen="127.0.0.1:0") as tree:
        assert tree.read("big.bin") == BIG
        found = tree.heat()
        assert len(BIG) <= found["origin"] < len(BIG) + MIB and found["peers"] == 0, found


def test_a_fleet_with_another_secret_is_not_joined(cached, tmp_path):
    secrets = [tmp_path / "one", tmp_path / "two"]
    for secret in secrets:
        covey("fleet", "secret", secret)
    first = Node(**cached, secret_file=str(secrets[0]), listen="127.0.0.1:0")
    try:
        other = {**cached, "cache_dir": str(tmp_path / "other"), "listen": "127.0.0.1:0"}
        second = Node(**other, secret_file=str(secrets[1]), join=first.address)
        try:
            # It reads from the store, as a node that is alone.
            assert second.ask("read", "big.bin") == _digests(["big.bin"])
            heat = second.ask("heat")
            assert heat["peers"] == 0 and heat["origin"] >= len(BIG), heat
        finally:
            second.end()
    finally:
        first.end()
