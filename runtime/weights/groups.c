/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over ranks: the transport's all-reduce, or, without a transport, a plain one that a single
 * thread drives for all ranks. The plain one adds up on the host once the last part is given, in
 * the order of members, and writes the sum to all of them. Both add in the same order.
 */
#include <string.h>

#include "runtime/weights/kept.h"

typedef struct plain_part {
  opi_holder *holder;
  opipe_region region;
} plain_part;

struct opi_plain_group {
  opi_plain_group *next;
  uint32_t n, n_given;
  uint64_t n_summed; /* rounds */
  plain_part *parts; /* [n] */
  uint64_t n_bytes;
};

/* ---- plain ---- */

static void plain_free(const opipe_allocator *a, opi_plain_group *g) {
  opi_free(a, g->parts, g->n * sizeof *g->parts);
  opi_free(a, g, sizeof *g);
}

/* Makes room for a sum and a part of any group; the one thread adds up one group at a time. */
static bool plain_room(opi_weights *w, uint64_t n_bytes) {
  if (n_bytes <= w->plain_bytes)
    return true;
  opi_free(w->allocator, w->plain_scratch, (size_t)(2 * w->plain_bytes));
  w->plain_bytes = 0;
  w->plain_scratch = NULL;
  if (n_bytes > SIZE_MAX / 4)
    return false;
  n_bytes = opi_align_up(n_bytes, sizeof(double)); /* of the part too */
  w->plain_scratch = opi_alloc(w->allocator, (size_t)(2 * n_bytes));
  if (w->plain_scratch != NULL)
    w->plain_bytes = n_bytes;
  return w->plain_scratch != NULL;
}

static opipe_status plain_open(opi_weights *w, opi_holder *const *holders, uint32_t n,
                               uint64_t n_bytes, opi_member *const *members, opipe_error *err) {
  opi_plain_group *g = opi_alloc_zero(w->allocator, 1, sizeof *g);
  if (g == NULL)
    return opi_fail_nomem(err, sizeof *g, "a group");
  g->n = n;
  g->n_bytes = n_bytes == 0 ? 1 : n_bytes;
  g->parts = opi_alloc_zero(w->allocator, n, sizeof *g->parts);
  if (g->parts == NULL || !plain_room(w, g->n_bytes)) {
    plain_free(w->allocator, g);
    return opi_fail_nomem(err, 2 * n_bytes, "a sum over ranks");
  }
  for (uint32_t i = 0; i < n; ++i) {
    g->parts[i].holder = holders[i];
    *members[i] = (opi_member){.plain = g, .index = i};
  }
  g->next = w->plain;
  w->plain = g;
  return OPIPE_OK;
}

void opi_groups_free(opi_weights *weights) {
  while (weights->plain != NULL) {
    opi_plain_group *next = weights->plain->next;
    plain_free(weights->allocator, weights->plain);
    weights->plain = next;
  }
  opi_free(weights->allocator, weights->plain_scratch, (size_t)(2 * weights->plain_bytes));
  weights->plain_scratch = NULL;
  weights->plain_bytes = 0;
}

static void add_host(char *sum, const char *part, uint64_t n_bytes, uint32_t dtype) {
  if (dtype == OPIPE_DOUBLE) {
    double *s = (double *)(void *)sum;
    const double *p = (const double *)(const void *)part;
    for (uint64_t i = 0; i < n_bytes / sizeof *s; ++i)
      s[i] += p[i];
    return;
  }
  float *s = (float *)(void *)sum;
  const float *p = (const float *)(const void *)part;
  for (uint64_t i = 0; i < n_bytes / sizeof *s; ++i)
    s[i] += p[i];
}

static opipe_status fetch(const plain_part *part, char *dst, opipe_error *err) {
  OPI_TRY(OPI_ASK("backend", part->holder->env.backend, read, err, part->holder->env.queue, dst,
                  &part->region));
  return opi_holder_sync(part->holder, err);
}

static opipe_status plain_sum(opi_weights *w, opi_plain_group *g, uint32_t dtype,
                              opipe_error *err) {
  char *sum = w->plain_scratch, *part = sum + w->plain_bytes;
  OPI_TRY(fetch(&g->parts[0], sum, err));
  for (uint32_t i = 1; i < g->n; ++i) {
    OPI_TRY(fetch(&g->parts[i], part, err));
    add_host(sum, part, g->parts[i].region.n_bytes, dtype);
  }
  for (uint32_t i = 0; i < g->n; ++i) {
    const plain_part *p = &g->parts[i];
    OPI_TRY(opi_backend_of(p->holder)->write(p->holder->env.queue, &p->region, sum, err));
    OPI_TRY(opi_holder_sync(p->holder, err));
  }
  g->n_given = 0;
  ++g->n_summed;
  return OPIPE_OK;
}

static opipe_status plain_start(opi_weights *w, opi_member *member, const opipe_region *region,
                                uint32_t dtype, opipe_error *err) {
  opi_plain_group *g = member->plain;
  if (region->n_bytes > g->n_bytes) {
    return opi_fail(err, OPIPE_E_INTERNAL, "a sum of %llu bytes, the group has room for %llu",
                    (unsigned long long)region->n_bytes, (unsigned long long)g->n_bytes);
  }
  g->parts[member->index].region = *region;
  return ++g->n_given == g->n ? plain_sum(w, g, dtype, err) : OPIPE_OK;
}

/* Every holder's part goes to the others, by the host. */
static opipe_status gather_slot(opi_weights *w, const opi_plain_group *g, uint32_t slot,
                                opipe_error *err) {
  for (uint32_t i = 0; i < g->n; ++i) {
    opi_holder *from = g->parts[i].holder;
    const opi_weight_param *p = opi_holder_param(from, slot);
    const opipe_region *master = &p->weight[w->ranks[from->env.rank].newest];
    const opipe_region part = opi_own_part(p, master);
    if (part.n_bytes == 0)
      continue;
    OPI_TRY(
        OPI_ASK("backend", from->env.backend, read, err, from->env.queue, w->plain_scratch, &part));
    OPI_TRY(opi_holder_sync(from, err));
    for (uint32_t k = 0; k < g->n; ++k) {
      opi_holder *to = g->parts[k].holder;
      opipe_region place = opi_holder_param(to, slot)->weight[w->ranks[to->env.rank].newest];
      place.offset_bytes += p->own_first;
      place.n_bytes = part.n_bytes;
      if (k == i)
        continue;
      OPI_TRY(
          OPI_ASK("backend", to->env.backend, write, err, to->env.queue, &place, w->plain_scratch));
      OPI_TRY(opi_holder_sync(to, err));
    }
  }
  return OPIPE_OK;
}

opipe_status opi_plain_gather(opi_weights *w, opi_holder *holder, opi_sum_bucket *bucket,
                              opipe_error *err) {
  opi_member *member = &bucket->member;
  opi_plain_group *g = member->plain;
  (void)holder;
  if (!bucket->started) {
    bucket->started = true;
    if (++g->n_given == g->n) {
      for (uint32_t i = 0; i < bucket->shape->n_slots; ++i)
        OPI_TRY(gather_slot(w, g, bucket->shape->slots[i], err));
      g->n_given = 0;
      ++g->n_summed;
    }
  }
  if (g->n_summed <= member->round)
    return OPIPE_PENDING;
  bucket->started = false;
  ++member->round;
  return OPIPE_OK;
}

/* ---- either ---- */

opipe_status opi_group_open(opi_weights *weights, opi_holder *const *holders, uint32_t n,
                            uint64_t n_bytes, opi_member *const *members, opipe_error *err) {
  const opipe_transport *t = weights->transport.table;
  if (t == NULL)
    return plain_open(weights, holders, n, n_bytes, members, err);
  if (t->group_open == NULL) {
    return opi_fail(
        err, OPIPE_E_UNSUPPORTED,
        "transport '%s' cannot reduce (OPIPE_TRANSPORT_REDUCES): training sums gradients "
        "or norms of %u ranks",
        weights->transport.id, n);
  }
  uint32_t n_here = 0;
  for (uint32_t i = 0; i < n; ++i)
    n_here += holders[i]->env.elsewhere == 0 ? 1 : 0;
  if (n_here == 0)
    return OPIPE_OK;
  uint32_t *ranks = opi_alloc_zero(weights->allocator, n, sizeof *ranks);
  if (ranks == NULL)
    return opi_fail_nomem(err, n * sizeof *ranks, "a group");
  for (uint32_t i = 0; i < n; ++i)
    ranks[i] = holders[i]->env.rank;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i) {
    members[i]->index = i;
    if (holders[i]->env.elsewhere != 0)
      continue;
    status = OPI_MAKE("transport", &weights->transport, group_open, &members[i]->group, err,
                      holders[i]->env.endpoint, ranks, n, n_bytes);
  }
  opi_free(weights->allocator, ranks, n * sizeof *ranks);
  return status;
}

bool opi_collects(const opi_weights *weights) {
  const opipe_transport *t = weights->transport.table;
  return t != NULL && OPIPE_HAS(t, opipe_transport, collect_test) && t->collect != NULL;
}

opipe_status opi_collective_open(opi_weights *weights, opi_holder *const *holders, uint32_t n,
                                 const opipe_collective_params *params, opi_member *const *members,
                                 opipe_error *err) {
  opipe_collective_params own = *params;
  if (weights->transport.table == NULL)
    return plain_open(weights, holders, n, params->n_bytes, members, err);
  uint32_t *ranks = opi_alloc_zero(weights->allocator, n, sizeof *ranks);
  if (ranks == NULL)
    return opi_fail_nomem(err, n * sizeof *ranks, "a group");
  for (uint32_t i = 0; i < n; ++i)
    ranks[i] = holders[i]->env.rank;
  own.ranks = ranks;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i) {
    members[i]->index = i;
    if (holders[i]->env.elsewhere == 0) {
      status = OPI_MAKE("transport", &weights->transport, collective_open, &members[i]->collective,
                        err, holders[i]->env.endpoint, &own);
    }
  }
  opi_free(weights->allocator, ranks, n * sizeof *ranks);
  return status;
}

void opi_member_close(const opi_weights *weights, opi_member *member) {
  if (member->group != NULL)
    weights->transport.table->group_close(member->group);
  if (member->collective != NULL)
    weights->transport.table->collective_close(member->collective);
  member->group = NULL;
  member->collective = NULL;
}

/* Records `ready` once per round: recorded again at every attempt, the event would never be
 * reached.
 */
static opipe_status make_ready(opi_holder *holder, opi_member *member, opipe_error *err) {
  if (holder->ready == NULL || member->asked)
    return OPIPE_OK;
  member->asked = true;
  return OPI_ASK("backend", holder->env.backend, event_record, err, holder->env.queue,
                 holder->ready);
}

opipe_status opi_collect_start(opi_weights *weights, opi_holder *holder, opi_member *member,
                               const opipe_collect *what, opipe_error *err) {
  opipe_collect own = *what;
  own.done = holder->done;
  if (own.ready == NULL) {
    OPI_TRY(make_ready(holder, member, err));
    own.ready = holder->ready;
  }
  const opipe_status status = OPI_POLL("transport", &weights->transport, collect, err,
                                       member->collective, member->round, &own);
  if (status == OPIPE_OK) {
    member->pending = 1;
    member->asked = false;
  }
  return status;
}

opipe_status opi_member_start(opi_weights *weights, opi_holder *holder, opi_member *member,
                              const opipe_region *region, uint32_t dtype, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (member->plain != NULL) {
    status = plain_start(weights, member, region, dtype, err);
  } else {
    const uint64_t size = dtype == OPIPE_DOUBLE ? sizeof(double) : sizeof(float);
    OPI_TRY(make_ready(holder, member, err));
    status =
        OPI_POLL("transport", &weights->transport, all_reduce, err, member->group, member->round,
                 region, region->n_bytes / size, dtype, holder->ready, holder->done);
  }
  if (status == OPIPE_OK) {
    member->pending = 1;
    member->asked = false;
  }
  return status;
}

opipe_status opi_member_test(opi_weights *weights, opi_holder *holder, opi_member *member,
                             opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (member->pending == 0)
    return OPIPE_OK;
  if (member->plain != NULL) {
    status = member->plain->n_summed > member->round ? OPIPE_OK : OPIPE_PENDING;
  } else {
    status = member->collective != NULL ? OPI_POLL("transport", &weights->transport, collect_test,
                                                   err, member->collective, member->round)
                                        : OPI_POLL("transport", &weights->transport, group_test,
                                                   err, member->group, member->round);
    if (status == OPIPE_OK && holder->done != NULL) {
      status =
          OPI_ASK("backend", holder->env.backend, event_wait, err, holder->env.queue, holder->done);
    }
  }
  if (status != OPIPE_OK)
    return status;
  member->pending = 0;
  ++member->round;
  return OPIPE_OK;
}
