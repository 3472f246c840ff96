#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 always
"""PyTorch's side of the record, on the CPU: steps of both ways train, and its gradients are those of `train` within what types
allow, so that what is compared on a GPU is the same network. Where no environment here has PyTorch it is skipped."""
import glob
import json
import os
import subprocess
import sys
import tempfile

BUILD, SOURCE = os.environ["OPIPE_BUILD_DIR"], os.environ["OPIPE_SOURCE_DIR"]
GPU = os.path.join(SOURCE, "tests", "gpu")
sys.path[:0] = [GPU, os.path.join(SOURCE, "tests", "data", "attacks")]
import gpt2  # noqa: E402

SHAPE, SAMPLES, TOKENS, VOCABULARY = "small", 4, 32, 128


def with_torch():
    """A Python that has PyTorch; None: none of the build trees' has."""
    for python in [sys.executable, *sorted(glob.glob(os.path.join(SOURCE, "build*", "venv", "*", "bin", "python")))]:
        if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def main():
    python = with_torch()
    if python is None:
        print("SKIP: no environment with PyTorch (./dev real installs one)")
        return 77
    own = dict(os.environ, OPIPE_PEER_DEVICE="cpu", TORCHDYNAMO_DISABLE="1",
               PYTHONPATH=os.pathsep.join([GPU, os.path.join(SOURCE, "tests", "data", "attacks")]))

    def peer(*arguments):
        done = subprocess.run([python, "-B", os.path.join(GPU, "peer.py"), *map(str, arguments)], env=own, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit("FAILED: peer.py %s: %s" % (arguments[0], done.stderr[-600:]))
        return json.loads(done.stdout.strip().splitlines()[-1])

    failed = []
    for way in ("autocast", "masters"):
        said = peer("train", SHAPE, 1, 2, 16, 3, way)
        if len(said["seconds"]) != 3 or not said["losses"][2] < said["losses"][0]:
            failed.append("%s: %s" % (way, said))
    if len(peer("decode", SHAPE, 8, 2)["seconds"]) != 2:
        failed.append("decode")
    with tempfile.TemporaryDirectory() as folder:
        model, ids = os.path.join(folder, "m.onnx"), os.path.join(folder, "ids.npy")
        gpt2.write(model, SHAPE, TOKENS, VOCABULARY)
        gpt2.ids(ids, SAMPLES, TOKENS, VOCABULARY)
        made = [os.path.join(folder, compute) for compute in ("fp32", "bf16")]
        for path in made:
            subprocess.run([os.path.join(BUILD, "bin", "onnx-pipe"), "train", model, "--device", "cpu", "--compute", os.path.basename(path), "--ranks", "1",
                            "--schedule", "gpipe", "--batch", str(SAMPLES), "--microbatches", "2", "--steps", "1", "--dropout", "off", "--data", "ids=" + ids,
                            "--loss", "cross-entropy:logits=logits,labels=ids,shift=1", "--save-gradients", path], check=True, capture_output=True)
        said = peer("gradients", SHAPE, SAMPLES, TOKENS, VOCABULARY, model + ".weights", ids, *made)
        if not said["ours fp32"] <= 1e-5 or not said["ours bf16"] <= 3e-2 or not said["PyTorch bf16"] <= 3e-2:
            failed.append("gradients: %s" % said)
    for line in failed:
        print("FAILED:", line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
