/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins by kind and id: partition knows typed tables and no registry, the registry knows neither
 * plans nor types. */
#include "abi/api/plugins.h"

#include "partition/schedule/order_search.h"

static opipe_status find_backend(void *ctx, const char *id, opi_backend_ref *out_ref,
                                 opipe_error *err) {
  opi_plugin_ref ref;
  OPI_TRY(opi_registry_find(ctx, OPIPE_KIND_BACKEND, id, &ref, err));
  *out_ref = (opi_backend_ref){.table = ref.table, .self = ref.self, .id = ref.id};
  return OPIPE_OK;
}

/* Names that the library has itself, asked for where only plugins' schedules can be. Other names:
 * the error that there is stays. */
static opipe_status say_what_is_own(const char *id, opipe_status found, opipe_error *err) {
  if (found != OPIPE_E_NOTFOUND)
    return found;
  if (opi_is_baseline(id)) {
    return opi_fail(err, found,
                    "schedule '%s' is there to be compared with, as 'schedule simulate %s' "
                    "(order_make) does: no plan and no strategy is played by it",
                    id, id);
  }
  if (opi_is_search(id)) {
    return opi_fail(err, found,
                    "schedule '%s' betters the order of given stages, in a plan that no planner "
                    "makes or with 'schedule simulate %s' (order_make): planners choose among the "
                    "others",
                    id, id);
  }
  return found;
}

static opipe_status find_schedule(void *ctx, const char *id, opi_schedule_ref *out_ref,
                                  opipe_error *err) {
  opi_plugin_ref ref;
  OPI_TRY(say_what_is_own(id, opi_registry_find(ctx, OPIPE_KIND_SCHEDULE, id, &ref, err), err));
  const opipe_schedule_cells *cells = ref.plugin->get_interface(ref.self, OPIPE_SCHEDULE_CELLS_ID);
  const bool whole = cells != NULL &&
                     cells->struct_size >= OPIPE_END(opipe_schedule_cells, cells) &&
                     cells->cells != NULL;
  *out_ref = (opi_schedule_ref){
      .table = ref.table, .cells = whole ? cells : NULL, .self = ref.self, .id = ref.id};
  return OPIPE_OK;
}

static opipe_status find_transport(void *ctx, const char *id, opi_transport_ref *out_ref,
                                   opipe_error *err) {
  opi_plugin_ref ref;
  OPI_TRY(opi_registry_find(ctx, OPIPE_KIND_TRANSPORT, id, &ref, err));
  *out_ref = (opi_transport_ref){.table = ref.table, .self = ref.self, .id = ref.id};
  return OPIPE_OK;
}

/* ---- all schedules ---- */

typedef struct schedules {
  opi_arena *arena;
  const char **ids; /* [n] */
  uint32_t n, room;
} schedules;

static opipe_status add_schedule(void *ctx, const opipe_plugin *plugin, const opi_plugin_ref *ref,
                                 opipe_error *err) {
  schedules *all = ctx;
  (void)plugin;
  if (!opi_arena_grow(all->arena, (void **)&all->ids, &all->room, all->n + 1, sizeof *all->ids))
    return opi_fail_nomem(err, all->n * sizeof *all->ids, "schedules");
  all->ids[all->n++] = ref->id;
  return OPIPE_OK;
}

static opipe_status list_schedules(void *ctx, opi_arena *arena, const char *const **out_ids,
                                   uint32_t *out_n, opipe_error *err) {
  schedules all = {.arena = arena};
  OPI_TRY(opi_registry_each(ctx, OPIPE_KIND_SCHEDULE, add_schedule, &all, err));
  *out_ids = all.ids;
  *out_n = all.n;
  return OPIPE_OK;
}

opi_plugins opi_registry_plugins(opi_registry *registry) {
  return (opi_plugins){.ctx = registry,
                       .backend = find_backend,
                       .schedule = find_schedule,
                       .transport = find_transport,
                       .schedules = list_schedules};
}
