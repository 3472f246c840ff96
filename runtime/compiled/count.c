/* SPDX-License-Identifier: Apache-2.0 */
/* Counts a mini-batch's valid labels before its first backward. Training's small count graph runs
 * on the host for every micro-batch and every piece of the last stage that has a forward, and the
 * counts are added up. A graph is prepared for each number of rows and each slice when the shape is
 * built, so that a step allocates nothing.
 */
#include <string.h>

#include "loader/passes/passes.h"
#include "runtime/compiled/build.h"

struct opi_train_counter {
  opi_prepared *graph; /* NULL: the number is known */
  uint32_t *ports;     /* [count graph's inputs] of the slice's training graph */
};

/* The graph of counter i: of a slice, in tensor groups of member 0; all see the same labels. */
static const opi_variant_slice *counted_in(const opi_cut_model *model, size_t i) {
  return &model->variants[i / model->n_slices].slices[i % model->n_slices * model->n_members];
}

static const struct opi_train_counter *counter_of(const opi_compiled *t, const opi_piece *piece) {
  return &t->counters[piece->variant * t->model->n_slices + piece->slice];
}

/* The count graph's inputs are the training graph's, by name. */
static opipe_status match_inputs(opi_compiled *t, const opi_training *training,
                                 struct opi_train_counter *counter, opipe_error *err) {
  const opi_graph *g = training->count_graph, *whole = training->graph;
  counter->ports = OPI_ARENA_ARRAY(&t->arena, uint32_t, g->n_inputs);
  if (counter->ports == NULL)
    return opi_fail_nomem(err, g->n_inputs * sizeof(uint32_t), "a count");
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const char *name = g->values[g->inputs[i]].name;
    uint32_t p = 0;
    while (p < whole->n_inputs && strcmp(whole->values[whole->inputs[p]].name, name) != 0)
      ++p;
    if (p == whole->n_inputs)
      return opi_fail(err, OPIPE_E_INTERNAL, "the count reads '%s', which is not an input", name);
    counter->ports[i] = p;
  }
  return OPIPE_OK;
}

static opipe_status open_counter(opi_compiled *t, const opi_training *training,
                                 struct opi_train_counter *counter, opipe_error *err) {
  if (training->count_graph == NULL)
    return OPIPE_OK;
  if (t->setup->env.evaluator == NULL)
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "counting labels needs an evaluator");
  OPI_TRY(match_inputs(t, training, counter, err));
  const opipe_status status =
      opi_prepared_create(t->setup->env.evaluator, training->count_graph, &counter->graph, err);
  return status < 0 ? opi_error_prefix(err, "the count of valid labels: ") : OPIPE_OK;
}

opipe_status opi_train_open_counters(opi_compiled *t, opipe_error *err) {
  const opi_cut_model *model = t->model;
  const size_t n = (size_t)model->n_variants * model->n_slices;
  t->counters = OPI_ARENA_ARRAY(&t->arena, struct opi_train_counter, n);
  if (t->counters == NULL)
    return opi_fail_nomem(err, n * sizeof *t->counters, "counts");
  for (size_t i = 0; i < n; ++i)
    OPI_TRY(open_counter(t, counted_in(model, i)->training, &t->counters[i], err));
  return OPIPE_OK;
}

void opi_train_close_counters(opi_compiled *t) {
  for (uint32_t i = 0; t->counters != NULL && i < t->model->n_variants * t->model->n_slices; ++i)
    opi_prepared_free(t->counters[i].graph);
}

bool opi_train_counts(const opi_compiled *t, uint32_t input) {
  const opi_cut_model *model = t->model;
  for (uint32_t i = 0; t->counters != NULL && i < model->n_variants * model->n_slices; ++i) {
    const opi_graph *g = counted_in(model, i)->training->count_graph;
    const opi_ports *ports = &t->ports[i / model->n_slices][i % model->n_slices * model->n_members];
    for (uint32_t k = 0; g != NULL && k < g->n_inputs; ++k) {
      if (ports->input[t->counters[i].ports[k]] == input)
        return true;
    }
  }
  return false;
}

/* Copies a micro-batch's part of an input densely to the count graph's. */
static void take_input(const opi_compiled *t, const opi_request *request, const opi_piece *piece,
                       const opi_variant_slice *slice, uint32_t m, uint32_t input) {
  const opi_ports *ports = opi_ports_at(t, piece);
  const struct opi_train_counter *counter = counter_of(t, piece);
  const opi_graph *g = slice->training->count_graph;
  const opi_value *value = &g->values[g->inputs[input]];
  const uint32_t p = counter->ports[input];
  const opi_feed *feed = opi_port_feed(request, ports, p);
  opi_view view = {.data = feed->data,
                   .shape = value->shape,
                   .strides = feed->strides,
                   .rank = (uint32_t)value->rank,
                   .elem_bytes = opi_dtype_bits(value->dtype) / 8};
  const int32_t axis = ports->axis[p];
  if (p == ports->labels && t->model->n_slices > 1)
    view.data += slice->first * feed->strides[t->token_axis] * (int64_t)view.elem_bytes;
  if (axis >= 0) {
    view.data += opi_piece_row(t, piece, m) * (value->shape[axis] / piece->rows) *
                 feed->strides[axis] * (int64_t)view.elem_bytes;
  }
  opi_view_gather(&view, opi_prepared_data(counter->graph, input));
}

static opipe_status count_piece(opi_compiled *t, const opi_request *request, uint32_t m,
                                uint32_t stage, double *io_count, double *io_sums,
                                opipe_error *err) {
  const opi_piece *piece = opi_piece_at(t, stage, m);
  if ((piece->phases & 1u << OPI_PHASE_F) == 0)
    return OPIPE_OK;
  const opi_variant_slice *slice = opi_graphs_at(t, stage, m);
  const opi_graph *g = slice->training->count_graph;
  const uint32_t n_sums = slice->training->n_sums;
  if (g == NULL || n_sums != 0)
    *io_count += slice->training->count;
  if (g == NULL)
    return OPIPE_OK;
  opi_prepared *graph = counter_of(t, piece)->graph;
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const uint32_t input = opi_ports_at(t, piece)->input[counter_of(t, piece)->ports[i]];
    if (request->feeds[input].on_device) {
      return opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "input '%s' lies on device %d:%d: labels are counted by the host, in host "
                      "memory",
                      t->setup->inputs[input].name, request->feeds[input].device_type,
                      request->feeds[input].device_id);
    }
    take_input(t, request, piece, slice, m, i);
  }
  OPI_TRY(opi_prepared_run(graph, err));
  for (uint32_t k = 0; k < g->n_outputs; ++k) {
    double count = 0;
    memcpy(&count, opi_prepared_data(graph, g->n_inputs + k), sizeof count);
    *(n_sums != 0 ? &io_sums[k] : io_count) += count;
  }
  return OPIPE_OK;
}

opipe_status opi_train_count(opi_compiled *t, const opi_request *request, double *out_count,
                             double *out_sums, opipe_error *err) {
  *out_count = 0;
  memset(out_sums, 0, OPI_MOST_SUMS * sizeof *out_sums);
  const uint32_t n_pieces = opi_pieces_of_place(t->model), width = t->model->n_members;
  for (uint32_t m = 0; m < t->setup->plan->decided.n_microbatches; ++m) {
    for (uint32_t k = 0; k < n_pieces; k += width) { /* members see the same labels */
      OPI_TRY(count_piece(t, request, m, t->model->loss_stage * t->model->n_pieces + k, out_count,
                          out_sums, err));
    }
  }
  return OPIPE_OK;
}
