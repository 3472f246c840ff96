/* SPDX-License-Identifier: Apache-2.0 */
/* Generation for a long time: threads begin, fork, cancel, extend, shorten, draft, wait for and
 * release sequences at random, in a pool that is too small for them; callbacks fail, invent tokens
 * and write NaN; deadlines pass. Undisturbed greedy answers are those of the sequence alone, and
 * pages, memory and threads end where they began.
 *
 * OPIPE_SOAK_SECONDS: how long (20); the long run takes 1200, under ASan and under TSan.
 * ctest: timeout=1500 label=soak */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "tests/abi/generate_kit.h"

enum { THREADS = 4, HELD = 5, TABLE = 16, CONTEXT = 72, VOCAB = 24, IDS = 80, POOL = 6 };
enum { NONE, FAILS, INVENTS, POISONS, REFUSES, FAULTS };

/* Greedy answers, each by itself, up to the context. */
typedef struct known {
  uint32_t ids[IDS], n_prompt, n;
} known;
static known table[TABLE];

typedef struct worker {
  host_kit *k;
  opi_test_random random;
  pthread_t thread;
  uint64_t n_turns, n_checked, n_wrong;
  uint32_t seen[FAULTS];
} worker;
static atomic_bool over;

/* A sequence that a worker holds. `voice` is the context of its callbacks, and of its answers'. */
typedef struct voice {
  uint32_t fault, at;         /* the fault comes with the token at this position */
  opipe_sequence *answers[4]; /* under the session's own order of callbacks */
  atomic_uint n_answers;
} voice;
typedef struct held {
  opipe_sequence *sequence;
  voice *voice;
  const known *wanted; /* NULL: the answer is not known */
} held;

static uint32_t below(worker *w, uint32_t n) {
  return (uint32_t)(opi_test_next(&w->random) % n);
}

static opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                             opipe_error *err) {
  const voice *v = ctx;
  (void)sequence;
  if (v->fault != FAILS || token->position < v->at)
    return OPIPE_OK;
  (void)err;
  return OPIPE_E_CANCELLED;
}

static opipe_status on_logits(void *ctx, opipe_sequence *sequence, uint32_t position, void *row,
                              uint32_t n_vocab, uint32_t dtype, int64_t *io_id, opipe_error *err) {
  const voice *v = ctx;
  (void)sequence, (void)dtype, (void)err;
  if (position < v->at)
    return OPIPE_OK;
  if (v->fault == INVENTS)
    *io_id = n_vocab + 3;
  if (v->fault == POISONS)
    ((float *)row)[position % n_vocab] = NAN;
  return v->fault == REFUSES ? OPIPE_E_INVALID : OPIPE_OK;
}

static void on_answer(void *ctx, opipe_sequence *sequence, opipe_sequence *answer, void **io_ctx) {
  voice *v = ctx;
  (void)sequence, (void)io_ctx;
  v->answers[atomic_fetch_add(&v->n_answers, 1) % 4] = answer;
}

/* ---- acts of a worker ---- */

static void let_go(worker *w, held *h) {
  if (h->sequence == NULL)
    return;
  w->k->api->sequence_release(h->sequence); /* no answer begins any more */
  for (uint32_t i = 0; i < atomic_load(&h->voice->n_answers); ++i)
    w->k->api->sequence_release(h->voice->answers[i]);
  free(h->voice);
  *h = (held){NULL};
}

/* Ids so far must be the beginning of those known. */
static void check_ids(worker *w, const held *h) {
  opipe_sequence_info info = opipe_sequence_info_init();
  uint32_t ids[IDS];
  if (h->wanted == NULL)
    return;
  const bool right = w->k->api->sequence_info(h->sequence, &info, NULL) == OPIPE_OK &&
                     info.n_ids <= h->wanted->n_prompt + h->wanted->n &&
                     w->k->api->sequence_ids(h->sequence, 0, info.n_ids, ids, NULL) == OPIPE_OK &&
                     memcmp(ids, h->wanted->ids, info.n_ids * sizeof *ids) == 0;
  w->n_wrong += !right;
  ++w->n_checked;
}

/* A new context of callbacks. */
static voice *speak(uint32_t fault, uint32_t at) {
  voice *v = calloc(1, sizeof *v);
  if (v == NULL)
    abort();
  v->fault = fault;
  v->at = at;
  return v;
}

static void fill_turn(worker *w, voice *v, opipe_generate_params *out) {
  out->ctx = v;
  out->on_token = on_token;
  out->on_logits = v->fault == NONE ? NULL : on_logits;
  out->on_answer = on_answer;
  out->deadline_ns = below(w, 12) == 0 ? 1 + below(w, 4000000) : 0;
}

static void begin(worker *w, held *h) {
  const known *prompt = &table[below(w, TABLE)];
  opipe_generate_params p = opipe_generate_params_init();
  opipe_error err = OPIPE_ERROR_INIT;
  char sampling[96];
  const bool greedy = below(w, 2) == 0;
  voice *v = speak(below(w, 3) == 0 ? below(w, FAULTS) : NONE, prompt->n_prompt + below(w, 8));
  ++w->seen[v->fault];
  (void)snprintf(sampling, sizeof sampling,
                 greedy ? "temperature=0,max_tokens=%u" : "seed=%u,n=3,top_k=9,max_tokens=20",
                 greedy ? 1 + below(w, 60) : below(w, 1000));
  p.ids = prompt->ids;
  p.n_ids = prompt->n_prompt;
  p.sampling = sampling;
  fill_turn(w, v, &p);
  const opipe_status status = w->k->api->session_generate(w->k->session, &p, &h->sequence, &err);
  if (status == OPIPE_OK) {
    h->voice = v;
    h->wanted = greedy ? prompt : NULL;
    ++w->n_turns;
    return;
  }
  w->n_wrong += status != OPIPE_E_LIMIT; /* all sequences are taken */
  free(v);
}

static void fork_into(worker *w, const held *h, held *to) {
  const uint64_t seed = below(w, 99);
  voice *v = speak(h->voice->fault, h->voice->at);
  if (w->k->api->sequence_fork(h->sequence, below(w, 2) == 0 ? &seed : NULL, v, &to->sequence,
                               NULL) == OPIPE_OK) {
    to->voice = v;
    to->wanted = h->wanted;
  } else {
    free(v);
  }
}

static void extend(worker *w, held *h) {
  opipe_generate_params p = opipe_generate_params_init();
  const uint32_t more[] = {below(w, VOCAB), below(w, VOCAB)};
  p.ids = more;
  p.n_ids = 2;
  p.sampling = below(w, 2) == 0 ? NULL : "temperature=0,max_tokens=9";
  fill_turn(w, h->voice, &p);
  if (w->k->api->sequence_append(h->sequence, &p, NULL) == OPIPE_OK) {
    h->wanted = NULL;
    ++w->n_turns;
  }
}

static void act(worker *w, held *list) {
  const opipe_api *api = w->k->api;
  held *h = &list[below(w, HELD)], *other = &list[below(w, HELD)];
  const uint32_t what = below(w, 16);
  uint32_t draft[] = {below(w, VOCAB), below(w, VOCAB)};
  if (h->sequence == NULL) {
    begin(w, h);
  } else if (what == 0) {
    check_ids(w, h);
    let_go(w, h);
  } else if (what < 3) {
    (void)api->sequence_cancel(h->sequence, NULL);
    check_ids(w, h);
  } else if (what < 5 && other->sequence == NULL) {
    fork_into(w, h, other);
  } else if (what < 7) {
    extend(w, h);
  } else if (what < 8) {
    if (api->sequence_truncate(h->sequence, 1 + below(w, 70), NULL) == OPIPE_OK)
      check_ids(w, h);
  } else if (what < 9) {
    (void)api->sequence_draft(h->sequence, draft, 2, NULL);
  } else if (what < 12) {
    (void)api->sequence_wait(h->sequence, below(w, 30), below(w, 3) * UINT64_C(2000000), NULL);
  } else {
    (void)api->sequence_wait(h->sequence, UINT32_MAX, UINT64_MAX, NULL);
    check_ids(w, h);
    if (what > 13)
      let_go(w, h);
  }
}

static void *work(void *arg) {
  worker *w = arg;
  held list[HELD] = {{NULL}};
  while (!atomic_load(&over))
    act(w, list);
  for (int i = 0; i < HELD; ++i)
    let_go(w, &list[i]);
  return NULL;
}

/* ---- the whole ---- */

static void open_session(host_kit *k, const opipe_allocator *allocator) {
  const opipe_context_params context = {.struct_size = sizeof context, .allocator = allocator};
  const opipe_generation_params generation = {.struct_size = sizeof generation,
                                              .context = CONTEXT,
                                              .n_tokens = POOL * 64,
                                              .rows = 16,
                                              .groups = 3,
                                              .active = 6,
                                              .draft = 2};
  const opipe_plan_params params = {
      .struct_size = sizeof params, .n_stages = 2, .generation = &generation};
  OPI_ASSERT_OK_FATAL(
      kit_generate(k, &context, opi_test_source("tests/data/rows/group_query/model.onnx"), &params,
                   NULL),
      &k->err);
}

static void learn(host_kit *k) {
  for (uint32_t i = 0; i < TABLE; ++i) {
    known *own = &table[i];
    opipe_generate_params p = opipe_generate_params_init();
    opipe_sequence_info info = opipe_sequence_info_init();
    opipe_sequence *sequence = NULL;
    own->n_prompt = 1 + 4 * i;
    for (uint32_t j = 0; j < own->n_prompt; ++j) /* beginnings in common */
      own->ids[j] = (7 * (j / 20 * (i % 3)) + 3 * j) % VOCAB;
    p.ids = own->ids;
    p.n_ids = own->n_prompt;
    p.sampling = "temperature=0";
    OPI_ASSERT_OK_FATAL(k->api->session_generate(k->session, &p, &sequence, &k->err), &k->err);
    OPI_ASSERT_OK_FATAL(k->api->sequence_wait(sequence, UINT32_MAX, UINT64_MAX, &k->err), &k->err);
    OPI_ASSERT_OK_FATAL(k->api->sequence_info(sequence, &info, &k->err), &k->err);
    own->n = info.n_tokens;
    OPI_ASSERT_OK_FATAL(k->api->sequence_ids(sequence, 0, info.n_ids, own->ids, &k->err), &k->err);
    k->api->sequence_release(sequence);
  }
}

static uint32_t count_threads(void) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[128];
  unsigned n = 0;
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    (void)sscanf(line, "Threads: %u", &n);
  if (file != NULL)
    OPI_ASSERT(fclose(file) == 0);
  return n;
}

static void *nothing(void *arg) {
  return arg;
}

/* A sanitizer may begin a thread of its own with the process's first one; one that was joined may
 * be listed a moment longer. */
static void begin_one(void) {
  const struct timespec moment = {0, 50000000};
  pthread_t thread;
  OPI_ASSERT_FATAL(pthread_create(&thread, NULL, nothing, NULL) == 0);
  OPI_ASSERT_FATAL(pthread_join(thread, NULL) == 0);
  (void)nanosleep(&moment, NULL);
}

static bool are_threads(uint32_t n_wanted) {
  const struct timespec moment = {0, 1000000};
  for (uint32_t i = 0; i < 1000 && count_threads() != n_wanted; ++i)
    (void)nanosleep(&moment, NULL);
  return count_threads() == n_wanted;
}

static opipe_generation_info settled(host_kit *k) {
  opipe_generation_info info = opipe_generation_info_init();
  do { /* passes of sequences that were let go of */
    OPI_ASSERT_OK_FATAL(k->api->session_generation(k->session, &info, &k->err), &k->err);
  } while (info.in_flight > 0);
  return info;
}

/* Whether all has happened that is looked for, however slow the machine is. */
static bool has_seen_all(host_kit *k, const opipe_generation_info *first) {
  opipe_generation_info info = opipe_generation_info_init();
  OPI_ASSERT_OK_FATAL(k->api->session_generation(k->session, &info, &k->err), &k->err);
  return info.evicted > first->evicted && info.reused > first->reused && info.accepted > 0;
}

static void run_workers(host_kit *k, const opipe_generation_info *first, worker *workers) {
  const char *asked = getenv("OPIPE_SOAK_SECONDS");
  const long seconds = asked == NULL ? 20 : strtol(asked, NULL, 10);
  atomic_store(&over, false);
  for (uint32_t i = 0; i < THREADS; ++i) {
    workers[i] = (worker){.k = k, .random = {.state = 17 + i}};
    OPI_ASSERT_FATAL(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
  }
  const struct timespec length = {seconds, 0};
  const struct timespec look = {0, 50000000};
  (void)nanosleep(&length, NULL);
  while (!has_seen_all(k, first)) /* else the time limit of tests ends it */
    (void)nanosleep(&look, NULL);
  atomic_store(&over, true);
  for (uint32_t i = 0; i < THREADS; ++i)
    OPI_ASSERT_FATAL(pthread_join(workers[i].thread, NULL) == 0);
}

static void test_all_ends_where_it_began(void) {
  static worker workers[THREADS];
  opi_test_memory memory = {0};
  host_kit k;
  opi_test_memory_init(&memory);
  begin_one();
  const uint32_t n_threads_before = count_threads();
  open_session(&k, &memory.allocator);
  learn(&k);
  const opipe_generation_info first = settled(&k);
  const uint64_t n_bytes = memory.live_bytes;
  const uint32_t n_threads = count_threads();
  run_workers(&k, &first, workers);
  const opipe_generation_info last = settled(&k);
  OPI_ASSERT_INT(last.open, 0);
  OPI_ASSERT_INT(last.waiting, 0);
  OPI_ASSERT_INT(last.active, 0);
  OPI_ASSERT_INT(last.free_pages + last.kept_pages, last.n_pages);
  OPI_ASSERT_INT(first.free_pages + first.kept_pages, first.n_pages);
  OPI_ASSERT_INT(memory.live_bytes, n_bytes);
  OPI_ASSERT(are_threads(n_threads));
  for (uint32_t i = 0; i < THREADS; ++i) {
    OPI_ASSERT(workers[i].n_turns > 0 && workers[i].n_checked > 0);
    OPI_ASSERT_INT(workers[i].n_wrong, 0);
    (void)printf("thread %u: %llu turns, %llu looks at known answers\n", i,
                 (unsigned long long)workers[i].n_turns, (unsigned long long)workers[i].n_checked);
  }
  (void)printf("%llu passes, %llu tokens, %llu evictions, %llu of %llu drafted ids taken\n",
               (unsigned long long)last.passes, (unsigned long long)last.tokens,
               (unsigned long long)last.evicted, (unsigned long long)last.accepted,
               (unsigned long long)last.drafted);
  k.api->session_close(k.session);
  OPI_ASSERT(are_threads(n_threads_before));
  k.api->plan_destroy(k.plan);
  k.api->model_destroy(k.model);
  k.api->context_destroy(k.context);
  OPI_ASSERT(opi_test_memory_end(&memory));
}

OPI_TEST_MAIN("generate-soak", OPI_TEST(test_all_ends_where_it_began))
