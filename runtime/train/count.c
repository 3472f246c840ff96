/* SPDX-License-Identifier: Apache-2.0 */
/* How many labels of a mini-batch are valid, before its first backward: the training's small count
 * graph, node by node on the host, for every micro-batch and every piece of the last stage that has
 * some of its forward; the numbers are added up.
 */
#include <string.h>

#include "runtime/strided.h"
#include "runtime/train/state.h"

typedef struct counting {
  opi_train *t;
  const opi_request *request;
  const opi_graph *g;
  const void **data; /* [n_values] */
  opi_arena scratch;
  const opi_train_piece *piece;
  const opi_train_slice *slice;
  opipe_error *err;
} counting;

/* The part of a micro-batch, dense. The count graph's inputs are the training graph's, by name. */
static opipe_status take_input(counting *c, uint32_t port, uint32_t microbatch) {
  const opi_train *t = c->t;
  const opi_value *value = &c->g->values[c->g->inputs[port]];
  const opi_train_ports *ports = opi_train_ports_of(t, c->piece);
  const opi_graph *whole = c->slice->training->graph;
  uint32_t p = 0;
  while (p < whole->n_inputs && strcmp(whole->values[whole->inputs[p]].name, value->name) != 0)
    ++p;
  if (p == whole->n_inputs)
    return opi_fail(c->err, OPIPE_E_INTERNAL, "the count reads '%s', which is no input",
                    value->name);
  const opi_feed *feed = &c->request->feeds[ports->input[p]];
  opi_view view = {.data = feed->data,
                   .shape = value->shape,
                   .strides = feed->strides,
                   .rank = (uint32_t)value->rank,
                   .elem_bytes = opi_dtype_bits(value->dtype) / 8};
  const int32_t axis = ports->axis[p];
  if (p == ports->labels && t->model->n_slices > 1)
    view.data += c->slice->first * feed->strides[t->token_axis] * (int64_t)view.elem_bytes;
  if (axis >= 0) {
    view.data += opi_train_piece_row(t, c->piece, microbatch) *
                 (value->shape[axis] / c->piece->rows) * feed->strides[axis] *
                 (int64_t)view.elem_bytes;
  }
  char *dense = opi_arena_alloc(&c->scratch, (size_t)value->n_bytes);
  if (dense == NULL)
    return opi_fail_nomem(c->err, value->n_bytes, "labels");
  opi_view_gather(&view, dense);
  c->data[c->g->inputs[port]] = dense;
  return OPIPE_OK;
}

static void describe_value(const opi_graph *g, uint32_t v, opipe_value *out) {
  const opi_value *value = &g->values[v];
  *out = (opipe_value){.name = value->name,
                       .shape = value->shape,
                       .n_bytes = value->n_bytes,
                       .dtype = value->dtype,
                       .rank = (uint32_t)value->rank,
                       .slot = OPIPE_NONE};
}

static opipe_status run_node(counting *c, const opi_node *node) {
  const opi_evaluator *evaluator = c->t->session->env.evaluator;
  const uint32_t n = node->n_in + node->n_out;
  opipe_value *values = OPI_ARENA_ARRAY(&c->scratch, opipe_value, n);
  uint32_t *index = OPI_ARENA_ARRAY(&c->scratch, uint32_t, n);
  void **outs = OPI_ARENA_ARRAY(&c->scratch, void *, node->n_out);
  uint32_t n_values = 0, n_outs = 0;
  if (values == NULL || index == NULL || outs == NULL)
    return opi_fail_nomem(c->err, n * sizeof *values, "a count");
  for (uint32_t i = 0; i < n; ++i) {
    const bool in = i < node->n_in;
    const uint32_t v = in ? node->in[i] : node->out[i - node->n_in];
    index[i] = OPIPE_NONE;
    if (v == OPIPE_NONE)
      continue;
    describe_value(c->g, v, &values[n_values]);
    values[n_values].role = in ? OPIPE_VALUE_CONSTANT : OPIPE_VALUE_OUTPUT;
    if (in) {
      values[n_values].data = c->data[v];
    } else {
      outs[n_outs] = opi_arena_alloc(&c->scratch, (size_t)c->g->values[v].n_bytes);
      if (outs[n_outs] == NULL)
        return opi_fail_nomem(c->err, c->g->values[v].n_bytes, "a count");
      c->data[v] = outs[n_outs];
      values[n_values].slot = n_outs++;
    }
    index[i] = n_values++;
  }
  const opipe_node one = {.name = node->name,
                          .op = node->op,
                          .domain = node->domain,
                          .in = index,
                          .out = index + node->n_in,
                          .attrs = node->attrs,
                          .n_in = node->n_in,
                          .n_out = node->n_out,
                          .n_attrs = node->n_attrs,
                          .version = node->version};
  const opipe_graph graph = {.struct_size = (uint32_t)OPIPE_END(opipe_graph, n_scalars),
                             .n_values = n_values,
                             .values = values,
                             .nodes = &one,
                             .n_nodes = 1,
                             .n_boundaries = n_outs};
  return evaluator->run(evaluator->ctx, &graph, outs, c->err);
}

static opipe_status count_one(counting *c, uint32_t microbatch, double *io_count) {
  double count = 0;
  for (uint32_t v = 0; v < c->g->n_values; ++v)
    c->data[v] = c->g->values[v].data;
  for (uint32_t p = 0; p < c->g->n_inputs; ++p)
    OPI_TRY(take_input(c, p, microbatch));
  for (uint32_t n = 0; n < c->g->n_nodes; ++n)
    OPI_TRY(run_node(c, &c->g->nodes[n]));
  const void *result = c->data[c->g->outputs[0]];
  if (result == NULL)
    return opi_fail(c->err, OPIPE_E_INTERNAL, "the count of valid labels has no value");
  memcpy(&count, result, sizeof count);
  *io_count += count;
  return OPIPE_OK;
}

static opipe_status count_piece(opi_train *t, const opi_request *request, uint32_t m,
                                uint32_t stage, double *io_count, opipe_error *err) {
  const opi_train_piece *piece = opi_train_piece_of(t, stage, m);
  if ((piece->phases & 1u << OPI_PHASE_F) == 0)
    return OPIPE_OK;
  const opi_train_slice *slice = opi_train_graphs_of(t, stage, m);
  const opi_training *training = slice->training;
  if (training->count_graph == NULL) {
    *io_count += training->count;
    return OPIPE_OK;
  }
  if (t->session->env.evaluator == NULL)
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "counting labels needs an evaluator");
  counting c = {.t = t,
                .request = request,
                .g = training->count_graph,
                .piece = piece,
                .slice = slice,
                .err = err};
  opi_arena_init(&c.scratch, t->session->allocator, 0);
  c.data = OPI_ARENA_ARRAY(&c.scratch, const void *, c.g->n_values);
  const opipe_status status =
      c.data == NULL ? opi_fail_nomem(err, c.g->n_values, "a count") : count_one(&c, m, io_count);
  opi_arena_release(&c.scratch);
  return status;
}

opipe_status opi_train_count(opi_train *t, const opi_request *request, double *out_count,
                             opipe_error *err) {
  *out_count = 0;
  for (uint32_t m = 0; m < t->session->plan->n_microbatches; ++m) {
    for (uint32_t s = t->plan->n_stages - t->model->n_views; s < t->plan->n_stages; ++s)
      OPI_TRY(count_piece(t, request, m, s, out_count, err));
  }
  return OPIPE_OK;
}
