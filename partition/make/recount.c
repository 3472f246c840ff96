/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a plan against the devices on which it will run. A plan that was made from descriptions or
 * read from a file has not been checked against them. */
#include <string.h>

#include "partition/cost/profile.h"
#include "partition/make/make.h"
#include "partition/program/batch.h"
#include "partition/search/taken.h"

typedef struct recount {
  const opi_plan_env *env;
  opi_plan own; /* copied decisions, new predictions in its own arena */
  opi_bound *bound;
  opi_device_facts *facts; /* [n_ranks] */
  bool *here;              /* [n_nodes] on the current rank */
  opipe_error *err;
} recount;

static bool is_here(const recount *c, uint32_t rank) {
  return c->env->local == NULL || c->env->local[rank];
}

/* Takes from the device only what the plan does not decide; sessions compare the rest. A device
 * that is elsewhere is not asked. */
static opipe_status look(recount *c, uint32_t rank) {
  c->facts[rank].described = !is_here(c, rank);
  if (!is_here(c, rank))
    return OPIPE_OK;
  opi_device_spec here = c->own.decided.devices[rank];
  const opipe_status status = opi_device_look(c->env, &here, &c->facts[rank], c->err);
  return status < 0
             ? opi_error_prefix(c->err, "rank %u (device %s:%u): ", rank, here.kind, here.index)
             : OPIPE_OK;
}

/* Asks whether the rank's backend supports the nodes of its stages. */
static opipe_status ask_support(recount *c, uint32_t rank) {
  const opi_decision *plan = &c->own.decided;
  const opi_device_spec *spec = &plan->devices[rank];
  opi_backend_ref backend;
  opipe_device *device = NULL;
  const opipe_device_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .index = spec->index,
      .threads = spec->threads,
      .options = spec->options[0] == '\0' ? NULL : spec->options};
  opi_taken_nodes(plan, rank, c->here);
  OPI_TRY(c->env->plugins->backend(c->env->plugins->ctx, spec->kind, &backend, c->err));
  OPI_TRY(OPI_MAKE("backend", &backend, device_open, &device, c->err, backend.self, &params));
  const opipe_status status =
      opi_profile_support(c->bound->graph, c->here, &backend, device, plan->allocator, c->err);
  backend.table->device_close(device);
  return status;
}

static opipe_status support(recount *c, uint32_t rank) {
  const opipe_status status = ask_support(c, rank);
  return status < 0 ? opi_error_prefix(c->err, "rank %u: ", rank) : OPIPE_OK;
}

/* Only ranks here are held to caps: bytes of the others are estimates, and their own processes
 * count them. A cap that is shared with a rank elsewhere is held by the first that is here. */
static opipe_status lift_caps(recount *c) {
  opi_decision *plan = &c->own.decided;
  if (c->env->local == NULL)
    return OPIPE_OK;
  opi_device_spec *devices =
      opi_arena_copy(&c->own.arena, plan->devices, plan->n_ranks * sizeof *devices);
  uint32_t *first = OPI_ARENA_ARRAY(&c->own.arena, uint32_t, plan->n_ranks);
  if (devices == NULL || first == NULL)
    return opi_fail_nomem(c->err, plan->n_ranks * sizeof *devices, "devices");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    const uint32_t holder = opi_cap_holder(plan->devices, r);
    devices[r].memory_with = 0;
    if (!is_here(c, r))
      devices[r].memory_bytes = 0;
    else if (first[holder] == 0)
      first[holder] = r + 1;
    else
      devices[r].memory_with = first[holder];
  }
  plan->devices = devices;
  return OPIPE_OK;
}

static opipe_status count(recount *c) {
  opi_plan *own = &c->own;
  const int64_t rows = opi_microbatch_rows_most(&own->decided);
  c->facts = OPI_ARENA_ARRAY(&own->arena, opi_device_facts, own->decided.n_ranks);
  c->here = OPI_ARENA_ARRAY(&own->arena, bool, own->decided.n_nodes);
  if (c->facts == NULL || c->here == NULL)
    return opi_fail_nomem(c->err, own->decided.n_nodes, "a plan");
  OPI_TRY(lift_caps(c));
  for (uint32_t r = 0; r < own->decided.n_ranks; ++r)
    OPI_TRY(look(c, r));
  OPI_TRY(opi_plan_bind(&own->decided, c->env->model, c->env->bind, rows, &c->bound, c->err));
  for (uint32_t r = 0; r < own->decided.n_ranks; ++r) {
    if (is_here(c, r))
      OPI_TRY(support(c, r));
  }
  return opi_plan_finish(c->env, own, c->facts, c->bound, c->err);
}

opipe_status opi_plan_recount(const opi_plan_env *env, const opi_plan *plan, opipe_error *err) {
  return plan->predicted.counted ? OPIPE_OK : opi_plan_count_memory(env, plan, NULL, NULL, err);
}

opipe_status opi_plan_count_memory(const opi_plan_env *env, const opi_plan *plan,
                                   const opi_program_visitor *visitor, opi_memory *out_memory,
                                   opipe_error *err) {
  opi_plan_env seen = *env;
  recount c = {.env = &seen, .own = *plan, .err = err};
  seen.visitor = visitor;
  seen.model = opi_plan_model(plan, env->model);
  opi_arena_init(&c.own.arena, plan->decided.allocator, 0);
  const opipe_status status = count(&c);
  if (status == OPIPE_OK && out_memory != NULL)
    memcpy(out_memory, c.own.predicted.memory, plan->decided.n_ranks * sizeof *out_memory);
  opi_bound_free(c.bound);
  opi_arena_release(&c.own.arena);
  return status;
}
