"""What was answered before a kill -9 is there after it. Usage: kill.py before|after ENDPOINT."""

import os
import sys

import boto3
from botocore.config import Config

s3 = boto3.client(
    "s3",
    endpoint_url=sys.argv[2],
    region_name="us-east-1",
    aws_access_key_id=os.environ["WRITER_KEY"],
    aws_secret_access_key=os.environ["WRITER_SECRET"],
    config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
)
PART = 5 << 20
UPLOAD = {"Bucket": "data", "Key": "multi/part"}

if sys.argv[1] == "before":
    for number in range(50):
        s3.put_object(Bucket="data", Key="kept/%d" % number, Body=b"%d" % number, Metadata={"n": str(number)})
    s3.delete_object(Bucket="data", Key="kept/49")
    s3.copy_object(Bucket="data", Key="copied", CopySource={"Bucket": "data", "Key": "kept/7"})
    made = s3.create_multipart_upload(**UPLOAD)
    s3.upload_part(PartNumber=1, Body=PART * b"1", UploadId=made["UploadId"], **UPLOAD)
    s3.put_object(Bucket="data", Key="big", Body=20 * (1 << 20) * b"b")
else:
    rows = s3.list_objects_v2(Bucket="data")["Contents"]
    wanted = sorted(["kept/%d" % number for number in range(49)] + ["copied", "big"])
    assert [row["Key"] for row in rows] == wanted, rows
    for number in range(49):
        found = s3.get_object(Bucket="data", Key="kept/%d" % number)
        assert found["Body"].read() == b"%d" % number and found["Metadata"] == {"n": str(number)}
    assert s3.get_object(Bucket="data", Key="copied")["Body"].read() == b"7"
    (upload,) = s3.list_multipart_uploads(Bucket="data")["Uploads"]
    (part,) = s3.list_parts(UploadId=upload["UploadId"], **UPLOAD)["Parts"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(UploadId=upload["UploadId"], MultipartUpload=parts, **UPLOAD)
    assert s3.get_object(Bucket="data", Key="multi/part")["Body"].read() == PART * b"1"
print("ok", sys.argv[1])
