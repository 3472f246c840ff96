/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: allocator, logger, plugins, budgets, the constant folder. */
#define _GNU_SOURCE 1
#include <string.h>

#include "abi/api/api.h"
#include "abi/api/plugins.h"
#include "loader/base/cores.h"
#include "loader/base/fp.h"

/* ---- the host's services, called in the host's own floating-point environment ---- */

static void *host_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  const opi_context_object *c = ctx;
  const opipe_allocator host = c->host_allocator;
  opi_fp_border *lent = opi_fp_lend();
  void *fresh = host.realloc(host.ctx, ptr, old_size, new_size, align); /* may end the context */
  opi_fp_take(lent);
  return fresh;
}

static void host_log(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  const opi_context_object *c = ctx;
  opi_fp_border *lent = opi_fp_lend();
  c->host_log(c->host_log_ctx, level, file, line, msg);
  opi_fp_take(lent);
}

void opi_host_call(void (*call)(void *ctx), void *ctx) {
  opi_fp_border *lent = opi_fp_lend();
  call(ctx);
  opi_fp_take(lent);
}

opipe_status opi_context_evaluator(opi_context_object *context, const opi_evaluator **out_evaluator,
                                   opipe_error *err) {
  opi_backend_ref cpu;
  opipe_status status = OPIPE_OK;
  (void)pthread_mutex_lock(&context->lock);
  if (context->evaluator == NULL) {
    status = context->plugins.backend(context->plugins.ctx, "cpu", &cpu, err);
    if (status == OPIPE_OK) {
      status = opi_evaluator_create(&context->allocator, cpu.id, cpu.table, cpu.self,
                                    &context->evaluator, err);
    }
    if (status < 0)
      (void)opi_error_prefix(err, "constants are folded by backend 'cpu': ");
  }
  (void)pthread_mutex_unlock(&context->lock);
  if (status == OPIPE_OK)
    *out_evaluator = context->evaluator;
  return status;
}

/* Memory that backends take of each other's devices comes from the same budgets as that of ranks.
 */
static opipe_status count_lent(void *ctx, const char *id, uint32_t index, int64_t threads,
                               int64_t n_bytes, opipe_error *err) {
  const opi_context_object *c = ctx;
  if (n_bytes < 0)
    opi_budget_release(c->budget, id, index, (uint64_t)-n_bytes);
  if (n_bytes > 0) {
    OPI_TRY(opi_budget_charge(c->budget, id, index, (uint64_t)n_bytes,
                              "memory for nodes that another backend's device lacks", err));
  }
  const opipe_status status =
      threads == 0 ? OPIPE_OK : opi_budget_threads(c->budget, id, index, threads, err);
  if (status < 0 && n_bytes > 0)
    opi_budget_release(c->budget, id, index, (uint64_t)n_bytes);
  return status;
}

/* ---- life ---- */

/* Refuses a second cap for one device, since one of the two would be ignored. */
static opipe_status add_budget(opi_context_object *c, const opipe_context_params *params,
                               uint32_t index, opipe_error *err) {
  opipe_device_budget budget, other;
  opi_array_get(params->budgets, params->budgets_stride, index, &budget, sizeof budget);
  for (uint32_t i = 0; i < index; ++i) {
    opi_array_get(params->budgets, params->budgets_stride, i, &other, sizeof other);
    if (other.index != budget.index || strcmp(other.kind, budget.kind) != 0)
      continue;
    return opi_fail(err, OPIPE_E_INVALID,
                    "context_create: opipe_context_params.budgets[%u] and [%u] are both for device "
                    "%s:%u (%llu and %llu bytes)",
                    i, index, budget.kind, budget.index, (unsigned long long)other.memory_bytes,
                    (unsigned long long)budget.memory_bytes);
  }
  return opi_budget_cap(c->budget, budget.kind, budget.index, budget.memory_bytes, err);
}

static opipe_status make_parts(opi_context_object *c, const opipe_context_params *params,
                               opipe_error *err) {
  const opi_registry_params registry = {
      .allocator = &c->allocator,
      .logger = &c->logger,
      .paths = params->plugin_paths,
      .n_paths = params->n_plugin_paths,
      .only_static = (params->flags & OPIPE_CONTEXT_ONLY_STATIC) != 0,
      .count = count_lent,
      .count_ctx = c};
  OPI_TRY(opi_budget_create(&c->allocator, &c->budget, err));
  for (uint32_t i = 0; i < params->n_budgets; ++i)
    OPI_TRY(add_budget(c, params, i, err));
  OPI_TRY(opi_registry_create(&registry, &c->registry, err));
  c->plugins = opi_registry_plugins(c->registry);
  return OPIPE_OK;
}

static opipe_status make_context(const opipe_context_params *own, opi_context_object **out_context,
                                 opipe_error *err) {
  const opipe_allocator *allocator =
      own->allocator == NULL ? opi_allocator_system() : own->allocator;
  opi_context_object draft = {.host_allocator = *allocator};
  const opipe_allocator first = {&draft, host_realloc};
  opi_context_object *c = opi_alloc_zero(&first, 1, sizeof(*c));
  if (c == NULL)
    return opi_fail_nomem(err, sizeof(*c), "a context");
  atomic_init(&c->refs, 1);
  c->host_allocator = *allocator;
  c->allocator = own->allocator == NULL ? *allocator : (opipe_allocator){c, host_realloc};
  c->host_log_ctx = own->log_ctx;
  c->host_log = own->log;
  c->logger = (opi_logger){
      .ctx = c, .log = own->log == NULL ? opi_log_to_stderr : host_log, .level = own->log_level};
  c->cores = own->cores == 0 ? opi_cores("") : own->cores;
  if (pthread_mutex_init(&c->lock, NULL) != 0) {
    opi_free(&first, c, sizeof(*c));
    return opi_fail_nomem(err, sizeof(pthread_mutex_t), "a lock");
  }
  *out_context = c;
  return OPIPE_OK;
}

opipe_status opi_api_context_create(const opipe_context_params *params, opipe_context **out_context,
                                    opipe_error *err) {
  opipe_context_params own = {.struct_size = (uint32_t)sizeof own, .log_level = OPIPE_LOG_WARN};
  opi_context_object *c = NULL;
  if (out_context == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "context_create: out_context is NULL");
  OPI_TRY(opi_params_read(&opi_struct_context_params, "context_create", params, &own, err));
  OPI_TRY(make_context(&own, &c, err));
  const opipe_status status = make_parts(c, &own, err);
  if (status < 0) {
    opi_context_unref(c);
    return status;
  }
  OPI_TRY(opi_handle_new(OPI_HANDLE_CONTEXT, c, opi_context_unref, 0, &c->handle, err));
  *out_context = opi_handle_pointer(c->handle);
  return OPIPE_OK;
}

void opi_context_unref(void *context) {
  opi_context_object *c = context;
  if (c == NULL || !opi_unref(&c->refs))
    return; /* the last model or session ends it */
  const opipe_allocator allocator = c->allocator;
  opi_evaluator_free(c->evaluator);
  opi_registry_free(c->registry);
  opi_budget_free(c->budget);
  (void)pthread_mutex_destroy(&c->lock);
  opi_free(&allocator, c, sizeof(*c));
}

opipe_status opi_api_context_register_static(opi_context_object *c, const opipe_plugin *plugin,
                                             opipe_error *err) {
  return opi_registry_add_static(c->registry, plugin, err);
}

opipe_status opi_api_context_plugins(opi_context_object *c, uint32_t format, opipe_write_fn write,
                                     void *ctx, opipe_error *err) {
  OPI_TRY(opi_choice_check("context_plugins", "format", format, OPIPE_FORMAT_JSON, err));
  return opi_registry_describe(c->registry, format, write, ctx, err);
}
