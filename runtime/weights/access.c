/* SPDX-License-Identifier: Apache-2.0 */
/* Weights, gradients and moments by name, in dense form. Only between steps.
 *
 * A backend packs and unpacks parameter sets, not moments. A moment has the master's layout, so it
 * is put into the gradient set's accumulator while it is packed or unpacked. Between steps the
 * accumulator is zero, or holds gradients that are kept; either is restored. This takes no device
 * memory and one copy to the host. Every holder of a moment that is shared out unpacks its part,
 * with zeros elsewhere, and the dense forms are put together.
 */
#include <math.h>
#include <string.h>

#include "runtime/weights/kept.h"
#include "runtime/weights/optimizer.h"

static opipe_status not_found(const opi_weights *w, const char *name, opipe_error *err) {
  for (uint32_t i = 0; i < w->n_sources; ++i) {
    if (strcmp(w->sources[i].name, name) == 0) {
      return opi_fail(err, OPIPE_E_NOTFOUND, "parameter '%s' is %s", name,
                      w->trained[i] ? "read by no stage" : "not trained: it has no such state");
    }
  }
  return opi_fail(err, OPIPE_E_NOTFOUND, "no parameter is called '%s'; there are %u%s%s", name,
                  w->n_used, w->n_used == 0 ? "" : ", the first is ",
                  w->n_used == 0 ? "" : w->sources[w->used[0]].name);
}

static bool reads(const opi_holder *holder, uint32_t slot) {
  for (uint32_t k = 0; k < holder->env.n_params; ++k) {
    if (holder->env.params[k] == slot)
      return true;
  }
  return false;
}

static bool is_moment(uint32_t state) {
  return state >= OPI_TENSOR_FIRST && state < OPI_TENSOR_FIRST + OPIPE_MOMENTS_MOST;
}

/* The slot called `name` and the first rank that holds it, here or elsewhere; checks state,
 * version and size. */
static opipe_status find(const opi_weights *w, const char *name, uint32_t state, uint32_t version,
                         uint64_t n_bytes, uint32_t *out_slot, uint32_t *out_holder,
                         opipe_error *err) {
  uint64_t want = 0;
  uint32_t u = 0, i = 0;
  while (u < w->n_used && strcmp(w->sources[w->used[u]].name, name) != 0)
    ++u;
  if (u == w->n_used || (state != OPI_TENSOR_WEIGHT && !w->trained[w->used[u]]))
    return not_found(w, name, err);
  const opipe_param_source *source = opi_row_whole(w, w->used[u]);
  if (version >= w->n_versions) {
    return opi_fail(err, OPIPE_E_INVALID, "parameter '%s': version %u, there are %u", name, version,
                    w->n_versions);
  }
  if (state > OPI_TENSOR_MASTER || (is_moment(state) && state - OPI_TENSOR_FIRST >= w->n_moments)) {
    return opi_fail(err, OPIPE_E_NOTFOUND, "parameter '%s': the optimizer has %u moments, not %u",
                    name, w->n_moments, state - 1);
  }
  if (state == OPI_TENSOR_GRADIENT && !w->keep_gradients) {
    return opi_fail(err, OPIPE_E_STATE,
                    "parameter '%s': gradients are not kept after the step in this session", name);
  }
  if (state == OPI_TENSOR_WEIGHT)
    want = source->n_bytes;
  else if (!opi_weight_dense_bytes(source, &want))
    return opi_fail(err, OPIPE_E_INVALID, "parameter '%s': its bytes do not fit 64 bits", name);
  if (want != n_bytes) {
    return opi_fail(err, OPIPE_E_INVALID, "parameter '%s' has %llu bytes, the buffer %llu", name,
                    (unsigned long long)want, (unsigned long long)n_bytes);
  }
  while (!reads(&w->holders[i], w->used[u]))
    ++i;
  *out_slot = w->used[u];
  *out_holder = i;
  return OPIPE_OK;
}

/* ---- through the accumulator ---- */

typedef struct borrowed {
  opi_holder *holder;
  const opi_weight_param *param;
  char *saved; /* the accumulator's content; NULL: zeros */
} borrowed;

static opipe_status borrow(const opi_weights *w, opi_holder *holder, const opi_weight_param *param,
                           borrowed *b, opipe_error *err) {
  *b = (borrowed){.holder = holder, .param = param};
  if (!w->keep_gradients)
    return OPIPE_OK;
  b->saved = opi_alloc(w->allocator, (size_t)param->n_bytes);
  if (b->saved == NULL)
    return opi_fail_nomem(err, param->n_bytes, w->sources[param->slot].name);
  opipe_status status = OPI_ASK("backend", holder->env.backend, read, err, holder->env.queue,
                                b->saved, &param->gradient);
  if (status == OPIPE_OK)
    status = opi_holder_sync(holder, err);
  if (status < 0)
    opi_free(w->allocator, b->saved, (size_t)param->n_bytes);
  return status;
}

static opipe_status give_back(const opi_weights *w, borrowed *b, opipe_status status,
                              opipe_error *err) {
  opipe_error *e = status < 0 ? NULL : err; /* the first error stays */
  opipe_status back = b->saved == NULL
                          ? OPI_ASK("backend", b->holder->env.backend, fill_zero, e,
                                    b->holder->env.queue, &b->param->gradient)
                          : OPI_ASK("backend", b->holder->env.backend, write, e,
                                    b->holder->env.queue, &b->param->gradient, b->saved);
  if (back == OPIPE_OK)
    back = opi_holder_sync(b->holder, e);
  opi_free(w->allocator, b->saved, (size_t)b->param->n_bytes);
  return status < 0 ? status : back;
}

/* Is the moment in parts? */
static bool is_shared_out(const opi_weights *w, const opi_weight_param *p, uint32_t state) {
  return opi_shares_out(w) && is_moment(state) && p->bucket != NULL;
}

/* Where the region lies in the accumulator, whose rest is zero then. */
static opipe_status clear_around(opi_holder *holder, const opi_weight_param *param,
                                 const opipe_region *region, opipe_region *out_place,
                                 opipe_error *err) {
  const bool part = region->n_bytes != param->gradient.n_bytes;
  *out_place = part ? opi_own_part(param, &param->gradient) : param->gradient;
  return part ? OPI_ASK("backend", holder->env.backend, fill_zero, err, holder->env.queue,
                        &param->gradient)
              : OPIPE_OK;
}

static opipe_status unpack(const opi_weights *w, opi_holder *holder, const opi_weight_param *param,
                           const opipe_region *from, void *dst, uint64_t n_bytes,
                           opipe_error *err) {
  borrowed loan;
  opipe_region place;
  OPI_TRY(borrow(w, holder, param, &loan, err));
  opipe_status status = clear_around(holder, param, from, &place, err);
  if (status == OPIPE_OK && from->n_bytes != 0)
    status = OPI_ASK("backend", holder->env.backend, copy, err, holder->env.queue, &place, from);
  if (status == OPIPE_OK)
    status = opi_holder_sync(holder, err);
  if (status == OPIPE_OK) {
    status = OPI_ASK("backend", holder->env.backend, params_read, err, holder->gradients,
                     param->slot, dst, n_bytes);
  }
  return give_back(w, &loan, status, err);
}

static opipe_status pack(const opi_weights *w, opi_holder *holder, const opi_weight_param *param,
                         const opipe_region *to, const void *src, uint64_t n_bytes,
                         opipe_error *err) {
  borrowed loan;
  OPI_TRY(borrow(w, holder, param, &loan, err));
  opipe_status status = OPI_ASK("backend", holder->env.backend, params_write, err,
                                holder->gradients, param->slot, src, n_bytes);
  if (status == OPIPE_OK)
    status = OPI_ASK("backend", holder->env.backend, params_commit, err, holder->gradients);
  const opipe_region place = to->n_bytes == param->gradient.n_bytes
                                 ? param->gradient
                                 : opi_own_part(param, &param->gradient);
  if (status == OPIPE_OK && to->n_bytes != 0)
    status = OPI_ASK("backend", holder->env.backend, copy, err, holder->env.queue, to, &place);
  if (status == OPIPE_OK)
    status = opi_holder_sync(holder, err);
  return give_back(w, &loan, status, err);
}

static const opipe_region *state_region(const opi_weights *w, const opi_holder *holder,
                                        const opi_weight_param *p, uint32_t state,
                                        uint32_t version) {
  if (is_moment(state))
    return &p->moments[state - OPI_TENSOR_FIRST];
  return &p->weight[opi_weights_set_of(w, holder->env.rank, version)];
}

/* ---- get and set ---- */

/* The gradient before the step, with the loss scale taken out. */
static opipe_status get_gradient(const opi_weights *w, opi_holder *holder, uint32_t slot,
                                 float *dst, uint64_t n_bytes, opipe_error *err) {
  const double scale = w->ranks[holder->env.rank].gradient_scale;
  OPI_TRY(OPI_ASK("backend", holder->env.backend, params_read, err, holder->gradients, slot, dst,
                  n_bytes));
  for (uint64_t i = 0; scale != 1 && i < n_bytes / sizeof *dst; ++i)
    dst[i] = (float)((double)dst[i] / scale);
  return OPIPE_OK;
}

static opipe_status get_one(const opi_weights *weights, opi_holder *holder, uint32_t slot,
                            uint32_t state, uint32_t version, void *dst, uint64_t n_bytes,
                            opipe_error *err) {
  const opi_weight_param *p = opi_holder_param(holder, slot);
  OPI_TRY(opi_holder_sync(holder, err)); /* the step's updates may still be queued */
  if (state == OPI_TENSOR_WEIGHT) {
    const uint32_t set = opi_weights_set_of(weights, holder->env.rank, version);
    return OPI_ASK("backend", holder->env.backend, params_read, err, holder->sets[set], slot, dst,
                   n_bytes);
  }
  if (state == OPI_TENSOR_GRADIENT)
    return get_gradient(weights, holder, slot, dst, n_bytes, err);
  return unpack(weights, holder, p, state_region(weights, holder, p, state, version), dst, n_bytes,
                err);
}

/* Puts a moment together of what its holders have. Every element is in one of them, and 0 in the
 * dense forms of the others. */
static opipe_status get_parts(opi_weights *w, uint32_t slot, uint32_t state, bool shares, void *dst,
                              uint64_t n_bytes, opipe_error *err) {
  unsigned char *part = opi_alloc(w->allocator, (size_t)n_bytes), *all = dst;
  opipe_status status = part == NULL ? opi_fail_nomem(err, n_bytes, "a moment") : OPIPE_OK;
  memset(dst, 0, (size_t)n_bytes);
  for (uint32_t i = 0; i < w->n_holders; ++i) {
    opi_holder *holder = &w->holders[i];
    if (!reads(holder, slot))
      continue;
    opipe_error *e = status < 0 ? NULL : err; /* the first error stays; all sessions go on */
    opipe_status got = status;
    if (holder->env.elsewhere == 0 && status == OPIPE_OK)
      got = get_one(w, holder, slot, state, 0, part, n_bytes, e);
    if (shares && part != NULL)
      got = w->share(w->share_ctx, holder->env.rank, part, n_bytes, got, e);
    for (uint64_t k = 0; got == OPIPE_OK && k < n_bytes; ++k)
      all[k] |= part[k];
    status = status < 0 ? status : got;
  }
  opi_free(w->allocator, part, (size_t)n_bytes);
  return status;
}

opipe_status opi_weights_find(const opi_weights *weights, const char *name, uint32_t state,
                              uint32_t version, uint64_t n_bytes, opipe_error *err) {
  uint32_t slot = 0, holder = 0;
  return find(weights, name, state, version, n_bytes, &slot, &holder, err);
}

/* Which tensor of a row; own: without the other sessions. */
typedef struct which_tensor {
  uint32_t state, version;
  bool own;
} which_tensor;

static uint32_t first_holder(const opi_weights *w, uint32_t slot) {
  uint32_t i = 0;
  while (!reads(&w->holders[i], slot))
    ++i;
  return i;
}

static opipe_status get_row(opi_weights *weights, uint32_t slot, const void *how, void *dst,
                            uint64_t n_bytes, opipe_error *err) {
  const which_tensor *what = how;
  const uint32_t state = what->state, version = what->version;
  opi_holder *holder = &weights->holders[first_holder(weights, slot)];
  opipe_status status = OPIPE_OK;
  if (weights->trained[slot] && is_shared_out(weights, opi_holder_param(holder, slot), state))
    return get_parts(weights, slot, state, !what->own && weights->share != NULL, dst, n_bytes, err);
  if (holder->env.elsewhere == 0) {
    status = get_one(weights, holder, slot, state, version, dst, n_bytes, err);
  } else if (what->own) {
    status = opi_fail(err, OPIPE_E_INTERNAL, "parameter '%s' is of rank %u, in another session",
                      weights->sources[slot].name, holder->env.rank);
  }
  return weights->share == NULL || what->own
             ? status
             : weights->share(weights->share_ctx, holder->env.rank, dst, n_bytes, status, err);
}

static opipe_status get(opi_weights *weights, const char *name, const which_tensor *what, void *dst,
                        uint64_t n_bytes, opipe_error *err) {
  uint32_t slot = 0, i = 0;
  OPI_TRY(find(weights, name, what->state, what->version, n_bytes, &slot, &i, err));
  if (n_bytes == 0)
    return OPIPE_OK;
  return opi_row_is_part(weights, slot)
             ? opi_rows_get(weights, slot, n_bytes, get_row, what, dst, err)
             : get_row(weights, slot, what, dst, n_bytes, err);
}

opipe_status opi_weights_get(opi_weights *weights, const char *name, uint32_t state,
                             uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err) {
  const which_tensor what = {.state = state, .version = version};
  return get(weights, name, &what, dst, n_bytes, err);
}

opipe_status opi_weights_get_own(opi_weights *weights, const char *name, uint32_t state,
                                 uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err) {
  const which_tensor what = {.state = state, .version = version, .own = true};
  return get(weights, name, &what, dst, n_bytes, err);
}

static bool row_in_parts(const opi_weights *w, uint32_t slot, uint32_t state) {
  const opi_holder *holder = &w->holders[first_holder(w, slot)];
  return w->trained[slot] && is_shared_out(w, opi_holder_param(holder, slot), state);
}

bool opi_weights_in_parts(const opi_weights *weights, const char *name, uint32_t state) {
  bool any = false;
  for (uint32_t i = 0; i < weights->n_used && weights->share != NULL && is_moment(state); ++i) {
    if (strcmp(weights->sources[weights->used[i]].name, name) != 0)
      continue;
    for (uint32_t row = weights->used[i]; row != OPIPE_NONE; row = weights->rows.next[row])
      any = any || row_in_parts(weights, row, state);
  }
  return any;
}

static opipe_status set_one(const opi_weights *w, opi_holder *holder, uint32_t slot, uint32_t state,
                            uint32_t version, const void *src, uint64_t n_bytes, opipe_error *err) {
  const uint32_t set = opi_weights_set_of(w, holder->env.rank, version);
  const opi_weight_param *p = opi_holder_param(holder, slot);
  OPI_TRY(opi_holder_sync(holder, err)); /* queued work may read it */
  if (state == OPI_TENSOR_WEIGHT) {
    OPI_TRY(OPI_ASK("backend", holder->env.backend, params_write, err, holder->sets[set], slot, src,
                    n_bytes));
    return OPI_ASK("backend", holder->env.backend, params_commit, err, holder->sets[set]);
  }
  if (state == OPI_TENSOR_GRADIENT) {
    OPI_TRY(OPI_ASK("backend", holder->env.backend, params_write, err, holder->gradients, slot, src,
                    n_bytes));
    return OPI_ASK("backend", holder->env.backend, params_commit, err, holder->gradients);
  }
  OPI_TRY(pack(w, holder, p, state_region(w, holder, p, state, version), src, n_bytes, err));
  if (state != OPI_TENSOR_MASTER)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK("backend", holder->env.backend, params_refresh, err, holder->sets[set],
                  holder->env.queue, slot));
  return opi_holder_sync(holder, err);
}

static opipe_status set_row(opi_weights *weights, uint32_t slot, const void *how, const void *src,
                            uint64_t n_bytes, opipe_error *err) {
  const which_tensor *what = how;
  weights->rows.changed[slot] = !weights->trained[slot];
  for (uint32_t i = 0; n_bytes != 0 && i < weights->n_holders; ++i) {
    if (weights->holders[i].env.elsewhere == 0 && reads(&weights->holders[i], slot)) {
      OPI_TRY(set_one(weights, &weights->holders[i], slot, what->state, what->version, src, n_bytes,
                      err));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_weights_set(opi_weights *weights, const char *name, uint32_t state,
                             uint32_t version, const void *src, uint64_t n_bytes,
                             opipe_error *err) {
  const which_tensor what = {.state = state, .version = version};
  uint32_t slot = 0, first = 0;
  OPI_TRY(find(weights, name, state, version, n_bytes, &slot, &first, err));
  return opi_rows_set(weights, slot, n_bytes, set_row, &what, src, err);
}

/* ---- the rest ---- */

opipe_params *opi_weights_params(opi_weights *weights, uint32_t instance, uint32_t set) {
  const opi_holder *holder = weights->parts[instance].holder;
  return holder == NULL ? NULL : holder->sets[set]; /* elsewhere: NULL */
}

opipe_params *opi_weights_gradients(opi_weights *weights, uint32_t instance) {
  const opi_holder *holder = weights->parts[instance].holder;
  return holder == NULL ? NULL : holder->gradients;
}

static bool is_here(const opi_weight_rank *rank) {
  return rank->holder != NULL && rank->holder->env.elsewhere == 0;
}

static const opi_weight_rank *any_rank(const opi_weights *w) {
  uint32_t r = 0;
  while (r + 1 < w->n_ranks && !is_here(&w->ranks[r]))
    ++r;
  return &w->ranks[r];
}

uint32_t opi_weights_reporter(const opi_weights *weights) {
  return (uint32_t)(any_rank(weights) - weights->ranks);
}

/* Every rank has the norms of all rows; copies have 0. */
static double norm_of(const opi_weights *w, uint32_t slot) {
  const double *norms = any_rank(w)->norms_now;
  double sum = 0;
  if (w->rows.next[slot] == OPIPE_NONE)
    return norms[w->trained_index[slot]];
  for (uint32_t i = slot; i != OPIPE_NONE; i = w->rows.next[i])
    sum += norms[w->trained_index[i]] * norms[w->trained_index[i]];
  return sqrt(sum);
}

bool opi_weights_info(const opi_weights *weights, uint32_t index, opi_weight_info *out_info) {
  if (index >= weights->n_used)
    return false;
  const uint32_t slot = weights->used[index];
  *out_info = (opi_weight_info){.source = opi_row_whole(weights, slot),
                                .trained = weights->trained[slot],
                                .changed = weights->rows.changed[slot]};
  for (uint32_t i = 0; i < weights->n_holders; ++i) {
    const opi_holder *holder = &weights->holders[i];
    if (!reads(holder, slot))
      continue;
    const bool here = holder->env.elsewhere == 0;
    if (out_info->n_copies == 0) {
      out_info->owner = holder->env.rank;
      out_info->owned = here ? 1 : 0;
    }
    out_info->n_here += here ? 1 : 0;
    ++out_info->n_copies;
  }
  if (weights->trained[slot])
    out_info->gradient_norm = norm_of(weights, slot);
  return true;
}

uint32_t opi_weights_moments(const opi_weights *weights) {
  return weights->n_moments;
}

uint32_t opi_weights_versions(const opi_weights *weights) {
  return weights->n_versions;
}

bool opi_weights_leads(const opi_weights *weights) {
  return weights->share == NULL || is_here(&weights->ranks[0]);
}

opipe_status opi_weights_bring(opi_weights *weights, uint32_t holder, void *data, uint64_t n_bytes,
                               opipe_status had, opipe_error *io_err) {
  return weights->share == NULL
             ? had
             : weights->share(weights->share_ctx, holder, data, n_bytes, had, io_err);
}

opipe_status opi_weights_agree(opi_weights *weights, opipe_status status, opipe_error *io_err) {
  return opi_weights_bring(weights, 0, NULL, 0, status, io_err);
}

void opi_weights_get_clock(const opi_weights *weights, opi_weights_clock *out_clock) {
  *out_clock = any_rank(weights)->clock;
}

void opi_weights_set_clock(opi_weights *weights, const opi_weights_clock *clock) {
  opi_weights_clock own = *clock;
  if (clock->scales == 0 || !opi_optimizer_scales(&weights->optimizer))
    opi_optimizer_first_scale(&weights->optimizer, &own);
  for (uint32_t r = 0; r < weights->n_ranks; ++r) {
    weights->ranks[r].clock = own;
    weights->ranks[r].held = false;
  }
}

uint64_t opi_weights_pinned(const opi_weights *weights, uint32_t rank) {
  return weights == NULL ? 0 : opi_pinned_bytes(&weights->ranks[rank].host);
}

void opi_weights_bytes(const opi_weights *weights, uint32_t rank, opi_weight_bytes *out_bytes) {
  const opi_holder *holder = weights->ranks[rank].holder;
  *out_bytes = holder == NULL ? (opi_weight_bytes){0} : holder->bytes;
}
