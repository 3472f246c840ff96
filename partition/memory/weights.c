/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of weights, gradients and optimizer state: sums over the layouts that programs ask for. A
 * layout that several programs of one rank want is counted once. */
#include "partition/memory/weights.h"

#include <string.h>

#include "partition/memory/layouts.h"

uint32_t opi_weight_index(const opi_weight_holder *holder, uint32_t slot) {
  uint32_t low = 0, high = holder->n_params;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (holder->params[middle] < slot)
      low = middle + 1;
    else
      high = middle;
  }
  return low < holder->n_params && holder->params[low] == slot ? low : OPIPE_NONE;
}

bool opi_weight_dense_bytes(const opipe_param_source *source, uint64_t *out_bytes) {
  return opi_tensor_bytes(OPIPE_FLOAT, source->shape, source->rank, out_bytes);
}

/* ---- holders ---- */

/* first [n_sources], n [n_sources]: by slot, for one rank's readers. */
static void count_readers(const opi_weight_reader *readers, uint32_t n_readers, uint32_t rank,
                          uint32_t *first, uint32_t *n, opi_weight_holder *holder) {
  for (uint32_t i = 0; i < n_readers; ++i) {
    if (readers[i].rank != rank)
      continue;
    holder->n_programs += readers[i].n_programs;
    for (uint32_t k = 0; k < readers[i].n_params; ++k) {
      const uint32_t slot = readers[i].params[k];
      if (n[slot]++ > 0)
        continue;
      first[slot] = i;
      ++holder->n_params;
    }
  }
}

static opipe_status fill_holder(const opi_weight_reader *readers, uint32_t n_readers,
                                uint32_t n_sources, const uint32_t *first, const uint32_t *n,
                                opi_arena *arena, opi_weight_holder *holder, opipe_error *err) {
  uint32_t at = 0;
  holder->programs = OPI_ARENA_ARRAY(arena, opipe_program *, holder->n_programs);
  holder->params = OPI_ARENA_ARRAY(arena, uint32_t, holder->n_params);
  holder->n_readers = OPI_ARENA_ARRAY(arena, uint32_t, holder->n_params);
  holder->first = OPI_ARENA_ARRAY(arena, uint32_t, holder->n_params);
  if (holder->programs == NULL || holder->params == NULL || holder->n_readers == NULL ||
      holder->first == NULL)
    return opi_fail_nomem(err, holder->n_params * sizeof(uint32_t), "parameters of a rank");
  for (uint32_t i = 0; i < n_readers; ++i) {
    for (uint32_t p = 0; readers[i].rank == holder->rank && p < readers[i].n_programs; ++p)
      holder->programs[at++] = readers[i].programs[p];
  }
  at = 0;
  for (uint32_t slot = 0; slot < n_sources; ++slot) {
    if (n[slot] == 0)
      continue;
    holder->params[at] = slot;
    holder->n_readers[at] = n[slot];
    holder->first[at++] = first[slot];
  }
  return OPIPE_OK;
}

opipe_status opi_weight_holders(const opi_weight_reader *readers, uint32_t n_readers,
                                uint32_t n_ranks, uint32_t n_sources, opi_arena *arena,
                                opi_weight_holder **out_holders, uint32_t *out_n_holders,
                                opipe_error *err) {
  opi_weight_holder *holders = OPI_ARENA_ARRAY(arena, opi_weight_holder, n_ranks);
  uint32_t *first = OPI_ARENA_ARRAY(arena, uint32_t, n_sources);
  uint32_t *n = OPI_ARENA_ARRAY(arena, uint32_t, n_sources);
  uint32_t count = 0;
  if (holders == NULL || first == NULL || n == NULL)
    return opi_fail_nomem(err, n_ranks * sizeof *holders, "parameters of ranks");
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    bool any = false;
    for (uint32_t i = 0; i < n_readers && !any; ++i)
      any = readers[i].rank == rank;
    if (!any)
      continue;
    opi_weight_holder *holder = &holders[count++];
    *holder = (opi_weight_holder){.rank = rank};
    memset(n, 0, n_sources * sizeof *n);
    count_readers(readers, n_readers, rank, first, n, holder);
    OPI_TRY(fill_holder(readers, n_readers, n_sources, first, n, arena, holder, err));
  }
  *out_holders = holders;
  *out_n_holders = count;
  return OPIPE_OK;
}

/* ---- layouts ---- */

static bool is_training(const opi_backend_ref *backend) {
  return backend->table->struct_size >= OPIPE_END(opipe_backend, update) &&
         backend->table->update != NULL;
}

/* An owned set has no layout in place: programs get copies instead. */
static uint64_t held_bytes(const opipe_param_layout *layout) {
  return layout->n_bytes != 0 ? layout->n_bytes : layout->mapped_bytes;
}

/* Programs that read the master, whichever it is, come last: they take it if there is no other. */
static void add_params(const opi_weight_holder *holder, const opi_layout_set *wanted,
                       uint32_t first, opi_weight_layout *layouts) {
  const uint32_t n = wanted->n - first;
  for (uint32_t i = 0; i < 2 * n; ++i) {
    const opipe_param_layout *w = &wanted->list[first + i % n].layout;
    const uint32_t k = opi_weight_index(holder, w->slot);
    const bool follows = w->key == OPIPE_LAYOUT_MASTER;
    if (k == OPIPE_NONE || follows != (i >= n) || (follows && layouts[k].master_bytes != 0))
      continue;
    layouts[k].params_bytes += opi_align_up(held_bytes(w), holder->alignment);
    if (!follows && (w->key >= OPIPE_LAYOUT_DERIVED ||
                     (layouts[k].master_bytes != 0 && w->key < layouts[k].key)))
      continue;
    layouts[k].key = w->key;
    layouts[k].master_bytes = held_bytes(w);
  }
}

static void add_gradients(const opi_weight_holder *holder, const opi_layout_set *wanted,
                          uint32_t first, opi_weight_layout *layouts) {
  for (uint32_t i = first; i < wanted->n; ++i) {
    const opipe_param_layout *w = &wanted->list[i].layout;
    const uint32_t k = opi_weight_index(holder, w->slot);
    if (k == OPIPE_NONE)
      continue;
    if (layouts[k].gradient_bytes == 0) /* the master's comes first */
      layouts[k].gradient_bytes = opi_align_up(layouts[k].master_bytes, holder->alignment);
    const bool follows = w->key == OPIPE_LAYOUT_MASTER && layouts[k].master_bytes != 0;
    if (w->key != layouts[k].key && !follows)
      layouts[k].gradient_bytes += opi_align_up(w->n_bytes, holder->alignment);
  }
}

/* Layouts and accumulators known so far, by holder. */
typedef struct asked {
  opi_layout_set params, gradients;
} asked;

static opipe_status ask_programs(const opi_weight_holder *holder, uint32_t index, asked *all,
                                 opipe_error *err) {
  if (!is_training(holder->backend)) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "rank %u: backend '%s' cannot train", holder->rank,
                    holder->backend->id);
  }
  for (uint32_t p = 0; p < holder->n_programs; ++p) {
    if (holder->programs[p] == NULL)
      continue;
    OPI_TRY(opi_layouts_add(&all->params, index, holder->backend, holder->programs[p], false, err));
    OPI_TRY(
        opi_layouts_add(&all->gradients, index, holder->backend, holder->programs[p], true, err));
  }
  return OPIPE_OK;
}

/* A trained parameter has one accumulator, in its master's layout. */
static opipe_status estimate_holder(const opi_weight_query *query, uint32_t index, asked *all,
                                    opipe_error *err) {
  const opi_weight_holder *holder = &query->holders[index];
  OPI_TRY(opi_layouts_estimate(&all->params, index, query->sources, holder->params,
                               holder->n_params, query->trained, err));
  for (uint32_t k = 0; k < holder->n_params; ++k) {
    if (query->trained[holder->params[k]]) {
      OPI_TRY(opi_layouts_estimate(&all->gradients, index, query->sources, &holder->params[k], 1,
                                   query->trained, err));
    }
  }
  return OPIPE_OK;
}

static opipe_status ask_holder(const opi_weight_query *query, uint32_t index, asked *all,
                               opi_weight_layout *layouts, opipe_error *err) {
  const opi_weight_holder *holder = &query->holders[index];
  const uint32_t first_param = all->params.n, first_gradient = all->gradients.n;
  OPI_TRY(holder->backend == NULL ? estimate_holder(query, index, all, err)
                                  : ask_programs(holder, index, all, err));
  add_params(holder, &all->params, first_param, layouts);
  add_gradients(holder, &all->gradients, first_gradient, layouts);
  for (uint32_t k = 0; k < holder->n_params; ++k) {
    if (!query->trained[holder->params[k]] || layouts[k].gradient_bytes != 0)
      continue;
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "parameter '%s' is trained, and stage %u reads it without giving a gradient: "
                    "freeze it or cut elsewhere",
                    query->sources[holder->params[k]].name, query->readers[holder->first[k]].stage);
  }
  return OPIPE_OK;
}

bool opi_weight_tied(const opi_weight_query *query, uint32_t slot) {
  uint32_t stage = OPIPE_NONE, n = 0;
  bool several = false;
  for (uint32_t i = 0; query->trained[slot] && i < query->n_holders; ++i) {
    const opi_weight_holder *holder = &query->holders[i];
    const uint32_t k = opi_weight_index(holder, slot);
    if (k == OPIPE_NONE)
      continue;
    const uint32_t reads = query->readers[holder->first[k]].stage;
    several = several || holder->n_readers[k] > 1 || (n > 0 && reads != stage);
    stage = reads;
    ++n;
  }
  return several && n > 1;
}

static bool same_backend(const opi_backend_ref *a, const opi_backend_ref *b) {
  return a == b || (a != NULL && b != NULL && a->table == b->table);
}

bool opi_weight_layouts_equal(const opi_weight_query *query, opi_weight_layout *const *layouts,
                              uint32_t slot) {
  const opi_weight_layout *first = NULL;
  const opi_backend_ref *backend = NULL;
  for (uint32_t i = 0; i < query->n_holders; ++i) {
    const uint32_t k = opi_weight_index(&query->holders[i], slot);
    if (k == OPIPE_NONE)
      continue;
    const opi_weight_layout *layout = &layouts[i][k];
    if (first != NULL &&
        (layout->key != first->key || layout->master_bytes != first->master_bytes ||
         !same_backend(query->holders[i].backend, backend)))
      return false;
    first = layout;
    backend = query->holders[i].backend;
  }
  return true;
}

uint32_t opi_weight_holder_at(const opi_weight_query *query, uint32_t slot, uint32_t n) {
  uint32_t after = 0, found = OPIPE_NONE;
  for (uint32_t i = 0; i <= n; ++i) {
    uint32_t best = OPIPE_NONE;
    found = OPIPE_NONE;
    for (uint32_t h = 0; h < query->n_holders; ++h) {
      const uint32_t k = opi_weight_index(&query->holders[h], slot);
      if (k == OPIPE_NONE || query->holders[h].first[k] >= best ||
          query->holders[h].first[k] < after)
        continue;
      best = query->holders[h].first[k];
      found = h;
    }
    if (found == OPIPE_NONE)
      return OPIPE_NONE;
    after = best + 1;
  }
  return found;
}

static void add_bytes(const opi_weight_query *query, const opi_weight_holder *holder,
                      const opi_weight_layout *layouts, opi_weight_bytes *bytes) {
  for (uint32_t k = 0; k < holder->n_params; ++k) {
    const bool trained = query->trained[holder->params[k]];
    const uint64_t state = opi_align_up(
        query->shard ? layouts[k].own_bytes : layouts[k].master_bytes, holder->alignment);
    bytes->params += layouts[k].params_bytes;
    bytes->versions += layouts[k].params_bytes * (query->n_versions - 1);
    bytes->gradients += layouts[k].gradient_bytes;
    bytes->optimizer += trained ? state * query->n_moments : 0;
  }
}

/* Adds room for the largest tied parameter in dense form, for the norms of all parameters and for
 * the state of the loss. */
static opipe_status add_shared(const opi_weight_query *query, opi_weight_layout *const *layouts,
                               opi_weight_bytes *bytes, opipe_error *err) {
  uint32_t n_trained = 0;
  for (uint32_t slot = 0; slot < query->n_sources; ++slot)
    n_trained += query->trained[slot] ? 1 : 0;
  for (uint32_t i = 0; i < query->n_holders; ++i) {
    const opi_weight_holder *holder = &query->holders[i];
    uint64_t dense = 0, n_bytes = 0;
    if (n_trained != 0)
      bytes[i].optimizer += (n_trained + 1) * opi_align_up(sizeof(double), holder->alignment);
    for (uint32_t k = 0; k < holder->n_params; ++k) {
      const uint32_t slot = holder->params[k];
      if (!opi_weight_tied(query, slot) || opi_weight_layouts_equal(query, layouts, slot))
        continue;
      if (!opi_weight_dense_bytes(&query->sources[slot], &n_bytes)) {
        return opi_fail(err, OPIPE_E_INVALID, "parameter '%s': its bytes do not fit 64 bits",
                        query->sources[slot].name);
      }
      dense = n_bytes > dense ? n_bytes : dense;
    }
    bytes[i].gradients += opi_align_up(dense, holder->alignment);
  }
  return OPIPE_OK;
}

opipe_status opi_predict_weights(const opi_weight_query *query, opi_arena *arena,
                                 opi_weight_layout **out_layouts, opi_weight_bytes *out_bytes,
                                 opipe_error *err) {
  opi_weight_layout **layouts = OPI_ARENA_ARRAY(arena, opi_weight_layout *, query->n_holders);
  opi_weight_bytes *bytes = OPI_ARENA_ARRAY(arena, opi_weight_bytes, query->n_holders);
  asked all;
  if (layouts == NULL || bytes == NULL)
    return opi_fail_nomem(err, query->n_holders * sizeof *bytes, "sizes of weights");
  OPI_TRY(opi_layouts_begin(&all.params, query->n_sources, arena, err));
  OPI_TRY(opi_layouts_begin(&all.gradients, query->n_sources, arena, err));
  for (uint32_t i = 0; i < query->n_holders; ++i) {
    const opi_weight_holder *holder = &query->holders[i];
    layouts[i] = OPI_ARENA_ARRAY(arena, opi_weight_layout, holder->n_params);
    if (layouts[i] == NULL)
      return opi_fail_nomem(err, holder->n_params * sizeof **layouts, "sizes of weights");
    OPI_TRY(ask_holder(query, i, &all, layouts[i], err));
  }
  OPI_TRY(opi_weight_buckets(query, layouts, arena, NULL, NULL, err));
  for (uint32_t i = 0; i < query->n_holders; ++i)
    add_bytes(query, &query->holders[i], layouts[i], &bytes[i]);
  OPI_TRY(add_shared(query, layouts, bytes, err));
  for (uint32_t i = 0; i < query->n_holders; ++i) {
    if (out_layouts != NULL)
      out_layouts[i] = layouts[i];
    if (out_bytes != NULL)
      out_bytes[i] = bytes[i];
  }
  return OPIPE_OK;
}
