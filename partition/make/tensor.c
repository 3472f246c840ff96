/* SPDX-License-Identifier: Apache-2.0 */
/* See tensor.h. */
#include "partition/make/tensor.h"

#include <inttypes.h>
#include <string.h>

#include "loader/ops/op.h"
#include "partition/file/file.h"
#include "partition/program/states.h"

/* ---- refusals ---- */

opipe_status opi_tensor_asked(const opipe_plan_params *params, opipe_error *err) {
  const uint32_t width = params->tensor == 0 ? 1 : params->tensor;
  const bool given = params->n_ranks != 0 || params->n_stages != 0;
  const uint32_t n = given ? params->n_ranks : params->n_devices;
  if (width == 1 && (params->flags & (OPIPE_PLAN_SEQUENCE | OPIPE_PLAN_SCATTERED)) != 0) {
    return opi_fail(err, OPIPE_E_INVALID, "%s needs tensor groups of at least 2 members, not 1",
                    (params->flags & OPIPE_PLAN_SEQUENCE) != 0
                        ? "the sequence form (OPIPE_PLAN_SEQUENCE)"
                        : "sending members' parts (OPIPE_PLAN_SCATTERED)");
  }
  if (n % width == 0 || (n == 1 && !given))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "tensor groups of %u members cannot share %u %s%s", width,
                  n, given ? "rank" : "device", n == 1 ? "" : "s");
}

void opi_tensor_take(const opipe_plan_params *params, opi_decision *plan) {
  plan->width = params->tensor;
  plan->division.sequence = (params->flags & OPIPE_PLAN_SEQUENCE) != 0;
  plan->division.scattered = (params->flags & OPIPE_PLAN_SCATTERED) != 0;
}

void opi_tensor_meet_link(opi_decision *plan) {
  const bool scattered = (plan->link.flags & OPIPE_TRANSPORT_SCATTERED) != 0;
  if (opi_plan_width(plan) > 1 && !plan->division.sequence && scattered)
    plan->division.scattered = true;
}

opipe_status opi_tensor_devices(const opi_decision *plan, opipe_error *err) {
  const uint32_t width = opi_plan_width(plan);
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const opi_device_spec *a = &plan->devices[r - r % width], *b = &plan->devices[r];
    const char *what = strcmp(a->kind, b->kind) != 0         ? "backends"
                       : strcmp(a->options, b->options) != 0 ? "options"
                       : a->alignment != b->alignment        ? "alignments"
                       : a->threads != b->threads            ? "numbers of threads"
                                                             : NULL;
    if (what == NULL)
      continue;
    return opi_fail(err, OPIPE_E_INVALID,
                    "ranks %u and %u of a tensor group have devices with other %s: %s:%u (%s), "
                    "alignment %u, %u threads; %s:%u (%s), alignment %u, %u threads",
                    r - r % width, r, what, a->kind, a->index, a->options, a->alignment, a->threads,
                    b->kind, b->index, b->options, b->alignment, b->threads);
  }
  return OPIPE_OK;
}

/* ---- costs ---- */

typedef struct rates {
  const opi_device_facts *facts;
  uint32_t threads;
} rates;

static double node_ns(const rates *r, const opi_graph *g, const opi_node *node) {
  opi_work work = {0, 0};
  opi_node_work(g, node, &work);
  return opi_device_ns(r->facts, r->threads, opi_node_type(g, node), work.flops, work.bytes);
}

/* Adds up the times of a member's nodes by the node of the whole graph: own [whole's n_nodes]. */
static void add_member(const rates *r, const opi_shard_member *member, double *own) {
  const opi_graph *g = member->bound->graph;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    opi_collective how;
    if (!opi_collective_of(g, &g->nodes[n], &how))
      own[member->node_of[n]] += node_ns(r, g, &g->nodes[n]);
  }
}

/* The share of the time of every node of the whole graph that a member takes: out [n_nodes], of the
 * member for which it takes longest. Nodes that read and write parts count with those that they
 * were made for. */
static opipe_status find_shares(const opi_tensor_costs *c, double *out, opipe_error *err) {
  const opi_graph *g = c->bound->graph;
  const rates by = {&c->facts[0], c->plan->devices[0].threads};
  const uint32_t n_pairs = c->plan->n_states;
  opi_shard_pair *pairs = opi_alloc_zero(c->plan->allocator, n_pairs + 1u, sizeof *pairs);
  const opi_shard_wish wish = {.width = opi_plan_width(c->plan),
                               .flags = opi_tensor_flags(c->plan),
                               .pairs = pairs,
                               .n_pairs = n_pairs,
                               .evaluator = c->base->evaluator,
                               .allocator = c->plan->allocator};
  opi_shards *shards = NULL;
  double *own = opi_alloc_zero(c->plan->allocator, g->n_nodes + 1u, sizeof *own);
  opipe_status status = OPIPE_OK;
  if (own == NULL || pairs == NULL)
    status = opi_fail_nomem(err, g->n_nodes * sizeof *own, "costs");
  else
    opi_states_list(c->plan, g, pairs);
  if (status == OPIPE_OK)
    status = opi_shard(c->bound, &wish, &shards, err);
  for (uint32_t k = 0; status == OPIPE_OK && k < wish.width; ++k) {
    memset(own, 0, g->n_nodes * sizeof *own);
    add_member(&by, &shards->members[k], own);
    for (uint32_t n = 0; n < g->n_nodes; ++n) {
      const double whole = node_ns(&by, g, &g->nodes[n]);
      const double share = whole > 0 ? own[n] / whole : 1;
      out[n] = share > out[n] ? share : out[n];
    }
  }
  opi_shards_free(shards);
  opi_free(c->plan->allocator, own, (g->n_nodes + 1u) * sizeof *own);
  opi_free(c->plan->allocator, pairs, (n_pairs + 1u) * sizeof *pairs);
  return status;
}

static void multiply(double *io_ns, const double *shares, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i)
    io_ns[i] *= shares[i];
}

opipe_status opi_tensor_share_costs(const opi_tensor_costs *c, opipe_error *err) {
  const uint32_t n = c->bound->graph->n_nodes;
  double *shares = opi_alloc_zero(c->plan->allocator, n + 1u, sizeof *shares);
  if (shares == NULL)
    return opi_fail_nomem(err, n * sizeof *shares, "costs");
  const opipe_status status = find_shares(c, shares, err);
  for (uint32_t r = 0; status == OPIPE_OK && r < c->plan->n_ranks; ++r) {
    if (c->owner[r] != r)
      continue;
    multiply(c->profiles[r]->node_ns, shares, n);
    for (uint32_t k = 0; k < OPI_COUNT(c->passes_ns); ++k) {
      if (c->passes_ns[k] != NULL)
        multiply(c->passes_ns[k][r], shares, n);
    }
  }
  opi_free(c->plan->allocator, shares, (n + 1u) * sizeof *shares);
  return status;
}

/* ---- descriptions ---- */

/* The larger row class counts, for each of a stage's meetings. */
static opipe_status tell_stages(opi_plan *plan, const opi_cut_model *model, opipe_error *err) {
  const opi_cut *cut = model->cuts[0];
  const uint32_t n = plan->decided.n_stages;
  opi_group_told *told = OPI_ARENA_ARRAY(&plan->arena, opi_group_told, n);
  if (told == NULL)
    return opi_fail_nomem(err, n * sizeof *told, "a plan");
  for (uint32_t m = 0; m < cut->n_meetings; ++m) {
    const opi_group_meeting *meeting = &cut->meetings[m];
    opi_group_told *of = &told[meeting->stage];
    for (uint32_t i = 0; i < meeting->n_values; ++i) {
      const uint64_t n_bytes = meeting->values[i].n_bytes;
      *(meeting->phase == OPI_PHASE_F ? &of->n_forward : &of->n_backward) += 1;
      *(meeting->phase == OPI_PHASE_F ? &of->forward_bytes : &of->backward_bytes) += n_bytes;
    }
  }
  plan->predicted.tensor.groups = told;
  return OPIPE_OK;
}

static opipe_status tell_reasons(opi_arena *arena, const opi_shard_reason *reasons, uint32_t n,
                                 opi_whole_told **out_told, opipe_error *err) {
  opi_whole_told *told = OPI_ARENA_ARRAY(arena, opi_whole_told, (size_t)n + 1);
  if (told == NULL)
    return opi_fail_nomem(err, n * sizeof *told, "a plan");
  for (uint32_t i = 0; i < n; ++i) {
    told[i] = (opi_whole_told){.node = opi_arena_strdup(arena, reasons[i].node),
                               .why = opi_arena_strdup(arena, reasons[i].why)};
    if (told[i].node == NULL || told[i].why == NULL)
      return opi_fail_nomem(err, 0, "a plan");
  }
  *out_told = told;
  return OPIPE_OK;
}

opipe_status opi_tensor_compare(opi_decision *plan, const opi_cut_model *model, opipe_error *err) {
  uint64_t print[2] = {0, 0};
  uint64_t *of = plan->division.print;
  if (model->n_members == 1)
    return OPIPE_OK;
  opi_shards_print(model->variants[model->base].shards[0], print);
  if ((of[0] != 0 || of[1] != 0) && (of[0] != print[0] || of[1] != print[1])) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "the plan divides parameters among %u members by %016" PRIx64 "%016" PRIx64
                    ", the model here by %016" PRIx64 "%016" PRIx64 ": it must be planned anew",
                    plan->width, of[0], of[1], print[0], print[1]);
  }
  of[0] = print[0];
  of[1] = print[1];
  return OPIPE_OK;
}

/* Parts have the names of the values of which they are, with a suffix (loader/shard/sent.c). */
static void tell_sent(opi_plan *plan, const opi_cut_model *model) {
  for (uint32_t k = 0; k < model->n_slices; ++k) {
    const opi_shard_member *m = &model->variants[model->base].shards[k]->members[0];
    for (uint32_t i = 0; i < m->n_sent; ++i) {
      const char *name = m->bound->graph->values[m->sent[i]].name;
      for (uint32_t c = 0; c < plan->predicted.n_crossings; ++c) {
        opi_crossing *crossing = &plan->predicted.crossings[c];
        if (strcmp(crossing->name, name) == 0)
          crossing->whole_bytes = crossing->n_bytes * model->n_members;
      }
    }
  }
}

opipe_status opi_tensor_tell(opi_plan *plan, const opi_cut_model *model, opipe_error *err) {
  if (model->n_members == 1)
    return OPIPE_OK;
  const opi_shards *shards = model->variants[model->base].shards[0]; /* slices have the same */
  plan->predicted.tensor.n_divided = shards->n_divided;
  OPI_TRY(tell_stages(plan, model, err));
  tell_sent(plan, model);
  plan->predicted.tensor.n_whole = shards->n_reasons;
  plan->predicted.tensor.n_mixed = shards->n_mixed;
  OPI_TRY(tell_reasons(&plan->arena, shards->reasons, shards->n_reasons,
                       &plan->predicted.tensor.whole, err));
  return tell_reasons(&plan->arena, shards->mixed, shards->n_mixed, &plan->predicted.tensor.mixed,
                      err);
}
