"""What boto3 may rely on. Usage: boto.py ENDPOINT BUCKET READ_ONLY_BUCKET; keys come from the environment.

Each function whose name begins with `t_` is one check. A failed one is printed with its traceback, and the
exit status is then 1.
"""

import datetime
import hashlib
import http.client
import io
import os
import socket
import sys
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request

import boto3
import botocore.auth
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError, MissingDependencyException

ENDPOINT, BUCKET, FROZEN = sys.argv[1:4]
MIB = 1 << 20


def client(key=None, secret=None, **config):
    config.setdefault("s3", {"addressing_style": "path"})
    # Without this, boto3 signs URLs by version 2.
    config.setdefault("signature_version", "s3v4")
    return boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id=key or os.environ["WRITER_KEY"],
        aws_secret_access_key=secret or os.environ["WRITER_SECRET"],
        config=Config(retries={"max_attempts": 1}, **config),
    )


s3 = client()


def code(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "fine"


def put(key, body=b"", **more):
    return s3.put_object(Bucket=BUCKET, Key=key, Body=body, **more)


def get(key, **more):
    return s3.get_object(Bucket=BUCKET, Key=key, **more)["Body"].read()


def keys(**more):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, **more)
    found = [page for page in pages]
    objects = [row["Key"] for page in found for row in page.get("Contents", [])]
    groups = [row["Prefix"] for page in found for row in page.get("CommonPrefixes", [])]
    return objects, groups


def clear(prefix):
    for key in keys(Prefix=prefix)[0]:
        s3.delete_object(Bucket=BUCKET, Key=key)


def t_buckets():
    names = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    assert names == sorted([BUCKET, FROZEN]), names
    s3.head_bucket(Bucket=BUCKET)
    assert s3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] is None
    assert code(s3.head_bucket, Bucket="not-there") in ("403", "404")
    assert code(s3.create_bucket, Bucket="new-bucket") == "NotImplemented"
    assert code(s3.get_bucket_policy, Bucket=BUCKET) == "NotImplemented"


def t_object():
    data = os.urandom(300_000)
    answer = put("o/x", data, ContentType="text/x", CacheControl="no-cache", Metadata={"a": "b", "Name": "v w"})
    md5 = '"%s"' % hashlib.md5(data).hexdigest()
    assert answer["ETag"] == md5, answer
    found = s3.get_object(Bucket=BUCKET, Key="o/x")
    assert found["Body"].read() == data and found["ETag"] == md5
    assert found["ContentType"] == "text/x" and found["CacheControl"] == "no-cache"
    assert found["Metadata"] == {"a": "b", "name": "v w"}, found["Metadata"]
    head = s3.head_object(Bucket=BUCKET, Key="o/x")
    assert head["ContentLength"] == len(data) and head["ETag"] == md5
    age = datetime.datetime.now(datetime.timezone.utc) - head["LastModified"]
    assert abs(age.total_seconds()) < 300, age
    s3.delete_object(Bucket=BUCKET, Key="o/x")
    assert code(s3.get_object, Bucket=BUCKET, Key="o/x") == "NoSuchKey"
    assert code(s3.head_object, Bucket=BUCKET, Key="o/x") == "404"
    s3.delete_object(Bucket=BUCKET, Key="o/x")
    assert keys(Prefix="o/") == ([], [])


def t_sizes():
    for size in [0, 1, 4095, 65536, MIB - 1, MIB, MIB + 1, 3 * MIB + 7]:
        data = os.urandom(size)
        put("sizes/x", data)
        assert get("sizes/x") == data, size
    clear("sizes/")


def t_ranges():
    data = os.urandom(2 * MIB + 10)
    put("r", data)
    for first, last in [(0, 0), (5, 9), (MIB - 1, MIB), (0, len(data)), (len(data) - 1, len(data) + 9)]:
        answer = s3.get_object(Bucket=BUCKET, Key="r", Range="bytes=%d-%d" % (first, last))
        assert answer["Body"].read() == data[first : last + 1]
        end = min(last, len(data) - 1)
        assert answer["ContentRange"] == "bytes %d-%d/%d" % (first, end, len(data))
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert get("r", Range="bytes=-7") == data[-7:] and get("r", Range="bytes=100-") == data[100:]
    assert code(s3.get_object, Bucket=BUCKET, Key="r", Range="bytes=%d-" % len(data)) == "InvalidRange"
    clear("r")


def t_read_conditions():
    tag = put("c", b"1")["ETag"]
    now = datetime.datetime.now(datetime.timezone.utc)
    hour = datetime.timedelta(hours=1)

    def got(**more):
        return code(s3.get_object, Bucket=BUCKET, Key="c", **more), code(s3.head_object, Bucket=BUCKET, Key="c", **more)

    assert got(IfMatch=tag) == ("fine", "fine")
    assert got(IfMatch='"00"') == ("PreconditionFailed", "412")
    assert got(IfNoneMatch=tag) == ("304", "304")
    assert got(IfNoneMatch='"00"') == ("fine", "fine")
    assert got(IfModifiedSince=now - hour) == ("fine", "fine")
    assert got(IfModifiedSince=now + hour) == ("304", "304")
    assert got(IfUnmodifiedSince=now - hour) == ("PreconditionFailed", "412")
    assert got(IfUnmodifiedSince=now + hour) == ("fine", "fine")
    clear("c")


def t_write_conditions():
    clear("w")
    assert code(put, "w", b"1", IfNoneMatch="*") == "fine"
    assert code(put, "w", b"2", IfNoneMatch="*") == "PreconditionFailed"
    tag = s3.head_object(Bucket=BUCKET, Key="w")["ETag"]
    assert code(put, "w", b"3", IfMatch='"00"') == "PreconditionFailed"
    assert code(put, "w", b"3", IfMatch=tag) == "fine"
    assert code(put, "w2", b"3", IfMatch=tag) == "NoSuchKey"
    assert get("w") == b"3"
    clear("w")


def t_listing():
    wanted = sorted(["l/a-b", "l/a.b", "l/a/c", "l/a/d/e", "l/a0", "l/b c+d%", "l/ä/x", "l/&<>\"'"], key=lambda k: k.encode())
    for key in wanted:
        put(key, key.encode())
    for size in [1, 2, 3, 1000]:
        config = {"PaginationConfig": {"PageSize": size}}
        assert keys(Prefix="l/", **config)[0] == wanted, size
        objects, groups = keys(Prefix="l/", Delimiter="/", **config)
        assert groups == ["l/a/", "l/ä/"] and objects == [key for key in wanted if key.count("/") == 1]
        first = [page for page in s3.get_paginator("list_objects").paginate(Bucket=BUCKET, Prefix="l/", Delimiter="/", **config)]
        assert [row["Key"] for page in first for row in page.get("Contents", [])] == objects
        assert [row["Prefix"] for page in first for row in page.get("CommonPrefixes", [])] == groups
    assert keys(Prefix="l/", StartAfter="l/a/c")[0] == wanted[wanted.index("l/a/c") + 1 :]
    row = s3.list_objects_v2(Bucket=BUCKET, Prefix="l/a0")["Contents"][0]
    assert row["Size"] == 4 and row["ETag"] == '"%s"' % hashlib.md5(b"l/a0").hexdigest()
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix="l/", MaxKeys=0)["KeyCount"] == 0
    assert keys(Prefix="l/a", Delimiter="-")[1] == ["l/a-"]
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix="nothing/")["KeyCount"] == 0
    assert code(s3.list_objects_v2, Bucket=BUCKET, ContinuationToken="!") == "InvalidArgument"
    clear("l/")


def t_keys():
    for key in ["k/ ", "k/+", "k/%2F", "k/ü/ß", "k/a=b&c?d#e", "k/'\"", "k/~!@$^*()", "k/..."]:
        put(key, key.encode())
        assert get(key) == key.encode(), key
    clear("k/")
    for key in ["k//a", "k/../a", "k/.", "k/a//"]:
        assert code(put, key) == "InvalidArgument", key
        assert code(s3.get_object, Bucket=BUCKET, Key=key) == "NoSuchKey", key
        s3.delete_object(Bucket=BUCKET, Key=key)
    assert code(put, "k/" + 256 * "a") == "KeyTooLongError"
    assert code(put, 600 * "a/") == "KeyTooLongError"
    assert code(put, ".covey-s3/x") == "InvalidArgument"
    put("k/file", b"1")
    assert code(put, "k/file/below") == "InvalidArgument" and code(put, "k") == "InvalidArgument"
    clear("k/")


def t_folders():
    put("f/")
    assert keys(Prefix="f/")[0] == ["f/"]
    assert s3.head_object(Bucket=BUCKET, Key="f/")["ContentLength"] == 0
    assert code(put, "f2/", b"x") == "InvalidArgument"
    put("f/x", b"1")
    assert keys(Prefix="f/", Delimiter="/") == (["f/", "f/x"], [])
    clear("f/")
    assert keys(Prefix="f") == ([], [])


def t_delete_many():
    names = ["d/%d" % n for n in range(20)]
    for name in names:
        put(name)
    rows = [{"Key": name} for name in names + ["d/not-there", "d//x"]]
    answer = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": rows})
    assert len(answer["Deleted"]) == 22 and "Errors" not in answer, answer
    assert keys(Prefix="d/") == ([], [])
    put("d/q")
    answer = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "d/q"}], "Quiet": True})
    assert "Deleted" not in answer


def t_copy():
    data = os.urandom(5 * MIB + 3)
    tag = put("copy/from", data, ContentType="text/x", Metadata={"m": "1"}, Tagging="t=1")["ETag"]
    source = {"Bucket": BUCKET, "Key": "copy/from"}
    answer = s3.copy_object(Bucket=BUCKET, Key="copy/to", CopySource=source)
    assert answer["CopyObjectResult"]["ETag"] == tag
    assert get("copy/to") == data
    head = s3.head_object(Bucket=BUCKET, Key="copy/to")
    assert head["ContentType"] == "text/x" and head["Metadata"] == {"m": "1"}
    assert s3.get_object_tagging(Bucket=BUCKET, Key="copy/to")["TagSet"] == [{"Key": "t", "Value": "1"}]
    s3.copy_object(Bucket=BUCKET, Key="copy/to", CopySource=source, MetadataDirective="REPLACE", Metadata={"n": "2"})
    assert s3.head_object(Bucket=BUCKET, Key="copy/to")["Metadata"] == {"n": "2"}
    assert code(s3.copy_object, Bucket=BUCKET, Key="copy/from", CopySource=source) == "InvalidRequest"
    assert code(s3.copy_object, Bucket=BUCKET, Key="x", CopySource={"Bucket": BUCKET, "Key": "no"}) == "NoSuchKey"
    assert code(s3.copy_object, Bucket=BUCKET, Key="x", CopySource=source, CopySourceIfMatch='"00"') == "PreconditionFailed"
    frozen = {"Bucket": FROZEN, "Key": "dir/hello"}
    s3.copy_object(Bucket=BUCKET, Key="copy/other", CopySource=frozen)
    assert get("copy/other") == b"hello"
    clear("copy/")


def t_tags():
    put("t", b"", Tagging="a=1&b=x%20y")

    def tags():
        return {tag["Key"]: tag["Value"] for tag in s3.get_object_tagging(Bucket=BUCKET, Key="t")["TagSet"]}

    assert tags() == {"a": "1", "b": "x y"}
    assert s3.get_object(Bucket=BUCKET, Key="t")["TagCount"] == 2
    assert s3.head_object(Bucket=BUCKET, Key="t")["TagCount"] == 2
    s3.put_object_tagging(Bucket=BUCKET, Key="t", Tagging={"TagSet": [{"Key": "c", "Value": ""}]})
    assert tags() == {"c": ""}
    s3.delete_object_tagging(Bucket=BUCKET, Key="t")
    assert tags() == {}
    many = {"TagSet": [{"Key": str(n), "Value": ""} for n in range(11)]}
    assert code(s3.put_object_tagging, Bucket=BUCKET, Key="t", Tagging=many) == "InvalidTag"
    clear("t")


def t_multipart():
    data = os.urandom(17 * MIB + 5)
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB, max_concurrency=4)
    s3.upload_fileobj(io.BytesIO(data), BUCKET, "m/x", Config=config, ExtraArgs={"ContentType": "text/y"})
    head = s3.head_object(Bucket=BUCKET, Key="m/x")
    parts = [data[at : at + 5 * MIB] for at in range(0, len(data), 5 * MIB)]
    whole = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
    assert head["ETag"] == '"%s-%d"' % (whole, len(parts)) and head["ContentType"] == "text/y"
    back = io.BytesIO()
    s3.download_fileobj(BUCKET, "m/x", back, Config=config)
    assert back.getvalue() == data
    second = s3.get_object(Bucket=BUCKET, Key="m/x", PartNumber=2)
    assert second["Body"].read() == parts[1] and second["PartsCount"] == len(parts)
    assert code(s3.get_object, Bucket=BUCKET, Key="m/x", PartNumber=9) == "InvalidPartNumber"
    assert s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []) == []
    s3.copy({"Bucket": BUCKET, "Key": "m/x"}, BUCKET, "m/y", Config=config)
    assert get("m/y") == data
    clear("m/")


def t_multipart_by_hand():
    for algorithm, kind in [(None, None), ("CRC32", "COMPOSITE"), ("CRC64NVME", "FULL_OBJECT"), ("SHA256", "COMPOSITE")]:
        more = {} if algorithm is None else {"ChecksumAlgorithm": algorithm, "ChecksumType": kind}
        made = s3.create_multipart_upload(Bucket=BUCKET, Key="h/x", Metadata={"a": "b"}, **more)
        upload = {"Bucket": BUCKET, "Key": "h/x", "UploadId": made["UploadId"]}
        each = {} if algorithm is None else {"ChecksumAlgorithm": algorithm}
        rows = []
        for number, body in [(1, 5 * MIB * b"1"), (3, b"end")]:
            try:
                answer = s3.upload_part(PartNumber=number, Body=body, **upload, **each)
            except MissingDependencyException:
                break
            rows.append({"PartNumber": number, "ETag": answer["ETag"]})
        if not rows:
            s3.abort_multipart_upload(**upload)
            continue
        listed = s3.list_parts(**upload, MaxParts=1)
        assert listed["IsTruncated"] and listed["Parts"][0]["PartNumber"] == 1
        rest = s3.list_parts(**upload, PartNumberMarker=listed["NextPartNumberMarker"])["Parts"]
        assert [part["Size"] for part in rest] == [3]
        uploads = s3.list_multipart_uploads(Bucket=BUCKET, Prefix="h/")["Uploads"]
        assert [row["UploadId"] for row in uploads] == [made["UploadId"]]
        assert keys(Prefix="h/")[0] == []
        wrong = [dict(rows[0], ETag='"00"'), rows[1]]
        assert code(s3.complete_multipart_upload, MultipartUpload={"Parts": wrong}, **upload) == "InvalidPart"
        assert code(s3.complete_multipart_upload, MultipartUpload={"Parts": rows[::-1]}, **upload) == "InvalidPartOrder"
        done = s3.complete_multipart_upload(MultipartUpload={"Parts": rows}, **upload)
        again = s3.complete_multipart_upload(MultipartUpload={"Parts": rows}, **upload)
        assert again["ETag"] == done["ETag"]
        if algorithm:
            assert done["ChecksumType"] == kind, done
            head = s3.head_object(Bucket=BUCKET, Key="h/x", ChecksumMode="ENABLED")
            assert head["Checksum" + algorithm] == done["Checksum" + algorithm], head
        assert get("h/x") == 5 * MIB * b"1" + b"end"
        assert s3.head_object(Bucket=BUCKET, Key="h/x")["Metadata"] == {"a": "b"}
        clear("h/")
    made = s3.create_multipart_upload(Bucket=BUCKET, Key="h/x")
    upload = {"Bucket": BUCKET, "Key": "h/x", "UploadId": made["UploadId"]}
    small = s3.upload_part(PartNumber=1, Body=b"1", **upload)["ETag"]
    other = s3.upload_part(PartNumber=2, Body=b"2", **upload)["ETag"]
    rows = [{"PartNumber": 1, "ETag": small}, {"PartNumber": 2, "ETag": other}]
    assert code(s3.complete_multipart_upload, MultipartUpload={"Parts": rows}, **upload) == "EntityTooSmall"
    assert code(s3.upload_part, PartNumber=10001, Body=b"", **upload) == "InvalidArgument"
    s3.abort_multipart_upload(**upload)
    assert code(s3.upload_part, PartNumber=1, Body=b"", **upload) == "NoSuchUpload"
    assert code(s3.list_parts, **upload) == "NoSuchUpload"


def t_many_parts():
    made = s3.create_multipart_upload(Bucket=BUCKET, Key="many")
    upload = {"Bucket": BUCKET, "Key": "many", "UploadId": made["UploadId"]}
    body = 5 * MIB * b"m"
    put("many-from", body)
    rows = []
    for number in range(1, 101):
        answer = s3.upload_part_copy(CopySource={"Bucket": BUCKET, "Key": "many-from"}, PartNumber=number, **upload)
        rows.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    s3.complete_multipart_upload(MultipartUpload={"Parts": rows}, **upload)
    assert s3.head_object(Bucket=BUCKET, Key="many")["ContentLength"] == 500 * MIB
    assert get("many", Range="bytes=%d-%d" % (300 * MIB - 2, 300 * MIB + 1)) == b"mmmm"
    clear("many")


def needs_library(error):
    """Some algorithms need the C library of the AWS SDK."""
    return isinstance(error, MissingDependencyException)


def t_checksums():
    for algorithm in ["CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"]:
        try:
            answer = put("sum", b"123456789", ChecksumAlgorithm=algorithm)
        except Exception as error:
            if needs_library(error):
                continue
            raise
        head = s3.head_object(Bucket=BUCKET, Key="sum", ChecksumMode="ENABLED")
        assert head["Checksum" + algorithm] == answer["Checksum" + algorithm]
        assert get("sum", ChecksumMode="ENABLED") == b"123456789"
    clear("sum")
    assert code(put, "sum", b"1", ChecksumCRC32="AAAAAA==") == "BadDigest"
    assert code(put, "sum", b"1", ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg==") == "BadDigest"
    assert code(put, "sum", b"1", ContentMD5="x") == "InvalidDigest"
    assert code(s3.head_object, Bucket=BUCKET, Key="sum") == "404"


def t_presigned():
    url = s3.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": "p q"}, ExpiresIn=60)
    request = urllib.request.Request(url, data=b"by url", method="PUT")
    request.add_header("Content-Type", "")
    assert urllib.request.urlopen(request).status == 200
    url = s3.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "p q"}, ExpiresIn=60)
    assert urllib.request.urlopen(url).read() == b"by url"
    for bad in [url.replace("p%20q", "other"), url[:-1] + ("0" if url[-1] != "0" else "1")]:
        try:
            urllib.request.urlopen(bad)
            raise AssertionError("accepted: " + bad)
        except urllib.error.HTTPError as error:
            assert error.code == 403, error.code
    old = s3.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "p q"}, ExpiresIn=1)
    time.sleep(2.5)
    try:
        urllib.request.urlopen(old)
        raise AssertionError("accepted an old URL")
    except urllib.error.HTTPError as error:
        assert error.code == 403 and b"expired" in error.read()
    clear("p q")


def t_access():
    reader = client(os.environ["READER_KEY"], os.environ["READER_SECRET"])
    put("acc", b"1")
    assert reader.get_object(Bucket=BUCKET, Key="acc")["Body"].read() == b"1"
    assert code(reader.put_object, Bucket=BUCKET, Key="acc", Body=b"2") == "AccessDenied"
    assert code(reader.delete_object, Bucket=BUCKET, Key="acc") == "AccessDenied"
    assert code(reader.list_objects_v2, Bucket=FROZEN) == "AccessDenied"
    assert [bucket["Name"] for bucket in reader.list_buckets()["Buckets"]] == [BUCKET]
    assert code(client("NOBODY", 20 * "x").list_buckets) == "InvalidAccessKeyId"
    assert code(client(secret=20 * "x").list_buckets) == "SignatureDoesNotMatch"
    try:
        urllib.request.urlopen("%s/%s/acc" % (ENDPOINT, BUCKET))
        raise AssertionError("an unsigned request was answered")
    except urllib.error.HTTPError as error:
        assert error.code == 403
    old = client(signature_version="s3")
    assert code(old.list_objects_v2, Bucket=BUCKET) == "InvalidRequest"
    clear("acc")


def t_clocks():
    now = botocore.auth.get_current_datetime

    def at(minutes):
        def other(*args, **kwargs):
            return now(*args, **kwargs) + datetime.timedelta(minutes=minutes)

        botocore.auth.get_current_datetime = other
        try:
            return code(s3.head_bucket, Bucket=BUCKET), code(s3.list_objects_v2, Bucket=BUCKET, MaxKeys=1)
        finally:
            botocore.auth.get_current_datetime = now

    assert at(10) == ("fine", "fine") and at(-10) == ("fine", "fine")
    assert at(20) == ("403", "RequestTimeTooSkewed") and at(-20) == ("403", "RequestTimeTooSkewed")


def t_read_only():
    assert s3.get_object(Bucket=FROZEN, Key="dir/hello")["Body"].read() == b"hello"
    rows = s3.list_objects_v2(Bucket=FROZEN)["Contents"]
    assert [row["Key"] for row in rows] == ["dir/hello"] and rows[0]["ETag"].endswith('-0"')
    for call, more in [(s3.put_object, {"Body": b""}), (s3.delete_object, {}), (s3.create_multipart_upload, {})]:
        assert code(call, Bucket=FROZEN, Key="x", **more) == "AccessDenied"


def t_virtual_hosts():
    port = urllib.parse.urlsplit(ENDPOINT).port
    url = s3.generate_presigned_url("list_objects_v2", {"Bucket": BUCKET}, ExpiresIn=60)
    assert urllib.request.urlopen(url).status == 200
    other = boto3.client(
        "s3",
        endpoint_url="http://s3.test.localhost:%d" % port,
        region_name="us-east-1",
        aws_access_key_id=os.environ["WRITER_KEY"],
        aws_secret_access_key=os.environ["WRITER_SECRET"],
        config=Config(s3={"addressing_style": "virtual"}, signature_version="s3v4"),
    )
    url = other.generate_presigned_url("list_objects_v2", {"Bucket": BUCKET}, ExpiresIn=60)
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname == BUCKET + ".s3.test.localhost", parts
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", parts.path + "?" + parts.query, headers={"Host": parts.netloc})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200 and b"<ListBucketResult" in body, body


def t_not_offered():
    assert code(put, "x", b"", ServerSideEncryption="AES256") == "NotImplemented"
    assert code(put, "x", b"", ACL="public-read") == "NotImplemented"
    assert code(put, "x", b"", StorageClass="GLACIER") == "NotImplemented"
    assert code(put, "x", b"", Metadata={"a": 3000 * "b"}) == "MetadataTooLarge"
    put("x", b"", ACL="private", StorageClass="STANDARD")
    clear("x")


def raw(head, body=b"", cut=False):
    """Sends bytes, and returns what comes back. `cut`: the client goes away in the middle."""
    port = urllib.parse.urlsplit(ENDPOINT).port
    with socket.create_connection(("127.0.0.1", port)) as stream:
        # An answer may be late on a busy machine. After it, not every connection is closed at once.
        stream.settimeout(5 if cut else 60)
        answer = b""
        try:
            stream.sendall(head + b"\r\nConnection: close\r\n\r\n" + body)
            if cut:
                stream.shutdown(socket.SHUT_WR)
            while more := stream.recv(65536):
                answer += more
                stream.settimeout(5)
        except (socket.timeout, ConnectionError):
            pass
        return answer


def presigned_put(key):
    url = s3.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
    parts = urllib.parse.urlsplit(url)
    return "PUT %s?%s HTTP/1.1\r\nHost: %s" % (parts.path, parts.query, parts.netloc)


def t_short_and_wrong_bodies():
    head = presigned_put("short")
    raw((head + "\r\nContent-Length: 100").encode(), b"only this", cut=True)
    assert code(s3.head_object, Bucket=BUCKET, Key="short") == "404"
    wrong = head + "\r\nContent-Length: 4\r\nx-amz-content-sha256: " + 64 * "0"
    answer = raw(wrong.encode(), b"body")
    assert b"XAmzContentSHA256Mismatch" in answer, answer
    assert b"MissingContentLength" in raw((head + "\r\nTransfer-Encoding: chunked").encode(), b"0\r\n\r\n")
    unsigned = head + "\r\nContent-Length: 0\r\nx-amz-copy-source: /%s/secret" % FROZEN
    assert b"AccessDenied" in raw(unsigned.encode())
    assert keys(Prefix="short") == ([], [])


def t_nonsense():
    for head in [
        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: AWS4-HMAC-SHA256 x",
        b"GET /%ff/%00 HTTP/1.1\r\nHost: x",
        b"POST /" + BUCKET.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 0",
        b"GET /?X-Amz-Signature=x HTTP/1.1\r\nHost: x",
        b"PUT /a/b HTTP/1.1\r\nHost: x\r\nContent-Length: x",
        b"GET / HTTP/1.1\r\nHost: \xff",
        b"\x16\x03\x01\x02\x00\x01",
    ]:
        answer = raw(head)
        assert answer[:5] == b"HTTP/" and answer[9:10] in b"45", (head, answer)
    big = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + 300_000 * b"x"
    answer = raw(big)
    assert answer == b"" or b" 431 " in answer[:20], answer[:100]
    s3.head_bucket(Bucket=BUCKET)


def main():
    wanted = os.environ.get("ONLY", "")
    checks = [(name, check) for name, check in sorted(globals().items()) if name.startswith("t_") and wanted in name]
    failed = 0
    for name, check in checks:
        began = time.monotonic()
        try:
            check()
        except Exception:
            failed += 1
            print("FAILED", name)
            traceback.print_exc(file=sys.stdout)
            continue
        print("ok %s %.2f s" % (name, time.monotonic() - began))
    print("%d checks, %d failed" % (len(checks), failed))
    sys.exit(1 if failed or not checks else 0)


main()
