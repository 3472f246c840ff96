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

#include "conformance_memory.h"
#include "conformance_tables.h"
#include "conformance_watch.h"

enum { SHOWN_MOST = 100 };                             /* failures that are written */
static _Atomic unsigned n_passed, n_failed, n_skipped; /* a transport's threads post to the board */
static const char *_Atomic case_name = "";

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
                              mem_realloc,
                              print_log,
                              now_ns,
                              find_service};

uint64_t conf_allocations(void) {
  return atomic_load(&mem_allocations);
}
uint64_t conf_live_bytes(void) {
  return atomic_load(&mem_live) - lent_bytes;
}

void conf_case(const char *name) {
  watch_step();
  case_name = name;
}

bool conf_check(bool passed, const char *fmt, ...) {
  watch_step();
  if (passed) {
    ++n_passed;
    return true;
  }
  if (++n_failed <= SHOWN_MOST) {
    va_list args;
    va_start(args, fmt);
    (void)printf("FAILED: %s: ", case_name);
    (void)vprintf(fmt, args);
    (void)printf("\n");
    va_end(args);
  }
  return false;
}

/* Has it an end? Shown as text all the same. */
static bool check_message(const opipe_error *err, const char *what) {
  return conf_check(memchr(err->message, '\0', sizeof err->message) != NULL,
                    "%s: a message without an end", what);
}

bool conf_error(opipe_status status, opipe_status wanted, const opipe_error *err,
                const char *what) {
  return check_message(err, what) &&
         conf_check(status == wanted, "%s: status %d, not %d (%s)", what, (int)status, (int)wanted,
                    err->message) &&
         conf_check(err->message[0] != '\0', "%s: an error without a message", what) &&
         conf_check(err->status == status, "%s: err->status is %d, the answer %d", what,
                    (int)err->status, (int)status);
}

bool conf_refused(opipe_status status, const opipe_error *err, const char *what) {
  if (!conf_check(status < 0, "%s is accepted (status %d)", what, (int)status))
    return false;
  return conf_check(status >= OPIPE_E_INTERNAL, "%s: the unknown status %d", what, (int)status) &&
         conf_error(status, status, err, what);
}

bool conf_ok(opipe_status status, const opipe_error *err, const char *what) {
  return conf_check(status == OPIPE_OK, "%s: status %d (%.495s)", what, (int)status, err->message);
}

bool conf_made(opipe_status status, const void *out, const opipe_error *err, const char *what) {
  const void *object = NULL;
  memcpy(&object, out, sizeof object);
  return conf_ok(status, err, what) &&
         conf_check(object != NULL, "%s answers OK without an object", what);
}

void conf_skip(const char *fmt, ...) {
  va_list args;
  watch_step();
  va_start(args, fmt);
  (void)printf("SKIP: %s: ", case_name);
  (void)vprintf(fmt, args);
  (void)printf("\n");
  va_end(args);
  ++n_skipped;
}

int conf_last_words(char *out, size_t room, const char *why, int number) {
  return snprintf(out, room, "FAILED: %s: %s %d\n%u passed, %u failed, %u skipped\n", case_name,
                  why, number, n_passed, n_failed + 1, n_skipped);
}

uint64_t conf_patience_ns(void) {
  return watch_seconds() * (UINT64_C(1000000000) / 3);
}

unsigned conf_failures(void) {
  return n_failed;
}

int conf_finish(void) {
  if (n_failed > SHOWN_MOST)
    (void)printf("FAILED: and %u more\n", n_failed - SHOWN_MOST);
  (void)printf("%u passed, %u failed, %u skipped\n", n_passed, n_failed, n_skipped);
  return n_failed == 0 ? 0 : 1;
}

static void give_up(const char *path, const char *why) {
  (void)fprintf(stderr, "%s: %s\n", path, why);
  exit(2);
}

/* Ends the program where the plugin's answer allows no further call. */
static _Noreturn void stop(void) {
  exit(conf_finish());
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
    (void)snprintf(why, sizeof why, "truncated: it has %ld bytes, its headers need %llu", size,
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
  lent_bytes = atomic_load(&mem_live);
}

/* A plugin may have a reason not to open (no such device here): that is none of its defects. */
static opipe_instance *open_one(const opipe_plugin *plugin, const char *path) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_instance *self = NULL;
  const opipe_status status = plugin->open(&conf_host, &self, &err);
  if (status < 0 && conf_refused(status, &err, "open")) {
    conf_check(self == NULL, "open fails, but sets its output");
    give_up(path, err.message);
  }
  if (!conf_check(status == OPIPE_OK, "open answers %d", (int)status) ||
      !conf_check(self != NULL, "open answers OK without an instance"))
    stop();
  return self;
}

/* Ids that are not quite the kind's. */
static void check_interfaces(const conf_plugin *p, const char *interface_id) {
  char longer[64], other[64];
  (void)snprintf(longer, sizeof longer, "%s0", interface_id);
  (void)snprintf(other, sizeof other, "%s", interface_id);
  other[strlen(other) - 1] = '9';
  const char *const ids[] = {"no.such.interface/9", "", longer, other};
  for (size_t i = 0; i < sizeof ids / sizeof ids[0]; ++i) {
    conf_check(p->plugin->get_interface(p->self, ids[i]) == NULL,
               "an unknown interface is not NULL: '%s'", ids[i]);
  }
}

conf_plugin conf_open(const char *path, uint32_t kind, const char *interface_id) {
  conf_plugin out = {NULL, NULL, NULL};
  (void)setvbuf(stdout, NULL, _IOLBF, 0); /* failures before a hang are seen */
  out.plugin = load(path);
  watch_start();
  if (!check_descriptor(out.plugin))
    stop();
  if (out.plugin->kind != kind)
    give_up(path, "another kind of plugin");
  conf_case("life");
  for (int i = 0; i < 3; ++i) { /* several instances, in any order */
    opipe_instance *one = open_one(out.plugin, path), *two = open_one(out.plugin, path);
    out.plugin->close(one);
    out.plugin->close(two);
  }
  conf_check(conf_live_bytes() == 0, "close left %llu bytes",
             (unsigned long long)conf_live_bytes());
  out.plugin->close(NULL);
  out.self = open_one(out.plugin, path);
  check_interfaces(&out, interface_id);
  out.table = tables_take(kind, out.plugin->get_interface(out.self, interface_id));
  if (out.table == NULL)
    stop();
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
  mem_check();
  while (n_lent > 0) {
    --n_lent;
    lent[n_lent].plugin->close(lent[n_lent].self);
  }
}
