# SPDX-License-Identifier: Apache-2.0
"""The kernels as nvcc compiles them: no spills, and for the version that the table is of no more registers than it says.
Results of the compiler are kept below build/cuda, by a hash of its inputs.

    registers.py --write ARCH ...    makes the table anew (registers.txt)
"""
import concurrent.futures
import fcntl
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys

SOURCE = os.environ["OPIPE_SOURCE_DIR"]
KERNELS = os.path.join(SOURCE, "plugins", "backend-cuda", "kernels")
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "registers.txt")
KEPT = os.path.join(SOURCE, "build", "cuda")
PINNED = "13.0.88"
FLAGS = ["-std=c++17", "-cubin", "-Xptxas", "-v", "-Werror", "all-warnings"]
JOBS = 2


def find_nvcc():
    own = glob.glob(os.path.join(SOURCE, "build", "venv", "cuda", "lib", "python3*", "site-packages", "nvidia", "cu13", "bin", "nvcc"))
    for path in [*own, shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]:
        if path and os.path.exists(path):
            return path
    return None


def ask(nvcc, *arguments):
    return subprocess.run([nvcc, *arguments], capture_output=True, text=True, check=True).stdout


def headers_of_all():
    text = b""
    for path in sorted(glob.glob(os.path.join(KERNELS, "*.h")) + glob.glob(os.path.join(KERNELS, "**/*.cuh"), recursive=True)):
        with open(path, "rb") as file:
            text += file.read()
    return text


def state_of_sources():
    """A number of all that the kernels are compiled of."""
    state = hashlib.sha256(headers_of_all())
    for path in sorted(glob.glob(os.path.join(KERNELS, "parts", "*.cu"))):
        with open(path, "rb") as file:
            state.update(file.read())
    return int(state.hexdigest(), 16)


def compile_part(nvcc, version, arch, part, headers):
    """The report of ptxas on a part; raises with nvcc's own words when it does not compile."""
    with open(part, "rb") as file:
        key = hashlib.sha256(headers + file.read() + " ".join([version, arch, *FLAGS]).encode()).hexdigest()[:24]
    log = os.path.join(KEPT, "%s-%s-%s.log" % (os.path.basename(part)[:-3], arch, key))
    if not os.path.exists(log):
        cubin = "%s.%d.cubin" % (log, os.getpid())
        done = subprocess.run([nvcc, *FLAGS, "-arch=" + arch, "-I", KERNELS, "-o", cubin, part],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError("%s for %s:\n%s" % (part, arch, done.stderr))
        os.remove(cubin)
        with open(cubin, "w", encoding="utf-8") as file:
            file.write(done.stderr)
        os.replace(cubin, log)  # whole, or not there
    with open(log, encoding="utf-8") as file:
        return file.read()


def read_log(text):
    """{kernel: (registers, spilled bytes)}"""
    found = {}
    for block in text.split("Compiling entry function '")[1:]:
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", block)
        registers = re.search(r"Used (\d+) registers", block)
        found[block.split("'", 1)[0]] = (int(registers[1]), int(spills[1]) + int(spills[2]))
    return found


def compile_all(nvcc, version, archs, names):
    """{arch: {kernel: (registers, spilled bytes)}} of the parts of these names."""
    os.makedirs(KEPT, exist_ok=True)
    headers = headers_of_all()
    parts = [os.path.join(KERNELS, "parts", name + ".cu") for name in names]
    found = {arch: {} for arch in archs}
    with open(os.path.join(KEPT, "lock"), "w", encoding="utf-8") as lock, concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a test beside this one compiles nothing twice
        work = {pool.submit(compile_part, nvcc, version, arch, part, headers): arch for arch in archs for part in parts}
        for one in concurrent.futures.as_completed(work):
            found[work[one]].update(read_log(one.result()))
    return found


def compile_whole(nvcc, archs):
    """The same of all parts as one, as a release has them: the images stay in KEPT, from where a release build takes them."""
    os.makedirs(KEPT, exist_ok=True)

    def one(arch):
        out = os.path.join(KEPT, arch + ".cubin")
        ptx = ["-D", "PTX=" + os.path.join(KEPT, arch + ".ptx")] if arch == archs[-1] else []
        done = subprocess.run(["cmake", "-D", "NVCC=" + nvcc, "-D", "CHIP=" + arch[3:], "-D", "OUT=" + out, *ptx, "-P",
                               os.path.join(KERNELS, "compile.cmake")], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        with open(out + ".log", encoding="utf-8") as file:
            said = file.read()
        if re.search(r"\bwarning\b", said):
            raise RuntimeError("%s: nvcc warns:\n%s" % (arch, "\n".join(line for line in said.splitlines() if "warning" in line)))
        return read_log(said)

    with open(os.path.join(KEPT, "lock"), "w", encoding="utf-8") as lock, concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return dict(zip(archs, pool.map(one, archs)))


def read_table():
    """(archs, {kernel: [registers by arch]})"""
    with open(TABLE, encoding="utf-8") as file:
        lines = [line.split() for line in file if not line.startswith("#")]
    return lines[0][1:], {line[0]: [int(cell) for cell in line[1:]] for line in lines[1:]}


def write_table(archs, found):
    kernels = sorted(found[archs[0]])
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write("# Registers of every kernel by nvcc %s; made by registers.py --write %s.\n" % (PINNED, " ".join(archs)))
        file.write("%-34s %s\n" % ("kernel", " ".join("%7s" % arch for arch in archs)))
        for kernel in kernels:
            file.write("%-34s %s\n" % (kernel, " ".join("%7d" % found[arch][kernel][0] for arch in archs)))


def complaints(archs, found, pinned, whole):
    columns, rows = read_table()
    said = []
    for arch in archs:
        for kernel, (registers, spilled) in sorted(found[arch].items()):
            if spilled:
                said.append("%s for %s spills %d bytes" % (kernel, arch, spilled))
            if not pinned or arch not in columns:
                continue
            most = rows.get(kernel, [None] * len(columns))[columns.index(arch)]
            if most is None:
                said.append("%s for %s has no row in registers.txt" % (kernel, arch))
            elif registers > most:
                said.append("%s for %s takes %d registers, %d by registers.txt" % (kernel, arch, registers, most))
        if pinned and whole and arch in columns:
            said += ["%s of registers.txt is no kernel" % kernel for kernel in sorted(set(rows) - set(found[arch]))]
    return said


def check(choose, names=None):
    """choose(archs that nvcc knows): those to compile for; names: of parts, all by default. The exit status of a test."""
    nvcc = find_nvcc()
    if nvcc is None:
        print("SKIP: no nvcc (./dev deps cuda fetches one)")
        return 77
    version = re.search(r"V(\d+\.\d+\.\d+)", ask(nvcc, "--version"))[1]
    archs = choose(ask(nvcc, "--list-gpu-code").split())
    try:
        found = compile_whole(nvcc, archs) if names is None else compile_all(nvcc, version, archs, names)
    except RuntimeError as error:
        print(error)
        return 1
    said = complaints(archs, found, version == PINNED, names is None)
    if version != PINNED:
        print("nvcc %s: registers are compared for %s only" % (version, PINNED))
    for line in said:
        print("FAILED:", line)
    print("%d kernels for %s" % (sum(len(one) for one in found.values()), " ".join(archs)))
    return 1 if said or not all(found.values()) else 0


def main():
    archs = sys.argv[2:]
    if len(sys.argv) < 3 or sys.argv[1] != "--write":
        print(__doc__)
        return 2
    nvcc = find_nvcc()
    version = re.search(r"V(\d+\.\d+\.\d+)", ask(nvcc, "--version"))[1] if nvcc else "none"
    if version != PINNED:
        print("the table is of nvcc %s, this is %s" % (PINNED, version))
        return 1
    write_table(archs, compile_whole(nvcc, archs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
