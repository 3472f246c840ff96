/* SPDX-License-Identifier: Apache-2.0 */
/* States of streams through the host's table: three interleaved streams of a decoder with keys and
 * values have the bits of the same requests with the host handing them back, on several ranks,
 * devices and replicas; refusals of a state, how it breaks, and its memory. ctest: timeout=120
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

enum { PAIRS = 4, STREAMS = 3, STEPS = 8, HEADS = 2, WIDTH = 8, CLASSES = 96, MOST = 32 };
enum { ROOM = HEADS * MOST * WIDTH };
#define MODEL "tests/data/gpt_past/model.onnx"
static const char *const PAST[PAIRS] = {"past_k_0", "past_v_0", "past_k_1", "past_v_1"};
static const char *const PRESENT[PAIRS] = {"present_k_0", "present_v_0", "present_k_1",
                                           "present_v_1"};
/* Tokens of every request of every stream: a prompt, then a few at a time. */
static const int64_t TOKENS[STREAMS][STEPS] = {
    {5, 1, 1, 1, 2, 1, 1, 1}, {3, 1, 2, 1, 1, 1, 3, 1}, {4, 1, 1, 1, 1, 1, 1, 4}};

typedef struct answer {
  float logits[MOST * CLASSES];
  float kept[PAIRS][ROOM];
  int64_t past;
} answer;

typedef struct place {
  const char *device, *options, *transport;
  uint32_t index, n_ranks, n_stages, replicas;
  const char *schedule;
} place;

static opipe_plan_params params_at(const place *at, opipe_state_pair *pairs,
                                   opipe_device_choice *device) {
  for (uint32_t p = 0; p < PAIRS; ++p)
    pairs[p] = (opipe_state_pair){.output = PRESENT[p], .input = PAST[p], .capacity = ROOM};
  *device = (opipe_device_choice){
      .kind = at->device, .options = at->options, .index = at->index, .threads = 1};
  return (opipe_plan_params){.struct_size = sizeof(opipe_plan_params),
                             .n_stages = at->n_stages,
                             .n_ranks = at->n_ranks,
                             .devices = device,
                             .n_devices = 1,
                             .devices_stride = sizeof *device,
                             .replicas = at->replicas,
                             .schedule = at->schedule,
                             .transport = at->transport,
                             .states = pairs,
                             .n_states = PAIRS,
                             .states_stride = sizeof *pairs,
                             .n_streams = STREAMS};
}

static int64_t token_of(uint32_t stream, int64_t position) {
  return (position * 11 + stream * 17 + 3) % CLASSES;
}

static opipe_binding_io io_of(const char *name, const void *data, uint8_t code, uint8_t bits,
                              int32_t rank, const int64_t *shape) {
  return (opipe_binding_io){.name = name,
                            .tensor = {.data = (void *)(uintptr_t)data,
                                       .device_type = OPIPE_DL_CPU,
                                       .rank = rank,
                                       .dtype = {code, bits, 1},
                                       .shape = shape}};
}

/* A request with all that it borrows. */
typedef struct work {
  int64_t ids[MOST], ids_shape[2], past_shape[4], present_shape[4], logits_shape[3];
  opipe_binding_io in[1 + PAIRS], out[1 + PAIRS];
  opipe_request *request;
} work;

/* Tokens first .. first + n - 1 of the stream; pasts are given where `past` is, presents asked for
 * where `out` is. */
static opipe_status submit(host_kit *k, uint32_t stream, int64_t first, int64_t n,
                           opipe_state *state, const answer *past, answer *out, bool presents,
                           work *w) {
  memset(w, 0, sizeof *w);
  for (int64_t t = 0; t < n; ++t)
    w->ids[t] = token_of(stream, first + t);
  memcpy(w->ids_shape, (int64_t[]){1, n}, sizeof w->ids_shape);
  memcpy(w->past_shape, (int64_t[]){1, HEADS, first, WIDTH}, sizeof w->past_shape);
  memcpy(w->present_shape, (int64_t[]){1, HEADS, first + n, WIDTH}, sizeof w->present_shape);
  memcpy(w->logits_shape, (int64_t[]){1, n, CLASSES}, sizeof w->logits_shape);
  w->in[0] = io_of("input_ids", w->ids, OPIPE_DL_INT, 64, 2, w->ids_shape);
  w->out[0] = io_of("logits", out->logits, OPIPE_DL_FLOAT, 32, 3, w->logits_shape);
  for (uint32_t p = 0; p < PAIRS; ++p) {
    if (past != NULL)
      w->in[1 + p] = io_of(PAST[p], past->kept[p], OPIPE_DL_FLOAT, 32, 4, w->past_shape);
    w->out[1 + p] = io_of(PRESENT[p], out->kept[p], OPIPE_DL_FLOAT, 32, 4, w->present_shape);
  }
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = past == NULL ? 1 : 1 + PAIRS,
                                      .n_outputs = presents ? 1 + PAIRS : 1,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = w->in,
                                      .outputs = w->out,
                                      .state = state};
  opipe_status status = k->api->session_submit(k->session, &params, &w->request, &k->err);
  while (status == OPIPE_PENDING) { /* as many are in flight as the session takes */
    (void)sched_yield();
    status = k->api->session_submit(k->session, &params, &w->request, &k->err);
  }
  return status;
}

static opipe_status finish(host_kit *k, work *w) {
  const opipe_status status = k->api->request_wait(w->request, UINT64_C(20000000000), &k->err);
  k->api->request_release(w->request);
  return status;
}

static bool open_at(host_kit *k, const place *at, bool states) {
  opipe_state_pair pairs[PAIRS];
  opipe_device_choice device;
  opipe_plan_params params = params_at(at, pairs, &device);
  const opipe_session_params session = {
      .struct_size = sizeof session, .max_shapes = 64, .max_in_flight = STREAMS * STEPS};
  if (!states)
    params.n_states = params.n_streams = 0;
  opipe_status status = kit_plan(k, NULL, MODEL, 1, 4, &params);
  if (status == OPIPE_OK)
    status = kit_open(k, &session);
  OPI_ASSERT_OK(status, &k->err);
  return status == OPIPE_OK;
}

/* The host hands every stream's presents back as pasts. answers [STREAMS][STEPS] */
static void feed_back(const place *at, answer (*answers)[STEPS]) {
  static answer nothing;
  host_kit k;
  if (open_at(&k, at, false)) {
    for (uint32_t s = 0; s < STREAMS; ++s) {
      int64_t first = 0;
      for (uint32_t i = 0; i < STEPS; ++i) {
        work w;
        OPI_ASSERT_OK_FATAL(
            submit(&k, s, first, TOKENS[s][i], NULL, i == 0 ? &nothing : &answers[s][i - 1],
                   &answers[s][i], true, &w),
            &k.err);
        OPI_ASSERT_OK_FATAL(finish(&k, &w), &k.err);
        first += TOKENS[s][i];
        answers[s][i].past = first;
      }
    }
  }
  kit_close(&k);
}

static bool same_kept(host_kit *k, opipe_state *state, const answer *wanted) {
  static float kept[ROOM];
  for (uint32_t p = 0; p < PAIRS; ++p) {
    opipe_state_info info = {.struct_size = sizeof info};
    const uint64_t n_bytes = (uint64_t)(HEADS * wanted->past * WIDTH) * sizeof(float);
    if (k->api->state_get(state, p, &info, kept, n_bytes, &k->err) != OPIPE_OK ||
        info.shape[2] != wanted->past || info.n_bytes != n_bytes ||
        memcmp(kept, wanted->kept[p], n_bytes) != 0)
      return false;
  }
  return true;
}

/* All streams in flight at once, request by request. */
static void run_streams(const place *at, answer (*wanted)[STEPS]) {
  static answer nothing, got[STREAMS][STEPS];
  static work w[STREAMS][STEPS];
  opipe_state *states[STREAMS] = {NULL};
  int64_t first[STREAMS] = {0};
  host_kit k;
  memset(got, 0, sizeof got);
  if (open_at(&k, at, true)) {
    for (uint32_t s = 0; s < STREAMS; ++s)
      OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &states[s], &k.err), &k.err);
    for (uint32_t i = 0; i < STEPS; ++i) {
      for (uint32_t s = 0; s < STREAMS; ++s) {
        OPI_ASSERT_OK_FATAL(submit(&k, s, first[s], TOKENS[s][i], states[s],
                                   i == 0 ? &nothing : NULL, &got[s][i], false, &w[s][i]),
                            &k.err);
        first[s] += TOKENS[s][i];
      }
    }
    for (uint32_t i = 0; i < STEPS; ++i) {
      for (uint32_t s = 0; s < STREAMS; ++s) {
        const size_t n_bytes = (size_t)TOKENS[s][i] * CLASSES * sizeof(float);
        OPI_ASSERT_OK(finish(&k, &w[s][i]), &k.err);
        OPI_ASSERT(memcmp(got[s][i].logits, wanted[s][i].logits, n_bytes) == 0);
      }
    }
    for (uint32_t s = 0; s < STREAMS; ++s) {
      OPI_ASSERT(same_kept(&k, states[s], &wanted[s][STEPS - 1]));
      k.api->state_close(states[s]);
    }
  }
  kit_close(&k);
}

static void test_three_streams(void) {
  static const place places[] = {{"cpu", NULL, NULL, 0, 1, 1, 0, NULL},
                                 {"cpu", NULL, NULL, 0, 2, 2, 0, NULL},
                                 {"cpu", NULL, NULL, 0, 4, 4, 0, NULL},
                                 {"cpu", NULL, NULL, 0, 2, 4, 0, "looped-bfs:chunks=2"},
                                 {"cpu", NULL, NULL, 0, 4, 2, 2, NULL},
                                 {"emulated", "async=1", NULL, 0, 2, 2, 0, NULL},
                                 {"emulated", "async=1", "staged", 16, 2, 2, 0, NULL}};
  static answer wanted[STREAMS][STEPS];
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
    memset(wanted, 0, sizeof wanted);
    feed_back(&places[i], wanted);
    run_streams(&places[i], wanted);
  }
}

/* A session with one of two ranks, on a thread of its own. */
typedef struct half {
  const place *at;
  uint32_t rank;
  answer (*wanted)[STEPS];
  answer got[STREAMS][STEPS];
  work w[STREAMS][STEPS];
  pthread_t thread;
  uint32_t n_same, n_other, n_kept; /* answers with and without the bits wanted, pairs read */
  opipe_status status;
  host_kit k;
} half;

static opipe_status run_half(half *h, opipe_state **states) {
  static answer nothing;
  host_kit *k = &h->k;
  opipe_state_pair pairs[PAIRS];
  opipe_device_choice device;
  const opipe_plan_params params = params_at(h->at, pairs, &device);
  const opipe_session_params session = {.struct_size = sizeof session,
                                        .max_shapes = 64,
                                        .max_in_flight = STREAMS * STEPS,
                                        .local_ranks = &h->rank,
                                        .n_local_ranks = 1};
  int64_t first[STREAMS] = {0};
  opipe_status status = kit_plan(k, NULL, MODEL, 1, 4, &params);
  if (status == OPIPE_OK)
    status = kit_open(k, &session);
  for (uint32_t s = 0; s < STREAMS && status == OPIPE_OK; ++s)
    status = k->api->session_state_open(k->session, NULL, &states[s], &k->err);
  for (uint32_t i = 0; i < STREAMS * STEPS && status == OPIPE_OK; ++i) {
    const uint32_t s = i % STREAMS, t = i / STREAMS;
    status = submit(k, s, first[s], TOKENS[s][t], states[s], t == 0 ? &nothing : NULL,
                    &h->got[s][t], false, &h->w[s][t]);
    first[s] += TOKENS[s][t];
  }
  for (uint32_t i = 0; i < STREAMS * STEPS && status == OPIPE_OK; ++i)
    status = finish(k, &h->w[i % STREAMS][i / STREAMS]);
  return status;
}

static void *half_thread(void *arg) {
  static float kept[ROOM];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  half *h = arg;
  opipe_state *states[STREAMS] = {NULL};
  h->status = run_half(h, states);
  for (uint32_t i = 0; i < STREAMS * STEPS && h->status == OPIPE_OK; ++i) {
    const uint32_t s = i % STREAMS, t = i / STREAMS;
    const size_t n_bytes = (size_t)TOKENS[s][t] * CLASSES * sizeof(float);
    if (memcmp(h->got[s][t].logits, h->wanted[s][t].logits, n_bytes) == 0)
      ++h->n_same;
    else
      ++h->n_other;
  }
  (void)pthread_mutex_lock(&lock);
  for (uint32_t i = 0; i < STREAMS * PAIRS && h->status == OPIPE_OK; ++i) {
    const answer *last = &h->wanted[i / PAIRS][STEPS - 1];
    const uint64_t n_bytes = (uint64_t)(HEADS * last->past * WIDTH) * sizeof(float);
    const opipe_status status =
        h->k.api->state_get(states[i / PAIRS], i % PAIRS, NULL, kept, n_bytes, &h->k.err);
    if (status == OPIPE_OK && memcmp(kept, last->kept[i % PAIRS], n_bytes) == 0)
      ++h->n_kept;
    else if (status != OPIPE_E_NOTFOUND)
      h->status = OPIPE_E_INTERNAL;
  }
  (void)pthread_mutex_unlock(&lock);
  return NULL;
}

static void test_two_sessions(void) {
  static const place at = {"cpu", NULL, "strict:meet=states", 0, 2, 2, 0, NULL};
  static const place alone = {"cpu", NULL, NULL, 0, 2, 2, 0, NULL};
  static answer wanted[STREAMS][STEPS];
  static half halves[2];
  feed_back(&alone, wanted);
  for (uint32_t r = 0; r < 2; ++r) {
    halves[r].at = &at;
    halves[r].rank = r;
    halves[r].wanted = wanted;
    (void)pthread_create(&halves[r].thread, NULL, half_thread, &halves[r]);
  }
  for (uint32_t r = 0; r < 2; ++r)
    (void)pthread_join(halves[r].thread, NULL);
  for (uint32_t r = 0; r < 2; ++r) {
    OPI_ASSERT_OK(halves[r].status, &halves[r].k.err);
    kit_close(&halves[r].k);
  }
  OPI_ASSERT_INT(halves[1].n_same, STREAMS * STEPS); /* the last stage makes them */
  OPI_ASSERT_INT(halves[0].n_kept + halves[1].n_kept, STREAMS * PAIRS);
  OPI_ASSERT(halves[0].n_kept != 0 && halves[1].n_kept != 0);
}

/* Token by token is close to the whole prompt at once. */
static void test_close_to_the_whole_prompt(void) {
  static const place at = {"cpu", NULL, NULL, 0, 2, 2, 0, NULL};
  static answer nothing, whole, part;
  opipe_state *state = NULL;
  work w;
  host_kit k;
  if (open_at(&k, &at, true)) {
    OPI_ASSERT_OK_FATAL(submit(&k, 0, 0, 12, NULL, &nothing, &whole, true, &w), &k.err);
    OPI_ASSERT_OK_FATAL(finish(&k, &w), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &state, &k.err), &k.err);
    for (int64_t t = 0; t < 12; ++t) {
      OPI_ASSERT_OK_FATAL(submit(&k, 0, t, 1, state, t == 0 ? &nothing : NULL, &part, false, &w),
                          &k.err);
      OPI_ASSERT_OK_FATAL(finish(&k, &w), &k.err);
      for (uint32_t c = 0; c < CLASSES; ++c)
        OPI_ASSERT(fabsf(part.logits[c] - whole.logits[t * CLASSES + c]) < 1e-4F);
    }
  }
  kit_close(&k);
}

/* A state of one size, on two stages: a recurrence over rows of four numbers. */
static void test_states_of_one_size(void) {
  enum { ROWS = 2, IN = 4, SIZE = 6, OUT = 3, TURNS = 5 };
  static const opipe_state_pair pairs[2] = {{"next0", "state0", 0}, {"next1", "state1", 0}};
  static const int64_t x_shape[2] = {ROWS, IN}, shape[2] = {ROWS, SIZE}, y_shape[2] = {ROWS, OUT};
  float x[TURNS][ROWS * IN], fed[TURNS + 1][2][ROWS * SIZE], y[2][TURNS][ROWS * OUT];
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = 2,
                                    .states = pairs,
                                    .n_states = 2,
                                    .states_stride = sizeof pairs[0]};
  opipe_state *state = NULL;
  host_kit k;
  for (uint32_t i = 0; i < TURNS * ROWS * IN; ++i)
    x[i / (ROWS * IN)][i % (ROWS * IN)] = (float)(i % 7) / 7 - 0.4F;
  for (uint32_t i = 0; i < 2 * ROWS * SIZE; ++i)
    fed[0][i / (ROWS * SIZE)][i % (ROWS * SIZE)] = (float)(i % 5) / 5;
  const opipe_load_params load = {.struct_size = sizeof load,
                                  .path = opi_test_source("tests/data/odd/recurrence/model.onnx")};
  const opipe_dim rows = {"batch", ROWS};
  const opipe_bind_options bind = {
      .struct_size = sizeof bind, .dims = &rows, .n_dims = 1, .dims_stride = sizeof rows};
  memset(&k, 0, sizeof k);
  k.err.struct_size = sizeof k.err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k.api, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->context_create(NULL, &k.context, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->model_load(k.context, &load, &k.model, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->model_bind(k.model, &bind, &k.bound, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->plan_make(k.bound, &params, &k.plan, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &state, &k.err), &k.err);
  for (uint32_t t = 0; t < 2 * TURNS; ++t) {
    const uint32_t own = t / TURNS, i = t % TURNS;
    const opipe_binding_io in[3] = {
        io_of("x", x[i], OPIPE_DL_FLOAT, 32, 2, x_shape),
        io_of("state0", fed[own == 0 ? i : 0][0], OPIPE_DL_FLOAT, 32, 2, shape),
        io_of("state1", fed[own == 0 ? i : 0][1], OPIPE_DL_FLOAT, 32, 2, shape)};
    const opipe_binding_io out[3] = {io_of("y", y[own][i], OPIPE_DL_FLOAT, 32, 2, y_shape),
                                     io_of("next0", fed[i + 1][0], OPIPE_DL_FLOAT, 32, 2, shape),
                                     io_of("next1", fed[i + 1][1], OPIPE_DL_FLOAT, 32, 2, shape)};
    const opipe_submit_params submit = {.struct_size = sizeof submit,
                                        .n_inputs = own != 0 && i > 0 ? 1 : 3,
                                        .n_outputs = own != 0 ? 1 : 3,
                                        .io_stride = sizeof(opipe_binding_io),
                                        .inputs = in,
                                        .outputs = out,
                                        .state = own != 0 ? state : NULL};
    opipe_request *request = NULL;
    OPI_ASSERT_OK_FATAL(k.api->session_submit(k.session, &submit, &request, &k.err), &k.err);
    OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
    k.api->request_release(request);
  }
  OPI_ASSERT(memcmp(y[0], y[1], sizeof y[0]) == 0);
  for (uint32_t p = 0; p < 2; ++p) {
    float kept[ROWS * SIZE];
    OPI_ASSERT_OK(k.api->state_get(state, p, NULL, kept, sizeof kept, &k.err), &k.err);
    OPI_ASSERT(memcmp(kept, fed[TURNS][p], sizeof kept) == 0);
  }
  kit_close(&k);
}

static void test_what_a_request_may_give(void) {
  static const place at = {"cpu", NULL, NULL, 0, 2, 2, 0, NULL};
  static answer nothing, out;
  opipe_state *state = NULL;
  opipe_state_params small = {.struct_size = sizeof small, .n_capacities = PAIRS};
  const uint64_t capacities[PAIRS] = {0, HEADS * 6 * WIDTH, 0, 0};
  opipe_tensor tensor;
  work w;
  host_kit k;
  if (open_at(&k, &at, true)) {
    small.capacities = capacities;
    OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, &small, &state, &k.err), &k.err);
    OPI_ASSERT_ERROR(submit(&k, 0, 0, 4, state, NULL, &out, false, &w), OPIPE_E_INVALID, &k.err,
                     "'past_k_0' is missing");
    OPI_ASSERT_ERROR(submit(&k, 0, 0, 7, state, &nothing, &out, false, &w), OPIPE_E_LIMIT, &k.err,
                     "'present_v_0' -> 'past_v_0'");
    OPI_ASSERT_ERROR(submit(&k, 0, 0, 4, state, &nothing, &out, true, &w), OPIPE_E_INVALID, &k.err,
                     "'present_k_0' is kept");
    OPI_ASSERT_OK_FATAL(submit(&k, 0, 0, 4, state, &nothing, &out, false, &w), &k.err);
    OPI_ASSERT_OK(k.api->request_wait(w.request, UINT64_MAX, &k.err), &k.err);
    OPI_ASSERT_ERROR(k.api->request_output(w.request, 1, &tensor, &k.err), OPIPE_E_NOTFOUND, &k.err,
                     "state_get");
    k.api->request_release(w.request);
    OPI_ASSERT_ERROR(submit(&k, 0, 4, 1, state, &nothing, &out, false, &w), OPIPE_E_INVALID, &k.err,
                     "'past_k_0' is given");
    OPI_ASSERT_ERROR(submit(&k, 0, 4, 3, state, NULL, &out, false, &w), OPIPE_E_LIMIT, &k.err,
                     "room for 96");
    OPI_ASSERT_OK_FATAL(submit(&k, 0, 4, 2, state, NULL, &out, false, &w), &k.err);
    OPI_ASSERT_OK(finish(&k, &w), &k.err); /* the refused request has changed nothing */
    OPI_ASSERT_OK(k.api->state_reset(state, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(submit(&k, 0, 0, 2, state, &nothing, &out, false, &w), &k.err);
    OPI_ASSERT_OK(finish(&k, &w), &k.err);
  }
  kit_close(&k);
}

/* Token 1000 is beyond the table. */
static opipe_status submit_bad(host_kit *k, opipe_state *state, answer *out, work *w) {
  const int64_t bad = 1000, shape[2] = {1, 1}, logits[3] = {1, 1, CLASSES};
  w->ids[0] = bad;
  memcpy(w->ids_shape, shape, sizeof shape);
  memcpy(w->logits_shape, logits, sizeof logits);
  w->in[0] = io_of("input_ids", w->ids, OPIPE_DL_INT, 64, 2, w->ids_shape);
  w->out[0] = io_of("logits", out->logits, OPIPE_DL_FLOAT, 32, 3, w->logits_shape);
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = 1,
                                      .n_outputs = 1,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = w->in,
                                      .outputs = w->out,
                                      .state = state};
  return k->api->session_submit(k->session, &params, &w->request, &k->err);
}

static void test_a_failure_breaks_the_stream(void) {
  static const place places[] = {{"cpu", NULL, NULL, 0, 2, 2, 0, NULL},
                                 {"emulated", "async=1,time_us=2000", NULL, 0, 2, 2, 0, NULL}};
  static answer nothing, out[4];
  static work w[4];
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
    opipe_state *state = NULL, *other = NULL;
    host_kit k;
    if (open_at(&k, &places[i], true)) {
      OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &state, &k.err), &k.err);
      OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &other, &k.err), &k.err);
      OPI_ASSERT_OK_FATAL(submit(&k, 0, 0, 4, state, &nothing, &out[0], false, &w[0]), &k.err);
      OPI_ASSERT_OK_FATAL(submit(&k, 1, 0, 4, other, &nothing, &out[3], false, &w[3]), &k.err);
      OPI_ASSERT_OK_FATAL(submit_bad(&k, state, &out[1], &w[1]), &k.err);
      const opipe_status behind = submit(&k, 0, 5, 1, state, NULL, &out[2], false, &w[2]);
      OPI_ASSERT_OK(finish(&k, &w[0]), &k.err);
      OPI_ASSERT_ERROR(finish(&k, &w[1]), OPIPE_E_INVALID, &k.err, "1000");
      if (behind == OPIPE_OK)
        OPI_ASSERT_ERROR(finish(&k, &w[2]), OPIPE_E_STATE, &k.err, "reset the state");
      else
        OPI_ASSERT_INT(behind, OPIPE_E_STATE);
      OPI_ASSERT_ERROR(submit(&k, 0, 5, 1, state, NULL, &out[2], false, &w[2]), OPIPE_E_STATE,
                       &k.err, "reset");
      OPI_ASSERT_ERROR(k.api->state_get(state, 0, NULL, out[0].kept[0], 4, &k.err), OPIPE_E_STATE,
                       &k.err, "reset");
      OPI_ASSERT_OK(finish(&k, &w[3]), &k.err); /* other streams go on */
      OPI_ASSERT_OK(k.api->state_reset(state, &k.err), &k.err);
      OPI_ASSERT_OK_FATAL(submit(&k, 0, 0, 4, state, &nothing, &out[1], false, &w[1]), &k.err);
      OPI_ASSERT_OK(finish(&k, &w[1]), &k.err);
      OPI_ASSERT(memcmp(out[0].logits, out[1].logits, 4 * CLASSES * sizeof(float)) == 0);
    }
    kit_close(&k);
  }
}

/* A cancelled request breaks the state too, and so fails those behind it. */
static void test_a_cancelled_request_breaks_it(void) {
  static const place at = {"emulated", "time_us=300000", NULL, 0, 2, 2, 0, NULL};
  static answer nothing, out[3];
  static work w[3];
  opipe_state *state = NULL;
  host_kit k;
  if (open_at(&k, &at, true)) {
    OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &state, &k.err), &k.err);
    for (uint32_t i = 0; i < 3; ++i) {
      OPI_ASSERT_OK_FATAL(
          submit(&k, 0, i, 1, state, i == 0 ? &nothing : NULL, &out[i], false, &w[i]), &k.err);
    }
    OPI_ASSERT_ERROR(k.api->state_reset(state, &k.err), OPIPE_E_STATE, &k.err, "unfinished");
    OPI_ASSERT_OK(k.api->request_cancel(w[1].request, &k.err), &k.err);
    OPI_ASSERT_OK(finish(&k, &w[0]), &k.err);
    OPI_ASSERT_INT(finish(&k, &w[1]), OPIPE_E_CANCELLED);
    OPI_ASSERT_ERROR(finish(&k, &w[2]), OPIPE_E_STATE, &k.err, "reset the state");
    OPI_ASSERT_ERROR(submit(&k, 0, 3, 1, state, NULL, &out[0], false, &w[0]), OPIPE_E_STATE, &k.err,
                     "reset");
    OPI_ASSERT_OK(k.api->state_reset(state, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(submit(&k, 0, 0, 1, state, &nothing, &out[0], false, &w[0]), &k.err);
    OPI_ASSERT_OK(finish(&k, &w[0]), &k.err);
  }
  kit_close(&k);
}

static void test_copies_and_bytes(void) {
  static const place at = {"cpu", NULL, NULL, 0, 2, 2, 0, NULL};
  static answer nothing, out[3];
  work w;
  opipe_state *a = NULL, *b = NULL;
  opipe_memory_info before = {.struct_size = sizeof before}, with = before, after = before;
  host_kit k;
  if (open_at(&k, &at, true)) {
    OPI_ASSERT_OK(k.api->session_memory(k.session, 1, &before, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &a, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &b, &k.err), &k.err);
    OPI_ASSERT_OK(k.api->session_memory(k.session, 1, &with, &k.err), &k.err);
    OPI_ASSERT_INT(before.state_bytes, 0);
    OPI_ASSERT_INT(with.state_bytes, 2 * with.stream_bytes);
    OPI_ASSERT(with.stream_bytes >= 2 * 2 * ROOM * sizeof(float)); /* a block's keys and values */
    OPI_ASSERT_OK_FATAL(submit(&k, 0, 0, 4, a, &nothing, &out[0], false, &w), &k.err);
    OPI_ASSERT_OK(finish(&k, &w), &k.err);
    OPI_ASSERT_OK(k.api->state_copy(b, a, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(submit(&k, 0, 4, 1, a, NULL, &out[1], false, &w), &k.err);
    OPI_ASSERT_OK(finish(&k, &w), &k.err);
    OPI_ASSERT_OK_FATAL(submit(&k, 0, 4, 1, b, NULL, &out[2], false, &w), &k.err);
    OPI_ASSERT_OK(finish(&k, &w), &k.err);
    OPI_ASSERT(memcmp(out[1].logits, out[2].logits, CLASSES * sizeof(float)) == 0);
    k.api->state_close(a);
    k.api->state_close(b);
    OPI_ASSERT_ERROR(k.api->state_reset(a, &k.err), OPIPE_E_STATE, &k.err, "closed");
    OPI_ASSERT_OK(k.api->session_memory(k.session, 1, &after, &k.err), &k.err);
    OPI_ASSERT_INT(after.state_bytes, 0);
    OPI_ASSERT_OK(k.api->plan_memory(k.plan, 1, &before, &k.err), &k.err);
    OPI_ASSERT_INT(before.state_bytes, STREAMS * with.stream_bytes);
  }
  kit_close(&k);
}

typedef struct words {
  char data[65536];
  uint64_t n;
} words;

static opipe_status take(void *ctx, const void *data, size_t n_bytes) {
  words *t = ctx;
  if (n_bytes > sizeof t->data - t->n)
    return OPIPE_E_LIMIT;
  memcpy(t->data + t->n, data, n_bytes);
  t->n += n_bytes;
  return OPIPE_OK;
}

/* Pairs are decisions: in the file, and in the hash. */
static void test_plans_are_written_and_read(void) {
  static const place at = {"cpu", NULL, NULL, 0, 2, 2, 0, NULL};
  static words written, again, plainly;
  static answer nothing, out;
  opipe_state *state = NULL;
  opipe_plan *plan = NULL;
  work w;
  host_kit k, plain;
  written.n = again.n = plainly.n = 0;
  if (open_at(&k, &at, true) && open_at(&plain, &at, false)) {
    OPI_ASSERT_OK(k.api->plan_write(k.plan, take, &written, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->plan_read(k.bound, written.data, written.n, &plan, &k.err), &k.err);
    OPI_ASSERT_OK(k.api->plan_write(plan, take, &again, &k.err), &k.err);
    OPI_ASSERT(written.n == again.n && memcmp(written.data, again.data, written.n) == 0);
    OPI_ASSERT_OK(plain.api->plan_write(plain.plan, take, &plainly, &k.err), &k.err);
    const char *hash = strstr(written.data, "\"hash\""), *other = strstr(plainly.data, "\"hash\"");
    OPI_ASSERT_FATAL(hash != NULL && other != NULL);
    OPI_ASSERT(memcmp(hash, other, 40) != 0);
    k.api->session_close(k.session);
    k.api->plan_destroy(k.plan);
    k.plan = plan;
    k.session = NULL;
    OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &state, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(submit(&k, 0, 0, 4, state, &nothing, &out, false, &w), &k.err);
    OPI_ASSERT_OK(finish(&k, &w), &k.err);
    OPI_ASSERT_ERROR(plain.api->session_state_open(plain.session, NULL, &state, &k.err),
                     OPIPE_E_STATE, &k.err, "no pairs");
  }
  kit_close(&plain);
  kit_close(&k);
}

static void refuse(const opipe_plan_params *params, opipe_status status, const char *text) {
  host_kit k;
  OPI_ASSERT_ERROR(kit_plan(&k, NULL, MODEL, 2, 4, params), status, &k.err, text);
  kit_close(&k);
}

static void test_plans_that_cannot_be(void) {
  static const place at = {"cpu", NULL, NULL, 0, 2, 2, 0, NULL};
  opipe_state_pair pairs[PAIRS];
  opipe_device_choice device;
  opipe_plan_params params = params_at(&at, pairs, &device);
  params.n_microbatches = 2;
  refuse(&params, OPIPE_E_UNSUPPORTED, "2 micro-batches");
  params.n_microbatches = 0;
  pairs[1].input = "past_v_9";
  refuse(&params, OPIPE_E_NOTFOUND, "no input 'past_v_9'");
  pairs[1].input = "past_k_0";
  refuse(&params, OPIPE_E_INVALID, "has the same input");
  pairs[1].input = "input_ids";
  refuse(&params, OPIPE_E_INVALID, "equal types");
  pairs[0] = (opipe_state_pair){.output = "present_k_1", .input = "past_k_0"};
  params.n_states = 1; /* of two blocks, and so of two stages */
  params.cut = "add_9";
  refuse(&params, OPIPE_E_INVALID, "stage 1 makes the output");
}

OPI_TEST_MAIN("states of streams", OPI_TEST(test_three_streams), OPI_TEST(test_two_sessions),
              OPI_TEST(test_close_to_the_whole_prompt), OPI_TEST(test_states_of_one_size),
              OPI_TEST(test_what_a_request_may_give), OPI_TEST(test_a_failure_breaks_the_stream),
              OPI_TEST(test_a_cancelled_request_breaks_it), OPI_TEST(test_copies_and_bytes),
              OPI_TEST(test_plans_are_written_and_read), OPI_TEST(test_plans_that_cannot_be))
