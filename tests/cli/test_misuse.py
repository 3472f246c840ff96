#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=100
"""Misuse: the status (2: a wrong option, an unknown name, a missing file or input; 3: the file is there and is refused)
and the message, which names what is meant. One table; every case ends before anything is computed."""
import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import tempfile
import zipfile

from command import DATA, REFUSED, SOURCE, USAGE, Count, need_command, run

MODEL = os.path.join(DATA, "demo", "model.onnx")
ENCODER = os.path.join(DATA, "encoder", "model.onnx")
TEXT = ["--data", "text:" + os.path.join(SOURCE, "README.md"), "--bind", "seq=16"]
LOSS = ["--loss", "cross-entropy:logits=logits,labels=labels"]
TRAIN = ["train", MODEL, *TEXT, *LOSS, "--steps", "1"]
RUN = ["run", MODEL, "--stages", "1"]
ORDER = ["--ranks", "2", "--microbatches", "4"]

# A wrong name, and the one that is meant.
NAMES = [
    (["run", MODEL, "--schedule", "1F1B"], "1f1b"),
    (["run", MODEL, "--schedule", "1F1B:policy=pa"], "1f1b"),
    (["run", MODEL, "--schedule", "Interleaved:chunks=2"], "interleaved"),
    (["run", MODEL, "--schedule", "interleaved:chunk=2"], "chunks"),
    (["schedule", "show", "zbh1", *ORDER], "zb-h1"),
    (["schedule", "show", "looped_bfs", *ORDER], "looped-bfs"),
    (["run", MODEL, "--device", "gpu"], "cuda"),
    (["run", MODEL, "--device", "gpu:0", "--stages", "2"], "cuda"),
    (["run", MODEL, "--device", "CPU", "--stages", "2"], "cpu"),
    (["plan", MODEL, "--device", "cpuu"], "cpu"),
    (["run", MODEL, "--stages", "2", "--schedule", "1f1b:policy=PA"], "pa"),
    (["run", MODEL, "--stages", "2", "--schedule", "zbv:order=gredy"], "greedy"),
    (["run", MODEL, "--stages", "2", "--transport", "locla"], "local"),
    (["run", MODEL, "--cluster", "H100"], "h100"),
    (["plan", MODEL, "--cluster", "seleen"], "selene"),
    (["plan", MODEL, "--planner", "Dapple"], "dapple"),
    (["plan", MODEL, "--planner", "terrapipe"], "terapipe"),
    (["plan", MODEL, "--auto=throughptu"], "throughput"),
    (["run", MODEL, "--bind", "Batch=2"], "batch"),
    (["run", MODEL, "--bind", "sequence=2"], "seq"),
    (["run", MODEL, "--cut", "logit"], "logits"),
    (["run", ENCODER, "--stages", "1", "--input", "attention_maks=x.npy"], None),
    (["run", ENCODER, "--stages", "1", "--pin", "attention_maks=1"], "attention_mask"),
    (["run", ENCODER, "--stages", "1", "--pin", "token_types_ids=1"], "token_type_ids"),
    ([*TRAIN, "--optimizer", "adamW:lr=1"], "adamw"),
    ([*TRAIN, "--optimizer", "adamw:lr=1,weight_decay=0.1"], "decay"),
    ([*TRAIN, "--optimizer", "adamw:learning_rate=1"], "lr"),
    ([*TRAIN, "--optimizer", "sgd:lr=1,momentun=0.9"], "momentum"),
    ([*TRAIN, "--optimizer", "adamw:lr=1,epsilon=1e-8"], "eps"),
    ([*TRAIN, "--lr-schedule", "cosin"], "cosine"),
    ([*TRAIN, "--lr-schedule", "cosine:warm-up=3"], "warmup"),
    ([*TRAIN, "--compute", "bfloat16"], "bf16"),
    ([*TRAIN, "--recompute", "blocks"], "block"),
    (["train", MODEL, *TEXT, "--loss", "crossentropy:logits=logits"], "cross-entropy"),
    (["train", MODEL, *TEXT, "--loss", "cross-entropy:logit=logits"], "logits"),
    (["train", MODEL, *TEXT, "--loss", "mse:outputs=logits,target=t"], "output"),
    ([*TRAIN, "--epoch=3", "--stpes", "2"], "--steps"),
    ([*TRAIN, "--weight-decay", "0.1"], "--optimizer"),
    ([*TRAIN, "--learning-rate", "0.1"], "--optimizer"),
    ([*TRAIN, "--max-steps", "3"], "--steps"),
    ([*TRAIN, "--checkpoint", "x"], "--save"),
    (["run", MODEL, "--fallback", "none", "--dropout", "grahp"], None),
    (["run", MODEL, "--tuned", "required"], "require"),
    (["run", os.path.join(DATA, "demo"), "--check=elements"], "element"),
]

# Commands that lack something, or contradict themselves.
WRONG = [
    (["run", "nowhere.onnx"], "'nowhere.onnx' does not exist"),
    (["inspect", MODEL + "/x"], "Not a directory"),
    ([*RUN, "--input", "input_ids=nowhere.npy"], "cannot read nowhere.npy: No such file or directory"),
    ([*RUN, "--input", "input_ids=nowhere.pb"], "cannot read nowhere.pb: No such file or directory"),
    ([*RUN, "--input", "input_ids"], "--input input_ids: NAME=FILE is needed"),
    ([*RUN, "--pin", "input_ids=nowhere.npy"], "cannot read nowhere.npy"),
    (["run", MODEL, "--plan", "nowhere.json"], "cannot read nowhere.json: No such file"),
    (["plan", "explain", "a.json", "b.json"], "cannot read a.json: No such file"),
    (["plan", "--profile", "nowhere.json"], "cannot read nowhere.json"),
    (["run", MODEL, "--cluster", "nowhere.json"], "there is no cluster 'nowhere.json'"),
    (["run", MODEL, "--schedule", "file:nowhere.csv"], "cannot read nowhere.csv"),
    (["schedule", "check", "nowhere.csv"], "cannot read nowhere.csv"),
    (["run", MODEL, "--plugin", "nowhere.so"], "nowhere.so"),
    (["train", MODEL, "--data", "input_ids=nowhere.npy", *LOSS], "nowhere.npy: No such file"),
    (["train", MODEL, "--data", "nowhere.npz", *LOSS], "nowhere.npz: No such file"),
    (["train", MODEL, "--data", "text:nowhere.txt", *LOSS], "nowhere.txt: No such file"),
    (["train", MODEL, "--data", "nowhere", *LOSS], "--data nowhere: expected a folder"),
    ([*TRAIN, "--resume", "nowhere"], "--resume nowhere: there is no such folder"),
    ([*TRAIN, "--parameter", "input_ids=nowhere.npy"], "cannot read nowhere.npy"),
    (["train", MODEL, *TEXT, *LOSS, "--steps", "2", "--epochs", "1"], "give only one"),
    (["train", MODEL, *TEXT, *LOSS, "--epochs", "0"], "--epochs 0: an integer above 0"),
    (["train", MODEL, *TEXT, *LOSS, "--epochs", "9223372036854775807"], "cannot be counted"),
    (["plan", MODEL, "--train", *LOSS, "--epochs", "2"], "--epochs 2 counts the samples of --data, which is not given: --steps N"),
    (["run", MODEL, "--stages", "2", "--schedule", "interleaved:chunks=0"], "chunks=0 is not an integer in [1, 4096]"),
    (["run", MODEL, "--stages", "2", "--schedule", "1f1b:depth"], "option 'depth' is not of the form key=value"),
    (["schedule", "show", "1f1b:depth=x", *ORDER], "depth=x is not an integer"),
    ([*RUN, "--memory", "3 apples"], "--memory 3 apples: a size such as 300MiB is needed"),
]


def write(folder, name, content):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def array(rows, columns):
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({rows}, {columns}), }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<q", 1) * (rows * columns)


def archive(*names):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name in names:
            file.writestr(name, b"content")
    return data.getvalue()


def taped():
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        file.addfile(tarfile.TarInfo("model.onnx"), io.BytesIO())
    return data.getvalue()


def foreign():
    """Name, content, what is said to be in it."""
    safe = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    legacy = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    node = b"\x0a\x01x\x12\x0bPlaceholder"
    saved = b"\x0a" + bytes([len(node)]) + node
    return [
        ("model.pt", archive("model/data.pkl", "model/version"), "a PyTorch file, not ONNX: torch.onnx.export"),
        ("export.pt2", archive("export/archive_format"), "a PyTorch file"),
        ("old.pth", legacy + bytes(50), "a PyTorch file"),
        ("skl.pkl", pickle.dumps({"a": 1}), "a Python pickle"),
        ("model.keras", archive("metadata.json", "config.json"), "a Keras file"),
        ("arrays.npz", archive("x.npy"), "a NumPy archive (.npz)"),
        ("packed.zip", archive("model.onnx"), "a ZIP archive, not ONNX: unpack it first"),
        ("packed.onnx.gz", gzip.compress(b"model"), "a gzip archive"),
        ("packed.tar", taped(), "a tar archive"),
        ("model.gguf", b"GGUF\x03\0\0\0" + bytes(40), "a GGUF file"),
        ("model.safetensors", struct.pack("<Q", len(safe)) + safe + bytes(4), "a safetensors file"),
        ("model.h5", b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file"),
        ("saved_model.pb", b"\x08\x01\x12\x84\x80\x04" + saved + bytes(70000), "a TensorFlow SavedModel"),
        ("frozen.pb", saved, "a TensorFlow GraphDef"),
        ("model.tflite", b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite file"),
        ("model.ort", b"\x18\0\0\0ORTM" + bytes(40), "an ONNX Runtime .ort file"),
        ("config.json", b'\n {"model_type": "gpt2"}', "a JSON file"),
        ("page.onnx", b"<!DOCTYPE html>\n<html><body>404: not found</body></html>", "a page of HTML"),
        ("model.xml", b'<?xml version="1.0"?>\n<net name="x"></net>', "an XML file"),
        ("model.onnxtxt", b"<\n  ir_version: 8,\n  opset_import: ['' : 17]\n>\n", "ONNX's text format"),
        ("notes.onnx", b"The model is in the other folder.\n", "a text file"),
        ("x.npy", array(1, 1), "a NumPy array"),
        ("image.png", b"\x89PNG\r\n\x1a\n" + bytes(40), "a picture"),
    ]


def files(folder):
    """Files that are there and are refused."""
    for name, content, what in foreign():
        path = write(folder, name, content)
        yield ["run", path], REFUSED, f"onnx-pipe: {path} is {what}"
    with open(MODEL, "rb") as file:
        whole = file.read()
    for n in (20, 1000, len(whole) // 2, len(whole) - 20):
        path = write(folder, "cut.onnx", whole[:n])
        yield ["inspect", path], REFUSED, f"{path}: the file ends at {n} of "
    path = write(folder, "half.onnx", whole[: len(whole) // 2])
    yield ["inspect", path], REFUSED, "bytes: it was cut off, copy or fetch it again"
    yield ["inspect", write(folder, "noise.onnx", bytes(range(7, 250)))], REFUSED, "not an ONNX model"
    yield ["run", MODEL, "--plan", MODEL], REFUSED, MODEL
    yield ["run", folder], USAGE, "model.onnx"


def sizes(folder):
    """Two sizes that were given contradict each other: both are named, no default is spoken of."""
    a, b, c = (write(folder, f"{rows}x{columns}.npy", array(rows, columns)) for rows, columns in ((20, 8), (7, 8), (20, 9)))
    ids = ["run", ENCODER, "--stages", "1", "--input", f"input_ids={a}"]
    yield [*ids, "--input", f"attention_mask={b}"], USAGE, "input_ids has 20 rows, attention_mask 7: both are dimension 'batch'"
    yield [*ids, "--input", f"attention_mask={c}"], USAGE, "input_ids has 8 along axis 1, attention_mask 9 along axis 1: both are dimension 'seq'"
    yield [*ids, "--bind", "batch=3"], USAGE, "input_ids has 20 rows, --bind says batch=3"
    yield ["run", MODEL, "--bind", "batch=2", "--bind", "batch=3"], USAGE, "--bind: dimension 'batch' is 3, and 2 elsewhere"


def check(count, arguments, status, *texts):
    result = run(*arguments)
    good = result.status == status and all(text in result.err for text in texts)
    wrong = f"{result.status}: {(result.err or result.out)[-300:]}"
    said = "it was computed" if any(word in result.out for word in ("output ", "step ")) else None
    count.check(" ".join(arguments)[-120:], result.broken(30, 1024) or (None if good else wrong) or said)
    return result


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        for arguments, meant in NAMES:
            check(count, arguments, USAGE, *([] if meant is None else [f"; did you mean '{meant}'?"]))
        for arguments, text in WRONG:
            check(count, arguments, USAGE, text)
        for arguments, status, text in files(folder):
            check(count, arguments, status, text)
        for arguments, status, text in sizes(folder):
            result = check(count, arguments, status, text)
            count.check("no default is spoken of", "it is" if "default" in result.err else None)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())
