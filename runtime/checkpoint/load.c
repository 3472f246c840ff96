/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: everything is checked against the session's parameters before anything is taken over. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/checkpoint/group.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/safetensors.h"

enum { NAME_MOST = 4096 };

typedef struct loading {
  const opipe_allocator *allocator;
  opi_weights *weights;
  const opi_checkpoint_group *group; /* NULL: one process, which verifies every tensor */
  opi_manifest manifest;
  opi_tensors **files; /* [n_shards * OPI_MANIFEST_FILES] weights and state of each shard */
} loading;

enum { WEIGHTS = 0, STATE = 1 }; /* files of a shard */

/* A tensor and where it lies. */
typedef struct found {
  const opi_tensor_entry *entry; /* NULL: no shard has it */
  const opi_tensors *file;
  const opi_shard *shard;
} found;

static found find(const loading *l, uint32_t file, const char *name) {
  for (uint32_t i = 0; i < l->manifest.n_shards; ++i) {
    const opi_tensors *tensors = l->files[i * OPI_MANIFEST_FILES + file];
    const opi_tensor_entry *e = opi_tensors_find(tensors, name);
    if (e != NULL)
      return (found){e, tensors, &l->manifest.shards[i]};
  }
  return (found){NULL, NULL, NULL};
}

static opipe_status check_form(const found *f, const opipe_param_source *s, uint32_t dtype,
                               opipe_error *err) {
  char have[160], want[160];
  const opi_tensor_entry *e = f->entry;
  bool equal = e->rank == s->rank && e->dtype == dtype;
  for (uint32_t d = 0; equal && d < s->rank; ++d)
    equal = e->shape[d] == s->shape[d];
  if (equal)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s: tensor '%s' is %s %s, the model's parameter is %s %s",
                  f->file->what, e->name, opi_dtype_name(e->dtype),
                  opi_shape_text(have, sizeof have, e->shape, e->rank), opi_dtype_name(dtype),
                  opi_shape_text(want, sizeof want, s->shape, s->rank));
}

/* A process of a group verifies the bytes that it will read; between them they verify all. */
static opipe_status check_tensor(const loading *l, const found *f, uint32_t file,
                                 const opi_weight_info *info, uint32_t dtype, opipe_error *err) {
  OPI_TRY(check_form(f, info->source, dtype, err));
  return l->group == NULL || info->n_here == 0
             ? OPIPE_OK
             : opi_manifest_verify_tensor(f->shard, file, f->file, f->entry, err);
}

/* "weights-3.safetensors: it has", or "the 4 shards have". */
enum { SUBJECT_ROOM = OPI_FILE_ROOM + 16 };
static const char *subject(const loading *l, uint32_t file, const char *one, const char *many,
                           char out[SUBJECT_ROOM]) {
  if (l->manifest.n_shards == 1)
    (void)snprintf(out, SUBJECT_ROOM, "%s: it %s", l->files[file]->what, one);
  else
    (void)snprintf(out, SUBJECT_ROOM, "the %u shards %s", l->manifest.n_shards, many);
  return out;
}

/* Checks that every trained parameter is there under `prefix`, and counts them. */
static opipe_status check_all(const loading *l, uint32_t file, const char *prefix, uint32_t *io_n,
                              opipe_error *err) {
  char name[NAME_MOST], text[SUBJECT_ROOM];
  const char *missing = NULL;
  uint32_t n_missing = 0, n = 0;
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(l->weights, i, &info); ++i) {
    if (info.trained == 0)
      continue;
    ++n;
    if (snprintf(name, sizeof name, "%s%s", prefix, info.source->name) >= NAME_MOST) {
      return opi_fail(err, OPIPE_E_LIMIT, "parameter '%.80s...': a name of %zu characters, %d fit",
                      info.source->name, strlen(info.source->name), NAME_MOST - 16);
    }
    const found f = find(l, file, name);
    if (f.entry != NULL) {
      OPI_TRY(check_tensor(l, &f, file, &info, OPIPE_FLOAT, err));
      continue;
    }
    missing = n_missing == 0 ? info.source->name : missing;
    ++n_missing;
  }
  *io_n += n;
  if (n_missing == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s %u of the %u trained parameters, the first is '%s%s'",
                  subject(l, file, "lacks", "lack", text), n_missing, n, prefix, missing);
}

/* The value of a parameter that the host set and that is not trained; entry NULL: it has none. */
static found find_set(const loading *l, const char *name) {
  char full[NAME_MOST];
  const int n = snprintf(full, sizeof full, "%s%s", OPI_PREFIX_SET, name);
  return n < 0 || n >= NAME_MOST ? (found){NULL, NULL, NULL} : find(l, STATE, full);
}

static opipe_status check_set(const loading *l, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(l->weights, i, &info); ++i) {
    if (info.trained != 0)
      continue;
    const found f = find_set(l, info.source->name);
    if (f.entry != NULL)
      OPI_TRY(check_tensor(l, &f, STATE, &info, info.source->dtype, err));
  }
  return OPIPE_OK;
}

static bool is_known(const loading *l, const char *name) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(l->weights, i, &info); ++i) {
    if (info.trained != 0 && strcmp(info.source->name, name) == 0)
      return true;
  }
  return false;
}

/* Refuses tensors that the model does not have. */
static opipe_status check_surplus(const loading *l, uint32_t n, opipe_error *err) {
  char text[SUBJECT_ROOM];
  uint64_t n_there = 0;
  for (uint32_t s = 0; s < l->manifest.n_shards; ++s)
    n_there += l->files[s * OPI_MANIFEST_FILES + WEIGHTS]->n;
  for (uint32_t s = 0; n_there > n && s < l->manifest.n_shards; ++s) {
    const opi_tensors *values = l->files[s * OPI_MANIFEST_FILES + WEIGHTS];
    for (uint32_t i = 0; i < values->n; ++i) {
      if (is_known(l, values->entries[i].name))
        continue;
      return opi_fail(err, OPIPE_E_INVALID,
                      "%s %llu tensors for %u trained parameters; '%s' is none of them",
                      subject(l, WEIGHTS, "has", "have", text), (unsigned long long)n_there, n,
                      values->entries[i].name);
    }
  }
  return OPIPE_OK;
}

/* Refuses a tensor that two shards have. */
static opipe_status check_once(const loading *l, opipe_error *err) {
  for (uint32_t i = OPI_MANIFEST_FILES; i < l->manifest.n_shards * OPI_MANIFEST_FILES; ++i) {
    const opi_tensors *file = l->files[i];
    for (uint32_t k = 0; k < file->n; ++k) {
      const found f = find(l, i % OPI_MANIFEST_FILES, file->entries[k].name);
      if (f.entry != &file->entries[k]) {
        return opi_fail(err, OPIPE_E_INVALID, "tensor '%s' is in two shards, %s and %s",
                        f.entry->name, f.file->what, file->what);
      }
    }
  }
  return OPIPE_OK;
}

static opipe_status check(const loading *l, opipe_error *err) {
  const opi_manifest *m = &l->manifest;
  const uint32_t moments = opi_weights_moments(l->weights);
  uint32_t n = 0, n_state = 0;
  OPI_TRY(check_all(l, WEIGHTS, "", &n, err));
  OPI_TRY(check_set(l, err));
  OPI_TRY(check_surplus(l, n, err));
  OPI_TRY(check_once(l, err));
  if (m->moments != moments) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: the checkpoint's optimizer has %u moments per parameter, this one's %u",
                    OPI_MANIFEST, m->moments, moments);
  }
  for (uint32_t k = 0; k < moments; ++k)
    OPI_TRY(check_all(l, STATE, opi_prefix_moment[k], &n_state, err));
  return m->versions > 1 ? check_all(l, STATE, OPI_PREFIX_OLDER, &n_state, err) : OPIPE_OK;
}

/* ---- taking over ---- */

static opipe_status take(const loading *l, uint32_t file, const char *prefix,
                         const opi_weight_info *info, uint32_t state, uint32_t version,
                         opipe_error *err) {
  char full[NAME_MOST];
  const char *name = info->source->name;
  (void)snprintf(full, sizeof full, "%s%s", prefix, name); /* its length was checked */
  const opi_tensor_entry *e = find(l, file, full).entry;
  if (e == NULL)
    return opi_fail(err, OPIPE_E_INTERNAL, "tensor '%s' was there when it was checked", full);
  if (info->n_here == 0 || (uintptr_t)e->data % sizeof(float) == 0) /* else it is noted only */
    return opi_weights_set(l->weights, name, state, version, e->data, e->n_bytes, err);
  void *aligned = opi_alloc(l->allocator, (size_t)e->n_bytes + 1);
  if (aligned == NULL)
    return opi_fail_nomem(err, e->n_bytes, full);
  memcpy(aligned, e->data, (size_t)e->n_bytes);
  const opipe_status status =
      opi_weights_set(l->weights, name, state, version, aligned, e->n_bytes, err);
  opi_free(l->allocator, aligned, (size_t)e->n_bytes + 1);
  return status;
}

static opipe_status take_set(const loading *l, const opi_weight_info *info, opipe_error *err) {
  const bool has = find_set(l, info->source->name).entry != NULL;
  for (uint32_t v = 0; has && v < opi_weights_versions(l->weights); ++v)
    OPI_TRY(take(l, STATE, OPI_PREFIX_SET, info, OPI_TENSOR_WEIGHT, v, err));
  return OPIPE_OK;
}

static opipe_status take_all(const loading *l, opipe_error *err) {
  opi_weight_info info;
  const uint32_t moments = opi_weights_moments(l->weights);
  const bool older = l->manifest.versions > 1;
  for (uint32_t i = 0; opi_weights_info(l->weights, i, &info); ++i) {
    if (info.trained == 0) {
      OPI_TRY(take_set(l, &info, err));
      continue;
    }
    OPI_TRY(take(l, WEIGHTS, "", &info, OPI_TENSOR_MASTER, 0, err));
    if (opi_weights_versions(l->weights) > 1) {
      OPI_TRY(take(l, older ? STATE : WEIGHTS, older ? OPI_PREFIX_OLDER : "", &info,
                   OPI_TENSOR_MASTER, 1, err));
    }
    for (uint32_t k = 0; k < moments; ++k)
      OPI_TRY(take(l, STATE, opi_prefix_moment[k], &info, OPI_TENSOR_FIRST + k, 0, err));
  }
  opi_weights_set_clock(l->weights, &l->manifest.clock);
  return OPIPE_OK;
}

/* ---- files ---- */

static opipe_status open_file(loading *l, int dir, uint32_t index, opipe_error *err) {
  const opi_shard *shard = &l->manifest.shards[index / OPI_MANIFEST_FILES];
  const uint32_t file = index % OPI_MANIFEST_FILES;
  OPI_TRY(opi_tensors_open(l->allocator, dir, shard->files[file], &l->files[index], err));
  const opi_tensors *tensors = l->files[index];
  OPI_TRY(opi_manifest_verify(shard, file, tensors, err));
  for (uint32_t i = 0; l->group == NULL && i < tensors->n; ++i)
    OPI_TRY(opi_manifest_verify_tensor(shard, file, tensors, &tensors->entries[i], err));
  return OPIPE_OK;
}

static opipe_status open_files(loading *l, int dir, opipe_error *err) {
  const uint32_t n_shards = l->manifest.n_shards, n = n_shards * OPI_MANIFEST_FILES;
  l->files = opi_alloc_zero(l->allocator, n, sizeof(opi_tensors *));
  if (l->files == NULL)
    return opi_fail_nomem(err, n * sizeof(opi_tensors *), "a checkpoint's files");
  for (uint32_t i = 0; i < n; ++i) {
    const opipe_status status = open_file(l, dir, i, err);
    if (status < 0 && n_shards > 1)
      return opi_error_prefix(err, "shard %u of %u: ", i / OPI_MANIFEST_FILES + 1, n_shards);
    OPI_TRY(status);
  }
  return OPIPE_OK;
}

static void close_files(loading *l) {
  const uint32_t n = l->manifest.n_shards * OPI_MANIFEST_FILES;
  for (uint32_t i = 0; l->files != NULL && i < n; ++i)
    opi_tensors_close(l->files[i]);
  opi_free(l->allocator, l->files, l->files == NULL ? 0 : n * sizeof(opi_tensors *));
  opi_manifest_free(&l->manifest);
}

/* ---- the steps that a group takes together ---- */

/* A process's checkpoint. */
typedef struct choice {
  uint64_t hash, generation, n_steps;
} choice;

typedef struct comparison {
  choice first; /* of process 0 */
  opipe_error why;
} comparison;

static opipe_status compare(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes) {
  comparison *c = ctx;
  choice one;
  if (n_bytes != sizeof one)
    return OPIPE_E_INVALID;
  memcpy(&one, data, sizeof one);
  if (rank == 0)
    c->first = one;
  if (c->why.status == OPIPE_OK && one.hash != c->first.hash) {
    (void)opi_fail(&c->why, OPIPE_E_INVALID,
                   "%s of process 0 has generation %llu, step %llu and XXH3 %016llx, that of "
                   "process %u generation %llu, step %llu and XXH3 %016llx",
                   OPI_MANIFEST, (unsigned long long)c->first.generation,
                   (unsigned long long)c->first.n_steps, (unsigned long long)c->first.hash, rank,
                   (unsigned long long)one.generation, (unsigned long long)one.n_steps,
                   (unsigned long long)one.hash);
  }
  return OPIPE_OK;
}

/* All read the same checkpoint. */
static opipe_status meet_manifest(const loading *l, opipe_status own, opipe_error *io_err) {
  const choice mine = {l->manifest.hash, l->manifest.generation, l->manifest.clock.n_steps};
  comparison c = {.why = OPIPE_ERROR_INIT};
  const opi_together_part part = {.name = "checkpoint to load",
                                  .data = &mine,
                                  .n_bytes = sizeof mine,
                                  .take = compare,
                                  .take_ctx = &c};
  if (l->group == NULL)
    return own;
  OPI_TRY(opi_group_meet(l->group, &part, own, io_err));
  return c.why.status < 0 ? opi_fail(io_err, c.why.status, "%s", c.why.message) : OPIPE_OK;
}

static opipe_status meet(const loading *l, const char *name, opipe_status own,
                         opipe_error *io_err) {
  const opi_together_part part = {.name = name};
  return l->group == NULL ? own : opi_group_meet(l->group, &part, own, io_err);
}

static opipe_status open_folder(const char *folder, int *out_dir, opipe_error *err) {
  *out_dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return *out_dir < 0 ? opi_fail_errno(err, errno, "opening the folder %s", folder)
                      : opi_manifest_lock(*out_dir, false, err);
}

static opipe_status load(loading *l, const char *folder, int *out_dir, opipe_status had,
                         opipe_error *err) {
  opipe_status status = had;
  if (status == OPIPE_OK)
    status = open_folder(folder, out_dir, err);
  if (status == OPIPE_OK)
    status = opi_manifest_read(l->allocator, *out_dir, &l->manifest, err);
  OPI_TRY(meet_manifest(l, status, err));
  status = open_files(l, *out_dir, err);
  if (status == OPIPE_OK)
    status = check(l, err);
  OPI_TRY(meet(l, "checkpoint checked", status, err));
  status = take_all(l, err);
  return meet(l, "checkpoint loaded", status, err);
}

opipe_status opi_checkpoint_load_shards(const opipe_allocator *allocator, opi_weights *weights,
                                        const opi_checkpoint_group *group, const char *folder,
                                        opipe_status had, opi_checkpoint_info *out_info,
                                        opipe_error *io_err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = io_err == NULL ? &local : io_err;
  loading l = {.allocator = allocator, .weights = weights, .group = group};
  int dir = -1;
  const opipe_status status = load(&l, folder, &dir, had, e);
  if (status == OPIPE_OK && out_info != NULL) {
    memcpy(out_info->position, l.manifest.position, sizeof out_info->position);
    out_info->clock = l.manifest.clock;
  }
  close_files(&l);
  if (dir >= 0)
    (void)close(dir);
  return status < 0 ? opi_error_prefix(e, "loading the checkpoint %s: ", folder) : OPIPE_OK;
}

opipe_status opi_checkpoint_load(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, opi_checkpoint_info *out_info,
                                 opipe_error *err) {
  return opi_checkpoint_load_shards(allocator, weights, NULL, folder, OPIPE_OK, out_info, err);
}
