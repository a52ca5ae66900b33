"""Packages for arrays and tables, as a program uses them whose data outgrow a small budget.

usage: packages.py numpy | pandas | pyarrow | pyarrow-groups | polars | duckdb MEBIBYTES

Prints results that do not depend on where memory lies, and writes files that do not, either.
"""

import hashlib
import os
import sys


def numpy(size):
    """Arrays, files of arrays, sorting, products and fancy indices."""
    import numpy as np

    n = size // 8 // 4
    a = np.arange(n, dtype="f8") * 1.5 % 1013
    b = np.sqrt(a) + a[::-1]
    print(repr(a.sum()), repr(b.max()), repr(np.sort(b)[n // 3]))
    np.save("a.npy", b)
    c = np.load("a.npy")
    c += np.fromfile("a.npy", dtype="f8", offset=128)
    print(repr(c[:: n // 7].tolist()), repr(np.linalg.norm(c[: 1 << 16])))
    m = (a[: 700 * 700].reshape(700, 700) % 7).astype("i8")
    print((m @ m).sum(), np.unique(a.astype("i4")).size, repr(np.fft.rfft(a[: 1 << 18])[17].real.round(3)))
    order = np.argsort(b, kind="stable")
    print(hashlib.sha1(b[order].tobytes()).hexdigest(), hashlib.sha1(a.astype("f4").tobytes()).hexdigest())
    d = np.empty(0)
    for _ in range(8):
        d = np.concatenate([d, a[: n // 8]])
    print(repr(d.sum()))


def pandas(size):
    """A table grouped, joined, sorted and written."""
    import numpy as np
    import pandas as pd

    n = size // 8 // 5
    table = pd.DataFrame({"key": np.arange(n) * 7919 % 1009, "x": np.arange(n) % 1013 * 0.25, "s": np.arange(n) % 17})
    table["name"] = table["s"].astype(str) + "-name"
    print(table.groupby("key")["x"].agg(["sum", "max", "count"]).head(20).to_csv())
    joined = table.merge(pd.DataFrame({"key": np.arange(1009), "y": np.arange(1009) * 2.0}), on="key")
    print(len(joined), joined["y"].sum(), joined.sort_values(["x", "key"]).iloc[n // 2].tolist())
    joined.head(200_000).to_csv("joined.csv", index=False)
    back = pd.read_csv("joined.csv")
    print(back.describe().to_csv(), back["name"].value_counts().sort_index().to_csv())


def pyarrow(size):
    """Grouped columns, a file of record batches and one of Parquet."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    n = size // 8 // 3
    keys = pa.array(np.arange(n) * 7919 % 100_003)
    table = pa.table({"key": keys, "x": pa.array(np.arange(n) % 1013)})
    grouped = table.group_by("key").aggregate([("x", "sum"), ("x", "max")]).sort_by("key")
    print(grouped.num_rows, grouped.slice(0, 5).to_pydict(), pc.sum(grouped["x_sum"]))
    pq.write_table(table, "table.parquet", compression="snappy")
    print(pc.sum(pq.read_table("table.parquet")["x"]))
    with pa.OSFile("table.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1 << 17)
    with pa.memory_map("table.arrow") as source:
        again = pa.ipc.open_file(source).read_all()
        print(again.equals(table), pc.sum(pc.take(again["x"].combine_chunks(), pa.array(np.arange(0, n, 1009)))))
    print(pc.sort_indices(table, [("x", "ascending"), ("key", "descending")])[n // 2])
    os.remove("table.arrow")


def groups(size):
    """Grouped columns only."""
    import numpy as np
    import pyarrow as pa

    n = size // 8 // 2
    table = pa.table({"key": np.arange(n) * 7919 % 1_000_003, "x": np.arange(n) % 1013})
    for function in ("sum", "max", "mean"):
        grouped = table.group_by("key").aggregate([("x", function)]).sort_by("key")
        print(grouped.num_rows, grouped.slice(0, 5).to_pydict())


def polars(size):
    """Grouped, joined and sorted columns, eager and lazy."""
    import polars as pl

    n = size // 8 // 3
    row = pl.int_range(n, eager=True)
    table = pl.DataFrame({"key": row * 7919 % 100_003, "x": row % 1013})
    print(table.group_by("key").agg(pl.col("x").sum(), pl.len()).sort("key").head(5).write_csv())
    lazy = table.lazy().with_columns(y=pl.col("x") * 3).filter(pl.col("key") % 2 == 0)
    small = pl.DataFrame({"key": pl.int_range(1000, eager=True)}).lazy()
    print(lazy.join(small, on="key").select(pl.col("y").sum(), pl.len()).collect().write_csv())
    print(table.sort("x", "key")[n // 2].write_csv())
    table.head(300_000).write_parquet("table.parquet")
    print(pl.read_parquet("table.parquet").sum().write_csv())


def duckdb(size):
    """Queries of a database in memory and in a file, with and without a memory limit."""
    import duckdb as db

    n = size // 8 // 2
    for place in (":memory:", "tables.duckdb"):
        link = db.connect(place, config={"threads": 2})
        link.execute(f"create table t as select range * 7919 % 100003 as key, range % 1013 as x from range({n})")
        print(link.execute("select key, sum(x), count(*) from t group by key order by key limit 5").fetchall())
        join = "select sum(a.x), count(*) from t a join (select range as key from range(900)) using (key)"
        print(link.execute(join).fetchall())
        print(link.execute(f"select x, key from t order by x, key limit 3 offset {n // 2}").fetchall())
        link.close()
    os.remove("tables.duckdb")


if __name__ == "__main__":
    programs = {"numpy": numpy, "pandas": pandas, "pyarrow": pyarrow, "polars": polars, "duckdb": duckdb}
    (programs | {"pyarrow-groups": groups})[sys.argv[1]](int(sys.argv[2]) << 20)
    print("ok")
