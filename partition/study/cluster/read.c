/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a cluster file, version 1. Unknown members are refused by name. */
#include "partition/study/cluster/read.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/plan/env.h"
#include "partition/plan/flags.h"

enum { DEVICES_MOST = OPI_CLUSTER_DEVICES_MOST, FIELDS_MOST = 15 };

typedef opi_cluster_reader reader;

/* ---- optional members ---- */

opipe_status opi_cluster_get_count(const reader *r, const json_t *object, const char *name,
                                   uint64_t max, uint64_t preset, uint64_t *out) {
  *out = preset;
  return json_object_get(object, name) == NULL
             ? OPIPE_OK
             : opi_json_get_u64(object, r->what, name, max, out, r->err);
}

static opipe_status get_u32(const reader *r, const json_t *object, const char *name,
                            uint32_t *out) {
  uint64_t value = 0;
  OPI_TRY(opi_cluster_get_count(r, object, name, UINT32_MAX, 0, &value));
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

opipe_status opi_cluster_get_number(const reader *r, const json_t *object, const char *name,
                                    double least, double most, double preset, double *out) {
  *out = preset;
  if (json_object_get(object, name) == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_number(object, r->what, name, out, r->err));
  if (*out >= least && *out <= most)
    return OPIPE_OK;
  return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s\" is %g; it must be from %g to %g", r->what,
                  name, *out, least, most);
}

opipe_status opi_cluster_get_text(const reader *r, const json_t *object, const char *name,
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

opipe_status opi_cluster_check_fields(const reader *r, json_t *object, const char *const *fields) {
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

/* Makes room for n more devices. */
static bool make_room(reader *r, uint32_t n) {
  opi_cluster *c = r->out;
  const uint32_t need = c->n_devices + n;
  uint32_t room = r->room[0];
  return opi_arena_grow(r->arena, (void **)&c->devices, &r->room[0], need, sizeof *c->devices) &&
         opi_arena_grow(r->arena, (void **)&c->descriptions, &r->room[1], need,
                        sizeof *c->descriptions) &&
         opi_arena_grow(r->arena, (void **)&c->class_of, &r->room[2], need, sizeof *c->class_of) &&
         opi_arena_grow(r->arena, (void **)&c->node_of, &room, need, sizeof *c->node_of);
}

/* Appends `count` devices to the node being read. */
static opipe_status add_devices(reader *r, opipe_device_choice choice,
                                const opipe_device_description *d, uint32_t count, bool counts_on) {
  opi_cluster *c = r->out;
  const uint32_t n = c->n_devices + count;
  if (!make_room(r, count))
    return opi_fail_nomem(r->err, n * sizeof *d, "a cluster");
  for (; c->n_devices < n; ++c->n_devices) {
    c->devices[c->n_devices] = choice;
    c->descriptions[c->n_devices] = *d;
    c->class_of[c->n_devices] = c->n_classes - 1;
    c->node_of[c->n_devices] = c->n_nodes;
    choice.index += counts_on ? 1 : 0;
  }
  return OPIPE_OK;
}

static opipe_status read_class(reader *r, const json_t *object) {
  opi_cluster *c = r->out;
  if (!opi_arena_grow(r->arena, (void **)&c->classes, &r->room[3], c->n_classes + 1,
                      sizeof *c->classes))
    return opi_fail_nomem(r->err, sizeof *c->classes, "a cluster");
  opi_device_class *class = &c->classes[c->n_classes++];
  *class = (opi_device_class){.name = NULL};
  OPI_TRY(opi_cluster_get_text(r, object, "name", &class->name));
  OPI_TRY(opi_cluster_get_number(r, object, "host_bandwidth", 1, 1e30, 0, &class->host_bandwidth));
  return opi_cluster_read_rates(r, object, class);
}

static opipe_status read_device(reader *r, json_t *object) {
  static const char *const fields[FIELDS_MOST + 1] = {
      "name",         "kind",  "count",     "index",     "options",
      "memory_bytes", "flops", "bandwidth", "launch_ns", "threads",
      "alignment",    "flags", "domain",    "rates",     "host_bandwidth"};
  const opi_cluster *c = r->out;
  opipe_device_choice choice = {.kind = NULL};
  opipe_device_description d = {.alignment = 0};
  uint64_t count = 0, alignment = 0;
  OPI_TRY(opi_cluster_check_fields(r, object, fields));
  OPI_TRY(read_class(r, object));
  OPI_TRY(opi_cluster_get_text(r, object, "kind", &choice.kind));
  if (choice.kind == NULL || choice.kind[0] == '\0')
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"kind\" is missing", r->what);
  OPI_TRY(opi_cluster_get_text(r, object, "options", &choice.options));
  OPI_TRY(opi_cluster_get_count(r, object, "count", DEVICES_MOST, 1, &count));
  OPI_TRY(get_u32(r, object, "index", &choice.index));
  OPI_TRY(opi_cluster_get_count(r, object, "memory_bytes", INT64_MAX, 0, &choice.memory_bytes));
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
                    "%s: \"count\" is %" PRIu64 " after %u devices; there must be 1 to %d in all",
                    r->what, count, c->n_devices, DEVICES_MOST);
  }
  return add_devices(r, choice, &d, (uint32_t)count, json_object_get(object, "index") != NULL);
}

/* Reads the devices of one node; `where` is "" or "nodes[2]: ". */
static opipe_status read_devices(reader *r, const json_t *owner, const char *where) {
  const json_t *list = NULL;
  (void)snprintf(r->what, sizeof r->what, "%.120s%s%.40s", r->name, where[0] == '\0' ? "" : ": ",
                 where);
  OPI_TRY(opi_json_get_array(owner, r->what, "devices", &list, r->err));
  if (json_array_size(list) == 0)
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"devices\" is empty", r->what);
  for (size_t i = 0; i < json_array_size(list); ++i) {
    (void)snprintf(r->what, sizeof r->what, "%.110s: %.40s%sdevices[%zu]", r->name, where,
                   where[0] == '\0' ? "" : ": ", i);
    OPI_TRY(read_device(r, json_array_get(list, i)));
  }
  ++r->out->n_nodes;
  return OPIPE_OK;
}

/* ---- nodes ---- */

/* Number of domains of a node's devices, relative to its first. */
static uint64_t domains_of(const opi_cluster *c, uint32_t first, uint32_t n) {
  uint64_t domains = 0;
  for (uint32_t i = first; i < first + n; ++i) {
    if ((uint64_t)c->descriptions[i].domain + 1 > domains)
      domains = (uint64_t)c->descriptions[i].domain + 1;
  }
  return domains;
}

/* Repeats the node of devices [first, n_devices) until there are `count`. Copies share no memory
 * with each other. */
static opipe_status repeat_node(reader *r, uint32_t first, uint64_t count) {
  opi_cluster *c = r->out;
  const uint32_t n = c->n_devices - first;
  const uint64_t domains = domains_of(c, first, n);
  if (count == 0 || first + count * n > DEVICES_MOST) {
    return opi_fail(r->err, OPIPE_E_LIMIT,
                    "%s: %" PRIu64
                    " nodes of %u devices after %u; there must be 1 to %d devices in all",
                    r->what, count, n, first, DEVICES_MOST);
  }
  if (count > 1 && domains * count > UINT32_MAX) {
    return opi_fail(r->err, OPIPE_E_LIMIT,
                    "%s: \"domain\" goes up to %" PRIu64 ", %" PRIu64
                    " nodes need one each below "
                    "4294967296",
                    r->what, domains - 1, count);
  }
  if (!make_room(r, (uint32_t)(count - 1) * n))
    return opi_fail_nomem(r->err, count * n * sizeof *c->devices, "a cluster");
  for (uint64_t k = 1; k < count; ++k, ++c->n_nodes) {
    for (uint32_t i = 0; i < n; ++i, ++c->n_devices) {
      c->devices[c->n_devices] = c->devices[first + i];
      c->descriptions[c->n_devices] = c->descriptions[first + i];
      c->descriptions[c->n_devices].domain += (uint32_t)(k * domains);
      c->class_of[c->n_devices] = c->class_of[first + i];
      c->node_of[c->n_devices] = c->n_nodes;
    }
  }
  return OPIPE_OK;
}

/* Reads "nodes" whose entries have devices of their own. */
static opipe_status read_node_entries(reader *r, const json_t *list) {
  static const char *const fields[] = {"name", "count", "devices", NULL};
  if (json_array_size(list) == 0)
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"nodes\" is empty", r->what);
  for (size_t i = 0; i < json_array_size(list); ++i) {
    json_t *entry = json_array_get(list, i);
    const uint32_t first = r->out->n_devices;
    const char *name = NULL;
    uint64_t count = 0;
    char where[32];
    (void)snprintf(where, sizeof where, "nodes[%zu]", i);
    (void)snprintf(r->what, sizeof r->what, "%.120s: %.30s", r->name, where);
    OPI_TRY(opi_cluster_check_fields(r, entry, fields));
    OPI_TRY(opi_cluster_get_text(r, entry, "name", &name));
    OPI_TRY(opi_cluster_get_count(r, entry, "count", DEVICES_MOST, 1, &count));
    OPI_TRY(read_devices(r, entry, where));
    (void)snprintf(r->what, sizeof r->what, "%.120s: %.30s: \"count\"", r->name, where);
    OPI_TRY(repeat_node(r, first, count));
  }
  return OPIPE_OK;
}

static opipe_status read_nodes(reader *r, const json_t *root) {
  const json_t *nodes = json_object_get(root, "nodes");
  uint64_t count = 1;
  if (json_is_array(nodes)) {
    return json_object_get(root, "devices") == NULL
               ? read_node_entries(r, nodes)
               : opi_fail(r->err, OPIPE_E_INVALID,
                          "%s: it has both \"devices\" and \"nodes\" with devices of their own; "
                          "only one is allowed",
                          r->what);
  }
  OPI_TRY(opi_cluster_get_count(r, root, "nodes", DEVICES_MOST, 1, &count));
  OPI_TRY(read_devices(r, root, ""));
  (void)snprintf(r->what, sizeof r->what, "%.150s: \"nodes\"", r->name);
  return repeat_node(r, 0, count);
}

/* ---- the link ---- */

static opipe_status read_occupies(reader *r, const json_t *object) {
  const char *text = NULL;
  OPI_TRY(opi_cluster_get_text(r, object, "occupies", &text));
  if (text == NULL || strcmp(text, "link") == 0)
    return OPIPE_OK;
  r->out->occupies = OPI_OCCUPIES_RANK;
  return strcmp(text, "rank") == 0
             ? OPIPE_OK
             : opi_fail(r->err, OPIPE_E_INVALID,
                        "%s: \"occupies\" is '%.40s'; it must be link or rank", r->what, text);
}

static opipe_status read_link(reader *r, json_t *object) {
  static const char *const fields[] = {"transport",  "rule",      "flags",    "max_ranks",
                                       "latency_ns", "bandwidth", "occupies", NULL};
  opipe_link_description *l = &r->out->link;
  *l = (opipe_link_description){.struct_size = (uint32_t)sizeof *l,
                                .thread_rule = OPIPE_THREADS_PER_ENDPOINT};
  OPI_TRY(opi_cluster_check_fields(r, object, fields));
  OPI_TRY(opi_cluster_get_text(r, object, "transport", &r->out->transport));
  if (r->out->transport == NULL || r->out->transport[0] == '\0')
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"transport\" is missing", r->what);
  OPI_TRY(opi_json_get_rule(object, r->what, &l->rule, r->err));
  OPI_TRY(get_flags(r, object, OPI_FLAGS_LINK, &l->flags));
  OPI_TRY(get_u32(r, object, "max_ranks", &l->max_ranks));
  OPI_TRY(get_number(r, object, "latency_ns", &l->latency_ns));
  OPI_TRY(get_number(r, object, "bandwidth", &l->bandwidth));
  OPI_TRY(read_occupies(r, object));
  return opi_link_describe(l, r->what, NULL, r->err);
}

static opipe_status read_links(reader *r, const json_t *root) {
  const json_t *list = NULL;
  if (json_object_get(root, "links") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(root, r->name, "links", &list, r->err));
  if (json_array_size(list) != 1) {
    return opi_fail(
        r->err, OPIPE_E_INVALID,
        "%s: \"links\" has %zu entries; it must have one, for all devices (\"tiers\" say how "
        "far and how fast)",
        r->name, json_array_size(list));
  }
  (void)snprintf(r->what, sizeof r->what, "%.150s: links[0]", r->name);
  return read_link(r, json_array_get(list, 0));
}

static opipe_status read_root(reader *r, json_t *root) {
  static const char *const fields[] = {"format",  "name",  "summary", "nodes",
                                       "devices", "links", "tiers",   NULL};
  const char *format = NULL, *summary = NULL;
  (void)snprintf(r->what, sizeof r->what, "%.150s", r->name);
  OPI_TRY(opi_json_get_string(root, r->name, "format", &format, r->err));
  if (strcmp(format, OPI_CLUSTER_FORMAT) != 0) {
    return opi_fail(r->err, OPIPE_E_UNSUPPORTED,
                    "%s: \"format\" is '%.40s', this build reads '" OPI_CLUSTER_FORMAT "'", r->name,
                    format);
  }
  OPI_TRY(opi_cluster_check_fields(r, root, fields));
  OPI_TRY(opi_cluster_get_text(r, root, "name", &r->out->name));
  OPI_TRY(opi_cluster_get_text(r, root, "summary", &summary));
  OPI_TRY(read_nodes(r, root));
  OPI_TRY(read_links(r, root));
  return opi_cluster_read_tiers(r, root);
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
