#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Include directions: who may include whom, as the top-level README draws it."""
import os
import re

from lib import tree

# What a plan is: the headers at the top of its folder, and all below them; and what every layer of the runtime reads.
PLAN = ["partition/*.h", "loader", "abi/include"]
BELOW = ["partition", "loader", "abi/registry", "abi/include"]

# Folder (the longest match counts) -> the folders of ours that it may include from.
ALLOWED = {
    "abi/include": ["abi/include"],
    "abi/registry": ["abi/registry", "loader/base", "abi/include"],
    "abi/api": ["abi/api", "abi/registry", "runtime", "partition", "loader", "abi/include"],
    "abi/cli": ["abi/cli", "loader/base/nearest.h", "loader/base/sizes.h", "abi/include"],
    "loader/base": ["loader/base", "abi/include"],
    "loader/graph": ["loader/graph", "loader/base", "abi/include"],
    "loader/wire": ["loader/wire", "loader/graph", "loader/base", "abi/include"],
    "loader/ops": ["loader/ops", "loader/graph", "loader/base", "abi/include"],
    "loader/passes": ["loader/passes", "loader/ops", "loader/graph", "loader/base", "abi/include"],
    "loader/gradient": ["loader/gradient", "loader/passes", "loader/ops", "loader/graph", "loader/base", "abi/include"],
    "loader": ["loader", "abi/include"],
    "partition/schedule": ["partition/schedule", "partition/simulate", "partition/json/json.h", *PLAN],
    "partition/simulate": ["partition/simulate", "partition/cluster", "partition/cost/layers.h", "partition/json/json.h", "partition/schedule", *PLAN],
    "partition/cluster": ["partition/cluster", "partition/json", *PLAN],
    "partition/cut": ["partition/cut", *PLAN],
    "partition/program": ["partition/program", "partition/cut", "partition/schedule", "partition/simulate", *PLAN],
    "partition/lists": ["partition/lists", "partition/program", "partition/cut", "partition/schedule", "partition/simulate", *PLAN],
    "partition/memory": ["partition/memory", "partition/lists", "partition/program", *PLAN],
    "partition/cost": ["partition/cost", "partition/memory", "partition/program", "partition/json/json.h", *PLAN],
    "partition/arch": ["partition/arch", "partition/cluster", "partition/cost/layers.h", *PLAN],
    "partition/json": ["partition/json", "partition/lists/playlist.h", "partition/program", "partition/cut", "partition/schedule", *PLAN],
    "partition": ["partition", "loader", "abi/include"],
    "runtime/base": ["runtime/base", "loader/base", "abi/include"],
    "runtime/device": ["runtime/device", "runtime/base", *BELOW],
    "runtime/weights": ["runtime/weights", "runtime/device", *BELOW],
    "runtime/checkpoint": ["runtime/checkpoint", "runtime/weights", *BELOW],
    "runtime/compiled": ["runtime/compiled", "runtime/weights", "runtime/device", "runtime/base", *BELOW],
    "runtime/executor": ["runtime/executor", "runtime/compiled", "runtime/weights", "runtime/device", "runtime/base", *BELOW],
    "runtime/requests": ["runtime/requests", "runtime/executor", "runtime/compiled", "runtime/weights", "runtime/device", "runtime/base", *BELOW],
    "runtime/trace": ["runtime/trace", "runtime/requests", "runtime/executor", "runtime/device", *BELOW],
    "runtime/session": ["runtime/session", "runtime/requests", "runtime/executor", "runtime/compiled", "runtime/weights", "runtime/device", "runtime/base",
                        *BELOW],
}


def owner(path):
    """The folder of ALLOWED that a path belongs to, a plugin's own folder, or None."""
    parts = path.split("/")
    if parts[0] == "plugins" and len(parts) > 2:
        return "/".join(parts[:2])
    for length in (2, 1):
        folder = "/".join(parts[:length])
        if folder in ALLOWED:
            return folder
    return None


def allowed_for(folder):
    if folder.startswith("plugins/host-"):
        return [folder, "plugins/hosts", "abi/include"]
    return [folder, "abi/include"] if folder.startswith("plugins/") else ALLOWED[folder]


def matches(target, allowed):
    """A folder, with all below it; a file; or FOLDER/*.h, the headers of that folder itself."""
    if allowed.endswith("/*.h"):
        return os.path.dirname(target) == allowed[:-4] and target.endswith(".h")
    return target == allowed or target.startswith(allowed + "/")


def resolve(path, name):
    """The file of ours that an include names, or None for a system or generated header."""
    for base in (os.path.dirname(path), "", "abi/include", "plugins"):
        found = os.path.normpath(os.path.join(base, name))
        if os.path.isfile(os.path.join(tree.ROOT, found)):
            return found
    return None


def main():
    report = tree.Report("includes")
    for path in tree.files(tree.C_ENDINGS):
        folder = owner(path)
        if folder is None:
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            target = resolve(path, match.group(1)) if match else None
            if match and target is None and ".." in match.group(1):
                report.add(path, number, f"includes {match.group(1)}, which is not there")
            if target is None:
                continue
            if not any(matches(target, a) for a in allowed_for(folder)):
                report.add(path, number, f"{folder} may not include {target}")
            elif ".." in match.group(1).split("/") and not folder.startswith("plugins/"):
                report.add(path, number, f"write the path from the top: {target}")
    report.end()


if __name__ == "__main__":
    main()
