/* SPDX-License-Identifier: Apache-2.0 */
/* The list of candidates of one context. Each is in one state: found, refused (with the reason),
 * shadowed, opening, or open. One mutex guards the list. Plugins' open() runs under it, so a plugin
 * is opened once. A plugin that asks for another through the host's services stays "opening"
 * meanwhile, so a circle of two is detected and reported.
 */
#include "abi/registry/registry.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "loader/base/nearest.h"

enum { STATE_FOUND = 0, STATE_REFUSED = 1, STATE_SHADOWED = 2, STATE_OPEN = 3, STATE_OPENING = 4 };
static const uint32_t PLACE_STATIC = UINT32_MAX;

typedef struct candidate {
  const char *path;           /* "(static)" for registered descriptors */
  const opipe_plugin *plugin; /* NULL until it was loaded */
  uint32_t place;
  uint32_t origin; /* OPI_ORIGIN_* */
  uint32_t state;
  bool is_twin;        /* refused because of another one of its name in the same place */
  opipe_status failed; /* status of its open(); 0: it has not failed */
  uint32_t opened;     /* 1, 2, ... in the order in which open() returned */
  opipe_instance *self;
  void *table;
  char reason[400];
} candidate;

struct opi_registry {
  const opipe_allocator *allocator;
  const opi_logger *logger;
  opi_arena arena;
  candidate **candidates;
  uint32_t n, room;
  uint32_t n_opened;
  opi_count_fn count; /* NULL: nobody counts */
  void *count_ctx;
  opipe_host host;
  pthread_mutex_t lock;
};

/* ---- host services ---- */

static void *host_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  const opi_registry *r = ctx;
  return r->allocator->realloc(r->allocator->ctx, ptr, old_size, new_size, align);
}

static void host_log(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  const opi_registry *r = ctx;
  if (r->logger != NULL && r->logger->log != NULL && level <= r->logger->level)
    r->logger->log(r->logger->ctx, level, file, line, msg);
}

static uint64_t host_now(void *ctx) {
  struct timespec now;
  (void)ctx;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Service "opipe.backends/1": lets a backend use another one. `find` is called from within a
 * plugin's open(), under the registry's lock. */
static opipe_status open_candidate(opi_registry *r, candidate *c, opipe_error *err);
static opipe_status find_locked(opi_registry *r, uint32_t kind, const char *id,
                                opi_plugin_ref *out_ref, opipe_error *err);

static opipe_status lookup_backend(void *ctx, const char *id, const opipe_backend **out_table,
                                   opipe_instance **out_self, opipe_error *err) {
  opi_plugin_ref ref;
  opi_registry *r = ctx;
  (void)pthread_mutex_lock(&r->lock);
  const opipe_status status = find_locked(r, OPIPE_KIND_BACKEND, id, &ref, err);
  (void)pthread_mutex_unlock(&r->lock);
  if (status < 0)
    return status;
  *out_table = ref.table;
  *out_self = ref.self;
  return OPIPE_OK;
}

static opipe_status count_lent(void *ctx, const char *id, uint32_t index, int64_t threads,
                               int64_t n_bytes, opipe_error *err) {
  const opi_registry *r = ctx;
  return r->count == NULL ? OPIPE_OK : r->count(r->count_ctx, id, index, threads, n_bytes, err);
}

static void drop_pages(void *ctx, const void *data, uint64_t n_bytes) {
  (void)ctx;
  opi_pages_drop(data, n_bytes);
}

static const void *host_interface(void *ctx, const char *id) {
  static const opipe_backend_lookup lookup = {(uint32_t)OPIPE_END(opipe_backend_lookup, count), 0,
                                              lookup_backend, count_lent};
  static const opipe_host_pages pages = {(uint32_t)OPIPE_END(opipe_host_pages, drop), 0,
                                         drop_pages};
  (void)ctx;
  if (strcmp(id, OPIPE_HOST_PAGES_ID) == 0)
    return &pages;
  return strcmp(id, OPIPE_BACKEND_LOOKUP_ID) == 0 || strcmp(id, OPIPE_BACKEND_LOOKUP_0_ID) == 0
             ? &lookup
             : NULL;
}

/* ---- candidates ---- */

static opipe_status add_candidate(opi_registry *r, const char *path, uint32_t place,
                                  candidate **out, opipe_error *err) {
  candidate *c = OPI_ARENA_NEW(&r->arena, candidate);
  char *copy = opi_arena_strdup(&r->arena, path);
  if (c == NULL || copy == NULL ||
      !opi_arena_grow(&r->arena, (void **)&r->candidates, &r->room, r->n + 1, sizeof(candidate *)))
    return opi_fail_nomem(err, sizeof(*c), "a plugin candidate");
  c->path = copy;
  c->place = place;
  r->candidates[r->n++] = c;
  *out = c;
  return OPIPE_OK;
}

static void refuse(candidate *c, uint32_t state, const char *reason) {
  c->state = state;
  (void)snprintf(c->reason, sizeof(c->reason), "%.*s", (int)sizeof(c->reason) - 1, reason);
}

/* Resolves names: several plugins of one kind and id in the same place are all unusable, one in a
 * later place is shadowed. */
static void check_name(opi_registry *r, candidate *c) {
  char reason[400];
  for (uint32_t i = 0; i < r->n; ++i) {
    candidate *other = r->candidates[i];
    const bool counts =
        other->state != STATE_REFUSED || (other->is_twin && other->place == c->place);
    if (other == c || other->plugin == NULL || !counts || other->plugin->kind != c->plugin->kind ||
        strcmp(other->plugin->id, c->plugin->id) != 0)
      continue;
    if (other->plugin == c->plugin) {
      refuse(c, STATE_SHADOWED, "the same file was found before");
    } else if (other->place == c->place) {
      (void)snprintf(reason, sizeof(reason), "two plugins are called %s '%s': %s and %s",
                     opi_kind_name(c->plugin->kind), c->plugin->id, other->path, c->path);
      if (!other->is_twin)
        refuse(other, STATE_REFUSED, reason);
      refuse(c, STATE_REFUSED, reason);
      other->is_twin = c->is_twin = true;
    } else {
      (void)snprintf(reason, sizeof(reason), "shadowed by %s", other->path);
      refuse(c, STATE_SHADOWED, reason);
    }
    return;
  }
}

static opipe_status take_file(void *ctx, const char *path, uint32_t place, uint32_t origin,
                              opipe_error *err) {
  opi_registry *r = ctx;
  candidate *c = NULL;
  opipe_error why = OPIPE_ERROR_INIT;
  OPI_TRY(add_candidate(r, path, place, &c, err));
  c->origin = origin;
  const opipe_plugin *plugin = NULL;
  opipe_status status = opi_library_open(path, &plugin, &why);
  if (status == OPIPE_OK)
    status = opi_descriptor_check(plugin, &why);
  if (status < 0) {
    if (origin == OPI_FOUND_FILE)
      return opi_fail(err, status, "plugin %s: %s", path, why.message);
    refuse(c, STATE_REFUSED, why.message);
    opi_log(r->logger, origin == OPI_FOUND_INSTALLED ? OPIPE_LOG_INFO : OPIPE_LOG_WARN,
            "plugin %s refused: %s", path, why.message);
    return OPIPE_OK; /* one bad file must not hide the others */
  }
  c->plugin = plugin;
  check_name(r, c);
  return OPIPE_OK;
}

opipe_status opi_registry_add_static(opi_registry *r, const opipe_plugin *plugin,
                                     opipe_error *err) {
  candidate *c = NULL;
  if (plugin == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "no descriptor was given");
  opipe_status status = opi_descriptor_check(plugin, err);
  if (status < 0) {
    (void)opi_error_prefix(err, "static plugin: ");
    return status;
  }
  (void)pthread_mutex_lock(&r->lock);
  for (uint32_t i = 0; i < r->n && status == OPIPE_OK; ++i) {
    const candidate *other = r->candidates[i];
    if (other->plugin == NULL || other->plugin->kind != plugin->kind ||
        strcmp(other->plugin->id, plugin->id) != 0)
      continue;
    if (other->place == PLACE_STATIC || other->state == STATE_OPEN) {
      status = opi_fail(err, OPIPE_E_STATE, "%s '%s' is registered or in use already (%s)",
                        opi_kind_name(plugin->kind), plugin->id, other->path);
    }
  }
  if (status == OPIPE_OK)
    status = add_candidate(r, "(static)", PLACE_STATIC, &c, err);
  if (status == OPIPE_OK) {
    c->plugin = plugin;
    for (uint32_t i = 0; i < r->n; ++i) { /* linked plugins come before files */
      candidate *other = r->candidates[i];
      if (other != c && other->plugin != NULL && other->state == STATE_FOUND &&
          other->plugin->kind == plugin->kind && strcmp(other->plugin->id, plugin->id) == 0)
        refuse(other, STATE_SHADOWED, "shadowed by a registered descriptor");
    }
  }
  (void)pthread_mutex_unlock(&r->lock);
  return status;
}

/* ---- opening ---- */

static opipe_status open_table(opi_registry *r, candidate *c, opipe_error *err) {
  opipe_instance *self = NULL;
  void *table = opi_arena_alloc(&r->arena, opi_table_room(c->plugin->kind));
  if (table == NULL)
    return opi_fail_nomem(err, opi_table_room(c->plugin->kind), "a plugin's table");
  opipe_status status = c->plugin->open(&r->host, &self, err);
  if (status > 0)
    status = opi_fail(err, OPIPE_E_INVALID, "its open() answered %d", (int)status);
  if (status < 0 && err->message[0] == '\0')
    (void)opi_fail(err, status, "its open() failed without a message");
  if (status != OPIPE_OK)
    return opi_answer(status, opi_kind_name(c->plugin->kind), c->plugin->id, "open", err);
  status = opi_table_copy(
      c->plugin->kind, c->plugin->get_interface(self, opi_table_id(c->plugin->kind)), table, err);
  if (status < 0) {
    c->plugin->close(self);
    return status;
  }
  c->self = self;
  c->table = table;
  c->state = STATE_OPEN;
  c->opened = ++r->n_opened;
  return OPIPE_OK;
}

static opipe_status open_candidate(opi_registry *r, candidate *c, opipe_error *err) {
  if (c->state != STATE_FOUND)
    return OPIPE_OK;
  opipe_error why = OPIPE_ERROR_INIT;
  c->state = STATE_OPENING;
  const opipe_status status = open_table(r, c, &why);
  if (status == OPIPE_OK)
    return OPIPE_OK;
  c->state = STATE_FOUND;
  if (status != OPIPE_E_NOMEM) { /* there may be memory next time */
    refuse(c, STATE_REFUSED, why.message);
    c->failed = status;
  }
  if (err != NULL)
    *err = why;
  (void)opi_error_prefix(err, "%s '%s' (%s): ", opi_kind_name(c->plugin->kind), c->plugin->id,
                         c->path);
  return status;
}

/* True if the file's name says that it is this plugin. */
static bool is_named(const candidate *c, uint32_t kind, const char *id) {
  char name[128];
  const char *slash = strrchr(c->path, '/');
  (void)snprintf(name, sizeof(name), "opipe-%s-%.64s.so", opi_kind_name(kind), id);
  return slash != NULL && strcmp(slash + 1, name) == 0;
}

/* Suggests a remedy. A path given as an id is that of a plugin or of an order. meant: a similar id,
 * NULL: none. */
static void write_remedy(uint32_t kind, const char *id, const char *meant, char *out, size_t room) {
  const size_t n = strlen(id);
  if (n > 3 && strcmp(id + n - 3, ".so") == 0)
    (void)snprintf(out, room, "load that file as a plugin, and give its id");
  else if (kind == OPIPE_KIND_SCHEDULE && strpbrk(id, "/.") != NULL)
    (void)snprintf(out, room, "the order of a file is file:%.100s", id);
  else if (meant != NULL)
    (void)snprintf(out, room, "did you mean '%s'?", meant);
  else
    (void)snprintf(out, room, "give its path, or set OPIPE_PLUGIN_PATH");
}

static opipe_status report_missing(opi_registry *r, uint32_t kind, const char *id,
                                   opipe_error *err) {
  char known[300] = "", remedy[160];
  opi_nearest nearest = {.word = id, .n = strlen(id)};
  for (uint32_t i = 0; i < r->n; ++i) {
    const candidate *c = r->candidates[i];
    const size_t used = strlen(known);
    if (c->plugin == NULL || c->plugin->kind != kind || c->state == STATE_SHADOWED)
      continue;
    if (strcmp(c->plugin->id, id) == 0) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED, "%s '%s' (%s) was refused: %s", opi_kind_name(kind),
                      id, c->path, c->reason);
    }
    (void)snprintf(known + used, sizeof(known) - used, "%s%s", used == 0 ? "" : ", ",
                   c->plugin->id);
    opi_nearest_look(&nearest, c->plugin->id);
  }
  for (uint32_t i = 0; i < r->n; ++i) { /* a file of that name that cannot be read */
    const candidate *c = r->candidates[i];
    if (c->plugin == NULL && is_named(c, kind, id)) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED, "%s '%s' was refused: %s", opi_kind_name(kind), id,
                      c->reason);
    }
  }
  const char *synonym = opi_nearest_synonym(&nearest); /* perhaps one that is not built here */
  write_remedy(kind, id, synonym == NULL ? nearest.found : synonym, remedy, sizeof remedy);
  return opi_fail(err, OPIPE_E_NOTFOUND, "there is no %s '%s' (found: %s); %s", opi_kind_name(kind),
                  id, known[0] == '\0' ? "none" : known, remedy);
}

/* `c` was asked for while it opens, by its own open() or by that of a plugin that it asked for. */
static opipe_status report_circle(const opi_registry *r, const candidate *c, opipe_error *err) {
  char others[200] = "";
  for (uint32_t i = 0; i < r->n; ++i) {
    const size_t used = strlen(others);
    if (r->candidates[i] == c || r->candidates[i]->state != STATE_OPENING)
      continue;
    (void)snprintf(others + used, sizeof others - used, "%s'%s'", used == 0 ? "" : ", ",
                   r->candidates[i]->plugin->id);
  }
  return opi_fail(err, OPIPE_E_STATE, "%s '%s' is being opened: its open() depends on itself%s%s",
                  opi_kind_name(c->plugin->kind), c->plugin->id,
                  others[0] == '\0' ? "" : " through ", others);
}

static opipe_status find_locked(opi_registry *r, uint32_t kind, const char *id,
                                opi_plugin_ref *out_ref, opipe_error *err) {
  for (uint32_t i = 0; i < r->n; ++i) {
    candidate *c = r->candidates[i];
    const bool is = c->plugin == NULL ? is_named(c, kind, id)
                                      : c->plugin->kind == kind && strcmp(c->plugin->id, id) == 0;
    if (!is)
      continue;
    if (c->state == STATE_FOUND)
      OPI_TRY(open_candidate(r, c, err));
    if (c->state == STATE_OPENING)
      return report_circle(r, c, err);
    if (c->failed != 0) {
      return opi_fail(err, c->failed, "%s '%s' (%s): %s", opi_kind_name(kind), id, c->path,
                      c->reason);
    }
    if (c->state == STATE_REFUSED && c->origin != OPI_FOUND_INSTALLED) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED, "%s '%s' (%s) was refused: %s", opi_kind_name(kind),
                      id, c->path, c->reason);
    }
    if (c->state != STATE_OPEN)
      continue;
    *out_ref = (opi_plugin_ref){
        .id = c->plugin->id, .self = c->self, .table = c->table, .plugin = c->plugin};
    return OPIPE_OK;
  }
  return report_missing(r, kind, id, err);
}

opipe_status opi_registry_find(opi_registry *r, uint32_t kind, const char *id,
                               opi_plugin_ref *out_ref, opipe_error *err) {
  (void)pthread_mutex_lock(&r->lock);
  const opipe_status status = find_locked(r, kind, id, out_ref, err);
  (void)pthread_mutex_unlock(&r->lock);
  return status;
}

opipe_status opi_registry_each(opi_registry *r, uint32_t kind, opi_plugin_fn fn, void *ctx,
                               opipe_error *err) {
  opipe_status status = OPIPE_OK;
  (void)pthread_mutex_lock(&r->lock);
  for (uint32_t i = 0; status >= 0 && i < r->n; ++i) {
    candidate *c = r->candidates[i];
    if (c->plugin == NULL || c->plugin->kind != kind)
      continue;
    (void)open_candidate(r, c, NULL); /* the reason is kept with the candidate */
    if (c->state != STATE_OPEN)
      continue;
    const opi_plugin_ref ref = {
        .id = c->plugin->id, .self = c->self, .table = c->table, .plugin = c->plugin};
    status = fn(ctx, c->plugin, &ref, err);
  }
  (void)pthread_mutex_unlock(&r->lock);
  return status;
}

/* ---- life ---- */

static bool init_lock(pthread_mutex_t *lock) {
  pthread_mutexattr_t attr;
  if (pthread_mutexattr_init(&attr) != 0)
    return false;
  bool ok = pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE) ==
            0; /* open() may look up another backend */
  ok = ok && pthread_mutex_init(lock, &attr) == 0;
  (void)pthread_mutexattr_destroy(&attr);
  return ok;
}

opipe_status opi_registry_create(const opi_registry_params *params, opi_registry **out_registry,
                                 opipe_error *err) {
  opi_registry *r = opi_alloc_zero(params->allocator, 1, sizeof(*r));
  if (r == NULL)
    return opi_fail_nomem(err, sizeof(*r), "a plugin registry");
  if (!init_lock(&r->lock)) {
    opi_free(params->allocator, r, sizeof(*r));
    return opi_fail_nomem(err, sizeof(pthread_mutex_t), "a lock");
  }
  r->allocator = params->allocator;
  r->logger = params->logger;
  opi_arena_init(&r->arena, params->allocator, 0);
  r->host = (opipe_host){.struct_size = (uint32_t)OPIPE_END(opipe_host, get_interface),
                         .abi_major = OPIPE_ABI_MAJOR,
                         .abi_minor = OPIPE_ABI_MINOR,
                         .ctx = r,
                         .realloc = host_realloc,
                         .log = host_log,
                         .now_ns = host_now,
                         .get_interface = host_interface};
  const opipe_status status =
      params->only_static ? OPIPE_OK : opi_discover(params, take_file, r, err);
  if (status < 0) {
    opi_registry_free(r);
    return status;
  }
  *out_registry = r;
  return OPIPE_OK;
}

void opi_registry_free(opi_registry *r) {
  if (r == NULL)
    return;
  for (uint32_t order = r->n_opened; order > 0;
       --order) { /* a plugin that uses another one was opened after it */
    for (uint32_t i = 0; i < r->n; ++i) {
      if (r->candidates[i]->opened == order)
        r->candidates[i]->plugin->close(r->candidates[i]->self);
    }
  }
  opi_arena_release(&r->arena);
  (void)pthread_mutex_destroy(&r->lock);
  opi_free(r->allocator, r, sizeof(*r));
}

/* ---- description ---- */

enum { DETAILS_MOST = 64 };

/* Line `index` of an open plugin's details, cleaned for display; NULL: there are no more. */
static const char *detail_of(const candidate *c, uint32_t index, char *line) {
  if (c->state != STATE_OPEN || index >= DETAILS_MOST)
    return NULL;
  const opipe_details *details = c->plugin->get_interface(c->self, OPIPE_DETAILS_ID);
  if (details == NULL || !OPIPE_HAS(details, opipe_details, line) || details->line == NULL)
    return NULL;
  const char *text = details->line(c->self, index);
  return text == NULL ? NULL : opi_text_line(line, text);
}

static void describe_json(opi_text *t, const candidate *c, bool first) {
  static const char *const states[] = {"found", "refused", "shadowed", "open", "opening"};
  const char *detail = NULL, *end = "}";
  char line[OPI_LINE_ROOM];
  opi_text_puts(t, first ? "\n  {\"path\": " : ",\n  {\"path\": ");
  opi_text_json(t, c->path);
  opi_text_printf(t, ", \"state\": \"%s\"", states[c->state]);
  if (c->plugin != NULL) {
    opi_text_printf(t, ", \"kind\": \"%s\", \"id\": ", opi_kind_name(c->plugin->kind));
    opi_text_json(t, c->plugin->id);
    opi_text_puts(t, ", \"version\": ");
    opi_text_json(t, opi_text_line(line, c->plugin->version));
    opi_text_puts(t, ", \"license\": ");
    opi_text_json(t, opi_text_line(line, c->plugin->license));
    opi_text_puts(t, ", \"summary\": ");
    opi_text_json(t, opi_text_line(line, c->plugin->summary));
    opi_text_printf(t, ", \"abi\": \"%u.%u\", \"abi_min\": \"%u.%u\"", c->plugin->abi_major,
                    c->plugin->abi_minor, c->plugin->abi_major, c->plugin->abi_minor_min);
  }
  if (c->reason[0] != '\0') {
    opi_text_puts(t, ", \"reason\": ");
    opi_text_json(t, c->reason);
  }
  for (uint32_t i = 0; (detail = detail_of(c, i, line)) != NULL; ++i) {
    opi_text_puts(t, i == 0 ? ", \"details\": [" : ", ");
    opi_text_json(t, detail);
    end = "]}";
  }
  opi_text_puts(t, end);
}

static void describe_text(opi_text *t, const candidate *c) {
  const char *const states[] = {"found", "refused", "shadowed", "ok", "opening"};
  const char *detail = NULL;
  char line[OPI_LINE_ROOM];
  opi_text_printf(t, "%-9s %-10s %-14s %-8s %s\n", states[c->state],
                  c->plugin == NULL ? "-" : opi_kind_name(c->plugin->kind),
                  c->plugin == NULL ? "-" : c->plugin->id,
                  c->plugin == NULL ? "-" : opi_text_line(line, c->plugin->version), c->path);
  if (c->reason[0] != '\0')
    opi_text_printf(t, "          %s\n", c->reason);
  else if (c->plugin != NULL)
    opi_text_printf(t, "          %s\n", opi_text_line(line, c->plugin->summary));
  for (uint32_t i = 0; (detail = detail_of(c, i, line)) != NULL; ++i)
    opi_text_printf(t, "          - %s\n", detail);
}

opipe_status opi_registry_describe(opi_registry *r, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err) {
  opi_text t;
  opi_text_init(&t, r->allocator);
  (void)pthread_mutex_lock(&r->lock);
  if (format != 0)
    opi_text_puts(&t, "[");
  for (uint32_t i = 0; i < r->n; ++i) {
    (void)open_candidate(r, r->candidates[i], NULL); /* the reason is kept with the candidate */
    if (format != 0)
      describe_json(&t, r->candidates[i], i == 0);
    else
      describe_text(&t, r->candidates[i]);
  }
  if (format != 0)
    opi_text_puts(&t, "\n]\n");
  (void)pthread_mutex_unlock(&r->lock);
  const opipe_status status = opi_text_write(&t, write, ctx, err);
  opi_text_release(&t);
  return status;
}
