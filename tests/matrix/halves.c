/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions with some of a plan's ranks each; see halves.h. */
#include "tests/matrix/halves.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { REQUESTS = 5, CLASSES = 32, TOKENS = 8 };

const mx_split mx_splits[] = {
    {2, 2, {0, 1}},       {4, 2, {0, 0, 1, 1}}, {4, 2, {1, 1, 0, 0}}, {4, 2, {0, 1, 0, 1}},
    {4, 2, {0, 1, 1, 1}}, {4, 3, {0, 1, 1, 2}}, {4, 4, {0, 1, 2, 3}}, {3, 2, {1, 0, 1}},
};
const size_t mx_n_splits = OPI_COUNT(mx_splits);

/* A name that no other case has met by. */
static void name_meeting(uint32_t rule, char *text, size_t room) {
  static uint32_t n;
  (void)snprintf(text, room, "%s%smeet=halves%u", STRICT[rule],
                 strchr(STRICT[rule], ':') == NULL ? ":" : ",", n++);
}

static const char *keep(const char *what, const char *why) {
  static char text[2][700]; /* `why` may lie in one of them */
  static uint32_t turn;
  char *own = text[++turn % 2];
  (void)snprintf(own, sizeof text[0], "%.100s: %.580s", what, why);
  return own;
}

/* ---- inference ---- */

typedef struct infer_part {
  pthread_t thread;
  const mx_folder *folder;
  const opi_test_text *plan;
  uint32_t ranks[MX_RANKS], n_ranks;
  mx_model m;
  mx_result results[REQUESTS];
  bool has[REQUESTS][MX_TENSORS];
  opipe_status status;
} infer_part;

static opipe_status take_output(infer_part *p, opipe_request *request, uint32_t i, uint32_t o) {
  mx_result *out = &p->results[i];
  opipe_tensor t = {0};
  opipe_tensor_info info = {.struct_size = sizeof info};
  mx_model *m = &p->m;
  opipe_status status = m->api->model_output(m->bound, o, &info, &m->err);
  if (status < 0)
    return status;
  status = m->api->request_output(request, o, &t, &m->err);
  out->n = o + 1;
  p->has[i][o] = status == OPIPE_OK;
  if (status != OPIPE_OK)
    return status == OPIPE_E_NOTFOUND ? OPIPE_OK : status;
  out->n_elems[o] = 1;
  for (int32_t d = 0; d < t.rank; ++d) {
    out->shape[o][d] = t.shape[d];
    out->n_elems[o] *= (uint64_t)t.shape[d];
  }
  out->rank[o] = (uint32_t)t.rank;
  out->dtype[o] = info.dtype;
  out->n_bytes[o] = out->n_elems[o] * opi_test_dtype_bytes(info.dtype);
  out->data[o] = malloc((size_t)out->n_bytes[o] + 1);
  if (out->data[o] == NULL)
    return OPIPE_E_NOMEM;
  memcpy(out->data[o], (char *)t.data + t.byte_offset, (size_t)out->n_bytes[o]);
  return OPIPE_OK;
}

static opipe_status serve(infer_part *p, opipe_session *session) {
  mx_model *m = &p->m;
  mx_io io;
  opipe_request *requests[REQUESTS] = {NULL};
  opipe_model_info info = {.struct_size = sizeof info};
  opipe_status status = mx_inputs(m, m->set, &io);
  for (uint32_t i = 0; i < REQUESTS && status == OPIPE_OK; ++i)
    status = mx_submit(m, session, &io, &requests[i]);
  if (status == OPIPE_OK)
    status = m->api->model_info(m->bound, &info, &m->err);
  for (uint32_t i = 0; i < REQUESTS && status == OPIPE_OK; ++i) {
    status = m->api->request_wait(requests[i], UINT64_C(60000000000), &m->err);
    for (uint32_t o = 0; o < info.n_outputs && o < MX_TENSORS && status == OPIPE_OK; ++o)
      status = take_output(p, requests[i], i, o);
  }
  for (uint32_t i = 0; i < REQUESTS; ++i)
    m->api->request_release(requests[i]);
  return status;
}

static void *infer_thread(void *arg) {
  infer_part *p = arg;
  mx_model *m = &p->m;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  const opipe_session_params params = {.struct_size = sizeof params,
                                       .max_in_flight = REQUESTS,
                                       .watchdog_ns = UINT64_C(20000000000),
                                       .spin_us = UINT32_MAX,
                                       .local_ranks = p->ranks,
                                       .n_local_ranks = p->n_ranks};
  p->status = m->api->plan_read(m->file, p->plan->data, p->plan->n, &plan, &m->err);
  if (p->status == OPIPE_OK)
    p->status = m->api->session_open(m->context, plan, &params, &session, &m->err);
  if (p->status == OPIPE_OK)
    p->status = serve(p, session);
  m->api->session_close(session);
  m->api->plan_destroy(plan);
  return NULL;
}

/* Rows that are made elsewhere are zeros. */
static const char *merge(infer_part *parts, uint32_t n, uint32_t request, mx_result *out) {
  memset(out, 0, sizeof *out);
  for (uint32_t o = 0; o < parts[0].results[request].n; ++o) {
    uint32_t first = 0;
    while (first < n && !parts[first].has[request][o])
      ++first;
    if (first == n)
      return "an output is in no session";
    const mx_result *from = &parts[first].results[request];
    out->n = o + 1;
    out->rank[o] = from->rank[o];
    out->dtype[o] = from->dtype[o];
    out->n_elems[o] = from->n_elems[o];
    out->n_bytes[o] = from->n_bytes[o];
    memcpy(out->shape[o], from->shape[o], sizeof from->shape[o]);
    out->data[o] = calloc(1, (size_t)from->n_bytes[o] + 1);
    for (uint32_t p = first; p < n && out->data[o] != NULL; ++p) {
      const mx_result *more = &parts[p].results[request];
      for (uint64_t b = 0; parts[p].has[request][o] && b < from->n_bytes[o]; ++b)
        ((unsigned char *)out->data[o])[b] |= ((const unsigned char *)more->data[o])[b];
    }
  }
  return NULL;
}

static const char *open_parts(infer_part *parts, const mx_folder *folder, const mx_split *split,
                              const opi_test_text *plan) {
  for (uint32_t p = 0; p < split->n_parts; ++p) {
    parts[p].folder = folder;
    parts[p].plan = plan;
    for (uint32_t r = 0; r < split->n_ranks; ++r) {
      if (split->part[r] == p)
        parts[p].ranks[parts[p].n_ranks++] = r;
    }
    if (mx_open(&parts[p].m, NULL, folder) != OPIPE_OK || mx_bind(&parts[p].m, 0, true) != OPIPE_OK)
      return parts[p].m.err.message;
  }
  return NULL;
}

/* Statuses of a run that failed: the sessions that were only told so are not the reason. */
static const char *why_failed(const infer_part *parts, uint32_t n) {
  const char *why = NULL;
  for (uint32_t p = 0; p < n; ++p) {
    if (parts[p].status != OPIPE_OK && (why == NULL || parts[p].status != OPIPE_E_PEER))
      why = parts[p].m.err.message;
  }
  return why;
}

static const char *run_parts(infer_part *parts, uint32_t n, const mx_result *wanted) {
  for (uint32_t p = 0; p < n; ++p)
    (void)pthread_create(&parts[p].thread, NULL, infer_thread, &parts[p]);
  for (uint32_t p = 0; p < n; ++p)
    (void)pthread_join(parts[p].thread, NULL);
  const char *wrong = why_failed(parts, n);
  for (uint32_t i = 0; i < REQUESTS && wrong == NULL; ++i) {
    mx_result found;
    wrong = merge(parts, n, i, &found);
    if (wrong == NULL)
      wrong = mx_same_bits(&found, wanted);
    mx_result_free(&found);
  }
  return wrong;
}

static void close_parts(infer_part *parts) {
  for (uint32_t p = 0; p < HALVES_MOST; ++p) {
    for (uint32_t i = 0; i < REQUESTS; ++i)
      mx_result_free(&parts[p].results[i]);
    mx_close(&parts[p].m);
  }
  free(parts);
}

/* Too few rows, or a model that has no other number of rows than its own. */
static bool is_not_cut(const mx_model *m) {
  return strstr(m->err.message, " replicas, which cannot share a micro-batch of ") != NULL ||
         strstr(m->err.message, " along '") != NULL;
}

const char *mx_halves_infer(const mx_folder *folder, const char *schedule, uint32_t n_microbatches,
                            const mx_split *split, uint32_t rule, bool *out_refused) {
  static mx_model m;
  char transport[64];
  opi_test_text json = {NULL, 0};
  opipe_plan *plan = NULL;
  mx_result wanted = {.n = 0};
  const opipe_device_choice device = {.kind = "cpu", .threads = 1};
  infer_part *parts = calloc(HALVES_MOST, sizeof *parts);
  mx_count count = {.passed = 0};
  if (parts == NULL)
    return "out of memory";
  name_meeting(rule, transport, sizeof transport);
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_ranks = split->n_ranks,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof device,
                                    .n_microbatches = n_microbatches,
                                    .stage_replicas = split->replicas,
                                    .n_stage_replicas = split->n_replicas,
                                    .schedule = schedule,
                                    .transport = transport,
                                    .flags = OPIPE_PLAN_IGNORE_ANNOTATIONS};
  const char *wrong = NULL;
  opipe_status status = mx_open(&m, NULL, folder);
  if (status == OPIPE_OK)
    status = mx_bind(&m, 0, true);
  const opipe_status planned =
      status == OPIPE_OK ? m.api->plan_make(m.bound, &params, &plan, &m.err) : status;
  *out_refused = status == OPIPE_OK && planned < 0 &&
                 (mx_refused(&count, &m, planned) || (split->n_replicas != 0 && is_not_cut(&m)));
  if (planned == OPIPE_OK)
    status = m.api->plan_write(plan, opi_test_take, &json, &m.err);
  if (planned == OPIPE_OK && status == OPIPE_OK)
    status = mx_run(&m, plan, OPIPE_SESSION_REFERENCE, 1, &wanted);
  if ((planned < 0 && !*out_refused) || status != OPIPE_OK)
    wrong = keep("the plan or its reference", m.err.message);
  if (wrong == NULL && planned == OPIPE_OK)
    wrong = open_parts(parts, folder, split, &json);
  if (wrong == NULL && planned == OPIPE_OK)
    wrong = run_parts(parts, split->n_parts, &wanted);
  if (wrong != NULL)
    wrong = keep(transport, wrong);
  close_parts(parts);
  mx_result_free(&wanted);
  m.api->plan_destroy(plan);
  mx_close(&m);
  free(json.data);
  return wrong;
}

/* ---- training ---- */

typedef struct train_part {
  pthread_t thread;
  const kit_case *c;
  const char *path;
  const opi_test_text *plan;
  int64_t rows;
  bool local[MX_RANKS], whole;
  kit k;
  kit_outcome outcome;
  double evaluated;
  opipe_status status;
} train_part;

/* Who makes the logits has them; the loss is everywhere. */
static opipe_status evaluate(train_part *p, opi_session *session) {
  kit_batch batch;
  float *logits = NULL;
  size_t n = 0;
  opipe_status status = kit_batch_random(&p->k, p->c, CLASSES, 7, &batch);
  if (status == OPIPE_OK)
    status = kit_evaluate(&p->k, session, &batch, &p->evaluated, &logits, &n);
  return status == OPIPE_E_NOTFOUND ? OPIPE_OK : status;
}

static void *train_thread(void *arg) {
  train_part *p = arg;
  opi_session *session = NULL;
  p->k.watchdog_ns = UINT64_C(20000000000);
  p->k.local = p->whole ? NULL : p->local;
  if (p->status == OPIPE_OK)
    p->status = kit_read_plan(&p->k, p->plan->data, p->plan->n);
  if (p->status == OPIPE_OK)
    p->status = kit_session(&p->k, p->whole ? OPIPE_SESSION_REFERENCE : 0, &session);
  if (p->status == OPIPE_OK)
    p->status = kit_train_in(&p->k, session, p->c, CLASSES, &p->outcome);
  if (p->status == OPIPE_OK)
    p->status = evaluate(p, session);
  opi_session_close(session);
  return NULL;
}

static const char *compare(const train_part *a, const train_part *reference) {
  static char text[128];
  const kit_outcome *x = &a->outcome, *y = &reference->outcome;
  for (uint32_t s = 0; s < KIT_STEPS; ++s) {
    if (x->losses[s] == y->losses[s])
      continue;
    (void)snprintf(text, sizeof text, "loss %.9g at step %u, wanted %.9g", x->losses[s], s,
                   y->losses[s]);
    return text;
  }
  if (x->n != y->n || memcmp(x->weights, y->weights, x->n * sizeof(float)) != 0)
    return "weights differ";
  if (a->evaluated == reference->evaluated)
    return NULL;
  (void)snprintf(text, sizeof text, "evaluated loss %.9g, wanted %.9g", a->evaluated,
                 reference->evaluated);
  return text;
}

static const char *judge(const train_part *parts, uint32_t n) {
  const char *why = NULL;
  for (uint32_t p = 0; p <= n; ++p) {
    if (parts[p].status != OPIPE_OK && (why == NULL || parts[p].status != OPIPE_E_PEER))
      why = parts[p].k.err.message;
  }
  for (uint32_t p = 0; p < n && why == NULL; ++p)
    why = compare(&parts[p], &parts[n]);
  return why;
}

/* The reference is the last. */
static const char *train_parts(const kit_case *c, const char *path, int64_t rows,
                               const mx_split *split, const opi_test_text *plan) {
  const char *wrong = NULL;
  const uint32_t n = split->n_parts;
  train_part *parts = calloc(HALVES_MOST + 1, sizeof *parts);
  if (parts == NULL)
    return "out of memory";
  for (uint32_t p = 0; p <= n; ++p) {
    parts[p].c = c;
    parts[p].path = path;
    parts[p].plan = plan;
    parts[p].rows = rows;
    parts[p].whole = p == n;
    for (uint32_t r = 0; r < split->n_ranks; ++r)
      parts[p].local[r] = split->part[r] == p;
    parts[p].status = kit_open(&parts[p].k, path, rows, TOKENS);
  }
  for (uint32_t p = 0; p <= n; ++p)
    (void)pthread_create(&parts[p].thread, NULL, train_thread, &parts[p]);
  for (uint32_t p = 0; p <= n; ++p)
    (void)pthread_join(parts[p].thread, NULL);
  const char *found = judge(parts, n);
  if (found != NULL)
    wrong = keep(c->schedule, found);
  for (uint32_t p = 0; p <= n; ++p)
    kit_close(&parts[p].k);
  free(parts);
  return wrong;
}

const char *mx_halves_train(const kit_case *given, const char *model_path, int64_t rows,
                            const mx_split *split, uint32_t rule) {
  char transport[64];
  kit k;
  opi_test_text json = {NULL, 0};
  kit_case c = *given;
  name_meeting(rule, transport, sizeof transport);
  c.transport = transport;
  opipe_status status = kit_open(&k, model_path, rows, TOKENS);
  if (status == OPIPE_OK)
    status = kit_plan(&k, &c);
  if (status == OPIPE_OK)
    status = opi_plan_write(k.plan, opi_test_take, &json, &k.err);
  const char *wrong = status != OPIPE_OK ? keep("the plan", k.err.message)
                                         : train_parts(&c, model_path, rows, split, &json);
  kit_close(&k);
  free(json.data);
  return wrong;
}
