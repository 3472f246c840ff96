/* SPDX-License-Identifier: Apache-2.0 */
/* How much a plan computes, and how much its devices could. */
#include "partition/make/work.h"

#include <string.h>

#include "loader/ops/op.h"
#include "partition/program/assign.h"

/* Operations by the type of the nodes. */
enum { TYPES = 4 };
static const uint32_t types[TYPES] = {OPIPE_FLOAT, OPIPE_DOUBLE, OPIPE_FLOAT16, OPIPE_BFLOAT16};

/* Nodes of the largest micro-batch, in all its slices; what is computed again is no work.
 * *out_dtype: the type of most of it. */
static double microbatch_flops(const opi_cut_model *model, uint32_t *out_dtype) {
  const opi_variant *variant = &model->variants[model->base];
  double by_type[TYPES] = {0}, sum = 0;
  uint32_t most = 0;
  for (uint32_t k = 0; k < (model->n_slices == 0 ? 1 : model->n_slices); ++k) {
    const opi_graph *g = variant->slices[k].graph;
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

/* By nominal rates, the share of its threads in a device; 0: one of them says none. */
static double peak_flops(const opi_plan *plan, uint32_t dtype) {
  double sum = 0;
  for (uint32_t r = 0; plan->facts != NULL && r < plan->n_ranks; ++r) {
    const opi_device_facts *facts = &plan->facts[r];
    const uint32_t threads = plan->devices[r].threads;
    const bool part = threads != 0 && threads < facts->max_threads;
    if (!(opi_device_rate(facts, dtype) > 0))
      return 0;
    sum += opi_device_rate(facts, dtype) * (part ? (double)threads / facts->max_threads : 1);
  }
  return sum;
}

void opi_plan_count_work(opi_plan *plan, const opi_cut_model *model) {
  const int64_t rows = model->variants[model->base].rows;
  const double times = plan->batch_dim != NULL && rows > 0 ? (double)plan->batch_rows / (double)rows
                                                           : (double)plan->n_microbatches;
  uint32_t dtype = OPIPE_FLOAT;
  plan->flops = microbatch_flops(model, &dtype) * times;
  plan->peak_flops = plan->facts == NULL ? plan->peak_flops : peak_flops(plan, dtype);
}

/* ---- weights of few bits ---- */

enum { BITS_MOST = 8 };

/* Does the node unpack a matrix of few bits that is a parameter? *out_form: which, n 0. */
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

/* The list stays sorted; it has room. */
static void add_form(opi_plan *plan, const opi_few_bits *form, uint32_t n) {
  opi_few_bits *list = plan->few_bits;
  uint32_t at = 0;
  while (at < plan->n_few_bits && is_before(&list[at], form))
    ++at;
  if (at == plan->n_few_bits || is_before(form, &list[at])) {
    memmove(&list[at + 1], &list[at], (plan->n_few_bits - at) * sizeof *list);
    list[at] = *form;
    ++plan->n_few_bits;
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
  plan->few_bits = OPI_ARENA_ARRAY(&plan->arena, opi_few_bits, room);
  if (plan->few_bits == NULL)
    return opi_fail_nomem(err, room * sizeof *plan->few_bits, "a plan");
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
  plan->n_few_bits = 0;
  opi_arena_init(&scratch, plan->allocator, 0);
  const opipe_status status =
      count_forms(plan, model->variants[model->base].slices[0].graph, &scratch, err);
  opi_arena_release(&scratch);
  return status;
}
