"""Other Python clients. Usage: others.py s3fs|obstore|pyarrow ENDPOINT BUCKET."""

import os
import sys

CLIENT, ENDPOINT, BUCKET = sys.argv[1:4]
KEY, SECRET = os.environ["WRITER_KEY"], os.environ["WRITER_SECRET"]
DATA = os.urandom(1 << 20) * 13


def with_s3fs():
    import s3fs

    fs = s3fs.S3FileSystem(key=KEY, secret=SECRET, endpoint_url=ENDPOINT, client_kwargs={"region_name": "us-east-1"})
    with fs.open(BUCKET + "/deep/er/x", "wb") as file:
        file.write(DATA)
    with fs.open(BUCKET + "/deep/er/x", "rb") as file:
        file.seek(7 << 20)
        assert file.read(100) == DATA[7 << 20 :][:100]
    assert fs.cat(BUCKET + "/deep/er/x") == DATA
    fs.pipe({BUCKET + "/deep/%d" % n: b"%d" % n for n in range(20)})
    assert len(fs.ls(BUCKET + "/deep")) == 21
    assert len(fs.find(BUCKET + "/deep")) == 21
    assert len(fs.glob(BUCKET + "/deep/1*")) == 11
    fs.mv(BUCKET + "/deep/1", BUCKET + "/deep/moved")
    assert fs.cat(BUCKET + "/deep/moved") == b"1" and not fs.exists(BUCKET + "/deep/1")
    fs.rm(BUCKET + "/deep", recursive=True)
    assert fs.ls(BUCKET, refresh=True) == []


def with_obstore():
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=ENDPOINT,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    obstore.put(store, "a/x", DATA)
    obstore.put(store, "a/large", DATA, use_multipart=True, chunk_size=5 << 20)
    assert bytes(obstore.get(store, "a/large").bytes()) == DATA
    assert bytes(obstore.get_range(store, "a/x", start=5, length=9)) == DATA[5:14]
    ranges = obstore.get_ranges(store, "a/x", starts=[0, 100], lengths=[3, 4])
    assert [bytes(part) for part in ranges] == [DATA[:3], DATA[100:104]]
    for n in range(30):
        obstore.put(store, "b/%d" % n, b"%d" % n)
    listed = [row["path"] for page in obstore.list(store, prefix="b", chunk_size=7) for row in page]
    assert len(listed) == 30, listed
    found = obstore.list_with_delimiter(store)
    assert sorted(found["common_prefixes"]) == ["a", "b"], found
    obstore.copy(store, "a/x", "c/x")
    obstore.rename(store, "c/x", "c/y")
    assert obstore.head(store, "c/y")["size"] == len(DATA)
    try:
        obstore.put(store, "c/y", b"", mode="create")
        raise AssertionError("it was created twice")
    except Exception as error:
        assert "lready" in type(error).__name__ + str(error), error
    obstore.delete(store, listed + ["a/x", "a/large", "c/y"])
    assert [row for page in obstore.list(store) for row in page] == []


def with_pyarrow():
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq
    from pyarrow import fs

    host = ENDPOINT.split("://")[1]
    s3 = fs.S3FileSystem(
        access_key=KEY, secret_key=SECRET, endpoint_override=host, scheme="http", region="us-east-1"
    )
    table = pa.table({"n": list(range(200_000)), "g": [n % 5 for n in range(200_000)]})
    pq.write_table(table, BUCKET + "/t.parquet", filesystem=s3)
    assert pq.read_table(BUCKET + "/t.parquet", filesystem=s3).equals(table)
    ds.write_dataset(table, BUCKET + "/set", format="parquet", partitioning=["g"], filesystem=s3)
    back = ds.dataset(BUCKET + "/set", format="parquet", partitioning=["g"], filesystem=s3)
    assert back.count_rows() == 200_000
    assert back.to_table(filter=ds.field("g") == 3).num_rows == 40_000
    with s3.open_output_stream(BUCKET + "/large") as out:
        out.write(DATA)
    with s3.open_input_file(BUCKET + "/large") as file:
        assert file.read_at(10, 9 << 20) == DATA[9 << 20 :][:10]
    s3.create_dir(BUCKET + "/made/deep")
    assert s3.get_file_info(BUCKET + "/made/deep").type == fs.FileType.Directory
    s3.move(BUCKET + "/large", BUCKET + "/moved")
    s3.delete_dir(BUCKET + "/set")
    names = {info.path for info in s3.get_file_info(fs.FileSelector(BUCKET, recursive=True))}
    assert BUCKET + "/moved" in names and not any("/set/" in name for name in names), names


{"s3fs": with_s3fs, "obstore": with_obstore, "pyarrow": with_pyarrow}[CLIENT]()
print("ok", CLIENT)
