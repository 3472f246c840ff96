/* SPDX-License-Identifier: Apache-2.0 */
/* The work of a plan in flops, and the peak of its devices. */
#include "partition/make/work.h"

#include <string.h>

#include "loader/ops/op.h"
#include "partition/program/assign.h"

/* Types by which work is counted. */
enum { TYPES = 4 };
static const uint32_t types[TYPES] = {OPIPE_FLOAT, OPIPE_DOUBLE, OPIPE_FLOAT16, OPIPE_BFLOAT16};

/* Work of the largest micro-batch, all its slices included; recomputation does not count.
 * *out_dtype: the type of most of it. */
static double microbatch_flops(const opi_cut_model *model, uint32_t *out_dtype) {
  const opi_variant *variant = &model->variants[model->base];
  double by_type[TYPES] = {0}, sum = 0;
  uint32_t most = 0;
  const bool groups = model->n_members > 1 && variant->slices[0].training == NULL;
  for (uint32_t k = 0; k < (model->n_slices == 0 ? 1 : model->n_slices); ++k) {
    /* nodes of all members count once */
    const opi_graph *g =
        groups ? opi_variant_bound(variant, k)->graph : variant->slices[k * model->n_members].graph;
    for (uint32_t n = 0; n < g->n_nodes; ++n) {
      opi_work work = {0, 0};
      opi_node_work(g, &g->nodes[n], &work);
      const double flops = opi_is_again(opi_node_key(g, &g->nodes[n])) ? 0 : work.flops;
      const uint32_t dtype = opi_node_type(g, &g->nodes[n]);
      for (uint32_t t = 0; t < TYPES; ++t)
        by_type[t] += types[t] == dtype ? flops : 0;
      sum += flops;
    }
  }
  for (uint32_t t = 1; t < TYPES; ++t)
    most = by_type[t] > by_type[most] ? t : most;
  *out_dtype = types[most];
  return sum;
}

/* Sum of nominal rates, each scaled by the share of threads in use; 0: unknown for some device. */
static double peak_flops(const opi_decision *plan, const opi_device_facts *facts, uint32_t dtype) {
  double sum = 0;
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const uint32_t threads = plan->devices[r].threads;
    const bool part = threads != 0 && threads < facts[r].max_threads;
    if (!(opi_device_rate(&facts[r], dtype) > 0))
      return 0;
    sum += opi_device_rate(&facts[r], dtype) * (part ? (double)threads / facts[r].max_threads : 1);
  }
  return sum;
}

void opi_plan_count_work(opi_plan *plan, const opi_device_facts *facts,
                         const opi_cut_model *model) {
  const int64_t rows = model->variants[model->base].rows;
  const double times = plan->decided.binding.batch_dim != NULL && rows > 0
                           ? (double)plan->decided.binding.batch_rows / (double)rows
                           : (double)plan->decided.n_microbatches;
  uint32_t dtype = OPIPE_FLOAT;
  plan->predicted.flops = microbatch_flops(model, &dtype) * times;
  if (facts != NULL)
    plan->predicted.peak_flops = peak_flops(&plan->decided, facts, dtype);
}

/* ---- given times ---- */

static double given_ns(const double *stages, double alike, uint32_t stage) {
  return (stages == NULL ? alike : stages[stage]) * 1e6;
}

void opi_plan_given_times(opi_plan *plan, const opi_costs *costs) {
  const opi_decision *decided = &plan->decided;
  opi_stage_times *times = &plan->predicted.times;
  double sum = 0;
  for (uint32_t s = 0; s < decided->n_stages; ++s) {
    times->stage_ns[s] = given_ns(costs->stage_forward, costs->forward, s);
    sum += times->stage_ns[s];
    if (times->input_ns == NULL) /* a forward plan */
      continue;
    times->input_ns[s] = given_ns(costs->stage_input, costs->input, s);
    times->weight_ns[s] = given_ns(costs->stage_weight, costs->weight, s);
    sum += times->input_ns[s] + times->weight_ns[s];
  }
  plan->predicted.bound_ns = sum / (decided->n_ranks / opi_plan_width(decided));
  plan->predicted.cost_kind = OPI_COST_GIVEN;
}

/* ---- weights of few bits ---- */

enum { BITS_MOST = 8 };

/* True if the node unpacks a parameter matrix of few bits. *out_form: its form, with n 0. */
static bool unpacks(const opi_graph *g, const opi_node *node, opi_few_bits *out_form) {
  const opi_value *codes = &g->values[node->in[0]];
  if (opi_op_of(node)->kind != OPI_KIND_UNPACK || (codes->flags & OPI_VALUE_INITIALIZER) == 0 ||
      codes->rank < 2)
    return false;
  out_form->bits = (uint32_t)opi_attr_int(node, "bits", opi_dtype_bits(codes->dtype));
  out_form->level = opi_attr_int(node, "accuracy_level", 0);
  out_form->n = 0;
  return out_form->bits <= BITS_MOST;
}

static bool is_before(const opi_few_bits *a, const opi_few_bits *b) {
  return a->bits != b->bits ? a->bits < b->bits : a->level < b->level;
}

/* Inserts into the sorted list, which has room. */
static void add_form(opi_plan *plan, const opi_few_bits *form, uint32_t n) {
  opi_few_bits *list = plan->predicted.few_bits;
  uint32_t at = 0;
  while (at < plan->predicted.n_few_bits && is_before(&list[at], form))
    ++at;
  if (at == plan->predicted.n_few_bits || is_before(form, &list[at])) {
    memmove(&list[at + 1], &list[at], (plan->predicted.n_few_bits - at) * sizeof *list);
    list[at] = *form;
    ++plan->predicted.n_few_bits;
  }
  list[at].n += n;
}

static opipe_status count_forms(opi_plan *plan, const opi_graph *g, opi_arena *scratch,
                                opipe_error *err) {
  opi_uses uses;
  opi_few_bits form;
  uint32_t room = 0;
  for (uint32_t n = 0; n < g->n_nodes; ++n)
    room += unpacks(g, &g->nodes[n], &form);
  if (room == 0)
    return OPIPE_OK;
  plan->predicted.few_bits = OPI_ARENA_ARRAY(&plan->arena, opi_few_bits, room);
  if (plan->predicted.few_bits == NULL)
    return opi_fail_nomem(err, room * sizeof *plan->predicted.few_bits, "a plan");
  OPI_TRY(opi_graph_uses(g, scratch, &uses, err));
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t value = g->nodes[n].out[0];
    uint32_t readers = 0;
    if (!unpacks(g, &g->nodes[n], &form) || opi_is_again(opi_node_key(g, &g->nodes[n])))
      continue;
    for (uint32_t u = uses.first[value]; u < uses.first[value + 1]; ++u)
      readers += opi_op_of(&g->nodes[uses.users[u]])->index == OPI_INDEX_NONE;
    if (readers > 0)
      add_form(plan, &form, readers);
  }
  return OPIPE_OK;
}

opipe_status opi_plan_count_few_bits(opi_plan *plan, const opi_cut_model *model, opipe_error *err) {
  opi_arena scratch;
  plan->predicted.n_few_bits = 0;
  opi_arena_init(&scratch, plan->decided.allocator, 0);
  const opipe_status status =
      count_forms(plan, model->variants[model->base].slices[0].graph, &scratch, err);
  opi_arena_release(&scratch);
  return status;
}

double opi_plan_lower_bound(const opi_decision *plan, opi_profile *const *profiles) {
  double sum = 0, largest = 0;
  for (uint32_t n = 0; n < plan->n_nodes; ++n) {
    double best = profiles[0]->node_ns[n];
    for (uint32_t r = 1; r < plan->n_ranks; ++r) {
      if (profiles[r]->node_ns[n] < best)
        best = profiles[r]->node_ns[n];
    }
    sum += best;
    if (best > largest)
      largest = best;
  }
  sum /= plan->n_ranks / opi_plan_width(plan);
  largest /= plan->shares == NULL ? 1 : plan->n_replicas;
  return sum > largest ? sum : largest;
}
