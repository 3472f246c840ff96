/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors a data file has, and how they get there: one after the other, through memory for
 * the largest. */
#include <errno.h>
#include <unistd.h>

#include "runtime/checkpoint/pieces.h"

#include "loader/base/sizes.h"

static opipe_status add(opi_pieces *p, const opi_weight_info *info, const char *prefix,
                        uint32_t state, uint32_t version, opipe_error *err) {
  uint32_t room = p->room;
  uint64_t n_bytes = 0;
  const opipe_param_source *s = info->source;
  if (p->own && info->owned == 0)
    return OPIPE_OK;
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
  p->list[p->n++] = (opi_stored){.param = s->name, .state = state, .version = version};
  p->largest = n_bytes > p->largest ? n_bytes : p->largest;
  p->total += n_bytes;
  return OPIPE_OK;
}

opipe_status opi_list_weights(const opi_weights *w, opi_pieces *p, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    if (info.trained != 0)
      OPI_TRY(add(p, &info, "", OPI_TENSOR_MASTER, 0, err));
  }
  return OPIPE_OK;
}

opipe_status opi_list_gradients(const opi_weights *w, opi_pieces *p, opipe_error *err) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(w, i, &info); ++i) {
    if (info.trained != 0)
      OPI_TRY(add(p, &info, "", OPI_TENSOR_GRADIENT, 0, err));
  }
  return OPIPE_OK;
}

opipe_status opi_list_state(const opi_weights *w, opi_pieces *p, opipe_error *err) {
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

opipe_status opi_pieces_serve(const opipe_allocator *allocator, opi_weights *w, opi_list_fn list,
                              opipe_error *err) {
  opi_pieces p = {.n = 0};
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

static bool is_same(const opi_stored *a, const opi_stored *b) {
  return a->param == b->param && a->state == b->state && a->version == b->version;
}

/* Gets and adds the tensors of `all` that p has, in their order. Even after a failed write all
 * tensors are got in which other sessions take part: every one if p is not a session's own, else
 * those that are put together of parts. */
static opipe_status add_pieces(opi_weights *w, const opi_pieces *all, opi_tensors_writer *writer,
                               void *data, opi_pieces *p, opipe_status status, opipe_error *err) {
  uint32_t next = 0;
  for (uint32_t i = 0; i < all->n; ++i) {
    const opi_stored *t = &all->list[i];
    const uint64_t n_bytes = all->entries[i].n_bytes;
    const bool mine = next < p->n && is_same(&p->list[next], t);
    const bool together = !p->own || opi_weights_in_parts(w, t->param, t->state);
    if (!together && (!mine || status < 0))
      continue;
    const opipe_status got = (together ? opi_weights_get : opi_weights_get_own)(
        w, t->param, t->state, t->version, data, n_bytes, status < 0 ? NULL : err);
    status = status < 0 ? status : got;
    if (!mine)
      continue;
    p->hashes[next++] = opi_tensors_hash(data, status == OPIPE_OK ? n_bytes : 0);
    if (status == OPIPE_OK)
      status = opi_tensors_add(writer, data, n_bytes, err);
  }
  return status;
}

/* Writes the listed tensors, and removes a file that could not be written whole. all: what all
 * sessions have. */
static opipe_status write_pieces(const opipe_allocator *allocator, opi_weights *w, int dir,
                                 const char *file, const opi_pieces *all, opi_pieces *p,
                                 opipe_error *err) {
  opi_tensors_writer *writer = NULL;
  void *data = opi_alloc(allocator, (size_t)all->largest + 1);
  p->hashes = OPI_ARENA_ARRAY(&p->arena, uint64_t, p->n);
  if (data == NULL || p->hashes == NULL) {
    opi_free(allocator, data, data == NULL ? 0 : (size_t)all->largest + 1);
    return opi_fail_nomem(err, all->largest, "a tensor");
  }
  opipe_status status = opi_tensors_create(allocator, dir, file, p->entries, p->n, &writer, err);
  if (status == OPIPE_OK)
    p->header_hash = opi_tensors_header_hash(writer);
  status = add_pieces(w, all, writer, data, p, status, err);
  const bool made = writer != NULL; /* else the file there is not ours */
  if (status == OPIPE_OK)
    status = opi_tensors_finish(writer, NULL, err);
  else
    opi_tensors_cancel(writer);
  opi_free(allocator, data, (size_t)all->largest + 1);
  if (status == OPIPE_OK)
    return OPIPE_OK;
  if (made)
    (void)unlinkat(dir, file, 0);
  return opi_error_prefix(err, "%s, %u tensors of %s: ", file, p->n, OPI_SIZE(p->total));
}

opipe_status opi_pieces_write(const opipe_allocator *allocator, opi_weights *w, opi_list_fn list,
                              bool own, int dir, const char *file, opi_pieces *out,
                              opipe_error *err) {
  *out = (opi_pieces){.n = 0, .own = own};
  opi_pieces all = {.n = 0};
  opi_arena_init(&out->arena, allocator, 0);
  opi_arena_init(&all.arena, allocator, 0);
  opipe_status status = list(w, out, err);
  if (status == OPIPE_OK)
    status = list(w, &all, err);
  if (status == OPIPE_OK)
    status = write_pieces(allocator, w, dir, file, &all, out, err);
  opi_arena_release(&all.arena);
  return status;
}

opipe_status opi_shard_write(const opipe_allocator *allocator, opi_weights *w, bool own, int dir,
                             const opi_shard *shard, opi_pieces out[OPI_MANIFEST_FILES],
                             opipe_error *err) {
  static const opi_list_fn lists[OPI_MANIFEST_FILES] = {opi_list_weights, opi_list_state};
  opipe_status status = OPIPE_OK;
  uint32_t n = 0;
  for (uint32_t i = 0; i < OPI_MANIFEST_FILES; ++i) {
    opi_arena_init(&out[i].arena, allocator, 0);
    if (status == OPIPE_OK) {
      status = opi_pieces_write(allocator, w, lists[i], own, dir, shard->files[i], &out[i], err);
      n += status == OPIPE_OK ? 1 : 0;
    } else if (!own) {
      (void)opi_pieces_serve(allocator, w, lists[i], NULL); /* for the other sessions */
    }
  }
  if (status == OPIPE_OK && fsync(dir) != 0)
    status = opi_fail_errno(err, errno, "flushing the folder");
  for (uint32_t i = 0; i < n && status < 0; ++i)
    (void)unlinkat(dir, shard->files[i], 0);
  return status;
}

void opi_shard_remove(int dir, const opi_shard *shard) {
  for (uint32_t i = 0; i < OPI_MANIFEST_FILES; ++i)
    (void)unlinkat(dir, shard->files[i], 0);
}

void opi_shard_release(opi_pieces pieces[OPI_MANIFEST_FILES]) {
  for (uint32_t i = 0; i < OPI_MANIFEST_FILES; ++i)
    opi_arena_release(&pieces[i].arena);
}
