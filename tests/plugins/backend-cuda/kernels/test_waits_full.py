#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=3600 label=full,nosan
"""Kernels that may be launched while the one in front of them runs wait for its end before they touch memory, in the machine code
that nvcc makes: what comes before is prefetches, and nothing ends or goes around the wait."""
import collections
import glob
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import registers  # noqa: E402

CHIPS = ("sm_90", "sm_100", "sm_120")
WAIT, NEXT, PREFETCH = "ACQBULK", "PREEXIT", "CCTL.E.PF2"
# Registers, constants, predicates and control flow alone; CALL: of divisions, which do no more
HARMLESS = re.compile(r"U?(IMAD|IADD|VIADD|LEA|SHF|LOP|MOV|SEL|SGXT|PRMT|ISETP|PLOP|IMNMX|VIMNMX|VIADDMNMX|IABS|FLO|POPC|BREV|R2UR|S2R|S2UR|CS2R|LDC"
                      r"|I2F|F2I|I2I|I2FP|F2F|F2FP|FADD|FMUL|FFMA|FSEL|FSETP|FMNMX|MUFU|P2R|R2P|BRA|CALL|RET|BSSY|BSYNC|NOP|WARPSYNC|VOTE|BMSK|SHL"
                      r"|SHR|INSERT|IDP|HFMA2)")


def find_disassembler():
    """The nvdisasm of a toolkit, or of the packages that trials on real files install."""
    nvcc = registers.find_nvcc()
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "nvdisasm") if nvcc else ""
    packages = glob.glob(os.path.join(registers.SOURCE, "build", "venv", "*", "lib", "python3*", "site-packages", "**", "bin", "nvdisasm"), recursive=True)
    for path in (shutil.which("nvdisasm"), beside, "/usr/local/cuda/bin/nvdisasm", *packages):
        if path and os.path.exists(path):
            return path
    return None


def read_code(text):
    """{kernel: [instruction or label]}"""
    kernels, own = {}, None
    for line in text.splitlines():
        section = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        if section:
            own = kernels.setdefault(section[1], [])
        found = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line) or re.match(r"(\.L_\w+):", line)
        if found and own is not None:
            own.append(found[1])
    return kernels


def complaints(kernel, code):
    """The kernel's faults, and how many prefetches come before the wait."""
    waits = [i for i, one in enumerate(code) if WAIT in one]
    if len(waits) != 1 or not any(NEXT in one for one in code):
        return ["%s waits %d times" % (kernel, len(waits))], 0
    labels = {one: i for i, one in enumerate(code) if one.startswith(".L_")}
    said, n_fetched = [], 0
    for one in code[:waits[0]]:
        if one.startswith(".L_") or NEXT in one:
            continue
        operation = re.sub(r"^@!?U?P\w+\s+", "", one).split()[0]
        to = re.search(r"`\((\.L_\w+)\)", one)
        n_fetched += operation == PREFETCH
        if operation != PREFETCH and not HARMLESS.match(operation):
            said.append("%s before its wait: %s" % (kernel, one))
        if operation == "BRA" and to and labels[to[1]] > waits[0]:
            said.append("%s goes around its wait: %s" % (kernel, one))
    return said, n_fetched


def main():
    nvcc, disassembler = registers.find_nvcc(), find_disassembler()
    if nvcc is None or disassembler is None:
        print("SKIP: no nvcc (./dev deps cuda fetches one)" if nvcc is None else "SKIP: no nvdisasm (a whole toolkit has it, and build/venv/real)")
        return 77
    known = registers.ask(nvcc, "--list-gpu-code").split()
    archs = [chip for chip in CHIPS if chip in known]
    registers.compile_whole(nvcc, ["sm_80", *archs] if "sm_80" in known else archs)  # as test_registers_full.py has them
    said, counts = [], collections.Counter()
    for arch in archs:
        done = subprocess.run([disassembler, "-c", os.path.join(registers.KEPT, arch + ".cubin")], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print("SKIP: %s reads no code for %s: %s" % (disassembler, arch, done.stderr.strip()))
            return 77
        for kernel, code in read_code(done.stdout).items():
            found, n_fetched = complaints(kernel, code)
            said += ["%s: %s" % (arch, one) for one in found]
            counts["kernels"] += 1
            counts["prefetches"] += n_fetched
    for one in said:
        print("FAILED:", one)
    print("%(kernels)d kernels, %(prefetches)d prefetches before their waits" % counts)
    return 1 if said or min(counts["kernels"], counts["prefetches"]) == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
