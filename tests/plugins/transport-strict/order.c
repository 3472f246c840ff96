/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of groups that share two ranks begin in one order on both, as NCCL needs it: for every two
 * ranks the groups whose rounds one of them has begun, and the other not yet, in order.
 */
#include "strict.h"

static pair_order *order_of(const place *p, uint32_t a, uint32_t b) {
  return &p->orders[a < b ? a * p->n_ranks + b : b * p->n_ranks + a];
}

/* Lock held. May this member begin a round now? It then has, for the ranks that come after it. */
opipe_status strict_begin_in_order(const opipe_group *g, const char *who, const char *call,
                                   opipe_error *err) {
  const opipe_circle *c = &g->circle->base;
  const opipe_endpoint *e = g->endpoint;
  for (uint32_t m = 0; m < c->n; ++m) {
    const uint32_t other = c->ranks[m], side = e->rank < other ? 0 : 1;
    const pair_order *o = order_of(e->place, e->rank, other);
    if (other == e->rank)
      continue;
    const uint64_t own = o->n[side], peer = o->n[1 - side];
    if (own < peer && o->groups[own % STRICT_AHEAD] != g->circle->id) {
      return strict_refuse(who, call, err,
                           "rank %u has begun a round of group %llu first, of which rank %u is a "
                           "member, too: this is group %llu",
                           other, (unsigned long long)o->groups[own % STRICT_AHEAD], e->rank,
                           (unsigned long long)g->circle->id);
    }
    if (own >= peer + STRICT_AHEAD) {
      return strict_refuse(who, call, err, "rank %u is %u rounds behind", other,
                           (unsigned)STRICT_AHEAD);
    }
  }
  for (uint32_t m = 0; m < c->n; ++m) {
    const uint32_t other = c->ranks[m], side = e->rank < other ? 0 : 1;
    pair_order *o = order_of(e->place, e->rank, other);
    if (other != e->rank)
      o->groups[o->n[side]++ % STRICT_AHEAD] = g->circle->id;
  }
  return OPIPE_OK;
}
