/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of ONNX Runtime GenAI, described for hosts. */
#include "abi/api/api.h"
#include "loader/base/json.h"
#include "runtime/generate/generate.h"

enum { FOLDER_ROOM = 16 << 20 }; /* bytes that a config may become; its names are by layer */

static void put_name(opi_text *t, const char *key, const char *value) {
  opi_text_printf(t, ", \"%s\": ", key);
  if (value == NULL)
    opi_text_puts(t, "null");
  else
    opi_text_json(t, value);
}

static void put_names(opi_text *t, const char *key, const char *const *names, uint32_t n) {
  opi_text_printf(t, ", \"%s\": [", key);
  for (uint32_t i = 0; names != NULL && i < n; ++i) {
    opi_text_puts(t, i == 0 ? "" : ", ");
    opi_text_json(t, names[i]);
  }
  opi_text_puts(t, "]");
}

static void put_number(opi_text *t, const char *key, double value) {
  opi_text_printf(t, "\"%s\": ", key);
  opi_json_double(t, value);
  opi_text_puts(t, ", ");
}

/* As session_generate takes it. */
static void put_sampling(opi_text *t, const opi_sampling *s) {
  opi_text_puts(t, ", \"sampling\": {");
  put_number(t, "temperature", s->temperature);
  put_number(t, "top_p", s->top_p);
  put_number(t, "min_p", s->min_p);
  put_number(t, "repetition_penalty", s->repetition_penalty);
  opi_text_printf(t, "\"top_k\": %u, \"stop\": [", s->top_k);
  for (uint32_t i = 0; i < s->n_stops; ++i) {
    opi_text_puts(t, i == 0 ? "[" : ", [");
    for (uint32_t k = 0; k < s->stops[i].n; ++k)
      opi_text_printf(t, k == 0 ? "%u" : ", %u", s->stops[i].ids[k]);
    opi_text_puts(t, "]");
  }
  opi_text_puts(t, "]}");
}

static void put_config(opi_text *t, const opi_genai *c) {
  opi_text_puts(t, "{\"type\": ");
  opi_text_json(t, c->type);
  put_names(t, "files", c->files, c->n_files);
  opi_text_printf(t,
                  ", \"layers\": %u, \"heads\": %u, \"kv_heads\": %u, \"head_size\": %u, "
                  "\"context\": %u, \"vocab\": %u, \"window\": %u",
                  c->n_layers, c->n_heads, c->n_kv_heads, c->head_size, c->context, c->n_vocab,
                  c->window);
  if (c->bos != UINT32_MAX)
    opi_text_printf(t, ", \"bos\": %u", c->bos);
  if (c->pad != UINT32_MAX)
    opi_text_printf(t, ", \"pad\": %u", c->pad);
  put_name(t, "input_ids", c->input_ids);
  put_name(t, "attention_mask", c->attention_mask);
  put_name(t, "position_ids", c->position_ids);
  put_name(t, "logits", c->logits);
  put_names(t, "past_keys", c->past[OPI_KEYS], c->n_layers);
  put_names(t, "past_values", c->past[OPI_VALUES], c->n_layers);
  put_names(t, "present_keys", c->present[OPI_KEYS], c->n_layers);
  put_names(t, "present_values", c->present[OPI_VALUES], c->n_layers);
  opi_text_printf(t, ", \"shares_buffer\": %s, \"min_length\": %u, \"max_length\": %u",
                  c->shares_buffer ? "true" : "false", c->min_length, c->max_length);
  put_sampling(t, &c->sampling);
  opi_text_puts(t, "}\n");
}

opipe_status opi_api_genai_describe(opi_context_object *context, const void *text, uint64_t n_bytes,
                                    const char *name, opipe_write_fn write, void *ctx,
                                    opipe_error *err) {
  opi_arena arena;
  opi_genai config;
  opi_text out;
  if (text == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "genai_describe: text is NULL");
  opi_arena_init(&arena, &context->allocator, FOLDER_ROOM);
  opi_text_init(&out, &context->allocator);
  opipe_status status = opi_genai_read(text, n_bytes, name == NULL ? "genai_config.json" : name,
                                       &arena, &config, err);
  if (status == OPIPE_OK) {
    put_config(&out, &config);
    status = opi_text_write(&out, write, ctx, err);
  }
  opi_text_release(&out);
  opi_arena_release(&arena);
  return status;
}
