#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""--improve and the schedule search: orders no slower than any named one, proven under every rule; plans that say what was
found, the same twice, within the caps of their devices, and that train and run with the bits of their reference."""
import json
import os
import sys
import tempfile

from command import DATA, DONE, REFUSED, USAGE, Count, need_command, run

DEMO = os.path.join(DATA, "demo", "model.onnx")
GPT = os.path.join(DATA, "gpt_8block", "model.onnx")
TEXT = "text:" + os.path.join(DATA, "text", "ferry.txt")
LOSS = "cross-entropy:logits=logits,labels=labels,shift=1"
COSTS = "F=1+1.2+0.9+1.6,I=1.2+1.4+1+2,W=0.8+1+0.7+1.2,comm=0.4"
SIZE = ("--ranks", "4", "--microbatches", "8", "--cost", COSTS)
NAMES = ("gpipe", "1f1b", "zb-h1", "zb-h2", "zb-auto")
RULES = ("tag", "stream", "edge", "pair", "blocking", "grouped")


def command(*arguments, status=DONE):
    result = run(*arguments, timeout=200)
    broken = result.broken(200, 3000)
    if broken or result.status != status:
        raise AssertionError(f"{' '.join(arguments)}: {broken or result.status}: {result.err.strip()[:400]}")
    return result.out if status == DONE else result.err


def simulate(*arguments):
    return json.loads(command("schedule", "simulate", *arguments, "--json"))


def orders_are_no_slower_than_named_ones():
    found = simulate("search", *SIZE)
    for name in NAMES:
        named = simulate(name, *SIZE)
        if named["makespan"] < found["makespan"] or named["bound"] > named["makespan"]:
            raise AssertionError(f"{name}: {named}, search: {found}")
        better = simulate(name, "--improve", *SIZE)
        if better["makespan"] > named["makespan"]:
            raise AssertionError(f"{name}: from {named['makespan']} to {better['makespan']}")
    if found["makespan"] > found["bound"] * 1.02:
        raise AssertionError(f"found {found}")


def a_shown_order_is_proven_and_read_back():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "order.csv")
        shown = command("schedule", "show", "search:moves=300,seed=3,from=1f1b", *SIZE, "--dialect", "torch")
        with open(path, "w", encoding="utf-8") as file:
            file.write(shown)
        again = simulate(path, "--cost", COSTS)
        if again["makespan"] != simulate("search:moves=300,seed=3,from=1f1b", *SIZE)["makespan"]:
            raise AssertionError("the file of the order simulates otherwise")
        for rule in RULES:
            command("schedule", "check", path, "--rule", rule)
        message = command("schedule", "show", path, "--improve", status=USAGE)
        if "search:from=file:" not in message:
            raise AssertionError(message)
        command("schedule", "simulate", "search:from=file:" + path, *SIZE)


def training(*more):
    return (DEMO, "--data", TEXT, "--loss", LOSS, "--batch", "8", "--ranks", "3", "--microbatches", "4", *more)


def plan_of(path, *more):
    command("plan", *training("--train", "-o", path, *more))
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return text, json.loads(text)


def plans_say_what_was_found():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        _, start = plan_of(path, "--schedule", "1f1b")
        text, plan = plan_of(path, "--schedule", "1f1b", "--improve")
        found = plan["searched"]
        if plan["schedule"] != "search" or plan["settings"]["from"] != "1f1b":
            raise AssertionError(f"{plan['schedule']}, {plan['settings']}")
        if found["start_ns"] != start["request_ns"] or not (
            found["bound_ns"] <= plan["request_ns"] < start["request_ns"]
        ):
            raise AssertionError(f"{found}, {plan['request_ns']}; before {start['request_ns']}")
        if plan_of(path, "--schedule", "search:from=1f1b")[0] != text:
            raise AssertionError("a plan of the schedule search:from=1f1b is another one than with --improve")
        out = command("train", *training()[0:7], "--plan", path, "--steps", "1", "--reference")
        if "bit-equal" not in out:
            raise AssertionError(out[-400:])


def caps_hold():
    """With no byte more than the order keeps that the search begins with, nothing is over a cap."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        _, start = plan_of(path, "--schedule", "1f1b")
        cap = max(memory["total_bytes"] for memory in start["memory"])
        _, plan = plan_of(path, "--schedule", "1f1b", "--improve", *(3 * ["--device", f"cpu,memory={cap}"]))
        all_bytes = sum(memory["total_bytes"] for memory in start["memory"])
        _, shared = plan_of(path, "--schedule", "1f1b", "--improve", "--memory", str(all_bytes))
        if sum(memory["total_bytes"] for memory in shared["memory"]) > all_bytes or shared["request_ns"] > start["request_ns"]:
            raise AssertionError(f"one cap {all_bytes}: {shared['memory']}")
        _, free = plan_of(path, "--schedule", "1f1b", "--improve")
        if any(memory["total_bytes"] > cap for memory in plan["memory"]):
            raise AssertionError(f"cap {cap}: {plan['memory']}")
        if max(memory["total_bytes"] for memory in free["memory"]) <= cap:
            raise AssertionError("without a cap the order keeps no more: this shows nothing")
        if plan["request_ns"] > start["request_ns"]:
            raise AssertionError(f"{plan['request_ns']}, before {start['request_ns']}")


def trains_bit_equal(*arguments):
    out = command("train", *arguments, "--improve", "--steps", "1", "--reference")
    if "schedule search" not in out or "bit-equal" not in out or "close" not in out:
        raise AssertionError(out[-600:])


def demo_trains_bit_equal():
    trains_bit_equal(*training())
    trains_bit_equal(*training("--schedule", "interleaved:chunks=2"))


def gpt_trains_bit_equal():
    trains_bit_equal(
        GPT, "--loss", LOSS, "--data", TEXT, "--batch", "4", "--bind", "seq=16", "--ranks", "4", "--microbatches", "4"
    )


def requests_run_bit_equal():
    out = command(
        "run", DEMO, "--ranks", "2", "--schedule", "interleaved:chunks=2", "--improve", "--microbatches", "4",
        "--bind", "batch=4", "--requests", "6", "--reference",
    )
    if "identical to the plan's reference" not in out or "schedule search" not in out:
        raise AssertionError(out[-400:])


def replicas_take_requests_in_turn():
    """The replicas that planner auto compares with stages can be run."""
    out = command("plan", DEMO, "--auto=throughput", "--device", "cpu", "--device", "cpu", "--bind", "batch=1,seq=64")
    if "2 copies of the whole model, requests in turn" not in out:
        raise AssertionError(out[:2000])
    for requests in ("7", "24"):
        command("run", DEMO, "--stages", "1", "--replicas", "2", "--bind", "batch=1,seq=64", "--requests", requests)


def refusals():
    for arguments, status, words in (
        (training("--schedule", "2bw", "--improve", "--train"), REFUSED, "double-buffered"),
        (training("--schedule", "search:moves=x", "--train"), USAGE, "moves=x"),
    ):
        message = command("plan", *arguments, status=status)
        if words not in message:
            raise AssertionError(message)


def main():
    need_command()
    count = Count()
    for check in (
        orders_are_no_slower_than_named_ones, a_shown_order_is_proven_and_read_back, plans_say_what_was_found,
        caps_hold, demo_trains_bit_equal, gpt_trains_bit_equal, requests_run_bit_equal,
        replicas_take_requests_in_turn, refusals,
    ):
        try:
            check()
            why = None
        except AssertionError as error:
            why = str(error)
        count.check(check.__name__, why)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
