/* SPDX-License-Identifier: Apache-2.0 */
/* Saving: data files first, the manifest last, by rename; then what is no longer named goes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/dtypes.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/safetensors.h"

/* One tensor to be written. */
typedef struct piece {
  const char *param;
  uint32_t state, version;
} piece;

typedef struct pieces {
  opi_arena arena;
  opi_tensor_entry *entries;
  piece *list;
  uint32_t n, room;
  uint64_t largest;
} pieces;

static opipe_status add(pieces *p, const opi_weight_info *info, const char *prefix, uint32_t state,
                        uint32_t version, opipe_error *err) {
  uint32_t room = p->room;
  uint64_t n_bytes = 0;
  const opipe_param_source *s = info->source;
  const char *name = opi_arena_printf(&p->arena, "%s%s", prefix, s->name);
  if (name == NULL ||
      !opi_arena_grow(&p->arena, (void **)&p->list, &room, p->n + 1, sizeof *p->list) ||
      !opi_arena_grow(&p->arena, (void **)&p->entries, &p->room, p->n + 1, sizeof *p->entries))
    return opi_fail_nomem(err, (p->n + 1) * sizeof *p->entries, "a checkpoint");
  (void)opi_weight_dense_bytes(s, &n_bytes);
  p->entries[p->n] = (opi_tensor_entry){
      .name = name, .shape = s->shape, .n_bytes = n_bytes, .dtype = OPIPE_FLOAT, .rank = s->rank};
  p->list[p->n++] = (piece){.param = s->name, .state = state, .version = version};
  p->largest = n_bytes > p->largest ? n_bytes : p->largest;
  return OPIPE_OK;
}

static opipe_status list_weights(const opi_weights *w, pieces *p, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    if (info.trained != 0)
      OPI_TRY(add(p, &info, "", OPI_STATE_MASTER, 0, err));
  }
  return OPIPE_OK;
}

static opipe_status list_gradients(const opi_weights *w, pieces *p, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    if (info.trained != 0)
      OPI_TRY(add(p, &info, "", OPI_STATE_GRADIENT, 0, err));
  }
  return OPIPE_OK;
}

static opipe_status list_state(const opi_weights *w, pieces *p, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    if (info.trained == 0)
      continue;
    if (opi_weights_moments(w) > 0)
      OPI_TRY(add(p, &info, OPI_PREFIX_FIRST, OPI_STATE_FIRST, 0, err));
    if (opi_weights_moments(w) > 1)
      OPI_TRY(add(p, &info, OPI_PREFIX_SECOND, OPI_STATE_SECOND, 0, err));
    if (opi_weights_versions(w) > 1)
      OPI_TRY(add(p, &info, OPI_PREFIX_OLDER, OPI_STATE_MASTER, 1, err));
  }
  return OPIPE_OK;
}

typedef opipe_status (*list_fn)(const opi_weights *w, pieces *p, opipe_error *err);

static opipe_status write_pieces(const opipe_allocator *allocator, opi_weights *w, int dir,
                                 const char *file, pieces *p, opipe_error *err) {
  opi_tensors_writer *writer = NULL;
  void *data = opi_alloc(allocator, (size_t)p->largest + 1);
  if (data == NULL)
    return opi_fail_nomem(err, p->largest, "a tensor");
  opipe_status status = opi_tensors_create(allocator, dir, file, p->entries, p->n, &writer, err);
  for (uint32_t i = 0; i < p->n && status == OPIPE_OK; ++i) {
    const uint64_t n_bytes = p->entries[i].n_bytes;
    status = opi_weights_get(w, p->list[i].param, p->list[i].state, p->list[i].version, data,
                             n_bytes, err);
    if (status == OPIPE_OK)
      status = opi_tensors_add(writer, data, n_bytes, err);
  }
  if (status == OPIPE_OK) {
    status = opi_tensors_finish(writer, NULL, err);
  } else {
    opi_tensors_cancel(writer);
  }
  opi_free(allocator, data, (size_t)p->largest + 1);
  if (status < 0)
    (void)opi_error_prefix(err, "%s: ", file);
  return status;
}

static opipe_status write_tensors(const opipe_allocator *allocator, opi_weights *w, list_fn list,
                                  int dir, const char *file, opipe_error *err) {
  pieces p = {.n = 0};
  opi_arena_init(&p.arena, allocator, 0);
  opipe_status status = list(w, &p, err);
  if (status == OPIPE_OK)
    status = write_pieces(allocator, w, dir, file, &p, err);
  opi_arena_release(&p.arena);
  return status;
}

/* ---- the folder ---- */

/* Files of other generations, and what an interrupted save left. */
static void sweep(int dir, const opi_manifest *keep) {
  const int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *list = copy < 0 ? NULL : fdopendir(copy);
  if (list == NULL) {
    if (copy >= 0)
      (void)close(copy);
    return;
  }
  for (const struct dirent *e = readdir(list); e != NULL; e = readdir(list)) {
    const bool ours = strncmp(e->d_name, "weights-", 8) == 0 ||
                      strncmp(e->d_name, "state-", 6) == 0 ||
                      strcmp(e->d_name, OPI_MANIFEST_NEW) == 0;
    if (ours && strcmp(e->d_name, keep->weights) != 0 && strcmp(e->d_name, keep->state) != 0)
      (void)unlinkat(dir, e->d_name, 0);
  }
  (void)closedir(list);
}

static opipe_status open_folder(const char *folder, int *out_dir, opipe_error *err) {
  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return opi_fail_errno(err, errno, "making the folder %s", folder);
  *out_dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return *out_dir < 0 ? opi_fail_errno(err, errno, "opening the folder %s", folder) : OPIPE_OK;
}

static opipe_status replace(int dir, const char *from, const char *to, opipe_error *err) {
  if (renameat(dir, from, dir, to) != 0)
    return opi_fail_errno(err, errno, "renaming %s to %s", from, to);
  return fsync(dir) != 0 ? opi_fail_errno(err, errno, "flushing the folder of %s", to) : OPIPE_OK;
}

static opipe_status write_manifest(const opipe_allocator *allocator, int dir,
                                   const opi_manifest *manifest, opipe_error *err) {
  opi_text text;
  opi_text_init(&text, allocator);
  opi_manifest_text(manifest, &text);
  opipe_status status = text.failed ? opi_fail_nomem(err, text.n, "a manifest") : OPIPE_OK;
  const int fd = status < 0
                     ? -1
                     : openat(dir, OPI_MANIFEST_NEW, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (status == OPIPE_OK && fd < 0)
    status = opi_fail_errno(err, errno, "making %s", OPI_MANIFEST_NEW);
  if (status == OPIPE_OK)
    status = opi_write_all(fd, text.data, text.n, err);
  if (status == OPIPE_OK && fsync(fd) != 0)
    status = opi_fail_errno(err, errno, "flushing %s", OPI_MANIFEST_NEW);
  if (fd >= 0)
    (void)close(fd);
  opi_text_release(&text);
  return status == OPIPE_OK ? replace(dir, OPI_MANIFEST_NEW, OPI_MANIFEST, err) : status;
}

static opipe_status save(const opipe_allocator *allocator, opi_weights *w, int dir,
                         const uint64_t *position, opipe_error *err) {
  opi_manifest old = {.generation = 0}, m = {.generation = 1};
  const opipe_status found = opi_manifest_read(allocator, dir, &old, err);
  if (found < 0 && found != OPIPE_E_NOTFOUND)
    return opi_error_prefix(err, "the checkpoint that is to be replaced: ");
  m.generation = found == OPIPE_OK ? old.generation + 1 : 1;
  m.moments = opi_weights_moments(w);
  m.versions = opi_weights_versions(w);
  memcpy(m.position, position, sizeof m.position);
  opi_weights_get_clock(w, &m.clock);
  (void)snprintf(m.weights, sizeof m.weights, "weights-%llu.safetensors",
                 (unsigned long long)m.generation);
  (void)snprintf(m.state, sizeof m.state, "state-%llu.safetensors",
                 (unsigned long long)m.generation);
  sweep(dir, &old);
  OPI_TRY(write_tensors(allocator, w, list_weights, dir, m.weights, err));
  OPI_TRY(write_tensors(allocator, w, list_state, dir, m.state, err));
  if (fsync(dir) != 0)
    return opi_fail_errno(err, errno, "flushing the folder");
  OPI_TRY(write_manifest(allocator, dir, &m, err));
  sweep(dir, &m);
  return OPIPE_OK;
}

opipe_status opi_checkpoint_save(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, const uint64_t position[OPI_POSITION],
                                 opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  int dir = -1;
  OPI_TRY(open_folder(folder, &dir, e));
  const opipe_status status = save(allocator, weights, dir, position, e);
  (void)close(dir);
  return status < 0 ? opi_error_prefix(e, "saving the checkpoint %s: ", folder) : OPIPE_OK;
}

opipe_status opi_checkpoint_gradients(const opipe_allocator *allocator, opi_weights *weights,
                                      const char *path, opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  opi_text temp;
  opi_text_init(&temp, allocator);
  opi_text_printf(&temp, "%s.%d.new", path, (int)getpid());
  if (temp.failed) {
    opi_text_release(&temp);
    return opi_fail_nomem(e, strlen(path), "a name");
  }
  (void)unlink(temp.data);
  opipe_status status = write_tensors(allocator, weights, list_gradients, AT_FDCWD, temp.data, e);
  if (status == OPIPE_OK && rename(temp.data, path) != 0)
    status = opi_fail_errno(e, errno, "renaming %s to %s", temp.data, path);
  if (status < 0)
    (void)unlink(temp.data);
  opi_text_release(&temp);
  return status;
}
