/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on devices: which rank touches them, how submit takes them and gives them back, and the
 * copies of those that are not used in place.
 */
#include <string.h>

#include "runtime/compiled/lent_kit.h"

/* ---- devices ---- */

opipe_status opi_lent_open(opi_rank *rank, opipe_error *err) {
  const opipe_backend *t = rank->backend;
  uint64_t kind = 0, number = 0;
  const bool takes = OPIPE_HAS(t, opipe_backend, event_signal) && t->native != NULL &&
                     t->buffer_import != NULL && t->event_import != NULL &&
                     t->queue_import != NULL && t->event_signal != NULL;
  if (!takes)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK_RANK(rank, native, err, rank->device, OPIPE_NATIVE_KIND, NULL, &kind));
  OPI_TRY(OPI_ASK_RANK(rank, native, err, rank->device, OPIPE_NATIVE_DEVICE, NULL, &number));
  if (kind == 0 || kind == OPIPE_DL_CPU || kind > INT32_MAX || number > INT32_MAX) {
    return opi_fail(
        err, OPIPE_E_INVALID, "backend '%s': its device has DLPack type %llu, number %llu",
        opi_rank_backend(rank)->id, (unsigned long long)kind, (unsigned long long)number);
  }
  rank->device_type = (int32_t)kind;
  rank->device_id = (int32_t)number;
  return OPIPE_OK;
}

/* ---- outputs that stay the library's ---- */

void opi_lent_place(const opi_request *request, uint32_t output, opi_result *result) {
  const opi_compiled *t = request->runs;
  const opi_setup *s = t->setup;
  uint32_t n = 0, maker = 0;
  result->on_device = false;
  for (uint32_t h = 0; h < s->n_here; ++h) {
    if (!opi_is_touched(t, h, s->n_inputs + output))
      continue;
    maker = s->here[h];
    ++n;
  }
  if (n != 1 || result->made != OPI_MADE_ALL || s->ranks[maker].device_type == 0 ||
      result->n_bytes == 0 || !opi_output_is_made(t->model->cuts[0], output))
    return;
  result->on_device = true;
  result->device_type = s->ranks[maker].device_type;
  result->device_id = s->ranks[maker].device_id;
  if (result->block.n_bytes != 0 && result->block_rank != maker)
    opi_rank_give(&s->ranks[result->block_rank], &result->block);
  result->block_rank = maker;
}

opipe_status opi_lent_own(const opi_request *request, uint32_t output, opi_result *result,
                          opipe_error *err) {
  opi_rank *rank = &request->setup->ranks[result->block_rank];
  uint64_t address = 0;
  if (result->block.n_bytes < result->n_bytes) {
    opi_rank_give(rank, &result->block);
    OPI_TRY(opi_rank_take(rank, result->n_bytes, OPIPE_BUFFER_STAGING,
                          request->setup->output_names[output], &result->block, err));
  }
  OPI_TRY(OPI_ASK_RANK(rank, native, err, rank->device, OPIPE_NATIVE_BUFFER, result->block.buffer,
                       &address));
  result->data = (char *)(uintptr_t)address;
  return OPIPE_OK;
}

/* ---- taking ---- */

/* The bytes of a tensor on a device, by their address. */
typedef struct range {
  uint64_t first, n_bytes;
} range;

static opipe_status range_of_feed(const opi_setup *s, const opi_feed *feed, uint32_t input,
                                  range *out, opipe_error *err) {
  const opi_value *value = s->inputs[input].value;
  const uint64_t bytes = opi_dtype_bits(value->dtype) / 8;
  uint64_t last = 0, n = 0;
  *out = (range){(uint64_t)(uintptr_t)feed->data, 0};
  if (!opi_tensor_bytes(value->dtype, feed->shape, (uint32_t)value->rank, &n) || n == 0)
    return OPIPE_OK;
  for (int32_t d = 0; d < value->rank; ++d) {
    if (feed->strides[d] < 0 && feed->shape[d] > 1) {
      return opi_fail(
          err, OPIPE_E_UNSUPPORTED,
          "input '%s' lies on device %d:%d with stride %lld in dimension %d: 0 and more "
          "are accepted there",
          s->inputs[input].name, feed->device_type, feed->device_id, (long long)feed->strides[d],
          d);
    }
    last += (uint64_t)(feed->shape[d] - 1) * (uint64_t)feed->strides[d];
  }
  out->n_bytes = bytes == 0 ? n : (last + 1) * bytes;
  return OPIPE_OK;
}

static opipe_status take_memory(const opi_request *request, opi_rank *rank, uint32_t item,
                                const range *at, opipe_error *err) {
  const uint64_t base = at->first & ~(uint64_t)(rank->alignment - 1);
  const opipe_status status =
      opi_import_take(rank, OPI_IMPORT_BUFFER, base, at->first + at->n_bytes - base,
                      &opi_lent_at(request, rank->place, item)->memory, err);
  return status < 0
             ? opi_error_prefix(err, "tensor '%s', rank %u: ", opi_item_name(request->setup, item),
                                rank->index)
             : OPIPE_OK;
}

/* Takes one tensor for each rank that touches it. */
static opipe_status take_item(const opi_request *request, uint32_t item, int32_t device_type,
                              int32_t device_id, const range *at, uint64_t elem_bytes,
                              opipe_error *err) {
  const opi_setup *s = request->setup;
  const char *name = opi_item_name(s, item);
  if (elem_bytes != 0 && at->first % elem_bytes != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "tensor '%s' lies at 0x%llx, which is no multiple of its element's %llu bytes",
                    name, (unsigned long long)at->first, (unsigned long long)elem_bytes);
  }
  for (uint32_t h = 0; h < s->n_here; ++h) {
    opi_rank *rank = &s->ranks[s->here[h]];
    if (!opi_is_touched(request->runs, h, item))
      continue;
    if (rank->device_type != device_type || rank->device_id != device_id) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "tensor '%s' lies on device %d:%d; rank %u, which touches it, is on %s:%u "
                      "(%d:%d)",
                      name, device_type, device_id, rank->index, opi_rank_backend(rank)->id,
                      s->plan->decided.devices[rank->index].index, rank->device_type,
                      rank->device_id);
    }
    if (at->n_bytes != 0)
      OPI_TRY(take_memory(request, rank, item, at, err));
  }
  return OPIPE_OK;
}

static opipe_status check_plain(const opi_request *request, uint32_t output, opipe_error *err) {
  const opi_compiled *t = request->runs;
  const opi_setup *s = t->setup;
  const opi_cut *cut = t->model->cuts[0];
  const uint32_t port = cut->output_port[output];
  const uint32_t input = port == OPIPE_NONE ? OPIPE_NONE : t->ports[0][0].input[port];
  if (!request->results[output].on_device &&
      (input == OPIPE_NONE || !request->feeds[input].on_device))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "output '%s' is %s%s: no device makes it, so that both have to be in host memory",
                  s->output_names[output], input == OPIPE_NONE ? "known beforehand" : "input ",
                  input == OPIPE_NONE ? "" : s->inputs[input].name);
}

static opipe_status take_items(opi_request *request, bool look, opipe_error *err) {
  const opi_setup *s = request->setup;
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    const opi_feed *feed = &request->feeds[i];
    const uint64_t bytes = opi_dtype_bits(s->inputs[i].value->dtype) / 8;
    range at;
    if (!feed->given)
      continue;
    if (feed->on_device) {
      OPI_TRY(range_of_feed(s, feed, i, &at, err));
      OPI_TRY(take_item(request, i, feed->device_type, feed->device_id, &at, bytes, err));
    }
    OPI_TRY(
        opi_lent_take_fences(request, i, &feed->ready, &feed->done, look || !feed->on_device, err));
  }
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    const opi_result *result = &request->results[o];
    const range at = {(uint64_t)(uintptr_t)result->data, result->n_bytes};
    if (request->ticket == NULL && !opi_output_is_made(request->runs->model->cuts[0], o))
      OPI_TRY(check_plain(request, o, err));
    if (result->on_device) {
      OPI_TRY(take_item(request, s->n_inputs + o, result->device_type, result->device_id, &at,
                        opi_dtype_bits(s->output_dtypes[o]) / 8, err));
    }
    OPI_TRY(opi_lent_take_fences(request, s->n_inputs + o, &result->ready, &result->done,
                                 look || !result->on_device, err));
  }
  return OPIPE_OK;
}

/* ---- how many copies ---- */

typedef struct tally {
  uint64_t n;
} tally;

static opipe_status count_run(void *ctx, uint64_t whole_at, uint64_t part_at, uint64_t n_bytes) {
  tally *t = ctx;
  (void)whole_at;
  (void)part_at;
  (void)n_bytes;
  return ++t->n > OPI_RUNS ? OPIPE_PENDING : OPIPE_OK; /* PENDING: too many */
}

static opipe_status check_cell(const opi_request *request, uint32_t index, uint32_t m,
                               opipe_error *err) {
  const opi_compiled *t = request->runs;
  const opi_setup *s = t->setup;
  const opi_cell *cell = &t->model->cuts[opi_class_at(t, m)]->cells[index];
  int64_t dims[OPIPE_MAX_RANK];
  opi_result_place place;
  tally runs = {0};
  opipe_status status = OPIPE_OK;
  uint32_t item = OPIPE_NONE;
  if (cell->source == OPI_CELL_REQUEST) {
    item = opi_ports_at(t, opi_piece_at(t, cell->stage, m))->input[cell->port];
    if (item == OPIPE_NONE || !request->feeds[item].on_device)
      return OPIPE_OK;
    const opi_view view = opi_step_part(t, request, cell->stage, cell->port, m, dims);
    status = opi_view_runs(&view, count_run, &runs);
  } else if (request->ticket == NULL && cell->output != OPIPE_NONE &&
             request->results[cell->output].on_device) {
    const opi_value *value = &opi_graphs_at(t, cell->stage, m)->graph->values[cell->value];
    item = s->n_inputs + cell->output;
    opi_step_place(t, request, cell->stage, m, cell->output, &t->output_carry[cell->output],
                   &place);
    status = opi_result_runs(value, &place, count_run, &runs);
  }
  if (status == OPIPE_OK)
    return status;
  return opi_fail(
      err, OPIPE_E_UNSUPPORTED,
      "tensor '%s': micro-batch %u of it lies in more than %d pieces of memory: make it "
      "dense, with the batch in its first dimension",
      opi_item_name(s, item), t->parts[m].in_request, OPI_RUNS);
}

static opipe_status check_copies(const opi_request *request, opipe_error *err) {
  const opi_compiled *t = request->runs;
  for (uint32_t i = 0; i < t->lists->n_steps; ++i) {
    const opi_step *step = &t->lists->steps[i];
    const opi_cut *cut = t->model->cuts[0];
    if ((step->kind != OPI_ACT_LOAD && step->kind != OPI_ACT_STORE) ||
        t->parts[step->microbatch].in_request >= request->n_microbatches)
      continue;
    for (uint32_t c = cut->cell_first[step->stage]; c < cut->cell_first[step->stage + 1]; ++c)
      OPI_TRY(check_cell(request, c, step->microbatch, err));
  }
  return OPIPE_OK;
}

/* ---- a request ---- */

static bool is_lending(const opi_request *request) {
  const opi_setup *s = request->setup;
  bool any = false;
  for (uint32_t i = 0; i < s->n_inputs; ++i) {
    const opi_feed *feed = &request->feeds[i];
    any = any || (feed->given && (feed->on_device || feed->ready.kind > OPIPE_FENCE_HOST_FLAG ||
                                  feed->done.kind > OPIPE_FENCE_HOST_FLAG));
  }
  for (uint32_t o = 0; o < s->n_outputs; ++o) {
    const opi_result *result = &request->results[o];
    any = any || result->on_device || result->ready.kind > OPIPE_FENCE_HOST_FLAG ||
          result->done.kind > OPIPE_FENCE_HOST_FLAG;
  }
  return any;
}

static size_t lent_bytes(const opi_setup *s) {
  const size_t n = opi_n_items(s), all = n * s->n_here;
  return sizeof(struct opi_lent) + all * (sizeof(opi_lent_item) + sizeof(opipe_event *)) +
         n * (sizeof(opi_lent_look) + sizeof(uint64_t)) +
         s->n_here * (sizeof(opipe_event *) + sizeof(bool));
}

static opipe_status make_lent(opi_request *request, opipe_error *err) {
  const opi_setup *s = request->setup;
  const size_t n = opi_n_items(s), all = n * s->n_here;
  if (request->lent != NULL)
    return OPIPE_OK;
  struct opi_lent *lent = opi_alloc_zero(s->allocator, 1, lent_bytes(s));
  if (lent == NULL)
    return opi_fail_nomem(err, lent_bytes(s), "lent tensors");
  lent->items = (opi_lent_item *)(void *)(lent + 1);
  lent->looks = (opi_lent_look *)(void *)(lent->items + all);
  lent->events = (opipe_event **)(void *)(lent->looks + n);
  lent->ends = lent->events + all;
  lent->key = (uint64_t *)(void *)(lent->ends + s->n_here);
  lent->begun = (bool *)(void *)(lent->key + n);
  request->lent = lent;
  return OPIPE_OK;
}

opipe_status opi_lent_take(opi_request *request, bool look, opipe_error *err) {
  const opi_setup *s = request->setup;
  const size_t n = opi_n_items(s), all = n * s->n_here;
  request->lends = is_lending(request);
  if (!request->lends)
    return OPIPE_OK;
  opipe_status status = make_lent(request, err);
  if (status < 0) {
    request->lends = false;
    return status;
  }
  struct opi_lent *lent = request->lent;
  memset(lent->items, 0, all * sizeof *lent->items);
  memset(lent->looks, 0, n * sizeof *lent->looks);
  memset(lent->begun, 0, s->n_here * sizeof *lent->begun);
  lent->places = NULL;
  atomic_store(&lent->held, 1);
  atomic_store(&lent->n_left, s->n_here);
  status = take_items(request, look, err);
  if (status == OPIPE_OK)
    status = check_copies(request, err);
  if (status == OPIPE_OK)
    status = opi_lent_places_find(request, err);
  return status;
}

void opi_lent_drop(opi_request *request) {
  struct opi_lent *lent = request->lent;
  const opi_setup *s = request->setup;
  if (lent == NULL || atomic_exchange(&lent->held, 0) == 0)
    return;
  for (size_t i = 0; i < (size_t)opi_n_items(s) * s->n_here; ++i) {
    opi_import_drop(lent->items[i].memory);
    opi_import_drop(lent->items[i].event);
    opi_import_drop(lent->items[i].source);
    opi_import_drop(lent->items[i].stream);
  }
  if (lent->places != NULL)
    atomic_fetch_sub(&lent->places->n_users, 1);
}

/* ---- copies ---- */

typedef struct copy {
  opi_rank *rank;
  const opi_import *memory;
  uint64_t first; /* address of the whole */
  const opipe_region *region;
  const char *host;
  opipe_error *err;
} copy;

static opipe_region whole_region(const copy *c, uint64_t whole_at, uint64_t n_bytes) {
  return (opipe_region){.buffer = c->memory->as.buffer,
                        .offset_bytes = c->first + whole_at - c->memory->native,
                        .n_bytes = n_bytes};
}

static opipe_region part_region(const copy *c, uint64_t part_at, uint64_t n_bytes) {
  return (opipe_region){.buffer = c->region->buffer,
                        .offset_bytes = c->region->offset_bytes + part_at,
                        .n_bytes = n_bytes};
}

static opipe_status load_run(void *ctx, uint64_t whole_at, uint64_t part_at, uint64_t n_bytes) {
  const copy *c = ctx;
  const opipe_region src = whole_region(c, whole_at, n_bytes);
  const opipe_region dst = part_region(c, part_at, n_bytes);
  return OPI_ASK_RANK(c->rank, copy, c->err, c->rank->queue, &dst, &src);
}

static opipe_status store_run(void *ctx, uint64_t whole_at, uint64_t part_at, uint64_t n_bytes) {
  const copy *c = ctx;
  const opipe_region dst = whole_region(c, whole_at, n_bytes);
  if (c->region == NULL)
    return OPI_ASK_RANK(c->rank, write, c->err, c->rank->queue, &dst, c->host + part_at);
  const opipe_region src = part_region(c, part_at, n_bytes);
  return OPI_ASK_RANK(c->rank, copy, c->err, c->rank->queue, &dst, &src);
}

opipe_status opi_lent_load(opi_rank *rank, const opi_request *request, uint32_t input,
                           const opi_view *view, const opipe_region *region, opipe_error *err) {
  copy c = {.rank = rank,
            .memory = opi_lent_at(request, rank->place, input)->memory,
            .first = (uint64_t)(uintptr_t)view->data,
            .region = region,
            .err = err};
  return opi_view_runs(view, load_run, &c);
}

opipe_status opi_lent_store(opi_rank *rank, const opi_request *request, const opi_lent_part *part,
                            const opipe_region *region, opipe_error *err) {
  const uint32_t item = request->setup->n_inputs + part->output;
  copy c = {.rank = rank,
            .memory = opi_lent_at(request, rank->place, item)->memory,
            .first = (uint64_t)(uintptr_t)request->results[part->output].data,
            .region = region,
            .host = part->host,
            .err = err};
  return opi_result_runs(part->value, part->place, store_run, &c);
}

/* ---- the end ---- */

void opi_lent_stop_places(opi_setup *s) {
  while (s->shapes->places != NULL) {
    opi_lent_places *places = s->shapes->places;
    s->shapes->places = places->next;
    opi_lent_places_free(s, places);
  }
}

void opi_lent_stop_request(opi_request *request) {
  const opi_setup *s = request->setup;
  const struct opi_lent *lent = request->lent;
  const uint32_t n = opi_n_items(s);
  for (uint32_t o = 0; o < s->n_outputs; ++o)
    opi_rank_give(&s->ranks[request->results[o].block_rank], &request->results[o].block);
  for (uint32_t h = 0; lent != NULL && h < s->n_here; ++h) {
    const opi_rank *rank = &s->ranks[s->here[h]];
    rank->backend->event_destroy(lent->ends[h]);
    for (uint32_t i = 0; i < n; ++i)
      rank->backend->event_destroy(lent->events[h * n + i]);
  }
}

void opi_lent_stop_imports(opi_setup *s) {
  for (uint32_t h = 0; s->ranks != NULL && h < s->n_here; ++h) {
    if (s->ranks[s->here[h]].setup != NULL)
      opi_imports_free(&s->ranks[s->here[h]]);
  }
}

void opi_lent_free(opi_request *request) {
  if (request->lent != NULL)
    opi_free(request->setup->allocator, request->lent, lent_bytes(request->setup));
}
