/* SPDX-License-Identifier: Apache-2.0 */
/* Proof that a request may be split into micro-batches.
 *
 * The model is bound with a prime number of rows that divides none of its extents, so every
 * multiple of it was computed from the batch, and the batch is followed through that graph. The
 * result holds for the graphs of the whole request and of a micro-batch, value by value; values
 * that only these have are followed there. Nothing may read the number of rows as data, except to
 * scale a loss. */
#include <string.h>

#include "partition/plan/env.h"
#include "partition/program/batch.h"
#include "partition/program/model.h"

void opi_batch_inputs(const opi_decision *plan, const opi_model *model, const opi_graph *graph,
                      int32_t otherwise, opi_carry *in_carry) {
  const opi_graph *file = model->graph;
  uint32_t k = 0; /* the file's next input: nearly always in the same order */
  for (uint32_t i = 0; i < graph->n_inputs; ++i) {
    const char *name = graph->values[graph->inputs[i]].name;
    uint32_t tried = 0;
    while (tried < file->n_inputs && strcmp(file->values[file->inputs[k]].name, name) != 0) {
      k = k + 1 == file->n_inputs ? 0 : k + 1;
      ++tried;
    }
    const int32_t axis =
        tried == file->n_inputs ? otherwise : opi_batch_axis(model, plan->binding.batch_dim, k);
    in_carry[i] = (opi_carry){.axis = axis, .outer = 1, .inner = 1};
  }
}

opipe_status opi_batch_learn(const opi_decision *plan, const opi_model *model,
                             const opi_graph *like, opi_bind_rows_fn bind, void *ctx,
                             opi_arena *arena, const opi_known_axis **out_known, opipe_error *err) {
  const int64_t rows = opi_axis_probe_length(like);
  opi_bound *probe = NULL;
  opi_known_axis *known = NULL;
  opipe_status status = bind(ctx, rows, &probe, err);
  if (status < 0) {
    (void)opi_error_prefix(err, "bound with %lld rows: ", (long long)rows);
    return status;
  }
  const opi_graph *g = probe->graph;
  opi_carry *in = OPI_ARENA_ARRAY(arena, opi_carry, g->n_inputs);
  if (in == NULL) {
    status = opi_fail_nomem(err, g->n_inputs * sizeof *in, "the batch axis");
  } else {
    opi_batch_inputs(plan, model, g, -1, in);
    opi_carry_part part;
    status = opi_batch_part(plan, g, arena, &part, err);
    if (status == OPIPE_OK)
      status = opi_known_axis_make(g, &part, in, arena, &known, err);
  }
  opi_bound_free(probe);
  *out_known = known;
  return status;
}

/* ---- the plan's own request ---- */

typedef struct proof {
  opi_decision *plan;
  const opi_model *model;
  const opi_bind_options *base;
  opi_arena *arena; /* of known axes */
} proof;

static opipe_status bind_rows(void *ctx, int64_t rows, opi_bound **out_bound, opipe_error *err) {
  const proof *p = ctx;
  return opi_plan_bind(p->plan, p->model, p->base, rows, out_bound, err);
}

/* Follows the batch through a graph with another number of rows. out_sums [g->n_values], may be
 * NULL: values made of sums over the rows. */
static opipe_status follow(const proof *p, const opi_graph *g, const opi_known_axis *known,
                           bool *out_sums, opipe_error *err) {
  const opi_decision *plan = p->plan;
  opi_arena scratch;
  opi_arena_init(&scratch, plan->allocator, 0);
  opi_carry *in = OPI_ARENA_ARRAY(&scratch, opi_carry, g->n_inputs);
  opi_carry *out = OPI_ARENA_ARRAY(&scratch, opi_carry, g->n_values);
  opipe_status status = OPIPE_OK;
  if (in == NULL || out == NULL) {
    status = opi_fail_nomem(err, g->n_values * sizeof *out, "a proof");
  } else {
    opi_carry_part part;
    opi_batch_inputs(plan, p->model, g, -1, in);
    status = opi_batch_part(plan, g, &scratch, &part, err);
    if (status == OPIPE_OK)
      status = opi_carry_through(g, &part, known, in, out, out_sums, err);
  }
  opi_arena_release(&scratch);
  return status;
}

static opipe_status prove(proof *p, const opi_graph *whole, const opi_graph *part,
                          opipe_error *err) {
  const opi_known_axis *known = NULL;
  opi_carry_part counts;
  bool *sums = OPI_ARENA_ARRAY(p->arena, bool, part->n_values);
  if (sums == NULL)
    return opi_fail_nomem(err, part->n_values, "sums over rows");
  OPI_TRY(opi_batch_learn(p->plan, p->model, whole, bind_rows, p, p->arena, &known, err));
  OPI_TRY(follow(p, whole, known, NULL, err));
  OPI_TRY(follow(p, part, known, sums, err));
  OPI_TRY(opi_batch_part(p->plan, part, p->arena, &counts, err));
  OPI_TRY(opi_carry_compare(whole, part, counts.nodes, counts.sums ? sums : NULL, known, err));
  p->plan->binding.batch = known;
  return OPIPE_OK;
}

opipe_status opi_batch_prove(opi_decision *plan, const opi_model *model,
                             const opi_bind_options *base, const opi_bound *part, opi_arena *arena,
                             opipe_error *err) {
  proof p = {plan, model, base, arena};
  opi_bound *whole = NULL, *own = NULL;
  const int64_t rows = opi_microbatch_rows(plan->binding.batch_rows, plan->n_microbatches, 0);
  plan->binding.batch = NULL;
  opipe_status status = opi_plan_bind(plan, model, base, plan->binding.batch_rows, &whole, err);
  if (status == OPIPE_OK && part == NULL)
    status = opi_plan_bind(plan, model, base, rows, &own, err);
  if (status == OPIPE_OK)
    status = prove(&p, whole->graph, part == NULL ? own->graph : part->graph, err);
  opi_bound_free(whole);
  opi_bound_free(own);
  return status;
}
