/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of inference by copies of the pipeline; see copies.h. */
#include "tests/matrix/copies.h"

#include <stdio.h>
#include <string.h>

#include "tests/matrix/slices.h"
#include "tests/runtime/train/cases.h"

/* Rows of the plan, and of the other requests: fewer than micro-batches or copies, more than the
 * plan's. */
static const int64_t ROWS[] = {6, 7, 9}, OTHERS[] = {1, 2, 4, 8};
enum { STAGES = 4, COPIES = 2, MICROBATCHES = 6, FIRST = 2, REQUESTS = 7 };

/* One case; every member but the schedule is an index. */
typedef struct choice {
  size_t schedule;
  uint32_t stages, copies, microbatches, rows, other;
} choice;

/* How often a value of a dimension has passed. */
typedef struct seen {
  uint32_t stages[STAGES], copies[COPIES], microbatches[MICROBATCHES], rows[OPI_COUNT(ROWS)],
      others[OPI_COUNT(OTHERS)], uneven, even, turns;
  uint32_t schedules[64];
} seen;

static uint32_t copies_of(const choice *c) {
  return c->copies + 2;
}

/* One each, one more, two each, five; fewer than copies, which take requests in turn: one, and one
 * for all but one. */
static uint32_t microbatches_of(const choice *c) {
  const uint32_t n = copies_of(c);
  const uint32_t list[MICROBATCHES] = {n, n + 1, 2 * n, 5, 1, n - 1};
  return list[c->microbatches];
}

/* ---- one case ---- */

/* Ranks are those of all copies; a file says how many micro-batches each has. */
static opipe_status make_plan(mx_bench *b, const choice *c, opipe_plan **out_plan) {
  char name[600];
  const uint32_t copies = copies_of(c), n = microbatches_of(c);
  const opipe_device_choice device = kit_place_device(&b->place);
  kit_schedule_name(&kit_schedules[c->schedule], c->stages + 1, n < copies ? n : n / copies, name,
                    sizeof name);
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_ranks = (c->stages + 1) * copies,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof device,
                                    .n_microbatches = n,
                                    .replicas = copies,
                                    .schedule = name,
                                    .transport = b->place.transport,
                                    .flags = OPIPE_PLAN_IGNORE_ANNOTATIONS};
  return b->m.api->plan_make(b->m.bound, &params, out_plan, &b->m.err);
}

/* Requests of the plan's rows, then others in turns with them. */
static const char *serve(mx_bench *b, opipe_plan *plan, uint32_t flags, const mx_set *const *sets,
                         mx_result *out) {
  mx_model *m = &b->m;
  const opipe_session_params params = {.struct_size = sizeof params,
                                       .flags = flags,
                                       .max_in_flight = MX_STREAM,
                                       .spin_us = UINT32_MAX};
  opipe_session *session = NULL;
  const char *wrong = NULL;
  const bool reference = (flags & OPIPE_SESSION_REFERENCE) != 0;
  memset(out, 0, REQUESTS * sizeof *out);
  if (m->api->session_open(m->context, plan, &params, &session, &m->err) != OPIPE_OK)
    return m->err.message;
  if (!reference)
    wrong = mx_memory(m, plan, session);
  if (wrong == NULL && mx_stream(m, session, sets, FIRST, out) != OPIPE_OK)
    wrong = m->err.message;
  if (wrong == NULL && !reference)
    wrong = mx_memory(m, plan, session);
  if (wrong == NULL &&
      mx_stream(m, session, sets + FIRST, REQUESTS - FIRST, out + FIRST) != OPIPE_OK)
    wrong = m->err.message;
  m->api->session_close(session);
  return wrong;
}

const char *mx_bench_serve(mx_bench *b, opipe_plan **io_plan, int64_t own, int64_t other) {
  static char reason[600];
  const int64_t rows[REQUESTS] = {own, own, other, own, own, other, own};
  const mx_set *sets[REQUESTS];
  mx_result found[REQUESTS] = {{.n = 0}}, reference[REQUESTS] = {{.n = 0}};
  for (uint32_t i = 0; i < REQUESTS; ++i)
    sets[i] = &b->sets[rows[i]];
  const char *wrong = mx_read_again(&b->m, io_plan) == OPIPE_OK ? NULL : b->m.err.message;
  if (wrong == NULL)
    wrong = serve(b, *io_plan, 0, sets, found);
  if (wrong == NULL)
    wrong = serve(b, *io_plan, OPIPE_SESSION_REFERENCE, sets, reference);
  for (uint32_t i = 0; i < REQUESTS && wrong == NULL; ++i) {
    const char *differs = mx_same_bits(&found[i], &reference[i]);
    if (differs == NULL)
      differs = mx_close_to(&found[i], &b->uncut[rows[i]]);
    if (differs == NULL)
      continue;
    (void)snprintf(reason, sizeof reason, "request %u, %lld rows: %s", i, (long long)rows[i],
                   differs);
    wrong = reason;
  }
  for (uint32_t i = 0; i < REQUESTS; ++i) {
    mx_result_free(&found[i]);
    mx_result_free(&reference[i]);
  }
  return wrong;
}

static void count_seen(seen *s, const choice *c) {
  ++s->schedules[c->schedule];
  ++s->stages[c->stages];
  ++s->copies[c->copies];
  ++s->microbatches[c->microbatches];
  ++s->rows[c->rows];
  ++s->others[c->other];
  ++*(microbatches_of(c) < copies_of(c)        ? &s->turns
      : microbatches_of(c) % copies_of(c) == 0 ? &s->even
                                               : &s->uneven);
}

static bool is_not_sliced(const mx_bench *b, const choice *c) {
  const char *name = kit_schedules[c->schedule].name;
  return (strstr(name, "slices=") != NULL || strstr(name, "lengths=") != NULL) &&
         mx_slices_refused(b->m.err.message);
}

static void run_case(mx_bench *b, const choice *c, mx_count *count, seen *s) {
  opipe_plan *plan = NULL;
  const opipe_status status = make_plan(b, c, &plan);
  if (status == OPIPE_OK || !(is_not_sliced(b, c) || mx_refused(count, &b->m, status))) {
    const char *wrong = status == OPIPE_OK
                            ? mx_bench_serve(b, &plan, ROWS[c->rows], OTHERS[c->other])
                            : b->m.err.message;
    ++*(wrong == NULL ? &count->passed : &count->failed);
    if (wrong == NULL) {
      count_seen(s, c);
    } else {
      OPI_FAIL("%s, %u copies of %s on %u ranks, %u micro-batches of %lld rows, then %lld: %s",
               b->folder->name, copies_of(c), kit_schedules[c->schedule].name, c->stages + 1,
               microbatches_of(c), (long long)ROWS[c->rows], (long long)OTHERS[c->other], wrong);
    }
  }
  b->m.api->plan_destroy(plan);
}

/* ---- one folder ---- */

bool mx_bench_bind(mx_bench *b, int64_t rows) {
  if (b->sets[rows].n_inputs == 0 &&
      mx_with_rows(&b->m, b->folder, 0, rows, &b->sets[rows]) != OPIPE_OK)
    return false;
  if (mx_bind_to(&b->m, &b->sets[rows], b->fuse) != OPIPE_OK)
    return false;
  if (b->uncut[rows].n == 0)
    OPI_ASSERT_OK(mx_run_uncut(&b->m, &b->uncut[rows]), &b->m.err);
  return true;
}

/* Runs the cases of one number of rows together, uncut models first. false: it has no other
 * rows. */
static bool run_rows(mx_bench *b, const choice *choices, size_t n, uint32_t rows, mx_count *count,
                     seen *s) {
  for (size_t i = 0; i < n; ++i) {
    if (choices[i].rows == rows && !mx_bench_bind(b, OTHERS[choices[i].other]))
      return false;
  }
  if (!mx_bench_bind(b, ROWS[rows]))
    return false;
  for (size_t i = 0; i < n; ++i) {
    if (choices[i].rows == rows)
      run_case(b, &choices[i], count, s);
  }
  return true;
}

/* In its own rows, which are too few or not free: every plan is refused. */
static void run_fixed(mx_bench *b, const choice *choices, size_t n, mx_count *count) {
  OPI_ASSERT_OK(mx_bind(&b->m, 0, b->fuse), &b->m.err);
  for (size_t i = 0; i < n; ++i) {
    opipe_plan *plan = NULL;
    if (microbatches_of(&choices[i]) == 1)
      continue; /* nothing is cut */
    const opipe_status status = make_plan(b, &choices[i], &plan);
    if (status == OPIPE_OK || !mx_refused(count, &b->m, status)) {
      ++count->failed;
      OPI_FAIL("%s, whose rows are fixed, in %u micro-batches: %s", b->folder->name,
               microbatches_of(&choices[i]), status == OPIPE_OK ? "a plan" : b->m.err.message);
    }
    b->m.api->plan_destroy(plan);
  }
}

static void run_folder(mx_bench *b, const choice *choices, size_t n, mx_count *count, seen *s) {
  const uint32_t refused = count->refused_node;
  for (uint32_t rows = 0; rows < OPI_COUNT(ROWS); ++rows) {
    if (run_rows(b, choices, n, rows, count, s))
      continue;
    (void)printf("%s has no other rows: %s\n", b->folder->name, b->m.err.message);
    run_fixed(b, choices, n, count);
    break;
  }
  if (count->refused_node != refused)
    (void)printf("%s is not split: %s\n", b->folder->name, b->m.err.message);
}

bool mx_bench_open(mx_bench *b, const char *name, const kit_place *place, bool fuse) {
  opipe_error err = OPIPE_ERROR_INIT;
  memset(b, 0, sizeof *b);
  b->fuse = fuse;
  b->place = *place;
  if (mx_folder_read(name, &b->folder, &err) == OPIPE_OK &&
      mx_open(&b->m, NULL, b->folder) == OPIPE_OK)
    return true;
  OPI_FAIL("%s: %s%s", name, err.message, b->m.err.message);
  return false;
}

void mx_bench_close(mx_bench *b) {
  for (uint32_t i = 0; i < MX_SIZES; ++i)
    mx_result_free(&b->uncut[i]);
  mx_close(&b->m);
  mx_folder_free(b->folder);
}

static void open_folder(const char *name, const kit_place *place, bool fuse, const choice *choices,
                        size_t n, mx_count *count, seen *s) {
  static mx_bench b;
  if (mx_bench_open(&b, name, place, fuse))
    run_folder(&b, choices, n, count, s);
  else
    ++count->failed;
  mx_bench_close(&b);
}

/* ---- the matrix ---- */

static uint32_t draw(opi_test_random *random, uint32_t n) {
  return (uint32_t)(opi_test_next(random) % n);
}

/* A file tells the micro-batches of each copy: all have as many. */
static choice draw_choice(opi_test_random *random, size_t schedule) {
  choice c = {.schedule = schedule,
              .stages = draw(random, STAGES),
              .copies = draw(random, COPIES),
              .microbatches = draw(random, MICROBATCHES),
              .rows = draw(random, OPI_COUNT(ROWS)),
              .other = draw(random, OPI_COUNT(OTHERS))};
  if ((kit_schedules[schedule].traits & KIT_WRITTEN) != 0)
    c.microbatches = c.microbatches / 2 * 2;
  return c;
}

static void need(uint32_t n, const char *dimension, size_t value) {
  if (n == 0)
    OPI_FAIL("no case passed with value %zu of %s", value, dimension);
}

static void check_seen(const seen *s, bool full) {
  for (size_t i = 0; i < kit_n_schedules && full; ++i) {
    const bool given = strstr(kit_schedules[i].name, "lengths=") != NULL; /* of 8 tokens */
    if ((kit_schedules[i].traits & KIT_BOUNDED) == 0 && !given)
      need(s->schedules[i], "the schedules", i);
  }
  for (size_t i = 0; i < STAGES; ++i)
    need(s->stages[i], "the ranks of a copy", i);
  for (size_t i = 0; i < COPIES; ++i)
    need(s->copies[i], "the copies", i);
  for (size_t i = 0; i < MICROBATCHES; ++i)
    need(s->microbatches[i], "the micro-batches", i);
  for (size_t i = 0; i < OPI_COUNT(ROWS); ++i)
    need(s->rows[i], "the rows", i);
  for (size_t i = 0; i < OPI_COUNT(OTHERS); ++i)
    need(s->others[i], "the other rows", i);
  OPI_ASSERT(s->even > 0 && s->uneven > 0 && s->turns > 0);
}

void mx_copies(bool full, const kit_place *places, uint32_t n_places, mx_count *count) {
  enum { SEED = 20 };
  const char *names[MX_FOLDERS];
  choice choices[64];
  const size_t n = mx_list(names);
  opi_test_random random = {SEED};
  seen s = {.even = 0};
  size_t turn = 0;
  memset(count, 0, sizeof *count);
  OPI_ASSERT_FATAL(kit_n_schedules <= OPI_COUNT(choices));
  for (size_t i = 0; i < n; ++i) {
    size_t n_choices = 0;
    turn += (kit_schedules[turn % kit_n_schedules].traits & KIT_BOUNDED) != 0;
    for (size_t k = 0; k < kit_n_schedules; ++k) {
      const choice c = draw_choice(&random, k);
      const bool wanted = full || turn % kit_n_schedules == k;
      if ((kit_schedules[k].traits & KIT_BOUNDED) == 0 && wanted)
        choices[n_choices++] = c;
    }
    if (!full && !opi_test_covers(i, opi_test_is_sanitized() ? 3 : 2))
      continue;
    ++turn;
    open_folder(names[i], &places[i / 2 % n_places], turn % 2 == 0, choices, n_choices, count, &s);
  }
  check_seen(&s, full);
  (void)printf(
      "\n%zu models: %u passed, %u failed; refused as they must be: %u by a node that does not "
      "carry "
      "the batch, %u without a free batch dimension, %u with fewer rows than micro-batches\n",
      n, count->passed, count->failed, count->refused_node, count->refused_batch,
      count->refused_rows);
}
