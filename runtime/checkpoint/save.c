/* SPDX-License-Identifier: Apache-2.0 */
/* Saving by one session: data files first, the manifest last, by rename; then files that it no
 * longer names are removed. The folder is locked all the time, so that another saver waits. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/base/place.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/pieces.h"
#include "runtime/checkpoint/save.h"

opipe_status opi_checkpoint_check_target(const opi_model *model, const char *folder,
                                         opipe_error *err) {
  char path[PATH_MAX];
  opipe_status status = OPIPE_OK;
  DIR *list = opendir(folder);
  if (list == NULL)
    return OPIPE_OK; /* the save itself will say why it cannot be read */
  for (const struct dirent *e = readdir(list); e != NULL && status == OPIPE_OK; e = readdir(list)) {
    if (opi_folder_owns(e->d_name) &&
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < PATH_MAX)
      status = opi_model_check_target(model, path, true, err);
  }
  (void)closedir(list);
  return status < 0 ? opi_error_prefix(err, "a checkpoint in %s: ", folder) : OPIPE_OK;
}

/* *out_replaced: the new manifest is there, and so its data files stay. */
static opipe_status write_files(const opipe_allocator *allocator, opi_weights *w, int dir,
                                const opi_manifest *m, bool *out_replaced, opipe_error *err) {
  opi_pieces pieces[OPI_MANIFEST_FILES];
  opi_text text;
  opi_text_init(&text, allocator);
  opipe_status status = opi_shard_write(allocator, w, false, dir, m->shards, pieces, err);
  if (status == OPIPE_OK) {
    const opi_file_hashes files[OPI_MANIFEST_FILES] = {opi_pieces_hashes(&pieces[0]),
                                                       opi_pieces_hashes(&pieces[1])};
    opi_manifest_text(m, files, &text);
    status = opi_folder_put_manifest(dir, &text, out_replaced, err);
    if (!*out_replaced)
      opi_shard_remove(dir, m->shards);
  }
  opi_text_release(&text);
  opi_shard_release(pieces);
  return status;
}

void opi_checkpoint_begin(const opi_weights *w, uint64_t generation,
                          const uint64_t position[OPI_POSITION], opi_manifest *out) {
  *out = (opi_manifest){.generation = generation,
                        .moments = opi_weights_moments(w),
                        .versions = opi_weights_versions(w)};
  memcpy(out->position, position, sizeof out->position);
  opi_weights_get_clock(w, &out->clock);
}

static opipe_status save(const opipe_allocator *allocator, opi_weights *w, int dir,
                         const uint64_t *position, opipe_error *err) {
  opi_manifest old = {.generation = 0}, m;
  opi_shard shard = {.hashes = NULL};
  bool damaged = false, replaced = false;
  opipe_status status = opi_folder_read_old(allocator, dir, &old, &damaged, err);
  if (status == OPIPE_OK && !damaged)
    opi_folder_sweep(dir, &old);
  opi_checkpoint_begin(w, old.generation + 1, position, &m);
  opi_manifest_free(&old);
  if (status < 0)
    return opi_weights_agree(w, status, err);
  const unsigned long long generation = m.generation;
  m.shards = &shard;
  m.n_shards = 1;
  (void)snprintf(shard.files[0], OPI_FILE_ROOM, "weights-%llu.safetensors", generation);
  (void)snprintf(shard.files[1], OPI_FILE_ROOM, "state-%llu.safetensors", generation);
  OPI_TRY(opi_weights_agree(w, OPIPE_OK, err));
  status = write_files(allocator, w, dir, &m, &replaced, err);
  if (replaced)
    opi_folder_sweep(dir, &m);
  return opi_weights_agree(w, status, err);
}

/* A session that does not write gets the same tensors in the same order as the one that does. */
static opipe_status follow(const opipe_allocator *allocator, opi_weights *w, opipe_error *err) {
  OPI_TRY(opi_weights_agree(w, OPIPE_OK, err));
  opipe_status status = opi_pieces_serve(allocator, w, opi_list_weights, err);
  const opipe_status second =
      opi_pieces_serve(allocator, w, opi_list_state, status < 0 ? NULL : err);
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
  opipe_status status = opi_folder_open(folder, &dir, &made, e);
  status = status == OPIPE_OK ? save(allocator, weights, dir, position, e)
                              : opi_weights_agree(weights, status, e);
  opi_folder_close(folder, dir, made, status);
  return status < 0 ? opi_error_prefix(e, "saving the checkpoint %s: ", folder) : OPIPE_OK;
}

opipe_status opi_checkpoint_try(const opipe_allocator *allocator, const char *folder,
                                opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  opi_manifest old = {.generation = 0};
  int dir = -1;
  bool made = false, damaged = false;
  opipe_status status = opi_folder_open(folder, &dir, &made, e);
  if (status == OPIPE_OK)
    status = opi_folder_read_old(allocator, dir, &old, &damaged, e);
  opi_manifest_free(&old);
  if (status == OPIPE_OK)
    status = opi_try_file(dir, OPI_MANIFEST_NEW, e);
  if (made)
    (void)rmdir(folder); /* while it is locked */
  opi_folder_close(folder, dir, false, status);
  return status < 0 ? opi_error_prefix(e, "a checkpoint in %s: ", folder) : OPIPE_OK;
}

/* Writes the gradients to a new file, which replaces the old one once it is whole. */
static opipe_status save_gradients(const opipe_allocator *allocator, opi_weights *w,
                                   const char *path, opipe_error *err) {
  opi_file_place place;
  char temp[PATH_MAX];
  opi_pieces gradients;
  opipe_status status = opi_file_place_find(AT_FDCWD, path, &place, err);
  if (status == OPIPE_OK &&
      snprintf(temp, sizeof temp, "%s.%d.new", place.path, (int)getpid()) >= PATH_MAX) {
    status =
        opi_fail(err, OPIPE_E_INVALID, "the path '%.80s...' is longer than %d", path, PATH_MAX);
  }
  if (status < 0) {
    (void)opi_pieces_serve(allocator, w, opi_list_gradients,
                           NULL); /* other sessions get their part too */
    return status;
  }
  (void)unlink(temp);
  status =
      opi_pieces_write(allocator, w, opi_list_gradients, false, AT_FDCWD, temp, &gradients, err);
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
    const opipe_status served = opi_pieces_serve(allocator, weights, opi_list_gradients, e);
    const opipe_status all = opi_weights_agree(weights, OPIPE_OK, served < 0 ? NULL : e);
    return served < 0 ? served : all;
  }
  return opi_weights_agree(weights, save_gradients(allocator, weights, path, e), e);
}
