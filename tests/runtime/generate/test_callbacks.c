/* SPDX-License-Identifier: Apache-2.0 */
/* Calls inside callbacks of the engine: turns, forks, drafts and releases begun inside them are
 * those of a plain loop; other threads' calls do not wait for a callback.
 * ctest: timeout=120 */
#include <stdatomic.h>

#include "tests/runtime/generate/engine_kit.h"

/* ---- turns that callbacks begin ---- */

typedef struct asking {
  world *w;
  told first, next, other;
  opipe_sequence *opened;
  uint32_t n_ends, n_wrong;
} asking;

static const uint32_t further[3] = {2, 4, 9};

static opipe_generate_params short_turn(void *ctx, const uint32_t *ids, uint32_t n_ids) {
  return (opipe_generate_params){.struct_size = sizeof(opipe_generate_params),
                                 .n_ids = n_ids,
                                 .ids = ids,
                                 .sampling = "max_tokens=4",
                                 .ctx = ctx,
                                 .on_token = on_token,
                                 .on_end = on_end};
}

static opipe_status ask_in_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                                 opipe_error *err) {
  asking *a = ctx;
  const opipe_generate_params p = short_turn(&a->next, further, 3);
  opipe_error own = OPIPE_ERROR_INIT;
  WITH(sequence, a->n_wrong += opi_sequence_append(s, &p, &own) != OPIPE_E_STATE);
  a->n_wrong += info_of(sequence).state == OPIPE_SEQUENCE_WAITING;
  return on_token(&a->first, sequence, token, err);
}

/* The first turn's end begins another of the sequence, and opens a sequence. */
static void ask_in_end(void *ctx, opipe_sequence *sequence, uint32_t reason,
                       const opipe_error *why) {
  asking *a = ctx;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_generate_params p = short_turn(&a->next, further, 3),
                              q = short_turn(&a->other, further, 3);
  on_end(&a->first, sequence, reason, why);
  WITH(sequence, a->n_wrong += opi_sequence_append(s, &p, &err) != OPIPE_OK);
  a->n_wrong += opi_sequence_open(a->w->generator, &q, &a->opened, &err) != OPIPE_OK;
}

static void ask_inside(bool driven) {
  static world w;
  asking a = {.w = &w, .first.next = 5, .next.next = 12, .other.next = 3};
  alone expected = {.ids = {1, 1, 2, 3, 4}, .n = 5}, other = {.ids = {2, 4, 9}, .n = 3};
  opi_sampling how = opi_sampling_default;
  opipe_sequence *handle = NULL;
  how.max_tokens = 4;
  open(&w, NULL, driven);
  opipe_generate_params p = short_turn(&a, expected.ids, 5);
  p.on_token = ask_in_token;
  p.on_end = ask_in_end;
  OPI_ASSERT_OK_FATAL(opi_sequence_open(w.generator, &p, &handle, &w.err), &w.err);
  for (uint32_t i = 0; driven && i < 200; ++i)
    opi_generator_step(w.generator);
  (void)wait_all(handle, UINT64_MAX, &w.err); /* of the first turn, or of both */
  (void)wait_all(handle, UINT64_MAX, &w.err);
  (void)wait_all(a.opened, UINT64_MAX, &w.err);
  run_alone(&how, 0, &expected);
  OPI_ASSERT(memcmp(a.first.ids, expected.ids + 5, a.first.n * sizeof(uint32_t)) == 0);
  OPI_ASSERT(a.first.n == 4 && a.first.n_ends == 1 && a.n_wrong == 0);
  memcpy(expected.ids + expected.n, further, sizeof further);
  expected.n += 3;
  run_alone(&how, 0, &expected);
  OPI_ASSERT_INT(compare(handle, &expected, a.next.ids, a.next.n, 12), 0);
  run_alone(&how, 0, &other);
  OPI_ASSERT_INT(compare(a.opened, &other, a.other.ids, a.other.n, 3), 0);
  release(handle);
  release(a.opened);
  close_it(&w);
}

static void test_callbacks_begin_turns(void) {
  ask_inside(true);
  ask_inside(false);
}

/* ---- forks, drafts and releases inside callbacks ---- */

enum { BY_TOKEN, BY_LOGITS, FORKS };

typedef struct forking {
  opipe_sequence *forks[FORKS];
  told of_fork[FORKS], own;
  uint32_t n_ids[FORKS]; /* of each fork at first */
  uint32_t n_drafts, n_ends, n_wrong;
} forking;

static void fork_inside(forking *f, opipe_sequence *sequence, uint32_t which, uint32_t n_ids) {
  static const uint64_t seeds[FORKS] = {31, 32};
  opipe_error err = OPIPE_ERROR_INIT;
  f->n_ids[which] = n_ids;
  f->of_fork[which].next = UINT32_MAX; /* some may be held back */
  WITH(sequence, f->n_wrong += opi_sequence_fork(s, &seeds[which], &f->of_fork[which],
                                                 &f->forks[which], &err) != OPIPE_OK);
  f->n_wrong += info_of(f->forks[which]).n_ids != n_ids;
}

/* Forks find their own contexts in the place of their parent's. */
static forking *parent;

static opipe_status fork_in_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                                  opipe_error *err) {
  static const uint32_t draft[2] = {1, 1};
  forking *f = parent;
  if (ctx != f)
    return on_token(ctx, sequence, token, err);
  if (token->position == 9)
    fork_inside(f, sequence, BY_TOKEN, 10);
  WITH(sequence, f->n_drafts += opi_sequence_draft(s, draft, 2, NULL) == OPIPE_OK);
  WITH(sequence, f->n_wrong += opi_sequence_truncate(s, 1, NULL) != OPIPE_E_STATE);
  return on_token(&f->own, sequence, token, err);
}

static opipe_status fork_in_logits(void *ctx, opipe_sequence *sequence, uint32_t position,
                                   void *row, uint32_t n_vocab, uint32_t dtype, int64_t *io_id,
                                   opipe_error *err) {
  (void)row, (void)n_vocab, (void)dtype, (void)io_id, (void)err;
  if (ctx == parent && position == 13)
    fork_inside(parent, sequence, BY_LOGITS, 13);
  return OPIPE_OK;
}

/* The first end shortens the sequence and begins a turn, the second one lets go of it. */
static void release_in_end(void *ctx, opipe_sequence *sequence, uint32_t reason,
                           const opipe_error *why) {
  forking *f = parent;
  opipe_error err = OPIPE_ERROR_INIT;
  if (ctx != f) {
    on_end(ctx, sequence, reason, why);
    return;
  }
  const opipe_generate_params p = {.struct_size = sizeof p,
                                   .n_ids = 3,
                                   .ids = further,
                                   .sampling = "max_tokens=2",
                                   .ctx = f,
                                   .on_end = release_in_end};
  if (++f->n_ends == 2) {
    release(sequence);
    f->n_wrong += info_of(sequence).n_ids != 0; /* a stale handle */
    return;
  }
  WITH(sequence, f->n_wrong += opi_sequence_truncate(s, 6, &err) != OPIPE_OK);
  WITH(sequence, f->n_wrong += opi_sequence_append(s, &p, &err) != OPIPE_OK);
}

static void fork_by(bool driven) {
  static world w;
  static forking f;
  alone expected = {.ids = {1, 1, 2, 3, 4}, .n = 5};
  opi_sampling how = sampling_of(6, 14);
  opipe_sequence *handle = NULL;
  opipe_generation_info info = {.open = 1};
  f = (forking){.own.next = 5};
  parent = &f;
  open(&w, NULL, driven);
  w.runner.n_late = driven ? 1 : 0;
  const opipe_generate_params p = {.struct_size = sizeof p,
                                   .n_ids = 5,
                                   .ids = expected.ids,
                                   .sampling =
                                       "temperature=0.7,seed=6,top_k=6,max_tokens=14,"
                                       "stop=3+1",
                                   .ctx = &f,
                                   .on_token = fork_in_token,
                                   .on_logits = fork_in_logits,
                                   .on_end = release_in_end};
  OPI_ASSERT_OK_FATAL(opi_sequence_open(w.generator, &p, &handle, &w.err), &w.err);
  while (driven && f.n_ends < 2)
    opi_generator_step(w.generator);
  while (!driven && wait_all(handle, UINT64_MAX, &w.err) != OPIPE_E_STATE) {
  }
  run_alone(&how, 0, &expected);
  OPI_ASSERT_FATAL(expected.n == 19 && f.n_ends == 2);
  OPI_ASSERT(memcmp(f.own.ids, expected.ids + 5, f.own.n * sizeof(uint32_t)) == 0);
  OPI_ASSERT(f.own.n == expected.n_shown && f.n_drafts > 5);
  for (uint32_t i = 0; i < FORKS; ++i) {
    alone other = {.n = f.n_ids[i]};
    uint32_t ids[CONTEXT];
    memcpy(other.ids, expected.ids, sizeof other.ids);
    how = sampling_of(31 + i, 14 + 5 - f.n_ids[i]);
    while (driven && info_of(f.forks[i]).end == OPIPE_END_NONE)
      opi_generator_step(w.generator);
    (void)wait_all(f.forks[i], UINT64_MAX, &w.err);
    run_alone(&how, 0, &other);
    OPI_ASSERT_INT(info_of(f.forks[i]).end, other.end);
    OPI_ASSERT_INT(info_of(f.forks[i]).n_ids, other.n);
    WITH(f.forks[i], OPI_ASSERT_OK(opi_sequence_ids(s, 0, other.n, ids, &w.err), &w.err));
    OPI_ASSERT(memcmp(ids, other.ids, other.n * sizeof *ids) == 0);
    OPI_ASSERT_INT(f.of_fork[i].n_ends, 1);
    f.n_wrong += f.of_fork[i].n_wrong;
    release(f.forks[i]);
  }
  OPI_ASSERT_INT(f.n_wrong, 0);
  OPI_ASSERT_OK(opi_generator_info(w.generator, &info, &w.err), &w.err);
  OPI_ASSERT_INT(info.open, 0);
  close_it(&w);
}

static void test_callbacks_fork_draft_and_release(void) {
  fork_by(true);
  fork_by(false);
}

/* ---- other threads call while a callback runs ---- */

typedef struct slow {
  world *w;
  opipe_sequence *own, *opened, *fork;
  told of_opened, of_fork;
  atomic_uint begun, called, done, over; /* called: all but the last; over: the callback */
  uint32_t n_tokens, n_ends, end, n_wrong;
} slow;

static void nap(void) {
  const struct timespec moment = {.tv_nsec = 1000000};
  (void)nanosleep(&moment, NULL);
}

/* Returns when another thread has done all its calls, and a while later. */
static opipe_status wait_inside(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                                opipe_error *err) {
  slow *x = ctx;
  (void)sequence, (void)token, (void)err;
  if (x == NULL)
    return OPIPE_OK; /* of the fork */
  ++x->n_tokens;
  atomic_store(&x->begun, 1);
  while (atomic_load(&x->done) == 0)
    nap();
  for (uint32_t i = 0; i < 20; ++i)
    nap();
  atomic_store(&x->over, 1);
  return OPIPE_OK;
}

static void end_slowly(void *ctx, opipe_sequence *sequence, uint32_t reason,
                       const opipe_error *why) {
  slow *x = ctx;
  (void)sequence, (void)why;
  if (x == NULL)
    return;
  x->n_wrong += atomic_load(&x->over) == 0;
  x->end = reason;
  ++x->n_ends;
}

static void *call_meanwhile(void *arg) {
  slow *x = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_generation_info info;
  uint32_t id = 0;
  const opipe_generate_params p = short_turn(&x->of_opened, further, 3);
  while (atomic_load(&x->begun) == 0)
    nap();
  x->n_wrong += opi_sequence_open(x->w->generator, &p, &x->opened, &err) != OPIPE_OK;
  x->n_wrong += opi_generator_info(x->w->generator, &info, &err) != OPIPE_OK || info.open != 2;
  x->n_wrong += info_of(x->own).n_tokens != 0; /* the callback has not returned */
  WITH(x->own, x->n_wrong += opi_sequence_ids(s, 0, 1, &id, &err) != OPIPE_OK || id != 1);
  WITH(x->own, x->n_wrong += opi_sequence_fork(s, NULL, NULL, &x->fork, &err) != OPIPE_OK);
  x->n_wrong += info_of(x->fork).n_ids != 6 || info_of(x->fork).branch != 1;
  atomic_store(&x->called, 1);
  release(x->fork); /* waits for the callback */
  x->n_wrong += atomic_load(&x->over) == 0;
  return NULL;
}

static void *cancel_meanwhile(void *arg) {
  slow *x = arg;
  while (atomic_load(&x->begun) == 0)
    nap();
  WITH(x->own, x->n_wrong += opi_sequence_cancel(s, NULL) != OPIPE_OK);
  x->n_wrong += info_of(x->own).end != OPIPE_END_NONE;
  return NULL;
}

static void test_a_callback_holds_nobody_up(void) {
  static world w;
  static slow x;
  opi_thread threads[2] = {{.running = false}};
  alone expected = {.ids = {2, 4, 9}, .n = 3};
  const uint32_t ids[5] = {1, 1, 2, 3, 4};
  opi_sampling how = opi_sampling_default;
  how.max_tokens = 4;
  x = (slow){.w = &w, .of_opened.next = 3};
  open(&w, NULL, false);
  const opipe_generate_params p = {.struct_size = sizeof p,
                                   .n_ids = 5,
                                   .ids = ids,
                                   .sampling = "max_tokens=9",
                                   .ctx = &x,
                                   .on_token = wait_inside,
                                   .on_end = end_slowly};
  OPI_ASSERT_OK_FATAL(opi_sequence_open(w.generator, &p, &x.own, &w.err), &w.err);
  OPI_ASSERT_OK_FATAL(opi_thread_start(&threads[0], "cancel", cancel_meanwhile, &x, &w.err),
                      &w.err);
  opi_thread_join(&threads[0]);
  OPI_ASSERT_OK_FATAL(opi_thread_start(&threads[1], "call", call_meanwhile, &x, &w.err), &w.err);
  while (atomic_load(&x.called) == 0)
    nap();
  atomic_store(&x.done, 1);
  opi_thread_join(&threads[1]);
  OPI_ASSERT_INT(wait_all(x.own, UINT64_MAX, &w.err), OPIPE_E_CANCELLED);
  OPI_ASSERT(x.n_tokens == 1 && x.n_ends == 1 && x.end == OPIPE_END_CANCELLED);
  OPI_ASSERT_INT(x.n_wrong, 0);
  OPI_ASSERT_OK(wait_all(x.opened, UINT64_MAX, &w.err), &w.err);
  run_alone(&how, 0, &expected);
  OPI_ASSERT_INT(compare(x.opened, &expected, x.of_opened.ids, x.of_opened.n, 3), 0);
  release(x.own);
  release(x.opened);
  close_it(&w);
}

OPI_TEST_MAIN("callbacks", OPI_TEST(test_callbacks_begin_turns),
              OPI_TEST(test_callbacks_fork_draft_and_release),
              OPI_TEST(test_a_callback_holds_nobody_up))
