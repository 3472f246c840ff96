/* SPDX-License-Identifier: Apache-2.0 */
/* Search of plugin files, and opening of one. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "abi/registry/registry.h"

#ifndef OPI_PLUGIN_INSTALL_DIR
#error "the build says where plugins are installed"
#endif

enum { PATH_ROOM = 4096, FILES_MOST = 1024 };

typedef struct search {
  const opipe_allocator *allocator;
  const opi_logger *logger;
  opi_found_fn found;
  void *ctx;
  uint32_t place, origin;
  opipe_error *err;
} search;

static bool is_plugin_name(const char *name) {
  const size_t n = strlen(name);
  return n > 9 && strncmp(name, "opipe-", 6) == 0 && strcmp(name + n - 3, ".so") == 0;
}

static int by_name(const void *left, const void *right) {
  return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Names in byte order, independent of the file system. */
static opipe_status list_names(DIR *dir, opi_arena *arena, char ***out_names, uint32_t *out_n,
                               opipe_error *err) {
  uint32_t room = 0;
  *out_names = NULL;
  *out_n = 0;
  for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
    if (!is_plugin_name(entry->d_name) || *out_n >= FILES_MOST)
      continue;
    char *name = opi_arena_strdup(arena, entry->d_name);
    if (name == NULL ||
        !opi_arena_grow(arena, (void **)out_names, &room, *out_n + 1, sizeof(char *)))
      return opi_fail_nomem(err, sizeof(char *), "a list of plugins");
    (*out_names)[(*out_n)++] = name;
  }
  if (*out_n > 1)
    qsort(*out_names, *out_n, sizeof(char *), by_name);
  return OPIPE_OK;
}

/* Warns about a given path in which nothing is found. */
static void warn_of(const search *s, const char *path, const char *what) {
  if (s->origin != OPI_FOUND_INSTALLED)
    opi_log(s->logger, OPIPE_LOG_WARN, "plugin path %s: %s", path, what);
}

static opipe_status search_directory(search *s, const char *path) {
  char file[PATH_ROOM];
  char **names = NULL;
  uint32_t n = 0;
  DIR *dir = opendir(path);
  if (dir == NULL) { /* a missing place holds no plugins */
    warn_of(s, path, strerror(errno));
    return OPIPE_OK;
  }
  opi_arena arena;
  opi_arena_init(&arena, s->allocator, 0);
  opipe_status status = list_names(dir, &arena, &names, &n, s->err);
  (void)closedir(dir);
  if (status == OPIPE_OK && n == 0)
    warn_of(s, path, "no file in it is called opipe-*.so");
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i) {
    const int length = snprintf(file, sizeof(file), "%s/%s", path, names[i]);
    if (length > 0 && (size_t)length < sizeof(file))
      status = s->found(s->ctx, file, s->place, s->origin, s->err);
  }
  opi_arena_release(&arena);
  ++s->place;
  return status;
}

static opipe_status search_given(search *s, const char *path) {
  struct stat st;
  char here[PATH_ROOM];
  if (stat(path, &st) != 0)
    return opi_fail_errno(s->err, errno, "plugin path %s", path);
  s->origin = S_ISDIR(st.st_mode) ? OPI_FOUND_FOLDER : OPI_FOUND_FILE;
  if (s->origin == OPI_FOUND_FOLDER)
    return search_directory(s, path);
  if (strchr(path, '/') != NULL)
    return s->found(s->ctx, path, s->place++, s->origin, s->err);
  const int n = snprintf(here, sizeof here, "./%s", path); /* without a slash the loader would
                                                              search for it */
  if (n < 0 || (size_t)n >= sizeof here)
    return opi_fail(s->err, OPIPE_E_INVALID, "plugin path %s is too long", path);
  return s->found(s->ctx, here, s->place++, s->origin, s->err);
}

static opipe_status search_environment(search *s) {
  const char *list = secure_getenv("OPIPE_PLUGIN_PATH");
  char path[PATH_ROOM];
  for (const char *at = list; at != NULL && *at != '\0';) {
    const char *end = strchr(at, ':');
    const size_t n = end == NULL ? strlen(at) : (size_t)(end - at);
    (void)snprintf(path, sizeof path, "%.*s", (int)(n < sizeof path ? n : sizeof path - 1), at);
    if (n >= sizeof path)
      warn_of(s, path, "it is too long, and is left out");
    else if (n > 0 && path[0] != '/') /* "" would mean the current directory */
      warn_of(s, path, "OPIPE_PLUGIN_PATH takes absolute paths only; it is left out");
    else if (n > 0)
      OPI_TRY(search_directory(s, path));
    at += n + (end != NULL);
  }
  return OPIPE_OK;
}

/* The folder onnx-pipe beside the library; empty if its place is unknown. */
static void beside_library(char *path, size_t room) {
  static const char anchor = 0; /* an address inside this library */
  Dl_info info;
  path[0] = '\0';
  if (dladdr(&anchor, &info) == 0 || info.dli_fname == NULL)
    return;
  char *real = realpath(info.dli_fname, NULL);
  char *slash = real == NULL ? NULL : strrchr(real, '/');
  if (slash != NULL) {
    *slash = '\0';
    const int n = snprintf(path, room, "%s/onnx-pipe", real);
    if (n < 0 || (size_t)n >= room)
      path[0] = '\0';
  }
  free(real);
}

static bool is_same_directory(const char *left, const char *right) {
  struct stat l, r;
  return stat(left, &l) == 0 && stat(right, &r) == 0 && l.st_dev == r.st_dev &&
         l.st_ino == r.st_ino;
}

/* Searches the folder installed, moved or copied with this library first, then the build's
 * installation folder, which a library that was copied alone can still find. */
static opipe_status search_installation(search *s) {
  static const char configured[] = OPI_PLUGIN_INSTALL_DIR;
  char beside[PATH_ROOM];
  beside_library(beside, sizeof(beside));
  if (beside[0] != '\0')
    OPI_TRY(search_directory(s, beside));
  return is_same_directory(beside, configured) ? OPIPE_OK : search_directory(s, configured);
}

bool opi_installed(uint32_t index, const char *name, char *path, size_t room) {
  char beside[PATH_ROOM];
  beside_library(beside, sizeof beside);
  const char *const folders[] = {beside, OPI_PLUGIN_INSTALL_DIR};
  if (index >= sizeof folders / sizeof folders[0])
    return false;
  const int n = snprintf(path, room, "%s/%s", folders[index], name);
  if (n < 0 || (size_t)n >= room || folders[index][0] == '\0')
    path[0] = '\0';
  return true;
}

opipe_status opi_discover(const opi_registry_params *params, opi_found_fn found, void *ctx,
                          opipe_error *err) {
  search s = {.allocator = params->allocator,
              .logger = params->logger,
              .found = found,
              .ctx = ctx,
              .err = err};
  for (uint32_t i = 0; i < params->n_paths; ++i)
    OPI_TRY(search_given(&s, params->paths[i]));
  s.origin = OPI_FOUND_FOLDER;
  OPI_TRY(search_environment(&s));
  s.origin = OPI_FOUND_INSTALLED;
  return search_installation(&s);
}

opipe_status opi_library_open(const char *path, const opipe_plugin **out_plugin, opipe_error *err) {
  struct link_map *own = NULL, *owner = NULL;
  Dl_info info;
  OPI_TRY(opi_elf_check(path, err));
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "cannot be loaded: %s", dlerror());
  const opipe_plugin *plugin = dlsym(library, "opipe_plugin_v1");
  if (plugin == NULL)
    return opi_fail(err, OPIPE_E_ABI, "it defines no symbol opipe_plugin_v1");
  if (dlinfo(library, RTLD_DI_LINKMAP, &own) != 0 ||
      dladdr1(plugin, &info, (void **)&owner, RTLD_DL_LINKMAP) == 0 || own != owner) {
    return opi_fail(
        err, OPIPE_E_ABI,
        "its symbol opipe_plugin_v1 comes from a library that it depends on, not from itself");
  }
  *out_plugin = plugin;
  return OPIPE_OK;
}
