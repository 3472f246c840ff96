#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bench "papers": rows of DAPPLE, PipeDream-2BW and TeraPipe come out as the data say, another
cluster file is another table, and what planner auto finds is no slower than a paper's own plan.
Without this a wrong figure could stand in the table as met.
ctest: timeout=300 label=nosan"""

import json
import os
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


def test_signs():
    """A ratio near enough to what is published is no target met if it has the other system ahead."""
    row = {"published": 1.1, "within": 0.2, "ours": {"ratio": [{"run": "a", "figure": "x"}, {"run": "b", "figure": "x"}]}}
    for slower, verdict in ((0.98, "met"), (1.02, "not met")):
        got = figures.result(row, {"a": {"x": 1.0}, "b": {"x": slower}}).verdict
        check(got == verdict, "1 over %g: %s" % (slower, got))
    equal = dict(row, published=1)
    check(figures.result(equal, {"a": {"x": 1.0}, "b": {"x": 1.02}}).verdict == "met", "equal systems have a sign")


def test_cluster_file():
    """A folder of files in which one number differs."""
    (data,) = papers.load(["piz-daint"])
    data["runs"] = {n: r for n, r in data["runs"].items() if n.startswith("bert48-32")}
    data["rows"] = [r for r in data["rows"] if r["id"].startswith("17")]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(papers.ROOT / "partition/study/cluster/ready", folder, dirs_exist_ok=True)
        engine = figures.Engine(folder)
        before = [r.ours for r in papers.evaluate(data, engine.answers(data))]
        path = pathlib.Path(folder) / "piz-daint.json"
        cluster = json.loads(path.read_text())
        cluster["tiers"][0]["latency_ns"] *= 2
        path.write_text(json.dumps(cluster))
        after = [r.ours for r in papers.evaluate(data, figures.Engine(folder).answers(data))]
    check(before != after, "another latency, the same table")


def test_auto(engine):
    """One machine; the plan that is compared is slower when it has fewer micro-batches to fill its pipeline."""
    (data,) = papers.load(["auto"])
    name = "2bw, 2.2 billion"
    run = data["runs"][name]
    data["runs"] = {name: run, "emptier": dict(run, samples=2 * run["samples"], microbatches=run["microbatches"] // 2)}
    answers = engine.answers(data)
    check(all("error" not in a for a in answers.values()), str(answers))
    check(answers[name]["times"] >= 1, "auto is slower than the paper's plan: %s" % answers[name])
    check(answers["emptier"]["given_ms"] > 1.1 * answers[name]["given_ms"], "the given plan is not what is played: %s" % answers)


def main():
    engine = figures.Engine()
    test_data()
    test_signs()
    test_rows(engine, ["config-a"] if os.environ.get("OPIPE_TEST_COVER") else ["config-a", "p3.16xlarge"])
    test_auto(engine)
    test_cluster_file()
    print("passed")


if __name__ == "__main__":
    main()
