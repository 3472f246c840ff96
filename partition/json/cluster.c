/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a cluster file, version 1. What it does not know it refuses by name. */
#include "partition/json/cluster.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/json/devices.h"
#include "partition/make.h"

enum { DEVICES_MOST = 4096, FIELDS_MOST = 13, WHAT_ROOM = 200 };

typedef struct reader {
  const char *name;
  opi_arena *arena;
  opi_cluster *out;
  char what[WHAT_ROOM]; /* "FILE: devices[3]" */
  opipe_error *err;
} reader;

/* ---- members that may be missing ---- */

static opipe_status get_count(const reader *r, const json_t *object, const char *name, uint64_t max,
                              uint64_t preset, uint64_t *out) {
  *out = preset;
  return json_object_get(object, name) == NULL
             ? OPIPE_OK
             : opi_json_get_u64(object, r->what, name, max, out, r->err);
}

static opipe_status get_u32(const reader *r, const json_t *object, const char *name,
                            uint32_t *out) {
  uint64_t value = 0;
  OPI_TRY(get_count(r, object, name, UINT32_MAX, 0, &value));
  *out = (uint32_t)value;
  return OPIPE_OK;
}

static opipe_status get_number(const reader *r, const json_t *object, const char *name,
                               double *out) {
  *out = 0;
  return json_object_get(object, name) == NULL
             ? OPIPE_OK
             : opi_json_get_number(object, r->what, name, out, r->err);
}

static opipe_status get_text(const reader *r, const json_t *object, const char *name,
                             const char **out) {
  const char *text = NULL;
  *out = NULL;
  if (json_object_get(object, name) == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_string(object, r->what, name, &text, r->err));
  *out = opi_arena_strdup(r->arena, text);
  return *out == NULL ? opi_fail_nomem(r->err, strlen(text), "a cluster") : OPIPE_OK;
}

static opipe_status get_flags(const reader *r, const json_t *object, uint32_t which,
                              uint32_t *out) {
  *out = 0;
  return json_object_get(object, "flags") == NULL
             ? OPIPE_OK
             : opi_json_get_flags(object, r->what, which, out, r->err);
}

/* Every member is one of `fields` (ended by NULL). */
static opipe_status check_fields(const reader *r, json_t *object, const char *const *fields) {
  const char *key = NULL;
  json_t *value = NULL;
  if (!json_is_object(object))
    return opi_fail(r->err, OPIPE_E_INVALID, "%s must be an object", r->what);
  json_object_foreach(object, key, value) {
    uint32_t i = 0;
    while (fields[i] != NULL && strcmp(fields[i], key) != 0)
      ++i;
    if (fields[i] != NULL)
      continue;
    opi_text known;
    opi_text_init(&known, r->arena->allocator);
    for (i = 0; fields[i] != NULL; ++i)
      opi_text_printf(&known, "%s%s", i == 0 ? "" : ", ", fields[i]);
    (void)opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%.60s\" is no field of it; these are: %s",
                   r->what, key, known.data == NULL ? "" : known.data);
    opi_text_release(&known);
    return OPIPE_E_INVALID;
  }
  return OPIPE_OK;
}

/* ---- devices ---- */

static opipe_status read_device(reader *r, json_t *object, uint32_t *io_room) {
  static const char *const fields[FIELDS_MOST + 1] = {
      "name",      "kind",      "count",   "index",     "options", "memory_bytes", "flops",
      "bandwidth", "launch_ns", "threads", "alignment", "flags",   "domain"};
  opi_cluster *c = r->out;
  opipe_device_choice choice = {.kind = NULL};
  opipe_device_description d = {.alignment = 0};
  uint64_t count = 0, alignment = 0;
  const char *name = NULL;
  OPI_TRY(check_fields(r, object, fields));
  OPI_TRY(get_text(r, object, "name", &name));
  OPI_TRY(get_text(r, object, "kind", &choice.kind));
  if (choice.kind == NULL || choice.kind[0] == '\0')
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"kind\" is missing", r->what);
  OPI_TRY(get_text(r, object, "options", &choice.options));
  OPI_TRY(get_count(r, object, "count", DEVICES_MOST, 1, &count));
  OPI_TRY(get_u32(r, object, "index", &choice.index));
  OPI_TRY(get_count(r, object, "memory_bytes", INT64_MAX, 0, &choice.memory_bytes));
  OPI_TRY(get_number(r, object, "flops", &d.flops));
  OPI_TRY(get_number(r, object, "bandwidth", &d.bandwidth));
  OPI_TRY(get_number(r, object, "launch_ns", &d.launch_ns));
  OPI_TRY(get_u32(r, object, "threads", &choice.threads));
  OPI_TRY(opi_json_get_u64(object, r->what, "alignment", UINT32_MAX, &alignment, r->err));
  OPI_TRY(get_flags(r, object, OPI_FLAGS_DEVICE, &d.flags));
  OPI_TRY(get_u32(r, object, "domain", &d.domain));
  d.alignment = (uint32_t)alignment;
  d.memory_bytes = choice.memory_bytes;
  d.max_threads = choice.threads;
  OPI_TRY(opi_device_describe(&d, r->what, NULL, NULL, r->err));
  if (count == 0 || c->n_devices + count > DEVICES_MOST) {
    return opi_fail(r->err, OPIPE_E_LIMIT,
                    "%s: \"count\" is %" PRIu64 " behind %u devices; 1 to %d in all can be",
                    r->what, count, c->n_devices, DEVICES_MOST);
  }
  const bool counts_on = json_object_get(object, "index") != NULL;
  const uint32_t n = c->n_devices + (uint32_t)count;
  if (!opi_arena_grow(r->arena, (void **)&c->devices, &io_room[0], n, sizeof *c->devices) ||
      !opi_arena_grow(r->arena, (void **)&c->descriptions, &io_room[1], n, sizeof *c->descriptions))
    return opi_fail_nomem(r->err, n * sizeof d, "a cluster");
  for (; c->n_devices < n; ++c->n_devices) {
    c->devices[c->n_devices] = choice;
    c->descriptions[c->n_devices] = d;
    choice.index += counts_on ? 1 : 0;
  }
  return OPIPE_OK;
}

static opipe_status read_devices(reader *r, const json_t *root) {
  const json_t *list = NULL;
  uint32_t room[2] = {0, 0};
  OPI_TRY(opi_json_get_array(root, r->name, "devices", &list, r->err));
  if (json_array_size(list) == 0)
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"devices\" is empty", r->name);
  for (size_t i = 0; i < json_array_size(list); ++i) {
    (void)snprintf(r->what, sizeof r->what, "%.150s: devices[%zu]", r->name, i);
    OPI_TRY(read_device(r, json_array_get(list, i), room));
  }
  return OPIPE_OK;
}

/* ---- the link ---- */

static opipe_status read_link(reader *r, json_t *object) {
  static const char *const fields[] = {"transport",  "rule",      "flags", "max_ranks",
                                       "latency_ns", "bandwidth", NULL};
  opipe_link_description *l = &r->out->link;
  *l = (opipe_link_description){.struct_size = (uint32_t)sizeof *l,
                                .thread_rule = OPIPE_THREADS_PER_ENDPOINT};
  OPI_TRY(check_fields(r, object, fields));
  OPI_TRY(get_text(r, object, "transport", &r->out->transport));
  if (r->out->transport == NULL || r->out->transport[0] == '\0')
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"transport\" is missing", r->what);
  OPI_TRY(opi_json_get_rule(object, r->what, &l->rule, r->err));
  OPI_TRY(get_flags(r, object, OPI_FLAGS_LINK, &l->flags));
  OPI_TRY(get_u32(r, object, "max_ranks", &l->max_ranks));
  OPI_TRY(get_number(r, object, "latency_ns", &l->latency_ns));
  OPI_TRY(get_number(r, object, "bandwidth", &l->bandwidth));
  return opi_link_describe(l, r->what, NULL, r->err);
}

static opipe_status read_links(reader *r, const json_t *root) {
  const json_t *list = NULL;
  if (json_object_get(root, "links") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(root, r->name, "links", &list, r->err));
  if (json_array_size(list) != 1) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "%s: \"links\" has %zu entries; one joins all devices in version 1", r->name,
                    json_array_size(list));
  }
  (void)snprintf(r->what, sizeof r->what, "%.150s: links[0]", r->name);
  return read_link(r, json_array_get(list, 0));
}

static opipe_status read_root(reader *r, json_t *root) {
  static const char *const fields[] = {"format", "devices", "links", NULL};
  const char *format = NULL;
  (void)snprintf(r->what, sizeof r->what, "%.150s", r->name);
  OPI_TRY(opi_json_get_string(root, r->name, "format", &format, r->err));
  if (strcmp(format, OPI_CLUSTER_FORMAT) != 0) {
    return opi_fail(r->err, OPIPE_E_UNSUPPORTED,
                    "%s: \"format\" is '%.40s', this build reads '" OPI_CLUSTER_FORMAT "'", r->name,
                    format);
  }
  OPI_TRY(check_fields(r, root, fields));
  OPI_TRY(read_devices(r, root));
  return read_links(r, root);
}

opipe_status opi_cluster_read(const char *name, const void *json, uint64_t n_bytes,
                              opi_arena *arena, opi_cluster *out_cluster, opipe_error *err) {
  reader r = {.name = name, .arena = arena, .out = out_cluster, .err = err};
  json_t *root = NULL;
  *out_cluster = (opi_cluster){.devices = NULL};
  OPI_TRY(opi_json_parse(json, n_bytes, name, &root, err));
  const opipe_status status = read_root(&r, root);
  json_decref(root);
  return status;
}
