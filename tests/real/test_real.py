#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=2400 label=full
"""Files as users export them today: families of the transformers package by torch's two exporters,
split into two and four micro-batches, run, trained and sliced. The exports are kept in build/real;
without build/venv/real (./dev test --all makes it) nothing is tested."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from command import SOURCE, Count, need_command  # noqa: E402
import test_microbatches as forms  # noqa: E402

DYNAMO = """gpt2 gpt2_cache llama llama_cache mistral qwen2 qwen3 gemma3 phi3 olmo2 mixtral qwen3_moe
gpt_oss opt bloom mpt gptj gpt_neox falcon bert roberta distilbert albert deberta_v2 modernbert t5 bart
marian whisper vit swin beit clip clip_logits wav2vec2 wavlm""".split()
LEGACY = """gpt2 gpt2_cache llama qwen2 opt bloom gptj falcon bert distilbert albert deberta_v2 t5 bart
whisper_encoder vit swin beit clip clip_logits resnet convnext wav2vec2
wavlm""".split()


def export(folder):
    """The set; what an exporter refuses says so and is left out."""
    python = os.path.join(SOURCE, "build", "venv", "real", "bin", "python")
    if not os.path.exists(python):
        print("SKIP: build/venv/real with torch and transformers is not there")
        sys.exit(77)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "export.py")
    for exporter, names in (("dynamo", DYNAMO), ("legacy", LEGACY)):
        subprocess.run(
            [python, script, folder, "--exporter", exporter, "--only", ",".join(names)],
            check=True,
        )


def main():
    need_command()
    count = Count()
    root = os.path.join(SOURCE, "build", "real")
    export(root)
    exported = 0
    for name, folder in forms.folders(root):
        with open(os.path.join(folder, "meta.json"), encoding="utf-8") as file:
            meta = json.load(file)
        if "variant" in meta:  # of ./dev real
            continue
        forms.one_export(count, name, folder, meta)
        exported += 1
    wanted = len(DYNAMO) + len(LEGACY)
    few = f"{exported} of {wanted} were exported" if exported < wanted * 0.8 else None
    count.check("enough exports", few)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
