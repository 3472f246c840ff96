/* SPDX-License-Identifier: Apache-2.0 */
/* See passes_play.h. */
#include "partition/make/passes_play.h"

#include <string.h>

#include "partition/schedule/actions.h"

enum { STAGES_MOST = 4096, GROUPS_MOST = OPI_GROUPS_MOST };

static uint32_t class_of(uint32_t n_classes, uint32_t rows) {
  uint32_t c = 0;
  while (c + 1 < n_classes && (UINT64_C(1) << c) < rows)
    ++c;
  return c;
}

void opi_pass_sum(const opi_pass_times *t, opi_pass_sums *out) {
  *out = (opi_pass_sums){.key_ns = 0};
  for (uint32_t s = 0; s < t->n_stages; ++s) {
    for (uint32_t c = 0; c < t->n_classes; ++c)
      out->class_ns[c] += t->ns[s * t->n_classes + c] + t->hop_ns[s * t->n_classes + c];
    out->key_ns += t->key_ns[s];
  }
  for (uint32_t c = t->n_classes; c < OPI_GENERATION_CLASSES; ++c)
    out->class_ns[c] = out->class_ns[t->n_classes - 1];
}

/* ---- stages ---- */

typedef struct stage_line {
  const opi_pass_times *times;
  double free[STAGES_MOST]; /* when each stage has computed what it was given */
  double busy;              /* of all stages */
} stage_line;

/* A pass enters at `at`: when its tokens are there. */
static double send(stage_line *l, double at, uint32_t rows, double keys) {
  const opi_pass_times *t = l->times;
  const uint32_t c = class_of(t->n_classes, rows);
  for (uint32_t s = 0; s < t->n_stages; ++s) {
    const double takes = t->ns[s * t->n_classes + c] + t->key_ns[s] * keys;
    at += t->hop_ns[s * t->n_classes + c];
    at = at > l->free[s] ? at : l->free[s];
    at += takes;
    l->free[s] = at;
    l->busy += takes;
  }
  return at;
}

/* ---- sequences that generate ---- */

/* Sequences served together: they have their tokens at `at`. */
typedef struct served {
  double at;
  uint32_t n;
} served;

typedef struct decode {
  stage_line line;
  served queue[2 * GROUPS_MOST]; /* the least recently served first */
  uint32_t first, n, waiting;    /* entries; sequences in them */
  double ends[GROUPS_MOST];      /* of the last passes, by number */
  uint64_t n_passes, n_tokens;
} decode;

static void put(decode *d, double at, uint32_t n) {
  d->queue[(d->first + d->n++) % (2 * GROUPS_MOST)] = (served){at, n};
  d->waiting += n;
}

/* The next pass; returns when it has its tokens. */
static double play_pass(decode *d, uint32_t share, uint32_t groups, double keys) {
  const uint64_t p = d->n_passes++;
  const double room = p < groups ? 0 : d->ends[p % groups], ready = d->queue[d->first].at;
  const double begins = room > ready ? room : ready;
  uint32_t rows = 0;
  while (d->n > 0 && rows < share && d->queue[d->first].at <= begins) {
    served *front = &d->queue[d->first];
    const uint32_t takes = front->n < share - rows ? front->n : share - rows;
    front->n -= takes;
    rows += takes;
    if (front->n != 0)
      continue;
    d->first = (d->first + 1) % (2 * GROUPS_MOST);
    --d->n;
  }
  d->waiting -= rows;
  const double ends = send(&d->line, begins, rows, keys * rows);
  d->ends[p % groups] = ends;
  d->n_tokens += rows;
  put(d, ends, rows);
  return ends;
}

opi_decode_play opi_passes_play_decode(const opi_pass_times *times, uint32_t active,
                                       uint32_t groups, double keys) {
  enum { WARM = 4, ROUNDS = 8 };
  const uint32_t share = (active + groups - 1) / groups;
  decode d = {.line.times = times};
  double from = 0, to = 0, busy = 0;
  uint64_t before = 0;
  put(&d, 0, active);
  while (d.n_tokens < (uint64_t)WARM * active)
    from = play_pass(&d, share, groups, keys);
  before = d.n_tokens;
  busy = d.line.busy;
  while (d.n_tokens < before + (uint64_t)ROUNDS * active)
    to = play_pass(&d, share, groups, keys);
  if (!(to > from))
    return (opi_decode_play){.tokens_per_s = 0};
  const double idle = 1 - (d.line.busy - busy) / (times->n_stages * (to - from));
  return (opi_decode_play){.tokens_per_s = (double)(d.n_tokens - before) / (to - from) * 1e9,
                           .idle = idle > 0 ? idle : 0};
}

uint32_t opi_passes_best_groups(const opi_pass_times *times, uint32_t active, uint32_t most,
                                double keys, opi_decode_play *out_play) {
  static const double same = 1e-9; /* of a rate, or a share of time */
  uint32_t best = 0;
  most = most < GROUPS_MOST ? most : GROUPS_MOST;
  for (uint32_t n = 1; n <= most && n <= active; ++n) {
    const opi_decode_play play = opi_passes_play_decode(times, active, n, keys);
    const double more = play.tokens_per_s - out_play->tokens_per_s * (best != 0);
    const double close = same * play.tokens_per_s;
    if (best != 0 && (more < -close || (more <= close && play.idle >= out_play->idle - same)))
      continue;
    *out_play = play;
    best = n;
  }
  return best;
}

/* ---- prompts ---- */

static double keys_of(uint32_t first, uint32_t n_rows) {
  return (double)n_rows * first + (double)n_rows * ((double)n_rows + 1) / 2;
}

static double slice_ns(const opi_pass_sums *sums, uint32_t first, uint32_t rows) {
  return sums->class_ns[class_of(OPI_GENERATION_CLASSES, rows)] +
         sums->key_ns * keys_of(first, rows);
}

uint32_t opi_slice_rows(const opi_pass_sums *sums, const opi_prompt_slices *how, uint32_t first,
                        uint32_t n_ids) {
  const uint32_t left = n_ids - first, most = how->rows < left ? how->rows : left;
  uint32_t low = 1, high = most;
  if (how->ns <= 0)
    return most;
  while (low < high) {
    const uint32_t n = low + (high - low + 1) / 2;
    if (slice_ns(sums, first, n) <= how->ns)
      low = n;
    else
      high = n - 1;
  }
  return low;
}

double opi_passes_play_prompt(const opi_pass_times *times, const opi_prompt_slices *how,
                              uint32_t n_ids, uint32_t groups, uint32_t *out_n) {
  stage_line l = {.times = times};
  double ends[GROUPS_MOST], at = 0;
  opi_pass_sums sums;
  uint32_t n = 0;
  opi_pass_sum(times, &sums);
  for (uint32_t first = 0; first < n_ids; ++n) {
    const uint32_t rows = opi_slice_rows(&sums, how, first, n_ids);
    at = send(&l, n < groups ? 0 : ends[n % groups], rows, keys_of(first, rows));
    ends[n % groups] = at;
    first += rows;
  }
  if (out_n != NULL)
    *out_n = n;
  return at;
}

typedef struct slice_search {
  const opi_pass_times *times;
  opi_pass_sums sums;
  uint32_t n_ids, groups, n;
  double gap_ns, ns;
  opi_prompt_slices best;
} slice_search;

/* The longest slice of more than one row keeps to the gap? Rows see most keys at the end. */
static bool keeps_gap(const slice_search *s, const opi_prompt_slices *how) {
  if (s->gap_ns <= 0 || (how->ns > 0 && how->ns <= s->gap_ns) || how->rows == 1)
    return true;
  const uint32_t rows = how->rows < s->n_ids ? how->rows : s->n_ids;
  return how->ns <= 0 && slice_ns(&s->sums, s->n_ids - rows, rows) <= s->gap_ns;
}

static void try_slices(slice_search *s, opi_prompt_slices how) {
  static const double same = 1e-9;
  uint32_t n = 0;
  if (!keeps_gap(s, &how))
    return;
  const double ns = opi_passes_play_prompt(s->times, &how, s->n_ids, s->groups, &n);
  if (s->n != 0 && (ns > s->ns * (1 + same) || (ns >= s->ns * (1 - same) && n >= s->n)))
    return;
  s->ns = ns;
  s->n = n;
  s->best = how;
}

opi_prompt_slices opi_passes_best_slices(const opi_pass_times *times, uint32_t rows, uint32_t n_ids,
                                         uint32_t groups, double gap_ns, double *out_ns,
                                         uint32_t *out_n) {
  enum { STEPS = 8, EQUAL_MOST = 1024 };
  slice_search s = {.times = times, .n_ids = n_ids, .groups = groups, .gap_ns = gap_ns};
  opi_pass_sum(times, &s.sums);
  rows = rows < n_ids ? rows : n_ids;
  if (gap_ns > 0)
    try_slices(&s, (opi_prompt_slices){rows, gap_ns});
  for (uint32_t n = rows; n > 0; n -= n <= EQUAL_MOST ? 1 : n - n / 2)
    try_slices(&s, (opi_prompt_slices){n, 0});
  /* as long as a slice of n rows at several places: longer ones before, shorter ones behind */
  for (uint32_t n = rows; n > 0; n /= 2) {
    for (uint32_t k = 0; k < STEPS; ++k) {
      const uint32_t first = (uint32_t)((uint64_t)(n_ids - n) * k / STEPS);
      try_slices(&s, (opi_prompt_slices){rows, slice_ns(&s.sums, first, n)});
    }
  }
  *out_ns = s.ns;
  *out_n = s.n;
  return s.best;
}

/* ---- proof ---- */

/* ROUNDS rounds of all groups, as stages of their own: stage r * n_stages + s is stage s in round
 * r, on rank s, so the edge from the last stage of a round to the first of the next carries tokens.
 * Two rounds are a body and what comes before it, the third is the second again. */
enum { ROUNDS = 3 };

static opipe_status list_passes(const opi_problem *p, uint32_t n_stages,
                                const opipe_allocator *allocator, opi_do_list **out_list,
                                opipe_error *err) {
  opi_do_list *list = NULL;
  OPI_TRY(opi_do_list_create(allocator, p->n_ranks, (uint64_t)n_stages * ROUNDS * p->n_microbatches,
                             &list, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t rank = 0; rank < p->n_ranks; ++rank) {
    opi_do_list_rank(list, rank);
    for (uint32_t i = 0; i < ROUNDS * p->n_microbatches && status == OPIPE_OK; ++i) {
      const opi_do item = {.kind = OPI_DO_F,
                           .stage = i / p->n_microbatches * n_stages + rank,
                           .microbatch = i % p->n_microbatches,
                           .edge = OPIPE_NONE};
      status = opi_do_list_add(list, item, err);
    }
  }
  opi_do_list_rank(list, p->n_ranks);
  if (status < 0) {
    opi_do_list_free(list);
    return status;
  }
  *out_list = list;
  return OPIPE_OK;
}

static opipe_status prove_list(const opi_problem *p, const opi_do_list *list,
                               const opipe_allocator *allocator, opipe_error *err) {
  const opi_lowering how = {.messages_only = true};
  opi_do_list *lowered = NULL;
  OPI_TRY(opi_lower_order(p, list, &how, allocator, &lowered, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t rule = 0; rule < OPI_RULES && status == OPIPE_OK; ++rule) {
    opi_proof proof = {.peak_stash = NULL};
    status = opi_proof_check(p, lowered, rule, allocator, &proof, err);
    if (status < 0) {
      (void)opi_error_prefix(err, "%u passes in flight, rule %s: ", p->n_microbatches,
                             opi_rule_name(rule));
    }
  }
  opi_do_list_free(lowered);
  return status;
}

opipe_status opi_passes_prove(uint32_t n_stages, uint32_t groups, const opipe_allocator *allocator,
                              opipe_error *err) {
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  const uint32_t n = n_stages * ROUNDS;
  uint32_t *rank = OPI_ARENA_ARRAY(&arena, uint32_t, n);
  opi_stage_edge *edges = OPI_ARENA_ARRAY(&arena, opi_stage_edge, n);
  opi_do_list *list = NULL;
  opipe_status status = OPIPE_OK;
  if (rank == NULL || edges == NULL)
    status = opi_fail_nomem(err, n * sizeof *edges, "a proof");
  if (status == OPIPE_OK) {
    for (uint32_t s = 0; s < n; ++s)
      rank[s] = s % n_stages;
    opi_edges_chain(edges, n);
    const opi_problem problem = {.n_ranks = n_stages,
                                 .n_stages = n,
                                 .n_replicas = 1,
                                 .n_microbatches = groups,
                                 .n_slices = 1,
                                 .n_parts = 1,
                                 .mode = OPIPE_MODE_FORWARD,
                                 .instance_rank = rank,
                                 .edges = edges,
                                 .n_edges = n - 1};
    status = list_passes(&problem, n_stages, allocator, &list, err);
    if (status == OPIPE_OK)
      status = prove_list(&problem, list, allocator, err);
  }
  opi_do_list_free(list);
  opi_arena_release(&arena);
  return status;
}
