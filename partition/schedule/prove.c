/* SPDX-License-Identifier: Apache-2.0 */
/* The proof before running, forward form: completeness, dependencies, and freedom from deadlock under back-pressure.
 *
 * A rank's steps are a fixed sequence, and every wait is for a message or a slot that one other rank gives: the system is a Kahn network,
 * so that one greedy replay decides for every interleaving. Two requests are replayed, since slots couple a request with the next.
 * When the replay stops, each stuck rank waits for one other: following these arrows gives the cycle that is printed.
 */
#include "partition/memory/layout.h"
#include "partition/schedule/lower.h"

#include <stdio.h>
#include <string.h>

enum { REQUESTS = 2 };

typedef struct replay {
  const opi_plan *plan;
  const opi_cutting *cutting;
  const opi_program_list *list;
  opi_arena scratch;
  uint32_t *at;       /* [n_ranks] next step, counted over REQUESTS passes */
  uint32_t *made;     /* [n_routes] computed by the producer */
  uint32_t *sent;     /* [n_routes] */
  uint32_t *used;     /* [n_routes] consumed: slots freed */
  uint32_t credits;   /* sent by the last stage */
  uint32_t started;   /* micro-batches that took a credit */
  opipe_error *err;
} replay;

static const char *kind_name(uint32_t kind) {
  static const char *const names[] = {"COMPUTE", "RECV", "SEND", "LOAD", "STORE"};
  return kind < OPI_COUNT(names) ? names[kind] : "?";
}

static uint32_t rank_of(const replay *p, uint32_t stage) { return opi_plan_rank(p->plan, stage, 0); }

/* ---- completeness ---- */

static opipe_status check_complete(replay *p) {
  const opi_plan *plan = p->plan;
  const size_t n = (size_t)plan->n_stages * plan->n_microbatches;
  uint8_t *seen = OPI_ARENA_ARRAY(&p->scratch, uint8_t, n);
  if (seen == NULL) return opi_fail_nomem(p->err, n, "the proof");
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    for (uint32_t a = plan->rank_first[rank]; a < plan->rank_first[rank + 1]; ++a) {
      const opipe_action *action = &plan->actions[a];
      if (action->stage >= plan->n_stages || action->microbatch >= plan->n_microbatches) {
        return opi_fail(p->err, OPIPE_E_INVALID,
                        "schedule '%s', rank %u, action %u: stage %u of %u, micro-batch %u of %u", plan->schedule, rank,
                        a - plan->rank_first[rank], action->stage, plan->n_stages, action->microbatch,
                        plan->n_microbatches);
      }
      if (action->pass != OPIPE_PASS_FORWARD) {
        return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s', rank %u, action %u: pass %u in a forward-only plan",
                        plan->schedule, rank, a - plan->rank_first[rank], action->pass);
      }
      if (rank_of(p, action->stage) != rank) {
        return opi_fail(p->err, OPIPE_E_INVALID,
                        "schedule '%s', rank %u, action %u: stage %u lives on rank %u", plan->schedule, rank,
                        a - plan->rank_first[rank], action->stage, rank_of(p, action->stage));
      }
      uint8_t *mark = &seen[(size_t)action->stage * plan->n_microbatches + action->microbatch];
      if (*mark != 0) {
        return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s', rank %u, action %u: %uF%u appears twice",
                        plan->schedule, rank, a - plan->rank_first[rank], action->stage, action->microbatch);
      }
      *mark = 1;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    if (seen[i] == 0) {
      return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s' leaves out %zuF%zu", plan->schedule,
                      i / plan->n_microbatches, i % plan->n_microbatches);
    }
  }
  return OPIPE_OK;
}

/* ---- replay ---- */

/* Index of micro-batch `mb` of the request that a rank is in. */
static uint32_t sequence(const replay *p, uint32_t rank, uint32_t mb) {
  const uint32_t per_request = p->list->rank_first[rank + 1] - p->list->rank_first[rank];
  return p->at[rank] / per_request * p->plan->n_microbatches + mb;
}

/* Can a compute go on? If not, *out_peer is the rank it waits for. Messages of one route may come in any micro-batch order (tags): the
 * counters compare how many were made and used, which is exact for routes whose two ends use one order and safe otherwise. */
static bool compute_ready(const replay *p, const opi_step *step, uint32_t *out_peer) {
  const uint32_t depth = opi_route_depth(p->plan);
  for (uint32_t r = 0; r < p->cutting->n_routes; ++r) {
    const opi_route *route = &p->cutting->routes[r];
    if (route->dst_stage == step->stage && p->made[r] <= p->used[r]) {
      *out_peer = rank_of(p, route->src_stage);
      return false;
    }
    if (route->src_stage == step->stage && p->made[r] - p->used[r] >= depth) {
      *out_peer = rank_of(p, route->dst_stage);
      return false;
    }
  }
  return true;
}

static bool step_ready(const replay *p, uint32_t rank, const opi_step *step, uint32_t *out_peer) {
  if (step->kind == OPI_ACT_COMPUTE) return compute_ready(p, step, out_peer);
  if (step->kind != OPI_ACT_RECV) return true;
  if (step->route == OPI_ROUTE_CREDIT) {
    *out_peer = rank_of(p, p->plan->n_stages - 1);
    return p->started < p->credits + p->plan->in_flight;
  }
  (void)rank;
  *out_peer = rank_of(p, p->cutting->routes[step->route].src_stage);
  return p->sent[step->route] > p->used[step->route];
}

static void step_run(replay *p, const opi_step *step) {
  if (step->kind == OPI_ACT_SEND) {
    if (step->route == OPI_ROUTE_CREDIT) {
      ++p->credits;
    } else {
      ++p->sent[step->route];
    }
  } else if (step->kind == OPI_ACT_RECV && step->route == OPI_ROUTE_CREDIT) {
    ++p->started;
  } else if (step->kind == OPI_ACT_COMPUTE) {
    for (uint32_t r = 0; r < p->cutting->n_routes; ++r) {
      if (p->cutting->routes[r].dst_stage == step->stage) ++p->used[r];
      if (p->cutting->routes[r].src_stage == step->stage) ++p->made[r];
    }
  }
}

static const opi_step *next_step(const replay *p, uint32_t rank) {
  const uint32_t first = p->list->rank_first[rank], n = p->list->rank_first[rank + 1] - first;
  return n == 0 || p->at[rank] >= n * REQUESTS ? NULL : &p->list->steps[first + p->at[rank] % n];
}

static opipe_status report_cycle(replay *p, uint32_t rank) {
  char text[400];
  size_t n = 0;
  uint32_t seen = 0;
  text[0] = '\0';
  for (; seen <= p->plan->n_ranks; ++seen) {
    const opi_step *step = next_step(p, rank);
    uint32_t peer = rank;
    if (step == NULL || step_ready(p, rank, step, &peer)) break;
    n = strlen(text);
    (void)snprintf(text + n, sizeof(text) - n, "%srank %u, step %u: %s of stage %u, micro-batch %u, waits for rank %u",
                   seen == 0 ? "" : "; ", rank, p->at[rank], kind_name(step->kind), step->stage,
                   sequence(p, rank, step->microbatch), peer);
    rank = peer;
  }
  return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s' deadlocks: %s", p->plan->schedule, text);
}

static opipe_status run_all(replay *p) {
  const uint32_t n_ranks = p->plan->n_ranks, n_routes = p->cutting->n_routes;
  p->at = OPI_ARENA_ARRAY(&p->scratch, uint32_t, n_ranks);
  p->made = OPI_ARENA_ARRAY(&p->scratch, uint32_t, n_routes);
  p->sent = OPI_ARENA_ARRAY(&p->scratch, uint32_t, n_routes);
  p->used = OPI_ARENA_ARRAY(&p->scratch, uint32_t, n_routes);
  if (p->at == NULL || p->made == NULL || p->sent == NULL || p->used == NULL) {
    return opi_fail_nomem(p->err, n_routes * sizeof(uint32_t), "the proof");
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < n_ranks; ++rank) {
      const opi_step *step = next_step(p, rank);
      uint32_t peer = 0;
      while (step != NULL && step_ready(p, rank, step, &peer)) {
        step_run(p, step);
        ++p->at[rank];
        moved = true;
        step = next_step(p, rank);
      }
    }
  }
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    if (next_step(p, rank) != NULL) return report_cycle(p, rank);
  }
  return OPIPE_OK;
}

opipe_status opi_prove(const opi_plan *plan, const opi_cutting *cutting, const opi_program_list *list,
                       const opipe_allocator *allocator, opipe_error *err) {
  replay p = {.plan = plan, .cutting = cutting, .list = list, .err = err};
  opi_arena_init(&p.scratch, allocator, 0);
  opipe_status status = check_complete(&p);
  if (status == OPIPE_OK) status = run_all(&p);
  opi_arena_release(&p.scratch);
  return status;
}
