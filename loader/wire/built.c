/* SPDX-License-Identifier: Apache-2.0 */
/* Writing models: what was loaded as it is; what was built from a host's tables with all its
 * content, which its bytes only point at. A message has less than 2 GiB, so a larger model's
 * content goes to a file of data beside it, each tensor at a multiple of DATA_ALIGN.
 */
#include <stdio.h>
#include <string.h>

#include "loader/base/sizes.h"
#include "loader/wire/save.h"

enum { DATA_ALIGN = 4096, DATA_LEAST = 1024 /* bytes of a tensor: smaller ones are embedded */ };

static bool has_content(const opi_value *v) {
  return (v->flags & OPI_VALUE_INITIALIZER) != 0 && v->data != NULL && v->dtype != OPIPE_STRING;
}

static opi_replacement as_it_is(const opi_value *v) {
  return (opi_replacement){.name = v->name,
                           .data = v->data,
                           .shape = v->shape,
                           .n_bytes = v->n_bytes,
                           .dtype = v->dtype,
                           .rank = (uint32_t)v->rank};
}

/* Values of the main graph with all of `flags`, as they are, or as `list` [n] says; [n_values] with
 * room for all. */
static opipe_status gather(const opi_model *model, uint32_t flags, const opi_replacement *list,
                           uint32_t n, opi_replacement *out, uint32_t *out_n, opipe_error *err) {
  const opi_graph *g = model->graph;
  opi_map *given = NULL;
  opipe_status status = opi_map_create(model->allocator, &given, err);
  for (uint32_t i = 0; i < n && status >= 0; ++i)
    status = opi_map_keep(given, list[i].name, i, err);
  *out_n = 0;
  for (uint32_t v = 0; v < g->n_values && status >= 0; ++v) {
    const opi_value *value = &g->values[v];
    uint32_t i = 0;
    if (!has_content(value) || (value->flags & flags) != flags)
      continue;
    out[(*out_n)++] = opi_map_get(given, value->name, &i) ? list[i] : as_it_is(value);
  }
  opi_map_free(given);
  return status;
}

static uint64_t room_bytes(const opi_model *model) {
  return ((uint64_t)model->graph->n_values + 1) * sizeof(opi_replacement);
}

/* ---- models from a host's tables ---- */

static opipe_status fill_data(const opi_out_file *f, const opi_replacement *list, uint32_t n,
                              opi_model_data *data, opipe_error *err) {
  static const char zeros[DATA_ALIGN];
  uint64_t at = 0;
  for (uint32_t i = 0; i < n; ++i) {
    data->offsets[i] = OPI_DATA_EMBEDDED;
    if (list[i].n_bytes < DATA_LEAST)
      continue;
    const uint64_t start = opi_align_up(at, DATA_ALIGN);
    OPI_TRY(opi_write_all(f->fd, zeros, start - at, err));
    OPI_TRY(opi_out_value(f->fd, &list[i], err));
    data->offsets[i] = start;
    at = start + list[i].n_bytes;
  }
  return OPIPE_OK;
}

/* The file of data beside `path`; its name in the model has no folder. */
static opipe_status write_data(opi_out_files *files, const opi_model *model,
                               const opi_replacement *list, uint32_t n, const char *path,
                               opi_model_data *data, opipe_error *err) {
  opi_out_file *f = NULL;
  char file[PATH_MAX];
  if (snprintf(file, sizeof file, "%s.data", path) >= PATH_MAX)
    return opi_fail(err, OPIPE_E_INVALID, "the path of '%.80s' is longer than %d", path, PATH_MAX);
  OPI_TRY(opi_model_check_target(model, file, true, err));
  OPI_TRY(opi_out_begin(files, "", file, &f, err));
  const char *slash = strrchr(f->path, '/');
  data->name = slash == NULL ? f->path : slash + 1;
  if (strlen(data->name) > OPI_DATA_NAME_MOST) {
    return opi_out_end(f,
                       opi_fail(err, OPIPE_E_INVALID, "the file's name has %zu bytes, at most %d",
                                strlen(data->name), OPI_DATA_NAME_MOST),
                       err);
  }
  return opi_out_end(f, fill_data(f, list, n, data, err), err);
}

static opipe_status save(const opi_model *model, const opi_replacement *list, uint32_t n,
                         uint64_t most, const char *path, opipe_error *err) {
  const size_t offsets_bytes = ((size_t)n + 1) * sizeof(uint64_t);
  opi_out_files files = {.allocator = model->allocator, .room = 2};
  opi_model_data data = {.offsets = opi_alloc(model->allocator, offsets_bytes)};
  uint64_t total = model->file_bytes;
  opipe_status status = OPIPE_OK;
  files.list = opi_alloc_zero(model->allocator, files.room, sizeof *files.list);
  if (files.list == NULL || data.offsets == NULL) {
    status = opi_fail_nomem(err, files.room * sizeof *files.list, "file names");
    goto done;
  }
  for (uint32_t i = 0; i < n; ++i)
    total += list[i].n_bytes;
  if (total > most)
    status = write_data(&files, model, list, n, path, &data, err);
  if (status == OPIPE_OK)
    status = opi_out_model(&files, model, list, n, path, data.name == NULL ? NULL : &data, err);
done:
  opi_free(model->allocator, data.offsets, offsets_bytes);
  return files.list == NULL ? status : opi_out_rename(&files, status, err);
}

opipe_status opi_built_save(const opi_model *model, const opi_replacement *list, uint32_t n,
                            uint64_t most, const char *path, opipe_error *err) {
  uint32_t n_all = 0;
  opi_replacement *all = opi_alloc(model->allocator, (size_t)room_bytes(model));
  if (all == NULL)
    return opi_fail_nomem(err, room_bytes(model), "a model's content");
  opipe_status status = gather(model, 0, list, n, all, &n_all, err);
  if (status >= 0)
    status = save(model, all, n_all, most, path, err);
  opi_free(model->allocator, all, (size_t)room_bytes(model));
  return status;
}

opipe_status opi_built_write(const opi_model *model, opipe_write_fn write, void *ctx,
                             opipe_error *err) {
  uint32_t n = 0;
  uint64_t total = model->file_bytes;
  opi_replacement *all = opi_alloc(model->allocator, (size_t)room_bytes(model));
  if (all == NULL)
    return opi_fail_nomem(err, room_bytes(model), "a model's content");
  opipe_status status = gather(model, 0, NULL, 0, all, &n, err);
  for (uint32_t i = 0; i < n; ++i)
    total += all[i].n_bytes;
  if (status >= 0 && total > OPI_BUILT_MOST) {
    status = opi_fail(err, OPIPE_E_LIMIT,
                      "the model with its content would have %s, a file has at most %s: "
                      "write it with model_write, load that, and annotate it",
                      OPI_SIZE(total), OPI_SIZE(OPI_BUILT_MOST));
  }
  if (status >= 0)
    status = opi_model_replace(model, all, n, NULL, write, ctx, err);
  opi_free(model->allocator, all, (size_t)room_bytes(model));
  return status;
}

/* ---- any model ---- */

opipe_status opi_model_write(const opi_model *model, const char *path, opipe_error *err) {
  uint32_t n = 0;
  opi_replacement *list = opi_alloc(model->allocator, (size_t)room_bytes(model));
  if (list == NULL)
    return opi_fail_nomem(err, room_bytes(model), "a model's content");
  opipe_status status = gather(model, OPI_VALUE_PROMOTED, NULL, 0, list, &n, err);
  if (status >= 0)
    status = opi_model_save(model, list, n, path, err);
  opi_free(model->allocator, list, (size_t)room_bytes(model));
  return status;
}
