/* SPDX-License-Identifier: Apache-2.0 */
/* Models that generate: a request is a prompt, its answers come token by token. The library's
 * thread notes what happens; the instance's thread tells the server. A model whose transactions are
 * decoupled answers with a response for each token and each end; others with one for all.
 */
#include <opipe/helpers.h>
#include <string.h>

#include "adapter.h"

enum { IDS, SAMPLING, N_IN, TOKEN = 0, ANSWER, END, LOGPROB, N_OUT };

static const int64_t free_shape[] = {-1}, one_shape[] = {1};
static const port ports_in[] = {
    [IDS] = {"ids", free_shape, OPIPE_INT64, 1, 0, NULL, false},
    [SAMPLING] = {"sampling", one_shape, OPIPE_STRING, 1, TRI_TYPE_BYTES, "STRING", true}};
static const port ports_out[] = {
    [TOKEN] = {"token", free_shape, OPIPE_INT64, 1, 0, NULL, false},
    [ANSWER] = {"answer", one_shape, OPIPE_INT32, 1, 0, NULL, false},
    [END] = {"end", one_shape, OPIPE_INT32, 1, 0, NULL, false},
    [LOGPROB] = {"logprob", free_shape, OPIPE_FLOAT, 1, 0, NULL, false}};

/* Something that an answer has to tell. */
typedef struct told {
  struct told *next;
  uint32_t answer, end; /* end: OPIPE_END_NONE: a token */
  int64_t id;
  float logprob;
  tri_error *error;
} told;

/* An answer: the context of its callbacks. */
typedef struct voice {
  struct voice *next;
  talk *owner;
  opipe_sequence *sequence;
  uint32_t number;
  bool over; /* it cannot be told any more: there was no memory */
} voice;

struct talk {
  instance *owner;
  talk *next;
  tri_request *request;
  bool wanted[N_OUT];
  voice first, *others; /* in falling order */
  /* Under the instance's lock. */
  told *told, **last;
  uint32_t n_answers, n_open;
  bool submitted; /* `first.sequence` is known */
  /* The instance's thread. */
  host_pool memory;
  int64_t *ids; /* of the only answer, where one response has all: [n], `room` */
  float *logprobs;
  size_t n, room;
  uint32_t end;
  tri_error *error;
  bool cancelled, is_final;
  uint64_t start_ns, compute_start_ns;
};

/* ---- a model ---- */

tri_error *generate_open(served *s) {
  const opipe_api *api = s->maker.api;
  opipe_generation_params generation = {.struct_size = (uint32_t)sizeof generation};
  opipe_device_choice device;
  opipe_plan_params params;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!OPIPE_HAS(api, opipe_api, session_generate))
    return tri_fail(TRI_ERROR_UNSUPPORTED, "onnx-pipe: %s: the library does not generate", s->name);
  if (s->set.common.team != NULL) {
    return tri_fail(TRI_ERROR_UNSUPPORTED,
                    "onnx-pipe: %s: a model that generates is served without a team", s->name);
  }
  if (s->set.common.plan != NULL) {
    return host_make_plan(&s->maker, s->model, &s->plan, &err) < 0 ? tri_fail_with(s->name, &err)
                                                                   : NULL;
  }
  host_plan_params(&s->maker, &device, &params);
  generation.context = s->set.n_context;
  generation.active = s->set.n_active;
  generation.rows = s->set.n_token_rows;
  params.generation = &generation;
  return api->plan_make(s->model, &params, &s->plan, &err) < 0 ? tri_fail_with(s->name, &err)
                                                               : NULL;
}

static tri_error *copy_ports(served *s, const port *from, uint32_t n, port **out) {
  port *ports = host_pool_copy(&s->memory, from, n * sizeof *ports);
  if (ports == NULL)
    return tri_no_memory();
  for (uint32_t i = 0; i < n; ++i) {
    if (ports[i].type_name == NULL)
      ports[i].type = tri_type_of(ports[i].dtype, &ports[i].type_name);
  }
  *out = ports;
  return NULL;
}

tri_error *generate_ports(served *s) {
  s->n_inputs = N_IN;
  s->n_outputs = N_OUT;
  TRI_TRY(copy_ports(s, ports_in, N_IN, &s->inputs));
  return copy_ports(s, ports_out, N_OUT, &s->outputs);
}

/* ---- the library's thread ---- */

static void tell(voice *v, told what) {
  talk *t = v->owner;
  instance *i = t->owner;
  told *own = host_take(sizeof *own);
  (void)pthread_mutex_lock(&i->lock);
  v->over = v->over || own == NULL;
  if (own != NULL) {
    *own = what;
    own->next = NULL;
    *t->last = own;
    t->last = &own->next;
  }
  if (what.end != OPIPE_END_NONE)
    --t->n_open;
  (void)pthread_cond_signal(&i->changed);
  (void)pthread_mutex_unlock(&i->lock);
}

static opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                             opipe_error *err) {
  voice *v = ctx;
  (void)sequence;
  if (v == NULL || v->over)
    return opipe_fail(err, OPIPE_E_NOMEM, "out of memory");
  tell(v, (told){.answer = v->number, .id = token->id, .logprob = (float)token->logprob});
  return OPIPE_OK;
}

static void on_answer(void *ctx, opipe_sequence *sequence, opipe_sequence *answer, void **io_ctx) {
  voice *first = ctx, *v = host_take(sizeof *v);
  talk *t = first->owner;
  (void)sequence;
  *io_ctx = v; /* NULL: its first token is refused */
  if (v == NULL)
    return;
  (void)pthread_mutex_lock(&t->owner->lock);
  *v = (voice){.owner = t, .sequence = answer, .next = t->others, .number = t->n_answers++};
  t->others = v;
  ++t->n_open;
  (void)pthread_mutex_unlock(&t->owner->lock);
}

static void on_end(void *ctx, opipe_sequence *sequence, uint32_t reason, const opipe_error *why) {
  voice *v = ctx;
  (void)sequence;
  if (v == NULL)
    return;
  told what = {.answer = v->number, .end = reason};
  if (reason == OPIPE_END_FAILED)
    what.error = tri_fail_with(v->owner->owner->s->name, why);
  if (reason == OPIPE_END_CANCELLED)
    what.error = tri_fail(TRI_ERROR_CANCELLED, "onnx-pipe: the request was cancelled");
  tell(v, what);
}

/* ---- responses ---- */

static tri_error *add_output(talk *t, tri_response *response, uint32_t index, const void *data,
                             int64_t n) {
  const port *p = &t->owner->s->outputs[index];
  const uint64_t n_bytes = (uint64_t)n * opipe_dtype_row_of(p->dtype)->bits / 8;
  tri_output *output = NULL;
  void *to = NULL;
  int memory = TRI_MEMORY_CPU;
  int64_t memory_id = 0;
  if (!t->wanted[index])
    return NULL;
  TRI_TRY(tri.ResponseOutput(response, &output, p->name, p->type, &n, 1));
  TRI_TRY(tri.OutputBuffer(output, &to, n_bytes, &memory, &memory_id));
  if (memory == TRI_MEMORY_GPU) {
    return tri_fail(TRI_ERROR_UNSUPPORTED, "onnx-pipe: output '%s' is asked for in GPU memory",
                    p->name);
  }
  if (n_bytes > 0)
    memcpy(to, data, n_bytes);
  return NULL;
}

/* One response; the last of the request if `flags` says so. error: instead of outputs; NULL: none.
 */
static void respond(talk *t, uint32_t answer, uint32_t end, const int64_t *ids,
                    const float *logprobs, size_t n, uint32_t flags, tri_error *error) {
  const int32_t numbers[] = {(int32_t)answer, (int32_t)end};
  tri_response *response = NULL;
  tri_error *own = tri.ResponseNew(&response, t->request);
  if (own != NULL) {
    tri_drop(own, "ResponseNew");
    return;
  }
  if (error == NULL)
    own = add_output(t, response, TOKEN, ids, (int64_t)n);
  if (error == NULL && own == NULL)
    own = add_output(t, response, ANSWER, &numbers[0], 1);
  if (error == NULL && own == NULL)
    own = add_output(t, response, END, &numbers[1], 1);
  if (error == NULL && own == NULL)
    own = add_output(t, response, LOGPROB, logprobs, (int64_t)n);
  tri_drop(tri.ResponseSend(response, flags, error != NULL ? error : own), "ResponseSend");
  if (own != NULL)
    tri.ErrorDelete(own);
}

/* Adds a token to the only answer, where one response has all. */
static void keep(talk *t, const told *what) {
  if (t->n == t->room) {
    const size_t room = t->room == 0 ? 64 : 2 * t->room;
    int64_t *ids = host_pool_take(&t->memory, room * sizeof *ids);
    float *logprobs = host_pool_take(&t->memory, room * sizeof *logprobs);
    if (ids == NULL || logprobs == NULL) {
      t->error = t->error == NULL ? tri_no_memory() : t->error;
      return;
    }
    if (t->n > 0) {
      memcpy(ids, t->ids, t->n * sizeof *ids);
      memcpy(logprobs, t->logprobs, t->n * sizeof *logprobs);
    }
    t->ids = ids, t->logprobs = logprobs, t->room = room;
  }
  t->ids[t->n] = what->id;
  t->logprobs[t->n++] = what->logprob;
}

static void say(talk *t, told *what, bool last) {
  const bool ends = what->end != OPIPE_END_NONE, apart = t->owner->s->is_decoupled;
  if (what->error != NULL && t->error != NULL) {
    tri.ErrorDelete(what->error);
  } else if (what->error != NULL) {
    t->error = what->error;
  } else if (!apart && ends) {
    t->end = what->end;
  } else if (!apart) {
    keep(t, what);
  } else if (!last || t->error == NULL) {
    respond(t, what->answer, what->end, &what->id, &what->logprob, ends ? 0 : 1,
            last ? TRI_SEND_FINAL : 0, NULL);
    t->is_final = last;
  }
  host_give(what);
}

static void report(talk *t, bool good) {
  const uint64_t end_ns = now_ns();
  tri_drop(tri.ModelInstanceReportStatistics(t->owner->handle, t->request, good, t->start_ns,
                                             t->compute_start_ns, end_ns, end_ns),
           "ModelInstanceReportStatistics");
  if (good) {
    tri_drop(tri.ModelInstanceReportBatchStatistics(t->owner->handle, 1, t->start_ns,
                                                    t->compute_start_ns, end_ns, end_ns),
             "ModelInstanceReportBatchStatistics");
  }
}

/* All answers have ended and been told: the request's last response, and its end. */
static void finish(talk *t) {
  const opipe_api *api = t->owner->s->maker.api;
  if (!t->is_final && t->error == NULL && t->owner->s->is_decoupled)
    t->error = tri_no_memory(); /* for its end */
  if (!t->is_final)
    respond(t, 0, t->end, t->ids, t->logprobs, t->n, TRI_SEND_FINAL, t->error);
  report(t, t->error == NULL);
  if (t->error != NULL)
    tri.ErrorDelete(t->error);
  tri_drop(tri.RequestRelease(t->request, TRI_RELEASE_ALL), "RequestRelease");
  api->sequence_release(t->first.sequence);
  while (t->others != NULL) {
    voice *v = t->others;
    t->others = v->next;
    api->sequence_release(v->sequence);
    host_give(v);
  }
  host_pool_free(&t->memory);
  host_give(t);
}

/* ---- the instance's thread ---- */

static void take_out(talk **list, const talk *t) {
  while (*list != t)
    list = &(*list)->next;
  *list = t->next;
}

static void look(talk *t) {
  const opipe_api *api = t->owner->s->maker.api;
  bool is_cancelled = false;
  tri_drop(tri.RequestIsCancelled(t->request, &is_cancelled), "RequestIsCancelled");
  if (!is_cancelled || t->cancelled)
    return;
  t->cancelled = true;
  (void)api->sequence_cancel(t->first.sequence, NULL); /* no answers begin any more */
  for (const voice *v = t->others; v != NULL; v = v->next)
    (void)api->sequence_cancel(v->sequence, NULL);
}

/* Only this thread takes talks out: one stays while it looks without the lock. */
static void look_around(instance *i) {
  for (talk *t = i->talks; t != NULL; t = t->next) {
    if (!t->submitted)
      continue;
    (void)pthread_mutex_unlock(&i->lock);
    look(t);
    (void)pthread_mutex_lock(&i->lock);
  }
}

/* Tells the server. over: it is all that comes. */
static void serve(talk *t, told *list, bool over) {
  while (list != NULL) {
    told *what = list;
    list = what->next;
    say(t, what, over && list == NULL);
  }
  if (over)
    finish(t);
}

void generate_run(instance *i) {
  while (!i->stop || i->talks != NULL) {
    talk *t = i->talks;
    while (t != NULL && (!t->submitted || (t->told == NULL && t->n_open > 0)))
      t = t->next;
    if (t != NULL) {
      told *list = t->told;
      const bool over = t->n_open == 0;
      t->told = NULL;
      t->last = &t->told;
      if (over) {
        take_out(&i->talks, t);
        ++i->n_ended;
      }
      (void)pthread_mutex_unlock(&i->lock);
      serve(t, list, over);
      (void)pthread_mutex_lock(&i->lock);
      if (over)
        (void)pthread_cond_broadcast(&i->room);
    } else if (instance_sleep(i, i->talks != NULL)) {
      look_around(i);
    }
  }
}

/* ---- a request ---- */

static tri_error *read_ids(talk *t, uint32_t **out, uint32_t *out_n) {
  const port *p = &t->owner->s->inputs[IDS];
  seen_input in;
  TRI_TRY(input_see(p, t->request, &in));
  const size_t n = (size_t)(in.n_bytes / sizeof(int64_t));
  int64_t *wide = host_pool_take(&t->memory, in.n_bytes + 1);
  uint32_t *ids = host_pool_take(&t->memory, (n + 1) * sizeof *ids);
  if (wide == NULL || ids == NULL)
    return tri_no_memory();
  TRI_TRY(input_copy(p, &in, (char *)wide));
  for (size_t i = 0; i < n; ++i) {
    if (wide[i] < 0 || wide[i] >= UINT32_MAX) {
      return tri_fail(TRI_ERROR_INVALID_ARG, "onnx-pipe: input 'ids' has %lld at place %zu: no id",
                      (long long)wide[i], i);
    }
    ids[i] = (uint32_t)wide[i];
  }
  *out = ids;
  *out_n = (uint32_t)n;
  return NULL;
}

/* A string of the server's: its length in 4 bytes, then its bytes. *out stays NULL: not given. */
static tri_error *read_sampling(talk *t, const char **out) {
  const port *p = &t->owner->s->inputs[SAMPLING];
  seen_input in = {NULL};
  uint32_t n = 0;
  tri_error *absent = tri.RequestInput(t->request, p->name, &in.input);
  if (absent != NULL) {
    tri.ErrorDelete(absent);
    return NULL;
  }
  TRI_TRY(tri.InputProperties(in.input, NULL, NULL, NULL, NULL, &in.n_bytes, &in.n_buffers));
  char *text = host_pool_take(&t->memory, in.n_bytes + 1);
  if (text == NULL)
    return tri_no_memory();
  TRI_TRY(input_copy(p, &in, text));
  if (in.n_bytes >= sizeof n)
    memcpy(&n, text, sizeof n);
  if (in.n_bytes != sizeof n + (uint64_t)n || memchr(text + sizeof n, '\0', n) != NULL) {
    return tri_fail(TRI_ERROR_INVALID_ARG,
                    "onnx-pipe: input 'sampling' has %llu bytes: one text is needed",
                    (unsigned long long)in.n_bytes);
  }
  *out = text + sizeof n;
  return NULL;
}

static tri_error *read_wanted(talk *t) {
  const served *s = t->owner->s;
  uint32_t n = 0;
  TRI_TRY(tri.RequestOutputCount(t->request, &n));
  for (uint32_t k = 0; k < n; ++k) {
    const char *name = NULL;
    TRI_TRY(tri.RequestOutputName(t->request, k, &name));
    for (uint32_t o = 0; o < N_OUT; ++o)
      t->wanted[o] = t->wanted[o] || strcmp(s->outputs[o].name, name) == 0;
  }
  return NULL;
}

/* Is it only that too many sequences are open? Then sleeps until one of this instance's requests
 * has ended. false: waiting does not help. */
static bool wait_room(instance *i, opipe_session *session, uint32_t n_ids) {
  opipe_generation_info info = {.struct_size = (uint32_t)sizeof info};
  if (i->s->maker.api->session_generation(session, &info, NULL) < 0 || n_ids >= info.context ||
      n_ids >= (uint64_t)info.n_pages * info.page)
    return false;
  (void)pthread_mutex_lock(&i->lock);
  const uint64_t n_ended = i->n_ended;
  bool waits = i->talks != NULL;
  while (waits && i->talks != NULL && i->n_ended == n_ended)
    (void)pthread_cond_wait(&i->room, &i->lock);
  (void)pthread_mutex_unlock(&i->lock);
  return waits;
}

/* From here on the instance's thread ends it. */
static void launch(talk *t) {
  instance *i = t->owner;
  (void)pthread_mutex_lock(&i->lock);
  talk **at = &i->talks;
  while (*at != NULL)
    at = &(*at)->next;
  *at = t;
  t->submitted = true;
  (void)pthread_cond_signal(&i->changed);
  (void)pthread_mutex_unlock(&i->lock);
}

static tri_error *submit(talk *t) {
  instance *i = t->owner;
  const opipe_api *api = i->s->maker.api;
  opipe_session *session = atomic_load(&i->late.session);
  opipe_generate_params params = {.struct_size = (uint32_t)sizeof params};
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t *ids = NULL;
  opipe_status status = OPIPE_E_LIMIT;
  bool is_cancelled = false;
  TRI_TRY(tri.RequestIsCancelled(t->request, &is_cancelled));
  if (is_cancelled)
    return tri_fail(TRI_ERROR_CANCELLED, "onnx-pipe: the request was cancelled");
  TRI_TRY(read_wanted(t));
  TRI_TRY(read_ids(t, &ids, &params.n_ids));
  TRI_TRY(read_sampling(t, &params.sampling));
  params.ids = ids;
  params.ctx = &t->first;
  params.on_token = on_token;
  params.on_answer = i->s->is_decoupled ? on_answer : NULL; /* one response has one answer */
  params.on_end = on_end;
  t->compute_start_ns = now_ns();
  do {
    status = api->session_generate(session, &params, &t->first.sequence, &err);
  } while (status == OPIPE_E_LIMIT && wait_room(i, session, params.n_ids));
  return status < 0 ? tri_fail_with(i->s->name, &err) : NULL;
}

void generate_take(instance *i, tri_request *request, uint64_t start_ns) {
  talk *t = host_take(sizeof *t);
  if (t == NULL) {
    batch_refuse(i, request, tri_no_memory(), start_ns);
    return;
  }
  *t = (talk){.owner = i,
              .request = request,
              .first = {.owner = t},
              .n_answers = 1,
              .n_open = 1,
              .start_ns = start_ns};
  t->last = &t->told;
  tri_error *error = submit(t);
  if (error == NULL) {
    launch(t);
    return;
  }
  batch_refuse(i, request, error, start_ns);
  host_pool_free(&t->memory);
  host_give(t);
}
