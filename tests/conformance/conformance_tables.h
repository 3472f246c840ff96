/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a descriptor and of a kind's table that the library makes before it calls anything, and
 * a few more. A message for each thing.
 */
#ifndef CONFORMANCE_TABLES_H
#define CONFORMANCE_TABLES_H

#include <opipe/backend.h>
#include <opipe/schedule.h>
#include <opipe/transport.h>
#include <string.h>

#include "conformance.h"

/* ---- descriptors ---- */

enum { TABLES_ROWS_MOST = 4096, TABLES_TEXT_MOST = 255, TABLES_ID_MOST = 63 };

typedef struct tables_rows {
  const opipe_struct_row *rows;
  uint32_t n;
} tables_rows;

#define TABLES_ROWS(kind) \
  { opipe_rows_of_##kind, (uint32_t)(sizeof opipe_rows_of_##kind / sizeof(opipe_struct_row)) }

static void check_row(const opipe_plugin *p, const opipe_struct_row *own) {
  const opipe_struct_row *row = NULL;
  for (uint32_t i = 0; i < p->n_structs && row == NULL; ++i) {
    if (p->structs[i].name != NULL && strcmp(p->structs[i].name, own->name) == 0)
      row = &p->structs[i];
  }
  conf_check(row != NULL || own->minor > p->abi_minor, "its list of structs lacks %s", own->name);
  conf_check(row == NULL || (row->n_bytes == own->n_bytes && row->hash == own->hash),
             "its struct %s has another layout than that of the headers", own->name);
}

static void check_rows(const opipe_plugin *p) {
  static const tables_rows own[] = {{NULL, 0},
                                    TABLES_ROWS(OPIPE_KIND_BACKEND),
                                    TABLES_ROWS(OPIPE_KIND_SCHEDULE),
                                    TABLES_ROWS(OPIPE_KIND_TRANSPORT)};
  if (!conf_check(p->structs != NULL && p->n_structs != 0 && p->n_structs <= TABLES_ROWS_MOST &&
                      p->struct_row_bytes == sizeof(opipe_struct_row),
                  "%u layout fingerprints of %u bytes%s", p->n_structs, p->struct_row_bytes,
                  p->structs == NULL ? ", at NULL" : ""))
    return;
  for (uint32_t i = 0; i < own[p->kind].n; ++i)
    check_row(p, &own[p->kind].rows[i]);
}

/* A text of one line. */
static void check_text(const char *text, const char *what) {
  if (!conf_check(text != NULL, "its %s is NULL", what))
    return;
  const size_t n = strnlen(text, TABLES_TEXT_MOST + 1);
  bool plain = n != 0;
  for (size_t i = 0; i < n; ++i)
    plain = plain && (unsigned char)text[i] >= ' ' && text[i] != 0x7f;
  conf_check(n <= TABLES_TEXT_MOST, "its %s is longer than %d bytes", what, (int)TABLES_TEXT_MOST);
  conf_check(plain, "its %s is empty, or not one line", what);
}

static void check_id(const char *id) {
  if (!conf_check(id != NULL, "its id is NULL"))
    return;
  const size_t n = strnlen(id, TABLES_ID_MOST + 1);
  const size_t fit =
      strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");
  conf_check(n != 0 && n <= TABLES_ID_MOST && fit == n,
             "its id '%.64s' is not 1 to 63 letters, digits, '-', '_', '.'", id);
}

/* False: nothing of it can be called. */
static bool check_descriptor(const opipe_plugin *p) {
  conf_case("descriptor");
  if (!conf_check(p->magic == OPIPE_PLUGIN_MAGIC, "its magic is 0x%x, not 0x%x", p->magic,
                  OPIPE_PLUGIN_MAGIC) ||
      !conf_check(p->struct_size >= OPIPE_END(opipe_plugin, get_interface),
                  "its struct_size is %u, at least %u are needed", p->struct_size,
                  (uint32_t)OPIPE_END(opipe_plugin, get_interface)) ||
      !conf_check(p->abi_major == OPIPE_ABI_MAJOR, "its ABI major is %u, not %u", p->abi_major,
                  OPIPE_ABI_MAJOR) ||
      !conf_check(p->kind >= OPIPE_KIND_BACKEND && p->kind <= OPIPE_KIND_TRANSPORT,
                  "its kind is %u (1 backend, 2 schedule, 3 transport)", p->kind))
    return false;
  conf_check(p->abi_minor_min <= p->abi_minor, "it needs minor %u, but is built for %u",
             p->abi_minor_min, p->abi_minor);
  conf_check(p->abi_minor_min <= OPIPE_ABI_MINOR,
             "it needs a host of minor %u, this program is one of minor %u", p->abi_minor_min,
             OPIPE_ABI_MINOR);
  conf_check(p->build_flags == OPIPE_BUILD_FLAGS,
             "its build flags are 0x%x, those of this program 0x%x (sanitizers)", p->build_flags,
             OPIPE_BUILD_FLAGS);
  conf_check(p->flags == 0, "its flags are 0x%x, not 0", p->flags);
  check_rows(p);
  check_id(p->id);
  check_text(p->version, "version");
  check_text(p->license, "license");
  check_text(p->summary, "summary");
  const bool opens = conf_check(p->open != NULL, "it has no open function");
  const bool closes = conf_check(p->close != NULL, "it has no close function");
  return conf_check(p->get_interface != NULL, "it has no get_interface function") && opens &&
         closes;
}

/* ---- tables: every slot behind {struct_size, reserved} is a function ---- */

enum { TABLES_TOGETHER = 6, TABLES_SLOTS_MOST = 96, TABLES_HEAD = 8 };

typedef struct tables_slot {
  const char *name;
  size_t at;
} tables_slot;

/* The slots `together`, [from, to), are all there or none; behind `least` each may be missing. */
typedef struct tables_rule {
  const char *what;
  size_t n_bytes, least;
  const tables_slot *slots; /* that have a name here */
  uint32_t n_slots;
  struct {
    size_t from, to;
  } together[TABLES_TOGETHER];
} tables_rule;

#define TABLES_SLOT(type, field) {#field, offsetof(type, field)},
#define TABLES_SLOTS(type) type##_slots, (uint32_t)(sizeof type##_slots / sizeof(tables_slot))
#define TABLES_RANGE(type, first, last) \
  { offsetof(type, first), OPIPE_END(type, last) }

static const tables_slot opipe_backend_slots[] = {
    OPIPE_FIELDS_opipe_backend(TABLES_SLOT, opipe_backend)};
static const tables_slot opipe_schedule_slots[] = {
    OPIPE_FIELDS_opipe_schedule(TABLES_SLOT, opipe_schedule)};
static const tables_slot opipe_transport_slots[] = {
    OPIPE_FIELDS_opipe_transport(TABLES_SLOT, opipe_transport)};

static const tables_rule tables_rules[] = {
    [OPIPE_KIND_BACKEND] = {OPIPE_BACKEND_ID,
                            sizeof(opipe_backend),
                            OPIPE_END(opipe_backend, run),
                            TABLES_SLOTS(opipe_backend),
                            {TABLES_RANGE(opipe_backend, params_create_owned, update),
#if OPIPE_ABI_MINOR >= 3
                             TABLES_RANGE(opipe_backend, host_alloc, host_free),
                             TABLES_RANGE(opipe_backend, host_register, host_unregister),
                             TABLES_RANGE(opipe_backend, update_many, sum_squares_many),
                             TABLES_RANGE(opipe_backend, kernels_fit, kernel_tune),
                             TABLES_RANGE(opipe_backend, event_create_timed, event_elapsed)
#endif
                            }},
    [OPIPE_KIND_SCHEDULE] = {OPIPE_SCHEDULE_ID,
                             sizeof(opipe_schedule),
                             OPIPE_END(opipe_schedule, plan),
                             TABLES_SLOTS(opipe_schedule),
                             {{0, 0}}},
    [OPIPE_KIND_TRANSPORT] = {OPIPE_TRANSPORT_ID,
                              sizeof(opipe_transport),
                              OPIPE_END(opipe_transport, abort),
                              TABLES_SLOTS(opipe_transport),
                              {TABLES_RANGE(opipe_transport, group_open, group_test),
#if OPIPE_ABI_MINOR >= 1
                               TABLES_RANGE(opipe_transport, batch_begin, batch_end),
#endif
#if OPIPE_ABI_MINOR >= 5
                               TABLES_RANGE(opipe_transport, memory_alloc, memory_free),
                               TABLES_RANGE(opipe_transport, collective_open, collect_test),
                               TABLES_RANGE(opipe_transport, way, stream_way)
#endif
                              }}};

static bool tables_has(const void *table, size_t at) {
  void *slot = NULL;
  memcpy(&slot, (const char *)table + at, sizeof slot);
  return slot != NULL;
}

static const char *tables_name(const tables_rule *rule, size_t at) {
  for (uint32_t i = 0; i < rule->n_slots; ++i) {
    if (rule->slots[i].at == at)
      return rule->slots[i].name;
  }
  return "of a later minor";
}

static bool tables_optional(const tables_rule *rule, size_t at) {
  bool found = at >= rule->least;
  for (uint32_t i = 0; i < TABLES_TOGETHER; ++i)
    found = found || (at >= rule->together[i].from && at < rule->together[i].to);
  return found;
}

static bool check_together(const tables_rule *rule, uint32_t index, const void *table) {
  uint32_t n = 0, n_missing = 0;
  size_t missing = 0;
  for (size_t at = rule->together[index].from; at < rule->together[index].to;
       at += sizeof(void *)) {
    const bool there = tables_has(table, at);
    n += there;
    n_missing += !there;
    missing = there ? missing : at;
  }
  return conf_check(n == 0 || n_missing == 0,
                    "slot %zu (%s) of its table is NULL, but others that belong with it are not",
                    (missing - TABLES_HEAD) / sizeof(void *), tables_name(rule, missing));
}

/* A copy that ends where what both sides know ends, as the library makes one; NULL: no use. */
static const void *tables_take(uint32_t kind, const void *table) {
  static uint64_t copies[OPIPE_KIND_TRANSPORT + 1][TABLES_SLOTS_MOST];
  const tables_rule *rule = &tables_rules[kind];
  uint32_t size = 0;
  bool sound = true;
  conf_case("table");
  if (!conf_check(table != NULL, "get_interface answers NULL for '%s'", rule->what))
    return NULL;
  memcpy(&size, table, sizeof size);
  if (!conf_check(size >= rule->least, "struct_size of its table is %u, at least %zu are needed",
                  size, rule->least))
    return NULL;
  OPIPE_STATIC_ASSERT(sizeof(opipe_backend) <= sizeof copies[0], "room for a table");
  const uint32_t known = size < rule->n_bytes ? size & ~(uint32_t)7 : (uint32_t)rule->n_bytes;
  memcpy(copies[kind], table, known);
  memcpy(copies[kind], &known, sizeof known);
  for (size_t at = TABLES_HEAD; at < rule->least; at += sizeof(void *)) {
    sound = conf_check(tables_optional(rule, at) || tables_has(copies[kind], at),
                       "slot %zu (%s) of its table is NULL", (at - TABLES_HEAD) / sizeof(void *),
                       tables_name(rule, at)) &&
            sound;
  }
  for (uint32_t i = 0; i < TABLES_TOGETHER; ++i)
    sound = check_together(rule, i, copies[kind]) && sound;
  return sound ? copies[kind] : NULL;
}

#endif /* CONFORMANCE_TABLES_H */
