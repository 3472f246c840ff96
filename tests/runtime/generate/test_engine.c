/* SPDX-License-Identifier: Apache-2.0 */
/* The engine over a double that keeps ids in pages: tokens of every turn are those of a plain loop
 * over its ids, whoever drives, whatever threads ask, fork, cancel and append meanwhile; passes
 * that fail, callbacks that refuse, deadlines and a close end turns with their reason.
 * ctest: timeout=120 */
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/runtime/generate/engine_kit.h"

/* ---- threads that ask ---- */

typedef struct asker {
  world *w;
  uint32_t index;
  opi_thread thread;
  uint32_t n_wrong, n_turns, n_forks, n_cancelled, n_full;
} asker;

/* A turn, a further one from its ids, and perhaps a fork that goes on by itself. */
static void ask_once(asker *a, opi_test_random *random) {
  told t = {.n = 0}, of_fork = {.n = 0};
  alone expected = {.n = 2 + (uint32_t)(opi_test_next(random) % 14)};
  const uint32_t seed = (uint32_t)(opi_test_next(random) % 50),
                 what = (uint32_t)(opi_test_next(random) % 6);
  const uint64_t own_seed = 77;
  char text[128];
  opipe_sequence *handle = NULL, *fork = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_sampling how = sampling_of(seed, 20);
  (void)snprintf(text, sizeof text, sampling_text, seed, 20);
  for (uint32_t i = 0; i < expected.n; ++i)
    expected.ids[i] = i < 6 ? 1 : (uint32_t)(opi_test_next(random) % DOUBLE_VOCAB);
  uint32_t n_prompt = expected.n;
  opipe_generate_params p = {.struct_size = sizeof p,
                             .n_ids = n_prompt,
                             .ids = expected.ids,
                             .sampling = text,
                             .ctx = &t,
                             .on_token = on_token,
                             .on_end = on_end};
  t.next = n_prompt;
  const opipe_status opened = opi_sequence_open(a->w->generator, &p, &handle, &err);
  if (opened == OPIPE_E_LIMIT) {
    ++a->n_full;
    return;
  }
  a->n_wrong += opened != OPIPE_OK;
  of_fork.next = UINT32_MAX; /* its first position follows from when it is made */
  if (what == 0) {
    opipe_status forked = OPIPE_E_STATE;
    WITH(handle, (void)opi_sequence_wait(s, 2, UINT64_MAX, NULL));
    WITH(handle, forked = opi_sequence_fork(s, &own_seed, &of_fork, &fork, &err));
    a->n_wrong += forked != OPIPE_OK && forked != OPIPE_E_LIMIT;
    a->n_forks += forked == OPIPE_OK;
  } else if (what == 1) {
    WITH(handle, a->n_wrong += opi_sequence_cancel(s, &err) != OPIPE_OK);
    a->n_cancelled += info_of(handle).end == OPIPE_END_CANCELLED;
  }
  const opipe_status ended = wait_all(handle, UINT64_MAX, &err);
  run_alone(&how, 0, &expected);
  const opipe_sequence_info info = info_of(handle);
  if (info.end == OPIPE_END_CANCELLED) {
    a->n_wrong += ended != OPIPE_E_CANCELLED;
    a->n_wrong += memcmp(t.ids, expected.ids + n_prompt, t.n * sizeof *t.ids) != 0;
  } else {
    a->n_wrong += (ended < 0) != (expected.end == OPIPE_END_FAILED);
    a->n_wrong += compare(handle, &expected, t.ids, t.n, n_prompt);
    ++a->n_turns;
  }
  a->n_wrong += t.n_wrong + (t.n_ends != 1);
  if (fork != NULL) {
    (void)wait_all(fork, UINT64_MAX, &err);
    a->n_wrong += info_of(fork).end == OPIPE_END_NONE || of_fork.n_ends > 1 || of_fork.n_wrong > 0;
    release(fork);
  }
  if (info.end != OPIPE_END_CANCELLED && info.end != OPIPE_END_FAILED && expected.n < 40) {
    static const uint32_t more[3] = {2, 4, 9};
    memcpy(expected.ids + expected.n, more, sizeof more);
    expected.n += 3;
    n_prompt = expected.n;
    t = (told){.next = n_prompt};
    p.ids = more;
    p.n_ids = 3;
    p.sampling = NULL; /* as before */
    WITH(handle, a->n_wrong += opi_sequence_append(s, &p, &err) != OPIPE_OK);
    (void)wait_all(handle, UINT64_MAX, &err);
    run_alone(&how, 0, &expected);
    a->n_wrong += compare(handle, &expected, t.ids, t.n, n_prompt);
    ++a->n_turns;
  }
  release(handle);
}

static void *ask(void *arg) {
  asker *a = arg;
  opi_test_random random = {a->index + 1};
  for (uint32_t i = 0; i < 40; ++i)
    ask_once(a, &random);
  return NULL;
}

static void ask_many(uint32_t n_homes) {
  static world w;
  asker askers[4];
  uint32_t n_turns = 0, n_forks = 0;
  opipe_generation_info info;
  memset(askers, 0, sizeof askers);
  open_homes(&w, NULL, false, n_homes);
  w.runner.pass_ns = w.other.pass_ns = 20000;
  for (uint32_t i = 0; i < 4; ++i) {
    askers[i].w = &w;
    askers[i].index = i;
    OPI_ASSERT_OK_FATAL(opi_thread_start(&askers[i].thread, "asker", ask, &askers[i], &w.err),
                        &w.err);
  }
  for (uint32_t i = 0; i < 4; ++i) {
    opi_thread_join(&askers[i].thread);
    OPI_ASSERT_INT(askers[i].n_wrong, 0);
    n_turns += askers[i].n_turns;
    n_forks += askers[i].n_forks;
  }
  OPI_ASSERT_OK(opi_generator_info(w.generator, &info, &w.err), &w.err);
  OPI_ASSERT_INT(info.open, 0);
  OPI_ASSERT_INT(info.n_pages, 60 * n_homes);
  OPI_ASSERT_INT(info.free_pages + info.kept_pages, 60 * n_homes);
  OPI_ASSERT_INT(info.passes, w.runner.n_begun + w.other.n_begun);
  OPI_ASSERT((w.other.n_begun > 0) == (n_homes > 1));
  OPI_ASSERT(info.reused > 0 && info.accepted > 0 && info.passes > 0 && info.working_ns > 0);
  if (n_turns < 130 || n_forks < 7 || w.runner.n_copies == 0)
    OPI_FAIL("%u turns, %u forks, %u copies", n_turns, n_forks, w.runner.n_copies);
  close_it(&w);
}

static void test_turns_of_many_threads_are_those_alone(void) {
  ask_many(1);
}

static void test_replicas_have_sequences_of_their_own(void) {
  ask_many(2);
}

static opipe_sequence *begin_long(world *w, uint32_t first) {
  uint32_t ids[20];
  opipe_sequence *handle = NULL;
  for (uint32_t i = 0; i < 20; ++i)
    ids[i] = (first + i) % DOUBLE_VOCAB;
  const opipe_generate_params p = {
      .struct_size = sizeof p, .n_ids = 20, .ids = ids, .sampling = "max_tokens=2"};
  OPI_ASSERT_OK_FATAL(opi_sequence_open(w->generator, &p, &handle, &w->err), &w->err);
  return handle;
}

/* The replica that knows a prompt's beginning gets it; without one, that with fewer turns. */
static void test_a_beginning_leads_to_its_replica(void) {
  static world w;
  open_homes(&w, NULL, true, 2);
  w.runner.n_late = w.other.n_late = 3;
  opipe_sequence *first = begin_long(&w, 1), *second = begin_long(&w, 5);
  OPI_ASSERT(w.runner.n_begun > 0 && w.other.n_begun > 0);
  for (uint32_t i = 0; i < 40; ++i)
    opi_generator_step(w.generator);
  OPI_ASSERT(info_of(first).end != OPIPE_END_NONE && info_of(second).end != OPIPE_END_NONE);
  const uint64_t n_begun = w.runner.n_begun;
  opipe_sequence *again = begin_long(&w, 5);
  OPI_ASSERT_INT(info_of(again).n_reused, 16);
  OPI_ASSERT_INT(w.runner.n_begun, n_begun);
  release(first);
  release(second);
  release(again);
  close_it(&w);
}

/* ---- without a thread ---- */

static void test_a_host_that_drives_gets_the_same(void) {
  static world w;
  told t = {.next = 5};
  alone expected = {.ids = {1, 1, 2, 3, 4}, .n = 5};
  const opi_sampling how = sampling_of(9, 12);
  opipe_sequence *handle = NULL;
  open(&w, NULL, true);
  w.runner.n_late = 2;
  w.runner.n_full = 1;
  const opipe_generate_params p = {.struct_size = sizeof p,
                                   .n_ids = 5,
                                   .ids = expected.ids,
                                   .sampling =
                                       "temperature=0.7,seed=9,top_k=6,max_tokens=12,"
                                       "stop=3+1",
                                   .ctx = &t,
                                   .on_token = on_token,
                                   .on_end = on_end};
  OPI_ASSERT_OK_FATAL(opi_sequence_open(w.generator, &p, &handle, &w.err), &w.err);
  OPI_ASSERT_INT(wait_all(handle, 0, &w.err), OPIPE_E_TIMEOUT);
  for (uint32_t i = 0; i < 200 && t.n_ends == 0; ++i)
    opi_generator_step(w.generator);
  OPI_ASSERT_INT(wait_all(handle, 0, &w.err) == OPIPE_E_TIMEOUT, 0);
  run_alone(&how, 0, &expected);
  OPI_ASSERT_INT(compare(handle, &expected, t.ids, t.n, 5), 0);
  release(handle);
  close_it(&w);
}

/* ---- ends ---- */

static opipe_status refuse_third(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                                 opipe_error *err) {
  told *t = ctx;
  (void)sequence, (void)token;
  return ++t->n == 3 ? opi_fail(err, OPIPE_E_LIMIT, "enough") : OPIPE_OK;
}

static opipe_status invent(void *ctx, opipe_sequence *sequence, uint32_t position, void *row,
                           uint32_t n_vocab, uint32_t dtype, int64_t *io_id, opipe_error *err) {
  (void)ctx, (void)sequence, (void)row, (void)dtype, (void)err;
  *io_id = position < 6 ? 2 : (int64_t)n_vocab;
  return OPIPE_OK;
}

static opipe_status refuse_row(void *ctx, opipe_sequence *sequence, uint32_t position, void *row,
                               uint32_t n_vocab, uint32_t dtype, int64_t *io_id, opipe_error *err) {
  (void)ctx, (void)sequence, (void)row, (void)n_vocab, (void)dtype, (void)io_id, (void)err;
  return position == 7 ? 5 : OPIPE_OK;
}

/* Two sequences: the first ends as `change` makes it, the second as alone. */
static void end_one(const opipe_generate_params *change, double_runner *like, opipe_status status,
                    const char *message) {
  static world w;
  told t = {.n = 0}, o = {.next = 4};
  alone expected = {.ids = {2, 5, 6, 7}, .n = 4};
  const uint32_t ids[4] = {1, 1, 1, 2};
  const opi_sampling how = sampling_of(4, 9);
  opipe_sequence *first = NULL, *other = NULL;
  opipe_generate_params p = *change;
  opi_batch_params one_each = {
      .pool = {.page = 4, .n_pages = 40, .n_sequences = 4, .context = CONTEXT, .reuse = true},
      .active = 4,
      .rows = 4,
      .groups = 2};
  open(&w, like == NULL ? NULL : &one_each, false);
  if (like != NULL) {
    w.runner.fails_at = like->fails_at;
    w.runner.refuses_at = like->refuses_at;
    w.runner.pass_ns = like->pass_ns;
  }
  p.struct_size = sizeof p;
  p.ids = ids;
  p.n_ids = 4;
  p.ctx = &t;
  p.on_end = on_end;
  p.sampling = p.sampling == NULL ? "temperature=0" : p.sampling;
  OPI_ASSERT_OK_FATAL(opi_sequence_open(w.generator, &p, &first, &w.err), &w.err);
  if (like == NULL) { /* beside it */
    const opipe_generate_params q = {.struct_size = sizeof q,
                                     .n_ids = 4,
                                     .ids = expected.ids,
                                     .sampling =
                                         "temperature=0.7,seed=4,top_k=6,max_tokens=9,"
                                         "stop=3+1",
                                     .ctx = &o,
                                     .on_token = on_token,
                                     .on_end = on_end};
    OPI_ASSERT_OK_FATAL(opi_sequence_open(w.generator, &q, &other, &w.err), &w.err);
  }
  OPI_ASSERT_ERROR(wait_all(first, UINT64_MAX, &w.err), status, &w.err, message);
  OPI_ASSERT_INT(info_of(first).end, OPIPE_END_FAILED);
  OPI_ASSERT_INT(info_of(first).status, status);
  OPI_ASSERT_INT(t.n_ends, 1);
  if (other != NULL) {
    (void)wait_all(other, UINT64_MAX, &w.err);
    run_alone(&how, 0, &expected);
    OPI_ASSERT_INT(compare(other, &expected, o.ids, o.n, 4), 0);
  } else if (like->pass_ns == 0) { /* and it goes on with a further turn */
    const opipe_generate_params q = {
        .struct_size = sizeof q, .n_ids = 1, .ids = ids, .sampling = "temperature=0,max_tokens=2"};
    opipe_status status_of_next = OPIPE_E_STATE;
    WITH(first, status_of_next = opi_sequence_append(s, &q, &w.err));
    OPI_ASSERT_OK(status_of_next, &w.err);
    OPI_ASSERT_OK(wait_all(first, UINT64_MAX, &w.err), &w.err);
  }
  close_it(&w);
}

static void test_ends_have_their_reason_and_touch_nobody_else(void) {
  double_runner d = {.fails_at = 2};
  end_one(&(opipe_generate_params){.on_token = refuse_third}, NULL, OPIPE_E_LIMIT,
          "on_token at position 6: enough");
  end_one(&(opipe_generate_params){.on_logits = invent}, NULL, OPIPE_E_INVALID, "11");
  end_one(&(opipe_generate_params){.on_logits = refuse_row}, NULL, OPIPE_E_INVALID,
          "on_logits at position 7 answered 5");
  end_one(&(opipe_generate_params){.on_token = NULL}, &d, OPIPE_E_PEER, "rank 1 died");
  d = (double_runner){.refuses_at = 2};
  end_one(&(opipe_generate_params){.on_token = NULL}, &d, OPIPE_E_DEVICE, "rank 0 is gone");
  d = (double_runner){.pass_ns = 20000000};
  end_one(&(opipe_generate_params){.deadline_ns = 50000000, .sampling = "temperature=0"}, &d,
          OPIPE_E_TIMEOUT, "the deadline passed after");
}

static void ignore_answer(void *ctx, opipe_sequence *sequence, opipe_sequence *answer,
                          void **io_ctx) {
  opipe_sequence **others = ctx;
  (void)sequence, (void)io_ctx;
  while (*others != NULL)
    ++others;
  *others = answer;
}

static void test_answers_are_branches(void) {
  static world w;
  opipe_sequence *others[4] = {NULL}, *first = NULL;
  const uint32_t ids[3] = {1, 2, 3};
  opi_sampling how = sampling_of(11, 10);
  opipe_generate_params p = {.struct_size = sizeof p,
                             .n_ids = 3,
                             .ids = ids,
                             .sampling =
                                 "temperature=0.7,seed=11,top_k=6,max_tokens=10,stop=3+1,"
                                 "n=4"};
  open(&w, NULL, false);
  OPI_ASSERT_ERROR(opi_sequence_open(w.generator, &p, &first, &w.err), OPIPE_E_INVALID, &w.err,
                   "4 answers are asked for, but on_answer is NULL");
  p.on_answer = ignore_answer;
  p.ctx = others;
  OPI_ASSERT_OK_FATAL(opi_sequence_open(w.generator, &p, &first, &w.err), &w.err);
  (void)wait_all(first, UINT64_MAX, &w.err);
  for (uint32_t i = 0; i < 4; ++i) {
    opipe_sequence *one = i == 0 ? first : others[i - 1];
    alone expected = {.ids = {1, 2, 3}, .n = 3};
    (void)wait_all(one, UINT64_MAX, &w.err);
    run_alone(&how, i, &expected);
    const opipe_sequence_info info = info_of(one);
    OPI_ASSERT_INT(info.branch, i);
    OPI_ASSERT_INT(info.n_ids, expected.n);
    OPI_ASSERT_INT(info.end, expected.end);
    release(one);
  }
  close_it(&w);
}

/* A close while passes are in flight cancels every turn; who waits is told. */
typedef struct waiter {
  opipe_sequence *handle;
  opipe_status status;
  atomic_bool waits;
} waiter;

static void *wait_for(void *arg) {
  waiter *of = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  atomic_store(&of->waits, true);
  of->status = wait_all(of->handle, UINT64_MAX, &err);
  return NULL;
}

static void test_a_close_ends_everything(void) {
  static world w;
  told t[3] = {{.next = 3}, {.next = 3}, {.next = 3}};
  waiter of = {.status = OPIPE_OK};
  opi_thread thread = {.running = false};
  const uint32_t ids[3] = {1, 1, 1};
  open(&w, NULL, false);
  w.runner.pass_ns = 30000000;
  for (uint32_t i = 0; i < 3; ++i) {
    const opipe_generate_params p = {.struct_size = sizeof p,
                                     .n_ids = 3,
                                     .ids = ids,
                                     .ctx = &t[i],
                                     .on_token = on_token,
                                     .on_end = on_end};
    OPI_ASSERT_OK_FATAL(opi_sequence_open(w.generator, &p, &of.handle, &w.err), &w.err);
  }
  OPI_ASSERT_OK_FATAL(opi_thread_start(&thread, "waiter", wait_for, &of, &w.err), &w.err);
  while (!atomic_load(&of.waits)) {
    const struct timespec moment = {.tv_nsec = 1000000};
    (void)nanosleep(&moment, NULL);
  }
  close_it(&w);
  opi_thread_join(&thread);
  OPI_ASSERT(of.status == OPIPE_E_CANCELLED || of.status == OPIPE_E_STATE);
  for (uint32_t i = 0; i < 3; ++i)
    OPI_ASSERT_INT(t[i].n_ends, 1);
}

/* Nothing is allocated while passes are computed, and memory is what was said before. */
static void test_memory_is_that_of_the_opening(void) {
  static world w;
  const uint32_t ids[3] = {1, 5, 1};
  uint64_t n_bytes = 0;
  opipe_sequence *handle = NULL;
  open(&w, NULL, true);
  const opi_generator_params params = {.n_runners = 1, .facts = double_facts(&w.runner)};
  OPI_ASSERT_OK(opi_generator_bytes(&params, &n_bytes, &w.err), &w.err);
  OPI_ASSERT_INT(w.memory.peak_bytes, n_bytes);
  const opipe_generate_params p = {.struct_size = sizeof p, .n_ids = 3, .ids = ids};
  OPI_ASSERT_OK_FATAL(opi_sequence_open(w.generator, &p, &handle, &w.err), &w.err);
  const uint64_t n_calls = w.memory.n_calls;
  for (uint32_t i = 0; i < 20; ++i)
    opi_generator_step(w.generator);
  OPI_ASSERT(info_of(handle).end != OPIPE_END_NONE);
  OPI_ASSERT_INT(w.memory.n_calls, n_calls);
  close_it(&w);
}

OPI_TEST_MAIN("engine", OPI_TEST(test_turns_of_many_threads_are_those_alone),
              OPI_TEST(test_replicas_have_sequences_of_their_own),
              OPI_TEST(test_a_beginning_leads_to_its_replica),
              OPI_TEST(test_a_host_that_drives_gets_the_same),
              OPI_TEST(test_ends_have_their_reason_and_touch_nobody_else),
              OPI_TEST(test_answers_are_branches), OPI_TEST(test_a_close_ends_everything),
              OPI_TEST(test_memory_is_that_of_the_opening))
