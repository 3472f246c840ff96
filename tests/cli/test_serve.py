#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=60 label=nosan
"""examples/serve.py: answers are those of onnx-pipe generate, streamed or not, for many clients at once; a client that
leaves frees its sequence; bad requests are refused by member and value. Text and chat by a double of GenAI's tokenizer:
whole, in pieces, up to a stop."""
import glob
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from command import BUILD, DATA, DONE, SOURCE, Count, genai_double, need_command, run

MODEL = os.path.join(DATA, "demo", "model.onnx")
SERVE = os.path.join(SOURCE, "tests", "examples", "serve.py")
CLIENTS, TOKENS = 6, 12
CONFIG = {"model": {"type": "gpt2", "context_length": 64, "vocab_size": 256, "eos_token_id": 0, "pad_token_id": 0, "decoder": {
    "filename": "model.onnx", "head_size": 8, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 4, "inputs": {"input_ids": "input_ids", "past_key_names": "k.%d", "past_value_names": "v.%d"},
    "outputs": {"logits": "logits", "present_key_names": "pk.%d", "present_value_names": "pv.%d"}}}, "search": {}}  # fmt: skip
BAD = (
    (400, {"prompt": []}, "prompt has no ids"), (400, {"prompt": [256]}, "id 256 at place 0, the vocabulary has 256"),
    (400, {"prompt": [1] * 64}, "65"), (400, {"prompt": "a text"}, "no tokenizer"), (400, {"prompt": [1, "x"]}, "element 1"),
    (400, {"prompt": [1], "top_p": 1.5}, "top_p is 1.5"), (400, {"prompt": [1], "n": 0}, "n is 0"),
    (400, {"prompt": [1], "beams": 2}, "beams"), (400, {"prompt": [1], "stop": ["x"]}, "stop has"),
    (400, {"prompt": [1], "stream": 1}, "stream is 1"), (400, {"prompt": [1], "n": True}, "n is true"),
    (404, {"prompt": [1], "model": "other"}, "model 'other'"), (400, [1], "JSON object"), (400, b"{", "no JSON"),
)


def ids_of(client):
    return [(7 * client + 3 * i) % 256 for i in range(1 + client)]


def ask(port, body, path="/v1/completions", method="POST"):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        link.request(method, path, body if isinstance(body, bytes) else json.dumps(body))
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    finally:
        link.close()


def tokens(text):
    return json.loads(text)["choices"][0]["token_ids"]


def streamed(text):
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    if lines[-1] != "[DONE]":
        return lines
    return [t for line in lines[:-1] for t in json.loads(line)["choices"][0]["token_ids"]]


def check_equal(count, port):
    options = [word for client in range(CLIENTS) for word in ("--ids", ",".join(map(str, ids_of(client))))]
    r = run("generate", MODEL, *options, "--max-tokens", str(TOKENS), "--context", "64", "--stages", "1", "--json")
    count.check("generate", None if r.status == DONE else r.err)
    wanted = [request["answers"][0]["ids"] for request in json.loads(r.out)["requests"]]
    found = [None] * CLIENTS * 2

    def client(i):
        body = {"prompt": ids_of(i // 2), "max_tokens": TOKENS, "temperature": 0, "stream": i % 2 == 1, "user": "a"}
        status, text = ask(port, body)
        found[i] = (streamed if i % 2 else tokens)(text) if status == 200 else text

    threads = [threading.Thread(target=client, args=(i,)) for i in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, answer in enumerate(found):
        count.check("client %d" % i, None if answer == wanted[i // 2] else "%s, not %s" % (answer, wanted[i // 2]))


def check_sampled(count, port):
    body = {"prompt": [10, 87], "n": 3, "seed": 5, "max_tokens": 8, "logprobs": 2, "logit_bias": {"95": -100}}
    status, text = ask(port, body)
    again = ask(port, body)[1]
    if status != 200:
        count.check("three answers", text)
        return
    choices, other = (json.loads(t)["choices"] for t in (text, again))
    count.check("three answers", None if len(choices) == 3 and choices == other else "%s\n%s" % (text, again))
    count.check("unlike", None if choices[0]["token_ids"] != choices[1]["token_ids"] else text)
    count.check("logprobs", None if all(len(p) == 2 for p in choices[2]["logprobs"]["top_logprobs"]) else text)
    first = choices[0]["token_ids"]
    end = {**body, "n": 1, "stop": [first[3:5]]}
    one = json.loads(ask(port, end)[1])["choices"][0]
    count.check("a stop", None if one["finish_reason"] == "stop" and one["token_ids"] == first[:3] else str(one))


def check_left(count, port):
    """More clients than the session has room for leave one after the other; the next one is served."""
    for i in range(80):
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        link.request("POST", "/v1/completions", json.dumps({"prompt": [i], "max_tokens": 60, "n": 8, "stream": i % 2 == 0}))
        if i % 2 == 0:
            link.getresponse().read(1)
        link.close()
    end = time.monotonic() + 20
    while True:
        status, text = ask(port, {"prompt": [1], "max_tokens": 2})
        if status == 200 or time.monotonic() > end:
            break
        count.check("a full session", None if status == 503 else text)
        time.sleep(0.05)
    count.check("behind clients that left", None if status == 200 else text)


def check_bad(count, port):
    for wanted, body, message in BAD:
        status, text = ask(port, body)
        error = json.loads(text).get("error", {})
        good = status == wanted and message in error.get("message", "") and error["type"] == "invalid_request_error"
        count.check(str(body)[:60], None if good else "%d %s" % (status, text))
    status, text = ask(port, {}, "/v1/other")
    count.check("another route", None if status == 404 and "/v1/other" in text else text)
    status, text = ask(port, b"", "/v1/models", "GET")
    count.check("models", None if json.loads(text)["data"][0]["id"] == "model.onnx" else text)


def check_text(count, port):
    """Texts are the bytes of ids here."""
    body = {"prompt": "The", "max_tokens": 16, "temperature": 0}
    one, same = (json.loads(ask(port, {**body, **more})[1]) for more in ({}, {"prompt": [84, 104, 101]}))
    text, ids = one["choices"][0]["text"], one["choices"][0]["token_ids"]
    count.check("a text", None if one["choices"] == same["choices"] and len(ids) == 16 and len(text) > 3 else "%s %s" % (one, same))
    count.check("usage", None if one["usage"] == {"prompt_tokens": 3, "completion_tokens": 16, "total_tokens": 19} else str(one))
    stop = text[3:5]
    wanted = text[:text.index(stop)]
    for more in ({"stop": stop}, {"stop": ["no such text", stop]}):
        found = json.loads(ask(port, {**body, **more})[1])["choices"][0]
        count.check("a stop %s" % more, None if (found["text"], found["finish_reason"]) == (wanted, "stop") else str(found))
    for more, whole in (({}, text), ({"stop": stop}, wanted), ({"stop": text[-2:] + "?"}, text)):
        lines = streamed_lines(ask(port, {**body, **more, "stream": True, "stream_options": {"include_usage": True}})[1])
        pieces = "".join(choice["text"] for line in lines for choice in line["choices"])
        count.check("pieces %s" % more, None if pieces == whole and lines[-1]["usage"]["prompt_tokens"] == 3 else str(lines))
    many = json.loads(ask(port, {**body, "prompt": ["The", [84, 104], "The"], "n": 2})[1])
    found = [choice["text"] for choice in many["choices"]]
    good = len(found) == 6 and found[0] == found[4] == text and many["usage"]["prompt_tokens"] == 8
    count.check("three prompts", None if good and [c["index"] for c in many["choices"]] == list(range(6)) else str(many))


def streamed_lines(text):
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check_chat(count, port):
    messages, route = [{"role": "user", "content": "Hi"}], "/v1/chat/completions"
    prompt = json.dumps(messages) + "assistant: "
    body = {"messages": messages, "max_completion_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    plain = json.loads(ask(port, {"prompt": prompt, "max_tokens": 12, "temperature": 0})[1])["choices"][0]
    found = json.loads(ask(port, body, route)[1])
    one = found["choices"][0]
    good = one["message"] == {"role": "assistant", "content": plain["text"]} and one["finish_reason"] == "length"
    count.check("a chat", None if good and found["object"] == "chat.completion" else str(found))
    content = one["logprobs"]["content"]
    count.check("logprobs", None if len(content) == 12 and len(content[0]["top_logprobs"]) == 2 else str(content))
    parts = [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]
    lines = streamed_lines(ask(port, {**body, "messages": parts, "stream": True}, route)[1])
    deltas = [line["choices"][0]["delta"] for line in lines]
    pieces = "".join(delta.get("content", "") for delta in deltas)
    good = pieces == plain["text"] and [d.get("role") for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    count.check("a chat in pieces", None if good and lines[0]["object"] == "chat.completion.chunk" else str(lines))
    for wanted, more, message in (
        (400, {"messages": []}, "messages is empty"), (400, {"messages": [{"role": "user"}]}, "messages[0]"),
        (400, {"messages": [{"role": "user", "content": "no template"}]}, "no template for"), (400, {"prompt": [1]}, "prompt is not known"),
        (400, {"logprobs": False}, "top_logprobs needs"), (400, {"stop": list("abcde")}, "5 texts, at most 4"),
        (400, {"messages": [{"role": "user", "content": "x" * 200}]}, "64"), (404, {"model": "other"}, "model 'other'"),
    ):  # fmt: skip
        status, text = ask(port, {**body, **more}, route)
        error = json.loads(text).get("error", {})
        count.check(str(more)[:60], None if status == wanted and message in error.get("message", "") else "%d %s" % (status, text))
    codes = [json.loads(ask(port, {**body, **more}, route)[1])["error"]["code"] for more in (
        {"messages": [{"role": "user", "content": "x" * 200}]}, {"model": "other"})]  # fmt: skip
    count.check("codes", None if codes == ["context_length_exceeded", "model_not_found"] else str(codes))


def serve(count, checks, double, *arguments):
    server = subprocess.Popen([sys.executable, "-B", SERVE, *arguments, "--stages", "2", "--port", "0"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env=dict(os.environ, ONNX_PIPE_GENAI=double, ORT_LIB_PATH=double))
    timer = threading.Timer(50, server.kill)
    timer.start()
    try:
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        for check in checks:
            check(count, port)
        server.send_signal(2)
        _, err = server.communicate()
        count.check("the end", None if server.returncode == 0 and err == "" else "%s %s" % (server.returncode, err))
    finally:
        timer.cancel()
        server.kill()
        server.wait()


def main():
    need_command()
    library = glob.glob(os.path.join(BUILD, "lib*", "libonnxpipe.so"))
    if not library:
        print("SKIP: libonnxpipe.so is not built")
        return 77
    count = Count()
    serve(count, (check_equal, check_sampled, check_bad, check_left), "", library[0], MODEL, "--context", "64")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(MODEL, folder)
        with open(os.path.join(folder, "genai_config.json"), "w", encoding="utf-8") as file:
            json.dump(CONFIG, file)
        double = genai_double(folder)
        serve(count, (check_text, check_chat), double, library[0], folder)
    return count.finish()


sys.exit(main())
