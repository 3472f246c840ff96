/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler, against memory that is written row by row as a stage would: random arrivals,
 * forks, drafts, further turns, cancels, pools that are too small. Every row must find the words of
 * all that lies before it, every sequence gets the ids that it has alone, and everything ends. */
#include <stdlib.h>

#include "runtime/generate/batch.h"
#include "tests/support/support.h"

enum { SEQUENCES = 7, CONTEXT = 48, PAGES_MOST = 40, PAGE_MOST = 6, ROWS_MOST = 16, VOCAB = 3 };

/* One sequence as its host sees it. */
typedef struct teller {
  bool open;
  uint64_t salt, order;
  uint32_t n_until; /* ids at which its turn ends */
  uint32_t ids[CONTEXT], n;
} teller;

typedef struct world {
  opi_batch_params params;
  opi_test_memory memory;
  opi_batch *batch;
  opipe_error err;
  opi_test_random random;
  uint64_t written[PAGES_MOST][PAGE_MOST];
  teller tellers[SEQUENCES];
  uint64_t trace, last_order; /* trace: a hash of all passes */
  uint64_t n_evicted, n_reused, n_copied, n_drafted, n_accepted, n_turns, n_stopped, n_forked,
      n_branched, n_shared; /* shared: pages at once */
} world;

/* ---- the model ---- */

static uint64_t extend_word(uint64_t word, uint32_t id) {
  return (word ^ (id + 1)) * UINT64_C(0x100000001b3);
}

static uint64_t word_of(uint64_t salt, const uint32_t *ids, uint32_t n) {
  uint64_t word = salt * 31 + 7;
  for (uint32_t i = 0; i < n; ++i)
    word = extend_word(word, ids[i]);
  return word;
}

/* The id behind ids [n]: mostly the least likely to surprise. */
static uint32_t next_id(uint64_t salt, const uint32_t *ids, uint32_t n) {
  const uint64_t word = word_of(salt, ids, n) >> 13;
  return word % 4 == 0 ? (uint32_t)(word / 4 % VOCAB) : 0;
}

static uint32_t any(world *w, uint32_t below) {
  return (uint32_t)(opi_test_next(&w->random) % below);
}

static void set_up(world *w, uint32_t seed, const opi_batch_params *params) {
  memset(w, 0, sizeof *w);
  w->err = (opipe_error)OPIPE_ERROR_INIT;
  w->random.state = seed;
  w->params = *params;
  opi_test_memory_init(&w->memory);
  OPI_ASSERT_OK_FATAL(opi_batch_create(&w->memory.allocator, params, &w->batch, &w->err), &w->err);
}

static void tear_down(world *w) {
  uint64_t n_bytes = 0;
  OPI_ASSERT_OK(opi_batch_bytes(&w->params, &n_bytes, &w->err), &w->err);
  OPI_ASSERT_INT(w->memory.peak_bytes, n_bytes);
  OPI_ASSERT_INT(w->memory.n_calls, 2);
  opi_batch_free(w->batch);
  OPI_ASSERT(opi_test_memory_end(&w->memory));
}

/* ---- computing a pass ---- */

/* Writes the rows of an entry after looking at all words before each. */
static uint32_t compute_entry(world *w, const opi_pass_entry *e) {
  const teller *t = &w->tellers[e->sequence];
  const uint32_t page = w->params.pool.page;
  uint32_t ids[ROWS_MOST], n_pages = 0, n_wrong = 0;
  const uint32_t *table = opi_kv_table(opi_batch_pool(w->batch), e->sequence, &n_pages);
  uint64_t word = t->salt * 31 + 7;
  opi_batch_row_ids(w->batch, e, ids);
  if (e->copy.to != OPI_NO_PAGE) {
    memcpy(w->written[e->copy.to], w->written[e->copy.from], e->copy.n_tokens * sizeof(uint64_t));
    ++w->n_copied;
  }
  n_wrong += (e->first + e->n_rows - 1) / page >= n_pages;
  for (uint32_t at = 0; n_wrong == 0 && at < e->first + e->n_rows; ++at) {
    const bool is_row = at >= e->first;
    const uint32_t id = is_row ? ids[at - e->first] : t->ids[at];
    word = extend_word(word, id);
    n_wrong += is_row && at < t->n && id != t->ids[at];
    if (is_row)
      w->written[table[at / page]][at % page] = word;
    n_wrong += w->written[table[at / page]][at % page] != word;
  }
  return n_wrong;
}

static void compute(world *w, const opi_pass *pass) {
  uint32_t n_rows = 0, n_wrong = 0, n_extra = 0;
  uint64_t n_keys = 0;
  for (uint32_t i = 0; i < pass->n_entries; ++i) {
    const opi_pass_entry *e = &pass->entries[i];
    const teller *t = &w->tellers[e->sequence];
    const bool last = e->first + e->n_rows - e->n_draft == t->n;
    n_wrong += compute_entry(w, e);
    n_wrong += e->n_rows == 0 || e->n_wanted != (last ? e->n_draft + 1 : 0);
    for (uint32_t r = 0; r < e->n_rows; ++r)
      n_keys += e->first + r + 1;
    n_rows += e->n_rows;
    n_extra += e->n_wanted == 0 ? e->n_rows : e->n_rows - 1;
    w->n_drafted += e->n_draft;
    w->trace = (w->trace ^ (e->sequence + 8 * e->first + 512 * e->n_rows)) * 1099511628211u;
  }
  OPI_ASSERT_INT(n_wrong, 0);
  OPI_ASSERT(pass->n_rows == n_rows && pass->n_keys == n_keys);
  OPI_ASSERT(n_rows > 0 && n_rows <= w->params.rows && pass->n_entries <= n_rows);
  OPI_ASSERT(w->params.gap == 0 || pass->time <= w->params.gap || n_extra <= 1);
}

/* ---- its end ---- */

/* Samples behind the rows of an entry as far as its draft is right, and hands the ids over. */
static void answer(world *w, const opi_pass_entry *e, const uint32_t *draft) {
  teller *t = &w->tellers[e->sequence];
  uint32_t n = 0, ids[ROWS_MOST + 1];
  do {
    ids[n] = t->ids[t->n] = next_id(t->salt, t->ids, t->n);
    ++t->n;
    ++n;
  } while (n <= e->n_draft && draft[n - 1] == ids[n - 1] && t->n < t->n_until);
  w->n_accepted += n - 1;
  const bool goes_on = t->n < t->n_until;
  OPI_ASSERT_OK(opi_batch_accept(w->batch, e->sequence, ids, n, goes_on, &w->err), &w->err);
  w->n_turns += !goes_on;
  const opi_sequence_info info = opi_batch_info(w->batch, e->sequence);
  OPI_ASSERT(info.n_ids == t->n && !info.due);
  OPI_ASSERT(goes_on == (info.state != OPI_SEQUENCE_IDLE));
}

/* Drafts that are right for some ids and then perhaps wrong. */
static void give_draft(world *w, uint32_t sequence) {
  const teller *t = &w->tellers[sequence];
  uint32_t ids[CONTEXT + 16], n = any(w, w->params.draft + 1);
  memcpy(ids, t->ids, t->n * sizeof *ids);
  for (uint32_t i = 0; i < n; ++i)
    ids[t->n + i] = any(w, 8) == 0 ? any(w, VOCAB) : next_id(t->salt, ids, t->n + i);
  OPI_ASSERT_OK(opi_batch_draft(w->batch, sequence, ids + t->n, n, &w->err), &w->err);
}

static void fork(world *w, uint32_t sequence) {
  uint32_t other = 0;
  if (opi_batch_count(w->batch).open == SEQUENCES) {
    OPI_ASSERT_ERROR(opi_batch_fork(w->batch, sequence, &other, &w->err), OPIPE_E_LIMIT, &w->err,
                     "7 sequences are open");
    return;
  }
  OPI_ASSERT_OK(opi_batch_fork(w->batch, sequence, &other, &w->err), &w->err);
  w->tellers[other] = w->tellers[sequence];
  w->tellers[other].order = ++w->last_order;
  ++w->n_forked;
}

/* A branch of the first n ids, with rows in flight or due of the sequence or not. */
static void branch(world *w, uint32_t sequence, uint32_t n, bool goes_on) {
  const uint32_t context = opi_batch_context(w->batch);
  uint32_t other = 0;
  teller t = w->tellers[sequence];
  if (opi_batch_count(w->batch).open == SEQUENCES || (goes_on && n >= context))
    return;
  memcpy(t.ids, opi_batch_ids(w->batch, sequence), n * sizeof *t.ids);
  OPI_ASSERT_OK(opi_batch_branch(w->batch, sequence, n, goes_on, &other, &w->err), &w->err);
  const opi_sequence_info info = opi_batch_info(w->batch, other);
  OPI_ASSERT(info.n_ids == n && !info.due && info.n_in_flight == 0);
  OPI_ASSERT(goes_on == (info.state != OPI_SEQUENCE_IDLE));
  t.n = n;
  t.n_until = goes_on ? n + 1 + any(w, context - n) : n;
  t.order = goes_on ? ++w->last_order : t.order;
  w->tellers[other] = t;
  w->n_shared += info.state == OPI_SEQUENCE_ACTIVE;
  ++w->n_branched;
}

/* Behind an id of the draft that is right, before the ids are handed over. */
static void branch_due(world *w, const opi_pass_entry *e, const uint32_t *draft) {
  const teller *t = &w->tellers[e->sequence];
  uint32_t *ids = opi_batch_ids(w->batch, e->sequence);
  const uint32_t next = next_id(t->salt, t->ids, t->n);
  const bool right = e->n_draft > 0 && draft[0] == next && t->n + 1 < t->n_until;
  if (right)
    ids[t->n] = next;
  branch(w, e->sequence, right ? t->n + 1 : t->n, true);
}

static void finish(world *w) {
  uint32_t drafts[ROWS_MOST][ROWS_MOST];
  const opi_pass *pass = opi_batch_done(w->batch);
  if (pass == NULL)
    return;
  for (uint32_t i = 0; i < pass->n_entries; ++i) {
    const opi_pass_entry *e = &pass->entries[i];
    uint32_t ids[ROWS_MOST];
    if (!e->live || e->n_wanted == 0)
      continue;
    OPI_ASSERT(opi_batch_info(w->batch, e->sequence).due);
    opi_batch_row_ids(w->batch, e, ids);
    memcpy(drafts[i], ids + e->n_rows - e->n_draft, e->n_draft * sizeof *ids);
    const uint32_t n_open = opi_batch_count(w->batch).open;
    uint32_t other = SEQUENCES;
    if (any(w, 20) == 0) {
      branch_due(w, e, drafts[i]);
    } else if (any(w, 10) == 0 && n_open < SEQUENCES &&
               opi_batch_info(w->batch, e->sequence).n_in_flight == 0) {
      OPI_ASSERT_OK(opi_batch_fork(w->batch, e->sequence, &other, &w->err), &w->err);
      w->tellers[other] = w->tellers[e->sequence];
      w->tellers[other].order = ++w->last_order;
      ++w->n_forked;
    }
    answer(w, e, drafts[i]);
    if (other < SEQUENCES) { /* the same rows answer both */
      opi_pass_entry twin = *e;
      twin.sequence = other;
      answer(w, &twin, drafts[i]);
    }
    const uint32_t state = opi_batch_info(w->batch, e->sequence).state;
    if (state != OPI_SEQUENCE_IDLE && w->params.draft > 0 && any(w, 2) == 0)
      give_draft(w, e->sequence);
  }
}

/* ---- the host ---- */

static void submit(world *w) {
  teller t = {.open = true, .salt = any(w, 4) == 0};
  const uint32_t context = opi_batch_context(w->batch);
  uint32_t sequence = 0;
  t.n = 1 + any(w, context + 2);
  for (uint32_t i = 0; i < t.n && i < CONTEXT; ++i)
    t.ids[i] = any(w, 6) == 0 ? any(w, VOCAB) : 0;
  static const uint32_t zeros[CONTEXT + 2] = {0};
  const opipe_status status =
      opi_batch_submit(w->batch, t.n < CONTEXT ? t.ids : zeros, t.n, t.salt, &sequence, &w->err);
  if (t.n >= context) {
    OPI_ASSERT_ERROR(status, OPIPE_E_LIMIT, &w->err, "tokens with the first of its answer");
    return;
  }
  if (status == OPIPE_E_LIMIT) {
    OPI_ASSERT(strstr(w->err.message, "7 sequences are open") != NULL);
    return;
  }
  OPI_ASSERT_OK_FATAL(status, &w->err);
  OPI_ASSERT(!w->tellers[sequence].open);
  t.n_until = t.n + 1 + any(w, context - t.n);
  t.order = ++w->last_order;
  w->tellers[sequence] = t;
}

static void act_idle(world *w, uint32_t s) {
  teller *t = &w->tellers[s];
  const uint32_t context = opi_batch_context(w->batch), what = any(w, 5);
  if (what == 4) {
    branch(w, s, 1 + any(w, t->n), any(w, 2) == 0);
  } else if (what == 0) {
    const uint32_t n = 1 + any(w, t->n);
    OPI_ASSERT_OK(opi_batch_truncate(w->batch, s, n, &w->err), &w->err);
    t->n = n;
  } else if (what == 1 || t->n + 1 >= context) {
    OPI_ASSERT_OK(opi_batch_release(w->batch, s, &w->err), &w->err);
    t->open = false;
  } else {
    const uint32_t n = 1 + any(w, context - t->n - 1);
    for (uint32_t i = 0; i < n; ++i)
      t->ids[t->n + i] = any(w, VOCAB);
    OPI_ASSERT_OK(opi_batch_extend(w->batch, s, t->ids + t->n, n, &w->err), &w->err);
    t->n += n;
    t->n_until = t->n + 1 + any(w, context - t->n);
    t->order = ++w->last_order;
  }
}

static void act(world *w) {
  const uint32_t s = any(w, SEQUENCES), what = any(w, 40);
  const opi_sequence_info info = opi_batch_info(w->batch, s);
  if (what < 12) {
    submit(w);
  } else if (info.state == OPI_SEQUENCE_IDLE) {
    act_idle(w, s);
  } else if (info.state != OPI_SEQUENCE_FREE && what == 12) {
    OPI_ASSERT_OK(opi_batch_stop(w->batch, s, any(w, 2) == 0, &w->err), &w->err);
    ++w->n_stopped;
  } else if (info.state != OPI_SEQUENCE_FREE && what == 13) {
    OPI_ASSERT_OK(opi_batch_release(w->batch, s, &w->err), &w->err);
    w->tellers[s].open = false;
  } else if (info.state != OPI_SEQUENCE_FREE && what == 14 && info.n_in_flight == 0 && !info.due) {
    fork(w, s);
  } else if (info.state != OPI_SEQUENCE_FREE && what == 15) {
    branch(w, s, any(w, 2) == 0 ? info.n_ids : 1 + any(w, info.n_ids), true);
  }
}

/* Who has entered is older than all that wait; who was evicted, and has not entered again at once,
 * is younger than all that stay. */
static void make_pass(world *w) {
  opi_sequence_info before[SEQUENCES], after[SEQUENCES];
  uint32_t n_wrong = 0;
  for (uint32_t s = 0; s < SEQUENCES; ++s)
    before[s] = opi_batch_info(w->batch, s);
  const opi_pass *pass = opi_batch_next(w->batch);
  for (uint32_t s = 0; s < SEQUENCES; ++s)
    after[s] = opi_batch_info(w->batch, s);
  for (uint32_t a = 0; a < SEQUENCES; ++a) {
    const bool entered =
        before[a].state == OPI_SEQUENCE_WAITING && after[a].state == OPI_SEQUENCE_ACTIVE;
    const bool evicted = after[a].n_evicted > before[a].n_evicted;
    w->n_evicted += evicted;
    w->n_reused += after[a].n_reused > before[a].n_reused;
    for (uint32_t b = 0; b < SEQUENCES; ++b) {
      const uint64_t x = w->tellers[a].order, y = w->tellers[b].order;
      n_wrong += entered && after[b].state == OPI_SEQUENCE_WAITING && x > y;
      n_wrong += evicted && after[a].state != OPI_SEQUENCE_ACTIVE &&
                 after[b].state == OPI_SEQUENCE_ACTIVE && x < y;
    }
  }
  OPI_ASSERT_INT(n_wrong, 0);
  if (pass != NULL)
    compute(w, pass);
}

/* Lets all turns end. Returns false if they do not. */
static bool run_out(world *w) {
  for (uint32_t i = 0; i < 20000; ++i) {
    bool busy = false;
    make_pass(w);
    finish(w);
    for (uint32_t s = 0; s < SEQUENCES; ++s)
      busy |= opi_batch_info(w->batch, s).state > OPI_SEQUENCE_IDLE;
    if (!busy && opi_batch_count(w->batch).in_flight == 0)
      return true;
  }
  return false;
}

static opi_batch_params params_of(uint32_t round) {
  opi_batch_params p = {.pool = {1 + round % PAGE_MOST, 0, SEQUENCES, CONTEXT, round % 5 != 4},
                        .active = 1 + round % SEQUENCES,
                        .rows = 1 + round * 7 % ROWS_MOST,
                        .groups = 1 + round % 4,
                        .draft = round % 3 == 0 ? 0 : round % 7,
                        .key_time = round % 2 == 0 ? 0.01 : 0,
                        .gap = round % 4 == 1 ? 3 : 0};
  p.pool.n_pages = 5 + round * 11 % (PAGES_MOST - 4);
  for (uint32_t c = 0; c < OPI_PASS_CLASSES; ++c)
    p.class_time[c] = 1 + c;
  return p;
}

static void play(world *w, uint32_t round) {
  const opi_batch_params p = params_of(round);
  set_up(w, round + 1, &p);
  for (uint32_t i = 0; i < 700; ++i) {
    act(w);
    make_pass(w);
    if (opi_batch_count(w->batch).in_flight == p.groups || any(w, 3) == 0)
      finish(w);
  }
  OPI_ASSERT(run_out(w));
  for (uint32_t s = 0; s < SEQUENCES; ++s) {
    const teller *t = &w->tellers[s];
    if (!t->open)
      continue;
    OPI_ASSERT_INT(opi_batch_info(w->batch, s).n_ids, t->n);
    OPI_ASSERT(memcmp(opi_batch_ids(w->batch, s), t->ids, t->n * sizeof *t->ids) == 0);
  }
  OPI_ASSERT_INT(opi_kv_room(opi_batch_pool(w->batch)), p.pool.n_pages);
  OPI_ASSERT_INT(opi_batch_count(w->batch).active + opi_batch_count(w->batch).waiting, 0);
}

static void test_every_sequence_goes_on_as_if_alone(void) {
  static world w, again;
  world sums = {0};
  for (uint32_t round = 0; round < 80; ++round) {
    play(&w, round);
    if (round % 10 == 0) { /* the same calls, the same passes */
      play(&again, round);
      OPI_ASSERT(w.trace == again.trace && w.n_turns == again.n_turns);
      tear_down(&again);
    }
    sums.n_evicted += w.n_evicted;
    sums.n_reused += w.n_reused;
    sums.n_copied += w.n_copied;
    sums.n_accepted += w.n_accepted;
    sums.n_drafted += w.n_drafted;
    sums.n_turns += w.n_turns;
    sums.n_stopped += w.n_stopped;
    sums.n_forked += w.n_forked;
    sums.n_branched += w.n_branched;
    sums.n_shared += w.n_shared;
    tear_down(&w);
  }
  const uint64_t least = sums.n_evicted < sums.n_copied ? sums.n_evicted : sums.n_copied;
  if (least < 150 || sums.n_reused < 200 || sums.n_accepted < 500 || sums.n_turns < 2000 ||
      sums.n_stopped < 100 || sums.n_forked < 200 || sums.n_branched < 600 || sums.n_shared < 150 ||
      sums.n_drafted <= sums.n_accepted) {
    OPI_FAIL(
        "%d evicted, %d reused, %d copied, %d of %d drafted accepted, %d turns, %d stopped, "
        "%d forked, %d branched, %d with pages at once",
        (int)sums.n_evicted, (int)sums.n_reused, (int)sums.n_copied, (int)sums.n_accepted,
        (int)sums.n_drafted, (int)sums.n_turns, (int)sums.n_stopped, (int)sums.n_forked,
        (int)sums.n_branched, (int)sums.n_shared);
  }
}

/* ---- single rules ---- */

static opi_batch_params plain_params(void) {
  opi_batch_params p = {.pool = {4, 30, SEQUENCES, CONTEXT, true},
                        .active = SEQUENCES,
                        .rows = 16,
                        .groups = 1,
                        .draft = 4};
  for (uint32_t c = 0; c < OPI_PASS_CLASSES; ++c)
    p.class_time[c] = 1 << (c < 20 ? c : 20);
  return p;
}

static uint32_t submit_zeros(world *w, uint32_t n, uint64_t salt) {
  static const uint32_t zeros[CONTEXT] = {0};
  uint32_t sequence = 99;
  OPI_ASSERT_OK_FATAL(opi_batch_submit(w->batch, zeros, n, salt, &sequence, &w->err), &w->err);
  return sequence;
}

static void accept_all(world *w, const opi_pass *pass, bool goes_on) {
  const uint32_t id = 1;
  for (uint32_t i = 0; i < pass->n_entries; ++i) {
    const opi_pass_entry *e = &pass->entries[i];
    if (e->live && e->n_wanted > 0)
      OPI_ASSERT_OK(opi_batch_accept(w->batch, e->sequence, &id, 1, goes_on, &w->err), &w->err);
  }
}

/* Slices fill the gap that decode rows leave, and shrink as keys grow. */
static void test_slices_keep_to_the_gap(void) {
  static world w;
  opi_batch_params p = plain_params();
  p.class_time[0] = p.class_time[1] = p.class_time[2] = p.class_time[3] = p.class_time[4] = 10;
  p.key_time = 1;
  p.gap = 70;
  set_up(&w, 1, &p);
  (void)submit_zeros(&w, 3, 1);
  accept_all(&w, (opi_batch_next(w.batch), opi_batch_done(w.batch)), true);
  (void)submit_zeros(&w, 40, 2);
  /* The first has 4, 5 ... keys; n rows from f on have n * f + n * (n + 1) / 2. */
  static const uint32_t slices[] = {10, 4, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  for (uint32_t i = 0, first = 0; i < 9; ++i) {
    const opi_pass *pass = opi_batch_next(w.batch);
    OPI_ASSERT_FATAL(pass != NULL && pass->n_entries == 2);
    OPI_ASSERT_INT(pass->entries[0].n_rows, 1);
    OPI_ASSERT_INT(pass->entries[1].first, first);
    OPI_ASSERT_INT(pass->entries[1].n_rows, slices[i]);
    OPI_ASSERT(pass->time <= 70);
    first += pass->entries[1].n_rows;
    accept_all(&w, opi_batch_done(w.batch), true);
  }
  tear_down(&w);
}

/* Slices of a prompt are as the plan wants them, whatever else is in the pass. */
static void test_slices_follow_the_plan(void) {
  static const uint32_t slices[] = {7, 5, 3, 3, 2, 2, 2, 2, 2, 1};
  static world w;
  opi_batch_params p = plain_params();
  for (uint32_t c = 0; c < OPI_PASS_CLASSES; ++c)
    p.class_time[c] = 10;
  p.key_time = 1;
  p.slice_rows = 7;
  p.slice_time = 65;
  set_up(&w, 1, &p);
  (void)submit_zeros(&w, 3, 1);
  accept_all(&w, (opi_batch_next(w.batch), opi_batch_done(w.batch)), true);
  (void)submit_zeros(&w, 40, 2);
  for (uint32_t i = 0; i < OPI_COUNT(slices); ++i) {
    const opi_pass *pass = opi_batch_next(w.batch);
    OPI_ASSERT_FATAL(pass != NULL && pass->n_entries == 2);
    OPI_ASSERT_INT(pass->entries[1].n_rows, slices[i]);
    accept_all(&w, opi_batch_done(w.batch), true);
  }
  tear_down(&w);
  p.slice_time = -1;
  uint64_t n_bytes = 0;
  OPI_ASSERT(opi_batch_bytes(&p, &n_bytes, &w.err) == OPIPE_E_INVALID);
}

/* Sequences that generate are spread over the groups, and take turns when rows are few. */
static void test_groups_share_the_sequences(void) {
  static world w;
  opi_batch_params p = plain_params();
  uint32_t seen = 0;
  p.groups = 3;
  p.rows = 6;
  set_up(&w, 1, &p);
  for (uint32_t i = 0; i < 6; ++i)
    (void)submit_zeros(&w, 1, i);
  for (uint32_t pass_of = 0; pass_of < 3; ++pass_of) {
    const opi_pass *pass = opi_batch_next(w.batch);
    OPI_ASSERT_FATAL(pass != NULL);
    if (pass_of == 0) {
      OPI_ASSERT_INT(pass->n_rows, 6); /* they enter together */
      OPI_ASSERT(opi_batch_next(w.batch) == NULL);
      accept_all(&w, opi_batch_done(w.batch), true);
      pass = opi_batch_next(w.batch);
    }
    OPI_ASSERT_FATAL(pass != NULL);
    OPI_ASSERT_INT(pass->n_rows, 2);
    for (uint32_t i = 0; i < pass->n_entries; ++i)
      seen |= UINT32_C(1) << pass->entries[i].sequence;
  }
  OPI_ASSERT_INT(seen, 63);
  OPI_ASSERT(opi_batch_next(w.batch) == NULL); /* three are in flight */
  tear_down(&w);
}

static void test_a_stop_frees_what_is_in_flight(void) {
  static world w;
  opi_batch_params p = plain_params();
  const uint32_t id = 1;
  p.groups = 2;
  set_up(&w, 1, &p);
  const uint32_t a = submit_zeros(&w, 5, 1), b = submit_zeros(&w, 5, 2);
  OPI_ASSERT_INT(opi_batch_next(w.batch)->n_entries, 2);
  OPI_ASSERT_ERROR(opi_batch_fork(w.batch, a, &(uint32_t){0}, &w.err), OPIPE_E_STATE, &w.err,
                   "rows in 1 passes in flight");
  OPI_ASSERT_ERROR(opi_batch_truncate(w.batch, a, 1, &w.err), OPIPE_E_STATE, &w.err,
                   "sequence 0 is active, its turn has to end first");
  OPI_ASSERT_OK(opi_batch_release(w.batch, a, &w.err), &w.err);
  OPI_ASSERT_INT(submit_zeros(&w, 9, 3), a); /* the place is used again at once */
  const opi_pass *pass = opi_batch_done(w.batch);
  OPI_ASSERT(!pass->entries[0].live && pass->entries[1].live);
  OPI_ASSERT(!opi_batch_info(w.batch, a).due && opi_batch_info(w.batch, b).due);
  OPI_ASSERT_ERROR(opi_batch_accept(w.batch, a, &id, 1, true, &w.err), OPIPE_E_STATE, &w.err,
                   "no ids of sequence 0 are due");
  OPI_ASSERT_ERROR(opi_batch_accept(w.batch, b, (uint32_t[2]){1, 1}, 2, true, &w.err),
                   OPIPE_E_LIMIT, &w.err, "2 ids for sequence 1, which had a draft of 0");
  OPI_ASSERT_OK(opi_batch_stop(w.batch, b, true, &w.err), &w.err);
  OPI_ASSERT_ERROR(opi_batch_accept(w.batch, b, &id, 1, true, &w.err), OPIPE_E_STATE, &w.err,
                   "sequence 1 are due");
  OPI_ASSERT_INT(opi_kv_count(opi_batch_pool(w.batch)).held, 0);
  tear_down(&w);
}

static void test_limits_are_refused_with_both_numbers(void) {
  static world w;
  opi_batch_params p = plain_params();
  uint32_t ids[CONTEXT] = {0}, other = 0;
  uint64_t n_bytes = 0;
  set_up(&w, 1, &p);
  OPI_ASSERT_ERROR(opi_batch_submit(w.batch, ids, 48, 0, &other, &w.err), OPIPE_E_LIMIT, &w.err,
                   "makes 49 tokens with the first of its answer, the context has 48");
  OPI_ASSERT_ERROR(opi_batch_submit(w.batch, ids, 0, 0, &other, &w.err), OPIPE_E_INVALID, &w.err,
                   "without ids");
  OPI_ASSERT_ERROR(opi_batch_stop(w.batch, 3, true, &w.err), OPIPE_E_STATE, &w.err,
                   "sequence 3 is not open");
  const uint32_t a = submit_zeros(&w, 40, 0);
  OPI_ASSERT_ERROR(opi_batch_draft(w.batch, a, ids, 5, &w.err), OPIPE_E_LIMIT, &w.err,
                   "a draft of 5 ids, at most 4");
  OPI_ASSERT_OK(opi_batch_stop(w.batch, a, true, &w.err), &w.err);
  OPI_ASSERT_ERROR(opi_batch_draft(w.batch, a, ids, 1, &w.err), OPIPE_E_STATE, &w.err, "is idle");
  OPI_ASSERT_ERROR(opi_batch_extend(w.batch, a, ids, 8, &w.err), OPIPE_E_LIMIT, &w.err,
                   "makes 49 tokens");
  OPI_ASSERT_ERROR(opi_batch_truncate(w.batch, a, 41, &w.err), OPIPE_E_INVALID, &w.err,
                   "to keep 41 tokens, it has 40");
  OPI_ASSERT_ERROR(opi_batch_truncate(w.batch, a, 0, &w.err), OPIPE_E_INVALID, &w.err,
                   "to keep 0 tokens");
  tear_down(&w);
  p.pool.n_pages = 5;
  set_up(&w, 1, &p);
  OPI_ASSERT_INT(opi_batch_context(w.batch), 20);
  OPI_ASSERT_ERROR(opi_batch_submit(w.batch, ids, 20, 0, &other, &w.err), OPIPE_E_LIMIT, &w.err,
                   "makes 21 tokens with the first of its answer, all 5 pages hold 20");
  tear_down(&w);
  p.rows = 0;
  OPI_ASSERT_ERROR(opi_batch_bytes(&p, &n_bytes, &w.err), OPIPE_E_INVALID, &w.err,
                   "passes of 0 rows");
  p.rows = 4;
  p.gap = -1;
  OPI_ASSERT_ERROR(opi_batch_bytes(&p, &n_bytes, &w.err), OPIPE_E_INVALID, &w.err, "gap (-1)");
}

static opipe_status create_once(opi_test_memory *memory, void *arg) {
  const opi_batch_params p = plain_params();
  opi_batch *batch = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)arg;
  const opipe_status status = opi_batch_create(&memory->allocator, &p, &batch, &err);
  if (status == OPIPE_OK)
    opi_batch_free(batch);
  return status;
}

static void test_every_allocation_may_fail(void) {
  OPI_ASSERT_INT(opi_test_every_allocation(create_once, NULL, 10), 3);
}

OPI_TEST_MAIN("generate/batch", OPI_TEST(test_every_sequence_goes_on_as_if_alone),
              OPI_TEST(test_slices_keep_to_the_gap), OPI_TEST(test_slices_follow_the_plan),
              OPI_TEST(test_groups_share_the_sequences),
              OPI_TEST(test_a_stop_frees_what_is_in_flight),
              OPI_TEST(test_limits_are_refused_with_both_numbers),
              OPI_TEST(test_every_allocation_may_fail))
