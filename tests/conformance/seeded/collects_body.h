/* SPDX-License-Identifier: Apache-2.0 */
/* Defects of collectives: the inner transport's, damaged; or, where the way to add is at fault, of
 * this file's own making. Included by transport.c, behind what it stands on.
 */
#ifndef CONFORMANCE_SEEDED_COLLECTS_BODY_H
#define CONFORMANCE_SEEDED_COLLECTS_BODY_H

#include <opipe/collect.h>

enum { MET = 3, MET_REGIONS = 4 };

static struct {
  pthread_mutex_t lock;
  opipe_collective *groups[MET]; /* by member */
  opipe_endpoint *endpoints[MET];
  opipe_collect given[MET];
  uint32_t arrived[MET], n_given;
  bool gave[MET], taken[MET];
  uint64_t round;
} met = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool meets_itself(void) {
  return seeded("collect-by-arrival") || seeded("collect-rounds-each") || seeded("collect-wide");
}

static double met_number(const void *raw, uint32_t dtype) {
  double wide = 0;
  float narrow = 0;
  uint16_t half = 0;
  memcpy(&half, raw, sizeof half);
  if (dtype == OPIPE_DOUBLE)
    memcpy(&wide, raw, sizeof wide);
  else if (dtype == OPIPE_FLOAT)
    memcpy(&narrow, raw, sizeof narrow);
  else
    narrow = dtype == OPIPE_FLOAT16 ? opipe_f16_to_f32(half) : opipe_bf16_to_f32(half);
  return dtype == OPIPE_DOUBLE ? wide : (double)narrow;
}

static void met_put(void *raw, uint32_t dtype, double value) {
  const float narrow = (float)value;
  const uint16_t half =
      dtype == OPIPE_FLOAT16 ? opipe_f32_to_f16(narrow) : opipe_f32_to_bf16(narrow);
  if (dtype == OPIPE_DOUBLE)
    memcpy(raw, &value, sizeof value);
  else if (dtype == OPIPE_FLOAT)
    memcpy(raw, &narrow, sizeof narrow);
  else
    memcpy(raw, &half, sizeof half);
}

static void met_add(opipe_cursor *from, uint32_t dtype, uint64_t offset, void *out) {
  double sum = 0;
  for (uint32_t k = 0; k < MET; ++k) {
    uint64_t raw = 0;
    const uint32_t m = seeded("collect-by-arrival") ? met.arrived[k] : k;
    opipe_cursor_get(&from[m], offset, &raw, opipe_sum_size(dtype));
    sum += met_number(&raw, dtype);
    if (dtype != OPIPE_DOUBLE && !seeded("collect-wide"))
      sum = (double)(float)sum;
    met_put(&raw, dtype, sum);
    if (seeded("collect-rounds-each"))
      sum = met_number(&raw, dtype);
  }
  met_put(out, dtype, sum);
}

static void met_round(void) {
  opipe_span spans[2][MET][MET_REGIONS];
  opipe_cursor from[MET], to[MET];
  const opipe_collect *c = &met.given[0];
  for (uint32_t m = 0; m < MET; ++m) {
    for (uint32_t i = 0; i < met.given[m].n_from; ++i) {
      spans[0][m][i] =
          (opipe_span){opipe_host_at(&met.given[m].from[i]), met.given[m].from[i].n_bytes};
    }
    for (uint32_t i = 0; i < met.given[m].n_to; ++i)
      spans[1][m][i] = (opipe_span){opipe_host_at(&met.given[m].to[i]), met.given[m].to[i].n_bytes};
    from[m] = (opipe_cursor){.spans = spans[0][m], .n = met.given[m].n_from};
    to[m] = (opipe_cursor){.spans = spans[1][m], .n = met.given[m].n_to};
  }
  const uint64_t size = opipe_collect_size(c->kind, c->dtype);
  uint64_t n = 0, sum = 0;
  for (uint32_t i = 0; i < c->n_from && c->kind != OPIPE_COLLECT_ALL_GATHER; ++i)
    n += c->from[i].n_bytes / size;
  for (uint32_t m = 0; m < MET && c->kind == OPIPE_COLLECT_ALL_GATHER; ++m)
    n += c->parts[m];
  for (uint32_t m = 0; m < MET; ++m) {
    if (c->kind == OPIPE_COLLECT_ALL_GATHER)
      opipe_collect_share(c, MET, m, n, from, to);
    const opipe_part mine = opipe_collect_part(c, m, n);
    for (uint64_t i = 0; i < mine.n && c->kind == OPIPE_COLLECT_REDUCE_SCATTER; ++i) {
      met_add(from, c->dtype, (mine.first + i) * size, &sum);
      opipe_cursor_put(&to[m], i * size, &sum, size);
    }
  }
  for (uint64_t i = 0; i < n && c->kind == OPIPE_COLLECT_ALL_REDUCE; ++i) {
    met_add(from, c->dtype, i * size, &sum);
    for (uint32_t m = 0; m < MET; ++m)
      opipe_cursor_put(&to[m], i * size, &sum, size);
  }
}

static uint32_t met_member(const opipe_collective *group) {
  uint32_t m = 0;
  while (m < MET - 1 && met.groups[m] != group)
    ++m;
  return m;
}

static void met_ring(void) {
  for (uint32_t m = 0; m < MET; ++m)
    real.ring(met.endpoints[m]);
}

static opipe_status collect_itself(opipe_collective *group, uint64_t sequence,
                                   const opipe_collect *c) {
  opipe_status status = OPIPE_PENDING;
  (void)pthread_mutex_lock(&met.lock);
  const uint32_t m = met_member(group);
  if (sequence == met.round && !met.gave[m]) {
    met.given[m] = *c;
    met.gave[m] = true;
    met.taken[m] = false;
    met.arrived[met.n_given++] = m;
    if (met.n_given == MET)
      met_round();
    status = OPIPE_OK;
    met_ring();
  }
  (void)pthread_mutex_unlock(&met.lock);
  return status;
}

static opipe_status collect_test_itself(const opipe_collective *group, uint64_t sequence) {
  (void)pthread_mutex_lock(&met.lock);
  const uint32_t m = met_member(group);
  const bool now = sequence == met.round && met.n_given == MET;
  met.taken[m] = met.taken[m] || now;
  if (now && met.taken[0] && met.taken[1] && met.taken[2]) {
    ++met.round;
    met.n_given = 0;
    memset(met.gave, 0, sizeof met.gave);
    memset(met.taken, 0, sizeof met.taken);
    met_ring();
  }
  const bool done = now || sequence < met.round;
  (void)pthread_mutex_unlock(&met.lock);
  return done ? OPIPE_OK : OPIPE_PENDING;
}

/* ---- the slots ---- */

static opipe_status collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                    opipe_collective **out_collective, opipe_error *err) {
  opipe_collective_params p = *params;
  uint32_t turned[8];
  for (uint32_t i = 0; i < p.n_ranks && i < 8; ++i)
    turned[i] = p.ranks[p.n_ranks - 1 - i];
  if (seeded("collective-without-object"))
    return OPIPE_OK;
  if (seeded("collective-leaks"))
    lose_memory();
  if (seeded("collect-falling"))
    p.ranks = turned;
  if (seeded("collect-regions-any"))
    p.n_regions = 64;
  const opipe_status status = real.collective_open(endpoint, &p, out_collective, err);
  for (uint32_t i = 0; i < p.n_ranks && status == OPIPE_OK && p.id == 7 && i < MET; ++i) {
    if (p.ranks[i] < MET && endpoints[p.ranks[i]] == endpoint) {
      met.groups[i] = *out_collective;
      met.endpoints[i] = endpoint;
      met.round = met.n_given = 0;
      memset(met.gave, 0, sizeof met.gave);
      memset(met.taken, 0, sizeof met.taken);
    }
  }
  return status;
}

/* The last region of the thread's last `to`. */
static _Thread_local opipe_region collected;

static opipe_status collect(opipe_collective *collective, uint64_t sequence,
                            const opipe_collect *what, opipe_error *err) {
  static _Thread_local opipe_region turned[MET_REGIONS];
  static _Thread_local uint64_t parts[MET];
  opipe_collect c = *what;
  if (c.n_to != 0)
    collected = c.to[c.n_to - 1];
  if (meets_itself())
    return collect_itself(collective, sequence, &c);
  if (seeded("collect-ready-ignored"))
    c.ready = NULL;
  if (seeded("collect-done-ignored"))
    c.done = NULL;
  for (uint32_t i = 0; i < c.n_from && i < MET_REGIONS; ++i)
    turned[i] = c.from[c.n_from - 1 - i];
  if (seeded("collect-regions-turned") && c.n_from <= MET_REGIONS)
    c.from = turned;
  if (seeded("collect-parts-turned") && c.kind == OPIPE_COLLECT_ALL_REDUCE && c.n_from == 1) {
    memcpy(parts, (const uint64_t[]){0, 0, c.from[0].n_bytes / 4}, sizeof parts);
    c.kind = OPIPE_COLLECT_REDUCE_SCATTER; /* only the last member gets the sums */
    c.parts = parts;
  }
  const opipe_status status = real.collect(collective, sequence, &c, err);
  if (seeded("collect-of-strings") && status == OPIPE_E_UNSUPPORTED)
    return OPIPE_OK;
  if (seeded("collect-of-any-size") && status == OPIPE_E_INVALID)
    return OPIPE_OK;
  if (seeded("collect-any-number") && status == OPIPE_E_STATE)
    return OPIPE_OK;
  if (seeded("collect-allocates"))
    host->realloc(host->ctx, host->realloc(host->ctx, NULL, 0, 8, 8), 8, 0, 8);
  return status;
}

static opipe_status collect_test(opipe_collective *collective, uint64_t sequence,
                                 opipe_error *err) {
  static _Thread_local uint32_t n_calls;
  if (meets_itself())
    return collect_test_itself(collective, sequence);
  const opipe_status status = deaf(real.collect_test(collective, sequence, err), err);
  if (status == OPIPE_OK && seeded("collect-bit") && endpoints[1] != NULL && collected.n_bytes > 8)
    ((unsigned char *)opipe_host_at(&collected))[0] ^= 1;
  if (status == OPIPE_OK && seeded("collect-beyond"))
    ((unsigned char *)opipe_host_at(&collected))[collected.n_bytes] = 0;
  if (status == OPIPE_OK && seeded("collect-unsteady") && ++n_calls % 2 == 0)
    return OPIPE_PENDING;
  if (seeded("collect-unlike") && status == OPIPE_E_INVALID)
    return OPIPE_OK;
  return status == OPIPE_PENDING && seeded("collect-early") ? OPIPE_OK : status;
}

#endif /* CONFORMANCE_SEEDED_COLLECTS_BODY_H */
