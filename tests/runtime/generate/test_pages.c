/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of keys and values, against memory that is written as passes would write it: whatever is
 * shared, copied, cut, evicted or found again, every sequence reads its own tokens. A page that is
 * given away too early, or found by a wrong beginning, would show as another sequence's token. */
#include <inttypes.h>

#include "runtime/generate/pages.h"
#include "tests/support/support.h"

enum { PAGE_MOST = 5, PAGES_MOST = 24, SEQUENCES = 6, CONTEXT = 40 };

/* A plain model: each sequence has its ids, each page the words that passes wrote. */
typedef struct world {
  opi_kv_params params;
  opi_test_memory memory;
  opi_kv *pool;
  opipe_error err;
  uint64_t written[PAGES_MOST][PAGE_MOST];
  bool open[SEQUENCES];
  uint64_t salt[SEQUENCES];
  uint32_t ids[SEQUENCES][CONTEXT], n[SEQUENCES], n_written[SEQUENCES];
  uint64_t n_reused, n_pending, n_copied;
} world;

static void set_up(world *w, uint32_t page, uint32_t n_pages, bool reuse) {
  memset(w, 0, sizeof *w);
  w->err = (opipe_error)OPIPE_ERROR_INIT;
  w->params = (opi_kv_params){page, n_pages, SEQUENCES, CONTEXT, reuse};
  opi_test_memory_init(&w->memory);
  OPI_ASSERT_OK_FATAL(opi_kv_create(&w->memory.allocator, &w->params, &w->pool, &w->err), &w->err);
}

static void tear_down(world *w) {
  uint64_t n_bytes = 0;
  OPI_ASSERT_OK(opi_kv_bytes(&w->params, &n_bytes, &w->err), &w->err);
  OPI_ASSERT_INT(w->memory.peak_bytes, n_bytes);
  OPI_ASSERT_INT(w->memory.n_calls, 1);
  opi_kv_free(w->pool);
  OPI_ASSERT(opi_test_memory_end(&w->memory));
}

/* The word of a token: it says which ids precede it, and the salt. */
static uint64_t word(const world *w, uint32_t s, uint32_t at) {
  uint64_t h = w->salt[s] * 31 + 7;
  for (uint32_t i = 0; i <= at; ++i)
    h = (h ^ (w->ids[s][i] + 1)) * UINT64_C(0x100000001b3);
  return h;
}

static void write_rows(world *w, uint32_t s, uint32_t n) {
  uint32_t n_pages = 0;
  const uint32_t *table = opi_kv_table(w->pool, s, &n_pages);
  for (; w->n_written[s] < n; ++w->n_written[s]) {
    const uint32_t at = w->n_written[s];
    w->written[table[at / w->params.page]][at % w->params.page] = word(w, s, at);
  }
  opi_kv_commit(w->pool, s, n);
}

static void copy_page(world *w, const opi_page_copy *copy) {
  if (copy->to == OPI_NO_PAGE)
    return;
  memcpy(w->written[copy->to], w->written[copy->from], copy->n_tokens * sizeof(uint64_t));
  ++w->n_copied;
}

/* Every sequence reads its own words; counts add up; nobody has a page that is free. */
static void check(const world *w) {
  const opi_kv_counts counts = opi_kv_count(w->pool);
  uint32_t held = 0, n_wrong = 0;
  bool used[PAGES_MOST] = {false};
  for (uint32_t s = 0; s < SEQUENCES; ++s) {
    uint32_t n_pages = 0;
    const uint32_t *table = opi_kv_table(w->pool, s, &n_pages);
    n_wrong += opi_kv_tokens(w->pool, s) != w->n[s];
    n_wrong += n_pages != (w->n[s] + w->params.page - 1) / w->params.page;
    for (uint32_t i = 0; i < n_pages; ++i) {
      held += !used[table[i]];
      used[table[i]] = true;
    }
    for (uint32_t i = 0; i < w->n_written[s]; ++i)
      n_wrong += w->written[table[i / w->params.page]][i % w->params.page] != word(w, s, i);
  }
  OPI_ASSERT_INT(n_wrong, 0);
  OPI_ASSERT_INT(counts.held, held);
  OPI_ASSERT_INT(counts.free + counts.kept + counts.held, w->params.n_pages);
  OPI_ASSERT_INT(opi_kv_room(w->pool), counts.free + counts.kept);
  OPI_ASSERT_INT(counts.copied, w->n_copied);
}

static void begin(world *w, uint32_t s, opi_test_random *random) {
  uint32_t n_reused = 0, ids[CONTEXT];
  const uint32_t n = 1 + (uint32_t)(opi_test_next(random) % 30);
  const uint32_t room = opi_kv_room(w->pool);
  const uint64_t salt = opi_test_next(random) % 4 == 0;
  for (uint32_t i = 0; i < n; ++i) /* few beginnings, so that many are shared */
    ids[i] = (uint32_t)(opi_test_next(random) % 8 == 0);
  const opipe_status status = opi_kv_begin(w->pool, s, ids, n, salt, 0, &n_reused, &w->err);
  const uint32_t n_pages = (n + w->params.page - 1) / w->params.page;
  if (n_pages > w->params.n_pages) {
    OPI_ASSERT_ERROR(status, OPIPE_E_LIMIT, &w->err, "pages");
    return;
  }
  if (status == OPIPE_PENDING) {
    OPI_ASSERT(n_pages > room);
    ++w->n_pending;
    return;
  }
  OPI_ASSERT_OK_FATAL(status, &w->err);
  OPI_ASSERT(n_reused < n && n_reused % w->params.page == 0);
  memcpy(w->ids[s], ids, sizeof ids);
  w->open[s] = true;
  w->salt[s] = salt;
  w->n[s] = n;
  w->n_written[s] = n_reused;
  w->n_reused += n_reused;
}

static void append(world *w, uint32_t s, opi_test_random *random) {
  opi_page_copy copy;
  uint32_t *end = &w->ids[s][w->n[s]];
  const uint32_t n = 1 + (uint32_t)(opi_test_next(random) % 7), room = opi_kv_room(w->pool);
  uint32_t ids[8], n_pages = 0;
  (void)opi_kv_table(w->pool, s, &n_pages);
  for (uint32_t i = 0; i < n; ++i)
    ids[i] = (uint32_t)(opi_test_next(random) % 3 == 0);
  const opipe_status status = opi_kv_append(w->pool, s, ids, n, &copy, &w->err);
  if (w->n[s] + n > CONTEXT) {
    OPI_ASSERT_ERROR(status, OPIPE_E_LIMIT, &w->err, "the context has 40");
    return;
  }
  const uint32_t n_new = (w->n[s] + n + w->params.page - 1) / w->params.page - n_pages;
  if (status == OPIPE_PENDING) {
    OPI_ASSERT(n_new + 1 > room);
    ++w->n_pending;
    return;
  }
  OPI_ASSERT_OK_FATAL(status, &w->err);
  memcpy(end, ids, n * sizeof *ids);
  w->n[s] += n;
  copy_page(w, &copy);
}

static void truncate(world *w, uint32_t s, uint32_t n) {
  opi_kv_truncate(w->pool, s, n);
  w->n[s] = n < w->n[s] ? n : w->n[s];
  w->n_written[s] = w->n_written[s] < w->n[s] ? w->n_written[s] : w->n[s];
}

static void fork(world *w, uint32_t from, uint32_t to) {
  OPI_ASSERT_OK_FATAL(opi_kv_fork(w->pool, from, to, &w->err), &w->err);
  w->open[to] = true;
  w->salt[to] = w->salt[from];
  w->n[to] = w->n[from];
  w->n_written[to] = w->n_written[from];
  memcpy(w->ids[to], w->ids[from], sizeof w->ids[to]);
}

static void end(world *w, uint32_t s, bool keep) {
  opi_kv_end(w->pool, s, keep);
  w->open[s] = false;
  w->n[s] = w->n_written[s] = 0;
}

static void act(world *w, opi_test_random *random) {
  const uint32_t s = (uint32_t)(opi_test_next(random) % SEQUENCES);
  const uint32_t other = (uint32_t)(opi_test_next(random) % SEQUENCES);
  const uint32_t what = (uint32_t)(opi_test_next(random) % 12);
  if (!w->open[s])
    begin(w, s, random);
  else if (what < 5)
    append(w, s, random);
  else if (what == 5)
    write_rows(w, s, w->n[s]);
  else if (what < 8)
    write_rows(w, s, (w->n_written[s] + w->n[s]) / 2);
  else if (what == 8)
    truncate(w, s, 1 + (uint32_t)(opi_test_next(random) % CONTEXT));
  else if (what < 11)
    end(w, s, what == 9 || opi_test_next(random) % 4 != 0);
  else if (!w->open[other] && w->n_written[s] == w->n[s]) /* rows under way are the parent's */
    fork(w, s, other);
}

static void test_every_sequence_reads_its_own_tokens(void) {
  static world w;
  uint64_t n_reused = 0, n_pending = 0, n_copied = 0, n_evicted = 0;
  for (uint32_t round = 0; round < 40; ++round) {
    opi_test_random random = {round + 1};
    set_up(&w, 1 + round % PAGE_MOST, 4 + round % 21, round % 8 != 7);
    for (uint32_t i = 0; i < 1500; ++i) {
      act(&w, &random);
      check(&w);
    }
    n_reused += w.n_reused;
    n_pending += w.n_pending;
    n_copied += w.n_copied;
    n_evicted += opi_kv_count(w.pool).evicted;
    OPI_ASSERT(w.params.reuse || (w.n_reused == 0 && opi_kv_count(w.pool).kept == 0));
    OPI_ASSERT_INT(opi_kv_count(w.pool).reused_tokens, w.n_reused);
    for (uint32_t s = 0; s < SEQUENCES; ++s)
      end(&w, s, false);
    check(&w);
    OPI_ASSERT_INT(opi_kv_room(w.pool), w.params.n_pages);
    tear_down(&w);
  }
  if (n_reused < 1000 || n_pending < 1000 || n_copied < 100 || n_evicted < 1000) {
    OPI_FAIL("%" PRIu64 " tokens reused, %" PRIu64 " calls pending, %" PRIu64
             " pages copied, %" PRIu64 " evicted",
             n_reused, n_pending, n_copied, n_evicted);
  }
}

/* ---- single rules ---- */

static uint32_t begin_ids(world *w, uint32_t s, const char *text, uint64_t salt) {
  uint32_t ids[CONTEXT], n_reused = 99;
  const uint32_t n = (uint32_t)strlen(text);
  for (uint32_t i = 0; i < n; ++i)
    ids[i] = (uint32_t)text[i];
  const opipe_status status = opi_kv_begin(w->pool, s, ids, n, salt, 0, &n_reused, &w->err);
  if (status == OPIPE_OK)
    opi_kv_commit(w->pool, s, n);
  return status == OPIPE_OK ? n_reused : 1000;
}

static void test_beginnings_are_reused_by_page(void) {
  static world w;
  set_up(&w, 4, 20, true);
  OPI_ASSERT_INT(begin_ids(&w, 0, "abcdefghij", 0), 0);
  OPI_ASSERT_INT(begin_ids(&w, 1, "abcdefghij", 0), 8);
  OPI_ASSERT_INT(begin_ids(&w, 2, "abcdefgh", 0), 4); /* the last token is computed */
  OPI_ASSERT_INT(begin_ids(&w, 3, "abcdefgX", 0), 4);
  OPI_ASSERT_INT(begin_ids(&w, 4, "Xbcdefghij", 0), 0); /* a page counts behind its own beginning */
  OPI_ASSERT_INT(begin_ids(&w, 5, "abcdefghij", 1), 0); /* another tenant */
  for (uint32_t s = 0; s < SEQUENCES; ++s)
    opi_kv_end(w.pool, s, true);
  OPI_ASSERT_INT(begin_ids(&w, 0, "abcdefghij", 1), 8);
  OPI_ASSERT_INT(begin_ids(&w, 1, "abcdefgXyz", 0), 8);
  OPI_ASSERT_INT(begin_ids(&w, 2, "abcd1", 0), 4);
  opi_kv_end(w.pool, 1, false); /* not to be reused, but for the page that another has */
  OPI_ASSERT_INT(begin_ids(&w, 1, "abcdefgXyz", 0), 4);
  tear_down(&w);
}

static void test_the_least_recently_used_goes_first(void) {
  static world w;
  set_up(&w, 2, 6, true);
  OPI_ASSERT_INT(begin_ids(&w, 0, "aabb", 0), 0);
  opi_kv_end(w.pool, 0, true);
  OPI_ASSERT_INT(begin_ids(&w, 0, "ccdd", 0), 0);
  opi_kv_end(w.pool, 0, true);
  OPI_ASSERT_INT(begin_ids(&w, 0, "aabbX", 0), 4); /* used again, so ccdd is older */
  opi_kv_end(w.pool, 0, true);
  OPI_ASSERT_INT(opi_kv_count(w.pool).kept, 4);
  OPI_ASSERT_INT(begin_ids(&w, 0, "eeff1", 0), 0); /* two are free; the end of ccdd goes */
  OPI_ASSERT_INT(opi_kv_count(w.pool).evicted, 1);
  OPI_ASSERT_INT(begin_ids(&w, 1, "aabbX", 0), 4); /* and then its beginning */
  OPI_ASSERT_INT(opi_kv_count(w.pool).evicted, 2);
  opi_kv_end(w.pool, 0, true);
  OPI_ASSERT_INT(begin_ids(&w, 0, "ccd", 0), 0);
  tear_down(&w);
}

static void test_a_full_pool_changes_nothing(void) {
  static world w;
  opi_page_copy copy;
  const uint32_t ids[3] = {1, 2, 3};
  uint32_t n_reused = 0;
  set_up(&w, 4, 3, true);
  OPI_ASSERT_INT(begin_ids(&w, 0, "abcdefghijk", 0), 0);
  OPI_ASSERT_INT(begin_ids(&w, 1, "a", 0), 1000);
  opi_kv_end(w.pool, 0, true);
  OPI_ASSERT_INT(opi_kv_begin(w.pool, 0, ids, 2, 0, 3, &n_reused, &w.err), OPIPE_PENDING);
  OPI_ASSERT_OK(opi_kv_begin(w.pool, 1, ids, 2, 0, 2, &n_reused, &w.err), &w.err);
  opi_kv_end(w.pool, 1, true);
  OPI_ASSERT_INT(begin_ids(&w, 0, "abcdefghijk", 0), 8);
  OPI_ASSERT_OK(opi_kv_append(w.pool, 0, ids, 1, &copy, &w.err), &w.err);
  OPI_ASSERT_INT(opi_kv_append(w.pool, 0, ids, 1, &copy, &w.err), OPIPE_PENDING);
  OPI_ASSERT_INT(opi_kv_tokens(w.pool, 0), 12);
  opi_kv_truncate(w.pool, 0, 11);
  OPI_ASSERT_OK(opi_kv_fork(w.pool, 0, 1, &w.err), &w.err);
  OPI_ASSERT_INT(opi_kv_append(w.pool, 1, ids, 1, &copy, &w.err), OPIPE_PENDING); /* a copy */
  opi_kv_end(w.pool, 0, true);
  OPI_ASSERT_OK(opi_kv_append(w.pool, 1, ids, 1, &copy, &w.err), &w.err);
  OPI_ASSERT(copy.to == OPI_NO_PAGE);
  tear_down(&w);
}

static void test_limits_are_refused_with_both_numbers(void) {
  static world w;
  uint32_t ids[CONTEXT + 1] = {0}, n_reused = 0;
  opi_page_copy copy;
  uint64_t n_bytes = 0;
  set_up(&w, 4, 8, true);
  OPI_ASSERT_ERROR(opi_kv_begin(w.pool, 0, ids, 41, 0, 0, &n_reused, &w.err), OPIPE_E_LIMIT, &w.err,
                   "a sequence of 41 tokens, the context has 40");
  OPI_ASSERT_ERROR(opi_kv_begin(w.pool, 0, ids, 33, 0, 0, &n_reused, &w.err), OPIPE_E_LIMIT, &w.err,
                   "33 tokens takes 9 pages of 4 tokens, there are 8");
  OPI_ASSERT_ERROR(opi_kv_begin(w.pool, 0, ids, 0, 0, 0, &n_reused, &w.err), OPIPE_E_INVALID,
                   &w.err, "without tokens");
  OPI_ASSERT_ERROR(opi_kv_append(w.pool, 0, ids, 1, &copy, &w.err), OPIPE_E_STATE, &w.err,
                   "sequence 0 is closed");
  OPI_ASSERT_ERROR(opi_kv_begin(w.pool, 6, ids, 1, 0, 0, &n_reused, &w.err), OPIPE_E_INVALID,
                   &w.err, "sequence 6, the pool has 6");
  OPI_ASSERT_OK(opi_kv_begin(w.pool, 0, ids, 32, 0, 0, &n_reused, &w.err), &w.err);
  OPI_ASSERT_ERROR(opi_kv_begin(w.pool, 0, ids, 1, 0, 0, &n_reused, &w.err), OPIPE_E_STATE, &w.err,
                   "sequence 0 is open");
  OPI_ASSERT_ERROR(opi_kv_append(w.pool, 0, ids, 9, &copy, &w.err), OPIPE_E_LIMIT, &w.err,
                   "41 tokens, the context has 40");
  OPI_ASSERT_ERROR(opi_kv_append(w.pool, 0, ids, UINT32_MAX, &copy, &w.err), OPIPE_E_LIMIT, &w.err,
                   "4294967327 tokens");
  OPI_ASSERT_ERROR(opi_kv_fork(w.pool, 0, 0, &w.err), OPIPE_E_STATE, &w.err, "is open");
  tear_down(&w);
  const opi_kv_params none = {0, 1, 1, 1, true}, many = {1, UINT32_MAX, 1, 1, true};
  const opi_kv_params wide = {UINT32_MAX, INT32_MAX, UINT32_MAX, UINT32_MAX, true};
  OPI_ASSERT_ERROR(opi_kv_bytes(&none, &n_bytes, &w.err), OPIPE_E_INVALID, &w.err,
                   "pages of 0 tokens");
  OPI_ASSERT_ERROR(opi_kv_bytes(&many, &n_bytes, &w.err), OPIPE_E_INVALID, &w.err, "4294967295");
  OPI_ASSERT_ERROR(opi_kv_bytes(&wide, &n_bytes, &w.err), OPIPE_E_LIMIT, &w.err, "exceed memory");
}

OPI_TEST_MAIN("generate/pages", OPI_TEST(test_every_sequence_reads_its_own_tokens),
              OPI_TEST(test_beginnings_are_reused_by_page),
              OPI_TEST(test_the_least_recently_used_goes_first),
              OPI_TEST(test_a_full_pool_changes_nothing),
              OPI_TEST(test_limits_are_refused_with_both_numbers))
