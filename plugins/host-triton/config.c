/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations, as the server writes and reads them (JSON of its ModelConfig): options of the
 * command line, parameters of a model, and what a model says of itself where its configuration does
 * not.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "adapter.h"

static tri_error *parse(tri_message *message, json_t **out) {
  const char *text = NULL;
  size_t n = 0;
  json_error_t why;
  TRI_TRY(tri.MessageSerializeToJson(message, &text, &n));
  *out = json_loadb(text, n, 0, &why);
  return *out != NULL
             ? NULL
             : tri_fail(TRI_ERROR_INTERNAL, "onnx-pipe: a configuration is no JSON: %s", why.text);
}

/* ---- options ---- */

static const host_option backend_options[] = {
    {"library", HOST_TEXT, offsetof(backend, library), NULL, NULL},
    {"budget", HOST_BYTES, offsetof(backend, budget_bytes), NULL, NULL},
    {"cores", HOST_NUMBER, offsetof(backend, cores), NULL, NULL},
    {"default-max-batch-size", HOST_NUMBER, offsetof(backend, n_rows_by_itself), NULL, NULL}};

static const host_option model_options[] = {
    HOST_OPTIONS(model_settings, common),
    {"context", HOST_NUMBER, offsetof(model_settings, n_context), NULL, NULL},
    {"active", HOST_NUMBER, offsetof(model_settings, n_active), NULL, NULL},
    {"rows", HOST_NUMBER, offsetof(model_settings, n_token_rows), NULL, NULL}};

/* NOTFOUND: neither ours nor an error. */
static tri_error *set_one(const host_option *options, size_t n, void *to, host_pool *p,
                          const char *key, const char *value, bool *out_known) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = host_set(options, n, to, p, key, value, &err);
  *out_known = status != OPIPE_E_NOTFOUND;
  return status < 0 && *out_known ? tri_fail_with(NULL, &err) : NULL;
}

tri_error *config_read_backend(tri_backend *handle, backend *b) {
  tri_message *message = NULL;
  json_t *config = NULL, *value = NULL;
  const char *key = NULL;
  bool known = false;
  b->n_rows_by_itself = 4;                      /* the server's documented default */
  TRI_TRY(tri.BackendConfig(handle, &message)); /* the server's */
  TRI_TRY(parse(message, &config));
  tri_error *error = NULL;
  json_object_foreach(json_object_get(config, "cmdline"), key, value) {
    if (error == NULL && json_is_string(value)) {
      error = set_one(backend_options, sizeof backend_options / sizeof backend_options[0], b,
                      &b->memory, key, json_string_value(value), &known);
    }
  }
  json_decref(config);
  return error;
}

static tri_error *read_parameters(const json_t *parameters, served *s) {
  const char *key = NULL;
  json_t *value = NULL;
  bool known = false;
  json_object_foreach((json_t *)(uintptr_t)parameters, key, value) {
    const char *text = json_string_value(json_object_get(value, "string_value"));
    if (text == NULL)
      continue;
    TRI_TRY(set_one(model_options, sizeof model_options / sizeof model_options[0], &s->set,
                    &s->memory, key, text, &known));
    if (!known)
      tri_log(TRI_LOG_WARN, "onnx-pipe: model '%s': parameter %s is none of ours", s->name, key);
  }
  return NULL;
}

static tri_error *read_config(tri_model *handle, json_t **out) {
  tri_message *message = NULL;
  TRI_TRY(tri.ModelConfig(handle, TRI_CONFIG_VERSION, &message));
  tri_error *error = parse(message, out);
  tri_drop(tri.MessageDelete(message), "MessageDelete");
  return error;
}

tri_error *config_read_model(tri_model *handle, served *s, const char **out_path) {
  json_t *config = NULL;
  const char *folder = NULL, *name = NULL;
  uint64_t version = 0;
  int kind = 0;
  TRI_TRY(tri.ModelName(handle, &name));
  TRI_TRY(tri.ModelVersion(handle, &version));
  TRI_TRY(tri.ModelRepository(handle, &kind, &folder));
  if (kind != TRI_ARTIFACT_FILES)
    return tri_fail(TRI_ERROR_UNSUPPORTED, "onnx-pipe: model '%s' is not in a file system", name);
  s->name = host_pool_text(&s->memory, name);
  TRI_TRY(read_config(handle, &config));
  const char *file = json_string_value(json_object_get(config, "default_model_filename"));
  file = file == NULL || file[0] == '\0' ? "model.onnx" : file;
  const size_t room = strlen(folder) + strlen(file) + 32;
  char *path = host_pool_take(&s->memory, room);
  tri_error *error = s->name == NULL || path == NULL
                         ? tri_no_memory()
                         : read_parameters(json_object_get(config, "parameters"), s);
  if (path != NULL)
    (void)snprintf(path, room, "%s/%llu/%s", folder, (unsigned long long)version, file);
  *out_path = path;
  json_decref(config);
  return error;
}

/* ---- completion ---- */

/* {"name", "data_type", "dims"}; the server wants a dimension where the model has none. */
static json_t *describe(const port *p, bool batched) {
  char text[32];
  json_t *dims = json_array();
  (void)snprintf(text, sizeof text, "TYPE_%s", p->type_name);
  for (uint32_t d = batched ? 1 : 0; d < p->rank; ++d)
    (void)json_array_append_new(dims, json_integer(p->shape[d]));
  if (p->optional) {
    return json_pack("{s:s, s:s, s:o, s:b}", "name", p->name, "data_type", text, "dims", dims,
                     "optional", 1);
  }
  if (json_array_size(dims) > 0)
    return json_pack("{s:s, s:s, s:o}", "name", p->name, "data_type", text, "dims", dims);
  return json_pack("{s:s, s:s, s:[i], s:{s:o}}", "name", p->name, "data_type", text, "dims", 1,
                   "reshape", "shape", dims);
}

/* true: it was empty. */
static bool complete(json_t *config, const char *key, const port *ports, uint32_t n, bool batched) {
  if (json_array_size(json_object_get(config, key)) > 0)
    return false;
  json_t *list = json_array();
  for (uint32_t i = 0; i < n; ++i)
    (void)json_array_append_new(list, describe(&ports[i], batched));
  (void)json_object_set_new(config, key, list);
  return true;
}

static tri_error *check_one(const json_t *entry, const char *what, const port *ports, uint32_t n,
                            bool batched, bool *seen) {
  const char *name = json_string_value(json_object_get(entry, "name"));
  const char *type = json_string_value(json_object_get(entry, "data_type"));
  const size_t rank = json_array_size(json_object_get(entry, "dims")) + (batched ? 1 : 0);
  uint32_t i = 0;
  while (name != NULL && i < n && strcmp(ports[i].name, name) != 0)
    ++i;
  if (name == NULL || i == n) {
    return tri_fail(TRI_ERROR_INVALID_ARG,
                    "onnx-pipe: the configuration's %s '%s' is not in the model", what,
                    name == NULL ? "" : name);
  }
  seen[i] = true;
  if (type == NULL || strncmp(type, "TYPE_", 5) != 0 || strcmp(type + 5, ports[i].type_name) != 0) {
    return tri_fail(TRI_ERROR_INVALID_ARG,
                    "onnx-pipe: %s '%s' is TYPE_%s in the model, %s in the "
                    "configuration",
                    what, name, ports[i].type_name, type == NULL ? "nothing" : type);
  }
  if (rank != ports[i].rank && json_object_get(entry, "reshape") == NULL) {
    return tri_fail(TRI_ERROR_INVALID_ARG,
                    "onnx-pipe: %s '%s' has %u dimensions in the model, %zu in the "
                    "configuration%s",
                    what, name, ports[i].rank, rank, batched ? " (with the batch)" : "");
  }
  if (batched && (ports[i].rank == 0 || ports[i].shape[0] >= 0)) {
    return tri_fail(TRI_ERROR_INVALID_ARG,
                    "onnx-pipe: max_batch_size is given, but the first dimension of "
                    "%s '%s' is not free",
                    what, name);
  }
  return NULL;
}

static tri_error *check(const json_t *config, const char *key, served *s, bool batched) {
  const bool in = strcmp(key, "input") == 0;
  const port *ports = in ? s->inputs : s->outputs;
  const uint32_t n = in ? s->n_inputs : s->n_outputs;
  const json_t *list = json_object_get(config, key);
  bool *seen = host_pool_take(&s->memory, n + 1);
  if (seen == NULL)
    return tri_no_memory();
  for (size_t i = 0; i < json_array_size(list); ++i)
    TRI_TRY(check_one(json_array_get(list, i), key, ports, n, batched, seen));
  for (uint32_t i = 0; in && i < n; ++i) {
    if (!seen[i] && !ports[i].optional) {
      return tri_fail(TRI_ERROR_INVALID_ARG,
                      "onnx-pipe: the configuration lacks input '%s' of the model", ports[i].name);
    }
  }
  return NULL;
}

static tri_error *write_config(tri_model *handle, served *s, const json_t *config) {
  tri_message *message = NULL;
  const size_t n = json_dumpb(config, NULL, 0, JSON_COMPACT);
  char *text = host_pool_take(&s->memory, n + 1);
  if (text == NULL || n == 0 || json_dumpb(config, text, n, JSON_COMPACT) != n)
    return tri_no_memory();
  TRI_TRY(tri.MessageNewFromSerializedJson(&message, text, n));
  tri_error *error = tri.ModelSetConfig(handle, TRI_CONFIG_VERSION, message);
  tri_drop(tri.MessageDelete(message), "MessageDelete");
  return error;
}

/* Batches are the server's to join where the model can have them and the user has said nothing. */
static void complete_batches(const served *s, json_t *config, json_int_t *io_rows) {
  const bool silent = *io_rows == 0 && json_array_size(json_object_get(config, "input")) == 0 &&
                      json_array_size(json_object_get(config, "output")) == 0;
  if (!silent || s->owner->n_rows_by_itself == 0 || !model_has_batch(s))
    return;
  *io_rows = s->owner->n_rows_by_itself;
  (void)json_object_set_new(config, "max_batch_size", json_integer(*io_rows));
  if (*io_rows > 1 && json_object_get(config, "dynamic_batching") == NULL &&
      json_object_get(config, "sequence_batching") == NULL)
    (void)json_object_set_new(config, "dynamic_batching", json_object());
}

/* A model that generates: prompts are not joined; responses come one by one unless the user says
 * otherwise. */
static tri_error *complete_generation(served *s, json_t *config, bool wanted, json_int_t rows) {
  const json_t *policy = json_object_get(config, "model_transaction_policy");
  const bool decouples = wanted && policy == NULL;
  if (rows > 0) {
    return tri_fail(TRI_ERROR_INVALID_ARG,
                    "onnx-pipe: model '%s' generates, but max_batch_size is %lld: give 0", s->name,
                    (long long)rows);
  }
  if (decouples) {
    (void)json_object_set_new(config, "model_transaction_policy",
                              json_pack("{s:b}", "decoupled", 1));
  }
  s->is_decoupled = decouples || json_is_true(json_object_get(policy, "decoupled"));
  return NULL;
}

tri_error *config_complete(tri_model *handle, served *s) {
  json_t *config = NULL;
  bool wanted = false;
  TRI_TRY(tri.ModelAutoCompleteConfig(handle, &wanted));
  TRI_TRY(read_config(handle, &config));
  json_int_t rows = json_integer_value(json_object_get(config, "max_batch_size"));
  bool changed = false;
  tri_error *error = s->set.n_context > 0 ? complete_generation(s, config, wanted, rows) : NULL;
  if (wanted && error == NULL) {
    if (s->set.n_context == 0)
      complete_batches(s, config, &rows);
    changed = s->is_decoupled;
    changed = complete(config, "input", s->inputs, s->n_inputs, rows > 0) || changed;
    changed = complete(config, "output", s->outputs, s->n_outputs, rows > 0) || changed;
  }
  if (error == NULL)
    error = check(config, "input", s, rows > 0);
  if (error == NULL)
    error = check(config, "output", s, rows > 0);
  if (error == NULL && changed)
    error = write_config(handle, s, config);
  s->n_rows = (uint32_t)rows;
  json_decref(config);
  return error;
}
