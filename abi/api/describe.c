/* SPDX-License-Identifier: Apache-2.0 */
/* model_describe: what `onnx-pipe inspect` prints. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/api/api.h"

static const char *const patterns[OPI_PATTERN_COUNT] = {
    [OPI_PATTERN_LAYERNORM] = "LayerNorm", [OPI_PATTERN_RMSNORM] = "RMSNorm",
    [OPI_PATTERN_GELU] = "GELU",           [OPI_PATTERN_SILU] = "SiLU",
    [OPI_PATTERN_ROTARY] = "rotary",       [OPI_PATTERN_ATTENTION] = "attention",
    [OPI_PATTERN_MATMUL] = "matmul"};

typedef struct op_count {
  const char *domain, *op;
  uint32_t n;
} op_count;

static int by_count(const void *left, const void *right) {
  const op_count *a = left, *b = right;
  if (a->n != b->n)
    return a->n > b->n ? -1 : 1;
  const int order = strcmp(a->op, b->op);
  return order != 0 ? order : strcmp(a->domain, b->domain);
}

/* Counts operators, subgraphs included; the list is in `arena`. */
static bool count_ops(const opi_graph *g, opi_arena *arena, op_count **io_list, uint32_t *io_n,
                      uint32_t *io_room) {
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    uint32_t at = 0;
    while (at < *io_n && (strcmp((*io_list)[at].op, node->op) != 0 ||
                          strcmp((*io_list)[at].domain, node->domain) != 0))
      ++at;
    if (at == *io_n) {
      if (!opi_arena_grow(arena, (void **)io_list, io_room, *io_n + 1, sizeof(op_count)))
        return false;
      (*io_list)[(*io_n)++] = (op_count){node->domain, node->op, 0};
    }
    ++(*io_list)[at].n;
    for (uint32_t a = 0; a < node->n_attrs; ++a) {
      if (node->attrs[a].kind == OPI_ATTR_GRAPH &&
          !count_ops(node->attrs[a].data, arena, io_list, io_n, io_room))
        return false;
    }
  }
  return true;
}

static void write_ops(opi_text *t, const opi_graph *g, const opipe_allocator *allocator,
                      bool json) {
  opi_arena arena;
  op_count *list = NULL;
  uint32_t n = 0, room = 0;
  opi_arena_init(&arena, allocator, 0);
  if (!count_ops(g, &arena, &list, &n, &room))
    t->failed = true;
  if (n > 1)
    qsort(list, n, sizeof(*list), by_count);
  for (uint32_t i = 0; i < n; ++i) {
    opi_text_puts(t, i == 0 ? (json ? "" : " ") : ", ");
    if (json)
      opi_text_puts(t, "\"");
    opi_text_printf(t, "%s%s%s", list[i].domain, list[i].domain[0] == '\0' ? "" : ".", list[i].op);
    opi_text_printf(t, json ? "\": %u" : " %u", list[i].n);
  }
  opi_arena_release(&arena);
}

static void write_dims_of(opi_text *t, const opi_value *v, bool json) {
  opi_text_puts(t, "[");
  for (int32_t d = 0; d < v->rank; ++d) {
    const char *name = v->dim_names == NULL ? NULL : v->dim_names[d];
    opi_text_puts(t, d == 0 ? "" : ", ");
    if (v->shape[d] >= 0)
      opi_text_printf(t, "%" PRId64, v->shape[d]);
    else if (json)
      opi_text_json(t, name == NULL ? "?" : name);
    else
      opi_text_puts(t, name == NULL ? "?" : name);
  }
  opi_text_puts(t, "]");
}

/* file: the graph whose output names to use, since a bound output may be a copy of another one;
 * NULL: inputs. */
static void write_values(opi_text *t, const char *what, const opi_graph *g, const opi_graph *file,
                         bool json) {
  const uint32_t *list = file == NULL ? g->inputs : g->outputs;
  const uint32_t n = file == NULL ? g->n_inputs : g->n_outputs;
  if (json)
    opi_text_printf(t, "  \"%s\": [", what);
  for (uint32_t i = 0; i < n; ++i) {
    const opi_value *v = &g->values[list[i]];
    const char *name = file == NULL ? v->name : file->values[file->outputs[i]].name;
    if (json) {
      opi_text_puts(t, i == 0 ? "\n    {\"name\": " : ",\n    {\"name\": ");
      opi_text_json(t, name);
      opi_text_printf(t, ", \"dtype\": \"%s\", \"shape\": ", opi_dtype_name(v->dtype));
      write_dims_of(t, v, true);
      opi_text_puts(t, "}");
    } else {
      opi_text_printf(t, "%-7s %-24s %-8s ", what, name, opi_dtype_name(v->dtype));
      write_dims_of(t, v, false);
      opi_text_puts(t, "\n");
    }
  }
  if (json)
    opi_text_puts(t, n == 0 ? "],\n" : "\n  ],\n");
}

/* Initializers that more than one node reads. */
static opipe_status write_ties(opi_text *t, const opi_graph *g, const opipe_allocator *allocator,
                               bool json, opipe_error *err) {
  opi_arena arena;
  opi_uses uses;
  bool first = true;
  opi_arena_init(&arena, allocator, 0);
  const opipe_status status = opi_graph_uses(g, &arena, &uses, err);
  for (uint32_t v = 0; status == OPIPE_OK && v < g->n_values; ++v) {
    const opi_value *value = &g->values[v];
    const uint32_t n = uses.first[v + 1] - uses.first[v];
    if ((value->flags & OPI_VALUE_INITIALIZER) == 0 || n < 2 || value->rank < 1 ||
        !opi_dtype_is_float(value->dtype))
      continue;
    if (json) {
      opi_text_puts(t, first ? "" : ", ");
      opi_text_json(t, value->name);
      opi_text_printf(t, ": %u", n);
    } else {
      opi_text_printf(t, "tied    %-24s read by %u nodes\n", value->name, n);
    }
    first = false;
  }
  opi_arena_release(&arena);
  return status;
}

static void write_patterns(opi_text *t, const opi_bound *bound, bool json) {
  for (uint32_t p = 1; p < OPI_PATTERN_COUNT; ++p) {
    if (json)
      opi_text_printf(t, "%s\"%s\": %u", p == 1 ? "" : ", ", patterns[p], bound->patterns[p]);
    else if (bound->patterns[p] != 0)
      opi_text_printf(t, " %s %u", patterns[p], bound->patterns[p]);
  }
}

static opipe_status describe_text(opi_text *t, opi_model_object *m, const opipe_model_info *info,
                                  opipe_error *err) {
  const opi_graph *file = m->file->graph;
  const opi_graph *g = m->bound == NULL ? file : m->bound->graph;
  opi_text_printf(t, "model   %s\n", m->file->path == NULL ? "(from memory)" : m->file->path);
  opi_text_printf(t, "format  IR %" PRId64, m->file->ir_version);
  for (uint32_t i = 0; i < m->file->n_opsets; ++i) {
    opi_text_printf(t, ", %s %" PRId64,
                    m->file->opsets[i].domain[0] == '\0' ? "ai.onnx" : m->file->opsets[i].domain,
                    m->file->opsets[i].version);
  }
  opi_text_printf(t, "%s%s\n", m->file->producer[0] == '\0' ? "" : ", by ", m->file->producer);
  write_values(t, "input", g, NULL, false);
  write_values(t, "output", g, file, false);
  for (uint32_t i = 0; m->bound != NULL && i < m->bound->n_dims; ++i) {
    opi_text_printf(t, "dim     %-24s %" PRId64 "\n", m->bound->dims[i].name,
                    m->bound->dims[i].value);
  }
  opi_text_printf(t, "nodes   %u in the file:", info->n_file_nodes);
  write_ops(t, file, &m->context->allocator, false);
  opi_text_puts(t, "\n");
  if (m->bound != NULL) {
    opi_text_printf(t, "bound   %u:", g->n_nodes);
    write_ops(t, g, &m->context->allocator, false);
    opi_text_puts(t, "\nfused  ");
    write_patterns(t, m->bound, false);
    opi_text_puts(t, "\n");
  }
  opi_text_printf(t, "params  %" PRIu64 " elements, %" PRIu64 " bytes\n", info->parameter_elems,
                  info->parameter_bytes);
  OPI_TRY(write_ties(t, g, &m->context->allocator, false, err));
  if (info->n_annotated_stages != 0)
    opi_text_printf(t, "stages  %u, annotated in the file\n", info->n_annotated_stages);
  if (m->bound != NULL)
    opi_text_printf(t, "work    %.3f Gflop for one request\n", info->flops * 1e-9);
  return OPIPE_OK;
}

static opipe_status describe_json(opi_text *t, opi_model_object *m, const opipe_model_info *info,
                                  opipe_error *err) {
  const opi_graph *g = m->bound == NULL ? m->file->graph : m->bound->graph;
  opi_text_printf(t, "{\n  \"ir_version\": %" PRId64 ",\n  \"producer\": ", m->file->ir_version);
  opi_text_json(t, m->file->producer);
  opi_text_puts(t, ",\n  \"opsets\": {");
  for (uint32_t i = 0; i < m->file->n_opsets; ++i) {
    opi_text_puts(t, i == 0 ? "" : ", ");
    opi_text_json(t, m->file->opsets[i].domain);
    opi_text_printf(t, ": %" PRId64, m->file->opsets[i].version);
  }
  opi_text_puts(t, "},\n");
  write_values(t, "inputs", g, NULL, true);
  write_values(t, "outputs", g, m->file->graph, true);
  opi_text_puts(t, "  \"dims\": {");
  for (uint32_t i = 0; m->bound != NULL && i < m->bound->n_dims; ++i) {
    opi_text_puts(t, i == 0 ? "" : ", ");
    opi_text_json(t, m->bound->dims[i].name);
    opi_text_printf(t, ": %" PRId64, m->bound->dims[i].value);
  }
  opi_text_printf(t, "},\n  \"file_nodes\": %u,\n  \"file_operators\": {", info->n_file_nodes);
  write_ops(t, m->file->graph, &m->context->allocator, true);
  opi_text_puts(t, "},\n");
  if (m->bound != NULL) {
    opi_text_printf(t, "  \"nodes\": %u,\n  \"operators\": {", g->n_nodes);
    write_ops(t, g, &m->context->allocator, true);
    opi_text_puts(t, "},\n  \"patterns\": {");
    write_patterns(t, m->bound, true);
    opi_text_printf(t, "},\n  \"flops\": %.17g,\n", info->flops);
  }
  opi_text_puts(t, "  \"tied\": {");
  OPI_TRY(write_ties(t, g, &m->context->allocator, true, err));
  opi_text_printf(t,
                  "},\n  \"annotated_stages\": %u,\n  \"parameter_elements\": %" PRIu64
                  ",\n  \"parameter_bytes\": %" PRIu64 "\n}\n",
                  info->n_annotated_stages, info->parameter_elems, info->parameter_bytes);
  return OPIPE_OK;
}

opipe_status opi_api_model_describe(opi_model_object *m, uint32_t format, opipe_write_fn write,
                                    void *ctx, opipe_error *err) {
  opipe_model_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_model_info, flops)};
  OPI_TRY(opi_api_model_info(m, &info, err));
  OPI_TRY(opi_choice_check("model_describe", "format", format, OPIPE_FORMAT_JSON, err));
  opi_text t;
  opi_text_init(&t, &m->context->allocator);
  opipe_status status = format == OPIPE_FORMAT_JSON ? describe_json(&t, m, &info, err)
                                                    : describe_text(&t, m, &info, err);
  if (status == OPIPE_OK)
    status = opi_text_write(&t, write, ctx, err);
  opi_text_release(&t);
  return status;
}
