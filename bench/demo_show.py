"""What a demo shows while it runs and at its end: a progress bar, events, a table and a chart.

If COVEY_DEMO_EVENTS names a Unix stream socket, each event is one line of JSON on a connection to it:

    {"demo": "cache", "kind": "progress", "done": 0.42, "step": "loopback: mount, first pass"}
    {"demo": "cache", "kind": "point", "chart": "loopback", "series": "mount, third pass", "x": 17, "y": 0.21, "unit": "ms"}
    {"demo": "cache", "kind": "table", "head": ["reader", ..], "rows": [["MinIO", ..], ..]}
    {"demo": "cache", "kind": "end", "ok": true, "message": ""}

The end is always the last event, also after a failure. A demo does not depend on the listener: a connection that
fails, or that takes nothing for a second, is given up. bench/src/sort/show.rs does the same for the sort.
"""

import contextlib
import html
import json
import math
import os
import shutil
import signal
import socket
import sys

PATIENCE_S = 1.0
"""A listener that takes nothing for so long is given up."""
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")
"""Colours that people with colour blindness can distinguish, too."""


class Wrong(Exception):
    """The arguments are wrong, or something that the demo needs is missing. The status is 2."""


class Show:
    """The progress and the events of one demo."""

    def __init__(self, demo):
        self.demo, self.begun, self.tenth = demo, 0, -1
        self.steps = 1
        """How many times `step` is called."""
        self.terminal = sys.stderr.isatty()
        self.socket = None
        if path := os.environ.get("COVEY_DEMO_EVENTS"):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(PATIENCE_S)
            self.guarded(lambda: self.socket.connect(path))

    def guarded(self, work):
        try:
            work()
        except OSError:
            self.socket.close()
            self.socket = None

    def send(self, kind, **event):
        if self.socket:
            line = json.dumps({"demo": self.demo, "kind": kind, **event}) + "\n"
            self.guarded(lambda: self.socket.sendall(line.encode()))

    def step(self, what):
        """The next of all steps begins."""
        self.progress(self.begun / self.steps, what)
        self.begun += 1

    def progress(self, done, step):
        """Shows how much is done, from 0 to 1, and what is being done."""
        done = min(max(done, 0.0), 1.0)
        self.send("progress", done=round(done, 4), step=step)
        if self.terminal:
            full = int(done * 24)
            line = f"{self.demo} [{'#' * full}{'.' * (24 - full)}] {done * 100:3.0f} %  {step}"
            print(f"\r\x1b[K{line[:shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        elif int(done * 10) > self.tenth:
            self.tenth = int(done * 10)
            print(f"{self.demo}: {done * 100:.0f} %, {step}", file=sys.stderr, flush=True)

    def point(self, chart, series, x, y, unit):
        self.send("point", chart=chart, series=series, x=x, y=y, unit=unit)

    def table(self, head, rows):
        """Sends a table. Returns it as Markdown."""
        self.send("table", head=head, rows=rows)
        lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def end(self, message=""):
        """The last event, with the last line of a message. There is none if the demo succeeded."""
        message = message.strip().rsplit("\n", 1)[-1]
        if not message:
            self.progress(1.0, "done")
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self.send("end", ok=not message, message=message)


class Signals:
    """A signal that asks to end ends the demo as a failure does. What is done within `whole` is finished before."""

    def __init__(self):
        self.depth = self.asked = 0

    def listen(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self.take)

    def take(self, number, _):
        self.asked = number
        self.check()

    def check(self):
        if self.asked and not self.depth:
            number, self.asked = self.asked, 0
            sys.exit(128 + number)

    @contextlib.contextmanager
    def whole(self):
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
        self.check()


SIGNALS = Signals()


def conduct(demo, work):
    """Runs a demo, and sends its end however it ends. Returns the program's status."""
    SIGNALS.listen()
    show, status, said = Show(demo), 0, ""
    try:
        work(show)
    except Wrong as why:
        status, said = 2, str(why)
    except SystemExit as why:
        ended = isinstance(why.code, int)
        status = why.code if ended else 1
        said = f"ended by {signal.Signals(status - 128).name}" if ended else str(why.code)
    except BaseException as why:
        show.end(f"{type(why).__name__}: {why}")
        raise
    show.end(said)
    if said:
        print(f"demo-{demo}: {said}", file=sys.stderr)
    return status


def bars(title, unit, rows, logarithmic=False):
    """A chart as SVG text. A row is its label and pairs of a series and a value, each a horizontal bar."""
    values = [value for _, pairs in rows for _, value in pairs]
    names = list(dict.fromkeys(name for _, pairs in rows for name, _ in pairs))
    # A logarithmic axis begins at the power of ten below the smallest value.
    low = 10 ** math.floor(math.log10(min(values))) if logarithmic else 0
    scale = (lambda value: math.log10(value / low)) if logarithmic else (lambda value: value)
    wide, left, high = 900, 250, 70 + sum(14 * len(pairs) + 8 for _, pairs in rows)
    text = lambda x, y, what, more="": f'<text x="{x:.0f}" y="{y:.0f}"{more}>{html.escape(what)}</text>'
    box = lambda x, y, width, series: \
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="12" fill="{COLOURS[names.index(series) % len(COLOURS)]}"/>'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>', text(12, 22, title, ' font-size="16"')]
    at = 40
    for label, pairs in rows:
        parts.append(text(left - 8, at + 7 * len(pairs) + 3, label, ' text-anchor="end"'))
        for series, value in pairs:
            width = max(1.0, scale(value) / max(map(scale, values)) * (wide - left - 110))
            parts += [box(left, at, width, series), text(left + width + 5, at + 10, f"{value:.3g} {unit}")]
            at += 14
        at += 8
    for number, series in enumerate(names):
        parts += [box(left + 140 * number, at + 4, 12, series), text(left + 140 * number + 18, at + 14, series)]
    if logarithmic:
        parts.append(text(12, at + 14, f"logarithmic, from {low:g} {unit}"))
    return "\n".join([*parts, "</svg>", ""])
