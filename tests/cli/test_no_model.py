#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Where there is no model, as of --arch, --profile, profile --cluster and plan explain, an option that nothing looks at is refused
and says why; those that change what is answered are taken."""
import os
import sys
import tempfile

from command import DATA, DONE, USAGE, Count, need_command, run

DEMO = os.path.join(DATA, "demo", "model.onnx")
ARCH = ["--arch", "gpt:layers=4,hidden=64,heads=4,vocab=128,seq=32"]
ASKED = ["--cluster", "config-a", "--batch", "4", "--auto", "--schedule", "gpipe"]
TRAINED = ["--data", "--loss", "--trainable", "--frozen", "--parameter", "--optimizer", "--lr-schedule", "--no-decay"]
OF_MODELS = [*([option, "x"] for option in TRAINED), ["--clip", "1"], ["--compute", "fp16"], ["--steps", "3"], ["--bind", "a=1"], ["--pin", "a=1"],
             ["--no-fuse"], ["--dropout", "graph"], ["--allow-symlinks"], ["--allow-hardlinks"], ["--batch-dim", "n"]]
OF_PLANS = [["--cut", "x"], ["--improve"], ["--depth", "3"], ["--ignore-annotations"], ["--seed", "1"], ["--cost", "measured"], ["--cost", "F=1"],
            ["--transport", "local"], ["--plan", "x"]]
REQUESTS = [["--train"], ["--recompute", "stage"]]


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        asked(count, folder)
        profiles(count, folder)
        explained(count, folder)
        papers(count)
    return count.finish()


def expect(count, arguments, status, *texts):
    result = run(*arguments)
    good = result.status == status and all(text in result.out + result.err for text in texts)
    wrong = f"{result.status}, not {status} with {texts}: {(result.err or result.out)[-300:]}"
    count.check(" ".join(arguments), result.broken(60, 2048) or (None if good else wrong))
    return result.out


def asked(count, folder):
    """plan and simulate, of a description and of a profile's file."""
    profile, copy = os.path.join(folder, "profile.json"), os.path.join(folder, "copy.onnx")
    expect(count, ["profile", *ARCH, "--cluster=config-a", "--samples", "1,2,4", "-o", profile], DONE)
    for layers in (ARCH, ["--profile", profile]):
        for command in ("plan", "simulate"):
            for option in OF_MODELS + OF_PLANS:
                expect(count, [command, *layers, *ASKED, *option], USAGE, option[0])
            for option in REQUESTS:
                expect(count, [command, *layers, "--cluster", "config-a", "--auto=latency", *option], USAGE, option[0], "not to training")
            plain = expect(count, [command, *layers, *ASKED], DONE)
            said = expect(count, [command, *layers, *ASKED, "--train"], DONE)
            count.check("what is of training anyway", None if plain == said else said)
        expect(count, ["plan", *layers, *ASKED, "--annotate", copy], USAGE, "--annotate writes into a model: " + layers[0] + " has none")
    count.check("no copy", None if not os.path.exists(copy) else "there is one")
    plain = expect(count, ["plan", *ARCH, *ASKED], DONE)
    count.check("rates", None if expect(count, ["plan", *ARCH, *ASKED, "--cost", "rates"], DONE) == plain else "another answer")
    for other in (["--recompute", "stage"], ["--stages", "2"], ["--microbatches", "4"], ["--replicas", "2"], ["--ranks", "1"]):
        count.check(" ".join(other), None if expect(count, ["plan", *ARCH, *ASKED, *other], DONE) != plain else "the same answer")
    expect(count, ["plan", "--profile", profile, *ASKED, "--cost", "rates"], USAGE, "already has the times of layers")
    expect(count, ["plan", *ARCH, "--profile", profile, *ASKED], USAGE, "each replaces the model, give only one")
    expect(count, ["plan", *ARCH, "--auto", "--schedule", "gpipe", "--batch", "4", "--transport", "local", "--device", "cpu,threads=1"], DONE)
    expect(count, ["simulate", *ARCH, *ASKED, "--sharded", "--scattered", "--collective", "ring"], DONE)


def profiles(count, folder):
    """profile of a description, and of this machine."""
    for option in [*OF_MODELS, ["--nodes"], ["--device", "cpu"], ["--threads", "1"], ["--transport", "local"], ["--recompute", "stage"]]:
        expect(count, ["profile", *ARCH, "--train", *option], USAGE, option[0] + " ", "--arch has none")
    expect(count, ["profile", *ARCH, "--cost", "measured", "--cluster=h100"], USAGE, "--cost: --arch uses rates")
    expect(count, ["profile", *ARCH, "--cost", "rates", "--cluster=h100", "--train", "--batch", "4"], DONE, "micro-batches of 4")
    for option in [*OF_MODELS, ["--nodes"], ["--samples", "1"], ["--train"], ["--batch", "4"], ["--recompute", "stage"]]:
        expect(count, ["profile", "--cluster", *option], USAGE, f"profile --cluster: {option[0]} ")
    expect(count, ["profile", "--cluster", "--cost", "rates", "--device", "cpu,threads=1", "-o", os.path.join(folder, "here.json")], DONE)


def explained(count, folder):
    """plan explain looks at its two files."""
    plans = [os.path.join(folder, name + ".json") for name in "ab"]
    for plan in plans:
        expect(count, ["plan", *ARCH, *ASKED, "-o", plan], DONE)
    other = os.path.join(folder, "z")
    for option in (["-o", other], ["--cluster", "h100"], ["--stages", "3"], ["--train"], ["--loss", "x"], ["--auto"], ["--annotate", other], ARCH):
        name = option[0] if option[0] != "-o" else "--output"
        expect(count, ["plan", "explain", *plans, *option], USAGE, f"plan explain takes no {name}: --html and --json do")
    count.check("nothing is written", None if not os.path.exists(other) else "there is a file")
    expect(count, ["plan", "explain", *plans, "--json", "--html", other], DONE)


def papers(count):
    """Options of planner auto are refused with the others; with a model, all print hypothetical strategies."""
    for option in (["--budget", "1"], ["--within", "5"], ["--allow-stale"], ["--hypothetical"], ["--auto"], ["--auto=memory"]):
        expect(count, ["plan", *ARCH, "--planner", "dapple", "--cluster", "config-a", "--batch", "4", *option], USAGE,
               f"{option[0].split('=')[0]}: planner 'dapple' decides by its paper's rules")
    for planner in ("2bw", "chimera", "megatron", "terapipe"):
        expect(count, ["plan", *ARCH, "--planner", planner, "--cluster", "config-a", "--batch", "4", "--rows", "2"], USAGE,
               f"--rows: planner '{planner}' decides that")
    for planner in ("dapple", "pipedream"):
        expect(count, ["plan", *ARCH, "--planner", planner, "--cluster", "config-a", "--batch", "4", "--rows", "2"], DONE, "micro-batches of 2 samples")
    for layers in (ARCH, [DEMO]):
        expect(count, ["plan", *layers, "--auto", "--cluster", "config-a", "--within", "5"], USAGE, "--within 5: only --auto=memory has a time limit")
    expect(count, ["plan", DEMO, "--planner", "megatron", "--cluster", "config-a", "--bind", "batch=4,seq=8", "--hypothetical"], DONE, "planner   megatron")
    expect(count, ["plan", DEMO, "--planner", "megatron", "--cluster", "config-a", "--bind", "batch=4,seq=8", "--allow-stale"], USAGE, "--allow-stale: planner")


if __name__ == "__main__":
    sys.exit(main())
