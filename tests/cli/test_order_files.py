#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=200
"""--schedule file:PATH: what trains with parts, weight versions and token slices has a forward form,
under --auto too; what a file says and no plan executes is refused in words; a path in the place of
a schedule's name, and a deadlock of token slices, are told as what they are."""
import os
import tempfile

from command import DATA, DONE, REFUSED, SOURCE, USAGE, Count, need_command, run

MODEL = os.path.join(DATA, "demo", "model.onnx")
TRAIN = ["train", MODEL, "--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--loss",
         "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", "12", "--steps", "2"]
RUN = ["run", MODEL, "--bind", "batch=12,seq=8", "--requests", "3"]
# Schedule, options: orders of training that are written to a file.
ORDERS = [("2bw", ["--ranks", "2", "--microbatches", "4"]), ("2bw", ["--ranks", "3", "--microbatches", "6"]),
          ("chimera:concat=halving", ["--ranks", "4", "--microbatches", "8"]),
          ("seq1f1b:slices=2", ["--ranks", "2", "--microbatches", "2"])]
HALVES = "0F0,0F1,(0F2;0I0)OVERLAP_F_B,0W0,0B1,0B2\n1F0,(1F1;1I0)OVERLAP_F_B,1W0,(1F2;1B1)OVERLAP_F_B,1B2\n"
SLICED = ("#onnx-pipe-schedule v1\n#ranks=2 stages=2 replicas=1 microbatches=2 slices=2 parts=1 mode=forward "
          "versions=one sync=end\n#place=0,1\nrank 0: 0F0/0 0F0/1 0F1/0 0F1/1\nrank 1: 1F1/0 1F1/1 1F0/0 1F0/1\n")
LENGTHS = SLICED.replace("#place", "#lengths=5,3\n#place")


def ended(result, status=DONE, text=""):
    problem = result.broken(60, 1024)
    if problem or result.status != status or text not in result.err + result.out:
        return problem or f"status {result.status}: {(result.err or result.out)[-300:]}"
    return None


def check_forward_form(count, path):
    for schedule, shape in ORDERS:
        problem = ended(run("schedule", "show", schedule, *shape, "--format", "text", "-o", path))
        count.check(f"show {schedule}", problem)
        problem = ended(run(*RUN, "--schedule", "file:" + path, "--reference"), text="identical to the plan's reference")
        count.check(f"run, {schedule}", problem)


def check_said(count, path):
    rows = [
        ("torch's older dialect", "0F0,0F1,0B0,0W0,0B1,0W1\n", TRAIN, "2 W and 2 B, but no I"),
        ("its whole backward", "0F0,0B0,0W0,0F1,0BW1\n", TRAIN, "'0BW1': BW belongs to torch's older dialect"),
        ("R", "0F0,0F1,0R0,0B0,0R1,0B1\n1F0,1B0,1F1,1B1\n", TRAIN,
         "rank 0, stage 0, micro-batch 0: the backward recomputes its forward"),
        ("lengths", LENGTHS, RUN, "the header's lengths=5,3 is not executed from a text"),
        ("lengths of 0", LENGTHS.replace("5,3", "0,0"), RUN, "lengths=0,0 is not understood"),
        ("a deadlock of slices", SLICED, [*RUN, "--depth", "1"],
         "from rank 0 (stage 0, token slice 0) to rank 1 (stage 1, token slice 0) was never awaited"),
    ]
    for name, text, command, said in rows:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        count.check(name, ended(run(*command, "--schedule", "file:" + path), REFUSED, said))


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "order.csv")
        check_forward_form(count, path)
        check_said(count, path)
        with open(path, "w", encoding="utf-8") as file:
            file.write(HALVES)
        for command, said in ((RUN, "identical"), (TRAIN, "bit-equal")):
            result = run(*command, "--auto", "--schedule", "file:" + path, "--reference")
            count.check(f"{command[0]} --auto", ended(result, DONE, said) or ended(result, DONE, "schedule csv"))
        count.check("a path without file:", ended(run(*RUN, "--schedule", path), USAGE, f"the order of a file is file:{path}"))
        count.check("a plugin's path", ended(run(*RUN, "--schedule", "./x.so"), USAGE, "load that file as a plugin"))
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())
