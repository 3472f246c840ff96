/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin around another one (the file SEEDED_INNER) that has the defect SEEDED_DEFECT: what the
 * conformance programs must find. Instances are the inner plugin's own; every kind has a source
 * that replaces slots of the inner table in seeded_damage(). Defects that all kinds can have are
 * here.
 */
#ifndef CONFORMANCE_SEEDED_H
#define CONFORMANCE_SEEDED_H

#include <dlfcn.h>
#include <opipe/helpers.h>
#include <opipe/transport.h>
#include <stdlib.h>

enum { SEEDED_SLOTS = 96, SEEDED_LOST = 48 };

static const opipe_plugin *inner;
static const opipe_host *host;

static bool seeded(const char *defect) {
  const char *wanted = getenv("SEEDED_DEFECT");
  return wanted != NULL && strcmp(wanted, defect) == 0;
}

/* A block of the host's memory that nobody gives back. */
static void lose_memory(void) {
  (void)host->realloc(host->ctx, NULL, 0, SEEDED_LOST, 16);
}

/* An error whose message is taken away. */
static opipe_status silence(opipe_status status, opipe_error *err) {
  if (status < 0 && err != NULL)
    err->message[0] = '\0';
  return status;
}

/* ---- the descriptor ---- */

static opipe_status seeded_open(const opipe_host *given, opipe_instance **out_self,
                                opipe_error *err) {
  static const char *const sizes[] = {"memory-size", "memory-behind", "memory-twice"};
  host = given;
  if (seeded("open-without-instance"))
    return OPIPE_OK;
  if (seeded("open-pending"))
    return OPIPE_PENDING;
  if (seeded("open-silent"))
    return OPIPE_E_NOTFOUND;
  if (seeded("open-leaks"))
    lose_memory();
  for (int i = 0; i < 3; ++i) {
    if (!seeded(sizes[i]))
      continue;
    char *data = host->realloc(host->ctx, NULL, 0, SEEDED_LOST, 16);
    if (i == 1)
      data[SEEDED_LOST] = 1;
    (void)host->realloc(host->ctx, data, i == 0 ? SEEDED_LOST / 2 : SEEDED_LOST, 0, 16);
    if (i == 2)
      (void)host->realloc(host->ctx, data, SEEDED_LOST, 0, 16);
  }
  return inner->open(given, out_self, err);
}

static void seeded_close(opipe_instance *self) {
  if (seeded("close-of-null-crashes") && self == NULL)
    abort();
  inner->close(self);
}

void seeded_damage(void *table); /* the source of the kind defines it */
static uint64_t damaged[SEEDED_SLOTS];

static void set_slot(size_t at, const void *value) {
  memcpy((char *)damaged + at, &value, sizeof value);
}

static const void *seeded_interface(opipe_instance *self, const char *id) {
  static const char *const ids[] = {"", OPIPE_BACKEND_ID, OPIPE_SCHEDULE_ID, OPIPE_TRANSPORT_ID};
  const char *own = ids[inner->kind];
  const bool odd = seeded("interface-of-any-id") ||
                   (seeded("interface-of-a-prefix") && strncmp(id, own, strlen(own)) == 0);
  const void *table = inner->get_interface(self, odd ? own : id);
  uint32_t size = 0;
  if (table == NULL || strcmp(odd ? own : id, own) != 0)
    return table;
  if (seeded("interface-null"))
    return NULL;
  memcpy(&size, table, sizeof size);
  memcpy(damaged, table, size < sizeof damaged ? size : sizeof damaged);
  seeded_damage(damaged);
  size = seeded("table-empty") ? 0 : seeded("table-short") ? 24 : size;
  memcpy(damaged, &size, sizeof size);
  if (seeded("table-slot-null"))
    set_slot(24, NULL);
  return damaged;
}

extern OPIPE_EXPORT opipe_plugin OPIPE_PLUGIN_SYMBOL;
opipe_plugin OPIPE_PLUGIN_SYMBOL;

static void damage_descriptor(opipe_plugin *p) {
  static char longest[600];
  static opipe_struct_row rows[256];
  memset(longest, 'x', sizeof longest - 1);
  if (seeded("magic"))
    p->magic += 1;
  if (seeded("descriptor-short"))
    p->struct_size = 16;
  if (seeded("major"))
    p->abi_major += 1;
  if (seeded("minor"))
    p->abi_minor_min = 99;
  if (seeded("kind"))
    p->kind = 7;
  if (seeded("flags"))
    p->flags = 1;
  if (seeded("rows-null"))
    p->structs = NULL;
  if (seeded("row-differs")) {
    memcpy(rows, p->structs, p->n_structs * sizeof *rows);
    rows[p->n_structs - 1].hash += 1;
    p->structs = rows;
  }
  p->id = seeded("id-null") ? NULL : seeded("id-long") ? longest : seeded("id-odd") ? "a b" : p->id;
  p->version = seeded("version-null") ? NULL : p->version;
  p->license = seeded("license-null") ? NULL : p->license;
  p->summary = seeded("summary-long") ? longest : seeded("summary-lines") ? "a\nb" : p->summary;
  p->open = seeded("open-null") ? NULL : p->open;
  p->close = seeded("close-null") ? NULL : p->close;
  p->get_interface = seeded("get_interface-null") ? NULL : p->get_interface;
}

/* A real plugin has no constructors. */
__attribute__((constructor)) static void find_inner(void) {
  void *library = dlopen(getenv("SEEDED_INNER"), RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    return;
  inner = dlsym(library, "opipe_plugin_v1");
  OPIPE_PLUGIN_SYMBOL = *inner;
  OPIPE_PLUGIN_SYMBOL.open = seeded_open;
  OPIPE_PLUGIN_SYMBOL.close = seeded_close;
  OPIPE_PLUGIN_SYMBOL.get_interface = seeded_interface;
  damage_descriptor(&OPIPE_PLUGIN_SYMBOL);
}

#endif /* CONFORMANCE_SEEDED_H */
