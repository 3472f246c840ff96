# SPDX-License-Identifier: Apache-2.0
"""Results, line by line: record.json, written anew with every result, and its page."""
import datetime
import json
import os

DONE = ("ok", "held", "MISSED")  # a line of one of these states is not run again with the same bundle


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


class Record:
    """record.json: {"started", "begun": {"part", "name", "at"} of a line that is being run, "lines": {part: {name: {"status",
    "value", "seconds", "at", "commit", "gpu"}}}}"""

    def __init__(self, folder):
        self.path = os.path.join(folder, "record.json")
        self.data = {"started": now(), "lines": {}}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                self.data = json.load(file)
        cut = self.data.pop("begun", None)
        if cut:
            self.put(cut["part"], cut["name"], {"status": "cut off", "value": "begun at %s, and not ended" % cut["at"], "at": cut["at"]})

    def get(self, part, name):
        return self.data["lines"].get(part, {}).get(name, {"status": "not run", "value": "not asked for"})

    def is_done(self, part, name, commit):
        found = self.get(part, name)
        return found["status"] in DONE and found.get("commit", commit) == commit

    def begin(self, part, name):
        self.data["begun"] = {"part": part, "name": name, "at": now()}
        self.save()

    def put(self, part, name, result):
        """A line that was not run, or was cut off, takes no result away."""
        self.data.pop("begun", None)
        if result["status"] not in ("not run", "cut off") or self.get(part, name)["status"] not in (*DONE, "failed"):
            self.data["lines"].setdefault(part, {})[name] = result
        self.save()

    def save(self):
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(self.data, file, indent=1)
        os.replace(self.path + ".new", self.path)


def text_of(value):
    return value if isinstance(value, str) else json.dumps(value)


def sources(record, parts):
    """[(commit, GPU)] of the lines that have results, those of most lines first."""
    counts = {}
    for part, lines in parts.items():
        for line in lines:
            found = record.get(part, line.name)
            if found["status"] != "not run":
                key = (found.get("commit", "unknown"), found.get("gpu", "unknown"))
                counts[key] = counts.get(key, 0) + 1
    return sorted(counts, key=counts.get, reverse=True)


def page(record, parts):
    """{part: [Line]} as a page beside record.json: whole values, the seconds, the aims. Lines of another commit or GPU than most
    are marked with its letter. The page's path."""
    date = record.data["started"][:10]
    found_in = sources(record, parts)
    letters = {key: "" if i == 0 else chr(ord("a") + i - 1) for i, key in enumerate(found_in)}
    out = ["# %s: on a GPU" % date, ""]
    for key in found_in:
        out.append("%s: commit %s, %s" % ("Lines without a mark" if not letters[key] else "Lines marked %s" % letters[key], *key))
        out.append("")
    out += ["By `gpu.py` of the bundle; `record.json` beside this page has the same. FLOP per token: 6N + 6LCT.", ""]
    for part, lines in parts.items():
        out += ["## %s" % part, "", "| line | result | seconds | |", "|---|---|---|---|"]
        for line in lines:
            found = record.get(part, line.name)
            mark = letters.get((found.get("commit", "unknown"), found.get("gpu", "unknown")), "") if found["status"] != "not run" else ""
            wanted = "; wanted: " + ", ".join("%s >= %s" % pair for pair in line.wanted.items()) if line.wanted else ""
            out.append("| %s%s | %s | %s | %s |" % (line.name, " (%s)" % mark if mark else "", found["status"], found.get("seconds", ""),
                                               text_of(found["value"]).replace("|", "\\|").replace("\n", " ") + wanted))
        out.append("")
    path = os.path.join(os.path.dirname(record.path), date + "-gpu.md")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out))
    return path
