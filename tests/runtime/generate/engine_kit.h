/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the engine: a generator over doubles of runners, calls by handle, and a
 * turn by a plain loop. */
#ifndef TESTS_GENERATE_ENGINE_KIT_H
#define TESTS_GENERATE_ENGINE_KIT_H

#include "runtime/base/base.h"
#include "runtime/generate/sample.h"
#include "runtime/generate/sequences.h"
#include "tests/runtime/generate/double.h"

enum { SEQUENCES = 12, CONTEXT = 60 };

typedef struct world {
  double_runner runner, other; /* of replicas 0 and 1, if there are two */
  opi_test_memory memory;
  opi_generator *generator;
  opipe_error err;
} world;

static inline void open_homes(world *w, const opi_batch_params *batch, bool driven,
                              uint32_t n_homes) {
  const opi_batch_params usual = {.pool = {.page = 4,
                                           .n_pages = 60,
                                           .n_sequences = SEQUENCES,
                                           .context = CONTEXT,
                                           .reuse = true},
                                  .active = 6,
                                  .rows = 16,
                                  .groups = 2,
                                  .draft = 4};
  memset(w, 0, sizeof *w);
  w->err = (opipe_error)OPIPE_ERROR_INIT;
  opi_test_memory_init(&w->memory);
  double_init(&w->runner, batch == NULL ? &usual : batch);
  double_init(&w->other, batch == NULL ? &usual : batch);
  const opi_pass_runner runners[2] = {w->runner.runner, w->other.runner};
  const opi_generator_params params = {.allocator = &w->memory.allocator,
                                       .runners = runners,
                                       .n_runners = n_homes,
                                       .facts = double_facts(&w->runner),
                                       .driven = driven};
  OPI_ASSERT_OK_FATAL(opi_generator_open(&params, &w->generator, &w->err), &w->err);
}

static inline void open(world *w, const opi_batch_params *batch, bool driven) {
  open_homes(w, batch, driven, 1);
}

static inline void close_it(world *w) {
  opi_generator_close(w->generator);
  OPI_ASSERT(opi_test_memory_end(&w->memory));
  OPI_ASSERT_INT(w->runner.n_wrong + w->other.n_wrong, 0);
  OPI_ASSERT_INT(w->runner.n_begun, w->runner.n_finished);
  OPI_ASSERT_INT(w->other.n_begun, w->other.n_finished);
}

/* ---- calls by handle ---- */

static inline opi_host_sequence *enter(opipe_sequence *handle, opi_entry *in) {
  opipe_error err = OPIPE_ERROR_INIT;
  return opi_handle_enter(handle, OPI_HANDLE_SEQUENCE, "test", in, &err) == OPIPE_OK ? in->object
                                                                                     : NULL;
}

#define WITH(handle, call)                      \
  do {                                          \
    opi_entry in_;                              \
    opi_host_sequence *s = enter(handle, &in_); \
    if (s != NULL) {                            \
      call;                                     \
      opi_handle_leave(&in_);                   \
    }                                           \
  } while (0)

static inline void release(opipe_sequence *handle) {
  opi_entry in;
  opi_host_sequence *s = enter(handle, &in);
  if (s == NULL)
    return;
  (void)opi_handle_kill(&in);
  opi_sequence_leave(s);
  opi_handle_leave(&in);
}

static inline opipe_status wait_all(opipe_sequence *handle, uint64_t timeout_ns, opipe_error *err) {
  opipe_status status = OPIPE_E_STATE;
  WITH(handle, status = opi_sequence_wait(s, UINT32_MAX, timeout_ns, err));
  return status;
}

static inline opipe_sequence_info info_of(opipe_sequence *handle) {
  opipe_sequence_info info = {0};
  WITH(handle, (void)opi_sequence_describe(s, &info, NULL));
  return info;
}

/* ---- alone ---- */

typedef struct alone {
  uint32_t ids[CONTEXT + 1], n, n_shown, end;
} alone;

/* The turn by a plain loop; `out` has the ids before it. */
static inline void run_alone(const opi_sampling *how, uint32_t branch, alone *out) {
  opi_sampler *sampler = NULL;
  opi_sampled sampled;
  opipe_error err = OPIPE_ERROR_INIT;
  const uint32_t n_prompt = out->n;
  uint32_t n_stop = 0;
  (void)opi_sampler_create(opi_allocator_system(), DOUBLE_VOCAB, &sampler, &err);
  out->end = OPI_TURN_GOES_ON;
  while (out->end == OPI_TURN_GOES_ON) {
    float row[DOUBLE_VOCAB];
    int64_t ids[CONTEXT + 1];
    const opi_logits logits = {row, OPIPE_FLOAT, branch, out->ids, out->n, n_prompt};
    for (uint32_t i = 0; i < out->n; ++i)
      ids[i] = out->ids[i];
    double_model(ids, out->n, row);
    if (opi_sample(sampler, how, &logits, &sampled, &err) < 0) {
      out->end = OPIPE_END_FAILED;
      break;
    }
    out->ids[out->n++] = sampled.id;
    out->end = opi_turn_end(how, out->ids, out->n, n_prompt, CONTEXT, &n_stop);
  }
  out->n_shown = out->n - n_prompt - (out->end == OPI_TURN_STOP ? n_stop : 0);
  opi_sampler_free(sampler);
}

/* Does the sequence's latest turn show what the loop shows? Counts what is wrong. */
static inline uint32_t compare(opipe_sequence *handle, const alone *expected, const uint32_t *shown,
                               uint32_t n_shown, uint32_t n_prompt) {
  const opipe_sequence_info info = info_of(handle);
  uint32_t ids[CONTEXT + 1], n_wrong = 0;
  n_wrong += info.end != expected->end || info.n_ids != expected->n;
  n_wrong += n_shown != expected->n_shown || info.n_tokens != n_shown;
  n_wrong += info.n_prompt != n_prompt;
  n_wrong += memcmp(shown, expected->ids + n_prompt, n_shown * sizeof *shown) != 0;
  WITH(handle, n_wrong += opi_sequence_ids(s, 0, expected->n, ids, NULL) != OPIPE_OK);
  n_wrong += memcmp(ids, expected->ids, expected->n * sizeof *ids) != 0;
  return n_wrong;
}

/* ---- callbacks ---- */

typedef struct told {
  uint32_t ids[CONTEXT], n, n_ends, n_wrong, next; /* next: position */
} told;

static inline opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                                    opipe_error *err) {
  told *t = ctx;
  (void)sequence, (void)err;
  t->next = t->next == UINT32_MAX ? token->position : t->next;
  t->n_wrong += !opi_generator_in_callback() || t->n >= CONTEXT || token->position != t->next++;
  t->ids[t->n++ % CONTEXT] = token->id;
  return OPIPE_OK;
}

static inline void on_end(void *ctx, opipe_sequence *sequence, uint32_t reason,
                          const opipe_error *why) {
  told *t = ctx;
  (void)sequence;
  t->n_wrong += (why != NULL) != (reason == OPIPE_END_FAILED) || reason == OPIPE_END_NONE;
  ++t->n_ends;
}

static const char sampling_text[] = "temperature=0.7,seed=%u,top_k=6,max_tokens=%u,stop=3+1";

static inline opi_sampling sampling_of(uint32_t seed, uint32_t most) {
  static const uint32_t stop_ids[2] = {3, 1};
  static const opi_stop stops[1] = {{stop_ids, 2}};
  opi_sampling how = opi_sampling_default;
  how.temperature = 0.7;
  how.seed = seed;
  how.top_k = 6;
  how.max_tokens = most;
  how.stops = stops;
  how.n_stops = 1;
  return how;
}

#endif /* TESTS_GENERATE_ENGINE_KIT_H */
