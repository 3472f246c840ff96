/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints of models, and hashes of plans' decisions. */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/passes/row_model.h"
#include "partition/file/file.h"

static void add(XXH3_state_t *state, const void *data, size_t n) {
  if (n != 0)
    (void)XXH3_128bits_update(state, data, n);
}

static void add_text(XXH3_state_t *state, const char *text) {
  add(state, text, strlen(text) + 1);
}

static void add_u64(XXH3_state_t *state, uint64_t value) {
  add(state, &value, sizeof(value));
}

static void add_value(XXH3_state_t *state, const opi_value *value) {
  add_text(state, value->name);
  add_u64(state, value->dtype);
  add_u64(state, (uint64_t)(int64_t)value->rank);
  for (int32_t d = 0; d < value->rank; ++d) {
    add_u64(state, (uint64_t)value->shape[d]);
    if (value->dim_names != NULL && value->dim_names[d] != NULL)
      add_text(state, value->dim_names[d]);
  }
}

static void add_graph(XXH3_state_t *state, const opi_graph *graph);

static void add_attr(XXH3_state_t *state, const opipe_attr *attr) {
  add_text(state, attr->name);
  add_u64(state, attr->kind);
  add_u64(state, (uint64_t)attr->i);
  add(state, &attr->f, sizeof(attr->f));
  if (attr->data == NULL)
    return;
  const opipe_literal *literal = attr->data;
  const char *const *strings = attr->data;
  switch (attr->kind) {
    case OPIPE_ATTR_STRING:
      add(state, attr->data, attr->n);
      break;
    case OPIPE_ATTR_INTS:
      add(state, attr->data, attr->n * sizeof(int64_t));
      break;
    case OPIPE_ATTR_FLOATS:
      add(state, attr->data, attr->n * sizeof(float));
      break;
    case OPIPE_ATTR_STRINGS:
      for (uint32_t i = 0; i < attr->n; ++i)
        add_text(state, strings[i]);
      break;
    case OPIPE_ATTR_TENSOR:
      add_u64(state, literal->dtype);
      add(state, literal->shape, literal->rank * sizeof(int64_t));
      break;
    case OPI_ATTR_GRAPH:
      add_graph(state, attr->data);
      break;
    default:
      break;
  }
}

static void add_graph(XXH3_state_t *state, const opi_graph *graph) {
  add_u64(state, graph->n_values);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    add_value(state, &graph->values[v]);
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    add_text(state, node->op);
    add_text(state, node->domain);
    add_u64(state, node->version);
    add(state, node->in, node->n_in * sizeof(*node->in));
    add(state, node->out, node->n_out * sizeof(*node->out));
    for (uint32_t a = 0; a < node->n_attrs; ++a)
      add_attr(state, &node->attrs[a]);
  }
  add(state, graph->inputs, graph->n_inputs * sizeof(*graph->inputs));
  add(state, graph->outputs, graph->n_outputs * sizeof(*graph->outputs));
}

void opi_model_fingerprint(const opi_model *model, uint64_t out_fingerprint[2]) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  (void)XXH3_128bits_reset(&state);
  add_graph(&state, model->rows == NULL ? model->graph : model->rows->file->graph);
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  out_fingerprint[0] = hash.high64;
  out_fingerprint[1] = hash.low64;
}

static int add_written(void *ctx, const void *data, size_t n) {
  add(ctx, data, n);
  return OPIPE_OK;
}

opipe_status opi_plan_hash(opi_plan *plan, opipe_error *err) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  (void)XXH3_128bits_reset(&state);
  OPI_TRY(opi_plan_write_decisions(plan, add_written, &state, err));
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  plan->hash[0] = hash.high64;
  plan->hash[1] = hash.low64;
  return OPIPE_OK;
}

/* ---- tensor groups ---- */

static void add_parts(XXH3_state_t *state, const opi_shard_part *parts, uint32_t n) {
  add_u64(state, n);
  for (uint32_t i = 0; i < n; ++i) {
    add_text(state, parts[i].name);
    add_u64(state, (uint64_t)(int64_t)parts[i].axis);
    add_u64(state, parts[i].flags);
    add_u64(state, parts[i].n_runs);
    for (uint32_t k = 0; k < parts[i].n_runs; ++k) {
      add_u64(state, (uint64_t)parts[i].runs[k].first);
      add_u64(state, (uint64_t)parts[i].runs[k].n);
    }
  }
}

/* In graph order, which does not depend on the stages. */
static void add_collectives(XXH3_state_t *state, const opi_graph *graph) {
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    opi_collective how;
    if (!opi_collective_of(graph, &graph->nodes[n], &how))
      continue;
    add_text(state, graph->values[graph->nodes[n].in[0]].name);
    add_u64(state, how.kind);
    add_u64(state, how.dtype);
    add_u64(state, (uint64_t)(int64_t)how.axis);
    for (uint32_t k = 0; k < how.n_parts; ++k)
      add_u64(state, (uint64_t)how.parts[k]);
  }
}

void opi_shards_print(const opi_shards *shards, uint64_t out_print[2]) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  (void)XXH3_128bits_reset(&state);
  for (uint32_t r = 0; r < shards->width; ++r) {
    const opi_shard_member *m = &shards->members[r];
    add_parts(&state, m->params, m->n_params);
    add_parts(&state, m->inputs, m->n_inputs);
    add_parts(&state, m->outputs, m->n_outputs);
    add_u64(&state, m->n_sums);
    for (uint32_t i = 0; i < m->n_sums; ++i)
      add_text(&state, m->bound->graph->values[m->sums[i]].name);
    add_collectives(&state, m->bound->graph);
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  out_print[0] = hash.high64;
  out_print[1] = hash.low64;
}
