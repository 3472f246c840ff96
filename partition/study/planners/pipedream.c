/* SPDX-License-Identifier: Apache-2.0 */
/* PipeDream's planner (Narayanan et al., SOSP'19, section 3.1). It minimises the time of the
 * slowest stage (computing, summing weights or sending) over cuts and replicas, level by level of
 * the machine: T^k(i->j, m) = 1/m max(A^(k-1)(i->j, m_(k-1)), 2 (m - 1) sum |w| / B_k) A^k(i->j, m)
 * = min(T^k(i->j, m), min over s, m' of max(A^k(i->s, m - m'), 2 a_s / B_k, T^k(s+1->j, m'))) A^0
 * is the forward and backward of the layers. The first level is the inside of a node, the second
 * all nodes.
 */
#include <inttypes.h>
#include <math.h>

#include "loader/base/sizes.h"
#include "partition/study/planners/strategy.h"

enum { LEVELS_MOST = 2, WORK_BITS = 36 };

/* The optimum behind A^k(i->j, m): the last stage begins after layer `cut`, on `members` members.
 */
typedef struct choice {
  double ns;
  uint32_t cut; /* OPIPE_NONE: one stage on all members */
  uint32_t members;
} choice;

typedef struct level {
  uint32_t members;
  double bytes_per_ns, sum_bytes_per_ns;
  choice *best; /* [n_layers * n_layers * (members + 1)] by first layer, last layer, members */
} level;

typedef struct pipedream {
  const opi_planning *planning;
  opi_arena arena;
  level levels[LEVELS_MOST];
  uint32_t n_levels, n_layers;
  double *compute_before, *param_before, *cut_bytes; /* [n_layers + 1], [n_layers] */
  opi_strategy_stage *stages;                        /* [n_stages] */
  uint32_t n_stages, room_stages;
  opipe_error *err;
} pipedream;

static choice *best_at(const pipedream *p, uint32_t k, uint32_t i, uint32_t j, uint32_t m) {
  return &p->levels[k].best[((size_t)i * p->n_layers + j) * (p->levels[k].members + 1) + m];
}

/* T of level k: layers i to j as one stage on m members. */
static double stage_ns(const pipedream *p, uint32_t k, uint32_t i, uint32_t j, uint32_t m) {
  const double inner = k == 0 ? p->compute_before[j + 1] - p->compute_before[i]
                              : best_at(p, k - 1, i, j, p->levels[k - 1].members)->ns;
  const double weights = p->param_before[j + 1] - p->param_before[i];
  const double sum = opi_bytes_ns(2.0 * (m - 1) * weights, p->levels[k].sum_bytes_per_ns);
  return fmax(inner, sum) / m;
}

static void solve_range(const pipedream *p, uint32_t k, uint32_t i, uint32_t j) {
  const level *l = &p->levels[k];
  for (uint32_t m = 1; m <= l->members; ++m) {
    choice best = {stage_ns(p, k, i, j, m), OPIPE_NONE, m};
    for (uint32_t s = i; s < j && m > 1; ++s) {
      const double send = opi_bytes_ns(2 * p->cut_bytes[s], l->bytes_per_ns);
      if (send >= best.ns)
        continue;
      for (uint32_t last = 1; last < m; ++last) {
        const double before = best_at(p, k, i, s, m - last)->ns;
        const double ns = fmax(fmax(before, send), stage_ns(p, k, s + 1, j, last));
        if (ns < best.ns)
          best = (choice){ns, s, last};
      }
    }
    *best_at(p, k, i, j, m) = best;
  }
}

static opipe_status solve(pipedream *p) {
  const uint64_t n = p->n_layers;
  for (uint32_t k = 0; k < p->n_levels; ++k) {
    const uint64_t m = p->levels[k].members;
    if (n * n * n * m * m / 12 >> WORK_BITS != 0) {
      return opi_fail(p->err, OPIPE_E_LIMIT,
                      "planner 'pipedream': %u layers on %u members of a level take more than 2^%d "
                      "steps",
                      p->n_layers, p->levels[k].members, WORK_BITS);
    }
    p->levels[k].best = OPI_ARENA_ARRAY(&p->arena, choice, n * n * (m + 1));
    if (p->levels[k].best == NULL)
      return opi_fail_nomem(p->err, n * n * (m + 1) * sizeof(choice), "a planner");
    for (uint32_t length = 0; length < n; ++length) {
      for (uint32_t i = 0; i + length < n; ++i)
        solve_range(p, k, i, i + length);
    }
  }
  return OPIPE_OK;
}

/* ---- the answer ---- */

/* Appends the stages of layers i to j on m members of level k, in order. Each has `copies` replicas
 * of that, `stride` devices apart, from the outer level. */
static opipe_status list_stages(pipedream *p, uint32_t k, uint32_t i, uint32_t j, uint32_t m,
                                uint32_t device, uint32_t copies, uint32_t stride) {
  const choice c = *best_at(p, k, i, j, m);
  const uint32_t inner = k == 0 ? 1 : p->levels[k - 1].members;
  if (c.cut != OPIPE_NONE) {
    OPI_TRY(list_stages(p, k, i, c.cut, m - c.members, device, copies, stride));
    i = c.cut + 1;
    device += (m - c.members) * inner;
    m = c.members;
  }
  if (k > 0)
    return list_stages(p, k - 1, i, j, inner, device, copies * m, inner);
  uint32_t *devices = OPI_ARENA_ARRAY(&p->arena, uint32_t, (size_t)copies * m);
  if (devices == NULL || !opi_arena_grow(&p->arena, (void **)&p->stages, &p->room_stages,
                                         p->n_stages + 1, sizeof(*p->stages)))
    return opi_fail_nomem(p->err, sizeof(*p->stages), "a strategy");
  for (uint32_t c_at = 0; c_at < copies; ++c_at) {
    for (uint32_t r = 0; r < m; ++r)
      devices[c_at * m + r] = device + c_at * stride + r;
  }
  p->stages[p->n_stages++] =
      (opi_strategy_stage){.first = i, .end = j + 1, .devices = devices, .n_devices = copies * m};
  return OPIPE_OK;
}

/* Optimal number of mini-batches in flight: all devices over those of the first stage. */
static uint32_t in_flight(const opi_planning *planning, const opi_strategy *s) {
  const uint32_t first = s->stages[0].n_devices;
  return (planning->n_devices + first - 1) / first;
}

/* The published search ignores caps, so an answer over one is refused. */
static opipe_status check_memory(const opi_strategy *s, uint64_t cap, opipe_error *err) {
  for (uint32_t k = 0; k < s->n_stages; ++k) {
    const uint64_t bytes = s->stages[k].memory_bytes;
    if (bytes > cap) {
      return opi_fail(err, OPIPE_E_LIMIT,
                      "planner 'pipedream': stage %u of its plan takes %s, a device has %s; its "
                      "search knows no caps (planner 'auto' does)",
                      k, OPI_SIZE(bytes), OPI_SIZE(cap));
    }
  }
  return OPIPE_OK;
}

static opipe_status answer(const pipedream *p, double ns, opi_strategy **out_strategy) {
  const opi_planning *q = p->planning;
  opi_strategy *s = NULL;
  OPI_TRY(opi_strategy_new("pipedream", p->n_stages, q->allocator, &s, p->err));
  for (uint32_t k = 0; k < p->n_stages; ++k) {
    opi_strategy_stage *stage = &s->stages[k];
    *stage = p->stages[k];
    stage->devices = opi_arena_copy(&s->arena, stage->devices, stage->n_devices * sizeof(uint32_t));
    if (stage->devices == NULL) {
      opi_strategy_free(s);
      return opi_fail_nomem(p->err, stage->n_devices * sizeof(uint32_t), "a strategy");
    }
  }
  s->schedule = "pipedream";
  s->samples = q->samples;
  s->microbatches = (uint32_t)(q->batch / q->samples);
  for (uint32_t k = 0; k < p->n_stages; ++k) {
    opi_strategy_stage *stage = &s->stages[k];
    const opi_layer sum = opi_layers_sum(q->layers, stage->first, stage->end, q->samples);
    /* versions of weights: one per mini-batch between its forward and backward */
    const uint32_t kept = in_flight(q, s) > k ? in_flight(q, s) - k : 1;
    stage->forward_ns = sum.forward_ns / stage->n_devices;
    stage->backward_ns = opi_layer_backward_ns(&sum) / stage->n_devices;
    stage->memory_bytes = (uint64_t)((q->state_bytes + kept - 1) * (double)sum.param_bytes +
                                     kept * (double)sum.stash_bytes);
    if (stage->memory_bytes > s->memory_bytes)
      s->memory_bytes = stage->memory_bytes;
  }
  s->objective = ns;
  s->step_ns = ns * s->microbatches;
  *out_strategy = s;
  return OPIPE_OK;
}

static opipe_status prepare(pipedream *p, const opi_machine *m) {
  const size_t n = p->n_layers;
  double *numbers = OPI_ARENA_ARRAY(&p->arena, double, 3 * n + 2);
  if (numbers == NULL)
    return opi_fail_nomem(p->err, n * sizeof(double), "a planner");
  p->compute_before = numbers;
  p->param_before = numbers + n + 1;
  p->cut_bytes = numbers + 2 * n + 2;
  for (uint32_t i = 0; i < n; ++i) {
    const opi_layer l = opi_layers_at(p->planning->layers, i, p->planning->samples);
    p->compute_before[i + 1] = p->compute_before[i] + l.forward_ns + opi_layer_backward_ns(&l);
    p->param_before[i + 1] = p->param_before[i] + (double)l.param_bytes;
    p->cut_bytes[i] = (double)l.cut_bytes;
  }
  if (m->per_node > 1 || m->n_nodes == 1) {
    p->levels[p->n_levels++] =
        (level){m->per_node, m->inside.bytes_per_ns, m->inside.sum_bytes_per_ns, NULL};
  }
  if (m->n_nodes > 1) {
    p->levels[p->n_levels++] =
        (level){m->n_nodes, m->across.bytes_per_ns, m->across.sum_bytes_per_ns, NULL};
  }
  return OPIPE_OK;
}

opipe_status opi_plan_pipedream(const opi_planning *planning, opi_strategy **out_strategy,
                                opipe_error *err) {
  opi_planning question = *planning;
  opi_machine machine;
  opi_strategy *strategy = NULL;
  OPI_TRY(opi_planning_check("pipedream", &question, &machine, err));
  pipedream p = {.planning = &question, .n_layers = question.layers->n_layers, .err = err};
  opi_arena_init(&p.arena, question.allocator, 0);
  opipe_status status = prepare(&p, &machine);
  if (status == OPIPE_OK)
    status = solve(&p);
  const uint32_t top = p.n_levels - 1, last = p.n_layers - 1;
  if (status == OPIPE_OK)
    status = list_stages(&p, top, 0, last, p.levels[top].members, 0, 1, 0);
  if (status == OPIPE_OK)
    status = answer(&p, best_at(&p, top, 0, last, p.levels[top].members)->ns, &strategy);
  if (status == OPIPE_OK && !question.judged)
    status = check_memory(strategy, machine.memory_bytes, err);
  if (status == OPIPE_OK)
    *out_strategy = strategy;
  else
    opi_strategy_free(strategy);
  opi_arena_release(&p.arena);
  return status;
}
