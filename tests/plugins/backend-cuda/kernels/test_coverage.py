#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""At least 95 % of the lines of the CUDA kernels are run by their tests.

ctest: timeout=600 label=full,nosan"""
import collections
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

WANTED = 95.0
SOURCE = os.environ["OPIPE_SOURCE_DIR"]
BUILD = os.environ["OPIPE_BUILD_DIR"]
KERNELS = f"{SOURCE}/plugins/backend-cuda/kernels"
TESTS = f"{SOURCE}/tests/plugins/backend-cuda/kernels"


def compile_one(compiler, file, name, *flags):
    include = [f"-I{SOURCE}", f"-I{KERNELS}", f"-I{TESTS}/shim", f"-I{SOURCE}/abi/include"]
    subprocess.run([compiler, "-O0", *flags, *include, "-c", file, "-o", name], check=True)


def name_of(file):
    return os.path.splitext(os.path.basename(file))[0]


def build(gxx, gcc):
    for file in glob.glob(f"{KERNELS}/parts/*.cu"):
        compile_one(gxx, file, name_of(file) + ".o", "-std=c++17", "--coverage", "-ffp-contract=off", "-include",
                    f"{TESTS}/shim/shim.hpp", "-xc++")
    for file in glob.glob(f"{TESTS}/shim/*.cpp"):
        compile_one(gxx, file, name_of(file) + ".o", "-std=c++17", "-O1")
    for file in glob.glob(f"{KERNELS}/plan*.c") + glob.glob(f"{TESTS}/kit*.c"):
        compile_one(gcc, file, name_of(file) + ".o", "-std=c11", "-D_GNU_SOURCE", "-O1")
    for file in sorted(glob.glob(f"{TESTS}/test_*.c")):
        compile_one(gcc, file, name_of(file) + ".test", "-std=c11", "-D_GNU_SOURCE", "-O1")
    libraries = [f"{BUILD}/lib/static/lib{name}.a" for name in ("opi_test_support", "opi_test_kernels", "opi_core_static")]
    system = ["-lcunit", "-lm", "-lpthread", "-ldl", "-ljansson", "-lprotobuf-c", "-lxxhash"]
    if subprocess.run([gcc, "-lhwloc", "-shared", "-o", "hwloc.so"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        system.append("-lhwloc")
    for test in sorted(glob.glob("*.test")):
        name = name_of(test)
        subprocess.run([gxx, "--coverage", "-o", name, test, *glob.glob("*.o"), *libraries, *system], check=True)
        subprocess.run([f"./{name}"], check=True, stdout=subprocess.DEVNULL)


def main():
    tools = [shutil.which(os.environ.get(key) or usual) for key, usual in (("OPIPE_CXX", "g++"), ("OPIPE_CC", "gcc"))]
    if None in tools or shutil.which("gcov") is None or "clang" in tools[0]:
        print("SKIP: no g++ and gcov")
        return 77
    hits = collections.defaultdict(lambda: collections.defaultdict(int))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        build(*tools)
        found = subprocess.run(["gcov", "--json-format", "--stdout", *glob.glob("*.gcda")], check=True, capture_output=True)
        for record in found.stdout.splitlines():
            for file in json.loads(record)["files"] if record.strip() else []:
                if file["file"].startswith(KERNELS):
                    for line in file["lines"]:
                        hits[file["file"]][line["line_number"]] += line["count"]
        os.chdir("/")
    lines = sum(len(file) for file in hits.values())
    run = sum(count > 0 for file in hits.values() for count in file.values())
    for name, file in sorted(hits.items()):
        missed = [number for number, count in sorted(file.items()) if count == 0]
        if missed:
            print(f"{os.path.relpath(name, SOURCE)}: not run: {missed}")
    print(f"{run} of {lines} lines of the kernels are run")
    return 0 if lines > 0 and 100.0 * run / lines >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
