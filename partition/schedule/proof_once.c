/* SPDX-License-Identifier: Apache-2.0 */
/* Actions that a mini-batch has exactly once, or nowhere at all: the STEP of every rank that
 * computes, the FREE of every stash, the sums and gathers of an instance. Checked in the list
 * before it is unrolled. */
#include <stdio.h>

#include "partition/schedule/proof.h"

enum { SUMMED = 1, GATHERED = 2 };

typedef struct counter {
  const opi_problem *problem;
  const opi_do_list *list;
  opi_index index;
  uint8_t *freed;     /* [n_units] kept at part 0; NULL: the list has no FREE */
  uint8_t *instances; /* [instances] SUMMED, GATHERED */
  uint32_t *step;     /* [n_ranks] its STEP; OPIPE_NONE: none */
  opipe_error *err;
} counter;

OPIPE_PRINTF(3, 4)
static opipe_status refuse(const counter *c, uint32_t item, const char *fmt, ...) {
  char why[200];
  const uint32_t rank = opi_rank_of_item(c->list, item);
  const opi_do_place place = opi_place_of(c->problem, c->list, rank, item);
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  return opi_fail(c->err, OPIPE_E_INVALID, "%s: %s", place.text, why);
}

/* Whether the stage's replica lives on the rank. */
static bool is_home(const counter *c, uint32_t rank, const opi_do *a) {
  const opi_problem *p = c->problem;
  return a->stage < p->n_stages && a->replica < p->n_replicas &&
         opi_problem_rank(p, a->stage, a->replica) == rank;
}

static opipe_status count_free(const counter *c, uint32_t rank, uint32_t item) {
  const opi_problem *p = c->problem;
  const opi_do *a = &c->list->items[item];
  if (!is_home(c, rank, a))
    return refuse(c, item, "there is no such stage or replica on this rank");
  if (a->microbatch >= p->n_microbatches || a->slice >= p->n_slices) {
    return refuse(c, item, "micro-batch %u of %u, slice %u of %u", a->microbatch, p->n_microbatches,
                  a->slice, p->n_slices);
  }
  const uint32_t known = c->index.replica[(size_t)a->stage * p->n_microbatches + a->microbatch];
  if (p->stage_shares == NULL ? known != a->replica : a->replica >= p->stage_shares[a->stage]) {
    return refuse(c, item, "micro-batch %u does not pass stage %u in replica %u", a->microbatch,
                  a->stage, a->replica);
  }
  uint8_t *freed = &c->freed[opi_unit(&c->index, a->stage, a->replica, a->microbatch, a->slice, 0)];
  return (*freed)++ == 0 ? OPIPE_OK : refuse(c, item, "it occurs twice");
}

static opipe_status count_instance(const counter *c, uint32_t rank, uint32_t item) {
  const opi_do *a = &c->list->items[item];
  const uint8_t bit = a->kind == OPI_DO_GATHER ? GATHERED : SUMMED;
  if (!is_home(c, rank, a))
    return refuse(c, item, "there is no such stage or replica on this rank");
  uint8_t *known = &c->instances[a->stage * c->problem->n_replicas + a->replica];
  if ((*known & bit) != 0) {
    return refuse(c, item, "it occurs twice: replica %u of stage %u has been %s", a->replica,
                  a->stage, bit == SUMMED ? "summed" : "gathered");
  }
  *known |= bit;
  return OPIPE_OK;
}

static opipe_status count_item(const counter *c, uint32_t rank, uint32_t item) {
  switch (c->list->items[item].kind) {
    case OPI_DO_STEP:
      if (c->step[rank] != OPIPE_NONE)
        return refuse(c, item, "it occurs twice");
      c->step[rank] = item;
      return OPIPE_OK;
    case OPI_DO_FREE:
      return count_free(c, rank, item);
    case OPI_DO_REDUCE:
    case OPI_DO_SCATTER:
    case OPI_DO_GATHER:
      return count_instance(c, rank, item);
    default:
      return OPIPE_OK;
  }
}

/* If some ranks step, all that compute must; if some stashes are freed, all must be. */
static opipe_status check_all(const counter *c) {
  const opi_problem *p = c->problem;
  uint32_t with = 0;
  while (with < p->n_ranks && c->step[with] == OPIPE_NONE)
    ++with;
  for (uint32_t rank = 0; rank < p->n_ranks; ++rank) {
    for (uint32_t i = c->list->rank_first[rank]; i < c->list->rank_first[rank + 1]; ++i) {
      const opi_do *a = &c->list->items[i];
      if (a->kind != OPI_DO_F)
        continue;
      if (with < p->n_ranks && c->step[rank] == OPIPE_NONE) {
        return opi_fail(c->err, OPIPE_E_INVALID, "STEP is missing (on rank %u; rank %u has one)",
                        rank, with);
      }
      if (c->freed == NULL ||
          c->freed[opi_unit(&c->index, a->stage, a->replica, a->microbatch, a->slice, 0)] != 0)
        continue;
      opi_do lacks = *a;
      char text[64];
      lacks.kind = OPI_DO_FREE;
      lacks.flags = 0;
      lacks.version = 0;
      return opi_fail(c->err, OPIPE_E_INVALID,
                      "%s is missing (on rank %u; other stashes of the order are freed)",
                      opi_do_text(p, &lacks, text, sizeof text), rank);
    }
  }
  return OPIPE_OK;
}

static opipe_status allocate(counter *c, opi_arena *arena) {
  const opi_problem *p = c->problem;
  const bool frees = opi_do_list_count(c->list, 1u << OPI_DO_FREE) > 0;
  OPI_TRY(opi_index_build(p, c->list, arena, &c->index, c->err));
  c->freed = frees ? OPI_ARENA_ARRAY(arena, uint8_t, (size_t)c->index.n_units) : NULL;
  c->instances = OPI_ARENA_ARRAY(arena, uint8_t, (size_t)p->n_stages * p->n_replicas);
  c->step = OPI_ARENA_ARRAY(arena, uint32_t, p->n_ranks);
  if ((frees && c->freed == NULL) || c->instances == NULL || c->step == NULL)
    return opi_fail_nomem(c->err, c->index.n_units, "the proof of a schedule");
  for (uint32_t rank = 0; rank < p->n_ranks; ++rank)
    c->step[rank] = OPIPE_NONE;
  return OPIPE_OK;
}

opipe_status opi_prove_once(const opi_problem *problem, const opi_do_list *list,
                            const opipe_allocator *allocator, opipe_error *err) {
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  counter c = {.problem = problem, .list = list, .err = err};
  opipe_status status = allocate(&c, &arena);
  for (uint32_t rank = 0; status == OPIPE_OK && rank < list->n_ranks; ++rank) {
    for (uint32_t i = list->rank_first[rank]; status == OPIPE_OK && i < list->rank_first[rank + 1];
         ++i)
      status = count_item(&c, rank, i);
  }
  if (status == OPIPE_OK)
    status = check_all(&c);
  opi_arena_release(&arena);
  return status;
}
