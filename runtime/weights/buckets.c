/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets: gradients that the same ranks hold are summed together, as lists of regions, in an order
 * that all ranks share; where moments are shared out, a rank gets the sums of its part alone, and
 * the updated parts of the weights are gathered. Nothing here waits.
 */
#include "runtime/weights/kept.h"

opipe_region opi_own_part(const opi_weight_param *param, const opipe_region *master) {
  return (opipe_region){master->buffer, master->offset_bytes + param->own_first, param->own_bytes};
}

/* ---- open ---- */

/* The n-th holder of a bucket. */
static opi_holder *holder_of(const opi_weights *w, const opi_weight_bucket *shape, uint32_t n) {
  return &w->holders[shape->holders[n]];
}

static opipe_status make_bucket(opi_weights *w, const opi_weight_bucket *shape, uint32_t index,
                                opi_sum_bucket *bucket, opipe_error *err) {
  opi_holder *holder = holder_of(w, shape, index);
  *bucket = (opi_sum_bucket){.shape = shape, .index = index, .collects = opi_collects(w)};
  bucket->params = OPI_ARENA_ARRAY(&w->arena, opi_weight_param *, shape->n_slots);
  bucket->all = OPI_ARENA_ARRAY(&w->arena, opipe_region, shape->n_slots);
  bucket->own = OPI_ARENA_ARRAY(&w->arena, opipe_region, shape->n_slots);
  bucket->parts = OPI_ARENA_ARRAY(&w->arena, uint64_t, shape->n_holders);
  if (bucket->params == NULL || bucket->all == NULL || bucket->own == NULL || bucket->parts == NULL)
    return opi_fail_nomem(err, shape->n_slots * sizeof *bucket->all, "buckets of gradients");
  for (uint32_t i = 0; i < shape->n_slots; ++i) {
    bucket->params[i] = opi_holder_param(holder, shape->slots[i]);
    bucket->params[i]->bucket = bucket;
    bucket->params[i]->replicated = !shape->tied;
  }
  if (bucket->collects && !shape->tied && !holder->synchronous && holder->env.elsewhere == 0) {
    OPI_TRY(OPI_MAKE("backend", holder->env.backend, event_create, &bucket->ready, err,
                     holder->env.device));
  }
  for (uint32_t m = 0; m < shape->n_holders; ++m) {
    const uint64_t first = m == 0 ? 0 : shape->ends[m - 1];
    bucket->parts[m] = (shape->ends[m] - first) / sizeof(float);
  }
  return OPIPE_OK;
}

/* The group of a bucket has its first slot's number: no two have the same. */
static opipe_status open_group(opi_weights *w, const opi_weight_bucket *shape, opipe_error *err) {
  opi_holder **list = OPI_ARENA_ARRAY(&w->arena, opi_holder *, shape->n_holders);
  opi_member **members = OPI_ARENA_ARRAY(&w->arena, opi_member *, shape->n_holders);
  const opipe_collective_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_collective_params, n_regions),
      .n_ranks = shape->n_holders,
      .id = shape->slots[0],
      .n_bytes = shape->n_bytes,
      .n_regions = shape->n_slots};
  if (list == NULL || members == NULL)
    return opi_fail_nomem(err, shape->n_holders * sizeof *list, "groups");
  for (uint32_t m = 0; m < shape->n_holders; ++m) {
    list[m] = holder_of(w, shape, m);
    members[m] = &opi_holder_param(list[m], shape->slots[0])->bucket->member;
  }
  return opi_collective_open(w, list, shape->n_holders, &params, members, err);
}

opipe_status opi_buckets_open(opi_weights *w, opipe_error *err) {
  for (uint32_t i = 0; i < w->n_holders; ++i) {
    w->holders[i].buckets = OPI_ARENA_ARRAY(&w->arena, opi_sum_bucket, w->shapes.n);
    if (w->holders[i].buckets == NULL)
      return opi_fail_nomem(err, w->shapes.n * sizeof(opi_sum_bucket), "buckets of gradients");
  }
  for (uint32_t i = 0; i < w->shapes.n; ++i) {
    const opi_weight_bucket *shape = &w->shapes.list[i];
    for (uint32_t m = 0; m < shape->n_holders; ++m) {
      opi_holder *holder = holder_of(w, shape, m);
      OPI_TRY(make_bucket(w, shape, m, &holder->buckets[holder->n_buckets++], err));
    }
    if (opi_collects(w) || (opi_shares_out(w) && w->transport.table == NULL))
      OPI_TRY(open_group(w, shape, err));
  }
  return OPIPE_OK;
}

void opi_buckets_close(const opi_weights *w) {
  for (uint32_t i = 0; w->holders != NULL && i < w->n_holders; ++i) {
    for (uint32_t k = 0; k < w->holders[i].n_buckets; ++k) {
      opi_sum_bucket *b = &w->holders[i].buckets[k];
      opi_member_close(w, &b->member);
      if (b->ready != NULL)
        opi_backend_of(&w->holders[i])->event_destroy(b->ready);
    }
  }
}

/* ---- collects ---- */

/* masters: of all parameters; SET: of version set, OPI_SETS: gradients. */
static void list_regions(const opi_sum_bucket *b, uint32_t set) {
  for (uint32_t i = 0; i < b->shape->n_slots; ++i) {
    const opi_weight_param *p = b->params[i];
    b->all[i] = set == OPI_SETS ? p->gradient : p->weight[set];
    b->own[i] = opi_own_part(p, &b->all[i]);
  }
}

/* Every rank gets all sums of gradients that stay readable. */
static opipe_collect collect_of(const opi_weights *w, const opi_sum_bucket *b, bool gathers) {
  const bool scatters = !gathers && opi_shares_out(w) && !w->keep_gradients;
  return (opipe_collect){.struct_size = (uint32_t)OPIPE_END(opipe_collect, done),
                         .kind = gathers    ? (uint32_t)OPIPE_COLLECT_ALL_GATHER
                                 : scatters ? (uint32_t)OPIPE_COLLECT_REDUCE_SCATTER
                                            : (uint32_t)OPIPE_COLLECT_ALL_REDUCE,
                         .dtype = OPIPE_FLOAT,
                         .n_from = b->shape->n_slots,
                         .n_to = b->shape->n_slots,
                         .from = gathers ? b->own : b->all,
                         .to = scatters ? b->own : b->all,
                         .parts = gathers || scatters ? b->parts : NULL,
                         .ready = !gathers && b->recorded ? b->ready : NULL};
}

static opipe_status start(opi_weights *w, opi_holder *holder, opi_sum_bucket *b, uint32_t set,
                          opipe_error *err) {
  const opipe_collect what = collect_of(w, b, set != OPI_SETS);
  if (!b->listed) /* asked again after PENDING, the others may already read the lists */
    list_regions(b, set);
  const opipe_status status = opi_collect_start(w, holder, &b->member, &what, err);
  b->listed = status == OPIPE_PENDING;
  b->started = status == OPIPE_OK;
  b->recorded = b->recorded && !b->started;
  return status;
}

static opipe_status end(opi_weights *w, opi_holder *holder, opi_sum_bucket *b, opipe_error *err) {
  const opipe_status status = opi_member_test(w, holder, &b->member, err);
  if (status == OPIPE_OK)
    b->started = false;
  return status;
}

/* ---- sums ---- */

opipe_status opi_bucket_complete(opi_holder *holder, opi_sum_bucket *b, bool *out_due,
                                 opipe_error *err) {
  *out_due = ++b->n_complete == b->shape->n_slots && b->collects && !b->shape->tied;
  if (!*out_due || b->ready == NULL)
    return OPIPE_OK;
  b->recorded = true;
  return OPI_ASK("backend", holder->env.backend, event_record, err, holder->env.queue, b->ready);
}

opipe_status opi_bucket_start(opi_weights *w, opi_holder *holder, opi_sum_bucket *b,
                              opipe_error *err) {
  return start(w, holder, b, OPI_SETS, err);
}

opipe_status opi_bucket_test(opi_weights *w, opi_holder *holder, opi_sum_bucket *b,
                             opipe_error *err) {
  const opipe_status status = b->started ? end(w, holder, b, err) : OPIPE_OK;
  if (status != OPIPE_OK || b->summed)
    return status;
  b->summed = true;
  for (uint32_t i = 0; i < b->shape->n_slots; ++i)
    b->params[i]->summed = true;
  return OPIPE_OK;
}

opipe_status opi_bucket_tie(opi_weights *w, opi_holder *holder, opi_sum_bucket *b,
                            opipe_error *err) {
  if (b->summed)
    return OPIPE_OK;
  if (!b->started) {
    const opipe_status status = start(w, holder, b, OPI_SETS, err);
    if (status != OPIPE_OK)
      return status;
  }
  return opi_bucket_test(w, holder, b, err);
}

void opi_buckets_end(opi_holder *holder) {
  holder->n_begun = holder->n_due = holder->n_started = 0;
  for (uint32_t i = 0; i < holder->n_buckets; ++i) {
    holder->buckets[i].n_complete = 0;
    holder->buckets[i].summed = false;
  }
}

/* ---- weights ---- */

static opipe_status renew(opi_holder *holder, const opi_sum_bucket *b, uint32_t set,
                          opipe_error *err) {
  for (uint32_t i = 0; i < b->shape->n_slots; ++i) {
    OPI_TRY(OPI_ASK("backend", holder->env.backend, params_refresh, err, holder->sets[set],
                    holder->env.queue, b->params[i]->slot));
  }
  return OPIPE_OK;
}

/* All start before the first is awaited. */
opipe_status opi_buckets_gather(opi_weights *w, opi_weight_rank *rank, uint32_t set,
                                opipe_error *err) {
  opi_holder *holder = rank->holder;
  opipe_status status = OPIPE_OK;
  while (holder->n_begun < holder->n_buckets && status == OPIPE_OK) {
    opi_sum_bucket *b = &holder->buckets[holder->n_begun];
    status = b->collects ? start(w, holder, b, set, err) : opi_plain_gather(w, holder, b, err);
    holder->n_begun += status == OPIPE_OK;
  }
  if (status < 0)
    return status;
  for (; rank->gathered < holder->n_begun; ++rank->gathered) {
    opi_sum_bucket *b = &holder->buckets[rank->gathered];
    status = end(w, holder, b, err);
    if (status != OPIPE_OK)
      return status;
    OPI_TRY(renew(holder, b, set, err));
  }
  return rank->gathered == holder->n_buckets ? OPIPE_OK : OPIPE_PENDING;
}
