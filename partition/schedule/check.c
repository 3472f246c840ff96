/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that a compute order is complete: every unit once per pass, at home, in an order that its
 * own rank can keep. The proof checks dependencies between ranks.
 *
 * In a double-buffered body a flagged forward belongs to the next mini-batch: an unflagged reader
 * finds it done by the body before. */
#include <stdio.h>
#include <string.h>

#include "partition/schedule/passes.h"

/* Bits of a unit: passes done so far in list order and, as NEXT_x, passes of the next mini-batch
 * anywhere in the list. */
enum {
  DONE_F = 1,
  DONE_I = 2,
  DONE_W = 4,
  NEXT_F = 8,
  DONE_R = 16,
  OFFLOADED = 32,
  NEXT_OFFLOADED = 64,
  RELOADED = 128
};
enum { AWAY_LEAST = 2 }; /* computes: the stash leaves during one, and another can use its memory */

typedef struct checker {
  const opi_problem *problem;
  const opi_do_list *list;
  opi_index index;
  uint8_t *marks;        /* [n_units] */
  uint32_t *offloaded;   /* [n_units] the rank's computes before its OFFLOAD; NULL: the list has no
                            OFFLOAD */
  uint32_t *collectives; /* [n_stages * 2] forwards, backwards: kinds of collectives around them, as
                            bits; OPIPE_NONE: not seen yet. NULL: the list has no collectives */
  uint32_t rank, item;
  uint32_t n_computes; /* of the rank so far; a pair counts once */
  opipe_error *err;
} checker;

OPIPE_PRINTF(2, 3) static opipe_status refuse(const checker *c, const char *fmt, ...) {
  char why[256];
  const opi_do_place place = opi_place_of(c->problem, c->list, c->rank, c->item);
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  return opi_fail(c->err, OPIPE_E_INVALID, "%s: %s", place.text, why);
}

static opipe_status check_range(const checker *c, const opi_do *a) {
  const opi_problem *p = c->problem;
  if (a->stage >= p->n_stages || a->microbatch >= p->n_microbatches || a->slice >= p->n_slices ||
      a->part >= p->n_parts || a->replica >= p->n_replicas) {
    return refuse(c,
                  "stage %u of %u, micro-batch %u of %u, slice %u of %u, part %u of %u, replica %u "
                  "of %u",
                  a->stage, p->n_stages, a->microbatch, p->n_microbatches, a->slice, p->n_slices,
                  a->part, p->n_parts, a->replica, p->n_replicas);
  }
  const bool moves = a->kind == OPI_DO_OFFLOAD || a->kind == OPI_DO_RELOAD;
  const bool forward =
      a->kind == OPI_DO_F || (opi_do_is_group(a->kind) && !opi_do_group_is_backward(a->kind));
  if ((forward || a->kind == OPI_DO_R) && a->part != 0)
    return refuse(c, "a forward has no part %u", a->part);
  if (moves && a->part != 0)
    return refuse(c, "a stash has no part %u", a->part);
  if (p->mode == OPIPE_MODE_FORWARD && moves)
    return refuse(c, "there is no stash in a forward-only schedule");
  if (p->mode == OPIPE_MODE_FORWARD && !forward)
    return refuse(c, "a backward in a forward-only schedule");
  if ((a->flags & OPIPE_ACTION_NEXT_STEP) != 0 &&
      (p->versions != OPIPE_VERSIONS_DOUBLE_BUFFERED || !(forward || a->kind == OPI_DO_OFFLOAD)))
    return refuse(c, "only forwards under double-buffered weights can be of the next mini-batch");
  if (a->version != 0 && p->versions != OPIPE_VERSIONS_DOUBLE_BUFFERED)
    return refuse(c, "weight version %u, but there is only the newest", a->version);
  const uint32_t home = opi_problem_rank(p, a->stage, a->replica);
  if (home == OPIPE_NONE)
    return refuse(c, "stage %u has no replica %u", a->stage, a->replica);
  if (home != c->rank)
    return refuse(c, "stage %u, replica %u lives on rank %u", a->stage, a->replica, home);
  const uint32_t known = c->index.replica[(size_t)a->stage * p->n_microbatches + a->microbatch];
  if (p->stage_shares == NULL ? known != a->replica : a->replica >= p->stage_shares[a->stage]) {
    return refuse(c, "micro-batch %u passes stage %u in replica %u", a->microbatch, a->stage,
                  p->stage_shares == NULL ? known : p->stage_shares[a->stage] - 1);
  }
  return OPIPE_OK;
}

static uint8_t *unit_of(const checker *c, const opi_do *a, uint32_t slice, uint32_t part) {
  return &c->marks[opi_unit(&c->index, a->stage, a->replica, a->microbatch, slice, part)];
}

/* Whether an action, `flagged` or not, finds the forward of `slice` done. */
static bool forward_done(const checker *c, const opi_do *a, uint32_t slice, bool flagged) {
  const uint8_t marks = *unit_of(c, a, slice, 0);
  return (marks & NEXT_F) != 0 ? !flagged || (marks & DONE_F) != 0
                               : !flagged && (marks & DONE_F) != 0;
}

static opipe_status check_forward(const checker *c, const opi_do *a) {
  uint8_t *unit = unit_of(c, a, a->slice, 0);
  if ((*unit & DONE_F) != 0)
    return refuse(c, "it occurs twice");
  if (a->slice > 0 && !forward_done(c, a, a->slice - 1u, (a->flags & OPIPE_ACTION_NEXT_STEP) != 0))
    return refuse(c, "the forward of slice %u must come first", a->slice - 1u);
  *unit |= DONE_F;
  return OPIPE_OK;
}

/* ---- stashes that leave ---- */

/* Checks that the stash is on the device for its reader. */
static opipe_status check_at_hand(const checker *c, const opi_do *a) {
  const uint8_t marks = *unit_of(c, a, a->slice, 0);
  return (marks & (OFFLOADED | NEXT_OFFLOADED)) == 0 || (marks & RELOADED) != 0
             ? OPIPE_OK
             : refuse(c, "its stash is offloaded, and no %uRELOAD%u comes before it", a->stage,
                      a->microbatch);
}

static opipe_status check_offload(const checker *c, const opi_do *a) {
  const bool flagged = (a->flags & OPIPE_ACTION_NEXT_STEP) != 0;
  uint8_t *unit = unit_of(c, a, a->slice, 0);
  if ((*unit & OFFLOADED) != 0)
    return refuse(c, "it occurs twice");
  if (!forward_done(c, a, a->slice, flagged))
    return refuse(c, "its forward %uF%u does not run before it", a->stage, a->microbatch);
  for (uint32_t part = 0; part < c->problem->n_parts && !flagged; ++part) {
    if ((*unit & DONE_R) != 0 || (*unit_of(c, a, a->slice, part) & DONE_I) != 0)
      return refuse(c, "a reader of the stash has already run");
  }
  c->offloaded[unit - c->marks] = c->n_computes;
  *unit |= OFFLOADED;
  return OPIPE_OK;
}

static opipe_status check_reload(const checker *c, const opi_do *a) {
  uint8_t *unit = unit_of(c, a, a->slice, 0);
  const uint32_t between = c->n_computes - c->offloaded[unit - c->marks];
  if ((*unit & RELOADED) != 0)
    return refuse(c, "it occurs twice");
  if ((*unit & (OFFLOADED | NEXT_OFFLOADED)) == 0)
    return refuse(c, "its %uOFFLOAD%u does not come before it", a->stage, a->microbatch);
  if ((*unit & NEXT_OFFLOADED) == 0 && between < AWAY_LEAST) {
    return refuse(c, "%u computes lie between it and its %uOFFLOAD%u: at least %d are needed",
                  between, a->stage, a->microbatch, AWAY_LEAST);
  }
  *unit |= RELOADED;
  return OPIPE_OK;
}

/* ---- collectives ---- */

static opipe_status check_group(const checker *c, const opi_do *a) {
  const char *pass = opi_do_group_is_backward(a->kind) ? "backward" : "forward";
  if (c->problem->n_tensor <= 1)
    return refuse(c, "there are no tensor groups: the header says no tensor=");
  if (opi_group_pass(c->list, c->rank, c->item) == OPIPE_NONE) {
    return refuse(c, "it does not stand directly %s its %s",
                  opi_do_group_is_before(a->kind) ? "in front of" : "behind", pass);
  }
  return opi_group_repeats(c->list, c->rank, c->item) ? refuse(c, "it occurs twice") : OPIPE_OK;
}

static void put_kinds(char *text, size_t room, uint32_t kinds) {
  size_t at = 0;
  (void)snprintf(text, room, "none");
  for (uint32_t k = OPI_DO_SUM_F; k <= OPI_DO_SCATTER_B && at < room; ++k) {
    if ((kinds >> k & 1) != 0) {
      at += (size_t)snprintf(text + at, room - at, "%s%s", at == 0 ? "" : " and ",
                             opi_do_kind_name(k));
    }
  }
}

/* Checks that all passes of a stage have the same collectives. */
static opipe_status check_around(const checker *c, const opi_do *a) {
  enum {
    SUMS = 1 << OPI_DO_SUM_F | 1 << OPI_DO_SUM_B,
    SCATTERS = 1 << OPI_DO_SCATTER_F | 1 << OPI_DO_SCATTER_B,
    GATHERS = 1 << OPI_DO_GATHER_F | 1 << OPI_DO_GATHER_B
  };
  if (c->collectives == NULL || a->kind == OPI_DO_W)
    return OPIPE_OK;
  char here[64], there[64];
  const bool backward = a->kind != OPI_DO_F && a->kind != OPI_DO_R;
  const uint32_t kinds = opi_groups_around(c->list, c->rank, c->item);
  uint32_t *known = &c->collectives[2 * a->stage + backward];
  put_kinds(here, sizeof here, kinds);
  if ((kinds & SCATTERS) != 0 && ((kinds & SUMS) != 0 || (kinds & GATHERS) == 0)) {
    return refuse(c, "its collectives are %s: a scatter needs a gather before the pass, and no sum",
                  here);
  }
  if (*known == OPIPE_NONE)
    *known = kinds;
  if (*known == kinds || a->kind == OPI_DO_R)
    return OPIPE_OK;
  put_kinds(there, sizeof there, *known);
  return refuse(c, "its collectives are %s, those of the stage's other %ss %s", here,
                backward ? "backward" : "forward", there);
}

/* ---- passes ---- */

static opipe_status check_backward(const checker *c, const opi_do *a) {
  uint8_t *unit = unit_of(c, a, a->slice, a->part);
  const uint8_t does = a->kind == OPI_DO_B   ? DONE_I | DONE_W
                       : a->kind == OPI_DO_I ? DONE_I
                                             : DONE_W;
  if ((*unit & does) != 0)
    return refuse(c, "it occurs twice");
  if (!forward_done(c, a, a->slice, false))
    return refuse(c, "its forward %uF%u does not run before it", a->stage, a->microbatch);
  if (a->kind == OPI_DO_W && (*unit & DONE_I) == 0)
    return refuse(c, "its input backward %uI%u does not run before it", a->stage, a->microbatch);
  OPI_TRY(check_at_hand(c, a));
  if ((does & DONE_I) != 0 && a->slice + 1u < c->problem->n_slices &&
      (*unit_of(c, a, a->slice + 1u, a->part) & DONE_I) == 0)
    return refuse(c, "the backward of slice %u must come first", a->slice + 1u);
  *unit |= does;
  return OPIPE_OK;
}

static opipe_status check_again(const checker *c, const opi_do *a) {
  uint8_t *unit = unit_of(c, a, a->slice, 0);
  if ((*unit & DONE_R) != 0)
    return refuse(c, "it occurs twice");
  if (!forward_done(c, a, a->slice, false))
    return refuse(c, "its first forward %uF%u does not run before it", a->stage, a->microbatch);
  OPI_TRY(check_at_hand(c, a));
  *unit |= DONE_R;
  for (uint32_t part = 0; part < c->problem->n_parts; ++part) {
    if ((*unit_of(c, a, a->slice, part) & DONE_I) == 0)
      return OPIPE_OK;
  }
  return refuse(c, "its backward has already run");
}

static opipe_status check_item(checker *c) {
  const opi_do *a = &c->list->items[c->item];
  const bool paired = (a->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0;
  if (paired && (c->item + 1 == c->list->rank_first[c->rank + 1] || !opi_do_is_compute(a->kind) ||
                 !opi_do_is_compute(a[1].kind)))
    return refuse(c, "it is to overlap with the next action, which is not a compute action");
  const bool moves = a->kind == OPI_DO_OFFLOAD || a->kind == OPI_DO_RELOAD;
  if (!opi_do_is_compute(a->kind) && !opi_do_is_group(a->kind) && !moves)
    return OPIPE_OK;
  OPI_TRY(check_range(c, a));
  if (opi_do_is_group(a->kind))
    return check_group(c, a);
  if (moves)
    return a->kind == OPI_DO_OFFLOAD ? check_offload(c, a) : check_reload(c, a);
  OPI_TRY(check_around(c, a));
  c->n_computes += !opi_is_second(c->list, c->list->rank_first[c->rank], c->item);
  if (a->kind == OPI_DO_F)
    return check_forward(c, a);
  return a->kind == OPI_DO_R ? check_again(c, a) : check_backward(c, a);
}

static opipe_status check_unit(const checker *c, uint32_t s, uint32_t replica, uint32_t m,
                               uint32_t slice, uint32_t part) {
  const opi_problem *p = c->problem;
  const uint8_t marks = c->marks[opi_unit(&c->index, s, replica, m, slice, part)];
  const char *missing = part == 0 && (marks & DONE_F) == 0 ? "F"
                        : p->mode == OPIPE_MODE_FORWARD    ? NULL
                        : (marks & (DONE_I | DONE_W)) == 0 ? "B"
                        : (marks & DONE_I) == 0            ? "I"
                        : (marks & DONE_W) == 0            ? "W"
                                                           : NULL;
  if (missing == NULL)
    return OPIPE_OK;
  const uint32_t home = opi_problem_rank(p, s, replica);
  return opi_fail(c->err, OPIPE_E_INVALID,
                  "%u%s%u is missing (stage %u, replica %u on rank %d, slice %u, part %u)", s,
                  missing, m, s, replica, home == OPIPE_NONE ? -1 : (int)home, slice, part);
}

static opipe_status check_complete(const checker *c) {
  const opi_problem *p = c->problem;
  const uint32_t n_inner = p->n_slices * p->n_parts;
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    const uint32_t shares = p->stage_shares == NULL ? 1 : p->stage_shares[s];
    for (uint32_t m = 0; m < p->n_microbatches; ++m) {
      const uint32_t known = c->index.replica[(size_t)s * p->n_microbatches + m];
      for (uint32_t i = 0; i < shares * n_inner; ++i) {
        const uint32_t replica = p->stage_shares != NULL ? i / n_inner
                                 : known == OPIPE_NONE   ? 0
                                                         : known;
        OPI_TRY(check_unit(c, s, replica, m, i / p->n_parts % p->n_slices, i % p->n_parts));
      }
    }
  }
  return OPIPE_OK;
}

static void mark_next(const checker *c) {
  for (uint32_t i = 0; i < c->list->n_items; ++i) {
    const opi_do *a = &c->list->items[i];
    const opi_problem *p = c->problem;
    if ((a->kind == OPI_DO_F || a->kind == OPI_DO_OFFLOAD) &&
        (a->flags & OPIPE_ACTION_NEXT_STEP) != 0 && a->stage < p->n_stages &&
        a->microbatch < p->n_microbatches && a->slice < p->n_slices &&
        a->replica < c->index.n_shares + (p->stage_shares == NULL ? p->n_replicas : 0))
      *unit_of(c, a, a->slice, 0) |= a->kind == OPI_DO_F ? NEXT_F : NEXT_OFFLOADED;
  }
}

/* Allocates the tables that only lists with offloads or collectives need. */
static opipe_status allocate_rest(checker *c, opi_arena *arena) {
  enum {
    MOVES = 1 << OPI_DO_OFFLOAD | 1 << OPI_DO_RELOAD,
    COLLECTIVES = 1 << OPI_DO_SUM_F | 1 << OPI_DO_SUM_B | 1 << OPI_DO_GATHER_F |
                  1 << OPI_DO_GATHER_B | 1 << OPI_DO_SCATTER_F | 1 << OPI_DO_SCATTER_B
  };
  const size_t n = 2 * (size_t)c->problem->n_stages;
  const bool moves = opi_do_list_count(c->list, MOVES) > 0;
  const bool sums = opi_do_list_count(c->list, COLLECTIVES) > 0;
  c->offloaded = moves ? OPI_ARENA_ARRAY(arena, uint32_t, (size_t)c->index.n_units) : NULL;
  c->collectives = sums ? OPI_ARENA_ARRAY(arena, uint32_t, n) : NULL;
  if ((moves && c->offloaded == NULL) || (sums && c->collectives == NULL))
    return opi_fail_nomem(c->err, c->index.n_units * 4, "the check of a schedule");
  if (sums)
    memset(c->collectives, 0xff, n * sizeof *c->collectives);
  return OPIPE_OK;
}

opipe_status opi_pass_check(const opi_problem *problem, const opi_do_list *list,
                            const opipe_allocator *allocator, opipe_error *err) {
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  checker c = {.problem = problem, .list = list, .err = err};
  opipe_status status = OPIPE_OK;
  if (list->n_ranks != problem->n_ranks) {
    status = opi_fail(err, OPIPE_E_INVALID, "a list of %u ranks for a schedule of %u",
                      list->n_ranks, problem->n_ranks);
  }
  if (status == OPIPE_OK)
    status = opi_index_build(problem, list, &arena, &c.index, err);
  if (status == OPIPE_OK) {
    c.marks = OPI_ARENA_ARRAY(&arena, uint8_t, (size_t)c.index.n_units);
    if (c.marks == NULL)
      status = opi_fail_nomem(err, c.index.n_units, "the check of a schedule");
  }
  if (status == OPIPE_OK)
    status = allocate_rest(&c, &arena);
  if (status == OPIPE_OK)
    mark_next(&c);
  for (c.rank = 0; status == OPIPE_OK && c.rank < list->n_ranks; ++c.rank) {
    c.n_computes = 0;
    const uint32_t end = list->rank_first[c.rank + 1];
    for (c.item = list->rank_first[c.rank]; status == OPIPE_OK && c.item < end; ++c.item)
      status = check_item(&c);
  }
  if (status == OPIPE_OK)
    status = check_complete(&c);
  opi_arena_release(&arena);
  return status;
}
