# SPDX-License-Identifier: Apache-2.0
"""Questions to papers_engine, and figures from its answers."""

import json
import math
import os
import pathlib
import subprocess
import tempfile

import formulas

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SHARED = pathlib.Path(os.environ.get("OPIPE_SHARED_DIR", ROOT.parent / "shared"))
BUILD = pathlib.Path(os.environ.get("OPIPE_BUILD_DIR", ROOT / "build"))


class Missing(Exception):
    """A run needs something that this machine lacks."""


class Engine:
    """Asks the command; remembers what it answered."""

    def __init__(self, clusters=None):
        self.folder = pathlib.Path(clusters) if clusters else ROOT / "partition/study/cluster/ready"
        self.command = BUILD / "tests/bench/papers_engine"
        self.known = {}

    def ask(self, questions):
        """Answers, in order."""
        keys = [json.dumps([self.content(q), q], sort_keys=True) for q in questions]
        new = {k: q for k, q in zip(keys, questions) if k not in self.known}
        if new:
            paths = [str(BUILD / "lib/onnx-pipe"), os.environ.get("OPIPE_PLUGIN_PATH", "")]
            env = dict(os.environ, OPIPE_PLUGIN_PATH=":".join(p for p in paths if p))
            done = subprocess.run(
                [str(self.command), str(self.folder)],
                input=json.dumps(list(new.values())),
                stdout=subprocess.PIPE,
                text=True,
                env=env,
                check=True,
            )
            self.known.update(zip(new, json.loads(done.stdout)))
        return [self.known[k] for k in keys]

    def content(self, question):
        """The text of a cluster that is a file of its own: a file that changes is another question."""
        path = question["cluster"].split(":")[0]
        return pathlib.Path(path).read_text() if "/" in path else ""

    def cluster(self, name):
        """The description, as JSON."""
        return json.loads((self.folder / (name + ".json")).read_text())

    def answers(self, data, cluster=None):
        """{run: answer} of a data file; cluster: a description in place of its machine's."""
        with tempfile.TemporaryDirectory() as folder:
            path = None
            if cluster is not None:
                path = pathlib.Path(folder) / "cluster.json"
                path.write_text(json.dumps(cluster))
            questions = {name: question(data, run, path) for name, run in data["runs"].items()}
            usable = {n: q for n, q in questions.items() if q is not None}
            found = dict(zip(usable, self.ask(list(usable.values()))))
        return {name: found.get(name, {"error": "absent"}) for name in questions}


def question(data, run, path=None):
    """A run with the defaults of its file; None: its profile is not on this machine."""
    q = dict(data.get("defaults", {}))
    for name in run.get("like", []):
        q.update(data["common"][name])
    q.update({k: v for k, v in run.items() if k != "like"})
    if "profile" in q:
        q["profile"] = str(SHARED / "oracles/partition" / q["profile"])
        if not os.path.exists(q["profile"]):
            return None
    if path is not None:
        nodes = q["cluster"].split(":")
        q["cluster"] = ":".join([str(path)] + nodes[1:])
    return q


# ---- figures of rows ----


def number(value, answers):
    """The value of a row's "ours": a run's figure, a ratio, a formula, the best of some runs."""
    if isinstance(value, (int, float)):
        return value
    if "formula" in value:
        return getattr(formulas, value["formula"])(*[number(v, answers) for v in value.get("of", [])])
    if "ratio" in value:
        above, below = (number(v, answers) for v in value["ratio"])
        return above / below
    if "least" in value:
        return min(figure(answers, name, value["figure"]) for name in value["least"])
    if "best" in value:
        return max(value["best"], key=lambda name: figure(answers, name, value["figure"]))
    found = figure(answers, value["run"], value["figure"])
    return found * value["times"] if "times" in value else found


def figure(answers, run, name):
    """A figure of one run; samples_per_s by default."""
    answer = answers[run]
    if answer.get("error") == "absent":
        raise Missing(run)
    if "error" in answer:
        raise ValueError("%s: %s" % (run, answer["error"]))
    return answer[name]


def in_order(names, values, tie):
    """Are these in falling order? Neighbours that differ by less than a tie may stand either way."""
    del names
    return all(a >= b * (1 - tie) for a, b in zip(values, values[1:]))


class Result:
    """A row with what came out."""

    def __init__(self, row, ours, verdict):
        self.row, self.ours, self.verdict = row, ours, verdict

    def deviation(self):
        """Relative; None where the row compares something else than numbers."""
        published = self.row.get("published")
        numbers = isinstance(self.ours, (int, float)) and isinstance(published, (int, float))
        return self.ours / published - 1 if numbers and published != 0 else None

    def cells(self):
        """The row's cells of the table."""
        d = self.deviation()
        return [
            self.row["id"],
            self.row["what"],
            show(self.row.get("published", "")),
            self.row["tag"],
            show(self.ours),
            "" if d is None else "%+.1f %%" % (100 * d),
            "" if "within" not in self.row else "%g %%" % (100 * self.row["within"]),
            self.verdict + (", formula" if self.row.get("formula") else ""),
        ]

    def plain(self):
        """For JSON."""
        return {"id": self.row["id"], "what": self.row["what"], "ours": self.ours, "verdict": self.verdict}


def show(value):
    """A number with three or four digits, or a text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return "%.4g" % value


def same_sign(row, ours):
    """Does a ratio of two systems say of the same one that it is faster? True where the paper has them equal."""
    published = row["published"]
    return "ratio" not in row["ours"] or published == 1 or (ours > 1) == (published > 1)


def result(row, answers):
    """A row's figure and verdict: met, not met, calibrates, absent, or none at all."""
    try:
        if "order" in row:
            values = [figure(answers, name, row.get("figure", "samples_per_s")) for name in row["order"]]
            good = in_order(row["order"], values, row.get("tie", 0))
            ours = " > ".join("%.4g" % v for v in values)
            return Result(row, ours, "met" if good else "not met")
        ours = number(row["ours"], answers)
    except Missing:
        return Result(row, "", "absent")
    if row.get("calibrates"):
        return Result(row, ours, "calibrates")
    if "within" in row:
        good = math.isfinite(ours) and abs(ours / row["published"] - 1) <= row["within"] and same_sign(row, ours)
        return Result(row, ours, "met" if good else "not met")
    if row.get("at_least"):
        return Result(row, ours, "met" if ours >= row["published"] else "not met")
    if row.get("same"):
        return Result(row, ours, "met" if ours == row["published"] else "not met")
    return Result(row, ours, "")
