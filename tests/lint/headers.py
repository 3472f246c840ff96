#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every internal header compiles by itself. (The public ones, frozen or not, are held to more, in tests/abi.) Headers that read nothing
that differs from where this tree grew from are left out (lib/changed.py), and ccache knows the others if it is there."""
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from lib import changed, tree

FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O0", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wno-unused-function", "-Werror", "-I.", "-Iabi/include",
         "-Iplugins"]
PUBLIC = ("abi/include/", "tests/abi/v", "tests/examples/")


def main():
    build = os.environ.get("OPIPE_BUILD_DIR", os.path.join(tree.ROOT, "build", "dev"))
    compiler = os.environ.get("CC", "gcc")
    if shutil.which(compiler) is None:
        print(f"SKIP: no {compiler}")
        sys.exit(77)
    # Kernel text (*_body.h) is included after it was said what a vector is.
    headers = [path for path in tree.files((".h",)) if not path.startswith(PUBLIC) and not path.endswith("_body.h")]
    report = tree.Report("headers")
    known = [path for path in headers if path in report.exceptions]
    chosen = sorted({*changed.reached(headers), *known})
    folder = os.path.join(build, "headers")
    os.makedirs(folder, exist_ok=True)
    ccache = [path for path in (shutil.which("ccache"),) if path]
    generated = os.path.join(build, "generated")

    def check(header):
        stub = os.path.join(folder, header.replace("/", "-") + ".c")
        with open(stub, "w", encoding="utf-8") as file:
            file.write(f'#include "{header}"\n')
        out = stub[:-2]
        command = [*ccache, compiler, *FLAGS, "-I" + generated, "-I" + os.path.join(generated, "loader", "wire"),
                   "-I" + os.path.dirname(header), "-MD", "-MF", out + ".d", "-c", stub, "-o", out + ".o"]
        return subprocess.run(command, cwd=tree.ROOT, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for header, done in zip(chosen, pool.map(check, chosen)):
            if done.returncode != 0:
                report.add(header, 0, "does not compile alone:\n" + done.stderr.strip())
    report.end()


if __name__ == "__main__":
    main()
