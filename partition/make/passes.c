/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of passes: what was asked for, the model's row form, pages. */
#include "partition/make/passes.h"

#include <inttypes.h>

#include "partition/memory/caps.h"
#include "partition/plan/spec.h"

enum { PAGE = 64, ROWS = 64, ACTIVE = 16, ROWS_MOST = 65536, ACTIVE_MOST = 65536 };
enum { CONTEXT_MOST = 1 << 24, PAGE_MOST = 1 << 16, DRAFT_MOST = 1024 };

static opipe_status check_number(const char *name, uint64_t n, uint64_t least, uint64_t most,
                                 opipe_error *err) {
  if (n >= least && n <= most)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "plan_make: generation: %s is %" PRIu64 ", %" PRIu64 " to %" PRIu64
                  " are accepted",
                  name, n, least, most);
}

static opipe_status check_gap(const opi_generation *g, opipe_error *err) {
  if (g->gap >= 0 && g->gap_ms >= 0 && (g->gap == 0 || g->gap_ms == 0))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "plan_make: generation: a gap of %g passes and of %g ms: one of them, above 0",
                  g->gap, g->gap_ms);
}

static opipe_status read_asked(const opipe_generation_params *p, opi_generation *g,
                               opipe_error *err) {
  *g = (opi_generation){.context = p->context,
                        .page = p->page == 0 ? PAGE : p->page,
                        .rows = p->rows == 0 ? ROWS : p->rows,
                        .active = p->active == 0 ? ACTIVE : p->active,
                        .groups = p->groups,
                        .draft = p->draft,
                        .gap = p->gap_passes,
                        .gap_ms = p->gap_ms};
  OPI_TRY(check_number("context", g->context, 2, CONTEXT_MOST, err));
  OPI_TRY(check_number("page", g->page, 1, PAGE_MOST, err));
  OPI_TRY(check_number("rows", g->rows, 1, ROWS_MOST, err));
  OPI_TRY(check_number("active", g->active, 1, ACTIVE_MOST, err));
  OPI_TRY(check_number("groups", g->groups, 0,
                       g->active < OPI_GROUPS_MOST ? g->active : OPI_GROUPS_MOST, err));
  OPI_TRY(check_number("draft", g->draft, 0, DRAFT_MOST, err));
  OPI_TRY(check_gap(g, err));
  const uint64_t pages = p->n_tokens / g->page + (p->n_tokens % g->page != 0);
  OPI_TRY(check_number("n_tokens", p->n_tokens, 0, (uint64_t)INT32_MAX * g->page, err));
  g->n_pages = (uint32_t)pages;
  return OPIPE_OK;
}

/* The wanted rows of a pass: one of each active sequence, and its draft's. */
static int64_t wanted_rows(const opi_generation *g) {
  const uint64_t most = (uint64_t)g->active * (g->draft + 1);
  uint64_t n = 1;
  while (n < most && n < g->rows)
    n *= 2;
  return n < g->rows ? (int64_t)n : (int64_t)g->rows;
}

static opipe_status make_model(const opi_plan_env *env, const opi_bind_options *options,
                               opi_plan *plan, opipe_error *err) {
  const opi_generation *g = &plan->decided.binding.generation;
  const opi_row_sizes sizes = {.context = g->context,
                               .page = g->page,
                               .pages = g->n_pages == 0 ? 1 : g->n_pages,
                               .rows = g->rows,
                               .wanted = wanted_rows(g),
                               .sequences = g->active < g->rows ? g->active : g->rows};
  return opi_row_model_make(env->model, options, &sizes, g->output, &plan->rows, err);
}

opipe_status opi_passes_begin(const opi_plan_env *env, const opipe_plan_params *params, bool trains,
                              opi_plan *plan, opipe_error *err) {
  const opipe_generation_params *asked = params->generation;
  opi_generation *g = &plan->decided.binding.generation;
  OPI_TRY(read_asked(asked, g, err));
  if (trains) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "plan_make: generation is not combined with training");
  }
  if (params->batch_dim != NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "plan_make: generation: rows of all sequences are one batch; '%s' cannot be "
                    "split",
                    params->batch_dim);
  }
  opi_bind_options options = *env->bind;
  options.dims = NULL;
  options.n_dims = 0;
  g->output = asked->output;
  OPI_TRY(make_model(env, &options, plan, err));
  const opi_row_form *form = plan->rows->form;
  g->output = opi_arena_strdup(&plan->arena, form->whole->graph->values[form->logits].name);
  return g->output == NULL ? opi_fail_nomem(err, 0, "a plan") : OPIPE_OK;
}

opipe_status opi_passes_open(const opi_plan_env *env, opi_plan *plan, opipe_error *err) {
  const opi_plan_binding *binding = &plan->decided.binding;
  opi_bind_options options = *env->bind;
  options.dims = NULL;
  options.n_dims = 0;
  options.shapes = NULL;
  options.n_shapes = 0;
  options.pins = binding->pins;
  options.n_pins = binding->n_pins;
  options.barriers = binding->barriers;
  options.n_barriers = binding->n_barriers;
  options.flags = binding->bind_flags;
  options.dropout = binding->dropout;
  options.dropout_ratio = binding->dropout_ratio;
  return make_model(env, &options, plan, err);
}

opipe_status opi_passes_check(const opi_decision *plan, opipe_error *err) {
  const char *what = plan->n_states != 0                      ? "states of streams"
                     : plan->n_microbatches > 1               ? "micro-batches"
                     : plan->n_slices > 1                     ? "token slices of requests"
                     : plan->shares != NULL                   ? "replicas of single stages"
                     : plan->n_replicas > 1 && !plan->in_turn ? "replicas that share a pass"
                                                              : NULL;
  if (plan->binding.generation.context == 0 || what == NULL)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED, "plan_make: generation is not combined with %s", what);
}

void opi_passes_set_pages(opi_plan *plan, opi_bound *bound, uint32_t n_pages) {
  opi_graph *g = bound->graph;
  plan->decided.binding.generation.n_pages = n_pages;
  plan->rows->sizes.pages = n_pages;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    opi_value *x = &g->values[v];
    if ((x->flags & OPI_VALUE_HELD) == 0)
      continue;
    x->n_bytes = x->n_bytes / (uint64_t)x->shape[0] * n_pages;
    x->shape[0] = n_pages;
  }
}

/* Pages that fit in `most` bytes with all ranks that share them with `rank`. */
static uint64_t room_in(const opi_plan *plan, uint32_t rank, uint64_t most, bool capped) {
  const opi_decision *d = &plan->decided;
  const uint64_t n = d->binding.generation.n_pages;
  uint64_t sum = 0, page = 0;
  for (uint32_t r = 0; r < d->n_ranks; ++r) {
    const opi_memory *m = &plan->predicted.memory[r];
    const bool together = capped ? opi_cap_holder(d->devices, r) == opi_cap_holder(d->devices, rank)
                                 : opi_is_one_device(&d->devices[r], &d->devices[rank]);
    if (!together)
      continue;
    sum += m->total_bytes;
    page += m->state_bytes / n;
  }
  return page == 0 ? UINT64_MAX : sum >= most ? n : n + (most - sum) / page;
}

uint64_t opi_passes_rank_room(const opi_plan *plan, uint32_t rank) {
  const opi_memory *m = &plan->predicted.memory[rank];
  const bool capped = m->cap_bytes != UINT64_MAX;
  const uint64_t most = capped ? m->cap_bytes : m->device_bytes;
  return most == 0 || m->state_bytes == 0 ? UINT64_MAX : room_in(plan, rank, most, capped);
}

uint32_t opi_passes_room(const opi_plan *plan, uint32_t *out_rank) {
  uint64_t least = UINT64_MAX;
  *out_rank = OPIPE_NONE;
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const uint64_t room = opi_passes_rank_room(plan, r);
    if (room >= least)
      continue;
    least = room;
    *out_rank = r;
  }
  return least < INT32_MAX ? (uint32_t)least : (uint32_t)INT32_MAX;
}

void opi_passes_env_make(const opi_plan_env *env, const opi_plan *plan, opi_passes_env *out) {
  out->env = *env;
  out->bind = *env->bind;
  opi_row_model_dims(plan->rows, plan->rows->sizes.rows, out->dims);
  out->bind.dims = out->dims;
  out->bind.n_dims = OPI_ROW_DIMS;
  out->env.model = &plan->rows->model;
  out->env.bind = &out->bind;
  out->env.bound = NULL;
}
