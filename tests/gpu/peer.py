# SPDX-License-Identifier: Apache-2.0
"""PyTorch beside it, where the machine has one: GPT-2 of the same shapes, compiled, attention by its fused kernel, bf16.

    peer.py train SHAPE MICRO SAMPLES TOKENS STEPS autocast|masters    seconds of the steps, as JSON
    peer.py prefill SHAPE TOKENS N                                     seconds of the runs, as JSON
    peer.py decode SHAPE PAST N                                        the same, one token behind a cache
    peer.py gradients SHAPE SAMPLES TOKENS VOCABULARY WEIGHTS IDS FP32 BF16
        distances from its gradients in fp64 over their norm, all parameters together: of its own in bf16 (autocast), and of
        those in two files of safetensors; WEIGHTS as gpt2.py writes them, IDS a .npy file

OPIPE_PEER_DEVICE: another device than cuda. autocast: fp32 parameters, products in bf16. masters: bf16 parameters, fp32 copies of them that AdamW (fused) works on.
"""
import json
import os
import struct
import sys
import time

import gpt2

DEVICE = os.environ.get("OPIPE_PEER_DEVICE", "cuda")


def block_class(torch):
    functional = torch.nn.functional

    class Block(torch.nn.Module):
        def __init__(self, width, heads, past):
            super().__init__()
            self.heads, self.past = heads, past
            if past:
                self.keys, self.values = (torch.nn.Parameter(torch.randn(1, heads, past + 1, width // heads)) for _ in range(2))
            self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.fc, self.out = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            batch, tokens, width = x.shape
            q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2))
            if self.past:
                self.keys[:, :, self.past:].copy_(k)
                self.values[:, :, self.past:].copy_(v)
                k, v = self.keys, self.values
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=not self.past)
            x = x + self.proj(a.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.out(functional.gelu(self.fc(self.norm2(x)), approximate="tanh"))
    return Block


def model_of(torch, shape, tokens, past=0, vocabulary=gpt2.VOCABULARY):
    layers, width, heads = gpt2.SHAPES[shape]
    block = block_class(torch)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(tokens, width)
            self.blocks = torch.nn.ModuleList(block(width, heads, past) for _ in range(layers))
            self.norm = torch.nn.LayerNorm(width)
            self.head = torch.nn.Linear(width, vocabulary, bias=False)
            self.head.weight = self.wte.weight

        def forward(self, ids):
            x = self.wte(ids) + self.wpe.weight
            for one in self.blocks:
                x = one(x)
            return self.head(self.norm(x))
    torch.manual_seed(1)
    made = Model()
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    return made.to(DEVICE)


def settle(torch):
    """Waits until all is done that was queued."""
    torch.zeros(1, device=DEVICE).item()


def train(torch, shape, micro, samples, tokens, steps, way):
    model = model_of(torch, shape, tokens)
    masters = None
    if way == "masters":
        masters = [parameter.detach().clone() for parameter in model.parameters()]
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(masters or model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, gpt2.VOCABULARY, (samples, tokens), device=DEVICE)

    def loss_of(batch):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=masters is None):
            logits = model(batch)
        return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, gpt2.VOCABULARY).float(), batch[:, 1:].reshape(-1))

    compiled = torch.compile(loss_of)
    seconds, losses = [], []
    for _ in range(steps):
        settle(torch)
        began, total = time.perf_counter(), 0
        for first in range(0, samples, micro):
            loss = compiled(ids[first:first + micro]) * (micro / samples)
            loss.backward()
            total = total + loss.detach()
        if masters is not None:
            for master, parameter in zip(masters, model.parameters()):
                master.grad = parameter.grad.float()
                parameter.grad = None
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if masters is not None:
            with torch.no_grad():
                torch._foreach_copy_(list(model.parameters()), masters)
        losses.append(float(total))
        settle(torch)
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "losses": losses}


def serve(torch, shape, tokens, n, past=0):
    model = model_of(torch, shape, tokens, past).bfloat16().eval()
    ids = torch.randint(0, gpt2.VOCABULARY, (1, tokens), device=DEVICE)
    seconds = []
    with torch.inference_mode():
        likeliest = torch.compile(lambda x: model(x).argmax(-1), mode="reduce-overhead")
        for _ in range(n + 5):
            settle(torch)
            began = time.perf_counter()
            likeliest(ids).cpu()
            seconds.append(time.perf_counter() - began)
    return {"seconds": seconds[5:]}


# ---- gradients ----

def places(model, layers):
    """[(parameter, whether it is turned)] in the order of gpt2.names: layers' weights are [outputs, inputs] here."""
    out = [(model.wte.weight, False), (model.wpe.weight, False)]
    for block in model.blocks[:layers]:
        for part in (block.norm1, block.qkv, block.proj, block.norm2, block.fc, block.out):
            out += [(part.weight, part.weight.dim() == 2), (part.bias, False)]
    return out + [(model.norm.weight, False), (model.norm.bias, False)]


def fill(torch, model, layout, path):
    with open(path, "rb") as file:
        body = torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
    at = 0
    with torch.no_grad():
        for (_, shape), (parameter, turned) in zip(layout, places(model, len(model.blocks))):
            n = parameter.numel()
            values = body[at:at + n].reshape(shape)
            parameter.copy_(values.t() if turned else values)
            at += n
    if at != body.numel():
        raise SystemExit("%s has %d numbers, the model %d" % (path, body.numel(), at))


def safetensors(torch, path):
    with open(path, "rb") as file:
        body = file.read()
    (n,) = struct.unpack("<Q", body[:8])
    head = json.loads(body[8:8 + n])
    return {name: torch.frombuffer(bytearray(body[8 + n + one["data_offsets"][0]:8 + n + one["data_offsets"][1]]),
                                   dtype={"F32": torch.float32, "BF16": torch.bfloat16}[one["dtype"]]).double()
            for name, one in head.items() if name != "__metadata__"}


def gradients(torch, shape, samples, tokens, vocabulary, weights, ids_path, *ours):
    layout = gpt2.names(shape, tokens, vocabulary)
    with open(ids_path, "rb") as file:
        ids = torch.frombuffer(bytearray(file.read()[-8 * samples * tokens:]), dtype=torch.int64).reshape(samples, tokens).to(DEVICE)

    def grown(double):
        model = model_of(torch, shape, tokens, vocabulary=vocabulary)
        model = model.double() if double else model
        fill(torch, model, layout, weights)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not double):
            logits = model(ids)
        scores = logits[:, :-1].reshape(-1, vocabulary)
        loss = torch.nn.functional.cross_entropy(scores if double else scores.float(), ids[:, 1:].reshape(-1))
        loss.backward()
        return {name: (one.grad.t() if turned else one.grad).reshape(-1).double().cpu()
                for (name, _), (one, turned) in zip(layout, places(model, len(model.blocks)))}

    truth = grown(True)
    size = sum(float(x.square().sum()) for x in truth.values()) ** 0.5

    def far(found):
        return sum(float((found[name] - x).square().sum()) for name, x in truth.items()) ** 0.5 / size
    return {"PyTorch bf16": far(grown(False)), **{"ours " + what: far(safetensors(torch, path)) for what, path in zip(("fp32", "bf16"), ours)}}


def main():
    import torch  # only here: the machine may have none
    torch.set_float32_matmul_precision("high")
    if sys.argv[1] == "train":
        said = train(torch, sys.argv[2], *(int(x) for x in sys.argv[3:7]), sys.argv[7])
    elif sys.argv[1] == "gradients":
        said = gradients(torch, sys.argv[2], *(int(x) for x in sys.argv[3:6]), *sys.argv[6:])
    elif sys.argv[1] == "prefill":
        said = serve(torch, sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        said = serve(torch, sys.argv[2], 1, int(sys.argv[4]), int(sys.argv[3]))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
