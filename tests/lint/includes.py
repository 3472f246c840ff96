#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Include directions: who may include whom, as the top-level README draws it."""
import os
import re

from lib import tree

# Folders below plans, and below every layer of the runtime.
BELOW = ["loader", "abi/include"]
RUN = ["partition", "loader", "abi/registry", "abi/include"]

# Folder (the longest match counts) -> the folders of ours that it may include from.
ALLOWED = {
    "abi/include": ["abi/include"],
    "abi/registry": ["abi/registry", "loader/base", "abi/include"],
    "abi/api": ["abi/api", "abi/registry", "runtime", "partition", "loader", "abi/include"],
    "abi/cli": ["abi/cli", "loader/base/cores.h", "loader/base/nearest.h", "loader/base/sizes.h", "abi/include"],
    "loader/base": ["loader/base", "abi/include"],
    "loader/graph": ["loader/graph", "loader/base", "abi/include"],
    "loader/wire": ["loader/wire", "loader/graph", "loader/base", "abi/include"],
    "loader/ops": ["loader/ops", "loader/graph", "loader/base", "abi/include"],
    "loader/passes": ["loader/passes", "loader/ops", "loader/graph", "loader/base", "abi/include"],
    "loader/gradient": ["loader/gradient", "loader/passes", "loader/ops", "loader/graph", "loader/base", "abi/include"],
    "loader": ["loader", "abi/include"],
    "partition/plan": ["partition/plan", *BELOW],
    "partition/schedule": ["partition/schedule", "partition/plan", *BELOW],
    "partition/file": ["partition/file", "partition/plan", "partition/schedule", *BELOW],
    "partition/program": ["partition/program", "partition/plan", "partition/schedule", *BELOW],
    "partition/cost": ["partition/cost", "partition/plan", "partition/program", *BELOW],
    "partition/lists": ["partition/lists", "partition/plan", "partition/program", *BELOW],
    "partition/memory": ["partition/memory", "partition/plan", "partition/program", "partition/lists", *BELOW],
    "partition/search": ["partition/search", "partition/plan", "partition/program", "partition/cost", "partition/memory", *BELOW],
    "partition/make": ["partition/make", "partition/plan", "partition/schedule", "partition/file", "partition/program", "partition/cost", "partition/lists", "partition/memory", "partition/search", *BELOW],
    "partition/study/cluster": ["partition/study/cluster", "partition/plan", *BELOW],
    "partition/study/layers": ["partition/study/layers", "partition/plan", "partition/program", "partition/cost", "partition/study/cluster", *BELOW],
    "partition/study/arch": ["partition/study/arch", "partition/study/cluster", "partition/study/layers", *BELOW],
    "partition/study/simulate": ["partition/study/simulate", "partition/plan", "partition/schedule", "partition/study/cluster", "partition/study/layers", *BELOW],
    "partition/study/planners": ["partition/study/planners", "partition/study/cluster", "partition/study/layers", "partition/study/simulate", *BELOW],
    "partition/study/auto": ["partition/study/auto", "partition/plan", "partition/schedule", "partition/study/cluster", "partition/study/layers", "partition/study/simulate", "partition/study/planners", *BELOW],
    "partition/study/improve": ["partition/study/improve", "partition/schedule", *BELOW],
    "partition/study/page": ["partition/study/page", "partition/plan", "partition/schedule", "partition/study/cluster", "partition/study/layers", "partition/study/simulate", *BELOW],
    "runtime/base": ["runtime/base", "loader/base", "abi/include"],
    "runtime/launch": ["runtime/launch", "runtime/base", *BELOW],
    "runtime/device": ["runtime/device", "runtime/base", *RUN],
    "runtime/weights": ["runtime/weights", "runtime/device", *RUN],
    "runtime/checkpoint": ["runtime/checkpoint", "runtime/weights", *RUN],
    "runtime/compiled": ["runtime/compiled", "runtime/weights", "runtime/device", "runtime/base", *RUN],
    "runtime/executor": ["runtime/executor", "runtime/compiled", "runtime/weights", "runtime/device", "runtime/base", *RUN],
    "runtime/requests": ["runtime/requests", "runtime/executor", "runtime/compiled", "runtime/weights", "runtime/device", "runtime/base", *RUN],
    "runtime/trace": ["runtime/trace", "runtime/requests", "runtime/executor", "runtime/device", *RUN],
    "runtime/session": ["runtime/session", "runtime/requests", "runtime/executor", "runtime/compiled", "runtime/weights", "runtime/device", "runtime/base",
                        *RUN],
}


def owner(path):
    """The folder of ALLOWED that a path belongs to, a plugin's own folder, or None."""
    parts = path.split("/")
    if parts[0] == "plugins" and len(parts) > 2:
        return "/".join(parts[:2])
    for length in (3, 2, 1):
        folder = "/".join(parts[:length])
        if folder in ALLOWED:
            return folder
    return None


def allowed_for(folder):
    if folder.startswith("plugins/host-"):
        return [folder, "plugins/hosts", "abi/include"]
    if folder == "plugins/transport-ucx":
        return [folder, "plugins/machine", "plugins/transport-shm/near.h", "abi/include"]
    if folder.startswith("plugins/transport-"):
        return [folder, "plugins/machine", "abi/include"]
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
