#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server with OpenAI's route /v1/completions over one session, by the standard library alone.

Prompts are lists of token ids, and so are answers ("token_ids"; "text" has the same numbers): this host has no
tokenizer. /v1/models lists the model. All clients share the session, so their rows go through the stages
together. The classes mirror opipe/generate.h and opipe/planning.h, as far as they are used.

usage: serve.py LIBRARY MODEL [--stages N] [--context N] [--host 127.0.0.1] [--port 8000]
"""
import argparse
import ctypes as c
import http.server
import itertools
import json
import os
import queue
import re
import select
import socket
import sys
import time

U16, U32, U64, I32, I64, PTR, TEXT = c.c_uint16, c.c_uint32, c.c_uint64, c.c_int32, c.c_int64, c.c_void_p, c.c_char_p
E_LIMIT, E_CANCELLED, STOP, FAILED, CANCELLED, NO_ID = -8, -10, 1, 4, 5, 2**32 - 1
BODY_MOST, LONE_SECONDS = 4 << 20, 0.05  # between two looks whether the client is still there


def struct(title, /, **fields):
    return type(title, (c.Structure,), {"_fields_": list(fields.items())})


# fmt: off
Error = struct("Error", struct_size=U32, status=I32, domain=U32, native=I32, message=c.c_char * 496)
View = struct("View", struct_size=U32, abi_major=U16, abi_minor=U16, structs=PTR, n_structs=U32, row_bytes=U32)
Load = struct("Load", struct_size=U32, flags=U32, path=TEXT, data=PTR, n_bytes=U64, base_dir=TEXT, memory_bytes=U64)
Generation = struct("Generation", struct_size=U32, context=U32, n_tokens=U64, page=U32, rows=U32, active=U32, groups=U32,
                    draft=U32, reserved=U32, gap_passes=c.c_double, gap_ms=c.c_double, output=TEXT)
Plan = struct("Plan", struct_size=U32, n_stages=U32, devices=PTR, n_devices=U32, devices_stride=U32, n_microbatches=U32,
              replicas=U32, schedule=TEXT, cut=TEXT, batch_dim=TEXT, memory_bytes=U64, depth=U32, cost=U32, flags=U32,
              n_ranks=U32, transport=TEXT, train=PTR, costs=PTR, stage_replicas=PTR, n_stage_replicas=U32, reserved=U32,
              descriptions=PTR, n_descriptions=U32, descriptions_stride=U32, link=PTR, cluster=PTR, cluster_bytes=U64,
              cluster_name=TEXT, states=PTR, n_states=U32, states_stride=U32, n_streams=U32, reserved2=U32, team=PTR,
              places=PTR, n_places=U32, tensor=U32, offload=TEXT, offload_bytes=U64, generation=c.POINTER(Generation))
Likely = struct("Likely", id=U32, reserved=U32, logprob=c.c_double)
Token = struct("Token", id=U32, position=U32, n_likely=U32, likely_stride=U32, logprob=c.c_double, likely=c.POINTER(Likely))
OnToken = c.CFUNCTYPE(I32, PTR, PTR, c.POINTER(Token), c.POINTER(Error))
OnAnswer = c.CFUNCTYPE(None, PTR, PTR, PTR, c.POINTER(PTR))
OnEnd = c.CFUNCTYPE(None, PTR, PTR, U32, c.POINTER(Error))
Generate = struct("Generate", struct_size=U32, n_ids=U32, ids=c.POINTER(U32), sampling=TEXT, salt=U64, deadline_ns=U64,
                  ctx=PTR, on_token=OnToken, on_logits=PTR, on_answer=OnAnswer, on_end=OnEnd)
Info = struct("Info", struct_size=U32, rows=U32, groups=U32, page=U32, n_pages=U32, context=U32, n_sequences=U32,
              n_active=U32, n_vocab=U32, dtype=U32, open=U32, waiting=U32, active=U32, in_flight=U32, free_pages=U32,
              kept_pages=U32, passes=U64, computed=U64, tokens=U64, asked=U64, reused=U64, evicted=U64, forgotten=U64,
              copied=U64, drafted=U64, accepted=U64, working_ns=U64, bubble=c.c_double)
# fmt: on
TABLE = """
  context_create context_destroy context_register_static context_plugins model_load model_destroy model_bind model_info
  model_input model_output model_dim model_describe plan_make plan_read plan_write plan_describe plan_annotate plan_info
  plan_memory plan_cut_tensor plan_destroy session_open session_close session_submit request_poll request_wait
  request_cancel request_output request_release session_drive session_fd session_memory session_info session_train_step
  session_flush session_evaluate request_report session_parameter session_get session_set session_save session_load
  session_save_model session_save_gradients model_describe_training schedule_list order_make order_read order_destroy
  order_info order_lower order_check order_simulate order_draw order_write session_trace session_clock
  session_set_clock session_try_save session_state_open state_close state_reset state_copy state_get session_wait_room
  model_build model_write cluster_find order_play plan_play profile_of_model profile_of_arch profile_read
  profile_destroy profile_describe profile_info profile_layer strategy_make strategy_destroy strategy_describe
  strategy_info strategy_stage strategy_play strategy_plan plans_compare cluster_of_machine strategy_ranked
  request_queued plan_tune plan_file_play plan_training model_check_target session_submit_wait session_flags_set
  session_read team_open team_close team_info team_describe team_gather team_check team_moved team_abort team_stop
  team_step plan_share session_needs session_follow session_generate session_generation sequence_append sequence_fork
  sequence_truncate sequence_draft sequence_cancel sequence_wait sequence_info sequence_ids sequence_release
""".split()  # the slots of opipe_api, in their order
Table = struct("Table", size=U32, major=U16, minor=U16, version=TEXT, **{name: PTR for name in TABLE})


class Refused(Exception):
    """An error for the client: its HTTP status, text, and the member that is wrong."""

    def __init__(self, status, message, param=None):
        super().__init__(message)
        self.status, self.param = status, param

    def shape(self):
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": None}}


class Failed(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def sized(kind, **fields):
    return kind(struct_size=c.sizeof(kind), **fields)


class Library:
    def __init__(self, path):
        library, table, error = c.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL), c.POINTER(Table)(), sized(Error)
        # No layout fingerprints: nothing was compiled, the structs above are vouched for.
        if library.opipe_get_api(c.byref(sized(View, abi_major=1, abi_minor=5)), c.byref(table), c.byref(error)) != 0:
            raise Failed(error.status, error.message.decode())
        self.table = table.contents

    def call(self, name, *arguments):
        """Arguments are pointers all; the error is the last."""
        error = sized(Error)
        function = c.CFUNCTYPE(I32, *[PTR] * (len(arguments) + 1))(getattr(self.table, name))
        status = function(*(c.cast(a, PTR) if a is not None else None for a in arguments), c.byref(error))
        if status < 0:
            raise Failed(status, error.message.decode(errors="replace"))

    def make(self, name, *arguments):
        handle = PTR()
        self.call(name, *arguments, c.byref(handle))
        return handle

    def give_back(self, name, handle):
        c.CFUNCTYPE(None, PTR)(getattr(self.table, name))(handle)


class Turn:
    """One request: its answers' handles and events (index, kind, content), which the session's thread puts here."""

    def __init__(self):
        self.events, self.handles, self.keys = queue.SimpleQueue(), [], []


class Engine:
    """One session; submit and leave may be called by many threads."""

    def __init__(self, library, path, stages, context):
        self.library, self.handles, self.turns, self.numbers = library, [], {}, itertools.count(1)
        # Callbacks only look up and put: they must take no lock that a caller of the library holds.
        self.calls = OnToken(self.on_token), OnAnswer(self.on_answer), OnEnd(self.on_end)
        self.context = self.keep("context_destroy", library.make("context_create", None))
        model = self.keep("model_destroy", library.make("model_load", self.context, c.byref(sized(Load, path=path.encode()))))
        generation = sized(Generation, context=context)
        plan = sized(Plan, n_stages=stages, generation=c.pointer(generation))
        plan = self.keep("plan_destroy", library.make("plan_make", model, c.byref(plan)))
        self.session = self.keep("session_close", library.make("session_open", self.context, plan, None))

    def keep(self, destroy, handle):
        self.handles.append((destroy, handle))
        return handle

    def info(self):
        info = sized(Info)
        self.library.call("session_generation", self.session, c.byref(info))
        return info

    def on_token(self, key, sequence, token, error):
        turn, index = self.turns.get(key, (None, 0))
        if turn is None:
            return E_CANCELLED
        t = token.contents
        likely = [(t.likely[i].id, t.likely[i].logprob) for i in range(t.n_likely)]
        turn.events.put((index, "token", (t.id, t.logprob, likely)))
        return 0

    def add(self, turn):
        key = next(self.numbers)
        self.turns[key] = turn, len(turn.keys)
        turn.keys.append(key)
        return key

    def on_answer(self, key, sequence, answer, io_ctx):
        turn, _ = self.turns[key]  # it is there until the first answer is released
        turn.handles.append(PTR(answer))
        io_ctx[0] = self.add(turn)

    def on_end(self, key, sequence, reason, why):
        turn, index = self.turns.get(key, (None, 0))
        if turn is not None:
            text = why.contents.message.decode(errors="replace") if reason == FAILED else ""
            turn.events.put((index, "end", (reason, text)))

    def submit(self, ids, sampling):
        turn = Turn()
        key = self.add(turn)
        given = (U32 * len(ids))(*ids)
        params = sized(Generate, n_ids=len(ids), ids=given, sampling=json.dumps(sampling).encode(), ctx=key,
                       on_token=self.calls[0], on_answer=self.calls[1], on_end=self.calls[2])
        try:
            first = self.library.make("session_generate", self.session, c.byref(params))
        except Failed as error:
            self.forget(turn)
            info = self.info()
            full = error.status == E_LIMIT and info.open + sampling["n"] > info.n_sequences
            raise Refused(503 if full else 400, str(error)) from None
        turn.first = first
        return turn

    def forget(self, turn):
        for key in turn.keys:
            self.turns.pop(key, None)

    def leave(self, turn):
        """Ends what still runs. The first goes first: answers begin only while it has a turn."""
        self.library.give_back("sequence_release", turn.first)
        for handle in turn.handles:
            self.library.give_back("sequence_release", handle)
        self.forget(turn)

    def close(self):
        while self.handles:
            self.library.give_back(*self.handles.pop())


# ---- members of a body ----

SAMPLED = {"temperature": (int, float), "top_p": (int, float), "seed": (int,), "n": (int,), "presence_penalty": (int, float),
           "frequency_penalty": (int, float), "logit_bias": (dict,), "max_tokens": (int,), "logprobs": (int,)}
OTHERS = {"model": (str,), "prompt": (list,), "stop": (list, int), "stream": (bool,), "user": (str,)}
RANGES = {"n": (1, 128), "max_tokens": (1, NO_ID - 1), "logprobs": (0, 20), "temperature": (0, 2), "top_p": (0, 1),
          "presence_penalty": (-2, 2), "frequency_penalty": (-2, 2), "seed": (0, 2**63 - 1)}


def is_id(value):
    return type(value) is int and 0 <= value < NO_ID


def checked(body):
    """Ids, sampling as generate.h has it, and whether to stream."""
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    body = {key: value for key, value in body.items() if value is not None}
    for key, value in body.items():
        types = {**SAMPLED, **OTHERS}.get(key)
        if types is None:
            raise Refused(400, f"{key} is not known here", key)
        if key == "prompt" and isinstance(value, str):
            raise Refused(400, "prompt is a text, and this server has no tokenizer: give a list of token ids", key)
        if type(value) not in types:
            raise Refused(400, f"{key} is {json.dumps(value)[:80]}: {' or '.join(t.__name__ for t in types)} is needed", key)
        if key in RANGES and not RANGES[key][0] <= value <= RANGES[key][1]:
            raise Refused(400, f"{key} is {value}, not in {RANGES[key][0]} to {RANGES[key][1]}", key)
    ids = body.get("prompt", [])
    bad = next((i for i, value in enumerate(ids) if not is_id(value)), None)
    if not ids or bad is not None:
        raise Refused(400, f"element {bad} of prompt is no id" if ids else "prompt has no ids", "prompt")
    sampling = {"n": 1, "max_tokens": 16, **{key: body[key] for key in SAMPLED if key in body}}
    for key in sampling.get("logit_bias", {}):
        if not re.fullmatch("[0-9]{1,10}", key):
            raise Refused(400, f"logit_bias has {key[:80]}: an id is needed", "logit_bias")
    if "stop" in body:  # ids, and lists of ids
        stops = body["stop"] if isinstance(body["stop"], list) else [body["stop"]]
        for stop in stops:
            if not is_id(stop) and not (isinstance(stop, list) and stop and all(map(is_id, stop))):
                raise Refused(400, f"stop has {json.dumps(stop)[:80]}: ids and lists of ids are needed", "stop")
        sampling["stop"] = stops
    return ids, sampling, body.get("stream", False)


def choice(index, tokens, finish, logprobs):
    found = {"index": index, "text": "".join(f"{t[0]} " for t in tokens), "token_ids": [t[0] for t in tokens],
             "logprobs": None, "finish_reason": finish}
    if logprobs:
        found["logprobs"] = {"tokens": [str(t[0]) for t in tokens], "token_logprobs": [t[1] for t in tokens],
                             "top_logprobs": [{str(i): p for i, p in t[2]} for t in tokens]}
    return found


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, timeout = "HTTP/1.1", 60

    def log_message(self, *arguments):
        pass

    def answer(self, status, document):
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection or status >= 400:  # the rest of a bad request may be unread
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def guarded(self, function):
        try:
            try:
                function()
            except Refused as error:
                self.answer(error.status, error.shape())
            except Failed as error:
                self.answer(500, Refused(500, str(error)).shape())
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def do_GET(self):
        self.guarded(self.get)

    def do_POST(self):
        self.guarded(self.post)

    def get(self):
        if self.path != "/v1/models":
            raise Refused(404, f"GET {self.path[:200]}: there are /v1/models and POST /v1/completions")
        one = {"id": self.server.model, "object": "model", "created": self.server.created, "owned_by": "onnx-pipe"}
        self.answer(200, {"object": "list", "data": [one]})

    def post(self):
        if self.path != "/v1/completions":
            raise Refused(404, f"POST {self.path[:200]}: there are GET /v1/models and /v1/completions")
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,18}", length) or int(length) > BODY_MOST:
            raise Refused(400, f"Content-Length is '{length[:40]}', at most {BODY_MOST} are read")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}") from None
        ids, sampling, stream = checked(body)
        if body.get("model") not in (None, self.server.model):
            raise Refused(404, f"model '{body['model'][:200]}': this server has '{self.server.model}'", "model")
        turn = self.server.engine.submit(ids, sampling)
        try:
            (self.stream if stream else self.whole)(turn, ids, sampling)
        finally:
            self.server.engine.leave(turn)

    def events(self, turn, n):
        """Until all answers have ended; ConnectionError when the client has gone."""
        ended = 0
        while ended < n:
            try:
                index, kind, content = turn.events.get(timeout=LONE_SECONDS)
            except queue.Empty:
                readable = select.select([self.connection], [], [], 0)[0]
                if readable and self.connection.recv(1, socket.MSG_PEEK) == b"":
                    raise ConnectionError("the client has gone") from None
                continue
            if kind == "end" and content[0] in (FAILED, CANCELLED):
                raise Refused(500, content[1] or "the session was closed")
            ended += kind == "end"
            yield index, kind, content

    def head(self, kind="text_completion"):
        return {"id": f"cmpl-{next(self.server.numbers)}", "object": kind, "created": int(time.time()),
                "model": self.server.model}

    def whole(self, turn, ids, sampling):
        tokens, ends = [[] for _ in range(sampling["n"])], {}
        for index, kind, content in self.events(turn, sampling["n"]):
            if kind == "token":
                tokens[index].append(content)
            else:
                ends[index] = "stop" if content[0] == STOP else "length"
        n = sum(map(len, tokens))
        choices = [choice(i, t, ends[i], "logprobs" in sampling) for i, t in enumerate(tokens)]
        usage = {"prompt_tokens": len(ids), "completion_tokens": n, "total_tokens": len(ids) + n}
        self.answer(200, {**self.head(), "choices": choices, "usage": usage})

    def stream(self, turn, ids, sampling):
        head = self.head()
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for index, kind, content in self.events(turn, sampling["n"]):
                finish = None if kind == "token" else "stop" if content[0] == STOP else "length"
                one = choice(index, [content] if kind == "token" else [], finish, "logprobs" in sampling)
                self.event(json.dumps({**head, "choices": [one]}))
        except Refused as error:  # the status is sent already
            self.event(json.dumps(error.shape()))
        self.event("[DONE]")

    def event(self, text):
        self.wfile.write(f"data: {text}\n\n".encode())


class Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = False, 128


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("model")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args()
    try:
        engine = Engine(Library(asked.library), asked.model, asked.stages, asked.context)
        server = Server((asked.host, asked.port), Handler)
    except (Failed, OSError) as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 3
    server.engine, server.model = engine, os.path.basename(asked.model)
    server.created, server.numbers = int(time.time()), itertools.count(1)
    print("http://%s:%d" % server.server_address[:2], flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    server.server_close()  # waits for the clients that are being served
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
