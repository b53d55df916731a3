"""A client that stands still is cut, and one that is slow is not. Usage: slow.py ENDPOINT BUCKET; 2 s patience."""

import os
import socket
import sys
import time
import urllib.parse

import boto3
from botocore.config import Config

ENDPOINT, BUCKET = sys.argv[1:3]
s3 = boto3.client(
    "s3",
    endpoint_url=ENDPOINT,
    region_name="us-east-1",
    aws_access_key_id=os.environ["WRITER_KEY"],
    aws_secret_access_key=os.environ["WRITER_SECRET"],
    config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
)


def begin(key, length):
    url = s3.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
    parts = urllib.parse.urlsplit(url)
    stream = socket.create_connection((parts.hostname, parts.port))
    head = "PUT %s?%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n"
    stream.sendall((head % (parts.path, parts.query, parts.netloc, length)).encode())
    stream.settimeout(30)
    return stream


def rest(stream):
    answer = b""
    try:
        while more := stream.recv(65536):
            answer += more
    except ConnectionError:
        pass
    return answer


# One byte, and then nothing.
stream = begin("still", 1000)
stream.sendall(b"x")
began = time.monotonic()
answer = rest(stream)
took = time.monotonic() - began
assert b"RequestTimeout" in answer or answer == b"", answer
assert 1 < took < 15, took

# A byte now and then is as good as nothing.
stream = begin("drops", 1000)
began = time.monotonic()
try:
    while time.monotonic() - began < 20:
        stream.sendall(b"x")
        time.sleep(0.5)
    raise AssertionError("it was not cut")
except ConnectionError:
    pass
took = time.monotonic() - began
assert took < 15, took

# Some kilobytes a second are enough. On a busy machine this program may stand still for two seconds
# itself, but not each time.
for _ in range(5):
    stream = begin("slow", 12 * 2048)
    try:
        for _ in range(12):
            stream.sendall(2048 * b"x")
            time.sleep(0.5)
        answer = stream.recv(65536)
    except ConnectionError as error:
        answer = repr(error).encode()
    if answer.startswith(b"HTTP/1.1 200"):
        break
assert answer.startswith(b"HTTP/1.1 200"), answer

# An answer that nobody reads ends too: the gateway ends in time, which the test checks.
s3.put_object(Bucket=BUCKET, Key="big", Body=64 * (1 << 20) * b"b")
url = s3.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "big"}, ExpiresIn=60)
parts = urllib.parse.urlsplit(url)
stream = socket.create_connection((parts.hostname, parts.port))
stream.sendall(("GET %s?%s HTTP/1.1\r\nHost: %s\r\n\r\n" % (parts.path, parts.query, parts.netloc)).encode())
time.sleep(6)
stream.settimeout(10)
read = 0
try:
    while more := stream.recv(1 << 20):
        read += len(more)
except (ConnectionError, socket.timeout):
    pass
assert read < 64 * (1 << 20), read

keys = [row["Key"] for row in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
assert keys == ["big", "slow"], keys
print("ok slow")
