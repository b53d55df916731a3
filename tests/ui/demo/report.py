"""Reports like a demo for some seconds: report.py NAME SECONDS."""

import json
import os
import socket
import sys
import time

name, seconds = sys.argv[1], float(sys.argv[2])
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["COVEY_DEMO_EVENTS"])


def say(**event):
    link.sendall(json.dumps({"demo": name, **event}).encode() + b"\n")


TIMES = {"local CSV file": 0.15, "MinIO": 4.2, "mount, first pass": 1.6, "mount, third pass": 0.19}
for n in range(92):
    say(kind="progress", done=n / 92, step=f"chunk {n + 1} of 92")
    for chart, more in (("loopback", 0), ("link", 55)):
        for series, ms in TIMES.items():
            far = more if series == "MinIO" else 0
            say(kind="point", chart=chart, series=series, x=n, y=(ms + far) * (1 + (n * 37 % 11) / 20), unit="ms")
    time.sleep(seconds / 92)
say(kind="table", head=["reader", "loopback", "faster", "target", "seed"],
    rows=[["MinIO", "4.2 ms", "", "", ""], ["mount, third pass", "0.19 ms", "22 x", "1,000 x: not met", "9 x"]])
say(kind="end", ok=True, message="")
