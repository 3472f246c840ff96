/* SPDX-License-Identifier: Apache-2.0 */
/* DAPPLE's planner: TPL(j, g), the best latency with the first j layers cut into stages on the
 * devices g and all other layers as one stage on the remaining devices (Fan et al., PPoPP'21,
 * section 4.3). The remainder is cut further, its first part placed by one of three policies. A
 * state is a number of layers and the number of devices taken from each node; devices of a node are
 * alike.
 */
#define XXH_INLINE_ALL
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "loader/base/sizes.h"
#include "partition/study/planners/dapple.h"

enum { POLICIES = 3, PLACEMENTS_MOST = 65536, STATES_MOST = 1 << 22 };
enum { SLOTS = 4 * PLACEMENTS_MOST }; /* a power of 2 */
/* Policy PB hides transfers behind computation but keeps about twice as many micro-batches. It is
 * for transfers of at least this share of a stage's time (activation-communication ratio). */
static const double acr_least = 0.1;

/* Number of devices taken from every node. */
typedef struct placement {
  const uint32_t *used; /* [n_nodes] */
  uint32_t total;
} placement;

typedef struct state {
  double ns;           /* of the best plan; INFINITY: none yet */
  uint32_t from_layer; /* first layer of the last stage before the rest */
  uint32_t from;       /* placement before that stage */
} state;

typedef struct dapple {
  const opi_planning *planning;
  const opi_machine *machine;
  opi_arena arena;
  placement *placements; /* [n_placements] the first is empty */
  uint32_t n_placements, room_placements;
  uint32_t *slots; /* [SLOTS] placement + 1, hashed by `used`; 0: free */
  uint32_t *order; /* [n_placements] by total */
  state *states;   /* [n_placements * (n_layers + 1)] */
  double *forward_before, *backward_before, *param_before, *stash_before; /* [n_layers + 1] */
  double *cut_bytes;                                                      /* [n_layers] */
  uint32_t *ends, *taken; /* of the plan under judgement: [stages_most + 1] layers, placements */
  uint32_t *devices;      /* [n_devices] by stage */
  uint32_t *chosen;       /* [n_nodes] */
  uint32_t *next; /* [n_devices * POLICIES] placements reached from the current one by n more
                     devices; OPIPE_NONE: none */
  opi_dapple_pipe pipe;
  uint32_t stages_most;
} dapple;

/* ---- placements ---- */

/* Adds n devices to `used` by a policy, into out; false if impossible. */
static bool take(const opi_machine *m, const uint32_t *used, uint32_t n, uint32_t policy,
                 uint32_t *out) {
  memcpy(out, used, m->n_nodes * sizeof(*out));
  if (policy == 2) { /* scatter first: one from each node in turn while it has free devices */
    for (bool any = true; n > 0 && any;) {
      any = false;
      for (uint32_t k = 0; k < m->n_nodes && n > 0; ++k) {
        if (out[k] == m->per_node)
          continue;
        ++out[k];
        --n;
        any = true;
      }
    }
    return n == 0;
  }
  for (uint32_t k = 0; k < m->n_nodes && n > 0; ++k) { /* fresh first, append first */
    const bool fits = policy == 0 ? used[k] == 0 : used[k] > 0 && used[k] < m->per_node;
    const uint32_t room = fits ? m->per_node - used[k] : 0;
    out[k] += room < n ? room : n;
    n -= room < n ? room : n;
  }
  return n == 0;
}

/* The slot where the placement is, or would be inserted. */
static uint32_t *slot_of(const dapple *d, const uint32_t *used) {
  const size_t n_bytes = d->machine->n_nodes * sizeof(*used);
  uint32_t at = (uint32_t)(XXH3_64bits(used, n_bytes) % SLOTS);
  while (d->slots[at] != 0 && memcmp(d->placements[d->slots[at] - 1].used, used, n_bytes) != 0)
    at = (at + 1) % SLOTS;
  return &d->slots[at];
}

static uint32_t find_placement(const dapple *d, const uint32_t *used) {
  const uint32_t found = *slot_of(d, used);
  return found == 0 ? OPIPE_NONE : found - 1;
}

static opipe_status add_placement(dapple *d, const uint32_t *used, uint32_t total,
                                  opipe_error *err) {
  uint32_t *slot = slot_of(d, used);
  if (*slot != 0)
    return OPIPE_OK;
  if (d->n_placements == PLACEMENTS_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "planner 'dapple': more than %d placements",
                    PLACEMENTS_MOST);
  }
  uint32_t *copy = opi_arena_copy(&d->arena, used, d->machine->n_nodes * sizeof(*used));
  if (copy == NULL || !opi_arena_grow(&d->arena, (void **)&d->placements, &d->room_placements,
                                      d->n_placements + 1, sizeof(placement)))
    return opi_fail_nomem(err, sizeof(placement), "placements");
  d->placements[d->n_placements++] = (placement){copy, total};
  *slot = d->n_placements;
  return OPIPE_OK;
}

/* All placements that the policies reach, ordered by devices taken. */
static opipe_status reach(dapple *d, opipe_error *err) {
  const uint32_t all = d->machine->n_devices;
  d->slots = OPI_ARENA_ARRAY(&d->arena, uint32_t, SLOTS);
  if (d->slots == NULL)
    return opi_fail_nomem(err, SLOTS * sizeof(uint32_t), "placements");
  memset(d->chosen, 0, d->machine->n_nodes * sizeof(*d->chosen));
  OPI_TRY(add_placement(d, d->chosen, 0, err));
  for (uint32_t p = 0; p < d->n_placements; ++p) {
    for (uint32_t n = 1; d->placements[p].total + n < all; ++n) {
      for (uint32_t policy = 0; policy < POLICIES; ++policy) {
        if (take(d->machine, d->placements[p].used, n, policy, d->chosen))
          OPI_TRY(add_placement(d, d->chosen, d->placements[p].total + n, err));
      }
    }
  }
  d->order = OPI_ARENA_ARRAY(&d->arena, uint32_t, d->n_placements);
  if (d->order == NULL)
    return opi_fail_nomem(err, d->n_placements * sizeof(uint32_t), "placements");
  for (uint32_t total = 0, n = 0; total < all; ++total) {
    for (uint32_t p = 0; p < d->n_placements; ++p) {
      if (d->placements[p].total == total)
        d->order[n++] = p;
    }
  }
  return OPIPE_OK;
}

/* ---- one plan ---- */

/* Lists devices of `to` that are not in `from`. Returns their number. */
static uint32_t list_devices(const opi_machine *m, const uint32_t *from, const uint32_t *to,
                             uint32_t *out) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < m->n_nodes; ++k) {
    for (uint32_t i = from[k]; i < (to == NULL ? m->per_node : to[k]); ++i)
      out[n++] = k * m->per_node + i;
  }
  return n;
}

/* Micro-batches that stage s of n keeps under policy PA, the minimum; at most all of them. */
static double kept(const dapple *d, uint32_t s, uint32_t n) {
  const double most = d->pipe.n_microbatches;
  return most < n - s ? most : n - s;
}

/* Latency of the plan in ends and taken: n_stages, the last of which has all other devices. Stages
 * before `from` were judged in an earlier call with the same number of stages. INFINITY: it does
 * not fit. */
static double judge(dapple *d, uint32_t n_stages, uint32_t from) {
  const opi_machine *m = d->machine;
  d->pipe.n = 2 * n_stages - 1;
  for (uint32_t s = from; s < n_stages; ++s) {
    const uint32_t first = d->ends[s], end = d->ends[s + 1];
    uint32_t *here = d->devices + d->placements[d->taken[s]].total;
    const uint32_t r =
        list_devices(m, d->placements[d->taken[s]].used,
                     s + 1 == n_stages ? NULL : d->placements[d->taken[s + 1]].used, here);
    const double params = d->param_before[end] - d->param_before[first];
    const double bytes = params * d->planning->state_bytes +
                         kept(d, s, n_stages) * (d->stash_before[end] - d->stash_before[first]) / r;
    if (bytes > (double)m->memory_bytes)
      return INFINITY;
    d->pipe.forward_ns[2 * s] = (d->forward_before[end] - d->forward_before[first]) / r;
    d->pipe.backward_ns[2 * s] = (d->backward_before[end] - d->backward_before[first]) / r;
    d->pipe.sum_ns[2 * s] = opi_dapple_sum_ns(m, here, r, params);
    if (s > 0) {
      const uint32_t before = d->placements[d->taken[s - 1]].total;
      const double cross =
          opi_dapple_cross_ns(m, d->devices + before, (uint32_t)(here - d->devices) - before, here,
                              r, d->cut_bytes[first - 1]);
      d->pipe.forward_ns[2 * s - 1] = d->pipe.backward_ns[2 * s - 1] = cross;
      d->pipe.sum_ns[2 * s - 1] = 0;
    }
  }
  return opi_dapple_latency_ns(&d->pipe, NULL);
}

/* Fills ends and taken with the stages that lead to a state, and the rest. Returns the number of
 * stages. */
static uint32_t unwind(dapple *d, uint32_t p, uint32_t layer) {
  const uint32_t n_layers = d->planning->layers->n_layers;
  uint32_t n = 0, at_layer = layer, at = p;
  while (at_layer > 0) {
    const state *s = &d->states[(size_t)at * (n_layers + 1) + at_layer];
    at_layer = s->from_layer;
    at = s->from;
    ++n;
  }
  d->ends[n + 1] = n_layers;
  for (uint32_t k = n;; --k) {
    d->ends[k] = layer;
    d->taken[k] = p;
    if (k == 0)
      break;
    const state *s = &d->states[(size_t)p * (n_layers + 1) + layer];
    layer = s->from_layer;
    p = s->from;
  }
  return n + 1;
}

/* ---- the recurrence ---- */

/* Finds the placements that the policies reach from this one. */
static void look_ahead(dapple *d, uint32_t p) {
  for (uint32_t n = 1; d->placements[p].total + n < d->machine->n_devices; ++n) {
    for (uint32_t policy = 0; policy < POLICIES; ++policy) {
      d->next[n * POLICIES + policy] = take(d->machine, d->placements[p].used, n, policy, d->chosen)
                                           ? find_placement(d, d->chosen)
                                           : OPIPE_NONE;
    }
  }
}

/* True if an earlier policy gives the same placement. */
static bool is_double(const dapple *d, uint32_t n, uint32_t policy) {
  for (uint32_t k = 0; k < policy; ++k) {
    if (d->next[n * POLICIES + k] == d->next[n * POLICIES + policy])
      return true;
  }
  return false;
}

/* Cuts the remainder after a state. */
static void extend(dapple *d, uint32_t p, uint32_t layer) {
  const uint32_t n_layers = d->planning->layers->n_layers;
  const uint32_t left = d->machine->n_devices - d->placements[p].total;
  const uint32_t n_stages = unwind(d, p, layer);
  if (n_stages == d->stages_most)
    return;
  for (uint32_t n = 1; n < left; ++n) {
    for (uint32_t policy = 0; policy < POLICIES; ++policy) {
      const uint32_t to = d->next[n * POLICIES + policy];
      if (to == OPIPE_NONE || is_double(d, n, policy))
        continue;
      d->taken[n_stages] = to;
      bool known = false; /* the stages before the last cut were judged with one stage more */
      for (uint32_t next = layer + 1; next < n_layers; ++next) {
        d->ends[n_stages] = next;
        d->ends[n_stages + 1] = n_layers;
        const double ns = judge(d, n_stages + 1, known ? n_stages - 1 : 0);
        known = isfinite(ns);
        state *s = &d->states[(size_t)to * (n_layers + 1) + next];
        if (ns < s->ns)
          *s = (state){ns, layer, p};
      }
      d->ends[n_stages] = n_layers;
    }
  }
}

static opipe_status prepare(dapple *d, opipe_error *err) {
  const opi_layers *layers = d->planning->layers;
  const size_t n = layers->n_layers + 1;
  d->stages_most =
      layers->n_layers < d->machine->n_devices ? layers->n_layers : d->machine->n_devices;
  double *numbers = OPI_ARENA_ARRAY(&d->arena, double, 5 * n + 6 * (size_t)d->stages_most);
  uint32_t *counts =
      OPI_ARENA_ARRAY(&d->arena, uint32_t,
                      2 * ((size_t)d->stages_most + 2) +
                          (1 + (size_t)POLICIES) * d->machine->n_devices + d->machine->n_nodes);
  if (numbers == NULL || counts == NULL)
    return opi_fail_nomem(err, n * sizeof(double), "a planner");
  d->forward_before = numbers;
  d->backward_before = numbers + n;
  d->param_before = numbers + 2 * n;
  d->stash_before = numbers + 3 * n;
  d->cut_bytes = numbers + 4 * n;
  d->pipe.forward_ns = numbers + 5 * n;
  d->pipe.backward_ns = d->pipe.forward_ns + 2 * (size_t)d->stages_most;
  d->pipe.sum_ns = d->pipe.backward_ns + 2 * (size_t)d->stages_most;
  d->pipe.n_microbatches = (uint32_t)(d->planning->batch / d->planning->samples);
  d->ends = counts;
  d->taken = counts + d->stages_most + 2;
  d->devices = d->taken + d->stages_most + 2;
  d->chosen = d->devices + d->machine->n_devices;
  d->next = d->chosen + d->machine->n_nodes;
  for (uint32_t i = 0; i < layers->n_layers; ++i) {
    const opi_layer l = opi_layers_at(layers, i, d->planning->samples);
    d->forward_before[i + 1] = d->forward_before[i] + l.forward_ns;
    d->backward_before[i + 1] = d->backward_before[i] + opi_layer_backward_ns(&l);
    d->param_before[i + 1] = d->param_before[i] + (double)l.param_bytes;
    d->stash_before[i + 1] = d->stash_before[i] + (double)l.stash_bytes;
    d->cut_bytes[i] = (double)l.cut_bytes;
  }
  return reach(d, err);
}

static opipe_status search(dapple *d, uint32_t *out_placement, uint32_t *out_layer,
                           opipe_error *err) {
  const uint32_t n_layers = d->planning->layers->n_layers;
  const size_t n = (size_t)d->n_placements * (n_layers + 1);
  d->states = n > STATES_MOST ? NULL : OPI_ARENA_ARRAY(&d->arena, state, n);
  if (n > STATES_MOST) {
    return opi_fail(
        err, OPIPE_E_LIMIT,
        "planner 'dapple': %u layers with %u placements are %zu states; at most %d are allowed",
        n_layers, d->n_placements, n, STATES_MOST);
  }
  if (d->states == NULL)
    return opi_fail_nomem(err, n * sizeof(state), "a planner");
  for (size_t i = 0; i < n; ++i)
    d->states[i].ns = INFINITY;
  d->ends[0] = 0;
  d->ends[1] = n_layers;
  d->taken[0] = 0;
  /* all layers on all devices; kept as a start even if it does not fit */
  d->states[0].ns = judge(d, 1, 0);
  *out_placement = *out_layer = 0;
  for (uint32_t k = 0; k < d->n_placements; ++k) {
    const uint32_t p = d->order[k];
    look_ahead(d, p);
    for (uint32_t layer = 0; layer < n_layers; ++layer) {
      const state *s = &d->states[(size_t)p * (n_layers + 1) + layer];
      if (isfinite(s->ns) || (p == 0 && layer == 0))
        extend(d, p, layer);
      if (s->ns < d->states[(size_t)*out_placement * (n_layers + 1) + *out_layer].ns) {
        *out_placement = p;
        *out_layer = layer;
      }
    }
  }
  return OPIPE_OK;
}

/* ---- the answer ---- */

/* Chooses PA or PB by the share of transfers in the time, PB only if its stashes fit. */
static bool choose_pb(const dapple *d, const opi_strategy *s) {
  double transfer = 0, compute = 0;
  for (uint32_t k = 0; k < s->n_stages; ++k) {
    const opi_strategy_stage *stage = &s->stages[k];
    const opi_layer sum =
        opi_layers_sum(d->planning->layers, stage->first, stage->end, d->planning->samples);
    const double most = d->pipe.n_microbatches, wanted = 2.0 * (s->n_stages - k) - 1;
    const double bytes =
        (double)sum.param_bytes * d->planning->state_bytes +
        (most < wanted ? most : wanted) * (double)sum.stash_bytes / stage->n_devices;
    if (bytes > (double)d->machine->memory_bytes)
      return false;
    compute = fmax(compute, (stage->forward_ns + stage->backward_ns) / 2);
    if (k + 1 < s->n_stages)
      transfer = fmax(transfer, d->pipe.forward_ns[2 * k + 1]);
  }
  return transfer >= acr_least * compute;
}

static opipe_status answer(dapple *d, uint32_t n_stages, double ns, opi_strategy **out_strategy,
                           opipe_error *err) {
  opi_strategy *s = NULL;
  OPI_TRY(opi_strategy_new("dapple", n_stages, d->planning->allocator, &s, err));
  double *scratch = OPI_ARENA_ARRAY(&d->arena, double, 4 * (size_t)n_stages);
  opipe_status status =
      scratch == NULL ? opi_fail_nomem(err, n_stages * sizeof(double), "a strategy") : OPIPE_OK;
  for (uint32_t k = 0; k < n_stages && status == OPIPE_OK; ++k) {
    uint32_t *devices = OPI_ARENA_ARRAY(&s->arena, uint32_t, d->machine->n_devices);
    if (devices == NULL) {
      status = opi_fail_nomem(err, d->machine->n_devices * sizeof(uint32_t), "a strategy");
      break;
    }
    s->stages[k].first = d->ends[k];
    s->stages[k].end = d->ends[k + 1];
    s->stages[k].devices = devices;
    s->stages[k].n_devices =
        list_devices(d->machine, d->placements[d->taken[k]].used,
                     k + 1 == n_stages ? NULL : d->placements[d->taken[k + 1]].used, devices);
  }
  if (status < 0) {
    opi_strategy_free(s);
    return status;
  }
  opi_dapple_fill(d->planning, d->machine, s, &d->pipe);
  const bool pb = choose_pb(d, s);
  s->schedule = pb ? "1f1b:policy=pb" : "1f1b:policy=pa";
  s->samples = d->planning->samples;
  s->microbatches = d->pipe.n_microbatches;
  s->objective = ns;
  s->step_ns = opi_dapple_play_ns(&d->pipe, scratch);
  for (uint32_t k = 0; k < n_stages; ++k) {
    opi_strategy_stage *stage = &s->stages[k];
    const double most = s->microbatches, wanted = pb ? 2.0 * (n_stages - k) - 1 : n_stages - k;
    stage->memory_bytes =
        (uint64_t)((d->param_before[stage->end] - d->param_before[stage->first]) *
                       d->planning->state_bytes +
                   (most < wanted ? most : wanted) *
                       (d->stash_before[stage->end] - d->stash_before[stage->first]) /
                       stage->n_devices);
    if (stage->memory_bytes > s->memory_bytes)
      s->memory_bytes = stage->memory_bytes;
  }
  *out_strategy = s;
  return OPIPE_OK;
}

opipe_status opi_plan_dapple(const opi_planning *planning, opi_strategy **out_strategy,
                             opipe_error *err) {
  opi_planning question = *planning;
  opi_machine machine;
  OPI_TRY(opi_planning_check("dapple", &question, &machine, err));
  dapple d = {.planning = &question, .machine = &machine};
  uint32_t place = 0, layer = 0;
  opi_arena_init(&d.arena, question.allocator, 0);
  opipe_status status = prepare(&d, err);
  if (status == OPIPE_OK)
    status = search(&d, &place, &layer, err);
  if (status == OPIPE_OK) {
    const double ns = d.states[(size_t)place * (question.layers->n_layers + 1) + layer].ns;
    status =
        isfinite(ns)
            ? answer(&d, unwind(&d, place, layer), ns, out_strategy, err)
            : opi_fail(err, OPIPE_E_LIMIT,
                       "planner 'dapple': nothing fits: %s for parameters and their "
                       "state on %u devices of %s",
                       OPI_SIZE(d.param_before[question.layers->n_layers] * question.state_bytes),
                       machine.n_devices, OPI_SIZE(machine.memory_bytes));
  }
  opi_arena_release(&d.arena);
  return status;
}
