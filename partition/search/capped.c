/* SPDX-License-Identifier: Apache-2.0 */
/* See capped.h. */
#include "partition/search/capped.h"

#include <math.h>
#include <string.h>

#include "loader/base/sizes.h"
#include "partition/memory/parts.h"
#include "partition/search/fit.h"

enum {
  PARTS_MOST = 48,         /* if every rank has one stage; otherwise: */
  PARTS_OF_SHARED = 24,    /* or twice the number of stages */
  JUDGMENTS_LEAST = 4,     /* by exact bytes, even for the largest models */
  JUDGMENTS_MOST = 48,     /* even for the smallest */
  NODES_JUDGED = 40000,    /* roughly, over all judgments */
  LOOKS_JUDGED = 20000000, /* roughly, candidate ends of stages over all judgments */
  STAGES_FITTED = 128,     /* larger cuts are not searched by exact bytes */
  SHRINKS_MOST = 8,
  LOWERS_MOST = 4,
  RAISES_MOST = 8
};

typedef struct capped {
  const opi_capped *given;
  opi_plan *plan;
  opi_arena scratch;
  uint64_t *caps_bytes; /* [n_ranks] the plan's; UINT64_MAX: none */
  uint64_t *told_bytes; /* [n_ranks] caps passed to schedules */
  uint32_t *first_node; /* [n_parts + 1] */
  uint32_t n_parts;
  const opi_parts_run **runs; /* [n_ranks] */
  double *live;               /* [n_instances] micro-batches waiting for their backward */
  uint32_t *first_cut;        /* [n_nodes] stages of the first attempt */
  uint64_t first_overflow;    /* bytes of its fullest rank */
  double first_ns;            /* of its plan; INFINITY: does not fit */
  opi_fit_problem fit;
  opipe_error *err;
} capped;

/* ---- by estimates ---- */

/* Finishes one cut under the current caps exactly: contiguous, then refined if that fits. */
static opipe_status try_cut(capped *c) {
  const opi_cut_problem *problem = c->given->problem;
  opi_decision *plan = &c->plan->decided;
  uint32_t moves = 0;
  OPI_TRY(opi_cut_dp(problem, plan->allocator, plan->stage_of_node, c->err));
  uint32_t *contiguous =
      opi_arena_copy(&c->scratch, plan->stage_of_node, plan->n_nodes * sizeof(uint32_t));
  if (contiguous == NULL)
    return opi_fail_nomem(c->err, plan->n_nodes * sizeof(uint32_t), "a cut");
  OPI_TRY(opi_cut_refine(problem, plan->allocator, plan->stage_of_node, &moves, c->err));
  opipe_status status = c->given->finish(c->given->ctx, problem, c->err);
  if (status == OPIPE_E_LIMIT && moves != 0) {
    memcpy(plan->stage_of_node, contiguous, plan->n_nodes * sizeof(uint32_t));
    status = c->given->finish(c->given->ctx, problem, c->err);
  }
  return status;
}

static uint64_t overflow_of(const capped *c) {
  uint64_t most = 0;
  for (uint32_t r = 0; r < c->plan->decided.n_ranks; ++r) {
    const uint64_t bytes = c->plan->predicted.memory[r].total_bytes, cap = c->caps_bytes[r];
    most = bytes > cap && bytes - cap > most ? bytes - cap : most;
  }
  return most;
}

/* Sets c->first_cut if the cut must be searched by exact bytes: a rank exceeds its cap, or its
 * schedule was told to keep less and another cut may be faster. */
static opipe_status by_estimates(capped *c) {
  opi_plan *plan = c->plan;
  plan->predicted.memory = NULL;
  const opipe_status status = try_cut(c);
  if (status == OPIPE_OK
          ? !c->given->told->bounded
          : status != OPIPE_E_LIMIT || plan->predicted.memory == NULL || overflow_of(c) == 0)
    return status;
  c->first_overflow = overflow_of(c);
  c->first_ns = status == OPIPE_OK ? plan->predicted.interval_ns : INFINITY;
  c->first_cut = opi_arena_copy(&c->scratch, plan->decided.stage_of_node,
                                plan->decided.n_nodes * sizeof(uint32_t));
  if (c->first_cut == NULL)
    return opi_fail_nomem(c->err, plan->decided.n_nodes * sizeof(uint32_t), "a cut");
  return status;
}

/* ---- by exact bytes ---- */

/* Sets every cap to its value plus `more`, or (`least`) so low that nothing fits. Schedules that
 * heed caps then keep as little as they can. */
static void set_caps(const capped *c, uint64_t more, bool least) {
  for (uint32_t r = 0; r < c->plan->decided.n_ranks; ++r) {
    const uint64_t cap = c->caps_bytes[r];
    if (cap != UINT64_MAX) {
      c->plan->decided.devices[r].memory_bytes = least                     ? 1
                                                 : cap < UINT64_MAX - more ? cap + more
                                                                           : cap;
    }
  }
}

static void place_ends(const capped *c, const uint32_t *ends) {
  for (uint32_t s = 0; s < c->plan->decided.n_stages; ++s) {
    for (uint32_t n = c->first_node[ends[s]]; n < c->first_node[ends[s + 1]]; ++n)
      c->plan->decided.stage_of_node[n] = s;
  }
}

static opipe_status finish(const capped *c, opipe_error *err) {
  c->plan->predicted.memory = NULL;
  return c->given->finish(c->given->ctx, c->given->problem, err);
}

static const opi_parts_run *run_of(const capped *c, uint32_t rank, const uint32_t *ends,
                                   uint32_t stage) {
  return &c->runs[rank][(size_t)ends[stage] * (c->n_parts + 1) + ends[stage + 1]];
}

/* Change of the stashes that an instance holds, in micro-batches, by one record. */
static double share_held(const opi_decision *plan, const opipe_action *action) {
  const uint32_t n_slices = plan->n_slices > 1 ? plan->n_slices : 1;
  const uint32_t n_shares = plan->shares != NULL ? plan->shares[action->stage] : 1;
  const double one = 1.0 / n_slices / n_shares;
  if (action->pass == OPIPE_PASS_FORWARD)
    return one;
  return action->pass == OPIPE_PASS_BACKWARD_INPUT ? 0
                                                   : -one / (plan->n_parts > 1 ? plan->n_parts : 1);
}

/* Walks the plan's order as last judged. */
static void count_held(capped *c, const uint32_t *ends) {
  const opi_decision *plan = &c->plan->decided;
  const uint32_t n = plan->n_stages * plan->n_replicas;
  memset(c->live, 0, n * sizeof *c->live);
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    double now = 0, most = 0;
    for (uint32_t a = plan->rank_first[r]; a < plan->rank_first[r + 1]; ++a) {
      const opipe_action *action = &plan->actions[a];
      const double change = share_held(plan, action);
      c->live[action->stage * plan->n_replicas + action->replica] += change;
      now += change * (double)run_of(c, r, ends, action->stage)->stash_bytes;
      if (now <= most)
        continue;
      most = now;
      for (uint32_t i = 0; i < n; ++i) {
        if (plan->instance_rank[i] == r)
          c->fit.held[i] = c->live[i];
      }
    }
  }
}

/* Finds the least bytes of the current cut, [n_ranks], by caps under which nothing fits. OK: the
 * bytes were predicted.
 */
static opipe_status find_least(const capped *c, uint64_t *out_bytes, opipe_error *err) {
  const opi_plan *plan = c->plan;
  bool over = false;
  set_caps(c, 0, true);
  const opipe_status status = finish(c, err);
  set_caps(c, 0, false);
  for (uint32_t r = 0; plan->predicted.memory != NULL && r < plan->decided.n_ranks; ++r) {
    out_bytes[r] = plan->predicted.memory[r].total_bytes;
    over = over || out_bytes[r] > plan->predicted.memory[r].cap_bytes;
  }
  if (status == OPIPE_E_LIMIT)
    return over ? OPIPE_OK : OPIPE_E_INVALID;
  return status;
}

/* A schedule may find no order when nothing fits, but one when little is missing. So asks
 * repeatedly for one byte less than the last answer needed. OK: the plan is made, within the caps;
 * LIMIT: io_bytes [n_ranks] are the least found. */
static opipe_status shrink(const capped *c, uint64_t *io_bytes, opipe_error *err) {
  opi_plan *plan = c->plan;
  opipe_status status = OPIPE_OK;
  uint64_t over = overflow_of(c);
  for (uint32_t i = 0; i < SHRINKS_MOST && status == OPIPE_OK && over > 0; ++i) {
    set_caps(c, over - 1, false);
    status = finish(c, err);
    set_caps(c, 0, false);
    if (status < 0)
      break;
    over = overflow_of(c);
    for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
      io_bytes[r] = plan->predicted.memory[r].total_bytes;
      plan->predicted.memory[r].cap_bytes = plan->decided.devices[r].memory_bytes == 0
                                                ? UINT64_MAX
                                                : plan->decided.devices[r].memory_bytes;
    }
  }
  return status == OPIPE_OK && over > 0 ? OPIPE_E_LIMIT : status;
}

/* Finishes the current cut, whose least bytes fit. A schedule may keep too much under its cap, but
 * little enough under a smaller one. */
static opipe_status lower(const capped *c, const uint64_t *bytes, opipe_error *err) {
  opi_decision *plan = &c->plan->decided;
  opipe_status status = OPIPE_E_LIMIT;
  c->given->told->bytes = c->told_bytes;
  for (uint32_t i = 0; i <= LOWERS_MOST + 1 && status == OPIPE_E_LIMIT; ++i) {
    for (uint32_t r = 0; r < plan->n_ranks; ++r) {
      const uint64_t cap = c->caps_bytes[r], less = (cap - bytes[r]) / LOWERS_MOST * i;
      if (cap == UINT64_MAX)
        c->told_bytes[r] = cap;
      else
        c->told_bytes[r] = i <= LOWERS_MOST ? cap - less : 1; /* 1: keep the least */
    }
    status = finish(c, err);
  }
  c->given->told->bytes = NULL;
  return status;
}

/* Makes the plan of the current cut, whose least bytes have just been found. */
static opipe_status settle(const capped *c, uint64_t *io_bytes, opipe_error *err) {
  if (overflow_of(c) == 0)
    return lower(c, io_bytes, err);
  return c->given->told->refused ? shrink(c, io_bytes, err) : OPIPE_E_LIMIT;
}

static opipe_status make(const capped *c, uint64_t *bytes, opipe_error *err) {
  OPI_TRY(find_least(c, bytes, err));
  return settle(c, bytes, err);
}

static opipe_status judge(void *ctx, const uint32_t *ends, uint64_t *out_bytes, double *out_ns,
                          opipe_error *err) {
  capped *c = ctx;
  opipe_error own = OPIPE_ERROR_INIT;
  place_ends(c, ends);
  opipe_status status = find_least(c, out_bytes, &own);
  if (status == OPIPE_OK) {
    if (opi_plan_trains(&c->plan->decided))
      count_held(c, ends);
    status = settle(c, out_bytes, &own);
    *out_ns = status == OPIPE_OK ? c->plan->predicted.interval_ns : INFINITY;
    status = status == OPIPE_E_NOMEM ? status : OPIPE_OK;
  }
  return status == OPIPE_E_NOMEM ? opi_fail(err, status, "%s", own.message) : status;
}

/* ---- parts ---- */

static bool is_shared(const capped *c) {
  bool shared = false;
  for (uint32_t s = 0; s < c->plan->decided.n_stages; ++s) {
    for (uint32_t before = 0; before < s; ++before) {
      shared = shared || opi_plan_rank(&c->plan->decided, before, 0) ==
                             opi_plan_rank(&c->plan->decided, s, 0);
    }
  }
  return shared;
}

static opipe_status choose_parts(capped *c, uint32_t *part_of_node) {
  const opi_graph *g = c->given->problem->graph;
  const uint32_t n_stages = c->plan->decided.n_stages;
  const uint32_t usual = is_shared(c) ? PARTS_OF_SHARED : PARTS_MOST;
  const uint32_t most = 2 * n_stages > usual ? 2 * n_stages : usual;
  uint32_t *positions = NULL, n = 0;
  OPI_TRY(opi_cut_narrow(g, n_stages, most - 1, &c->scratch, &positions, &n, c->err));
  c->first_node = OPI_ARENA_ARRAY(&c->scratch, uint32_t, (size_t)n + 2);
  if (c->first_node == NULL)
    return opi_fail_nomem(c->err, n * sizeof(uint32_t), "parts of a model");
  memcpy(&c->first_node[1], positions, n * sizeof *positions);
  c->n_parts = n + 1;
  c->first_node[c->n_parts] = g->n_nodes;
  for (uint32_t k = 0; k < c->n_parts; ++k) {
    for (uint32_t i = c->first_node[k]; i < c->first_node[k + 1]; ++i)
      part_of_node[i] = k;
  }
  return OPIPE_OK;
}

static opipe_status measure_on(capped *c, uint32_t rank, const uint32_t *part_of_node) {
  const opi_capped *given = c->given;
  opi_backend_ref backend;
  opi_parts_run *runs = NULL;
  const opi_device_facts *facts = &given->facts[rank];
  opi_rank_device device = {.memory_bytes = facts->memory_bytes,
                            .alignment = c->plan->decided.devices[rank].alignment};
  if (!facts->described) {
    OPI_TRY(opi_device_open(given->env, &c->plan->decided.devices[rank], &backend, &device.device,
                            c->err));
    device.backend = &backend;
  }
  const opi_parts_place place = {
      .part_of_node = part_of_node, .n_parts = c->n_parts, .rank = rank, .device = &device};
  const opipe_status status = opi_parts_measure(given->env, &c->plan->decided, given->bound, &place,
                                                &c->scratch, &runs, c->err);
  if (device.backend != NULL)
    backend.table->device_close(device.device);
  c->runs[rank] = runs;
  return status;
}

static opipe_status measure(capped *c) {
  const uint32_t n_ranks = c->plan->decided.n_ranks;
  uint32_t *part_of_node = OPI_ARENA_ARRAY(&c->scratch, uint32_t, c->plan->decided.n_nodes);
  c->runs = OPI_ARENA_ARRAY(&c->scratch, const opi_parts_run *, n_ranks);
  if (part_of_node == NULL || c->runs == NULL)
    return opi_fail_nomem(c->err, c->plan->decided.n_nodes * sizeof(uint32_t), "parts of a model");
  OPI_TRY(choose_parts(c, part_of_node));
  if (c->n_parts < c->plan->decided.n_stages)
    return OPIPE_OK;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    const uint32_t same = c->given->same_device[r];
    if (same == r)
      OPI_TRY(measure_on(c, r, part_of_node));
    c->runs[r] = c->runs[same];
  }
  return OPIPE_OK;
}

/* Times of all parts before each part, by the profile of the stage's device. */
static opipe_status add_times(capped *c) {
  const opi_cut_problem *problem = c->given->problem;
  const uint32_t n_stages = c->plan->decided.n_stages;
  const double **before = OPI_ARENA_ARRAY(&c->scratch, const double *, n_stages);
  for (uint32_t s = 0; before != NULL && s < n_stages; ++s) {
    const double *ns = problem->profiles[s]->node_ns;
    double *row = NULL;
    if (s > 0 && problem->profiles[s] == problem->profiles[s - 1]) {
      before[s] = before[s - 1];
      continue;
    }
    row = OPI_ARENA_ARRAY(&c->scratch, double, (size_t)c->n_parts + 1);
    before[s] = row;
    if (row == NULL)
      return opi_fail_nomem(c->err, c->n_parts * sizeof *row, "a cut");
    for (uint32_t k = 0; k < c->n_parts; ++k) {
      row[k + 1] = row[k];
      for (uint32_t n = c->first_node[k]; n < c->first_node[k + 1]; ++n)
        row[k + 1] += ns[n];
    }
  }
  c->fit.ns_before = before;
  return before == NULL ? opi_fail_nomem(c->err, n_stages * sizeof *before, "a cut") : OPIPE_OK;
}

static uint32_t count_judgments(const capped *c) {
  const uint64_t looks = (uint64_t)c->plan->decided.n_stages * c->n_parts * c->n_parts;
  const uint64_t by_nodes = NODES_JUDGED / ((uint64_t)c->plan->decided.n_nodes + 1);
  const uint64_t by_looks = LOOKS_JUDGED / looks;
  uint64_t n = by_nodes < by_looks ? by_nodes : by_looks;
  n = n < JUDGMENTS_MOST ? n : JUDGMENTS_MOST;
  return n > JUDGMENTS_LEAST ? (uint32_t)n : JUDGMENTS_LEAST;
}

static opipe_status search(capped *c, opi_fit_result *result) {
  const opi_decision *plan = &c->plan->decided;
  const uint32_t n = plan->n_stages * plan->n_replicas;
  c->live = OPI_ARENA_ARRAY(&c->scratch, double, n);
  result->ends = OPI_ARENA_ARRAY(&c->scratch, uint32_t, (size_t)plan->n_stages + 1);
  c->fit = (opi_fit_problem){.allocator = plan->allocator,
                             .n_parts = c->n_parts,
                             .n_stages = plan->n_stages,
                             .n_replicas = plan->n_replicas,
                             .n_ranks = plan->n_ranks,
                             .instance_rank = plan->instance_rank,
                             .caps_bytes = c->caps_bytes,
                             .runs = c->runs,
                             .held = OPI_ARENA_ARRAY(&c->scratch, double, n),
                             .judgments_most = count_judgments(c),
                             .judge = judge,
                             .ctx = c};
  if (c->live == NULL || result->ends == NULL || c->fit.held == NULL)
    return opi_fail_nomem(c->err, n * sizeof *c->live, "a cut");
  OPI_TRY(add_times(c));
  return opi_fit_search(&c->fit, result, c->err);
}

/* ---- the report ---- */

static void raise_caps(const capped *c, uint64_t more) {
  for (uint32_t r = 0; r < c->plan->decided.n_ranks; ++r)
    c->caps_bytes[r] += c->caps_bytes[r] == UINT64_MAX ? 0 : more;
  set_caps(c, 0, false);
}

/* Finds how much all caps must grow for the plan of the current cut. This takes trials, since a
 * schedule may keep more when more is allowed. judged: finish as a judged cut, else as the first
 * attempt. False: not found. */
static bool find_raise(const capped *c, bool judged, uint64_t *bytes, uint64_t *io_more) {
  opipe_error own = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_E_LIMIT;
  for (uint32_t i = 0; i < RAISES_MOST && status == OPIPE_E_LIMIT; ++i) {
    const uint64_t more = *io_more;
    raise_caps(c, more);
    status = judged ? make(c, bytes, &own) : finish(c, &own);
    if (status == OPIPE_E_LIMIT && c->plan->predicted.memory != NULL)
      *io_more += overflow_of(c);
    raise_caps(c, -more);
  }
  return status == OPIPE_OK;
}

/* Reports by how much the current cut, the closest one, exceeds its caps, and which caps would
 * suffice. */
static opipe_status report(const capped *c, bool judged, uint64_t *bytes, uint64_t more) {
  opipe_error closest = OPIPE_ERROR_INIT;
  bool alike = true;
  const bool enough = find_raise(c, judged, bytes, &more);
  const opipe_status status = finish(c, &closest);
  for (uint32_t r = 1; r < c->plan->decided.n_ranks; ++r)
    alike = alike && c->caps_bytes[r] == c->caps_bytes[0];
  if (status != OPIPE_E_LIMIT || !enough)
    return status < 0 ? opi_fail(c->err, status, "%s", closest.message) : status;
  return alike ? opi_fail(c->err, status, "%s; the smallest cap found feasible is %s",
                          closest.message, OPI_SIZE(c->caps_bytes[0] + more))
               : opi_fail(c->err, status,
                          "%s; the smallest caps found feasible are larger by %s each",
                          closest.message, OPI_SIZE(more));
}

static opipe_status by_exact_bytes(capped *c) {
  opi_fit_result result = {.overflow = INFINITY, .ns = INFINITY};
  uint64_t *bytes = OPI_ARENA_ARRAY(&c->scratch, uint64_t, c->plan->decided.n_ranks);
  if (bytes == NULL)
    return opi_fail_nomem(c->err, c->plan->decided.n_ranks * sizeof *bytes, "a cut");
  opipe_status status = c->plan->decided.n_stages > STAGES_FITTED ? OPIPE_E_LIMIT : measure(c);
  if (status == OPIPE_OK && c->n_parts >= c->plan->decided.n_stages)
    status = search(c, &result);
  if (status == OPIPE_E_NOMEM)
    return status;
  if (result.ns < c->first_ns) {
    place_ends(c, result.ends);
    return make(c, bytes, c->err);
  }
  if (c->first_overflow > 0 && result.overflow < (double)c->first_overflow) {
    place_ends(c, result.ends);
    return report(c, true, bytes, (uint64_t)result.overflow);
  }
  memcpy(c->plan->decided.stage_of_node, c->first_cut, c->plan->decided.n_nodes * sizeof(uint32_t));
  if (c->first_overflow == 0)
    return finish(c, c->err);
  return report(c, false, bytes, c->first_overflow);
}

/* True if the rank shares its cap; the cap then applies to the sum (partition/memory/caps.h). */
static bool shares_cap(const opi_decision *plan, uint32_t rank) {
  uint32_t other = rank + 1;
  while (other < plan->n_ranks && plan->devices[other].memory_with != rank + 1)
    ++other;
  return plan->devices[rank].memory_with != 0 || other < plan->n_ranks;
}

static opipe_status prepare(capped *c) {
  const opi_decision *plan = &c->plan->decided;
  c->caps_bytes = OPI_ARENA_ARRAY(&c->scratch, uint64_t, plan->n_ranks);
  c->told_bytes = OPI_ARENA_ARRAY(&c->scratch, uint64_t, plan->n_ranks);
  if (c->caps_bytes == NULL || c->told_bytes == NULL)
    return opi_fail_nomem(c->err, plan->n_ranks * sizeof(uint64_t), "a cut");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const uint64_t cap = plan->devices[r].memory_bytes;
    c->caps_bytes[r] = cap == 0 || shares_cap(plan, r) ? UINT64_MAX : cap;
  }
  return OPIPE_OK;
}

opipe_status opi_cut_capped(const opi_capped *given, opipe_error *err) {
  capped c = {.given = given, .plan = given->plan, .err = err};
  opi_arena_init(&c.scratch, given->plan->decided.allocator, 0);
  opipe_status status = prepare(&c);
  if (status == OPIPE_OK)
    status = by_estimates(&c);
  if (c.first_cut != NULL && status != OPIPE_E_NOMEM)
    status = by_exact_bytes(&c);
  opi_arena_release(&c.scratch);
  return status;
}
