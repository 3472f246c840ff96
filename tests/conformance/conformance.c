/* SPDX-License-Identifier: Apache-2.0 */
/* Harness of the conformance programs. */
#include "conformance.h"

#include <dlfcn.h>
#include <elf.h>
#include <opipe/helpers.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static atomic_ullong n_allocations, live_bytes;
static unsigned n_passed, n_failed, n_skipped;
static const char *case_name = "";

static void *count_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  void *fresh = NULL;
  (void)ctx;
  if (new_size == 0) {
    atomic_fetch_sub(&live_bytes, old_size);
    free(ptr);
    return NULL;
  }
  if (posix_memalign(&fresh, align < sizeof(void *) ? sizeof(void *) : align, new_size) != 0)
    return NULL;
  if (ptr != NULL) {
    memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
    free(ptr);
  }
  atomic_fetch_add(&n_allocations, 1);
  atomic_fetch_add(&live_bytes, new_size);
  atomic_fetch_sub(&live_bytes, ptr == NULL ? 0 : old_size);
  return fresh;
}

static void print_log(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx;
  (void)file;
  (void)line;
  if (level <= OPIPE_LOG_WARN)
    (void)fprintf(stderr, "plugin: %s\n", msg);
}

static uint64_t now_ns(void *ctx) {
  struct timespec now;
  (void)ctx;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* ---- backends that others stand on ---- */

enum { LENT_MOST = 8 };
static conf_plugin lent[LENT_MOST];
static uint32_t n_lent;
static uint64_t lent_bytes; /* that they keep */

static opipe_status find_lent(void *ctx, const char *id, const opipe_backend **out_table,
                              opipe_instance **out_self, opipe_error *err) {
  (void)ctx;
  for (uint32_t i = 0; i < n_lent; ++i) {
    if (strcmp(lent[i].plugin->id, id) == 0) {
      *out_table = lent[i].table;
      *out_self = lent[i].self;
      return OPIPE_OK;
    }
  }
  return opipe_fail(err, OPIPE_E_NOTFOUND,
                    "backend '%s' was not given: name its file behind the plugin's", id);
}

static atomic_llong counted_threads, counted_bytes; /* of lent backends' devices */

#if OPIPE_ABI_MINOR >= 3
static opipe_status count_lent(void *ctx, const char *id, uint32_t index, int64_t threads,
                               int64_t n_bytes, opipe_error *err) {
  (void)ctx;
  (void)id;
  (void)index;
  (void)err;
  atomic_fetch_add(&counted_threads, threads);
  atomic_fetch_add(&counted_bytes, n_bytes);
  return OPIPE_OK;
}

static const opipe_backend_lookup lookup = {(uint32_t)OPIPE_END(opipe_backend_lookup, count), 0,
                                            find_lent, count_lent};

static bool is_lookup(const char *id) {
  return strcmp(id, OPIPE_BACKEND_LOOKUP_ID) == 0 || strcmp(id, OPIPE_BACKEND_LOOKUP_0_ID) == 0;
}
#else
static const opipe_backend_lookup lookup = {(uint32_t)OPIPE_END(opipe_backend_lookup, find), 0,
                                            find_lent};

static bool is_lookup(const char *id) {
  return strcmp(id, OPIPE_BACKEND_LOOKUP_ID) == 0;
}
#endif

static const void *find_service(void *ctx, const char *id) {
  (void)ctx;
  return is_lookup(id) ? &lookup : NULL;
}

const opipe_host conf_host = {(uint32_t)OPIPE_END(opipe_host, get_interface),
                              OPIPE_ABI_MAJOR,
                              OPIPE_ABI_MINOR,
                              NULL,
                              count_realloc,
                              print_log,
                              now_ns,
                              find_service};

uint64_t conf_allocations(void) {
  return atomic_load(&n_allocations);
}
uint64_t conf_live_bytes(void) {
  return atomic_load(&live_bytes) - lent_bytes;
}

void conf_case(const char *name) {
  case_name = name;
}

bool conf_check(bool passed, const char *fmt, ...) {
  if (passed) {
    ++n_passed;
    return true;
  }
  va_list args;
  va_start(args, fmt);
  (void)printf("FAILED: %s: ", case_name);
  (void)vprintf(fmt, args);
  (void)printf("\n");
  va_end(args);
  ++n_failed;
  return false;
}

bool conf_error(opipe_status status, opipe_status wanted, const opipe_error *err,
                const char *what) {
  return conf_check(status == wanted, "%s: status %d, not %d (%s)", what, (int)status, (int)wanted,
                    err->message) &&
         conf_check(err->message[0] != '\0', "%s: an error without a message", what);
}

bool conf_ok(opipe_status status, const opipe_error *err, const char *what) {
  return conf_check(status == OPIPE_OK, "%s: status %d (%s)", what, (int)status, err->message);
}

opipe_status conf_made(opipe_status status, const void *object, opipe_error *err,
                       const char *slot) {
  if (status == OPIPE_OK && object != NULL)
    return status;
  if (status < 0 && err->message[0] == '\0')
    conf_check(false, "%s: status %d without a message", slot, (int)status);
  if (status < 0)
    return status;
  if (status == OPIPE_OK)
    conf_check(false, "%s answered OK without an object", slot);
  else
    conf_check(false, "%s answered %d, which is neither done nor failed", slot, (int)status);
  return opipe_fail(err, OPIPE_E_INVALID, "%s made no object", slot);
}

void conf_skip(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  (void)printf("SKIP: %s: ", case_name);
  (void)vprintf(fmt, args);
  (void)printf("\n");
  va_end(args);
  ++n_skipped;
}

int conf_finish(void) {
  (void)printf("%u passed, %u failed, %u skipped\n", n_passed, n_failed, n_skipped);
  return n_failed == 0 ? 0 : 1;
}

static void give_up(const char *path, const char *why) {
  (void)fprintf(stderr, "%s: %s\n", path, why);
  exit(2);
}

/* What has another magic or is too short cannot be looked at. */
static void check_descriptor(const char *path, const opipe_plugin *p, uint32_t kind) {
  conf_case("descriptor");
  if (!conf_check(p->magic == OPIPE_PLUGIN_MAGIC, "magic 0x%x", p->magic))
    give_up(path, "its descriptor is none");
  if (!conf_check(p->struct_size >= OPIPE_END(opipe_plugin, get_interface),
                  "struct_size %u, it needs %zu", p->struct_size,
                  OPIPE_END(opipe_plugin, get_interface)))
    give_up(path, "its descriptor is too short");
  conf_check(p->abi_major == OPIPE_ABI_MAJOR, "ABI major %u", p->abi_major);
  conf_check(p->abi_minor_min <= p->abi_minor, "needs minor %u, built for %u", p->abi_minor_min,
             p->abi_minor);
  conf_check(
      p->structs != NULL && p->n_structs != 0 && p->struct_row_bytes == sizeof(opipe_struct_row),
      "%u layout fingerprints of %u bytes", p->n_structs, p->struct_row_bytes);
  conf_check(p->kind == kind, "kind %u, this program checks kind %u", p->kind, kind);
  conf_check(p->id != NULL && p->version != NULL && p->license != NULL && p->summary != NULL,
             "a text is missing");
  conf_check(p->id != NULL &&
                 p->id[strspn(
                     p->id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")] ==
                     '\0' &&
                 p->id[0] != '\0' && strlen(p->id) < 64,
             "its id is not 1 to 63 letters, digits, '-', '_', '.'");
}

/* Where the loaded parts of an ELF file end, 0: dlopen itself says what is wrong with it. */
static uint64_t end_of_parts(FILE *file) {
  Elf64_Ehdr head;
  Elf64_Phdr part;
  uint64_t end = 0;
  if (fread(&head, sizeof head, 1, file) != 1 || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
      head.e_ident[EI_CLASS] != ELFCLASS64 || fseek(file, (long)head.e_phoff, SEEK_SET) != 0)
    return 0;
  for (uint32_t i = 0; i < head.e_phnum && fread(&part, sizeof part, 1, file) == 1; ++i) {
    if (part.p_offset + part.p_filesz > end)
      end = part.p_offset + part.p_filesz;
  }
  return end;
}

/* A file that was copied in half would end the process inside dlopen. */
static void check_whole(const char *path) {
  char why[100];
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    return;
  const uint64_t end = end_of_parts(file);
  const long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  (void)fclose(file);
  if (size >= 0 && (uint64_t)size < end) {
    (void)snprintf(why, sizeof why, "truncated: it has %ld bytes, its headers speak of %llu", size,
                   (unsigned long long)end);
    give_up(path, why);
  }
}

static const opipe_plugin *load(const char *path) {
  check_whole(path);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    give_up(path, dlerror());
  const opipe_plugin *plugin = dlsym(library, "opipe_plugin_v1");
  if (plugin == NULL)
    give_up(path, "no symbol opipe_plugin_v1");
  return plugin;
}

void conf_lend(const char *path) {
  opipe_error err = OPIPE_ERROR_INIT;
  conf_plugin *one = &lent[n_lent];
  if (n_lent == LENT_MOST)
    give_up(path, "too many backends to stand on");
  one->plugin = load(path);
  if (one->plugin->kind != OPIPE_KIND_BACKEND)
    give_up(path, "no backend to stand on");
  if (one->plugin->open(&conf_host, &one->self, &err) < 0)
    give_up(path, err.message);
  one->table = one->plugin->get_interface(one->self, OPIPE_BACKEND_ID);
  if (one->table == NULL)
    give_up(path, "its interface is missing");
  ++n_lent;
  lent_bytes = atomic_load(&live_bytes);
}

/* One more instance; ends the program where there is none. */
static opipe_instance *open_one(const char *path, const opipe_plugin *plugin) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_instance *self = NULL;
  char why[sizeof err.message + 64];
  const opipe_status status = plugin->open(&conf_host, &self, &err);
  if (status == OPIPE_OK)
    return self;
  (void)snprintf(why, sizeof why, "%.*s", (int)sizeof err.message,
                 err.message[0] == '\0' ? "its open() failed without a message" : err.message);
  if (status > 0) {
    (void)snprintf(why, sizeof why, "its open() answered %d, which is neither done nor failed",
                   (int)status);
  }
  give_up(path, why);
  return NULL;
}

/* The table of an instance, with all that it must have. */
static const void *find_table(const char *path, const opipe_plugin *plugin, opipe_instance *self,
                              const conf_table *rule) {
  const void *table = plugin->get_interface(self, rule->id);
  char why[160];
  uint32_t size = 0;
  if (table == NULL)
    give_up(path, "its interface is missing");
  memcpy(&size, table, sizeof size);
  (void)snprintf(why, sizeof why, "its interface '%s' has %u bytes, it needs %zu", rule->id, size,
                 rule->least_bytes);
  if (size < rule->least_bytes)
    give_up(path, why);
  for (size_t at = 8; at < rule->least_bytes; at += sizeof(void *)) {
    void *slot = NULL;
    memcpy(&slot, (const char *)table + at, sizeof slot);
    (void)snprintf(why, sizeof why, "slot %zu of its interface '%s' is NULL",
                   (at - 8) / sizeof(void *), rule->id);
    if (slot == NULL && (at < rule->may_lack || at >= rule->may_lack_end))
      give_up(path, why);
  }
  return table;
}

conf_plugin conf_open(const char *path, uint32_t kind, const conf_table *rule) {
  conf_plugin out = {NULL, NULL, NULL};
  (void)setvbuf(stdout, NULL, _IOLBF, 0); /* what failed before a hang is seen */
  out.plugin = load(path);
  check_descriptor(path, out.plugin, kind);
  if (out.plugin->kind != kind)
    give_up(path, "another kind of plugin");
  if (out.plugin->open == NULL || out.plugin->close == NULL || out.plugin->get_interface == NULL)
    give_up(path, "its descriptor lacks a function");
  conf_case("life");
  for (int i = 0; i < 3; ++i) { /* several instances, in any order */
    opipe_instance *one = open_one(path, out.plugin), *two = open_one(path, out.plugin);
    out.plugin->close(one);
    out.plugin->close(two);
  }
  conf_check(conf_live_bytes() == 0, "close left %llu bytes",
             (unsigned long long)conf_live_bytes());
  out.plugin->close(NULL);
  out.self = open_one(path, out.plugin);
  conf_check(out.plugin->get_interface(out.self, "no.such.interface/9") == NULL,
             "an unknown interface is not NULL");
  out.table = find_table(path, out.plugin, out.self, rule);
  conf_check(out.plugin->get_interface(out.self, rule->id) == out.table,
             "another table at the second call");
  return out;
}

void conf_close(conf_plugin *plugin) {
  conf_case("life");
  plugin->plugin->close(plugin->self);
  conf_check(conf_live_bytes() == 0, "%llu bytes are left after close",
             (unsigned long long)conf_live_bytes());
  conf_check(atomic_load(&counted_threads) == 0 && atomic_load(&counted_bytes) == 0,
             "%lld threads and %lld bytes of other backends' devices are not given back",
             (long long)atomic_load(&counted_threads), (long long)atomic_load(&counted_bytes));
  while (n_lent > 0) {
    --n_lent;
    lent[n_lent].plugin->close(lent[n_lent].self);
  }
}
