"""A mount and its bucket show the same at once. Usage: mounted.py ENDPOINT BUCKET MOUNTPOINT."""

import os
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

ENDPOINT, BUCKET, ROOT = sys.argv[1:4]
s3 = boto3.client(
    "s3",
    endpoint_url=ENDPOINT,
    region_name="us-east-1",
    aws_access_key_id=os.environ["WRITER_KEY"],
    aws_secret_access_key=os.environ["WRITER_SECRET"],
    config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
)


def path(key):
    return os.path.join(ROOT, key)


def read(key):
    with open(path(key), "rb") as file:
        return file.read()


def write(key, data):
    os.makedirs(os.path.dirname(path(key)), exist_ok=True)
    with open(path(key), "wb") as file:
        file.write(data)


def get(key):
    return s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()


# What S3 clients do is seen by programs, also where the kernel remembers that there was nothing, or the old.
for turn in range(20):
    key = "from-s3/deep/%d" % turn
    assert not os.path.exists(path(key))
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"first %d" % turn)
    assert read(key) == b"first %d" % turn and os.stat(path(key)).st_size == len(b"first %d" % turn)
    s3.put_object(Bucket=BUCKET, Key=key, Body=b"and second %d" % turn)
    assert read(key) == b"and second %d" % turn
    assert str(turn) in os.listdir(path("from-s3/deep"))
    if turn % 2:
        s3.delete_object(Bucket=BUCKET, Key=key)
        assert not os.path.exists(path(key)) and str(turn) not in os.listdir(path("from-s3/deep"))
s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "from-s3/deep/%d" % n} for n in range(20)]})
assert not os.path.exists(path("from-s3"))

# What programs do is seen by S3 clients as soon as the file is closed.
for turn in range(20):
    key = "from-posix/%d" % turn
    write(key, b"p%d" % turn)
    assert get(key) == b"p%d" % turn
    head = s3.head_object(Bucket=BUCKET, Key=key)
    assert head["ETag"].endswith('-0"') and head["ContentLength"] == len(b"p%d" % turn)
    rows = s3.list_objects_v2(Bucket=BUCKET, Prefix="from-posix/")["Contents"]
    assert key in [row["Key"] for row in rows]
    os.rename(path(key), path(key + "-moved"))
    assert get(key + "-moved") == b"p%d" % turn
    os.remove(path(key + "-moved"))
    try:
        s3.head_object(Bucket=BUCKET, Key=key + "-moved")
        raise AssertionError("it was removed")
    except ClientError as error:
        assert error.response["Error"]["Code"] == "404"
assert os.listdir(path("from-posix")) == [], "a folder of a user stays"

# An object that a program changes has another ETag, and the bytes of the program.
tag = s3.put_object(Bucket=BUCKET, Key="both", Body=b"by s3")["ETag"]
assert read("both") == b"by s3"
with open(path("both"), "ab") as file:
    file.write(b", then by a program")
assert get("both") == b"by s3, then by a program"
assert s3.head_object(Bucket=BUCKET, Key="both")["ETag"] != tag

# A program that has the old object open goes on reading it.
with open(path("both"), "rb") as file:
    s3.put_object(Bucket=BUCKET, Key="both", Body=b"new")
    assert file.read() == b"by s3, then by a program"
assert read("both") == b"new"

# A large object in parts.
data = os.urandom(1 << 20) * 12
made = s3.create_multipart_upload(Bucket=BUCKET, Key="large")
upload = {"Bucket": BUCKET, "Key": "large", "UploadId": made["UploadId"]}
rows = []
for number, at in enumerate(range(0, len(data), 5 << 20), 1):
    answer = s3.upload_part(PartNumber=number, Body=data[at : at + (5 << 20)], **upload)
    rows.append({"PartNumber": number, "ETag": answer["ETag"]})
assert not os.path.exists(path("large"))
s3.complete_multipart_upload(MultipartUpload={"Parts": rows}, **upload)
assert read("large") == data
print("ok mounted")
