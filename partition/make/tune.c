/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the kernels of a plan's programs on one device, and counts the plan's memory with the
 * chosen ones, whose workspaces differ.
 */
#include <string.h>

#include "partition/make/make.h"
#include "partition/plan/kernels.h"

typedef struct tuner {
  const opi_plan_env *env;
  const opi_tuning *how;
  opi_plan *plan;    /* receives the table */
  opi_arena scratch; /* for one program's kernels */
  const char *fit;
  opipe_kernel *found; /* [n], in the plan's arena */
  uint32_t n, room;
  opipe_error *err;
} tuner;

/* ---- kernels ---- */

static bool is_known(const tuner *t, const char *what) {
  for (uint32_t i = 0; i < t->n; ++i) {
    if (strcmp(t->found[i].what, what) == 0)
      return true;
  }
  return false;
}

static opipe_status keep(tuner *t, const opipe_kernel *kernel) {
  if (t->n == t->room) {
    const uint32_t room = t->room == 0 ? 64 : 2 * t->room;
    opipe_kernel *grown = OPI_ARENA_ARRAY(&t->plan->arena, opipe_kernel, room);
    if (grown == NULL)
      return opi_fail_nomem(t->err, room * sizeof *grown, "kernels");
    if (t->n != 0)
      memcpy(grown, t->found, t->n * sizeof *grown);
    t->found = grown;
    t->room = room;
  }
  t->found[t->n++] = *kernel;
  return OPIPE_OK;
}

static opipe_status measure(tuner *t, const opi_backend_ref *backend, opipe_program *program,
                            opipe_kernel *kernel) {
  const opipe_tune_params params = {.struct_size = (uint32_t)OPIPE_END(opipe_tune_params, reserved),
                                    .n_candidates = t->how->n_candidates,
                                    .n_runs = t->how->n_runs};
  OPI_TRY(OPI_ASK("backend", backend, kernel_tune, t->err, program, &params, kernel));
  kernel->what[sizeof kernel->what - 1] = '\0';
  kernel->choice[sizeof kernel->choice - 1] = '\0';
  kernel->flags = 0;
  OPI_TRY(keep(t, kernel));
  if (t->how->measured != NULL)
    t->how->measured(t->how->ctx, kernel);
  return OPIPE_OK;
}

static opipe_status note_fit(tuner *t, const opi_backend_ref *backend, opipe_device *device) {
  char fit[OPI_KERNELS_FIT_ROOM];
  if (t->fit != NULL)
    return OPIPE_OK;
  if (!opi_backend_tunes(backend)) {
    return opi_fail(t->err, OPIPE_E_UNSUPPORTED,
                    "backend '%s' has no kernels to choose by measuring", backend->id);
  }
  OPI_TRY(OPI_ASK("backend", backend, kernels_fit, t->err, device, fit, sizeof fit));
  fit[sizeof fit - 1] = '\0';
  t->fit = opi_arena_strdup(&t->plan->arena, fit);
  return t->fit == NULL ? opi_fail_nomem(t->err, sizeof fit, "kernels") : OPIPE_OK;
}

/* Measures the kernels of a compiled program that no earlier program had. */
static opipe_status visit(void *ctx, uint32_t rank, const opi_backend_ref *backend,
                          opipe_device *device, opipe_program *program, opipe_error *err) {
  tuner *t = ctx;
  opipe_kernel *kernels = NULL;
  uint32_t n = 0;
  t->err = err;
  if (strcmp(t->plan->decided.devices[rank].kind, t->how->kind) != 0)
    return OPIPE_OK;
  OPI_TRY(note_fit(t, backend, device));
  opi_arena_init(&t->scratch, t->env->allocator, 0);
  opipe_status status = opi_kernels_ask(backend, program, &t->scratch, &kernels, &n, err);
  for (uint32_t i = 0; status == OPIPE_OK && i < n; ++i) {
    if (!is_known(t, kernels[i].what))
      status = measure(t, backend, program, &kernels[i]);
  }
  opi_arena_release(&t->scratch);
  return status;
}

/* ---- the plan ---- */

/* Adds the table, replacing the one for devices like this one, if any. */
static opipe_status put_table(tuner *t) {
  const opi_kernels *before = t->plan->predicted.kernels;
  const uint32_t n_before = before == NULL ? 0 : before->n;
  opi_kernels *all = OPI_ARENA_NEW(&t->plan->arena, opi_kernels);
  opi_kernel_table *tables = OPI_ARENA_ARRAY(&t->plan->arena, opi_kernel_table, n_before + 1);
  const char *kind = opi_arena_strdup(&t->plan->arena, t->how->kind);
  if (all == NULL || tables == NULL || kind == NULL)
    return opi_fail_nomem(t->err, (n_before + 1) * sizeof *tables, "kernels");
  for (uint32_t i = 0; i < n_before; ++i) {
    const opi_kernel_table *table = &before->tables[i];
    if (strcmp(table->backend, kind) != 0 || strcmp(table->fit, t->fit) != 0)
      tables[all->n++] = *table;
  }
  tables[all->n++] =
      (opi_kernel_table){.backend = kind, .fit = t->fit, .kernels = t->found, .n = t->n};
  all->tables = tables;
  opi_kernels_hash(all);
  t->plan->predicted.kernels = all;
  return OPIPE_OK;
}

/* A view of the plan in which the measured device replaces all devices of its kind. */
static opipe_status view_on(const tuner *t, bool capped, opi_arena *arena, opi_plan *out_view) {
  const opi_plan *plan = t->plan;
  uint32_t n_found = 0;
  opi_device_spec *devices = OPI_ARENA_ARRAY(arena, opi_device_spec, plan->decided.n_ranks);
  if (devices == NULL)
    return opi_fail_nomem(t->err, plan->decided.n_ranks * sizeof *devices, "devices");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    devices[r] = plan->decided.devices[r];
    if (strcmp(devices[r].kind, t->how->kind) != 0)
      continue;
    ++n_found;
    devices[r].index = t->how->index;
    if (!capped)
      devices[r].memory_bytes = devices[r].memory_with = 0;
  }
  *out_view = *plan;
  out_view->decided.devices = devices;
  return n_found != 0 ? OPIPE_OK
                      : opi_fail(t->err, OPIPE_E_INVALID,
                                 "no rank of the plan is on a device of kind '%.60s', rank 0 is on "
                                 "'%.60s'",
                                 t->how->kind, plan->decided.devices[0].kind);
}

static opipe_status count_again(tuner *t, opi_arena *arena) {
  opi_plan view;
  opi_memory *memory = OPI_ARENA_ARRAY(arena, opi_memory, t->plan->decided.n_ranks);
  if (memory == NULL)
    return opi_fail_nomem(t->err, t->plan->decided.n_ranks * sizeof *memory, "a plan");
  OPI_TRY(view_on(t, true, arena, &view));
  OPI_TRY(opi_plan_count_memory(t->env, &view, NULL, memory, t->err));
  for (uint32_t r = 0; r < t->plan->decided.n_ranks; ++r)
    t->plan->predicted.memory[r] = memory[r];
  return OPIPE_OK;
}

/* Resolves a device named by its uuid to kind and index. */
static opipe_status settle_device(const opi_plan_env *env, opi_tuning *io_how, opipe_error *err) {
  opi_device_spec spec = {.kind = io_how->kind, .index = io_how->index};
  opi_device_facts facts;
  if (strchr(io_how->kind, ':') == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_device_look(env, &spec, &facts, err));
  io_how->kind = spec.kind;
  io_how->index = spec.index;
  return OPIPE_OK;
}

opipe_status opi_plan_tune(const opi_plan_env *env, opi_plan *plan, const opi_tuning *asked,
                           opipe_error *err) {
  opi_plan view;
  opi_arena arena;
  opi_tuning how = *asked;
  tuner t = {.env = env, .how = &how, .plan = plan, .err = err};
  const opi_program_visitor visitor = {visit, &t};
  OPI_TRY(settle_device(env, &how, err));
  opi_arena_init(&arena, env->allocator, 0);
  opipe_status status = view_on(&t, false, &arena, &view);
  if (status == OPIPE_OK) {
    view.predicted.kernels = NULL; /* candidates come from the library, not from an earlier table */
    status = opi_plan_count_memory(env, &view, &visitor, NULL, err);
  }
  t.err = err;
  if (status == OPIPE_OK && t.n == 0) {
    status = opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "no program of the plan has a kernel on '%.60s' to choose for", how.kind);
  }
  if (status == OPIPE_OK)
    status = put_table(&t);
  if (status == OPIPE_OK)
    status = count_again(&t, &arena);
  opi_arena_release(&arena);
  return status;
}
