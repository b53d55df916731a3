"""Libraries that read and write through fsspec."""

import io

import dask.dataframe
import duckdb
import fsspec
import h5py
import numpy
import pandas
import polars
import pyarrow
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet
import pytest
import safetensors.numpy
import zarr
import zarr.storage
from conftest import publish

import coveyfs
from coveyfs import CoveyFileSystem

FRAME = pandas.DataFrame({"n": range(10_000), "x": numpy.arange(10_000) / 7, "s": [f"row {n}" for n in range(10_000)]})
WEIGHTS = {"a": numpy.arange(3_000_000, dtype="f4").reshape(1000, 3000), "b": numpy.ones(7, "f8")}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tree with the files of many libraries."""
    folder = tmp_path_factory.mktemp("data")
    for day in range(4):
        (folder / f"table/day={day}").mkdir(parents=True)
        FRAME.to_parquet(folder / f"table/day={day}/part.parquet", row_group_size=1000)
    FRAME.to_csv(folder / "frame.csv", index=False)
    with h5py.File(folder / "array.h5", "w") as file:
        file.create_dataset("data", data=WEIGHTS["a"], chunks=(100, 300))
    zarr.create_array(store=str(folder / "array.zarr"), data=WEIGHTS["a"], chunks=(100, 500))
    safetensors.numpy.save_file(WEIGHTS, folder / "weights.safetensors")
    numpy.save(folder / "array.npy", WEIGHTS["a"])
    return publish(tmp_path_factory.mktemp("libraries") / "volume", folder)


@pytest.fixture(scope="module")
def fs(data):
    return CoveyFileSystem(tree=data)


def test_pandas(data, mounted):
    options = {"tree": data}
    assert pandas.read_csv("covey://frame.csv", storage_options=options).equals(FRAME)
    one = pandas.read_parquet("covey://table/day=1/part.parquet", storage_options=options, columns=["x"])
    assert one["x"].equals(FRAME["x"])
    FRAME.to_parquet("covey://new.parquet", storage_options={"mount": mounted._backend.mount})
    assert pandas.read_parquet(mounted._backend.real("/new.parquet")).equals(FRAME)


def test_pyarrow(fs):
    dataset = pyarrow.dataset.dataset("/table", filesystem=fs, partitioning="hive")
    assert dataset.count_rows() == 40_000
    found = dataset.to_table(filter=(pyarrow.dataset.field("day") == 2) & (pyarrow.dataset.field("n") < 5))
    assert found.column("s").to_pylist() == [f"row {n}" for n in range(5)]
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    assert pyarrow.parquet.read_table("table/day=0/part.parquet", filesystem=arrow).num_rows == 10_000


def test_polars(fs, data):
    with fs.open("/table/day=3/part.parquet") as file:
        assert polars.read_parquet(file)["x"].sum() == pytest.approx(FRAME["x"].sum())
    frame = polars.scan_pyarrow_dataset(pyarrow.dataset.dataset("/table", filesystem=fs, partitioning="hive"))
    assert frame.filter(polars.col("day") == 1).select(polars.len()).collect().item() == 10_000


@pytest.mark.parametrize("attempt", range(10))
def test_duckdb(fs, attempt):
    # It reads a file on several threads: tests/test_file.py.
    connection = duckdb.connect()
    connection.register_filesystem(fs)
    query = "select day, sum(n) from read_parquet('covey://table/*/part.parquet', hive_partitioning=true) group by day"
    assert sorted(connection.sql(query).fetchall()) == [(day, 49_995_000) for day in range(4)]


def test_dask(data):
    frame = dask.dataframe.read_parquet("covey://table", storage_options={"tree": data})
    assert frame["n"].sum().compute(scheduler="threads") == 4 * 49_995_000
    assert frame["n"].sum().compute(scheduler="processes", num_workers=2) == 4 * 49_995_000


def test_zarr(fs, data, mounted):
    store = zarr.storage.FsspecStore.from_url("covey://array.zarr", storage_options={"tree": data}, read_only=True)
    array = zarr.open_array(store=store, mode="r")
    assert numpy.array_equal(array[150:170, 1000:1100], WEIGHTS["a"][150:170, 1000:1100])
    assert numpy.array_equal(array[:], WEIGHTS["a"])
    new = zarr.storage.FsspecStore(fs=mounted.as_async(), path="/new.zarr")
    zarr.create_array(store=new, data=WEIGHTS["a"], chunks=(500, 500))
    assert numpy.array_equal(zarr.open_array(store=mounted._backend.real("/new.zarr"), mode="r")[:], WEIGHTS["a"])


def test_h5py(fs):
    with fs.open("/array.h5") as file, h5py.File(file, "r") as array:
        assert numpy.array_equal(array["data"][500:520, 10:400], WEIGHTS["a"][500:520, 10:400])


def test_numpy_and_safetensors_without_a_copy(fs):
    buffer = fs.native.map("array.npy")
    assert buffer.is_zero_copy
    header = io.BytesIO(bytes(memoryview(buffer)[:1000]))
    version = numpy.lib.format.read_magic(header)
    assert version == (1, 0)
    shape, _, kind = numpy.lib.format.read_array_header_1_0(header)
    array = numpy.frombuffer(buffer, kind, offset=header.tell()).reshape(shape)
    assert numpy.array_equal(array, WEIGHTS["a"]) and not array.flags.writeable
    whole = fs.native.map("weights.safetensors")
    assert whole.is_zero_copy
    loaded = safetensors.numpy.load(bytes(whole))
    assert all(numpy.array_equal(loaded[name], WEIGHTS[name]) for name in WEIGHTS)


def test_text_and_compression(mounted):
    with fsspec.open("covey://a.txt.gz", "wt", compression="gzip", mount=mounted._backend.mount) as file:
        file.write("one\ntwo\n")
    with fsspec.open("covey://a.txt.gz", "rt", compression="gzip", mount=mounted._backend.mount) as file:
        assert file.read().splitlines() == ["one", "two"]


def test_the_package_says_its_version():
    assert coveyfs.__version__.count(".") == 2
