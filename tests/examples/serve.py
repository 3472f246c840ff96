#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server with OpenAI's routes /v1/completions, /v1/chat/completions and /v1/models over one session, by the standard
library alone.

MODEL is a folder of ONNX Runtime GenAI, or a model's file; --tokenizer FOLDER gives a file the tokenizer of such a
folder. Text goes through GenAI's C library: set ONNX_PIPE_GENAI to its libonnxruntime-genai.so and ORT_LIB_PATH to
libonnxruntime.so, or leave them where the loader finds them. Without a tokenizer prompts are lists of token ids, and so
are answers: every choice has "token_ids" beside "text". All clients share the session, so their rows go through the
stages together. The classes mirror opipe/generate.h and opipe/planning.h, as far as they are used.

usage: serve.py LIBRARY MODEL [--tokenizer FOLDER] [--stages N] [--context N] [--host 127.0.0.1] [--port 8000]
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
import threading
import time

U16, U32, U64, I32, SIZE, PTR, TEXT = c.c_uint16, c.c_uint32, c.c_uint64, c.c_int32, c.c_size_t, c.c_void_p, c.c_char_p
E_LIMIT, E_CANCELLED, STOP, FAILED, CANCELLED, NO_ID = -8, -10, 1, 4, 5, 2**32 - 1
BODY_MOST, LONE_SECONDS, STOPS_MOST = 4 << 20, 0.05, 4  # between two looks whether the client is still there


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
Write = c.CFUNCTYPE(I32, PTR, PTR, U64)
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
  genai_describe
""".split()  # the slots of opipe_api, in their order
Table = struct("Table", size=U32, major=U16, minor=U16, version=TEXT, **{name: PTR for name in TABLE})


class Refused(Exception):
    """An error for the client: its HTTP status, text, the member that is wrong, and a code."""

    def __init__(self, status, message, param=None, code=None):
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def shape(self):
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


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


# ---- text ----


class Tokenizer:
    """A folder's, by the C library of ONNX Runtime GenAI. Any thread may call it."""

    def __init__(self, folder):
        try:
            # GenAI's library ends the process where it does not find ONNX Runtime's.
            c.CDLL(os.environ.get("ORT_LIB_PATH", "libonnxruntime.so.1"), mode=os.RTLD_LAZY | os.RTLD_LOCAL)
            self.library = c.CDLL(os.environ.get("ONNX_PIPE_GENAI", "libonnxruntime-genai.so"))
            self.library.OgaTokenizerApplyChatTemplate  # noqa: B018  (the newest of those that are called)
        except (OSError, AttributeError) as error:
            raise Failed(0, f"no tokenizer: {error}; set ONNX_PIPE_GENAI and ORT_LIB_PATH") from None
        self.lock = threading.Lock()
        self.library.OgaResultGetError.restype = TEXT
        self.library.OgaSequencesGetSequenceCount.restype = SIZE
        self.library.OgaSequencesGetSequenceData.restype = c.POINTER(I32)
        self.tokenizer = self.make("OgaCreateTokenizerFromPath", folder.encode())

    def call(self, name, *arguments):
        function = getattr(self.library, name)
        function.restype = PTR
        result = function(*arguments)
        if result:
            message = self.library.OgaResultGetError(PTR(result)).decode(errors="replace")
            self.library.OgaDestroyResult(PTR(result))
            raise Failed(0, f"{name}: {message}")

    def make(self, name, *arguments, kind=PTR):
        made = kind()
        self.call(name, *arguments, c.byref(made))
        return made

    def text(self, name, *arguments):
        """A text that a function gives to its caller."""
        made = self.make(name, *arguments)
        try:
            return c.string_at(made).decode(errors="replace")
        finally:
            self.library.OgaDestroyString(made)

    def encode(self, text):
        with self.lock:
            sequences = self.make("OgaCreateSequences")
            try:
                self.call("OgaTokenizerEncode", self.tokenizer, text.encode(errors="replace"), sequences)
                n = self.library.OgaSequencesGetSequenceCount(sequences, SIZE(0))
                return self.library.OgaSequencesGetSequenceData(sequences, SIZE(0))[:n]
            finally:
                self.library.OgaDestroySequences(sequences)

    def chat(self, messages):
        """The text of a conversation, by the folder's template, up to where the answer begins."""
        text = json.dumps(messages).encode()
        with self.lock:
            return self.text("OgaTokenizerApplyChatTemplate", self.tokenizer, None, text, None, c.c_bool(True))

    def token(self, token):
        with self.lock:
            return self.text("OgaTokenizerDecode", self.tokenizer, c.byref(I32(token)), SIZE(1))


class Spoken:
    """The text of one answer as it comes: what may become one of the stops is held back."""

    def __init__(self, tokenizer, stops):
        self.tokenizer, self.stops, self.held, self.stopped = tokenizer, stops, "", False
        self.stream = tokenizer and tokenizer.make("OgaCreateTokenizerStream", tokenizer.tokenizer)

    def add(self, token):
        if self.stream is None:
            return f"{token} "
        with self.tokenizer.lock:
            piece = self.tokenizer.make("OgaTokenizerStreamDecode", self.stream, I32(token), kind=TEXT).value
        self.held += (piece or b"").decode(errors="replace")
        at = min((i for i in (self.held.find(stop) for stop in self.stops) if i >= 0), default=-1)
        self.stopped = at >= 0
        if at < 0:
            lengths = range(min(len(self.held), max(map(len, self.stops), default=1) - 1), 0, -1)
            kept = next((n for n in lengths if any(stop.startswith(self.held[-n:]) for stop in self.stops)), 0)
            at = len(self.held) - kept
        shown, self.held = self.held[:at], "" if self.stopped else self.held[at:]
        return shown

    def close(self):
        if self.stream is not None:
            self.tokenizer.library.OgaDestroyTokenizerStream(self.stream)
        self.stream = None


# ---- the session ----


class Turn:
    """One prompt: its answers' handles; their events (index, kind, content) are put by the session's thread."""

    def __init__(self, events, base):
        self.events, self.base, self.first, self.handles, self.keys = events, base, None, [], []


class Engine:
    """One session; submit, stop and leave may be called by many threads."""

    def __init__(self, library, path, stages, context):
        self.library, self.handles, self.turns, self.numbers = library, [], {}, itertools.count(1)
        # Callbacks only look up and put: they must take no lock that a caller of the library holds.
        self.calls = OnToken(self.on_token), OnAnswer(self.on_answer), OnEnd(self.on_end)
        self.context, self.stops = self.keep("context_destroy", library.make("context_create", None)), []
        if os.path.isdir(path):
            path, context = self.read_folder(path, context)
        load = sized(Load, path=path.encode())
        model = self.keep("model_destroy", library.make("model_load", self.context, c.byref(load)))
        generation = sized(Generation, context=context or 1024)
        plan = sized(Plan, n_stages=stages, generation=c.pointer(generation))
        plan = self.keep("plan_destroy", library.make("plan_make", model, c.byref(plan)))
        self.session = self.keep("session_close", library.make("session_open", self.context, plan, None))

    def read_folder(self, folder, context):
        """The model's file, the context, and the ids that end an answer."""
        name, parts = os.path.join(folder, "genai_config.json"), []
        with open(name, "rb") as file:
            text = file.read()
        write = Write(lambda _, data, n: parts.append(c.string_at(data, n)) or 0)
        described = c.CFUNCTYPE(I32, PTR, TEXT, U64, TEXT, Write, PTR, PTR)(self.library.table.genai_describe)
        error = sized(Error)
        if described(self.context, text, len(text), name.encode(), write, None, c.byref(error)) < 0:
            raise Failed(error.status, error.message.decode(errors="replace"))
        found = json.loads(b"".join(parts))
        self.stops = found["sampling"].get("stop", [])
        return os.path.join(folder, found["files"][0]), context or found["context"]

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
        self.turns[key] = turn, turn.base + len(turn.keys)
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

    def submit(self, ids, sampling, events, base):
        turn = Turn(events, base)
        key = self.add(turn)
        given = (U32 * len(ids))(*ids)
        params = sized(Generate, n_ids=len(ids), ids=given, sampling=json.dumps(sampling).encode(), ctx=key,
                       on_token=self.calls[0], on_answer=self.calls[1], on_end=self.calls[2])
        try:
            turn.first = self.library.make("session_generate", self.session, c.byref(params))
        except Failed as error:
            self.forget(turn)
            info = self.info()
            full = error.status == E_LIMIT and info.open + sampling["n"] > info.n_sequences
            code = "context_length_exceeded" if error.status == E_LIMIT and not full else None
            raise Refused(503 if full else 400, str(error), None, code) from None
        return turn

    def stop(self, turn, index):
        """Ends an answer whose text is over."""
        self.library.call("sequence_cancel", turn.first if index == turn.base else turn.handles[index - turn.base - 1])

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

NUMBER = (int, float)
SAMPLED = {"temperature": NUMBER, "top_p": NUMBER, "seed": (int,), "n": (int,), "presence_penalty": NUMBER,
           "frequency_penalty": NUMBER, "logit_bias": (dict,)}
COMMON = {**SAMPLED, "model": (str,), "stop": (str, list, int), "stream": (bool,), "stream_options": (dict,), "user": (str,),
          "max_tokens": (int,)}
ROUTES = {"/v1/completions": {**COMMON, "prompt": (str, list), "logprobs": (int,)},
          "/v1/chat/completions": {**COMMON, "messages": (list,), "max_completion_tokens": (int,), "logprobs": (bool,),
                                   "top_logprobs": (int,)}}
RANGES = {"n": (1, 128), "max_tokens": (1, NO_ID - 1), "max_completion_tokens": (1, NO_ID - 1), "logprobs": (0, 20),
          "top_logprobs": (0, 20), "temperature": (0, 2), "top_p": (0, 1), "presence_penalty": (-2, 2),
          "frequency_penalty": (-2, 2), "seed": (0, 2**63 - 1)}


def is_id(value):
    return type(value) is int and 0 <= value < NO_ID


def typed(body, known):
    """The members that are given, each of its type and in its range."""
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    body = {key: value for key, value in body.items() if value is not None}
    for key, value in body.items():
        types = known.get(key)
        if types is None:
            raise Refused(400, f"{key} is not known here", key)
        if type(value) not in types:
            raise Refused(400, f"{key} is {json.dumps(value)[:80]}: {' or '.join(t.__name__ for t in types)} is needed", key)
        if key in RANGES and not RANGES[key][0] <= value <= RANGES[key][1]:
            raise Refused(400, f"{key} is {value}, not in {RANGES[key][0]} to {RANGES[key][1]}", key)
    return body


def text_ids(tokenizer, text, key):
    if tokenizer is None:
        raise Refused(400, f"{key} is a text, and this server has no tokenizer: give a list of token ids", key)
    return tokenizer.encode(text)


def prompts_of(body, tokenizer):
    """Lists of ids: of a text, ids, or a list of either."""
    given = body.get("prompt", [])
    many = given if isinstance(given, list) and given and all(type(p) in (str, list) for p in given) else [given]
    found = []
    for prompt in many:
        ids = text_ids(tokenizer, prompt, "prompt") if isinstance(prompt, str) else prompt
        bad = next((i for i, value in enumerate(ids) if not is_id(value)), None)
        if not ids or bad is not None:
            raise Refused(400, f"element {bad} of prompt is no id" if ids else "prompt has no ids", "prompt")
        found.append(ids)
    return found


def conversation_of(body, tokenizer):
    """Messages as the template reads them: parts of text are joined."""
    if tokenizer is None:
        raise Refused(400, "messages are text, and this server has no tokenizer: use /v1/completions with token ids", "messages")
    messages = body.get("messages", [])
    if not messages:
        raise Refused(400, "messages is empty", "messages")
    found = []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
            content = "".join(part["text"] for part in content)
        if not isinstance(content, str) or not isinstance(message.get("role"), str):
            raise Refused(400, f"messages[{i}]: role and content, a text or parts of text, are needed", f"messages[{i}]")
        found.append({**message, "content": content})
    try:
        return [tokenizer.encode(tokenizer.chat(found))]
    except Failed as error:
        raise Refused(400, f"messages: {error}", "messages") from None


def stops_of(body, tokenizer, ends):
    """Texts that end an answer, and ids or lists of ids."""
    given = body.get("stop", [])
    texts, ids = [], list(ends)
    for stop in given if isinstance(given, list) else [given]:
        if isinstance(stop, str) and stop and tokenizer is not None:
            texts.append(stop)
        elif is_id(stop) or (isinstance(stop, list) and stop and all(map(is_id, stop))):
            ids.append(stop)
        else:
            raise Refused(400, f"stop has {json.dumps(stop)[:80]}: texts (with a tokenizer), ids or lists of ids are needed", "stop")
    if len(texts) > STOPS_MOST:
        raise Refused(400, f"stop has {len(texts)} texts, at most {STOPS_MOST} are possible", "stop")
    return texts, ids


def sampling_of(body, chat, stop_ids):
    """As generate.h has it."""
    found = {"n": 1, **{key: body[key] for key in SAMPLED if key in body}}
    most = body.get("max_completion_tokens", body.get("max_tokens", None if chat else 16))
    if most is not None:
        found["max_tokens"] = most
    logprobs = body.get("top_logprobs", 0) if chat and body.get("logprobs") else None if chat else body.get("logprobs")
    if "top_logprobs" in body and not body.get("logprobs"):
        raise Refused(400, "top_logprobs needs logprobs: true", "top_logprobs")
    if logprobs is not None:
        found["logprobs"] = logprobs
    for key in found.get("logit_bias", {}):
        if not re.fullmatch("[0-9]{1,10}", key):
            raise Refused(400, f"logit_bias has {key[:80]}: an id is needed", "logit_bias")
    if stop_ids:
        found["stop"] = stop_ids
    return found


class Asked:
    """A request that has been read: prompts, sampling, and how its answers are written."""

    def __init__(self, body, chat, tokenizer, ends):
        self.body, self.chat, self.tokenizer = body, chat, tokenizer
        self.prompts = conversation_of(body, tokenizer) if chat else prompts_of(body, tokenizer)
        self.texts, stop_ids = stops_of(body, tokenizer, ends)
        self.sampling = sampling_of(body, chat, stop_ids)
        self.stream, self.n = body.get("stream", False), len(self.prompts) * self.sampling["n"]
        options = body.get("stream_options", {})
        if "stream_options" in body and (not self.stream or set(options) - {"include_usage"}):
            raise Refused(400, "stream_options takes include_usage, with stream: true", "stream_options")
        self.wants_usage = options.get("include_usage") is True
        self.kind = ("chat.completion" + ".chunk" * self.stream) if chat else "text_completion"

    def word(self, token):
        return str(token) if self.tokenizer is None else self.tokenizer.token(token)

    def logprobs(self, tokens):
        if "logprobs" not in self.sampling:
            return None
        if self.chat:
            def one(token, logprob):
                word = self.word(token)
                return {"token": word, "logprob": logprob, "bytes": list(word.encode())}

            return {"content": [{**one(t[0], t[1]), "top_logprobs": [one(*pair) for pair in t[2]]} for t in tokens]}
        return {"tokens": [self.word(t[0]) for t in tokens], "token_logprobs": [t[1] for t in tokens],
                "top_logprobs": [{self.word(i): p for i, p in t[2]} for t in tokens]}

    def choice(self, index, text, tokens, finish, first=False):
        content = {"text": text}
        if self.chat and self.stream:
            content = {"delta": {**({"role": "assistant"} if first else {}), **({"content": text} if text or first else {})}}
        elif self.chat:
            content = {"message": {"role": "assistant", "content": text}}
        return {"index": index, **content, "token_ids": [t[0] for t in tokens], "logprobs": self.logprobs(tokens), "finish_reason": finish}

    def usage(self, n_tokens):
        n = sum(map(len, self.prompts))
        return {"prompt_tokens": n, "completion_tokens": n_tokens, "total_tokens": n + n_tokens}


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
            raise Refused(404, f"GET {self.path[:200]}: there are /v1/models and POST {', '.join(ROUTES)}")
        one = {"id": self.server.model, "object": "model", "created": self.server.created, "owned_by": "onnx-pipe"}
        self.answer(200, {"object": "list", "data": [one]})

    def post(self):
        known, engine = ROUTES.get(self.path), self.server.engine
        if known is None:
            raise Refused(404, f"POST {self.path[:200]}: there are GET /v1/models and {', '.join(ROUTES)}")
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,18}", length) or int(length) > BODY_MOST:
            raise Refused(400, f"Content-Length is '{length[:40]}', at most {BODY_MOST} are read")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}") from None
        body = typed(body, known)
        if body.get("model") not in (None, self.server.model):
            raise Refused(404, f"model '{body['model'][:200]}': this server has '{self.server.model}'", "model", "model_not_found")
        asked = Asked(body, "messages" in known, self.server.tokenizer, engine.stops)
        events, turns, spoken = queue.SimpleQueue(), [], []
        try:
            for ids in asked.prompts:
                turns.append(engine.submit(ids, asked.sampling, events, len(turns) * asked.sampling["n"]))
            spoken += [Spoken(asked.tokenizer, asked.texts) for _ in range(asked.n)]
            (self.stream if asked.stream else self.whole)(asked, self.spoken(asked, events, turns, spoken))
        finally:
            for turn in turns:
                engine.leave(turn)
            for one in spoken:
                one.close()

    def events(self, events, n):
        """Until all answers have ended; ConnectionError when the client has gone."""
        ended = 0
        while ended < n:
            try:
                index, kind, content = events.get(timeout=LONE_SECONDS)
            except queue.Empty:
                readable = select.select([self.connection], [], [], 0)[0]
                if readable and self.connection.recv(1, socket.MSG_PEEK) == b"":
                    raise ConnectionError("the client has gone") from None
                continue
            ended += kind == "end"
            yield index, kind, content

    def spoken(self, asked, events, turns, spoken):
        """(index, text, tokens, finish): what each event adds to an answer; finish None: it goes on."""
        for index, kind, content in self.events(events, asked.n):
            own = spoken[index]
            if kind == "token" and not own.stopped:
                text = own.add(content[0])
                if own.stopped:
                    self.server.engine.stop(turns[index // asked.sampling["n"]], index)
                yield index, text, [content], None
            elif kind == "end":
                if content[0] in (FAILED, CANCELLED) and not own.stopped:
                    raise Refused(500, content[1] or "the session was closed")
                yield index, own.held, [], "stop" if own.stopped or content[0] == STOP else "length"

    def head(self, asked):
        letters = "chatcmpl" if asked.chat else "cmpl"
        return {"id": f"{letters}-{next(self.server.numbers)}", "object": asked.kind, "created": int(time.time()), "model": self.server.model}

    def whole(self, asked, spoken):
        texts, tokens, ends = [""] * asked.n, [[] for _ in range(asked.n)], [None] * asked.n
        for index, text, more, finish in spoken:
            texts[index] += text
            tokens[index] += more
            ends[index] = finish
        choices = [asked.choice(i, *all_of) for i, all_of in enumerate(zip(texts, tokens, ends))]
        self.answer(200, {**self.head(asked), "choices": choices, "usage": asked.usage(sum(map(len, tokens)))})

    def stream(self, asked, spoken):
        head, n, begun = self.head(asked), 0, set()
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for index, text, more, finish in spoken:
                n += len(more)
                self.event({**head, "choices": [asked.choice(index, text, more, finish, index not in begun)]})
                begun.add(index)
            if asked.wants_usage:
                self.event({**head, "choices": [], "usage": asked.usage(n)})
        except (Refused, Failed) as error:  # the status is sent already
            self.event((error if isinstance(error, Refused) else Refused(500, str(error))).shape())
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, document):
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())


class Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = False, 128


def tokenizer_of(folder, model):
    """A folder's; without one that is asked for, a model's folder is served by ids where the library is not there."""
    if folder is None and not os.path.isdir(model):
        return None
    try:
        return Tokenizer(folder or model)
    except Failed as error:
        if folder is not None:
            raise
        print(f"serve.py: prompts are ids: {error}", file=sys.stderr)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("model")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--tokenizer", help="a folder of ONNX Runtime GenAI; default: MODEL, if it is one")
    parser.add_argument("--context", type=int, default=0, help="ids of a sequence; default: the folder's, or 1024")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args()
    try:
        engine = Engine(Library(asked.library), asked.model, asked.stages, asked.context)
        tokenizer = tokenizer_of(asked.tokenizer, asked.model)
        server = Server((asked.host, asked.port), Handler)
    except (Failed, OSError) as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 3
    server.engine, server.model, server.tokenizer = engine, os.path.basename(os.path.normpath(asked.model)), tokenizer
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
