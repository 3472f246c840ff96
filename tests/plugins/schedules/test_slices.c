/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules over token slices: orders by hand, closed formulas of bubble and stash, lengths and
 * their life, completeness over a grid, errors.
 */
#include <math.h>
#include <pthread.h>

#include "tests/plugins/schedules/lab.h"

static void expect(const char *what, uint32_t p, uint32_t m, double found, double wanted) {
  if (fabs(found - wanted) > 1e-9)
    OPI_FAIL("%s, %u ranks, %u micro-batches: %.6f, not %.6f", what, p, m, found, wanted);
  else
    OPI_ASSERT(true);
}

/* "0F0/1": stage, pass, micro-batch, slice. */
static void row_of(const asked_order *o, uint32_t rank, char *out, size_t room) {
  static const char *const names[] = {"F", "I", "W", "?", "B"};
  size_t n = 0;
  out[0] = '\0';
  for (uint32_t i = o->first[rank]; i < o->first[rank + 1] && n + 24 < room; ++i) {
    const opipe_action *a = &o->actions[i];
    n += (size_t)snprintf(out + n, room - n, "%s%u%s%u/%u", n == 0 ? "" : " ", a->stage,
                          names[a->pass], a->microbatch, a->slice);
  }
}

static void expect_rows(const char *id, uint32_t p, uint32_t m, const char *const *rows) {
  static asked_order o;
  char row[512];
  const lab_request q = {id, "slices", "2", OPIPE_MODE_TRAIN, p, 0, m, NULL};
  OPI_ASSERT_OK_FATAL(lab_ask(&q, &o), &asked_err);
  for (uint32_t r = 0; r < p; ++r) {
    row_of(&o, r, row, sizeof row);
    OPI_ASSERT_STR(row, rows[r]);
  }
  asked_end(&o);
}

static void test_orders(void) {
  static const char *const tera[] = {
      "0F0/0 0F0/1 0F1/0 0F1/1 0B0/1 0B0/0 0B1/1 0B1/0",
      "1F0/0 1F0/1 1F1/0 1F1/1 1B0/1 1B0/0 1B1/1 1B1/0",
  };
  static const char *const seq[] = {
      "0F0/0 0F0/1 0F1/0 0B0/1 0F1/1 0B0/0 0B1/1 0B1/0",
      "1F0/0 1F0/1 1B0/1 1F1/0 1B0/0 1F1/1 1B1/1 1B1/0",
  };
  expect_rows("terapipe", 2, 2, tera);
  expect_rows("seq1f1b", 2, 2, seq);
}

/* Even slices, whole micro-batches as the unit of time and memory. */
static void test_formulas(void) {
  for (uint32_t p = 1; p <= 9; ++p) {
    for (uint32_t k = 1; k <= 8; k += k < 3 ? 1 : 5) {
      char slices[8];
      (void)snprintf(slices, sizeof slices, "%u", k);
      for (uint32_t m = p; m <= 24; m += 5) {
        const lab_request a = {"terapipe", "slices", slices, OPIPE_MODE_TRAIN, p, 0, m, NULL};
        const lab_request b = {"seq1f1b", "slices", slices, OPIPE_MODE_TRAIN, p, 0, m, NULL};
        const lab_times tera = lab_simulate(&a), seq = lab_simulate(&b);
        const double bubble = (p - 1.0) / (k * m + p - 1.0);
        expect("terapipe, bubble", p, m, tera.bubble, bubble);
        expect("terapipe, stash", p, m, tera.peak_least, m);
        expect("seq1f1b, bubble", p, m, seq.bubble, bubble);
        for (uint32_t s = 0; s < p; ++s) {
          const uint32_t most = p - s - 1 + k;
          expect("seq1f1b, stash", p, m, seq.peak[s], (most < k * m ? most : k * m) / (double)k);
        }
      }
    }
  }
}

static void test_grid(void) {
  for (uint32_t p = 1; p <= 9; ++p) {
    for (uint32_t m = 1; m <= 24; ++m) {
      const char *slices = m % 3 == 0 ? "1" : m % 3 == 1 ? "3" : "16";
      const lab_request a = {"terapipe", "slices", slices, OPIPE_MODE_TRAIN, p, 0, m, NULL};
      const lab_request b = {"seq1f1b", "slices", slices, OPIPE_MODE_TRAIN, 0, p, m, NULL};
      const lab_request c = {"seq1f1b", "slices", slices, OPIPE_MODE_FORWARD, p, p, m, NULL};
      OPI_ASSERT(lab_simulate(&a).makespan > 0);
      OPI_ASSERT(lab_simulate(&b).makespan > 0);
      const double k = slices[1] == '\0' ? slices[0] - '0' : 16;
      expect("forward form", p, m, lab_simulate(&c).makespan, (k * m + p - 1) / k);
    }
  }
}

/* ---- lengths ---- */

static const uint32_t *lengths_of(const char *value, uint32_t *out_n) {
  static asked_order o;
  const lab_request q = {"terapipe", "lengths", value, OPIPE_MODE_TRAIN, 2, 0, 2, NULL};
  OPI_ASSERT_OK_FATAL(lab_ask(&q, &o), &asked_err);
  *out_n = o.layout.n_slices;
  asked_end(&o);
  return o.layout.slice_lengths;
}

static void test_lengths(void) {
  uint32_t n = 0;
  const uint32_t *first = lengths_of("704+688+656", &n);
  OPI_ASSERT_INT(n, 3);
  OPI_ASSERT_INT(first[0], 704);
  OPI_ASSERT_INT(first[2], 656);
  const uint32_t *other = lengths_of("1+2+3+4", &n);
  OPI_ASSERT_INT(n, 4);
  OPI_ASSERT_INT(other[3], 4);
  OPI_ASSERT(lengths_of("704+688+656", &n) == first); /* kept once, still the same */
  OPI_ASSERT_INT(first[1], 688);
  OPI_ASSERT_INT(*lengths_of("2147483647", &n), INT32_MAX);
  OPI_ASSERT_INT(n, 1);
  const lab_request even = {"terapipe", "slices", "5", OPIPE_MODE_TRAIN, 2, 0, 2, NULL};
  static asked_order o;
  OPI_ASSERT_OK(lab_ask(&even, &o), &asked_err);
  OPI_ASSERT(o.layout.slice_lengths == NULL && o.layout.n_slices == 5);
  asked_end(&o);
}

typedef struct asker {
  pthread_t thread;
  const opipe_schedule *table;
  opipe_instance *self;
  const uint32_t *found;
} asker;

static void *ask_often(void *ctx) {
  asker *a = ctx;
  for (uint32_t i = 0; i < 200; ++i) {
    uint32_t rank_of[2];
    opipe_error err = OPIPE_ERROR_INIT;
    char text[32];
    (void)snprintf(text, sizeof text, "%u+%u", 1 + i % 7, 9u);
    const opipe_schedule_setting setting = {"lengths", i % 8 == 7 ? "64+64" : text};
    const opipe_layout_request request = {(uint32_t)OPIPE_END(opipe_layout_request, settings),
                                          OPIPE_MODE_TRAIN,
                                          2,
                                          0,
                                          2,
                                          1,
                                          &setting};
    opipe_layout layout = {.struct_size = (uint32_t)OPIPE_END(opipe_layout, slice_lengths),
                           .instance_room = 2,
                           .instance_rank = rank_of};
    if (a->table->layout(a->self, &request, &layout, &err) == OPIPE_OK && i % 8 == 7)
      a->found = layout.slice_lengths;
  }
  return NULL;
}

/* Layout may be called from any thread; close gives everything back. */
static void test_lengths_from_threads(void) {
  static const opipe_host host = {.struct_size = (uint32_t)OPIPE_END(opipe_host, get_interface),
                                  .abi_major = OPIPE_ABI_MAJOR,
                                  .abi_minor = OPIPE_ABI_MINOR,
                                  .realloc = asked_realloc};
  const asked_plugin *p = asked_open("terapipe");
  asker askers[4];
  opipe_instance *self = NULL;
  const uint64_t before = asked_live_bytes;
  OPI_ASSERT_OK_FATAL(p->plugin->open(&host, &self, &asked_err), &asked_err);
  for (uint32_t i = 0; i < 4; ++i) {
    askers[i] = (asker){.table = p->table, .self = self};
    OPI_ASSERT_INT(pthread_create(&askers[i].thread, NULL, ask_often, &askers[i]), 0);
  }
  for (uint32_t i = 0; i < 4; ++i)
    (void)pthread_join(askers[i].thread, NULL);
  for (uint32_t i = 0; i < 4; ++i)
    OPI_ASSERT(askers[i].found != NULL && askers[i].found == askers[0].found);
  OPI_ASSERT(asked_live_bytes > before);
  p->plugin->close(self);
  OPI_ASSERT_INT(asked_live_bytes, before);
}

/* ---- errors ---- */

static void refuse(const char *id, const char *key, const char *value, const char *part) {
  static asked_order o;
  const lab_request q = {id, key, value, OPIPE_MODE_TRAIN, 2, 0, 2, NULL};
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err, part);
  asked_end(&o);
}

static void test_errors(void) {
  static const char *const bad[] = {"",    "+",   "1+",   "+1",         "1++2", "0",
                                    "1+0", "1+x", "-1+2", "2147483648", "1 + 2"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i)
    refuse("terapipe", "lengths", bad[i], "is not a sum a+b+...");
  refuse("terapipe", "slices", "0", "slices=0");
  refuse("seq1f1b", "slices", "65536", "slices=65536");
  static asked_order o;
  const lab_request q = {"seq1f1b", NULL, NULL, OPIPE_MODE_TRAIN, 3, 4, 2, NULL};
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err, "4 stages on 3 ranks");
  asked_end(&o);
}

OPI_TEST_MAIN("slices", OPI_TEST(test_orders), OPI_TEST(test_formulas), OPI_TEST(test_grid),
              OPI_TEST(test_lengths), OPI_TEST(test_lengths_from_threads), OPI_TEST(test_errors))
