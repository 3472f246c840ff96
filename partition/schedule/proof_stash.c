/* SPDX-License-Identifier: Apache-2.0 */
/* Adds up the stashes of every rank along its list and compares them with its cap. */
#include "partition/schedule/proof.h"

typedef struct keeper {
  const opi_prover *v;
  uint64_t *held; /* [instances] units */
  uint64_t scale, now, peak;
  uint32_t rank;
  opipe_status status;
} keeper;

static bool keep(void *ctx, uint32_t item, const opi_do *of, int32_t n_parts) {
  keeper *k = ctx;
  const opi_problem *p = k->v->problem;
  const uint32_t instance = of->stage * p->n_replicas + of->replica;
  const uint64_t bytes = p->stash_bytes == NULL ? k->scale : p->stash_bytes[instance];
  uint64_t before = 0, after = 0;
  const uint64_t then = k->held[instance] + (uint64_t)(int64_t)n_parts;
  if (opi_mul_u64(bytes, k->held[instance], &before) || opi_mul_u64(bytes, then, &after)) {
    k->status = opi_fail(k->v->err, OPIPE_E_LIMIT, "stashes of rank %u overflow", k->rank);
    return false;
  }
  k->now += (after + k->scale - 1) / k->scale - (before + k->scale - 1) / k->scale;
  k->held[instance] = then;
  k->peak = k->now > k->peak ? k->now : k->peak;
  if (p->rank_stash_bytes == NULL || k->now <= p->rank_stash_bytes[k->rank])
    return true;
  const opi_do_place place = opi_prover_place(k->v, item);
  k->status =
      opi_fail(k->v->err, OPIPE_E_LIMIT, "%s: stashes take %llu, the rank has %llu", place.text,
               (unsigned long long)k->now, (unsigned long long)p->rank_stash_bytes[k->rank]);
  return false;
}

opipe_status opi_prover_stashes(const opi_prover *v, opi_proof *out) {
  const opi_problem *p = v->problem;
  const size_t instances = (size_t)p->n_stages * p->n_replicas;
  keeper k = {.v = v,
              .held = OPI_ARENA_ARRAY(v->arena, uint64_t, instances),
              .scale = (uint64_t)p->n_slices * p->n_parts,
              .status = OPIPE_OK};
  if (k.held == NULL)
    return opi_fail_nomem(v->err, instances * 8, "stashes");
  for (k.rank = 0; k.rank < v->list->n_ranks; ++k.rank) {
    k.now = k.peak = 0;
    if (!opi_each_stash(p, v->list, k.rank, keep, &k))
      return k.status;
    if (out->peak_stash != NULL)
      out->peak_stash[k.rank] = k.peak;
  }
  out->scale = p->stash_bytes == NULL ? (uint32_t)k.scale : 1;
  return OPIPE_OK;
}
