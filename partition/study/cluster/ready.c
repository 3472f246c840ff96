/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters by name, from files installed with the library. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "loader/base/json.h"
#include "loader/base/nearest.h"
#include "partition/study/cluster/cluster.h"

enum { PATH_ROOM = 4096, FILE_MOST = 256 << 20, READY_MOST = 4096 };
static const char ENDING[] = ".json", NODES[] = ":nodes=";

/* ---- files ---- */

static opipe_status read_all(FILE *file, const char *path, opi_text *out, opipe_error *err) {
  char block[4096];
  size_t n = 0;
  while ((n = fread(block, 1, sizeof block, file)) > 0 && out->n <= FILE_MOST)
    opi_text_add(out, block, n);
  if (out->failed)
    return opi_fail_nomem(err, out->n, "a cluster");
  return ferror(file) == 0 ? OPIPE_OK : opi_fail(err, OPIPE_E_IO, "%s cannot be read", path);
}

static opipe_status read_file(const char *path, opi_text *out, opipe_error *err) {
  FILE *file = fopen(path, "rbe");
  if (file == NULL)
    return opi_fail_errno(err, errno, "%s", path);
  const opipe_status status = read_all(file, path, out, err);
  (void)fclose(file);
  return status;
}

static bool is_file(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static int by_name(const void *left, const void *right) {
  return strcmp(*(char *const *)left, *(char *const *)right);
}

static opipe_status list_folder(const char *folder, opi_arena *arena, char **names, uint32_t *io_n,
                                opipe_error *err) {
  DIR *dir = opendir(folder);
  const struct dirent *entry = NULL;
  if (dir == NULL)
    return errno == ENOENT ? OPIPE_OK : opi_fail_errno(err, errno, "%s", folder);
  opipe_status status = OPIPE_OK;
  while (status == OPIPE_OK && *io_n < READY_MOST && (entry = readdir(dir)) != NULL) {
    const size_t n = strlen(entry->d_name), end = sizeof ENDING - 1;
    if (n <= end || strcmp(entry->d_name + n - end, ENDING) != 0)
      continue;
    names[*io_n] = opi_arena_strndup(arena, entry->d_name, n - end);
    if (names[(*io_n)++] == NULL)
      status = opi_fail_nomem(err, n, "a cluster's name");
  }
  (void)closedir(dir);
  return status;
}

/* Sorted, without repeats. */
static opipe_status list_names(const char *const *folders, uint32_t n_folders, opi_arena *arena,
                               char ***out_names, uint32_t *out_n, opipe_error *err) {
  char **names = OPI_ARENA_ARRAY(arena, char *, READY_MOST);
  uint32_t n = 0, kept = 0;
  if (names == NULL)
    return opi_fail_nomem(err, READY_MOST * sizeof *names, "clusters' names");
  for (uint32_t i = 0; i < n_folders; ++i)
    OPI_TRY(list_folder(folders[i], arena, names, &n, err));
  qsort(names, n, sizeof *names, by_name);
  for (uint32_t i = 0; i < n; ++i) {
    if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0)
      names[kept++] = names[i];
  }
  *out_names = names;
  *out_n = kept;
  return OPIPE_OK;
}

/* ---- by name ---- */

/* Finds the file of a named cluster; false: there is none. A name is not a path. */
static bool find_ready(const char *name, const char *const *folders, uint32_t n_folders,
                       char path[PATH_ROOM]) {
  for (uint32_t i = 0; strchr(name, '/') == NULL && i < n_folders; ++i) {
    const int n = snprintf(path, PATH_ROOM, "%s/%s%s", folders[i], name, ENDING);
    if (n > 0 && n < PATH_ROOM && is_file(path))
      return true;
  }
  return false;
}

static opipe_status refuse_name(const char *name, const char *const *folders, uint32_t n_folders,
                                opi_arena *arena, opipe_error *err) {
  char known[300] = "", meant[OPI_NEAREST_ROOM];
  opi_nearest nearest = {.word = name, .n = strcspn(name, ":")};
  char **names = NULL;
  uint32_t n = 0;
  OPI_TRY(list_names(folders, n_folders, arena, &names, &n, err));
  for (uint32_t i = 0; i < n; ++i) {
    const size_t used = strlen(known);
    (void)snprintf(known + used, sizeof known - used, "%s%s", used == 0 ? "" : ", ", names[i]);
    opi_nearest_look(&nearest, names[i]);
  }
  return opi_fail(err, OPIPE_E_NOTFOUND,
                  "there is no cluster '%.100s': it is neither a file nor one of %s%s", name, known,
                  opi_nearest_words(&nearest, meant, sizeof meant));
}

static opipe_status load(const char *name, const char *const *folders, uint32_t n_folders,
                         opi_arena *arena, opi_text *out, opipe_error *err) {
  char path[PATH_ROOM];
  if (is_file(name))
    return read_file(name, out, err);
  return find_ready(name, folders, n_folders, path)
             ? read_file(path, out, err)
             : refuse_name(name, folders, n_folders, arena, err);
}

static int add_text(const char *data, size_t n, void *text) {
  opi_text_add(text, data, n);
  return 0;
}

/* Replaces the number of nodes in the text. */
static opipe_status set_nodes(const char *name, int64_t n_nodes, json_t *root, opi_text *io_text,
                              opipe_error *err) {
  const json_t *nodes = json_object_get(root, "nodes");
  const size_t n_entries = json_is_array(nodes) ? json_array_size(nodes) : 0;
  json_t *owner = n_entries == 1 ? json_array_get(nodes, 0) : root;
  if (n_entries > 1 || !json_is_object(owner)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%.100s: nodes=%" JSON_INTEGER_FORMAT
                    ", but \"nodes\" has %zu entries of "
                    "different nodes",
                    name, (json_int_t)n_nodes, n_entries);
  }
  if (json_object_set_new(owner, n_entries == 1 ? "count" : "nodes", json_integer(n_nodes)) != 0)
    return opi_fail_nomem(err, sizeof(json_int_t), "a cluster");
  io_text->n = 0;
  const int written =
      json_dump_callback(root, add_text, io_text, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
  return written == 0 && !io_text->failed ? OPIPE_OK : opi_fail_nomem(err, io_text->n, "a cluster");
}

static opipe_status take_nodes(const char *name, int64_t n_nodes, opi_text *io_text,
                               opipe_error *err) {
  json_t *root = NULL;
  OPI_TRY(opi_json_parse(io_text->data, io_text->n, name, &root, err));
  const opipe_status status = set_nodes(name, n_nodes, root, io_text, err);
  json_decref(root);
  return status;
}

static opipe_status find(const char *spec, const char *const *folders, uint32_t n_folders,
                         opi_arena *arena, opi_text *text, opipe_error *err) {
  const char *at = strstr(spec, NODES);
  for (const char *next = at; next != NULL; next = strstr(next + 1, NODES))
    at = next;
  opi_cluster cluster;
  int64_t n_nodes = 0;
  const char *name = at == NULL ? spec : opi_arena_strndup(arena, spec, (size_t)(at - spec));
  if (name == NULL)
    return opi_fail_nomem(err, strlen(spec), "a cluster's name");
  if (at != NULL && !opi_parse_int(at + sizeof NODES - 1, 1, OPI_CLUSTER_DEVICES_MOST, &n_nodes)) {
    return opi_fail(err, OPIPE_E_INVALID, "cluster '%.100s': nodes=%.40s; it must be from 1 to %d",
                    name, at + sizeof NODES - 1, OPI_CLUSTER_DEVICES_MOST);
  }
  OPI_TRY(load(name, folders, n_folders, arena, text, err));
  if (at != NULL)
    OPI_TRY(take_nodes(name, n_nodes, text, err));
  return opi_cluster_read(name, text->data == NULL ? "" : text->data, text->n, arena, &cluster,
                          err);
}

opipe_status opi_cluster_find(const char *spec, const char *const *folders, uint32_t n_folders,
                              opi_text *out_text, opipe_error *err) {
  opi_arena arena;
  opi_text text;
  opi_arena_init(&arena, out_text->allocator, 0);
  opi_text_init(&text, out_text->allocator);
  opipe_status status = find(spec, folders, n_folders, &arena, &text, err);
  if (status == OPIPE_OK)
    opi_text_add(out_text, text.data, text.n);
  if (status == OPIPE_OK && out_text->failed)
    status = opi_fail_nomem(err, text.n, "a cluster");
  opi_text_release(&text);
  opi_arena_release(&arena);
  return status;
}
