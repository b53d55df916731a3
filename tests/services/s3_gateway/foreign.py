"""A bucket of another store, read through the gateway. Usage: foreign.py STEP ENDPOINT BUCKET ARGUMENT..."""

import hashlib
import os
import sys
import time
import urllib.request

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

STEP, ENDPOINT, BUCKET, *ARGS = sys.argv[1:]


def client(key=os.environ["WRITER_KEY"], secret=os.environ["WRITER_SECRET"], retries=0):
    return boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(
            s3={"addressing_style": "path"},
            signature_version="s3v4",
            retries={"max_attempts": retries},
            read_timeout=120,
        ),
    )


s3 = client()


def code(call, **args):
    try:
        call(**args)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "fine"


def body(key, **args):
    return s3.get_object(Bucket=BUCKET, Key=key, **args)["Body"].read()


def read(path):
    with open(path, "rb") as file:
        return file.read()


def get(key, expected):
    assert body(key) == read(expected)


def head(key, expected):
    found = s3.head_object(Bucket=BUCKET, Key=key)
    assert found["ContentLength"] == os.path.getsize(expected) and found["ETag"] and found["LastModified"], found


def conditions(key, text):
    etag = s3.head_object(Bucket=BUCKET, Key=key)["ETag"]
    assert code(s3.get_object, Bucket=BUCKET, Key=key, IfMatch='"other"') == "PreconditionFailed"
    assert code(s3.get_object, Bucket=BUCKET, Key=key, IfNoneMatch=etag) == "304"
    assert body(key, IfMatch=etag) == text.encode()
    assert code(s3.get_object, Bucket=BUCKET, Key=key, Range="bytes=1000-") == "InvalidRange"
    found = s3.get_object(Bucket=BUCKET, Key=key, Range="bytes=1-2", ResponseContentType="text/x-test")
    assert found["ContentRange"] == "bytes 1-2/%d" % len(text) and found["ContentType"] == "text/x-test", found
    assert found["Body"].read() == text[1:3].encode()
    assert body(key, Range="bytes=-2") == text[-2:].encode()
    assert code(s3.get_object, Bucket=BUCKET, Key="not/there") == "NoSuchKey"
    assert code(s3.head_object, Bucket=BUCKET, Key="not/there") == "404"
    assert [row["Name"] for row in s3.list_buckets()["Buckets"]] == [BUCKET]
    listed = s3.list_objects_v2(Bucket=BUCKET)
    assert listed["Name"] == BUCKET, listed
    assert [row["Key"] for row in listed["Contents"]] == ["deep/large", "small"], listed
    listed = s3.list_objects_v2(Bucket=BUCKET, Delimiter="/", Prefix="")
    assert [row["Prefix"] for row in listed["CommonPrefixes"]] == ["deep/"], listed
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix="deep/")["KeyCount"] == 1
    assert s3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] is None
    s3.head_bucket(Bucket=BUCKET)
    assert code(s3.get_bucket_policy, Bucket=BUCKET) == "NotImplemented"
    assert code(s3.delete_bucket, Bucket=BUCKET) == "NotImplemented"


def until(key, expected):
    end = time.monotonic() + 60
    while body(key) != read(expected):
        assert time.monotonic() < end
        time.sleep(0.1)


def gone(key):
    end = time.monotonic() + 60
    while code(s3.get_object, Bucket=BUCKET, Key=key) != "NoSuchKey":
        assert time.monotonic() < end
        time.sleep(0.1)


def replaced(key, old, new, place):
    old, new = read(old), read(new)
    found = s3.get_object(Bucket=BUCKET, Key=key)["Body"]
    first = found.read(1 << 20)
    # The object is replaced as a whole, under the reader.
    with open(place + ".new", "wb") as file:
        file.write(new)
    os.rename(place + ".new", place)
    try:
        rest = found.read()
        assert first + rest == old, "all of it was on the way before"
        raise AssertionError("the object of 24 MiB was on the way as a whole")
    except Exception as error:
        assert not isinstance(error, AssertionError), error
    assert first == old[: len(first)]
    assert body(key) == new


def refused(key, secret):
    wrong = client(secret="covey/test+writer=9876543210")
    unknown = client(key="NOBODY")
    assert code(wrong.get_object, Bucket=BUCKET, Key=key) == "SignatureDoesNotMatch"
    assert code(unknown.get_object, Bucket=BUCKET, Key=key) == "InvalidAccessKeyId"
    assert code(wrong.head_object, Bucket=BUCKET, Key=key) == "403"
    url = wrong.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": key})
    for url in [url, "%s/%s/%s" % (ENDPOINT, BUCKET, key)]:
        try:
            urllib.request.urlopen(url)
            raise AssertionError("it was answered")
        except urllib.error.HTTPError as error:
            assert error.code == 403 and secret.encode() not in error.read(), error
    url = s3.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": key})
    assert urllib.request.urlopen(url).read() == secret.encode()
    reader = client(os.environ["READER_KEY"], os.environ["READER_SECRET"])
    assert reader.get_object(Bucket=BUCKET, Key=key)["Body"].read() == secret.encode()
    assert code(reader.put_object, Bucket=BUCKET, Key=key, Body=b"x") == "AccessDenied"
    assert code(reader.delete_object, Bucket=BUCKET, Key=key) == "AccessDenied"


def writes(key):
    assert body(key) == b"old"
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"new", Metadata={"a": "b"})
    assert body(key) == b"new"
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"trailer", ChecksumAlgorithm="CRC32")
    assert body(key) == b"trailer"
    s3.put_object(Bucket=BUCKET, Key="empty", Body=b"")
    assert body("empty") == b""
    s3.put_object(Bucket=BUCKET, Key="written", Body=b"written by a client")
    s3.copy_object(Bucket=BUCKET, Key=key, CopySource={"Bucket": BUCKET, "Key": "written"})
    assert body(key) == b"written by a client"
    # s3s-fs would keep the checksum of an object that was there before.
    key = "parts"
    large = os.urandom(6 << 20) + b"end"
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key=key)
    assert upload["Bucket"] == BUCKET and upload["Key"] == key, upload
    which = {"Bucket": BUCKET, "Key": key, "UploadId": upload["UploadId"]}
    cut = 5 << 20
    parts = []
    for number, piece in enumerate([large[:cut], large[cut:]], 1):
        part = s3.upload_part(PartNumber=number, Body=piece, **which)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **which)
    assert hashlib.md5(body(key)).digest() == hashlib.md5(large).digest()
    s3.delete_object(Bucket=BUCKET, Key=key)
    assert code(s3.get_object, Bucket=BUCKET, Key=key) == "NoSuchKey"
    s3.put_object(Bucket=BUCKET, Key="a", Body=b"1")
    s3.put_object(Bucket=BUCKET, Key="b", Body=b"2")
    assert body("a") == b"1"
    done = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "a"}, {"Key": "b"}]})
    assert sorted(row["Key"] for row in done["Deleted"]) == ["a", "b"], done
    assert code(s3.get_object, Bucket=BUCKET, Key="a") == "NoSuchKey"


def range_of(key, expected, start, length):
    start, length = int(start), int(length)
    found = body(key, Range="bytes=%d-%d" % (start, start + length - 1))
    assert found == read(expected)[start : start + length]


def away(key):
    try:
        s3.get_object(Bucket=BUCKET, Key=key)
        raise AssertionError("it was answered")
    except ClientError as error:
        answer = error.response["ResponseMetadata"]
        assert error.response["Error"]["Code"] == "ServiceUnavailable", error
        assert answer["HTTPStatusCode"] == 503 and answer["HTTPHeaders"]["retry-after"], error


def exists(key):
    assert body(key)


{
    "get": get,
    "head": head,
    "conditions": conditions,
    "until": until,
    "gone": gone,
    "replaced": replaced,
    "refused": refused,
    "writes": writes,
    "range": range_of,
    "away": away,
    "exists": exists,
}[STEP](*ARGS)
print("ok", STEP)
