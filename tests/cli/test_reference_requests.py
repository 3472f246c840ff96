#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""--reference of a stream of requests judges every one of them: one wrong bit, in whichever request, is found, and the
request is named. The device is backend cpu with a wrong bit in one run of a stage: a stage runs the requests in their order,
while which stage's run comes before another's is chance."""
import json
import os

from command import BUILD, CHECK_FAILED, DONE, run
from small import check, write_model

PLUGIN = os.path.join(BUILD, "tests", "plugins", "opipe-backend-impaired.so")
REQUESTS, STAGES = 5, 2
NODES = ("h0", "y")  # of the first and the last stage


def spoiled(model, at, *more):
    os.environ["OPIPE_SPOILS"] = at
    result = run("run", model, "--bind", "batch=2", "--stages", str(STAGES), "--plugin", PLUGIN, "--device", "impaired",
                 "--requests", str(REQUESTS), "--reference", *more)
    del os.environ["OPIPE_SPOILS"]
    return result


def one_wrong_bit(count, folder):
    model = write_model(os.path.join(folder, "m.onnx"))
    clean = spoiled(model, "0")
    count.check("no wrong bit", None if clean.status == DONE and "identical" in clean.out else clean.err + clean.out)
    for number in range(1, REQUESTS + 1):
        for node in NODES:
            at = f"{number}:{node}"
            result = spoiled(model, at)
            line = next((text for text in result.out.splitlines() if "the first is request" in text), "")
            wrong = result.status != CHECK_FAILED or f"1 of {REQUESTS} requests" not in line or ": output y" not in line
            wrong = wrong or f"the first is request {number - 1}:" not in line
            count.check(f"a wrong bit of run {at}", f"status {result.status}: {result.out[-300:]}" if wrong else None)
            told = json.loads(spoiled(model, at, "--json").out)["reference"]
            count.check(f"a wrong bit of run {at} in JSON", None if told["identical"] is False else str(told))


if __name__ == "__main__":
    raise SystemExit(check(one_wrong_bit))
