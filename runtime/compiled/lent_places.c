/* SPDX-License-Identifier: Apache-2.0 */
/* Programs bound to the host's tensors, which take the place of a shape's cells: one set of
 * bindings for each set of addresses. A host that gives the same memory again finds its set. A host
 * that gives new memory every time gets as many sets as there is room for, and copies afterwards,
 * so that submits do not go on binding programs in vain.
 */
#include <string.h>

#include "runtime/compiled/lent_kit.h"

/* ---- which tensors, which cells ---- */

/* The address of a tensor that is dense and valid before its first program runs, be it by the
 * queue's wait. 0: the tensor is copied. */
static uint64_t key_of(const opi_request *request, uint32_t item) {
  const opi_setup *s = request->setup;
  const opi_feed *feed = &request->feeds[item];
  const opi_result *result = &request->results[item - s->n_inputs];
  if (item >= s->n_inputs) {
    const bool late = result->ready.kind == OPIPE_FENCE_HOST_FLAG ||
                      (s->reference && request->lent->looks[item].event != NULL);
    return result->on_device && !late ? (uint64_t)(uintptr_t)result->data : 0;
  }
  if (!feed->on_device || opi_dtype_bits(s->inputs[item].value->dtype) < 8)
    return 0;
  const opi_view view = {.shape = feed->shape,
                         .strides = feed->strides,
                         .rank = (uint32_t)s->inputs[item].value->rank,
                         .elem_bytes = opi_dtype_bits(s->inputs[item].value->dtype) / 8};
  return opi_view_is_dense(&view) ? (uint64_t)(uintptr_t)feed->data : 0;
}

typedef struct only {
  uint64_t whole_at, n_bytes;
} only;

static opipe_status note_run(void *ctx, uint64_t whole_at, uint64_t part_at, uint64_t n_bytes) {
  only *o = ctx;
  *o = (only){whole_at, n_bytes};
  return part_at == 0 ? OPIPE_OK : OPIPE_PENDING; /* PENDING: there is another */
}

/* Finds the place of a cell's micro-batch in an input; false: it is not contiguous. */
static bool find_fed(const opi_request *request, const opi_cell *cell, uint32_t m,
                     uint32_t *out_item, only *out) {
  const opi_compiled *t = request->runs;
  int64_t dims[OPIPE_MAX_RANK];
  const uint32_t input = opi_ports_at(t, opi_piece_at(t, cell->stage, m))->input[cell->port];
  if (input == OPIPE_NONE || request->lent->key[input] == 0)
    return false;
  const opi_view view = opi_step_part(t, request, cell->stage, cell->port, m, dims);
  *out_item = input;
  *out = (only){.n_bytes = 0};
  const opipe_status status = opi_view_runs(&view, note_run, out);
  out->whole_at = (uint64_t)(uintptr_t)view.data;
  return status == OPIPE_OK && out->n_bytes == cell->n_bytes;
}

/* Is the cell two outputs at once? */
static bool is_shared(const opi_cut *cut, const opi_setup *s, uint32_t cell, uint32_t stage) {
  uint32_t n = 0;
  for (uint32_t o = 0; o < s->n_outputs; ++o)
    n += opi_output_cell_at(cut, o, stage) == cell;
  return n != 1;
}

/* The same in an output; only if its own rank makes all of the part, and no other rank reads it. */
static bool find_made(const opi_request *request, uint32_t index, uint32_t m, uint32_t *out_item,
                      only *out) {
  const opi_compiled *t = request->runs;
  const opi_setup *s = t->setup;
  const opi_cut *cut = t->model->cuts[opi_class_at(t, m)];
  const opi_cell *cell = &cut->cells[index];
  const uint32_t item = s->n_inputs + cell->output;
  const uint32_t rank = t->pieces->instance_rank[opi_instance_at(t, cell->stage, m)];
  opi_result_place place;
  if (cell->output == OPIPE_NONE || cell->first_out != OPIPE_NONE || t->model->n_slices != 1 ||
      request->lent->key[item] == 0 || is_shared(cut, s, index, cell->stage) ||
      t->lists->lies_on[(size_t)index * t->pieces->n_microbatches + m] != rank)
    return false;
  const opi_value *value = &opi_graphs_at(t, cell->stage, m)->graph->values[cell->value];
  const opi_carry *carry = &t->output_carry[cell->output];
  if (!opi_result_takes(t, cell->stage, m, cell->output))
    return false; /* another rank makes it */
  opi_step_place(t, request, cell->stage, m, cell->output, carry, &place);
  if (place.member != NULL && place.member->shared)
    return false; /* another member would work in the same memory */
  *out = (only){.n_bytes = 0};
  const opipe_status status = opi_result_runs(value, &place, note_run, out);
  out->whole_at += (uint64_t)(uintptr_t)request->results[cell->output].data;
  *out_item = item;
  return status == OPIPE_OK && out->n_bytes == cell->n_bytes;
}

/* The region of a cell in the host's tensor; false: the cell has its own memory. */
static bool place_cell(const opi_request *request, uint32_t index, uint32_t m,
                       opipe_region *out_region) {
  const opi_compiled *t = request->runs;
  const opi_setup *s = t->setup;
  const opi_cell *cell = &t->model->cuts[opi_class_at(t, m)]->cells[index];
  const opi_rank *rank = &s->ranks[t->pieces->instance_rank[opi_instance_at(t, cell->stage, m)]];
  uint32_t item = 0;
  only at;
  const bool lies = cell->held                         ? false
                    : cell->source == OPI_CELL_REQUEST ? find_fed(request, cell, m, &item, &at)
                    : cell->source == OPI_CELL_MADE    ? find_made(request, index, m, &item, &at)
                                                       : false;
  if (!lies || rank->setup == NULL || at.n_bytes == 0 || at.whole_at % rank->alignment != 0)
    return false;
  const opi_import *memory = opi_lent_at(request, rank->place, item)->memory;
  if (memory == NULL)
    return false;
  *out_region = (opipe_region){.buffer = memory->as.buffer,
                               .offset_bytes = at.whole_at - memory->native,
                               .n_bytes = at.n_bytes};
  return true;
}

bool opi_lent_in_place(const opi_request *request, uint32_t cell, uint32_t microbatch) {
  opipe_region region;
  return request->lent->places != NULL && place_cell(request, cell, microbatch, &region);
}

/* ---- sets ---- */

static opipe_status bind_step(const opi_request *request, opi_lent_places *places, uint32_t index,
                              opipe_region *regions, opipe_error *err) {
  const opi_compiled *t = request->runs;
  const opi_step *step = &t->lists->steps[index];
  const uint32_t instance = step->stage * t->pieces->n_replicas + step->replica;
  const opi_program_unit *unit =
      opi_unit_at(t, instance, opi_class_at(t, step->microbatch), step->pass);
  bool any = false;
  if (!opi_rank_is_here(t->setup, t->pieces->instance_rank[instance]) || unit->program == NULL)
    return OPIPE_OK;
  for (uint32_t b = 0; b < unit->cut->graph.n_boundaries; ++b) {
    const uint32_t cell = unit->cut->cells[b];
    const bool lies = place_cell(request, cell, step->microbatch, &regions[b]);
    if (!lies)
      regions[b] = opi_cell_region(t, cell, step->microbatch);
    any = any || lies;
  }
  return any ? opi_unit_bind(t, unit, instance, regions, &places->bound[index], err) : OPIPE_OK;
}

static size_t places_bytes(const opi_compiled *t) {
  const size_t n = opi_n_items(t->setup);
  return sizeof(opi_lent_places) + n * sizeof(uint64_t) +
         n * t->setup->n_here * sizeof(opi_import *) + t->lists->n_steps * sizeof(opipe_binding *);
}

static opi_lent_places *new_places(const opi_request *request, opipe_error *err) {
  const opi_compiled *t = request->runs;
  const opi_setup *s = t->setup;
  const size_t n = opi_n_items(s);
  opi_lent_places *places = opi_alloc_zero(s->allocator, 1, places_bytes(t));
  if (places == NULL) {
    (void)opi_fail_nomem(err, places_bytes(t), "bindings of a host's tensors");
    return NULL;
  }
  places->shape = t;
  places->key = (uint64_t *)(void *)(places + 1);
  places->memory = (opi_import **)(void *)(places->key + n);
  places->bound = (opipe_binding **)(void *)(places->memory + n * s->n_here);
  memcpy(places->key, request->lent->key, n * sizeof *places->key);
  for (size_t i = 0; i < n * s->n_here; ++i) {
    places->memory[i] = places->key[i % n] == 0 ? NULL : request->lent->items[i].memory;
    if (places->memory[i] != NULL)
      atomic_fetch_add(&places->memory[i]->n_users, 1);
  }
  return places;
}

static opipe_status make_places(opi_request *request, opi_lent_places **out_places,
                                opipe_error *err) {
  const opi_compiled *t = request->runs;
  opi_setup *s = request->setup;
  const uint32_t most = opi_most_boundaries(t);
  opi_lent_places *places = new_places(request, err);
  opipe_region *regions = opi_alloc_zero(s->allocator, most, sizeof *regions);
  opipe_status status = OPIPE_OK;
  if (places == NULL)
    status = OPIPE_E_NOMEM;
  else if (regions == NULL)
    status = opi_fail_nomem(err, most * sizeof *regions, "bindings of a host's tensors");
  for (uint32_t i = 0; i < t->lists->n_steps && status == OPIPE_OK; ++i) {
    if (t->lists->steps[i].kind == OPI_ACT_COMPUTE)
      status = bind_step(request, places, i, regions, err);
  }
  opi_free(s->allocator, regions, most * sizeof *regions);
  if (status == OPIPE_OK)
    *out_places = places;
  else if (places != NULL)
    opi_lent_places_free(s, places);
  return status;
}

void opi_lent_places_free(opi_setup *s, opi_lent_places *places) {
  const opi_compiled *t = places->shape;
  const size_t n = (size_t)opi_n_items(s) * s->n_here;
  for (uint32_t i = 0; i < t->lists->n_steps; ++i) {
    const opi_step *step = &t->lists->steps[i];
    if (places->bound[i] != NULL) {
      const uint32_t rank = opi_piece_rank(t->pieces, step->stage, step->replica);
      s->ranks[rank].backend->binding_free(places->bound[i]);
    }
  }
  for (size_t i = 0; i < n; ++i)
    opi_import_drop(places->memory[i]);
  opi_free(s->allocator, places, places_bytes(t));
}

/* Frees the least recently used set if it has rested; false: there is no room. */
static bool make_room(opi_setup *s) {
  opi_lent_places **oldest = NULL;
  uint32_t n = 0;
  for (opi_lent_places **at = &s->shapes->places; *at != NULL; at = &(*at)->next, ++n) {
    if (opi_is_idle(s, &(*at)->n_users) &&
        (oldest == NULL || (*at)->last_used < (*oldest)->last_used))
      oldest = at;
  }
  if (n < OPI_LENT_PLACES)
    return true;
  if (oldest == NULL || s->shapes->n_numbered - (*oldest)->last_used <= OPI_PLACE_REST)
    return false;
  opi_lent_places *old = *oldest;
  *oldest = old->next;
  opi_lent_places_free(s, old);
  return true;
}

opipe_status opi_lent_places_find(opi_request *request, opipe_error *err) {
  opi_setup *s = request->setup;
  struct opi_lent *lent = request->lent;
  const uint32_t n = opi_n_items(s);
  bool any = false;
  for (uint32_t i = 0; i < n; ++i) {
    lent->key[i] = key_of(request, i);
    any = any || lent->key[i] != 0;
  }
  if (!any || request->stream_kept != NULL || request->ticket != NULL)
    return OPIPE_OK;
  opi_lent_places *found = s->shapes->places;
  while (found != NULL && (found->shape != request->runs ||
                           memcmp(found->key, lent->key, n * sizeof *lent->key) != 0))
    found = found->next;
  if (found == NULL) {
    if (!make_room(s))
      return OPIPE_OK;
    OPI_TRY(make_places(request, &found, err));
    found->next = s->shapes->places;
    s->shapes->places = found;
  }
  found->last_used = s->shapes->n_numbered;
  atomic_fetch_add(&found->n_users, 1);
  lent->places = found;
  request->bound = found->bound;
  return OPIPE_OK;
}

void opi_lent_forget(const opi_compiled *t) {
  opi_setup *s = t->setup;
  for (opi_lent_places **at = &s->shapes->places; *at != NULL;) {
    opi_lent_places *old = *at;
    if (old->shape != t) {
      at = &old->next;
      continue;
    }
    *at = old->next;
    opi_lent_places_free(s, old);
  }
}
