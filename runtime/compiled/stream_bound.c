/* SPDX-License-Identifier: Apache-2.0 */
/* Bindings of a stream: a shape's programs that read or make kept tensors, bound to the stream's
 * buffers, so that nothing is copied between requests. They are made for the stream's first request
 * of the shape in a turn, and live until the stream or the shape is freed.
 */
#include "runtime/compiled/stream.h"

#include <string.h>

/* The pair whose input or (*out_made) output is cell `index` of the shape. An output that other
 * stages read too stays in its cell and is copied (store_kept in executor/feed.c). */
static uint32_t pair_of_cell(const opi_compiled *t, uint32_t index, bool *out_made) {
  const opi_streams *streams = t->setup->shapes->streams;
  const opi_cut *cut = t->model->cuts[0];
  const opi_cell *cell = &cut->cells[index];
  *out_made = cell->source == OPI_CELL_MADE;
  if (cell->source == OPI_CELL_REQUEST) {
    const uint32_t input = t->ports[0][0].input[cell->port];
    return input == OPIPE_NONE ? OPIPE_NONE : streams->pair_of_input[input];
  }
  return *out_made && cell->output != OPIPE_NONE && cell->first_out == OPIPE_NONE
             ? streams->pair_of_output[cell->output]
             : OPIPE_NONE;
}

/* Regions of a step's program with the stream's buffers in them; false: it has none of them. */
static bool place(const opi_stream *stream, const opi_compiled *t, const opi_program_unit *unit,
                  const opi_step *step, uint32_t turn, opipe_region *regions) {
  const uint32_t microbatch = step->microbatch, member = opi_member_of(t, step->stage);
  bool any = false;
  for (uint32_t b = 0; b < unit->cut->graph.n_boundaries; ++b) {
    bool made = false;
    const uint32_t p = pair_of_cell(t, unit->cut->cells[b], &made);
    regions[b] = opi_cell_region(t, unit->cut->cells[b], microbatch);
    if (p == OPIPE_NONE)
      continue;
    regions[b] = opi_kept_region(stream, p, member, made ? turn ^ 1 : turn, regions[b].n_bytes);
    any = true;
  }
  return any;
}

/* A shape must keep every pair in the plan's stage (opi_states_hold): any other stage would compute
 * with a buffer that nobody fills. */
static opipe_status check_stage(const opi_stream *stream, uint32_t p, uint32_t stage,
                                opipe_error *err) {
  const opi_state_pair *pair = &stream->setup->plan->decided.states[p];
  return stage == pair->stage
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INTERNAL,
                        "state '%s' -> '%s': stage %u keeps it, stage %u reads or makes it",
                        pair->output, pair->input, pair->stage, stage);
}

/* Binds one step, unless an earlier one has the same program in the same places. */
static opipe_status bind_step(opi_stream *stream, opi_compiled *t, opi_stream_table *table,
                              uint32_t index, opipe_region *regions, opipe_error *err) {
  const opi_step *step = &t->lists->steps[index];
  const uint32_t instance = step->stage * t->pieces->n_replicas + step->replica;
  const uint32_t rank = t->pieces->instance_rank[instance];
  opi_program_unit *unit = opi_unit_at(t, instance, opi_class_at(t, step->microbatch), step->pass);
  if (unit->program == NULL || !place(stream, t, unit, step, table->turn, regions))
    return OPIPE_OK;
  for (uint32_t b = 0; b < unit->cut->graph.n_boundaries; ++b) {
    bool made = false;
    const uint32_t p = pair_of_cell(t, unit->cut->cells[b], &made);
    if (p == OPIPE_NONE)
      continue;
    OPI_TRY(check_stage(stream, p, step->stage / t->model->n_pieces, err));
    if (opi_kept_at(stream, p, opi_member_of(t, step->stage))->holder != rank)
      return OPIPE_OK; /* the stream belongs to another replica */
  }
  for (uint32_t i = 0; i < index; ++i) {
    const opi_step *other = &t->lists->steps[i];
    if (table->bound[i] == NULL || other->stage != step->stage || other->replica != step->replica ||
        t->binding_of_step[i] != t->binding_of_step[index])
      continue;
    table->bound[index] = table->bound[i];
    return OPIPE_OK;
  }
  return opi_unit_bind(t, unit, instance, regions, &table->bound[index], err);
}

static void free_table(const opi_stream *stream, opi_stream_table *table) {
  const opi_setup *s = stream->setup;
  const opi_compiled *t = table->shape;
  for (uint32_t i = 0; i < table->n_steps; ++i) {
    const opi_step *step = &t->lists->steps[i];
    opipe_binding *bound = table->bound[i];
    if (bound == NULL)
      continue;
    const uint32_t rank = opi_piece_rank(t->pieces, step->stage, step->replica);
    for (uint32_t k = i; k < table->n_steps; ++k)
      table->bound[k] = table->bound[k] == bound ? NULL : table->bound[k];
    s->ranks[rank].backend->binding_free(bound);
  }
  opi_free(s->allocator, table, sizeof *table + table->n_steps * sizeof *table->bound);
}

static opipe_status make_table(opi_stream *stream, opi_compiled *t, uint32_t turn,
                               opi_stream_table **out_table, opipe_error *err) {
  const opi_setup *s = stream->setup;
  const uint32_t n_steps = t->lists->n_steps;
  const size_t n_bytes = sizeof(opi_stream_table) + n_steps * sizeof(opipe_binding *);
  const uint32_t most = opi_most_boundaries(t);
  opi_stream_table *table = opi_alloc_zero(s->allocator, 1, n_bytes);
  opipe_region *regions = opi_alloc_zero(s->allocator, most, sizeof *regions);
  opipe_status status = OPIPE_OK;
  if (table == NULL || regions == NULL)
    status = opi_fail_nomem(err, n_bytes, "bindings of a state");
  if (table != NULL) {
    *table = (opi_stream_table){.shape = t, .turn = turn, .n_steps = n_steps};
    table->bound = (opipe_binding **)(void *)(table + 1);
  }
  for (uint32_t i = 0; i < n_steps && status == OPIPE_OK; ++i) {
    if (t->lists->steps[i].kind == OPI_ACT_COMPUTE)
      status = bind_step(stream, t, table, i, regions, err);
  }
  opi_free(s->allocator, regions, most * sizeof *regions);
  if (status == OPIPE_OK)
    *out_table = table;
  else if (table != NULL)
    free_table(stream, table);
  return status;
}

opipe_status opi_stream_bind(opi_request *request, opipe_error *err) {
  opi_stream *stream = request->stream_kept;
  request->bound = NULL;
  if (stream == NULL)
    return OPIPE_OK;
  opi_stream_table *table = stream->tables;
  while (table != NULL && (table->shape != request->runs || table->turn != stream->turn))
    table = table->next;
  if (table == NULL) {
    OPI_TRY(make_table(stream, request->runs, stream->turn, &table, err));
    table->next = stream->tables;
    stream->tables = table;
  }
  request->bound = table->bound;
  request->turn = stream->turn;
  return OPIPE_OK;
}

void opi_stream_unbind(opi_stream *stream) {
  while (stream->tables != NULL) {
    opi_stream_table *table = stream->tables;
    stream->tables = table->next;
    free_table(stream, table);
  }
}

void opi_streams_forget(const opi_compiled *t) {
  opi_stream *at = t->setup->shapes->streams == NULL ? NULL : t->setup->shapes->streams->list;
  for (; at != NULL; at = at->next) {
    for (opi_stream_table **table = &at->tables; *table != NULL;) {
      opi_stream_table *old = *table;
      if (old->shape != t) {
        table = &old->next;
        continue;
      }
      *table = old->next;
      free_table(at, old);
    }
  }
}
