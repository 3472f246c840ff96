/* SPDX-License-Identifier: Apache-2.0 */
/* Saving: data files first, the manifest last, by rename; then files that it no longer names are
 * removed. The folder is locked all the time, so that another saver waits. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/base/place.h"
#include "loader/base/sizes.h"
#include "runtime/checkpoint/checkpoint.h"
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
  uint64_t *hashes; /* [n] once written */
  uint32_t n, room;
  uint64_t largest, total; /* bytes */
  uint64_t header_hash;
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
  const bool own = state == OPI_TENSOR_WEIGHT; /* in its own type */
  (void)opi_weight_dense_bytes(s, &n_bytes);
  n_bytes = own ? s->n_bytes : n_bytes;
  p->entries[p->n] = (opi_tensor_entry){.name = name,
                                        .shape = s->shape,
                                        .n_bytes = n_bytes,
                                        .dtype = own ? s->dtype : OPIPE_FLOAT,
                                        .rank = s->rank};
  p->list[p->n++] = (piece){.param = s->name, .state = state, .version = version};
  p->largest = n_bytes > p->largest ? n_bytes : p->largest;
  p->total += n_bytes;
  return OPIPE_OK;
}

static opipe_status list_weights(const opi_weights *w, pieces *p, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    if (info.trained != 0)
      OPI_TRY(add(p, &info, "", OPI_TENSOR_MASTER, 0, err));
  }
  return OPIPE_OK;
}

static opipe_status list_gradients(const opi_weights *w, pieces *p, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    if (info.trained != 0)
      OPI_TRY(add(p, &info, "", OPI_TENSOR_GRADIENT, 0, err));
  }
  return OPIPE_OK;
}

static opipe_status list_state(const opi_weights *w, pieces *p, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    if (info.trained == 0 && info.changed != 0)
      OPI_TRY(add(p, &info, OPI_PREFIX_SET, OPI_TENSOR_WEIGHT, 0, err));
    if (info.trained == 0)
      continue;
    for (uint32_t m = 0; m < opi_weights_moments(w); ++m)
      OPI_TRY(add(p, &info, opi_prefix_moment[m], OPI_TENSOR_FIRST + m, 0, err));
    if (opi_weights_versions(w) > 1)
      OPI_TRY(add(p, &info, OPI_PREFIX_OLDER, OPI_TENSOR_MASTER, 1, err));
  }
  return OPIPE_OK;
}

typedef opipe_status (*list_fn)(const opi_weights *w, pieces *p, opipe_error *err);

/* Gets the listed tensors and drops them: this session's part in another one's save. */
static opipe_status serve(const opipe_allocator *allocator, opi_weights *w, list_fn list,
                          opipe_error *err) {
  pieces p = {.n = 0};
  opi_arena_init(&p.arena, allocator, 0);
  opipe_status status = list(w, &p, err);
  void *data = opi_alloc(allocator, (size_t)p.largest + 1);
  if (status == OPIPE_OK && data == NULL)
    status = opi_fail_nomem(err, p.largest, "a tensor");
  for (uint32_t i = 0; i < p.n && data != NULL; ++i) {
    const opipe_status got = opi_weights_get(w, p.list[i].param, p.list[i].state, p.list[i].version,
                                             data, p.entries[i].n_bytes, status < 0 ? NULL : err);
    status = status < 0 ? status : got;
  }
  opi_free(allocator, data, data == NULL ? 0 : (size_t)p.largest + 1);
  opi_arena_release(&p.arena);
  return status;
}

/* Writes the listed tensors, and removes a file that could not be written whole. All tensors are
 * got even after a failed write, since other sessions take part in getting them. */
static opipe_status write_pieces(const opipe_allocator *allocator, opi_weights *w, int dir,
                                 const char *file, pieces *p, opipe_error *err) {
  opi_tensors_writer *writer = NULL;
  void *data = opi_alloc(allocator, (size_t)p->largest + 1);
  p->hashes = OPI_ARENA_ARRAY(&p->arena, uint64_t, p->n);
  if (data == NULL || p->hashes == NULL) {
    opi_free(allocator, data, data == NULL ? 0 : (size_t)p->largest + 1);
    return opi_fail_nomem(err, p->largest, "a tensor");
  }
  opipe_status status = opi_tensors_create(allocator, dir, file, p->entries, p->n, &writer, err);
  if (status == OPIPE_OK)
    p->header_hash = opi_tensors_header_hash(writer);
  for (uint32_t i = 0; i < p->n; ++i) {
    const uint64_t n_bytes = p->entries[i].n_bytes;
    const opipe_status got =
        opi_weights_get(w, p->list[i].param, p->list[i].state, p->list[i].version, data, n_bytes,
                        status < 0 ? NULL : err);
    status = status < 0 ? status : got;
    p->hashes[i] = opi_tensors_hash(data, status == OPIPE_OK ? n_bytes : 0);
    if (status == OPIPE_OK)
      status = opi_tensors_add(writer, data, n_bytes, err);
  }
  const bool made = writer != NULL; /* else the file there is not ours */
  if (status == OPIPE_OK)
    status = opi_tensors_finish(writer, NULL, err);
  else
    opi_tensors_cancel(writer);
  opi_free(allocator, data, (size_t)p->largest + 1);
  if (status == OPIPE_OK)
    return OPIPE_OK;
  if (made)
    (void)unlinkat(dir, file, 0);
  return opi_error_prefix(err, "%s, %u tensors of %s: ", file, p->n, OPI_SIZE(p->total));
}

/* The pieces' names and hashes are in their arena, which the caller releases. */
static opipe_status write_tensors(const opipe_allocator *allocator, opi_weights *w, list_fn list,
                                  int dir, const char *file, pieces *out, opipe_error *err) {
  *out = (pieces){.n = 0};
  opi_arena_init(&out->arena, allocator, 0);
  OPI_TRY(list(w, out, err));
  return write_pieces(allocator, w, dir, file, out, err);
}

/* ---- the folder ---- */

/* The generation in a data file's name; 0: it is no data file. */
static uint64_t generation_of(const char *name) {
  static const char *const kinds[] = {"weights-", "state-"};
  for (size_t k = 0; k < OPI_COUNT(kinds); ++k) {
    const size_t n = strlen(kinds[k]);
    char *end = NULL;
    if (strncmp(name, kinds[k], n) != 0 || name[n] < '0' || name[n] > '9')
      continue;
    const uint64_t generation = strtoull(name + n, &end, 10);
    return strcmp(end, ".safetensors") == 0 && generation < INT64_MAX ? generation : 0;
  }
  return 0;
}

static bool is_of_a_checkpoint(const char *name) {
  return generation_of(name) != 0 || strcmp(name, OPI_MANIFEST_NEW) == 0 ||
         strcmp(name, OPI_MANIFEST) == 0;
}

opipe_status opi_checkpoint_check_target(const opi_model *model, const char *folder,
                                         opipe_error *err) {
  char path[PATH_MAX];
  opipe_status status = OPIPE_OK;
  DIR *list = opendir(folder);
  if (list == NULL)
    return OPIPE_OK; /* the save itself will say why it cannot be read */
  for (const struct dirent *e = readdir(list); e != NULL && status == OPIPE_OK; e = readdir(list)) {
    if (is_of_a_checkpoint(e->d_name) &&
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < PATH_MAX)
      status = opi_model_check_target(model, path, true, err);
  }
  (void)closedir(list);
  return status < 0 ? opi_error_prefix(err, "a checkpoint in %s: ", folder) : OPIPE_OK;
}

/* Removes files of other generations and those of an interrupted save. */
static void sweep(int dir, const opi_manifest *keep) {
  const int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *list = copy < 0 ? NULL : fdopendir(copy);
  if (list == NULL) {
    if (copy >= 0)
      (void)close(copy);
    return;
  }
  for (const struct dirent *e = readdir(list); e != NULL; e = readdir(list)) {
    const bool ours = generation_of(e->d_name) != 0 || strcmp(e->d_name, OPI_MANIFEST_NEW) == 0;
    if (ours && strcmp(e->d_name, keep->weights) != 0 && strcmp(e->d_name, keep->state) != 0)
      (void)unlinkat(dir, e->d_name, 0);
  }
  (void)closedir(list);
}

static bool is_link(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

/* *out_gone: another process removed the folder while it was locked. */
static opipe_status lock_folder(int dir, const char *folder, bool *out_gone, opipe_error *err) {
  struct stat st;
  OPI_TRY(opi_manifest_lock(dir, true, err));
  if (fstat(dir, &st) != 0)
    return opi_fail_errno(err, errno, "looking at the folder %s", folder);
  *out_gone = st.st_nlink == 0;
  return OPIPE_OK;
}

/* Opens and locks the folder. *out_made: this call made it. */
static opipe_status open_folder(const char *folder, int *out_dir, bool *out_made,
                                opipe_error *err) {
  enum { TRIES_MOST = 1000 }; /* others may make and remove it in between */
  for (uint32_t i = 0; i < TRIES_MOST; ++i) {
    bool gone = false;
    *out_made = mkdir(folder, 0777) == 0;
    if (!*out_made && errno != EEXIST)
      return opi_fail_errno(err, errno, "making the folder %s", folder);
    *out_dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*out_dir < 0 && errno == ENOENT && !is_link(folder))
      continue;
    if (*out_dir < 0)
      return opi_fail_errno(err, errno, "opening the folder %s", folder);
    OPI_TRY(lock_folder(*out_dir, folder, &gone, err));
    if (!gone)
      return OPIPE_OK;
    (void)close(*out_dir);
    *out_dir = -1;
  }
  return opi_fail(err, OPIPE_E_IO, "the folder %s was removed %d times", folder, TRIES_MOST);
}

/* Removes a folder that was made in vain, while it is still locked. */
static void close_folder(const char *folder, int dir, bool made, opipe_status status) {
  if (made && status < 0)
    (void)rmdir(folder);
  if (dir >= 0)
    (void)close(dir);
}

static opipe_status replace(int dir, const char *from, const char *to, opipe_error *err) {
  if (renameat(dir, from, dir, to) != 0)
    return opi_fail_errno(err, errno, "renaming %s to %s", from, to);
  return fsync(dir) != 0 ? opi_fail_errno(err, errno, "flushing the folder of %s", to) : OPIPE_OK;
}

static opipe_status write_manifest(const opipe_allocator *allocator, int dir,
                                   const opi_manifest *manifest,
                                   const opi_file_hashes files[OPI_MANIFEST_FILES],
                                   opipe_error *err) {
  opi_text text;
  opi_text_init(&text, allocator);
  opi_manifest_text(manifest, files, &text);
  opipe_status status = text.failed ? opi_fail_nomem(err, text.n, "a manifest") : OPIPE_OK;
  const int fd = status < 0
                     ? -1
                     : openat(dir, OPI_MANIFEST_NEW, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (status == OPIPE_OK && fd < 0)
    status = opi_fail_errno(err, errno, "making %s", OPI_MANIFEST_NEW);
  if (status == OPIPE_OK && (status = opi_write_all(fd, text.data, text.n, err)) < 0)
    (void)opi_error_prefix(err, "%s: ", OPI_MANIFEST_NEW);
  if (status == OPIPE_OK && fsync(fd) != 0)
    status = opi_fail_errno(err, errno, "flushing %s", OPI_MANIFEST_NEW);
  if (fd >= 0)
    (void)close(fd);
  opi_text_release(&text);
  if (status == OPIPE_OK)
    status = replace(dir, OPI_MANIFEST_NEW, OPI_MANIFEST, err);
  if (status < 0 && fd >= 0)
    (void)unlinkat(dir, OPI_MANIFEST_NEW, 0);
  return status;
}

/* The highest generation of any data file. */
static uint64_t newest_generation(int dir) {
  uint64_t most = 0;
  const int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *list = copy < 0 ? NULL : fdopendir(copy);
  if (list == NULL && copy >= 0)
    (void)close(copy);
  for (const struct dirent *e = list == NULL ? NULL : readdir(list); e != NULL; e = readdir(list)) {
    const uint64_t generation = generation_of(e->d_name);
    most = generation > most ? generation : most;
  }
  if (list != NULL)
    (void)closedir(list);
  return most;
}

/* Reads the manifest in place. A damaged one of ours may be replaced, any other file may not. */
static opipe_status read_old(const opipe_allocator *allocator, int dir, opi_manifest *out_old,
                             bool *out_damaged, opipe_error *err) {
  const opipe_status found = opi_manifest_read(allocator, dir, out_old, err);
  *out_damaged = false;
  if (found == OPIPE_E_NOTFOUND || found == OPIPE_OK)
    return OPIPE_OK;
  if (found != OPIPE_E_INVALID || !opi_manifest_is_ours(allocator, dir))
    return opi_error_prefix(err, "the checkpoint that is to be replaced: ");
  out_old->generation = newest_generation(dir);
  *out_damaged = true;
  return OPIPE_OK;
}

static opi_file_hashes hashes_of(const pieces *p) {
  return (opi_file_hashes){
      .entries = p->entries, .tensors = p->hashes, .header = p->header_hash, .n = p->n};
}

static opipe_status write_files(const opipe_allocator *allocator, opi_weights *w, int dir,
                                const opi_manifest *m, opipe_error *err) {
  pieces values, state = {.n = 0};
  opipe_status status = write_tensors(allocator, w, list_weights, dir, m->weights, &values, err);
  const bool has_values = status == OPIPE_OK;
  opi_arena_init(&state.arena, allocator, 0);
  if (status == OPIPE_OK)
    status = write_tensors(allocator, w, list_state, dir, m->state, &state, err);
  else
    (void)serve(allocator, w, list_state, NULL);
  const bool has_state = status == OPIPE_OK;
  if (status == OPIPE_OK && fsync(dir) != 0)
    status = opi_fail_errno(err, errno, "flushing the folder");
  if (status == OPIPE_OK) {
    const opi_file_hashes files[OPI_MANIFEST_FILES] = {hashes_of(&values), hashes_of(&state)};
    status = write_manifest(allocator, dir, m, files, err);
  }
  opi_arena_release(&values.arena);
  opi_arena_release(&state.arena);
  if (status < 0 && has_values)
    (void)unlinkat(dir, m->weights, 0);
  if (status < 0 && has_state)
    (void)unlinkat(dir, m->state, 0);
  return status;
}

static opipe_status save(const opipe_allocator *allocator, opi_weights *w, int dir,
                         const uint64_t *position, opipe_error *err) {
  opi_manifest old = {.generation = 0}, m = {.generation = 1};
  bool damaged = false;
  const opipe_status read = read_old(allocator, dir, &old, &damaged, err);
  opi_manifest_free(&old);
  if (read < 0)
    return opi_weights_agree(w, read, err);
  m.generation = old.generation + 1;
  m.moments = opi_weights_moments(w);
  m.versions = opi_weights_versions(w);
  memcpy(m.position, position, sizeof m.position);
  opi_weights_get_clock(w, &m.clock);
  (void)snprintf(m.weights, sizeof m.weights, "weights-%llu.safetensors",
                 (unsigned long long)m.generation);
  (void)snprintf(m.state, sizeof m.state, "state-%llu.safetensors",
                 (unsigned long long)m.generation);
  if (!damaged)
    sweep(dir, &old);
  OPI_TRY(opi_weights_agree(w, OPIPE_OK, err));
  const opipe_status status = write_files(allocator, w, dir, &m, err);
  if (status == OPIPE_OK)
    sweep(dir, &m);
  return opi_weights_agree(w, status, err);
}

/* A session that does not write gets the same tensors in the same order as the one that does. */
static opipe_status follow(const opipe_allocator *allocator, opi_weights *w, opipe_error *err) {
  OPI_TRY(opi_weights_agree(w, OPIPE_OK, err));
  opipe_status status = serve(allocator, w, list_weights, err);
  const opipe_status second = serve(allocator, w, list_state, status < 0 ? NULL : err);
  const opipe_status all = opi_weights_agree(w, OPIPE_OK, status < 0 || second < 0 ? NULL : err);
  status = status < 0 ? status : second;
  return status < 0 ? status : all;
}

opipe_status opi_checkpoint_save(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, const uint64_t position[OPI_POSITION],
                                 opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  int dir = -1;
  bool made = false;
  if (!opi_weights_leads(weights))
    return follow(allocator, weights, e);
  opipe_status status = open_folder(folder, &dir, &made, e);
  status = status == OPIPE_OK ? save(allocator, weights, dir, position, e)
                              : opi_weights_agree(weights, status, e);
  close_folder(folder, dir, made, status);
  return status < 0 ? opi_error_prefix(e, "saving the checkpoint %s: ", folder) : OPIPE_OK;
}

opipe_status opi_checkpoint_try(const opipe_allocator *allocator, const char *folder,
                                opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  opi_manifest old = {.generation = 0};
  int dir = -1;
  bool made = false, damaged = false;
  opipe_status status = open_folder(folder, &dir, &made, e);
  if (status == OPIPE_OK)
    status = read_old(allocator, dir, &old, &damaged, e);
  opi_manifest_free(&old);
  if (status == OPIPE_OK)
    status = opi_try_file(dir, OPI_MANIFEST_NEW, e);
  if (made)
    (void)rmdir(folder); /* while it is locked */
  close_folder(folder, dir, false, status);
  return status < 0 ? opi_error_prefix(e, "a checkpoint in %s: ", folder) : OPIPE_OK;
}

/* Writes the gradients to a new file, which replaces the old one once it is whole. */
static opipe_status save_gradients(const opipe_allocator *allocator, opi_weights *w,
                                   const char *path, opipe_error *err) {
  opi_file_place place;
  char temp[PATH_MAX];
  pieces gradients;
  opipe_status status = opi_file_place_find(AT_FDCWD, path, &place, err);
  if (status == OPIPE_OK &&
      snprintf(temp, sizeof temp, "%s.%d.new", place.path, (int)getpid()) >= PATH_MAX) {
    status =
        opi_fail(err, OPIPE_E_INVALID, "the path '%.80s...' is longer than %d", path, PATH_MAX);
  }
  if (status < 0) {
    (void)serve(allocator, w, list_gradients, NULL); /* other sessions get their part too */
    return status;
  }
  (void)unlink(temp);
  status = write_tensors(allocator, w, list_gradients, AT_FDCWD, temp, &gradients, err);
  opi_arena_release(&gradients.arena);
  if (status < 0)
    return status;
  if (place.mode != 0 && chmod(temp, place.mode) != 0)
    status = opi_fail_errno(err, errno, "giving %s its permissions", path);
  if (status == OPIPE_OK && rename(temp, place.path) != 0)
    status = opi_fail_errno(err, errno, "renaming %s to %s", temp, place.path);
  if (status < 0)
    (void)unlink(temp);
  return status;
}

opipe_status opi_checkpoint_gradients(const opipe_allocator *allocator, opi_weights *weights,
                                      const char *path, opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  if (!opi_weights_leads(weights)) {
    const opipe_status served = serve(allocator, weights, list_gradients, e);
    const opipe_status all = opi_weights_agree(weights, OPIPE_OK, served < 0 ? NULL : e);
    return served < 0 ? served : all;
  }
  return opi_weights_agree(weights, save_gradients(allocator, weights, path, e), e);
}
