# SPDX-License-Identifier: Apache-2.0
"""PyTorch beside it, where the machine has one: GPT-2 of the same shapes, compiled, attention by its fused kernel, bf16.

    peer.py train SHAPE MICRO SAMPLES TOKENS STEPS autocast|masters    seconds of the steps, as JSON
    peer.py prefill SHAPE TOKENS N                                     seconds of the runs, as JSON
    peer.py decode SHAPE PAST N                                        the same, one token behind a cache

autocast: fp32 parameters, products in bf16. masters: bf16 parameters, fp32 copies of them that AdamW (fused) works on.
"""
import json
import sys
import time

import gpt2


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


def model_of(torch, shape, tokens, past=0):
    layers, width, heads = gpt2.SHAPES[shape]
    block = block_class(torch)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = torch.nn.Embedding(gpt2.VOCABULARY, width), torch.nn.Embedding(tokens, width)
            self.blocks = torch.nn.ModuleList(block(width, heads, past) for _ in range(layers))
            self.norm = torch.nn.LayerNorm(width)
            self.head = torch.nn.Linear(width, gpt2.VOCABULARY, bias=False)
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
    return made.cuda()


def settle(torch):
    """Waits until all is done that was queued."""
    torch.zeros(1, device="cuda").item()


def train(torch, shape, micro, samples, tokens, steps, way):
    model = model_of(torch, shape, tokens)
    masters = None
    if way == "masters":
        masters = [parameter.detach().clone() for parameter in model.parameters()]
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(masters or model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, gpt2.VOCABULARY, (samples, tokens), device="cuda")

    def loss_of(batch):
        with torch.autocast("cuda", torch.bfloat16, enabled=masters is None):
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
            torch._foreach_copy_(list(model.parameters()), masters)
        losses.append(float(total))
        settle(torch)
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "losses": losses}


def serve(torch, shape, tokens, n, past=0):
    model = model_of(torch, shape, tokens, past).bfloat16().eval()
    ids = torch.randint(0, gpt2.VOCABULARY, (1, tokens), device="cuda")
    seconds = []
    with torch.inference_mode():
        likeliest = torch.compile(lambda x: model(x).argmax(-1), mode="reduce-overhead")
        for _ in range(n + 5):
            settle(torch)
            began = time.perf_counter()
            likeliest(ids).cpu()
            seconds.append(time.perf_counter() - began)
    return {"seconds": seconds[5:]}


def main():
    import torch  # only here: the machine may have none
    torch.set_float32_matmul_precision("high")
    if sys.argv[1] == "train":
        said = train(torch, sys.argv[2], *(int(x) for x in sys.argv[3:7]), sys.argv[7])
    elif sys.argv[1] == "prefill":
        said = serve(torch, sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        said = serve(torch, sys.argv[2], 1, int(sys.argv[4]), int(sys.argv[3]))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
