"""A pytest plugin for ceph/s3-tests: buckets that a test makes are taken from a pool of existing ones.

A request for a bucket that a test made goes to the bucket of the pool that stands for it. A bucket returns to
the pool empty.
"""

import os

import botocore.client

POOL = ["pool-%d" % number for number in range(int(os.environ["COVEY_POOL"]))]
free = list(POOL)
taken = {}
call = botocore.client.BaseClient._make_api_call


def empty(client, real):
    while True:
        rows = call(client, "ListObjectsV2", {"Bucket": real}).get("Contents", [])
        if not rows:
            break
        call(client, "DeleteObjects", {"Bucket": real, "Delete": {"Objects": [{"Key": row["Key"]} for row in rows]}})
    for row in call(client, "ListMultipartUploads", {"Bucket": real}).get("Uploads", []):
        call(client, "AbortMultipartUpload", {"Bucket": real, "Key": row["Key"], "UploadId": row["UploadId"]})


def translated(value, table):
    if isinstance(value, dict):
        return {key: translated(inner, table) for key, inner in value.items()}
    if isinstance(value, str):
        for name, other in table.items():
            if value == name or value.startswith(name + "/"):
                return other + value[len(name) :]
    return value


def _make_api_call(self, operation, parameters):
    name = parameters.get("Bucket")
    if operation == "CreateBucket":
        if name not in taken:
            taken[name] = free.pop()
            empty(self, taken[name])
        return {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {}}}
    if operation == "DeleteBucket" and name in taken:
        empty(self, taken[name])
        free.append(taken.pop(name))
        return {"ResponseMetadata": {"HTTPStatusCode": 204, "HTTPHeaders": {}}}
    if operation == "ListObjectVersions":
        listed = call(self, "ListObjects", {"Bucket": taken.get(name, name)})
        rows = [dict(row, VersionId="null") for row in listed.get("Contents", [])]
        return {"Versions": rows, "IsTruncated": False, "ResponseMetadata": {"HTTPStatusCode": 200}}
    if operation == "ListBuckets":
        answer = call(self, operation, parameters)
        answer["Buckets"] = [dict(answer["Buckets"][0], Name=alias) for alias in taken]
        return answer
    sent = {key: translated(value, taken) if key in ("Bucket", "CopySource") else value for key, value in parameters.items()}
    answer = call(self, operation, sent)
    back = {real: alias for alias, real in taken.items()}
    for key in ("Name", "Bucket"):
        if isinstance(answer.get(key), str):
            answer[key] = back.get(answer[key], answer[key])
    return answer


botocore.client.BaseClient._make_api_call = _make_api_call
