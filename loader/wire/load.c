/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a model: the file is mapped, checked, unpacked without its weights, and turned into a
 * file graph in the model's arena. The messages are released when the load ends.
 *
 * Nothing here reads tensor contents, so time and memory of a load depend on the size of the graph,
 * not on that of the weights.
 */
#include <string.h>

#include "loader/base/sizes.h"
#include "loader/graph/wide.h"
#include "loader/wire/foreign.h"
#include "loader/wire/wire.h"

static opipe_status map_file(opi_load *load, const char *path, opipe_error *err) {
  opi_mapping *mapping = NULL;
  uint64_t n_bytes = 0;
  int fd = -1;
  OPI_TRY(opi_wire_open(path, &fd, &n_bytes, err));
  OPI_TRY(opi_mapping_create(load, fd, "", n_bytes, &mapping, err));
  load->file = mapping->bytes;
  load->file_bytes = mapping->n_bytes;
  load->model->path = opi_arena_strdup(load->arena, path);
  return load->model->path != NULL ? OPIPE_OK : opi_fail_nomem(err, strlen(path) + 1, "a path");
}

/* Files of other kinds, which are often given in a model's place. */
static opipe_status check_start(const opi_load *load, opipe_error *err) {
  static const char pointer[] = "version https://git-lfs";
  if (load->file_bytes == 0)
    return opi_fail(err, OPIPE_E_INVALID, "the model file is empty");
  if (load->file_bytes >= sizeof(pointer) &&
      memcmp(load->file, pointer, sizeof(pointer) - 1) == 0) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "not an ONNX model, but a Git LFS pointer to one: fetch it with 'git lfs pull'");
  }
  const char *kind = opi_foreign_kind(load->file, load->file_bytes);
  if (kind == NULL)
    return OPIPE_OK;
  const size_t n = strcspn(kind, ":");
  return opi_fail(err, OPIPE_E_INVALID, "%.300s is %.*s, not ONNX%s",
                  load->params->path == NULL ? "the model" : load->params->path, (int)n, kind,
                  kind + n);
}

static opipe_status read_file(opi_load *load, opipe_error *err) {
  const opi_load_params *params = load->params;
  if ((params->path == NULL) == (params->data == NULL)) {
    return opi_fail(err, OPIPE_E_INVALID, "a model is loaded from a path or from memory: %s given",
                    params->path == NULL ? "none" : "both");
  }
  if (params->path != NULL) {
    OPI_TRY(map_file(load, params->path, err));
  } else {
    load->file = params->data;
    load->file_bytes = params->n_bytes;
  }
  load->model->file = load->file;
  load->model->file_bytes = load->file_bytes;
  OPI_TRY(check_start(load, err));
  return opi_external_begin(load, params->path, params->path == NULL ? params->base_dir : NULL,
                            err);
}

static opipe_status load_model(opi_load *load, opipe_error *err) {
  opi_scan scan;
  ProtobufCMessage *message = NULL;
  OPI_TRY(read_file(load, err));
  OPI_TRY(opi_wire_unpack(load->file, load->file_bytes, OPI_MSG_MODEL,
                          load->params->memory_budget_bytes, &load->parse, &scan, &message, err));
  load->message = (OpiOnnx__ModelProto *)message;
  load->budget_bytes = opi_scan_budget(&scan, load->file_bytes, load->params->memory_budget_bytes);
  load->arena->limit_bytes = load->budget_bytes;
  return opi_wire_import(load, err);
}

static void *watched_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  opi_load *load = ctx;
  void *fresh = load->underlying->realloc(load->underlying->ctx, ptr, old_size, new_size, align);
  if (fresh == NULL && new_size != 0)
    load->out_of_memory = true;
  return fresh;
}

/* An arena at its limit looks like memory that is exhausted; this tells them apart. */
static opipe_status explain_limit(const opi_load *load, opipe_status status, opipe_error *err) {
  if (status != OPIPE_E_NOMEM || load->out_of_memory)
    return status;
  (void)opi_error_prefix(
      err, "the model (%u nodes so far) takes more than its memory budget of %s: ", load->n_nodes,
      OPI_SIZE(load->budget_bytes));
  if (err != NULL)
    err->status = OPIPE_E_LIMIT;
  return OPIPE_E_LIMIT;
}

static void end_load(opi_load *load) {
  opi_external_end(load);
  opi_map_free(load->taken);
  opi_map_free(load->node_names);
  opi_map_free(load->functions);
  opi_map_free(load->domains);
  opi_text_release(&load->key);
  opi_arena_release(&load->parse);
}

opipe_status opi_model_load(const opi_load_params *params, opi_model **out_model,
                            opipe_error *err) {
  const opipe_allocator *allocator =
      params->allocator != NULL ? params->allocator : opi_allocator_system();
  opi_model *model = opi_alloc_zero(allocator, 1, sizeof(*model));
  if (model == NULL)
    return opi_fail_nomem(err, sizeof(*model), "a model");
  opi_load load = {.params = params,
                   .underlying = allocator,
                   .logger = params->logger,
                   .model = model,
                   .arena = &model->arena,
                   .dir = -1};
  load.watched = (opipe_allocator){&load, watched_realloc};
  load.allocator = &load.watched;
  model->allocator = allocator;
  opi_arena_init(&model->arena, load.allocator, 0);
  opi_arena_init(&load.parse, load.allocator, 0);
  opi_text_init(&load.key, load.allocator);
  opipe_status status = opi_wide_new(allocator, &model->wide, err);
  if (status == OPIPE_OK)
    status = explain_limit(&load, load_model(&load, err), err);
  end_load(&load);
  model->arena.allocator = allocator;
  model->arena.limit_bytes = 0;
  if (status < 0) {
    opi_model_free(model);
    return status;
  }
  *out_model = model;
  return OPIPE_OK;
}

void opi_model_free(opi_model *model) {
  if (model == NULL)
    return;
  const opipe_allocator *allocator = model->allocator;
  opi_mappings_free(model->mappings);
  opi_wide_free(model->wide);
  if (model->built != NULL)
    opi_free(allocator, model->built, (size_t)model->file_bytes);
  opi_arena_release(&model->arena);
  opi_free(allocator, model, sizeof(*model));
}
