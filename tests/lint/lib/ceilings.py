# SPDX-License-Identifier: Apache-2.0
"""Figures that a tree has not brought down to their aims yet: house.txt holds a ceiling for each, which may only be lowered."""
import os

from lib import tree

PATH = "tests/lint/house.txt"


class Ceilings:
    """lines: name -> (ceiling, reason), in their order. values: name -> (value, aim) of what was measured. unknown: names of what
    could not be measured."""

    def __init__(self, report):
        self.report, self.lines, self.values, self.unknown, self.head = report, {}, {}, set(), []
        if not os.path.isfile(os.path.join(tree.ROOT, PATH)):
            return
        for number, line in enumerate(tree.text(PATH).splitlines(), 1):
            parts = line.split(None, 2)
            if not parts or line.startswith("#"):
                self.head.append(line)
            elif len(parts) < 3 or not parts[1].isdigit():
                report.add(PATH, number, f"not NAME CEILING REASON: {line}")
            elif parts[0] in self.lines:
                report.add(PATH, number, f"{parts[0]} has two ceilings")
            else:
                self.lines[parts[0]] = (int(parts[1]), parts[2])

    def named(self, kind):
        """The names after KIND: in the lines."""
        return [name[len(kind) + 1:] for name in self.lines if name.startswith(kind + ":")]

    def hold(self, name, value, aim, where=(PATH, 0), found=()):
        """One finding, and the places of `found`, if value is over the aim, or over the ceiling where there is one."""
        self.values[name] = (value, aim)
        most = max(self.lines.get(name, (aim, ""))[0], aim)
        if value > most:
            self.report.add(*where, f"{name}: {value}, at most {most}")
            for line in list(found)[:40]:
                print("  " + line)

    def left(self):
        """A line for every ceiling that can be lowered, or goes."""
        for name, (most, _) in self.lines.items():
            value, aim = self.values.get(name, (0, 0))
            if name in self.unknown:
                continue
            if value <= aim:
                yield f"{name}: {value} is within {aim}, its ceiling goes"
            elif value < most:
                yield f"{name}: {value}, its ceiling falls from {most}"

    def write(self):
        """house.txt with lower ceilings. A path that is gone takes the name of a file called alike that has none."""
        free = [name for name, (value, aim) in self.values.items() if value > aim and name not in self.lines]
        lines = list(self.head)
        for name, (most, reason) in self.lines.items():
            kind, base = name.split(":")[0], os.path.basename(name)
            moved = [f for f in free if f.startswith(kind + ":") and os.path.basename(f) == base]
            if name not in self.values and "/" in name and len(moved) == 1:
                name = moved[0]
                free.remove(name)
            value, aim = self.values.get(name, (0, 0))
            if value > aim or name in self.unknown:
                lines.append(f"{name} {most if name in self.unknown else min(value, most)} {reason}")
        with open(os.path.join(tree.ROOT, PATH), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        return free
