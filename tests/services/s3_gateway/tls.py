"""TLS with a certificate that the client knows. Usage: tls.py ENDPOINT BUCKET CERTIFICATE."""

import os
import sys

import boto3
from botocore.config import Config

ENDPOINT, BUCKET, CERTIFICATE = sys.argv[1:4]
s3 = boto3.client(
    "s3",
    endpoint_url=ENDPOINT,
    region_name="us-east-1",
    verify=CERTIFICATE,
    aws_access_key_id=os.environ["WRITER_KEY"],
    aws_secret_access_key=os.environ["WRITER_SECRET"],
    config=Config(s3={"addressing_style": "path"}, signature_version="s3v4"),
)
data = os.urandom(3 << 20)
# Over TLS, today's SDKs send bodies as aws-chunked with a checksum behind them.
s3.put_object(Bucket=BUCKET, Key="x", Body=data, ChecksumAlgorithm="CRC32")
found = s3.get_object(Bucket=BUCKET, Key="x", ChecksumMode="ENABLED")
assert found["Body"].read() == data and found["ChecksumCRC32"]
print("ok tls")
