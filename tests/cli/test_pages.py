#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=60
"""--help, completion and man pages, which come from the table that options are parsed by: basics first, every option
once in each, scripts that shells load, pages that render without a warning."""
import os
import re
import shlex
import shutil
import subprocess
import sys

import small
from command import BUILD, DONE, SOURCE, USAGE, run
from test_train_safety import wrong

SHARE = os.path.join(BUILD, "share")
COMMANDS = ["inspect", "plan", "simulate", "profile", "tune", "run", "generate", "train", "launch", "follow", "plugins", "schedule"]


def options(command):
    """(group, option) as --help lists them."""
    group, found = None, []
    for line in run(command, "--help").out.splitlines():
        if re.match(r"[A-Z][A-Za-z, ]*:$", line):
            group = line[:-1]
        option = re.match(r"  --([a-z-]+)", line)
        if option:
            found.append((group, option.group(1)))
    return found


def groups(count, _):
    listed = [line.split()[0] for line in run("--help").out.splitlines() if line.startswith("  ")]
    count.check("the commands", None if listed == COMMANDS else str(listed))
    for command in COMMANDS:
        found = options(command)
        names, order = [name for _, name in found], list(dict.fromkeys(group for group, _ in found))
        runs = sum(1 for i, (group, _) in enumerate(found) if i == 0 or found[i - 1][0] != group)
        problem = None if found and order[0] == "Basics" and None not in order and "help" in names else str(order)
        problem = problem or (None if len(set(names)) == len(names) else f"twice: {sorted(n for n in names if names.count(n) > 1)}")
        count.check(f"{command} --help", problem or (None if runs == len(order) else f"{runs} headings for {len(order)} groups"))
    first = [name for group, name in options("run") if group == "Basics"]
    count.check("the basics of run", None if first[:3] == ["stages", "device", "schedule"] and len(first) < 20 else str(first))


def read(*parts):
    with open(os.path.join(SHARE, *parts), encoding="utf-8") as file:
        return file.read()


def completed(script, *words):
    text = f'source {shlex.quote(script)}; COMP_WORDS=({" ".join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}; _onnx_pipe; echo "${{COMPREPLY[@]}}"'
    result = subprocess.run(["bash", "--norc", "-c", text], capture_output=True, text=True, check=False, timeout=30)
    return result.stdout.split() if result.returncode == 0 and not result.stderr else [result.stderr or "failed"]


def bash(count, _):
    script = os.path.join(SHARE, "completion", "bash")
    for words, wanted in ((["ru"], ["run"]), (["tra"], ["train"]), (["run", "--stag"], ["--stages"]), (["train", "--epo"], ["--epochs"]),
                          (["run", "--auto", "=", "thr"], ["throughput"]), (["train", "--recompute", "b"], ["block"]),
                          (["train", "--compute", "="], ["fp32", "bf16", "fp16"]), (["schedule", "sh"], ["show"]),
                          (["schedule", "show", "x", "--rule", "st"], ["stream"]), (["run", "model"], []), (["run", "--input", "x"], [])):
        found = completed(script, "onnx-pipe", *words)
        count.check("bash: " + " ".join(words), None if found == wanted else str(found))
    for command in COMMANDS:
        lacking = {"--" + name for _, name in options(command)} ^ set(completed(script, "onnx-pipe", command, "--"))
        count.check(f"bash: {command}", f"differ: {lacking}" if lacking else None)


def shells(count, _):
    """zsh and fish load them; where they are not there, quotes are balanced and every option is in them."""
    for shell, check in (("zsh", ["-f", "-c", 'autoload -U compinit; compinit -D; source "$0"; (( $+functions[_onnx_pipe] ))']),
                         ("fish", ["--no-config", "-c", "source $argv[1]; complete -C 'onnx-pipe run --stag' | string match -q -- '--stages*'"])):
        script = os.path.join(SHARE, "completion", shell)
        if shutil.which(shell):
            result = subprocess.run([shell, *check, script], capture_output=True, text=True, check=False, timeout=30)
            count.check(f"{shell} loads it", None if result.returncode == 0 and not result.stderr else f"{result.returncode}: {result.stderr}")
        else:
            count.skip(f"{shell} is not here: its script is only looked at")
        text = read("completion", shell)
        for line in text.splitlines():
            if shell == "fish" and line.startswith("complete"):
                plain = re.sub(r"\\\\|\\'", "", line)
                if plain.count("'") % 2:
                    count.check(shell, f"quotes: {line}")
            if shell == "zsh" and line.startswith("        '*--"):
                words = shlex.split(line.rstrip("\\"))
                if len(words) != 1 or not re.match(r"^\*--[a-z-]+(=-?)?\[([^][\\]|\\.)*\](::?([^:\\]|\\.)*:(_files|\([a-z0-9 -]+\)))?$", words[0]):
                    count.check(shell, f"{words}")
        for command in COMMANDS:
            part = text[text.index(f"    {command})"):].split(";;")[0] if shell == "zsh" else text
            form = "--{}" if shell == "zsh" else "from " + command + "' -l {}"
            lacking = [name for _, name in options(command) if not re.search(re.escape(form.format(name)) + r"(?![a-z-])", part)]
            count.check(f"{shell}: {command}", f"lacks {lacking}" if lacking else None)


def manual(count, _):
    pages = {command: f"onnx-pipe-{command}.1" for command in COMMANDS}
    count.check("a page each", None if sorted(os.listdir(os.path.join(SHARE, "man1"))) == sorted([*pages.values(), "onnx-pipe.1"]) else
                str(os.listdir(os.path.join(SHARE, "man1"))))
    for command, page in pages.items():
        path = os.path.join(SHARE, "man1", page)
        text = read("man1", page)
        if shutil.which("groff"):
            result = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-rLL=200n", path], capture_output=True, text=True, check=False, timeout=30)
            text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", result.stdout)
            count.check(f"{page} renders", None if result.returncode == 0 and not result.stderr else result.stderr[-300:])
        else:
            text = text.replace("\\-", "-")
        lacking = [name for _, name in options(command) if not re.search(rf"--{name}\b(?!-)", text)]
        lacking += [word for word in ("NAME", "SYNOPSIS", "OPTIONS", "EXIT STATUS", "Basics") if word not in text]
        count.check(page, f"lacks {lacking}" if lacking else None)


def reference(count, _):
    """The page of the guide is of this command."""
    script = os.path.join(SOURCE, "abi", "cli", "reference.py")
    environment = {name: value for name, value in os.environ.items() if name != "OPIPE_PLUGIN_PATH"}
    made = subprocess.run([sys.executable, "-B", script, os.path.join(BUILD, "bin", "onnx-pipe")], capture_output=True, text=True, check=False, timeout=50,
                          env=environment)
    with open(os.path.join(SOURCE, "abi", "guide", "command-reference.md"), encoding="utf-8") as file:
        page = file.read()
    same = made.returncode == 0 and made.stdout == page
    count.check("command-reference.md", None if same else f"is not what abi/cli/reference.py writes: {made.stderr}")
    for command in COMMANDS:
        part = page.partition(f"\n## {command}\n")[2].partition("\n## ")[0]
        lacking = [name for _, name in options(command) if not re.search(rf"\| `(-\w, )?--{name}[`\[ ]", part)]
        count.check(f"command-reference.md: {command}", f"lacks {lacking}" if lacking else None)


def asked(count, _):
    count.check("another shell", wrong(run("completion", "zhs"), USAGE, "did you mean 'zsh'?"))
    count.check("another page", wrong(run("manual", "frob"), USAGE, "there is no command 'frob'"))
    for name in ("bash", "zsh", "fish"):
        result = run("completion", name)
        count.check(f"{name}, as built", wrong(result, DONE) or (None if result.out == read("completion", name) else "differs"))
    with open(os.path.join(BUILD, "cmake_install.cmake"), encoding="utf-8") as file:
        rules = file.read()
    for place in ("bash-completion/completions", "zsh/site-functions", "fish/vendor_completions.d", "man1/onnx-pipe-train.1"):
        count.check(f"installed: {place}", None if place in rules else "it is not")


if __name__ == "__main__":
    raise SystemExit(small.check(groups, bash, shells, manual, reference, asked))
