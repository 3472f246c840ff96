#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bench "papers": rows of DAPPLE come out as the data say, and another cluster file is another table.
Without this a wrong figure could stand in the table as met.
ctest: timeout=120 label=nosan"""

import json
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import figures
import fitting
import papers

CONSTANTS_MOST = 5


def check(condition, text):
    if not condition:
        sys.exit("FAILED: " + text)


def test_data():
    """All machines, without playing anything."""
    for data in papers.load():
        check(len(data["constants"]) <= CONSTANTS_MOST, "%s: %d constants" % (data["machine"], len(data["constants"])))
        for row in data["rows"]:
            kinds = sum(key in row for key in ("within", "same", "at_least", "order", "calibrates"))
            check(kinds <= 1, "%s: a row of %d kinds" % (row["what"], kinds))
            check(row["tag"] in "TCFSRX", "%s: tag %s" % (row["what"], row["tag"]))
            names = fitting.runs_of(row.get("ours", {})) + row.get("order", [])
            check(all(name in data["runs"] for name in names), "%s: unknown run" % row["what"])


def test_rows(engine, machines):
    for data in papers.load(machines):
        results = papers.evaluate(data, engine.answers(data))
        wrong = papers.check(results)
        check(not wrong, "\n".join(wrong))
        counted = [r for r in results if r.verdict == "met"]
        absent = [r for r in results if r.verdict == "absent"]
        check(len(counted) > 5 or len(absent) > 5, "%s: %d rows met" % (data["machine"], len(counted)))
        if absent:
            print("SKIP: %d rows of %s: the published profiles are absent" % (len(absent), data["machine"]))


def test_cluster_file():
    """A folder of files in which one number differs."""
    (data,) = papers.load(["piz-daint"])
    data["runs"] = {n: r for n, r in data["runs"].items() if n.startswith("bert48-32")}
    data["rows"] = [r for r in data["rows"] if r["id"].startswith("17")]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(papers.ROOT / "partition/cluster/ready", folder, dirs_exist_ok=True)
        engine = figures.Engine(folder)
        before = [r.ours for r in papers.evaluate(data, engine.answers(data))]
        path = pathlib.Path(folder) / "piz-daint.json"
        cluster = json.loads(path.read_text())
        cluster["tiers"][0]["latency_ns"] *= 2
        path.write_text(json.dumps(cluster))
        after = [r.ours for r in papers.evaluate(data, figures.Engine(folder).answers(data))]
    check(before != after, "another latency, the same table")


def main():
    test_data()
    test_rows(figures.Engine(), ["config-a"])
    test_cluster_file()
    print("passed")


if __name__ == "__main__":
    main()
