/* SPDX-License-Identifier: Apache-2.0 */
/* The members of tensor groups: one graph each (loader/shard), whose stages are cut into stretches
 * (stretches.h). All members do the same collectives in the same order, and every number of rows is
 * divided alike.
 */
#include <stdio.h>
#include <string.h>

#include "partition/program/batch.h"
#include "partition/program/model.h"
#include "partition/program/states.h"
#include "partition/program/stretches.h"

/* ---- refusals ---- */

static opipe_status refuse(const opi_decision *plan, const char *what, opipe_error *err) {
  return opi_fail(err, OPIPE_E_UNSUPPORTED, "tensor groups of %u members are not combined with %s",
                  plan->width, what);
}

opipe_status opi_tensor_check(const opi_decision *plan, opipe_error *err) {
  const uint32_t width = opi_plan_width(plan);
  if (width == 1)
    return OPIPE_OK;
  if (plan->n_ranks % width != 0) {
    return opi_fail(err, OPIPE_E_INVALID, "tensor groups of %u members cannot share %u rank%s",
                    width, plan->n_ranks, plan->n_ranks == 1 ? "" : "s");
  }
  for (uint32_t i = 0; i < plan->n_stages * plan->n_replicas; ++i) {
    const uint32_t rank = plan->instance_rank[i];
    if (rank != OPIPE_NONE && (rank % width != 0 || rank >= plan->n_ranks)) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "stage %u is on rank %u of %u, where no tensor group of %u members begins",
                      i / plan->n_replicas, rank, plan->n_ranks, width);
    }
  }
  if (plan->shares != NULL)
    return refuse(plan, "replicas that share micro-batches", err);
  if (plan->division.sequence && plan->division.scattered) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "sequence=1 sends rows from stage to stage, of which each of the %u members has "
        "some: scattered=1 has nothing to divide",
        width);
  }
  if (plan->division.sequence && plan->n_parts > 1) {
    return opi_fail(
        err, OPIPE_E_UNSUPPORTED,
        "sequence=1: a member of a tensor group of %u has some rows of a micro-batch, "
        "and schedule '%s' runs its backward in %u parts, whose rows other members have",
        width, plan->schedule.name, plan->n_parts);
  }
  return OPIPE_OK;
}

/* ---- graphs ---- */

/* Names the first nodes that could have been divided, and why they are not. */
static opipe_status nothing_divided(const opi_decision *plan, const opi_shards *shards,
                                    opipe_error *err) {
  enum { NAMED = 3 };
  char why[400] = "";
  size_t at = 0;
  for (uint32_t i = 0; i < shards->n_reasons && i < NAMED; ++i) {
    const int n = snprintf(why + at, sizeof why - at, "%s'%.40s': %.80s", i == 0 ? ": " : "; ",
                           shards->reasons[i].node, shards->reasons[i].why);
    at += n < 0 || (size_t)n >= sizeof why - at ? 0 : (size_t)n;
  }
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "a tensor group of %u members has nothing to divide in this model%s", plan->width,
                  at == 0 ? ": no product reads a parameter" : why);
}

/* Sums are made for their first reader, but stand in the stage that makes the partial results, with
 * whatever is added behind them: whole tensors travel. */
static void pull_sums(const opi_graph *whole, const opi_shard_member *member,
                      const uint32_t *stages, uint32_t *own) {
  const opi_graph *g = member->bound->graph;
  for (uint32_t v = 0; v < whole->n_values; ++v) {
    const uint32_t made = member->value_of[v], maker = whole->values[v].producer;
    const uint32_t node = made == OPIPE_NONE ? OPIPE_NONE : g->values[made].producer;
    if (node != OPIPE_NONE && maker != OPIPE_NONE && stages[maker] < own[node])
      own[node] = stages[maker];
  }
  for (uint32_t n = g->n_nodes; n-- > 0;) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      const uint32_t maker = v == OPIPE_NONE ? OPIPE_NONE : g->values[v].producer;
      if (maker != OPIPE_NONE && own[maker] > own[n])
        own[maker] = own[n];
    }
  }
}

static opipe_status place_nodes(const opi_graph *whole, const opi_shard_member *member,
                                const uint32_t *stages, opi_arena *arena,
                                const uint32_t **out_stages, opipe_error *err) {
  const uint32_t n = member->bound->graph->n_nodes;
  uint32_t *own = OPI_ARENA_ARRAY(arena, uint32_t, n);
  if (own == NULL)
    return opi_fail_nomem(err, n * sizeof *own, "a cut");
  for (uint32_t i = 0; i < n; ++i)
    own[i] = stages[member->node_of[i]];
  pull_sums(whole, member, stages, own);
  *out_stages = own;
  return OPIPE_OK;
}

uint32_t opi_tensor_flags(const opi_decision *plan) {
  const opi_train_spec *spec = plan->train;
  return OPI_SHARD_BARE | (spec == NULL ? 0u : (uint32_t)OPI_SHARD_TRAIN) |
         (plan->division.sequence ? (uint32_t)OPI_SHARD_SEQUENCE : 0u);
}

typedef struct dividing {
  const opi_decision *plan;
  const opi_bind_options *base;
  const opi_bound *bound;
  const uint32_t *stages; /* of the bound graph's nodes */
  const bool *scatters;
  const opi_carry *samples;
  const opi_shard_pair *pairs; /* [plan->n_states] */
  opi_shards **out;            /* in the variant */
  opi_choices *choices;        /* of all members; NULL: none */
} dividing;

/* whole: an output that must be whole in every member; NULL: none. */
static opipe_status divide(const dividing *d, const char *whole, opipe_error *err) {
  const opi_shard_wish wish = {.width = opi_plan_width(d->plan),
                               .flags = opi_tensor_flags(d->plan),
                               .whole = &whole,
                               .n_whole = whole == NULL ? 0 : 1,
                               .stages = d->stages,
                               .scatters = d->scatters,
                               .n_stages = d->plan->n_stages,
                               .samples = d->samples,
                               .pairs = d->pairs,
                               .n_pairs = d->plan->n_states,
                               .choices = d->choices,
                               .evaluator = d->base->evaluator,
                               .allocator = d->plan->allocator};
  opi_shards_free(*d->out);
  *d->out = NULL;
  return opi_shard(d->bound, &wish, d->out, err);
}

/* Divides the graph. A loss reads divided logits if it is a cross entropy and members have classes
 * that follow each other; else the logits stay whole. */
static opipe_status divide_for_loss(const dividing *d, uint32_t target, opi_arena *arena,
                                    const int64_t **out_classes, opipe_error *err) {
  const opi_graph *g = d->bound->graph;
  const opi_train_spec *spec = d->plan->train;
  const uint32_t kind = spec == NULL ? (uint32_t)OPI_LOSS_OUTPUT : spec->loss.kind;
  if (kind == OPI_LOSS_OUTPUT)
    target = OPIPE_NONE;
  else if (target == OPIPE_NONE)
    target = opi_train_target(d->plan, g);
  const char *name = target == OPIPE_NONE ? NULL : g->values[target].name;
  bool consecutive = false;
  int32_t axis = -1;
  if (name == NULL || kind != OPI_LOSS_CROSS_ENTROPY)
    return divide(d, name, err);
  int64_t *parts = OPI_ARENA_ARRAY(arena, int64_t, d->plan->width);
  if (parts == NULL)
    return opi_fail_nomem(err, d->plan->width * sizeof *parts, "classes");
  OPI_TRY(divide(d, NULL, err));
  if (!opi_shard_extents(*d->out, target, parts, &axis, &consecutive))
    return OPIPE_OK;
  if (!consecutive || axis != g->values[target].rank - 1)
    return divide(d, name, err);
  *out_classes = parts;
  return OPIPE_OK;
}

opipe_status opi_members_divide(const opi_decision *plan, const opi_model *file,
                                const opi_bind_options *base, const opi_bound *bound,
                                const uint32_t *stages, uint32_t target, uint32_t slice,
                                opi_variant *variant, opi_cut_model *model,
                                const int64_t **out_classes, opipe_error *err) {
  if (variant->shards == NULL)
    variant->shards = OPI_ARENA_ARRAY(&model->arena, opi_shards *, model->n_slices);
  if (variant->shards == NULL)
    return opi_fail_nomem(err, model->n_slices * sizeof *variant->shards, "tensor groups");
  opi_choices *choices = variant->choices[0];
  dividing d = {.plan = plan,
                .base = base,
                .bound = bound,
                .stages = stages,
                .scatters = model->scatters,
                .out = &variant->shards[slice],
                .choices = choices == NULL ? NULL : &choices[slice * model->n_members]};
  opi_shard_pair *pairs = OPI_ARENA_ARRAY(&model->arena, opi_shard_pair, plan->n_states);
  *out_classes = NULL;
  if (pairs == NULL)
    return opi_fail_nomem(err, plan->n_states * sizeof *pairs, "states");
  opi_states_list(plan, bound->graph, pairs);
  d.pairs = pairs;
  if (d.scatters != NULL)
    OPI_TRY(opi_members_samples(plan, file, bound->graph, &model->arena, &d.samples, err));
  OPI_TRY(divide_for_loss(&d, target, &model->arena, out_classes, err));
  const opi_shards *shards = variant->shards[slice];
  if (shards->n_divided == 0)
    return nothing_divided(plan, shards, err);
  for (uint32_t k = 0; k < model->n_members; ++k) {
    OPI_TRY(place_nodes(bound->graph, &shards->members[k], stages, &model->arena,
                        &variant->slices[slice * model->n_members + k].stage, err));
  }
  return OPIPE_OK;
}

/* ---- from stage to stage ---- */

/* Members send parts of whole values to their opposites, which gather (loader/shard/sent.c): a
 * property of the link, not where a tensor is produced in the receiver's memory, nor where both
 * stages are on one rank. A stage has one graph for all replicas and members: whether any message
 * from one stage to the other is over the link. */
static bool is_linked(const opi_decision *plan, uint32_t from, uint32_t to) {
  for (uint32_t i = 0; i < plan->n_replicas; ++i) {
    const uint32_t a = opi_plan_rank(plan, from, i), b = opi_plan_rank(plan, to, i);
    if (a == OPIPE_NONE || b == OPIPE_NONE || a == b)
      continue;
    for (uint32_t k = 0; k < opi_plan_width(plan); ++k) {
      if (!opi_plan_edge_is_direct(plan, a + k, b + k))
        return true;
    }
  }
  return false;
}

opipe_status opi_members_scatter(const opi_decision *plan, opi_cut_model *model, opipe_error *err) {
  const uint32_t n = plan->n_stages;
  bool any = false;
  if (!plan->division.scattered || model->n_members == 1)
    return OPIPE_OK;
  bool *list = OPI_ARENA_ARRAY(&model->arena, bool, (size_t)n *n);
  if (list == NULL)
    return opi_fail_nomem(err, (size_t)n * n, "tables of stages");
  for (uint32_t from = 0; from < n; ++from) {
    for (uint32_t to = from + 1; to < n; ++to) {
      list[from * n + to] = is_linked(plan, from, to);
      any = any || list[from * n + to];
    }
  }
  model->scatters = any ? list : NULL;
  return OPIPE_OK;
}

opipe_status opi_members_samples(const opi_decision *plan, const opi_model *file,
                                 const opi_graph *g, opi_arena *arena, const opi_carry **out,
                                 opipe_error *err) {
  *out = NULL;
  if (plan->binding.batch_dim == NULL)
    return OPIPE_OK;
  opi_carry *in = OPI_ARENA_ARRAY(arena, opi_carry, (size_t)g->n_inputs + 1);
  opi_carry *all = OPI_ARENA_ARRAY(arena, opi_carry, (size_t)g->n_values + 1);
  bool *mixed = OPI_ARENA_ARRAY(arena, bool, (size_t)g->n_values + 1);
  if (in == NULL || all == NULL || mixed == NULL)
    return opi_fail_nomem(err, g->n_values * sizeof *all, "the batch axis");
  opi_batch_inputs(plan, file, g, -1, in);
  *out = all;
  return opi_carry_follow(g, plan->binding.batch, in, all, mixed, err);
}

/* ---- inputs and outputs ---- */

/* The parts of a graph's ports: inputs or outputs `ports`, by the names of the bound graph's. */
static opipe_status list_ports(const opi_bound *whole, const opi_graph *bound, const opi_graph *own,
                               const uint32_t *ports, uint32_t n_ports, const opi_shard_part *parts,
                               uint32_t n_parts, opi_arena *arena, const opi_port_part **out,
                               opipe_error *err) {
  opi_port_part *list = OPI_ARENA_ARRAY(arena, opi_port_part, (size_t)n_ports + 1);
  if (list == NULL)
    return opi_fail_nomem(err, n_ports * sizeof *list, "inputs and outputs");
  for (uint32_t i = 0; i < n_ports; ++i) {
    const char *name = own->values[ports[i]].name;
    list[i].axis = -1;
    for (uint32_t k = 0; k < n_parts; ++k) {
      const opi_shard_part *part = &parts[k];
      if (strcmp(bound->values[part->value].name, name) != 0)
        continue;
      list[i] = (opi_port_part){.axis = part->axis,
                                .n_runs = part->n_runs,
                                .shared = (part->flags & OPI_PART_SHARED) != 0,
                                .n_whole = whole->graph->values[part->whole].shape[part->axis],
                                .runs = part->runs};
    }
  }
  *out = list;
  return OPIPE_OK;
}

opipe_status opi_members_ports(const opi_bound *whole, const opi_shard_member *member,
                               opi_variant_slice *io_slice, opi_arena *arena, opipe_error *err) {
  const opi_graph *own = io_slice->graph, *bound = member->bound->graph;
  OPI_TRY(list_ports(whole, bound, own, own->inputs, own->n_inputs, member->inputs,
                     member->n_inputs, arena, &io_slice->input_parts, err));
  return list_ports(whole, bound, own, own->outputs, own->n_outputs, member->outputs,
                    member->n_outputs, arena, &io_slice->output_parts, err);
}

/* ---- stretches ---- */

/* The collectives of a member in graph order. */
typedef struct collectives {
  const opi_graph *graph;
  const uint32_t *place; /* [n_nodes] of the plan's stages */
  uint32_t next;         /* node */
} collectives;

/* Moves on to the next collective that moves anything; false: there is none. */
static bool next_collective(collectives *c, opi_collective *out) {
  while (c->next < c->graph->n_nodes &&
         (!opi_collective_of(c->graph, &c->graph->nodes[c->next], out) ||
          out->kind == OPI_COLLECTIVE_SPREAD))
    ++c->next;
  return c->next < c->graph->n_nodes;
}

static opipe_status differ(const collectives *a, const collectives *b, uint32_t member,
                           opipe_error *err) {
  const opi_graph *g = a->next < a->graph->n_nodes ? a->graph : b->graph;
  const uint32_t node = a->next < a->graph->n_nodes ? a->next : b->next;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "members 0 and %u of a tensor group do not make '%.100s' together", member,
                  g->nodes[node].name);
}

/* Checks that two members do the same collectives at the same places; first: of member 0. */
static opipe_status compare(const opi_variant_slice *first, uint32_t member, opipe_error *err) {
  const opi_variant_slice *other = &first[member];
  collectives a = {first->graph, first->stage, 0}, b = {other->graph, other->stage, 0};
  for (bool more = true; more; ++a.next, ++b.next) {
    opi_collective x, y;
    more = next_collective(&a, &x);
    if (more != next_collective(&b, &y))
      return differ(&a, &b, member, err);
    if (more && (a.place[a.next] != b.place[b.next] || x.kind != y.kind || x.dtype != y.dtype ||
                 x.axis != y.axis || a.graph->nodes[a.next].pass != b.graph->nodes[b.next].pass))
      return differ(&a, &b, member, err);
  }
  return OPIPE_OK;
}

/* Counts places by the stage that has most of any member. */
static opipe_status find_places(const opi_decision *plan, const opi_variant *variant,
                                opi_cut_model *model, opi_stretches *stretches, opipe_error *err) {
  for (uint32_t k = 0; k < opi_model_graphs(model); ++k) {
    const opi_variant_slice *slice = &variant->slices[k];
    const opi_stretch_source source = {
        .graph = slice->graph,
        .stage = slice->stage,
        .anchor = slice->training == NULL ? NULL : slice->training->anchor,
        .n_stages = plan->n_stages};
    OPI_TRY(opi_stretches_find(&source, &model->arena, &stretches[k], err));
    model->n_places =
        stretches[k].n_places > model->n_places ? stretches[k].n_places : model->n_places;
  }
  return OPIPE_OK;
}

/* A GroupSpread moves nothing: its readers read its input, and no program has it (cut.c). */
static void read_through_spreads(const opi_variant_slice *slice) {
  opi_graph *g = slice->training == NULL ? NULL : slice->training->graph;
  for (uint32_t n = 0; g != NULL && n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      const uint32_t maker = v == OPIPE_NONE ? OPIPE_NONE : g->values[v].producer;
      opi_collective how;
      if (maker != OPIPE_NONE && opi_collective_of(g, &g->nodes[maker], &how) &&
          how.kind == OPI_COLLECTIVE_SPREAD)
        g->nodes[n].in[i] = g->nodes[maker].in[0];
    }
  }
}

opipe_status opi_members_stretch(const opi_decision *plan, opi_cut_model *model, opipe_error *err) {
  enum { PLACES_MOST = 1 << 20 };
  const uint32_t n_graphs = opi_model_graphs(model);
  opi_variant *base = &model->variants[model->base];
  opi_stretches *stretches = OPI_ARENA_ARRAY(&model->arena, opi_stretches, n_graphs);
  if (stretches == NULL)
    return opi_fail_nomem(err, n_graphs * sizeof *stretches, "stretches");
  OPI_TRY(find_places(plan, base, model, stretches, err));
  const uint64_t n_pieces = (uint64_t)model->n_places * model->n_pieces;
  if (n_pieces * plan->n_stages > PLACES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "%u stages of %u stretches and sums, %u pieces of %u members each: at most %d",
                    plan->n_stages, model->n_places, model->n_pieces / model->n_members,
                    model->n_members, PLACES_MOST);
  }
  model->n_pieces = (uint32_t)n_pieces;
  for (uint32_t k = 0; k < n_graphs; ++k) {
    const uint32_t n = stretches[k].n_places;
    for (uint32_t i = 0; i < base->slices[k].graph->n_nodes; ++i) {
      const uint32_t at = stretches[k].stage[i];
      stretches[k].stage[i] = at / n * model->n_places + at % n;
    }
    for (uint32_t v = 0; v < model->n_variants; ++v)
      model->variants[v].slices[k].stage = stretches[k].stage;
  }
  for (uint32_t k = 0; k < n_graphs; ++k) {
    if (k % model->n_members != 0)
      OPI_TRY(compare(&base->slices[k - k % model->n_members], k % model->n_members, err));
  }
  for (uint32_t v = 0; v < model->n_variants; ++v) {
    for (uint32_t k = 0; k < n_graphs; ++k)
      read_through_spreads(&model->variants[v].slices[k]);
  }
  return OPIPE_OK;
}
