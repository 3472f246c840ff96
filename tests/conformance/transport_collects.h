/* SPDX-License-Identifier: Apache-2.0 */
/* Collects: every kind in every type, of lists that members cut differently, with parts of any
 * size, in place or not; the bits of rising order, rounded once; nothing else is written; sizes
 * that do not fit, members that do not agree.
 */
#ifndef CONFORMANCE_TRANSPORT_COLLECTS_H
#define CONFORMANCE_TRANSPORT_COLLECTS_H

#include "sum_numbers.h"
#include "transport_kit.h"

#if OPIPE_ABI_MINOR >= 5

enum {
  COLLECT_REGIONS = 4,
  COLLECT_BYTES = 2 * DEPTH * SLOT_BYTES,
  COLLECT_HALF = COLLECT_BYTES / 2
};
enum { COLLECT_FILL = 0xa5, COLLECT_WAYS = 3 };

/* One meeting. */
typedef struct meeting {
  uint32_t kind, dtype;
  uint64_t n_values; /* ALL_REDUCE */
  uint64_t parts[RANKS];
  bool in_place;
} meeting;

static const meeting meetings[] = {
    {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, 250, {0}, true},
    {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, 97, {0}, false},
    {OPIPE_COLLECT_ALL_REDUCE, OPIPE_DOUBLE, 125, {0}, true},
    {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT16, 331, {0}, false},
    {OPIPE_COLLECT_ALL_REDUCE, OPIPE_BFLOAT16, 500, {0}, true},
    {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, 0, {0}, true},
    {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, 1, {0}, true},
    {OPIPE_COLLECT_REDUCE_SCATTER, OPIPE_FLOAT, 0, {60, 60, 60}, false},
    {OPIPE_COLLECT_REDUCE_SCATTER, OPIPE_FLOAT, 0, {101, 3, 140}, true},
    {OPIPE_COLLECT_REDUCE_SCATTER, OPIPE_DOUBLE, 0, {0, 17, 40}, false},
    {OPIPE_COLLECT_REDUCE_SCATTER, OPIPE_FLOAT16, 0, {200, 0, 0}, false},
    {OPIPE_COLLECT_REDUCE_SCATTER, OPIPE_BFLOAT16, 0, {1, 300, 2}, true},
    {OPIPE_COLLECT_REDUCE_SCATTER, OPIPE_FLOAT, 0, {0, 0, 0}, false},
    {OPIPE_COLLECT_ALL_GATHER, OPIPE_FLOAT, 0, {80, 80, 80}, false},
    {OPIPE_COLLECT_ALL_GATHER, OPIPE_FLOAT, 0, {33, 0, 170}, true},
    {OPIPE_COLLECT_ALL_GATHER, OPIPE_DOUBLE, 0, {7, 90, 1}, false},
    {OPIPE_COLLECT_ALL_GATHER, OPIPE_FLOAT16, 0, {0, 0, 400}, true},
    {OPIPE_COLLECT_ALL_GATHER, OPIPE_BFLOAT16, 0, {90, 201, 13}, false},
    {OPIPE_COLLECT_ALL_GATHER, OPIPE_INT64, 0, {12, 50, 3}, false},
};
enum { MEETINGS = sizeof meetings / sizeof meetings[0] };
static const uint32_t collect_members[RANKS] = {2, 0, 1};

static uint32_t member_of_rank(uint32_t index) {
  uint32_t m = 0;
  while (collect_members[m] != index)
    ++m;
  return m;
}

/* Ways to add three values: in each order that gives another sum, rounded to the type at the end or
 * at each addition. */
enum { NUMBER_WAYS = 6 };
static double number_sum_by(uint32_t dtype, uint32_t way, uint64_t round, uint64_t i) {
  static const uint32_t orders[3][3] = {{0, 1, 2}, {0, 2, 1}, {1, 2, 0}};
  const uint32_t *order = orders[way % 3];
  volatile float narrow = (float)number_of(dtype, order[0], round, i);
  volatile double wide = number_of(dtype, order[0], round, i);
  for (uint32_t k = 1; k < 3; ++k) {
    narrow += (float)number_of(dtype, order[k], round, i);
    wide += number_of(dtype, order[k], round, i);
    if (way >= 3 && dtype == OPIPE_FLOAT16)
      narrow = opipe_f16_to_f32(opipe_f32_to_f16(narrow));
    else if (way >= 3 && dtype == OPIPE_BFLOAT16)
      narrow = opipe_bf16_to_f32(opipe_f32_to_bf16(narrow));
  }
  return dtype == OPIPE_DOUBLE ? wide : (double)narrow;
}

/* ---- lists ---- */

typedef struct list {
  opipe_region at[COLLECT_REGIONS];
  uint32_t n;
} list;

/* n values in a stretch of memory: in one piece; in two of which the second lies first; in four, of
 * which one is empty. */
static list cut_list(opipe_buffer *buffer, uint64_t begin, uint64_t n, uint64_t size,
                     uint32_t way) {
  const uint64_t a = n / 3, b = n - a, q = n / 4;
  if (way == 0)
    return (list){{{buffer, begin, n * size}}, 1};
  if (way == 1)
    return (list){{{buffer, begin + b * size, a * size}, {buffer, begin, b * size}}, 2};
  return (list){{{buffer, begin + (n - q) * size, q * size},
                 {buffer, begin, 0},
                 {buffer, begin + q * size, (n - 2 * q) * size},
                 {buffer, begin, q * size}},
                4};
}

/* Values [first, first + n) of a list. */
static list part_of_list(const list *all, uint64_t first, uint64_t n, uint64_t size) {
  list part = {.n = 0};
  uint64_t begin = first * size, end = (first + n) * size, at = 0;
  for (uint32_t i = 0; i < all->n; ++i) {
    const uint64_t last = at + all->at[i].n_bytes;
    const uint64_t from = begin > at ? begin : at, to = end < last ? end : last;
    if (from < to) {
      part.at[part.n++] =
          (opipe_region){all->at[i].buffer, all->at[i].offset_bytes + from - at, to - from};
    }
    at = last;
  }
  return part;
}

/* Where value i of a list lies in an image of the buffer. */
static unsigned char *value_in(unsigned char *image, const list *l, uint64_t i, uint64_t size) {
  uint64_t offset = i * size;
  uint32_t k = 0;
  while (offset >= l->at[k].n_bytes)
    offset -= l->at[k++].n_bytes;
  return image + l->at[k].offset_bytes + offset;
}

/* ---- a meeting of one member ---- */

typedef struct asked {
  opipe_collect what;
  list from, to;
  uint64_t first, own; /* the member's part */
  unsigned char wanted[COLLECT_BYTES];
} asked;

static uint64_t values_of_meeting(const meeting *m) {
  uint64_t n = m->n_values;
  for (uint32_t i = 0; i < RANKS && m->kind != OPIPE_COLLECT_ALL_REDUCE; ++i)
    n += m->parts[i];
  return n;
}

static void find_part(const meeting *m, uint32_t member, uint64_t *out_first, uint64_t *out_n) {
  *out_first = 0;
  *out_n = m->kind == OPIPE_COLLECT_ALL_REDUCE ? m->n_values : m->parts[member];
  for (uint32_t i = 0; i < member && m->kind != OPIPE_COLLECT_ALL_REDUCE; ++i)
    *out_first += m->parts[i];
}

/* The member whose value it is in an all-gather. */
static uint32_t owner_of(const meeting *m, uint64_t i, uint64_t *out_within) {
  uint32_t member = 0;
  while (i >= m->parts[member])
    i -= m->parts[member++];
  *out_within = i;
  return member;
}

static void make_lists(const meeting *m, opipe_buffer *buffer, uint32_t way, asked *a) {
  const uint64_t size = size_of_value(m->dtype), n = values_of_meeting(m);
  const bool gathers = m->kind == OPIPE_COLLECT_ALL_GATHER;
  const bool scatters = m->kind == OPIPE_COLLECT_REDUCE_SCATTER;
  const list all = cut_list(buffer, gathers ? COLLECT_HALF : 0, n, size, way);
  const list own = m->in_place ? part_of_list(&all, a->first, a->own, size)
                               : cut_list(buffer, gathers ? 0 : COLLECT_HALF, a->own, size,
                                          (way + 1) % COLLECT_WAYS);
  a->from = gathers ? own : all;
  a->to = gathers ? all : scatters || !m->in_place ? own : all;
}

/* The memory before, and as it must be behind it. */
static void make_values(const meeting *m, uint32_t member, uint64_t round, opipe_buffer *buffer,
                        asked *a) {
  const uint64_t size = size_of_value(m->dtype), n = values_of_meeting(m);
  const opipe_region all = {buffer, 0, COLLECT_BYTES};
  unsigned char *image = (unsigned char *)opipe_host_at(&all);
  const bool gathers = m->kind == OPIPE_COLLECT_ALL_GATHER;
  const bool scatters = m->kind == OPIPE_COLLECT_REDUCE_SCATTER;
  memset(image, COLLECT_FILL, COLLECT_BYTES);
  for (uint64_t i = 0; i < (gathers ? a->own : n); ++i)
    put_number(value_in(image, &a->from, i, size), m->dtype, number_of(m->dtype, member, round, i));
  memcpy(a->wanted, image, COLLECT_BYTES);
  for (uint64_t i = 0; i < (scatters ? a->own : n); ++i) {
    uint64_t within = 0;
    const uint32_t owner = gathers ? owner_of(m, i, &within) : 0;
    put_number(value_in(a->wanted, &a->to, i, size), m->dtype,
               gathers ? number_of(m->dtype, owner, round, within)
                       : number_sum(m->dtype, RANKS, round, scatters ? a->first + i : i));
  }
}

static void ask(const meeting *m, rank *r, uint64_t round, asked *a) {
  const uint32_t member = member_of_rank(r->index);
  memset(a, 0, sizeof *a);
  find_part(m, member, &a->first, &a->own);
  make_lists(m, there(r), (uint32_t)(r->index + round) % COLLECT_WAYS, a);
  make_values(m, member, round, r->slots, a);
  a->what = (opipe_collect){.struct_size = (uint32_t)OPIPE_END(opipe_collect, done),
                            .kind = m->kind,
                            .dtype = m->dtype,
                            .n_from = a->from.n,
                            .n_to = a->to.n,
                            .from = a->from.at,
                            .to = a->to.at,
                            .parts = m->kind == OPIPE_COLLECT_ALL_REDUCE ? NULL : m->parts};
}

static opipe_status move_collected(rank *r, bool to_device) {
  const opipe_region all = {r->slots, 0, COLLECT_BYTES};
  return move_far(r, &all, to_device);
}

/* Sums in another order, or rounded at each addition, are wanted as well where a transport says so.
 */
static void want_any_order(const rank *r, const meeting *m, uint64_t round, unsigned char *image,
                           asked *a) {
  const uint64_t size = size_of_value(m->dtype);
  const bool scatters = m->kind == OPIPE_COLLECT_REDUCE_SCATTER;
  unsigned char sum[sizeof(double)];
  if ((r->s->info.flags & OPIPE_TRANSPORT_UNORDERED) == 0 || m->kind == OPIPE_COLLECT_ALL_GATHER)
    return;
  for (uint64_t i = 0; i < (scatters ? a->own : values_of_meeting(m)); ++i) {
    unsigned char *wanted = value_in(a->wanted, &a->to, i, size);
    for (uint32_t way = 0; way < NUMBER_WAYS; ++way) {
      put_number(sum, m->dtype, number_sum_by(m->dtype, way, round, scatters ? a->first + i : i));
      if (memcmp(sum, value_in(image, &a->to, i, size), size) == 0)
        memcpy(wanted, sum, size);
    }
  }
}

static bool is_as_wanted(const rank *r, const meeting *m, uint64_t round, asked *a) {
  const opipe_region all = {r->slots, 0, COLLECT_BYTES};
  want_any_order(r, m, round, (unsigned char *)opipe_host_at(&all), a);
  return memcmp(opipe_host_at(&all), a->wanted, COLLECT_BYTES) == 0;
}

static opipe_status collect_meetings(rank *r) {
  static const long late[6][RANKS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                      {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  asked a;
  for (uint64_t round = 0; round < MEETINGS; ++round) {
    const struct timespec pause = {.tv_nsec = late[round % 6][r->index] * 1000000};
    ask(&meetings[round], r, round, &a);
    if (round < 6) /* they come in every order */
      (void)nanosleep(&pause, NULL);
    opipe_status moved = move_collected(r, true);
    if (moved < 0)
      return moved;
    UNTIL(r, r->s->t->collect(r->collective, round, &a.what, &r->err));
    UNTIL(r, r->s->t->collect_test(r->collective, round, &r->err));
    moved = move_collected(r, false);
    if (moved < 0)
      return moved;
    r->n_good += is_as_wanted(r, &meetings[round], round, &a);
    r->n_unsteady += r->s->t->collect_test(r->collective, round, &r->err) != OPIPE_OK;
  }
  return OPIPE_OK;
}

static void *collect_body(void *arg) {
  rank *r = (rank *)arg;
  r->status = collect_meetings(r);
  return NULL;
}

static void check_collected(const rank *r) {
  conf_ok(r->status, &r->err, "collect");
  conf_check(r->n_good == MEETINGS,
             "rank %u: after %u of %d collects the values are those of rising order, and nothing "
             "else is written",
             r->index, r->n_good, (int)MEETINGS);
  conf_check(r->n_unsteady == 0, "rank %u: collect_test is not OK again", r->index);
}

/* ---- groups ---- */

static opipe_collective_params collective_params(uint64_t id) {
  return (opipe_collective_params){
      .struct_size = (uint32_t)OPIPE_END(opipe_collective_params, n_regions),
      .n_ranks = RANKS,
      .ranks = collect_members,
      .id = id,
      .n_bytes = SLOT_BYTES,
      .n_regions = COLLECT_REGIONS};
}

static bool open_collective(rank *r, uint64_t id) {
  const opipe_collective_params params = collective_params(id);
  return conf_made(r->s->t->collective_open(r->endpoint, &params, &r->collective, &r->err),
                   &r->collective, &r->err, "collective_open");
}

static bool open_collectives(ring *g) {
  for (uint32_t i = 0; i < RANKS; ++i) {
    if (!open_collective(&g->ranks[i], 7))
      return false;
  }
  return make_all_ready(g);
}

static void close_collectives(ring *g, const subject *s) {
  for (uint32_t i = 0; i < RANKS; ++i)
    s->t->collective_close(g->ranks[i].collective);
}

static void check_kinds(const subject *s) {
  ring g;
  conf_case("collects");
  if (open_ring(&g, s) && open_collectives(&g)) {
    const uint64_t before = conf_allocations();
    on_every_rank(&g, collect_body);
    conf_check(conf_allocations() == before, "%llu allocations in %d collects",
               (unsigned long long)(conf_allocations() - before), (int)MEETINGS);
    for (uint32_t i = 0; i < RANKS; ++i)
      check_collected(&g.ranks[i]);
  }
  close_collectives(&g, s);
  close_ring(&g, s);
}

/* Two groups of the same ranks, which open them in different orders. */
static void check_ids(const subject *s) {
  ring g;
  opipe_collective *others[RANKS] = {NULL};
  bool opened = true;
  conf_case("two groups of the same ranks");
  if (open_ring(&g, s)) {
    for (uint32_t i = 0; i < RANKS && opened; ++i) {
      rank *r = &g.ranks[i];
      const opipe_collective_params params = collective_params(8);
      opened = (i != 1 || open_collective(r, 7)) &&
               conf_made(s->t->collective_open(r->endpoint, &params, &others[i], &r->err),
                         &others[i], &r->err, "collective_open") &&
               (i == 1 || open_collective(r, 7));
    }
    if (opened && make_all_ready(&g)) {
      on_every_rank(&g, collect_body);
      for (uint32_t i = 0; i < RANKS; ++i)
        check_collected(&g.ranks[i]);
    }
  }
  close_collectives(&g, s);
  for (uint32_t i = 0; i < RANKS; ++i)
    s->t->collective_close(others[i]);
  close_ring(&g, s);
}

/* ---- refusals ---- */

static void names_both(const rank *r, const char *one, const char *other, const char *what) {
  conf_check(strstr(r->err.message, one) != NULL && strstr(r->err.message, other) != NULL,
             "%s: the message does not name %s and %s: %s", what, one, other, r->err.message);
}

static void check_refused_openings(const subject *s, rank *a) {
  static const uint32_t others[2] = {1, 2}, absent[2] = {0, RANKS}, twice[3] = {0, 1, 0};
  opipe_collective *none = NULL;
  opipe_collective_params params = collective_params(20);
  params.n_ranks = 2;
  params.ranks = others;
  (void)conf_refused(s->t->collective_open(a->endpoint, &params, &none, &a->err), &a->err,
                     "a group that the rank is no member of");
  params.ranks = absent;
  (void)conf_refused(s->t->collective_open(a->endpoint, &params, &none, &a->err), &a->err,
                     "a group of a rank that is not there");
  params.n_ranks = 3;
  params.ranks = twice;
  (void)conf_refused(s->t->collective_open(a->endpoint, &params, &none, &a->err), &a->err,
                     "a group that lists a rank twice");
  conf_check(none == NULL, "collective_open fails, but sets its output");
}

static void check_refused_sizes(const subject *s, rank *a) {
  static const meeting of = {OPIPE_COLLECT_REDUCE_SCATTER, OPIPE_FLOAT, 0, {10, 20, 30}, false};
  opipe_region longer[COLLECT_REGIONS + 1];
  asked b;
  ask(&of, a, 0, &b); /* rank 0 is member 1 */
  opipe_collect c = b.what;
  c.kind = OPIPE_COLLECT_KINDS;
  (void)conf_refused(s->t->collect(a->collective, 0, &c, &a->err), &a->err, "an unknown kind");
  c = b.what;
  c.dtype = OPIPE_STRING;
  conf_error(s->t->collect(a->collective, 0, &c, &a->err), OPIPE_E_UNSUPPORTED, &a->err,
             "a collect of strings");
  c = b.what;
  c.dtype = OPIPE_INT64;
  conf_error(s->t->collect(a->collective, 0, &c, &a->err), OPIPE_E_UNSUPPORTED, &a->err,
             "a sum of int64");
  c = b.what;
  c.n_from = 1;
  b.from.at[0].n_bytes = 59 * sizeof(float);
  if (conf_refused(s->t->collect(a->collective, 0, &c, &a->err), &a->err, "a `from` of 59 values"))
    names_both(a, "59", "60", "a `from` of 59 values");
  ask(&of, a, 0, &b);
  c = b.what;
  b.to = cut_list(a->slots, COLLECT_HALF, 21, sizeof(float), 0);
  c.n_to = 1;
  if (conf_refused(s->t->collect(a->collective, 0, &c, &a->err), &a->err, "a `to` of 21 values"))
    names_both(a, "21", "20", "a `to` of 21 values");
  ask(&of, a, 0, &b);
  for (uint32_t i = 0; i <= COLLECT_REGIONS; ++i)
    longer[i] = (opipe_region){a->slots, i * 12 * sizeof(float), 12 * sizeof(float)};
  c = b.what;
  c.from = longer;
  c.n_from = COLLECT_REGIONS + 1;
  if (conf_refused(s->t->collect(a->collective, 0, &c, &a->err), &a->err, "a list of 5 regions"))
    names_both(a, "5", "4", "a list of 5 regions");
}

static void check_refused_meetings(const subject *s, rank *a) {
  static const meeting of = {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, ELEMS + 1, {0}, true};
  static const meeting fits = {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, 8, {0}, true};
  asked b;
  ask(&of, a, 0, &b);
  if (conf_refused(s->t->collect(a->collective, 0, &b.what, &a->err), &a->err,
                   "more bytes than the group was opened for"))
    names_both(a, "1028", "1024", "more bytes than the group was opened for");
  ask(&fits, a, 0, &b);
  (void)conf_refused(s->t->collect(a->collective, 1, &b.what, &a->err), &a->err,
                     "collect 1 before collect 0");
}

static void check_refused_collects(const subject *s) {
  ring g;
  conf_case("collects that are refused");
  if (open_ring(&g, s)) {
    rank *a = &g.ranks[0];
    check_refused_openings(s, a);
    if (open_collectives(&g)) {
      opipe_collective *again = NULL;
      const opipe_collective_params params = collective_params(7);
      (void)conf_refused(s->t->collective_open(a->endpoint, &params, &again, &a->err), &a->err,
                         "a group that is open already");
      conf_check(again == NULL, "collective_open fails, but sets its output");
      check_refused_sizes(s, a);
      check_refused_meetings(s, a);
      on_every_rank(&g, collect_body); /* nothing of it has happened */
      for (uint32_t i = 0; i < RANKS; ++i)
        check_collected(&g.ranks[i]);
    }
  }
  close_collectives(&g, s);
  close_ring(&g, s);
}

/* ---- members that do not agree ---- */

static const meeting unlike[][2] = {
    {{OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, 40, {0}, true},
     {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, 44, {0}, true}},
    {{OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT16, 40, {0}, true},
     {OPIPE_COLLECT_ALL_REDUCE, OPIPE_BFLOAT16, 40, {0}, true}},
    {{OPIPE_COLLECT_REDUCE_SCATTER, OPIPE_FLOAT, 0, {10, 10, 20}, true},
     {OPIPE_COLLECT_ALL_REDUCE, OPIPE_FLOAT, 40, {0}, true}},
    {{OPIPE_COLLECT_ALL_GATHER, OPIPE_FLOAT, 0, {10, 10, 23}, false},
     {OPIPE_COLLECT_ALL_GATHER, OPIPE_FLOAT, 0, {14, 10, 19}, false}}};
static const char *const unlike_names[][2] = {
    {"40", "44"}, {"float16", "bfloat16"}, {"reduce-scatter", "all-reduce"}, {"10", "14"}};
enum { UNLIKE = sizeof unlike / sizeof unlike[0] };

/* Until an error, or that it is over. */
static opipe_status until_refused(rank *r, const asked *a) {
  UNTIL(r, r->s->t->collect(r->collective, 0, &a->what, &r->err));
  UNTIL(r, r->s->t->collect_test(r->collective, 0, &r->err));
  return OPIPE_OK;
}

static uint32_t unlike_case;

static void *unlike_body(void *arg) {
  rank *r = (rank *)arg;
  asked a;
  ask(&unlike[unlike_case][r->index == 1], r, 0, &a);
  r->status = until_refused(r, &a);
  return NULL;
}

static void check_disagreement(const subject *s) {
  conf_case("collects whose members do not agree");
  for (unlike_case = 0; unlike_case < UNLIKE; ++unlike_case) {
    ring g;
    const char *const *names = unlike_names[unlike_case];
    if (open_ring(&g, s) && open_collectives(&g)) {
      on_every_rank(&g, unlike_body);
      for (uint32_t i = 0; i < RANKS; ++i) {
        const rank *r = &g.ranks[i];
        conf_error(r->status, OPIPE_E_INVALID, &r->err, "a collect of members that differ");
        if (r->status == OPIPE_E_INVALID && (i == 1 || unlike_case == 0))
          names_both(r, names[0], names[1], "members that differ");
      }
      const opipe_error why = {.status = OPIPE_E_INVALID, .message = "members differ"};
      s->t->abort(g.world, 0, &why);
    }
    close_collectives(&g, s);
    close_ring(&g, s);
  }
}

/* ---- failure in the middle ---- */

static void *missed_body(void *arg) {
  rank *r = (rank *)arg;
  asked a;
  ask(&meetings[0], r, 0, &a);
  r->status = until_refused(r, &a);
  return NULL;
}

/* Rank 1 never comes. */
static void check_missed(const subject *s) {
  ring g;
  pthread_t threads[RANKS];
  conf_case("abort while a member is awaited");
  if (open_ring(&g, s) && open_collectives(&g)) {
    opipe_error why = OPIPE_ERROR_INIT;
    why.status = OPIPE_E_DEVICE;
    (void)snprintf(why.message, sizeof why.message, "the first reason");
    for (uint32_t i = 0; i < RANKS; i += 2) {
      conf_check(pthread_create(&threads[i], NULL, missed_body, &g.ranks[i]) == 0,
                 "pthread_create");
    }
    (void)nanosleep(&(struct timespec){0, 20000000}, NULL);
    s->t->abort(g.world, 1, &why);
    for (uint32_t i = 0; i < RANKS; i += 2) {
      rank *r = &g.ranks[i];
      (void)pthread_join(threads[i], NULL);
      conf_error(r->status, OPIPE_E_PEER, &r->err, "a collect after abort");
      conf_check(strstr(r->err.message, "the first reason") != NULL,
                 "the message is not that of the abort: %s", r->err.message);
    }
    rank *late = &g.ranks[1];
    asked a;
    ask(&meetings[0], late, 0, &a);
    conf_error(s->t->collect(late->collective, 0, &a.what, &late->err), OPIPE_E_PEER, &late->err,
               "collect after abort");
  }
  close_collectives(&g, s);
  close_ring(&g, s);
}

/* ---- all of it ---- */

static bool collects(const subject *s) {
  return (s->info.flags & OPIPE_TRANSPORT_COLLECTIVES) != 0 &&
         OPIPE_HAS(s->t, opipe_transport, collect_test) && s->t->collect_test != NULL;
}

static void check_collectives(const subject *s) {
  conf_case("collects");
  if (!collects(s)) {
    conf_skip("the transport has no collectives");
    return;
  }
  s->t->collective_close(NULL);
  if (!may_have_threads(s))
    return;
  check_kinds(s);
  check_ids(s);
  check_refused_collects(s);
  check_disagreement(s);
  check_missed(s);
}

#else
static void check_collectives(const subject *s) {
  (void)s;
}
#endif

#endif /* CONFORMANCE_TRANSPORT_COLLECTS_H */
