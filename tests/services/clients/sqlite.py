"""A client whose data must survive: SQLite transactions that add up.

work DB MODE    commits transactions until an error ends it; prints the highest row of each commit that returned
check DB LEAST  verifies the database; every row up to LEAST must be there
"""

import hashlib
import os
import random
import sqlite3
import sys


def connect(path):
    return sqlite3.connect(path, timeout=30, isolation_level=None)


def digest(blob):
    return hashlib.sha256(blob).hexdigest()


def work(path, mode):
    db = connect(path)
    db.execute(f"pragma journal_mode={mode}")
    db.execute("pragma synchronous=full")
    db.execute("create table if not exists rows(n integer primary key, body blob, sum text)")
    db.execute("create table if not exists counter(one integer primary key, total integer)")
    db.execute("insert or ignore into counter values(1, 0)")
    top = db.execute("select coalesce(max(n), 0) from rows").fetchone()[0]
    # Helps to find out why a check failed. Not earlier, because SQLite must be the first to open the files.
    found = f"at its start: {top} rows, {os.listdir(os.path.dirname(path))}, {os.stat(path)}"
    print(found, file=sys.stderr, flush=True)
    while True:
        db.execute("begin immediate")
        count = random.randint(1, 20)
        for _ in range(count):
            top += 1
            body = random.randbytes(random.choice([10, 300, 5000, 40000]))
            db.execute("insert into rows values(?, ?, ?)", (top, body, digest(body)))
        if top > 10:
            body = random.randbytes(500)
            db.execute("update rows set body=?, sum=? where n=?", (body, digest(body), random.randint(1, top)))
        db.execute("update counter set total = total + ?", (count,))
        db.execute("commit")
        print(top, flush=True)


def check(path, least):
    db = connect(path)
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)], "integrity_check"
    rows, top = db.execute("select count(*), coalesce(max(n), 0) from rows").fetchone()
    total = db.execute("select total from counter").fetchone()[0]
    assert rows == top == total, f"{rows} rows, the highest {top}, the counter {total}"
    assert top >= least, f"row {least} was committed, {top} is the highest there"
    for n, body, wanted in db.execute("select n, body, sum from rows"):
        assert digest(body) == wanted, f"row {n} holds wrong bytes"
    print(rows)


if sys.argv[1] == "work":
    work(sys.argv[2], sys.argv[3])
else:
    check(sys.argv[2], int(sys.argv[3]))
