/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles of layers in the project's own format. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "loader/base/json.h"
#include "partition/study/layers/layers.h"

enum { WHAT_ROOM = 200, BYTES_BITS = 48 };

enum { KIND_NUMBER, KIND_BYTES };
typedef struct field {
  const char *name;
  size_t offset;
  uint32_t kind;
} field;

static const field fields[] = {
    {"flops", offsetof(opi_layer, flops), KIND_NUMBER},
    {"forward_ns", offsetof(opi_layer, forward_ns), KIND_NUMBER},
    {"input_ns", offsetof(opi_layer, input_ns), KIND_NUMBER},
    {"weight_ns", offsetof(opi_layer, weight_ns), KIND_NUMBER},
    {"output_bytes", offsetof(opi_layer, output_bytes), KIND_BYTES},
    {"cut_bytes", offsetof(opi_layer, cut_bytes), KIND_BYTES},
    {"stash_bytes", offsetof(opi_layer, stash_bytes), KIND_BYTES},
    {"param_bytes", offsetof(opi_layer, param_bytes), KIND_BYTES},
    {"width_share", offsetof(opi_layer, width_share), KIND_NUMBER},
    {"width_bytes", offsetof(opi_layer, width_bytes), KIND_BYTES},
};

/* ---- writing ---- */

static void write_layer(const opi_layer *layer, opi_text *text) {
  opi_text_puts(text, "      {");
  for (size_t f = 0; f < OPI_COUNT(fields); ++f) {
    const char *at = (const char *)layer + fields[f].offset;
    opi_text_printf(text, "%s\"%s\": ", f == 0 ? "" : ", ", fields[f].name);
    if (fields[f].kind == KIND_BYTES) {
      uint64_t value = 0;
      memcpy(&value, at, sizeof value);
      opi_text_printf(text, "%" PRIu64, value);
    } else {
      double value = 0;
      memcpy(&value, at, sizeof value);
      opi_json_double(text, value);
    }
  }
  opi_text_puts(text, "}");
}

static void write_number(opi_text *text, uint32_t index, double value) {
  opi_text_puts(text, index == 0 ? "" : ", ");
  opi_json_double(text, value);
}

/* One list over all layers for each number of tokens. */
static void write_alone(const opi_layers *layers, const char *name, bool shares, opi_text *text) {
  const opi_token_costs *slices = &layers->slices;
  opi_text_printf(text, ",\n    \"%s\": [", name);
  for (uint32_t k = 0; k < slices->n; ++k) {
    opi_text_puts(text, k == 0 ? "\n      [" : ",\n      [");
    for (uint32_t i = 0; i < layers->n_layers; ++i) {
      const opi_token_cost *c = &slices->alone[(size_t)k * layers->n_layers + i];
      write_number(text, i, shares ? c->width_share : c->ns);
    }
    opi_text_puts(text, "]");
  }
  opi_text_puts(text, "]");
}

static void write_slices(const opi_layers *layers, opi_text *text) {
  opi_text_puts(text, ",\n  \"slices\": {\n    \"tokens\": [");
  for (uint32_t k = 0; k < layers->slices.n; ++k)
    opi_text_printf(text, "%s%u", k == 0 ? "" : ", ", layers->slices.tokens[k]);
  opi_text_puts(text, "]");
  write_alone(layers, "alone_ns", false, text);
  write_alone(layers, "width_share", true, text);
  opi_text_puts(text, ",\n    \"context_ns\": [");
  for (uint32_t i = 0; i < layers->n_layers; ++i)
    write_number(text, i, layers->slices.context_ns[i]);
  opi_text_puts(text, "]}");
}

void opi_layers_write(const opi_layers *layers, opi_text *text) {
  opi_text_puts(text, "{\n  \"format\": \"" OPI_LAYERS_FORMAT "\",\n  \"name\": ");
  opi_text_json(text, layers->name);
  opi_text_printf(text, ",\n  \"tokens\": %u,\n  \"weight_bytes\": %u,\n  \"halves\": %s",
                  layers->tokens, layers->weight_bytes, layers->halves ? "true" : "false");
  if (layers->whole != NULL) {
    opi_text_puts(text, ",\n  \"whole\": ");
    opi_text_json(text, layers->whole);
  }
  opi_text_puts(text, ",\n  \"layers\": [");
  for (uint32_t i = 0; i < layers->n_layers; ++i) {
    opi_text_puts(text, i == 0 ? "" : ", ");
    opi_text_json(text, layers->names[i] == NULL ? "" : layers->names[i]);
  }
  opi_text_puts(text, "],\n  \"sizes\": [");
  for (uint32_t k = 0; k < layers->n_sizes; ++k) {
    opi_text_printf(text, "%s\n    {\"samples\": %u, \"costs\": [", k == 0 ? "" : ",",
                    layers->samples[k]);
    for (uint32_t i = 0; i < layers->n_layers; ++i) {
      opi_text_puts(text, i == 0 ? "\n" : ",\n");
      write_layer(&layers->at[(size_t)k * layers->n_layers + i], text);
    }
    opi_text_puts(text, "]}");
  }
  opi_text_puts(text, "]");
  if (layers->slices.n > 0)
    write_slices(layers, text);
  opi_text_puts(text, "\n}\n");
}

/* ---- reading ---- */

typedef struct reader {
  char what[WHAT_ROOM];
  opi_layers *out;
  opipe_error *err;
} reader;

/* Requires every field and no other member. */
static opipe_status read_layer(const reader *r, const json_t *object, const char *what,
                               opi_layer *out) {
  if (!json_is_object(object) || json_object_size(object) != OPI_COUNT(fields)) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s must be an object of %zu fields, \"%s\" to \"%s\"",
                    what, OPI_COUNT(fields), fields[0].name, fields[OPI_COUNT(fields) - 1].name);
  }
  for (size_t f = 0; f < OPI_COUNT(fields); ++f) {
    char *at = (char *)out + fields[f].offset;
    if (fields[f].kind == KIND_BYTES) {
      uint64_t value = 0;
      OPI_TRY(opi_json_get_u64(object, what, fields[f].name, UINT64_C(1) << BYTES_BITS, &value,
                               r->err));
      memcpy(at, &value, sizeof value);
    } else {
      double value = 0;
      OPI_TRY(opi_json_get_number(object, what, fields[f].name, &value, r->err));
      memcpy(at, &value, sizeof value);
    }
  }
  return OPIPE_OK;
}

static opipe_status read_size(const reader *r, const json_t *object, uint32_t k) {
  char what[WHAT_ROOM + 64];
  const json_t *costs = NULL;
  uint64_t samples = 0;
  opi_layers *out = r->out;
  (void)snprintf(what, sizeof what, "%s: sizes[%u]", r->what, k);
  OPI_TRY(opi_json_get_u64(object, what, "samples", UINT32_MAX, &samples, r->err));
  OPI_TRY(opi_json_get_array(object, what, "costs", &costs, r->err));
  out->samples[k] = (uint32_t)samples;
  if (json_array_size(costs) != out->n_layers) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"costs\" has %zu entries for %u layers", what,
                    json_array_size(costs), out->n_layers);
  }
  for (uint32_t i = 0; i < out->n_layers; ++i) {
    (void)snprintf(what, sizeof what, "%s: sizes[%u].costs[%u]", r->what, k, i);
    OPI_TRY(read_layer(r, json_array_get(costs, i), what, &out->at[(size_t)k * out->n_layers + i]));
  }
  return OPIPE_OK;
}

/* Reads an array of exactly n numbers. */
static opipe_status read_numbers(const reader *r, const json_t *array, const char *name, size_t n,
                                 double *out, size_t stride) {
  if (!json_is_array(array) || json_array_size(array) != n) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: slices: \"%s\" must be a list of %zu numbers",
                    r->what, name, n);
  }
  for (size_t i = 0; i < n; ++i) {
    const json_t *value = json_array_get(array, i);
    if (!json_is_number(value)) {
      return opi_fail(r->err, OPIPE_E_INVALID, "%s: slices: \"%s\"[%zu] is not a number", r->what,
                      name, i);
    }
    out[i * stride] = json_number_value(value);
  }
  return OPIPE_OK;
}

/* The optional member "slices". */
static opipe_status read_slices(const reader *r, const json_t *object) {
  enum { FIELDS_OF_COST = sizeof(opi_token_cost) / sizeof(double) };
  const json_t *tokens = NULL, *alone = NULL, *shares = NULL;
  opi_layers *out = r->out;
  opi_token_costs *slices = &out->slices;
  if (object == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(object, r->what, "tokens", &tokens, r->err));
  OPI_TRY(opi_json_get_array(object, r->what, "alone_ns", &alone, r->err));
  OPI_TRY(opi_json_get_array(object, r->what, "width_share", &shares, r->err));
  const size_t n = json_array_size(tokens);
  if (n > OPI_TOKEN_COUNTS_MOST || json_array_size(alone) != n || json_array_size(shares) != n) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "%s: slices: %zu numbers of tokens (at most %d), \"alone_ns\" of %zu, "
                    "\"width_share\" of %zu",
                    r->what, n, OPI_TOKEN_COUNTS_MOST, json_array_size(alone),
                    json_array_size(shares));
  }
  OPI_TRY(opi_layers_add_slices(out, (uint32_t)n, r->err));
  for (uint32_t k = 0; k < n; ++k) {
    opi_token_cost *at = &slices->alone[(size_t)k * out->n_layers];
    const json_int_t value = json_integer_value(json_array_get(tokens, k));
    slices->tokens[k] = value > 0 && value <= INT32_MAX ? (uint32_t)value : 0;
    OPI_TRY(read_numbers(r, json_array_get(alone, k), "alone_ns", out->n_layers, &at->ns,
                         FIELDS_OF_COST));
    OPI_TRY(read_numbers(r, json_array_get(shares, k), "width_share", out->n_layers,
                         &at->width_share, FIELDS_OF_COST));
  }
  return read_numbers(r, json_object_get(object, "context_ns"), "context_ns", out->n_layers,
                      slices->context_ns, 1);
}

/* The optional member "whole". */
static opipe_status read_whole(const reader *r, const json_t *root) {
  const char *why = NULL;
  if (json_object_get(root, "whole") == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_string(root, r->what, "whole", &why, r->err));
  r->out->whole = opi_arena_strdup(&r->out->arena, why);
  return r->out->whole == NULL ? opi_fail_nomem(r->err, strlen(why), "a profile of layers")
                               : OPIPE_OK;
}

static opipe_status read_body(reader *r, const json_t *root, const json_t *names,
                              const json_t *sizes) {
  uint64_t tokens = 0, weight_bytes = 0;
  const json_t *halves = json_object_get(root, "halves");
  OPI_TRY(opi_json_get_u64(root, r->what, "tokens", UINT32_MAX, &tokens, r->err));
  OPI_TRY(opi_json_get_u64(root, r->what, "weight_bytes", 64, &weight_bytes, r->err));
  if (!json_is_boolean(halves))
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"halves\" must be true or false", r->what);
  r->out->tokens = (uint32_t)tokens;
  r->out->weight_bytes = (uint32_t)weight_bytes;
  r->out->halves = json_is_true(halves);
  OPI_TRY(read_whole(r, root));
  for (uint32_t i = 0; i < r->out->n_layers; ++i) {
    const char *name = json_string_value(json_array_get(names, i));
    if (name == NULL)
      return opi_fail(r->err, OPIPE_E_INVALID, "%s: layers[%u] must be a name", r->what, i);
    r->out->names[i] = opi_arena_strdup(&r->out->arena, name);
    if (r->out->names[i] == NULL)
      return opi_fail_nomem(r->err, strlen(name), "a profile of layers");
  }
  for (uint32_t k = 0; k < r->out->n_sizes; ++k)
    OPI_TRY(read_size(r, json_array_get(sizes, k), k));
  OPI_TRY(read_slices(r, json_object_get(root, "slices")));
  return opi_layers_check(r->out, r->err);
}

static opipe_status read_root(reader *r, const json_t *root, const opipe_allocator *allocator) {
  const json_t *names = NULL, *sizes = NULL;
  const char *format = NULL, *name = NULL;
  OPI_TRY(opi_json_get_string(root, r->what, "format", &format, r->err));
  if (strcmp(format, OPI_LAYERS_FORMAT) != 0) {
    return opi_fail(r->err, OPIPE_E_UNSUPPORTED, "%s: format \"%.40s\"; it must be \"%s\"", r->what,
                    format, OPI_LAYERS_FORMAT);
  }
  OPI_TRY(opi_json_get_string(root, r->what, "name", &name, r->err));
  OPI_TRY(opi_json_get_array(root, r->what, "layers", &names, r->err));
  OPI_TRY(opi_json_get_array(root, r->what, "sizes", &sizes, r->err));
  const size_t n_layers = json_array_size(names), n_sizes = json_array_size(sizes);
  OPI_TRY(opi_layers_new(name,
                         n_layers > OPI_LAYERS_MOST ? OPI_LAYERS_MOST + 1 : (uint32_t)n_layers,
                         n_sizes > OPI_LAYERS_MOST ? OPI_LAYERS_MOST + 1 : (uint32_t)n_sizes,
                         allocator, &r->out, r->err));
  return read_body(r, root, names, sizes);
}

opipe_status opi_layers_read_json(const char *name, const void *json, uint64_t n_bytes,
                                  const opipe_allocator *allocator, opi_layers **out_layers,
                                  opipe_error *err) {
  reader r = {.err = err};
  json_t *root = NULL;
  (void)snprintf(r.what, sizeof r.what, "'%.80s'", name);
  OPI_TRY(opi_json_parse(json, n_bytes, r.what, &root, err));
  const opipe_status status = read_root(&r, root, allocator);
  json_decref(root);
  if (status < 0) {
    opi_layers_free(r.out);
    return status;
  }
  *out_layers = r.out;
  return OPIPE_OK;
}
