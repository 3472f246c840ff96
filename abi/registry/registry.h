/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, checks and opens plugins; keeps for every candidate why it was accepted or refused.
 *
 * Search order: registered descriptors; paths given to the context (files or directories);
 * $OPIPE_PLUGIN_PATH (not in set-uid programs); the folder onnx-pipe beside the library; the
 * installation's folder; never the current directory. A file name opipe-<kind>-<id>.so only
 * filters: the descriptor states the identity. Two plugins of one kind and id in one place are both
 * refused; one in a later place is shadowed, and reported so. A file given by the host that is not
 * a plugin is an error; in a folder given by the host such a file causes a warning, and blocks
 * later files of its kind and id. A plugin is opened on first use, once per registry; one that
 * fails then fails in the same way on every use. Nothing is ever unloaded.
 */
#ifndef OPI_REGISTRY_H
#define OPI_REGISTRY_H

#include <opipe/backend.h>
#include <opipe/schedule.h>
#include <opipe/transport.h>

#include "loader/base/base.h"

typedef struct opi_registry opi_registry;

/* Counts a backend's use of another backend's device, as opipe_backend_lookup.count. */
typedef opipe_status (*opi_count_fn)(void *ctx, const char *id, uint32_t index, int64_t threads,
                                     int64_t n_bytes, opipe_error *err);

typedef struct opi_registry_params {
  const opipe_allocator *allocator;
  const opi_logger *logger;
  const char *const *paths;
  uint32_t n_paths;
  bool only_static;
  opi_count_fn count; /* NULL: nobody counts */
  void *count_ctx;
} opi_registry_params;

/* An open plugin: `table` is a full-size copy of its kind's table, unknown newer slots cut off,
 * missing optional ones NULL. */
typedef struct opi_plugin_ref {
  const char *id;
  opipe_instance *self;
  const void *table; /* opipe_backend, opipe_schedule or opipe_transport */
  const opipe_plugin *plugin;
} opi_plugin_ref;

opipe_status opi_registry_create(const opi_registry_params *params, opi_registry **out_registry,
                                 opipe_error *err);
void opi_registry_free(opi_registry *registry); /* closes what is open; accepts NULL */
opipe_status opi_registry_add_static(opi_registry *registry, const opipe_plugin *plugin,
                                     opipe_error *err);
/* Thread-safe. OPIPE_E_NOTFOUND lists the plugins of that kind; for a plugin that was refused, its
 * reason. */
opipe_status opi_registry_find(opi_registry *registry, uint32_t kind, const char *id,
                               opi_plugin_ref *out_ref, opipe_error *err);
/* Opens everything; text or JSON (OPIPE_FORMAT_*: 0 text, 1 JSON). */
opipe_status opi_registry_describe(opi_registry *registry, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err);
/* Opens every plugin of one kind, and calls `fn` for the usable ones in the order found; a negative
 * status of fn ends it. fn must not call the registry. */
typedef opipe_status (*opi_plugin_fn)(void *ctx, const opipe_plugin *plugin,
                                      const opi_plugin_ref *ref, opipe_error *err);
opipe_status opi_registry_each(opi_registry *registry, uint32_t kind, opi_plugin_fn fn, void *ctx,
                               opipe_error *err);
/* Folder `name` of the installation. index 0: beside the library; 1: where its build was installed.
 * "": not known. False: there are no more. */
bool opi_installed(uint32_t index, const char *name, char *path, size_t room);
/* "backend", "schedule", "transport". */
const char *opi_kind_name(uint32_t kind);

/* -- private to the folder -- */

/* Checks that `path` can be given to dlopen: an ELF shared object of this machine, complete, of the
 * same sanitizer build. Reads the file, opens nothing. */
opipe_status opi_elf_check(const char *path, opipe_error *err);
/* Layout fingerprints of one side. */
typedef struct opi_struct_view {
  const char *whose; /* "it", "the host" */
  const opipe_struct_row *rows;
  uint32_t n, row_bytes;
  uint32_t minor; /* of the headers that it was built with */
} opi_struct_view;
/* Errors: ABI names the struct and both sizes. */
opipe_status opi_struct_views_check(const opi_struct_view *theirs, const opi_struct_view *own,
                                    opipe_error *err);
/* Checks that this host accepts the descriptor. Errors give both versions and which side to change.
 */
opipe_status opi_descriptor_check(const opipe_plugin *plugin, opipe_error *err);
/* Copies a kind's table into full-size memory and checks its mandatory slots. out_table has room
 * for opi_table_room(kind) bytes. */
opipe_status opi_table_copy(uint32_t kind, const void *table, void *out_table, opipe_error *err);
size_t opi_table_room(uint32_t kind);
const char *opi_table_id(uint32_t kind);
/* Opens a shared object and finds the descriptor that it defines itself (not one of a dependency).
 */
opipe_status opi_library_open(const char *path, const opipe_plugin **out_plugin, opipe_error *err);
/* Calls `found` for every candidate file, in search order; place counts the places. */
enum {
  OPI_FOUND_FILE = 0,   /* given by the host as a file */
  OPI_FOUND_FOLDER = 1, /* in a folder given by the host or the environment */
  OPI_FOUND_INSTALLED = 2
};
typedef opipe_status (*opi_found_fn)(void *ctx, const char *path, uint32_t place, uint32_t origin,
                                     opipe_error *err);
opipe_status opi_discover(const opi_registry_params *params, opi_found_fn found, void *ctx,
                          opipe_error *err);

#endif /* OPI_REGISTRY_H */
