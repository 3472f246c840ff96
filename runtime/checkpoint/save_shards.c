/* SPDX-License-Identifier: Apache-2.0 */
/* Saving by the processes of a group, under the lock of process 0:
 *
 *   process 0: locks, sweeps, writes the token ── folder ──► all: read the token
 *              removes the token ◄───────────── token ───── all: it is the same folder
 *   all: write and flush their shards ───────── shards ────► process 0: replaces the manifest
 *                                     ◄──────── manifest ─── process 0: it is there, or why not
 *
 * A process removes its shard only while it knows that no manifest names it: its own write failed,
 * or all have been told of an error. If the group fails after the shards were said to be there, a
 * manifest may name them, and they stay; the next save removes them if none does.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/group.h"
#include "runtime/checkpoint/pieces.h"
#include "runtime/checkpoint/save.h"

enum { PATH_ROOM = 512 };

/* From process 0: where it saves. */
typedef struct announcement {
  uint64_t generation;
  char token[OPI_TOKEN_ROOM], path[PATH_ROOM];
} announcement;

/* How far a process is. */
typedef struct standing {
  uint64_t n_steps;
  uint32_t holds; /* 1: it has trained parameters, and so a clock that runs */
  uint32_t reserved;
} standing;

/* Before the text of a shard. */
typedef struct shard_head {
  opi_weights_clock clock;
  uint32_t n_weights, holds;
} shard_head;

/* From process 0: what became of the manifest. */
typedef struct verdict {
  uint32_t replaced;
  int32_t status;
  char reason[sizeof(((opipe_error *)0)->message)];
} verdict;

typedef struct saving {
  const opipe_allocator *allocator;
  opi_weights *weights;
  const opi_checkpoint_group *group;
  const char *folder;
  int dir;
  bool made; /* process 0: the folder did not exist */
  announcement told;
  standing first; /* of the lowest process that holds parameters */
  uint32_t first_rank;
  opipe_error why; /* the first difference of what processes brought */
  opi_manifest m;
  opi_shard shard;
  opi_text parts; /* process 0: the shards' texts */
  uint64_t n_weights;
  bool has_clock;
} saving;

static bool is_root(const saving *s) {
  return s->group->rank == 0;
}

/* ---- one folder ---- */

static void find_path(const char *folder, char out[PATH_ROOM]) {
  char real[PATH_MAX];
  (void)snprintf(out, PATH_ROOM, "%.*s", PATH_ROOM - 1,
                 realpath(folder, real) != NULL ? real : folder);
}

/* Process 0, to begin. */
static opipe_status prepare(saving *s, opipe_error *err) {
  opi_manifest old = {.generation = 0};
  bool damaged = false;
  OPI_TRY(opi_folder_open(s->folder, &s->dir, &s->made, err));
  opipe_status status = opi_folder_read_old(s->allocator, s->dir, &old, &damaged, err);
  if (status == OPIPE_OK && !damaged)
    opi_folder_sweep(s->dir, &old);
  s->told.generation = old.generation + 1;
  opi_manifest_free(&old);
  find_path(s->folder, s->told.path);
  return status == OPIPE_OK ? opi_folder_put_token(s->dir, s->told.token, err) : status;
}

static opipe_status take_told(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes) {
  saving *s = ctx;
  (void)rank;
  if (n_bytes != sizeof s->told)
    return OPIPE_E_INVALID;
  memcpy(&s->told, data, sizeof s->told);
  s->told.token[OPI_TOKEN_ROOM - 1] = s->told.path[PATH_ROOM - 1] = '\0';
  return OPIPE_OK;
}

/* The others, once process 0 has begun. */
static opipe_status open_same(saving *s, opipe_error *err) {
  char token[OPI_TOKEN_ROOM], path[PATH_ROOM];
  find_path(s->folder, path);
  s->dir = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (s->dir < 0) {
    const int number = errno;
    (void)opi_fail_errno(err, number, "opening the folder %s", path);
    return opi_error_prefix(err, "the checkpoint is in %s of process 0: ", s->told.path);
  }
  opi_folder_get_token(s->dir, token);
  if (strcmp(token, s->told.token) == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "its %s is another folder than %s of process 0: process 0 has written the token "
                  "%s there, and %s%s is here",
                  path, s->told.path, s->told.token, token[0] == '\0' ? "none" : "", token);
}

static opipe_status take_standing(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes) {
  saving *s = ctx;
  standing one;
  if (n_bytes != sizeof one)
    return OPIPE_E_INVALID;
  memcpy(&one, data, sizeof one);
  if (one.holds == 0 || s->why.status < 0)
    return OPIPE_OK;
  if (s->first.holds == 0) {
    s->first = one;
    s->first_rank = rank;
  } else if (one.n_steps != s->first.n_steps) {
    (void)opi_fail(&s->why, OPIPE_E_STATE, "process %u has done %llu steps, process %u %llu",
                   s->first_rank, (unsigned long long)s->first.n_steps, rank,
                   (unsigned long long)one.n_steps);
  }
  return OPIPE_OK;
}

static standing stand(const saving *s) {
  opi_weights_clock clock;
  opi_weight_info info;
  standing own = {.holds = 0};
  if (s->weights == NULL)
    return own;
  opi_weights_get_clock(s->weights, &clock);
  for (uint32_t i = 0; own.holds == 0 && opi_weights_info(s->weights, i, &info); ++i)
    own.holds = info.trained != 0 && info.n_here != 0;
  own.n_steps = clock.n_steps;
  return own;
}

/* All have the folder open, and it is the same one; `also` is tried in each. */
static opipe_status open_folder(saving *s, opipe_status had, bool tries, opipe_error *err) {
  const standing own = stand(s);
  const opi_together_part folder = {.name = "checkpoint folder",
                                    .flags = OPIPE_GATHER_ROOT,
                                    .data = is_root(s) ? &s->told : NULL,
                                    .n_bytes = is_root(s) ? sizeof s->told : 0,
                                    .take = take_told,
                                    .take_ctx = s};
  const opi_together_part token = {.name = "checkpoint token",
                                   .data = &own,
                                   .n_bytes = sizeof own,
                                   .take = take_standing,
                                   .take_ctx = s};
  opipe_status status = had;
  if (status == OPIPE_OK && is_root(s))
    status = prepare(s, err);
  const opipe_status met = opi_group_meet(s->group, &folder, status, err);
  if (met < 0 && is_root(s) && status == OPIPE_OK)
    opi_folder_drop_token(s->dir);
  OPI_TRY(met);
  status = is_root(s) ? OPIPE_OK : open_same(s, err);
  if (status == OPIPE_OK && tries)
    status = opi_try_file(s->dir, OPI_MANIFEST_NEW, err);
  status = opi_group_meet(s->group, &token, status, err);
  if (is_root(s))
    opi_folder_drop_token(s->dir);
  OPI_TRY(status);
  return s->why.status < 0 ? opi_fail(err, s->why.status, "%s", s->why.message) : OPIPE_OK;
}

/* ---- the shards ---- */

static void name_shard(opi_shard *out, uint64_t generation, uint32_t rank) {
  static const char *const kinds[OPI_MANIFEST_FILES] = {"weights", "state"};
  for (uint32_t i = 0; i < OPI_MANIFEST_FILES; ++i) {
    (void)snprintf(out->files[i], OPI_FILE_ROOM, "%s-%llu-%u.safetensors", kinds[i],
                   (unsigned long long)generation, rank);
  }
}

static void describe(saving *s, const opi_pieces pieces[OPI_MANIFEST_FILES], opi_text *out) {
  const opi_file_hashes files[OPI_MANIFEST_FILES] = {opi_pieces_hashes(&pieces[0]),
                                                     opi_pieces_hashes(&pieces[1])};
  const shard_head head = {.clock = s->m.clock, .n_weights = pieces[0].n, .holds = stand(s).holds};
  opi_text_add(out, (const char *)&head, sizeof head);
  opi_manifest_text_shard(&s->shard, files, out);
}

static opipe_status take_shard(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes) {
  saving *s = ctx;
  shard_head head;
  if (n_bytes < sizeof head)
    return OPIPE_E_INVALID;
  if (!is_root(s))
    return OPIPE_OK;
  memcpy(&head, data, sizeof head);
  s->n_weights += head.n_weights;
  if (head.holds != 0 && !s->has_clock)
    s->m.clock = head.clock;
  s->has_clock = s->has_clock || head.holds != 0;
  if (rank != 0)
    opi_text_puts(&s->parts, ",\n");
  opi_text_add(&s->parts, (const char *)data + sizeof head, n_bytes - sizeof head);
  return OPIPE_OK;
}

/* Process 0: the shards must have every trained parameter once. */
static opipe_status put_manifest(saving *s, verdict *out, opipe_error *err) {
  opi_weight_info info;
  opi_text text;
  uint64_t n_trained = 0;
  bool replaced = false;
  for (uint32_t i = 0; opi_weights_info(s->weights, i, &info); ++i)
    n_trained += info.trained != 0 ? 1 : 0;
  if (s->n_weights != n_trained) {
    return opi_fail(err, OPIPE_E_INTERNAL, "the shards have %llu tensors of %llu parameters",
                    (unsigned long long)s->n_weights, (unsigned long long)n_trained);
  }
  if (s->parts.failed)
    return opi_fail_nomem(err, s->parts.n, "the manifest's shards");
  opi_text_init(&text, s->allocator);
  opi_manifest_text_shards(&s->m, &s->parts, &text);
  const opipe_status status = opi_folder_put_manifest(s->dir, &text, &replaced, err);
  opi_text_release(&text);
  out->replaced = replaced ? 1 : 0;
  return status;
}

static opipe_status take_verdict(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes) {
  verdict *v = ctx;
  (void)rank;
  if (n_bytes != sizeof *v)
    return OPIPE_E_INVALID;
  memcpy(v, data, sizeof *v);
  v->reason[sizeof v->reason - 1] = '\0';
  return OPIPE_OK;
}

/* Process 0: removes what the new manifest does not name. */
static void sweep(const saving *s) {
  opi_manifest keep = {.n_shards = s->group->size};
  keep.shards = opi_alloc_zero(s->allocator, keep.n_shards, sizeof *keep.shards);
  if (keep.shards == NULL)
    return; /* the next save does it */
  for (uint32_t r = 0; r < keep.n_shards; ++r)
    name_shard(&keep.shards[r], s->m.generation, r);
  opi_folder_sweep(s->dir, &keep);
  opi_free(s->allocator, keep.shards, keep.n_shards * sizeof *keep.shards);
}

/* The shards of all are on the disk. */
static opipe_status commit(saving *s, opipe_error *err) {
  verdict v = {.status = OPIPE_OK};
  if (is_root(s)) {
    v.status = put_manifest(s, &v, err);
    (void)snprintf(v.reason, sizeof v.reason, "%s", v.status < 0 ? err->message : "");
  }
  const bool replaced = v.replaced != 0; /* as far as is known here */
  const opi_together_part manifest = {.name = "checkpoint manifest",
                                      .flags = OPIPE_GATHER_ROOT,
                                      .data = is_root(s) ? &v : NULL,
                                      .n_bytes = is_root(s) ? sizeof v : 0,
                                      .take = is_root(s) ? NULL : take_verdict,
                                      .take_ctx = &v};
  const opipe_status met = opi_group_meet(s->group, &manifest, OPIPE_OK, err);
  if (is_root(s) ? !replaced : met == OPIPE_OK && v.replaced == 0)
    opi_shard_remove(s->dir, &s->shard);
  if (is_root(s) && replaced && v.status == OPIPE_OK)
    sweep(s);
  if (met < 0)
    return met;
  return v.status < 0 ? opi_fail(err, v.status, "process 0: %s", v.reason) : OPIPE_OK;
}

static opipe_status write_shards(saving *s, const uint64_t *position, opipe_error *err) {
  opi_pieces pieces[OPI_MANIFEST_FILES];
  opi_text text;
  opi_together_part shards = {.name = "checkpoint shards", .take = take_shard, .take_ctx = s};
  opi_checkpoint_begin(s->weights, s->told.generation, position, &s->m);
  name_shard(&s->shard, s->m.generation, s->group->rank);
  opi_text_init(&text, s->allocator);
  opipe_status own =
      opi_shard_write(s->allocator, s->weights, true, s->dir, &s->shard, pieces, err);
  const bool written = own == OPIPE_OK;
  if (written)
    describe(s, pieces, &text);
  if (written && text.failed)
    own = opi_fail_nomem(err, text.n, "a shard's hashes");
  shards.data = text.data;
  shards.n_bytes = text.n;
  const opipe_status all = opi_group_meet(s->group, &shards, own, err);
  opi_text_release(&text);
  opi_shard_release(pieces);
  if (all == OPIPE_OK)
    return commit(s, err);
  if (written && (own < 0 || s->group->check(s->group->ctx, NULL) == OPIPE_OK))
    opi_shard_remove(s->dir, &s->shard);
  return all;
}

/* ---- the calls ---- */

static void end(saving *s, bool keeps) {
  opi_folder_close(s->folder, s->dir, is_root(s) && s->made, keeps ? OPIPE_OK : OPIPE_E_IO);
  opi_text_release(&s->parts);
}

static saving begin(const opipe_allocator *allocator, opi_weights *weights,
                    const opi_checkpoint_group *group, const char *folder) {
  saving s = {.allocator = allocator,
              .weights = weights,
              .group = group,
              .folder = folder,
              .dir = -1,
              .why = OPIPE_ERROR_INIT};
  opi_text_init(&s.parts, allocator);
  return s;
}

opipe_status opi_checkpoint_save_shards(const opipe_allocator *allocator, opi_weights *weights,
                                        const opi_checkpoint_group *group, const char *folder,
                                        const uint64_t position[OPI_POSITION], opipe_status had,
                                        opipe_error *io_err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = io_err == NULL ? &local : io_err;
  saving s = begin(allocator, weights, group, folder);
  opipe_error settled = OPIPE_ERROR_INIT;
  const opi_together_part removed = {.name = "checkpoint removed"};
  opipe_status status = open_folder(&s, had, false, e);
  if (status == OPIPE_OK)
    status = write_shards(&s, position, e);
  if (status < 0) /* process 0 may remove its folder when the others have removed their shards */
    (void)opi_group_meet(group, &removed, OPIPE_OK, &settled);
  end(&s, status == OPIPE_OK);
  return status < 0 ? opi_error_prefix(e, "saving the checkpoint %s: ", folder) : OPIPE_OK;
}

opipe_status opi_checkpoint_try_shards(const opipe_allocator *allocator,
                                       const opi_checkpoint_group *group, const char *folder,
                                       opipe_status had, opipe_error *io_err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = io_err == NULL ? &local : io_err;
  saving s = begin(allocator, NULL, group, folder);
  const opipe_status status = open_folder(&s, had, true, e);
  end(&s, false);
  return status < 0 ? opi_error_prefix(e, "a checkpoint in %s: ", folder) : OPIPE_OK;
}
