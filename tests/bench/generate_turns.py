#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sides of generate.py: onnx-pipe through its command, each peer in a process of its own, which runs this file.

Every side tells tokens per second from the first request to the last token, without loading. A peer makes a few tokens before it is
timed. Answers are as long as asked for: no side stops at an end token.

  genai  ONNX Runtime GenAI's generator: static batches, padded on the left, each as long as its longest answer, of which only the
         tokens that were asked for count
  ort    a loop around ONNX Runtime by IO binding: a step's keys and values are the next step's, the likeliest token by numpy
  llama  the server of llama.cpp (xllamacpp) with a slot for each sequence: all requests at once, over HTTP; weights as GGUF of F32
         or Q4_0

usage: generate_turns.py JOB.json
"""
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CONTEXT, WORDS = 4096, 16000
FORMS = {"fp32": {}, "int4": {"accuracy_level": "4"}}
NUMBERS = {
    "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "num_hidden_layers": 12,
    "intermediate_size": 2048, "vocab_size": WORDS, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "attention_bias": False,
    "mlp_bias": False,
}  # fmt: skip


# ---- models ----


def folder_of(models, form):
    """GenAI's folder of a form, made where it is not there yet."""
    folder = os.path.join(models, f"llama_88m_4k-{form}")
    if not os.path.exists(os.path.join(folder, "model.onnx")):
        write(lambda decoders, source, _: decoders.build(source, folder, form, FORMS[form]))
    return folder


def write(how):
    """how(decoders, folder of the checkpoint, its model): the same weights every time."""
    import tempfile

    sys.path.insert(0, os.path.join(HERE, "..", "real"))
    import decoders

    with tempfile.TemporaryDirectory() as source:
        how(decoders, source, decoders.checkpoint(source, "llama", NUMBERS, 1))


def gguf_of(models, form, packages):
    """The file of llama.cpp with the same weights. packages: where gguf is installed."""
    path = os.path.join(models, f"llama_88m_4k-{form}.gguf")
    if not os.path.exists(path):
        sys.path.append(packages)
        write(lambda _, __, model: write_gguf(path, form, model.state_dict()))
    return path


PARTS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name):
    """llama.cpp's name of a parameter of transformers; None for a head that is the embedding."""
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "lm_head":
        return None
    if parts[1] == "layers":
        return f"blk.{parts[2]}.{PARTS['.'.join(parts[3:])]}.weight"
    return {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[parts[1]]


def turned(rows, heads):
    """Rows of queries or keys for a rotation of neighbours instead of halves."""
    n, width = rows.shape
    return rows.reshape(heads, 2, n // heads // 2, width).swapaxes(1, 2).reshape(n, width)


def write_gguf(path, form, weights):
    import gguf

    writer = gguf.GGUFWriter(path + ".part", "llama")
    heads, keys = NUMBERS["num_attention_heads"], NUMBERS["num_key_value_heads"]
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(NUMBERS["hidden_size"])
    writer.add_block_count(NUMBERS["num_hidden_layers"])
    writer.add_feed_forward_length(NUMBERS["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(keys)
    writer.add_rope_dimension_count(NUMBERS["head_dim"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([b"<unk>", b"<s>", b"</s>"] + [b"w%d" % i for i in range(3, WORDS)])
    writer.add_token_scores([0.0] * WORDS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (WORDS - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    small = gguf.GGMLQuantizationType.Q4_0 if form == "int4" else gguf.GGMLQuantizationType.F32
    for name, tensor in weights.items():
        to = gguf_name(name)
        if to is None:
            continue
        data = tensor.detach().numpy()
        if to.endswith(("attn_q.weight", "attn_k.weight")):
            data = turned(data, heads if "attn_q" in to else keys)
        kind = small if data.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(to, gguf.quants.quantize(data.copy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(path + ".part", path)


# ---- ours ----


def ours(args, form, requests, options, scratch):
    path = os.path.join(scratch, "requests.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in requests)
    command = [args.command, "generate", folder_of(args.models, form), "--requests", path, "--context", str(CONTEXT), "--json", *options]
    return answer_of(command)


def answer_of(command, env=None):
    """The JSON that a command prints."""
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if said.returncode != 0:
        lines = (said.stderr or said.stdout).strip().splitlines() or ["nothing was said"]
        raise RuntimeError(f"{os.path.basename(command[0])} ended with {said.returncode}: {lines[-1][:300]}")
    return json.loads(said.stdout)


# ---- peers ----


def theirs(args, engine, form, requests, scratch, **more):
    """A turn of a peer; more: threads, batch."""
    python, env = sys.executable, dict(os.environ)
    job = {"engine": engine, "folder": folder_of(args.models, form), "requests": requests, **more}
    if engine == "llama":
        if args.llama_missing:
            raise RuntimeError(args.llama_missing)
        job["gguf"] = gguf_of(args.models, form, args.llama_packages)
        python = args.llama
        env.pop("PYTHONPATH", None)
    path = os.path.join(scratch, "job.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(job, file)
    return answer_of([python, "-B", os.path.abspath(__file__), path], env)


def told(requests, began, ended):
    tokens = sum(r["max_tokens"] for r in requests)
    return {"tokens_per_s": tokens / (ended - began), "seconds": ended - began}


def genai(job):
    import numpy as np
    import onnxruntime_genai as og

    config = og.Config(job["folder"])
    config.overlay('{"model":{"decoder":{"session_options":{"intra_op_num_threads":%d,"inter_op_num_threads":1}}}}' % job["threads"])
    model = og.Model(config)

    def generate(batch, tokens):
        longest = max(len(r["ids"]) for r in batch)
        params = og.GeneratorParams(model)
        params.set_search_options(batch_size=len(batch), max_length=longest + tokens, min_length=longest + tokens, do_sample=False)
        generator = og.Generator(model, params)
        padded = [[0] * (longest - len(r["ids"])) + r["ids"] for r in batch]
        generator.append_tokens(np.array(padded, np.int32))
        for _ in range(tokens):
            generator.generate_next_token()

    requests, n = job["requests"], job["batch"]
    generate([{"ids": [5, 6, 7]}], 3)
    began = time.perf_counter()
    for first in range(0, len(requests), n):
        batch = requests[first : first + n]
        generate(batch, max(r["max_tokens"] for r in batch))
    return told(requests, began, time.perf_counter())


def ort(job):
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job["threads"], 1
    session = onnxruntime.InferenceSession(os.path.join(job["folder"], "model.onnx"), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    pasts = [name for name in names if name.startswith("past")]
    presents = [value.name for value in session.get_outputs() if value.name != "logits"]
    empty = np.zeros((1, NUMBERS["num_key_value_heads"], 0, NUMBERS["head_dim"]), np.float32)

    def generate(ids, tokens):
        kept, past, found = [onnxruntime.OrtValue.ortvalue_from_numpy(empty)] * len(pasts), 0, []
        for _ in range(tokens):
            feeds = {"input_ids": np.array([ids], np.int64), "attention_mask": np.ones((1, past + len(ids)), np.int64),
                     "position_ids": np.arange(past, past + len(ids), dtype=np.int64)[None]}  # fmt: skip
            binding = session.io_binding()
            for name in names:
                if name in feeds:
                    binding.bind_cpu_input(name, feeds[name])
            for name, value in zip(pasts, kept):
                binding.bind_ortvalue_input(name, value)
            for name in ("logits", *presents):
                binding.bind_output(name, "cpu")
            session.run_with_iobinding(binding)
            logits, *kept = binding.get_outputs()
            past += len(ids)
            ids = [int(logits.numpy()[0, -1].argmax())]
            found += ids
        return found

    generate([5, 6, 7], 3)
    began = time.perf_counter()
    answers = [generate(r["ids"], r["max_tokens"]) for r in job["requests"]]
    return {**told(job["requests"], began, time.perf_counter()), "ids": answers}


def llama(job):
    import concurrent.futures
    import urllib.request

    import xllamacpp

    requests = job["requests"]
    params = xllamacpp.CommonParams()
    params.model.path = job["gguf"]
    params.n_parallel = len(requests)
    params.n_ctx = len(requests) * (max(len(r["ids"]) + r["max_tokens"] for r in requests) + 8)
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = job["threads"]
    params.warmup = True
    params.hostnames, params.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(params)

    def complete(request):
        body = {"prompt": request["ids"], "n_predict": request["max_tokens"], "ignore_eos": True, "temperature": 0.0, "cache_prompt": False,
                "return_tokens": True}  # fmt: skip
        head = {"Content-Type": "application/json"}
        ask = urllib.request.Request(server.listening_address + "/completion", json.dumps(body).encode(), head)
        with urllib.request.urlopen(ask) as said:
            found = json.loads(said.read())
        if found["tokens_predicted"] != request["max_tokens"]:
            raise RuntimeError(f"llama.cpp made {found['tokens_predicted']} tokens of {request['max_tokens']}")
        return found.get("tokens", [])

    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        list(pool.map(complete, [{"ids": [5, 6, 7], "max_tokens": 3}] * len(requests)))
        began = time.perf_counter()
        answers = list(pool.map(complete, requests))
        ended = time.perf_counter()
    return {**told(requests, began, ended), "ids": answers}


ENGINES = {"genai": genai, "ort": ort, "llama": llama}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    found = ENGINES[job["engine"]](job)
    print(json.dumps(found), file=answers, flush=True)
    os._exit(0)  # servers' threads end with the process


if __name__ == "__main__":
    sys.exit(main())
