/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of descriptors and tables. Messages name both versions and which side to change. */
#include <string.h>

#include "abi/registry/registry.h"

const char *opi_kind_name(uint32_t kind) {
  static const char *const names[] = {"unknown", "backend", "schedule", "transport"};
  return kind < OPI_COUNT(names) ? names[kind] : names[0];
}

static bool id_ok(const char *id) {
  size_t n = 0;
  for (; id[n] != '\0'; ++n) {
    const char c = id[n];
    const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '_' || c == '.';
    if (!ok || n >= 63)
      return false;
  }
  return n != 0;
}

/* Names of the library's own: a plugin of such a name would never be asked. */
static bool is_reserved(const opipe_plugin *p) {
  static const char *const schedules[] = {"search", "gems", "pipedream", "file"};
  uint32_t i = 0;
  while (i < OPI_COUNT(schedules) && strcmp(p->id, schedules[i]) != 0)
    ++i;
  return p->kind == OPIPE_KIND_SCHEDULE && i < OPI_COUNT(schedules);
}

static const char *build_name(uint32_t flags) {
  if (flags == OPIPE_BUILD_ASAN)
    return "AddressSanitizer";
  if (flags == OPIPE_BUILD_TSAN)
    return "ThreadSanitizer";
  return flags == 0 ? "no sanitizer" : "another sanitizer";
}

static opipe_status check_texts(const opipe_plugin *p, opipe_error *err) {
  if (p->id == NULL || p->version == NULL || p->license == NULL || p->summary == NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "its descriptor lacks %s",
                    p->id == NULL        ? "an id"
                    : p->version == NULL ? "a version"
                    : p->license == NULL ? "a licence"
                                         : "a summary");
  }
  if (!id_ok(p->id)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "its id '%.64s' is not 1 to 63 letters, digits, '-', '_', '.'", p->id);
  }
  if (is_reserved(p)) {
    return opi_fail(err, OPIPE_E_INVALID, "its id '%s' is taken by a schedule of the library",
                    p->id);
  }
  if (p->open == NULL || p->close == NULL || p->get_interface == NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "its descriptor has no %s function",
                    p->open == NULL    ? "open"
                    : p->close == NULL ? "close"
                                       : "get_interface");
  }
  return OPIPE_OK;
}

#define OWN_STRUCTS(kind) \
  { .rows = opipe_rows_of_##kind, .n = OPI_COUNT(opipe_rows_of_##kind) }
static const opi_struct_view structs_of[] = {
    [OPIPE_KIND_BACKEND] = OWN_STRUCTS(OPIPE_KIND_BACKEND),
    [OPIPE_KIND_SCHEDULE] = OWN_STRUCTS(OPIPE_KIND_SCHEDULE),
    [OPIPE_KIND_TRANSPORT] = OWN_STRUCTS(OPIPE_KIND_TRANSPORT),
};

opipe_status opi_descriptor_check(const opipe_plugin *p, opipe_error *err) {
  const uint32_t least = (uint32_t)OPIPE_END(opipe_plugin, get_interface);
  if (p->magic != OPIPE_PLUGIN_MAGIC) {
    return opi_fail(err, OPIPE_E_ABI,
                    "its descriptor has magic 0x%08x, an onnx-pipe plugin has 0x%08x", p->magic,
                    OPIPE_PLUGIN_MAGIC);
  }
  if (OPIPE_HAS(p, opipe_plugin, abi_major) && p->abi_major != OPIPE_ABI_MAJOR) {
    return opi_fail(err, OPIPE_E_ABI,
                    "it is built for ABI major %u, this library has %u: rebuild the plugin",
                    p->abi_major, OPIPE_ABI_MAJOR);
  }
  if (p->struct_size < least) {
    return opi_fail(err, OPIPE_E_ABI,
                    "its descriptor has %u bytes, ABI 1.0 has %u: rebuild the plugin",
                    p->struct_size, least);
  }
  if (p->abi_minor_min > OPIPE_ABI_MINOR) {
    return opi_fail(err, OPIPE_E_ABI,
                    "it needs ABI %u.%u, this library has %u.%u: use a newer onnx-pipe, or a "
                    "plugin built for %u.%u",
                    p->abi_major, p->abi_minor_min, OPIPE_ABI_MAJOR, OPIPE_ABI_MINOR,
                    OPIPE_ABI_MAJOR, OPIPE_ABI_MINOR);
  }
  if (p->build_flags != OPIPE_BUILD_FLAGS) {
    return opi_fail(err, OPIPE_E_ABI, "it is built with %s, this library with %s",
                    build_name(p->build_flags), build_name(OPIPE_BUILD_FLAGS));
  }
  if (p->kind < OPIPE_KIND_BACKEND || p->kind > OPIPE_KIND_TRANSPORT) {
    return opi_fail(err, OPIPE_E_ABI, "its kind %u is unknown (1 backend, 2 schedule, 3 transport)",
                    p->kind);
  }
  const opi_struct_view theirs = {"it", p->structs, p->n_structs, p->struct_row_bytes,
                                  p->abi_minor};
  OPI_TRY(opi_struct_views_check(&theirs, &structs_of[p->kind], err));
  return check_texts(p, err);
}

/* ---- tables ---- */

enum { TOGETHER_MOST = 8 };

/* Every slot after the head {struct_size, reserved} is a function pointer. Optional slots are
 * listed in `together`, [from, to), all of them or none, or lie beyond `least`, the bytes that
 * every table has; missing ones are NULL in the copy. */
typedef struct table_rule {
  const char *id;
  size_t n_bytes; /* today's */
  size_t least;
  struct {
    size_t from, to;
  } together[TOGETHER_MOST];
} table_rule;

static const table_rule rules[] = {
    [OPIPE_KIND_BACKEND] =
        {OPIPE_BACKEND_ID,
         OPIPE_END(opipe_backend, event_open),
         OPIPE_END(opipe_backend, run),
         {{offsetof(opipe_backend, params_create_owned), OPIPE_END(opipe_backend, update)},
          {offsetof(opipe_backend, host_alloc), OPIPE_END(opipe_backend, host_free)},
          {offsetof(opipe_backend, host_register), OPIPE_END(opipe_backend, host_unregister)},
          {offsetof(opipe_backend, update_many), OPIPE_END(opipe_backend, sum_squares_many)},
          {offsetof(opipe_backend, kernels_fit), OPIPE_END(opipe_backend, kernel_tune)},
          {offsetof(opipe_backend, event_create_timed), OPIPE_END(opipe_backend, event_elapsed)},
          {offsetof(opipe_backend, program_places), OPIPE_END(opipe_backend, run_part)},
          {offsetof(opipe_backend, buffer_share), OPIPE_END(opipe_backend, event_open)}}},
    [OPIPE_KIND_SCHEDULE] = {OPIPE_SCHEDULE_ID,
                             OPIPE_END(opipe_schedule, plan),
                             OPIPE_END(opipe_schedule, plan),
                             {{0, 0}}},
    [OPIPE_KIND_TRANSPORT] =
        {OPIPE_TRANSPORT_ID,
         OPIPE_END(opipe_transport, stream_way),
         OPIPE_END(opipe_transport, abort),
         {{offsetof(opipe_transport, group_open), OPIPE_END(opipe_transport, group_test)},
          {offsetof(opipe_transport, batch_begin), OPIPE_END(opipe_transport, batch_end)},
          {offsetof(opipe_transport, memory_alloc), OPIPE_END(opipe_transport, memory_free)},
          {offsetof(opipe_transport, collective_open), OPIPE_END(opipe_transport, collect_test)},
          {offsetof(opipe_transport, way), OPIPE_END(opipe_transport, stream_way)}}},
};

size_t opi_table_room(uint32_t kind) {
  return rules[kind].n_bytes;
}
const char *opi_table_id(uint32_t kind) {
  return rules[kind].id;
}

static void *slot_at(const void *table, size_t at) {
  void *slot = NULL;
  memcpy(&slot, (const char *)table + at, sizeof slot);
  return slot;
}

static bool is_together(const table_rule *rule, size_t at) {
  for (uint32_t i = 0; i < TOGETHER_MOST; ++i) {
    if (at >= rule->together[i].from && at < rule->together[i].to)
      return true;
  }
  return false;
}

/* Optional slots that belong together: all of them or none. */
static opipe_status check_together(const table_rule *rule, uint32_t index, const void *table,
                                   opipe_error *err) {
  size_t n = 0, missing = 0; /* offset of one that is NULL */
  for (size_t at = rule->together[index].from; at < rule->together[index].to;
       at += sizeof(void *)) {
    n += slot_at(table, at) != NULL;
    if (slot_at(table, at) == NULL)
      missing = at;
  }
  if (n == 0 || missing == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_ABI,
                  "slot %zu of its interface '%s' is NULL, but others that belong with it are not",
                  (missing - 8) / sizeof(void *), rule->id);
}

opipe_status opi_table_copy(uint32_t kind, const void *table, void *out_table, opipe_error *err) {
  const table_rule *rule = &rules[kind];
  uint32_t size = 0;
  if (table == NULL)
    return opi_fail(err, OPIPE_E_ABI, "it has no interface '%s'", rule->id);
  memcpy(&size, table, sizeof(size));
  if (size < rule->least) {
    return opi_fail(err, OPIPE_E_ABI, "its interface '%s' has %u bytes, it needs %zu", rule->id,
                    size, rule->least);
  }
  const uint32_t known = size < rule->n_bytes ? size & ~(uint32_t)7 : (uint32_t)rule->n_bytes;
  memset(out_table, 0, rule->n_bytes);
  memcpy(out_table, table, known);
  memcpy(out_table, &known, sizeof(known)); /* users of the copy must not look beyond its end */
  for (size_t at = 8; at < rule->least; at += sizeof(void *)) {
    if (slot_at(out_table, at) == NULL && !is_together(rule, at)) {
      return opi_fail(err, OPIPE_E_ABI, "slot %zu of its interface '%s' is NULL",
                      (at - 8) / sizeof(void *), rule->id);
    }
  }
  for (uint32_t i = 0; i < TOGETHER_MOST; ++i)
    OPI_TRY(check_together(rule, i, out_table, err));
  return OPIPE_OK;
}
