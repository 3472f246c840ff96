/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over tensor groups in the reference: a plain loop over the members, in host memory, by the
 * rule of transport.h: from member 0's values on in rising order, double in double, all other types
 * in float, rounded once.
 */
#include <string.h>

#include "loader/base/halves.h"
#include "runtime/executor/steps.h"

typedef struct plain {
  opi_compiled *t;
  const opi_list_meeting *meeting;
  const opi_group_value *value;
  uint64_t size; /* of an element */
  opipe_error *err;
} plain;

/* Moves the cell of member m between its rank and the host. */
static opipe_status move(const plain *p, uint32_t m, uint32_t cell, char *data, bool in) {
  opi_rank *rank = &p->t->setup->ranks[p->meeting->ranks[m]];
  opipe_region region;
  if (cell == OPIPE_NONE)
    return OPIPE_OK;
  region = opi_cell_region(p->t, cell, p->meeting->microbatch);
  if (region.n_bytes == 0)
    return OPIPE_OK;
  OPI_TRY(in ? OPI_ASK_RANK(rank, read, p->err, rank->queue, data, &region)
             : OPI_ASK_RANK(rank, write, p->err, rank->queue, &region, data));
  return opi_rank_sync(rank, p->err);
}

/* ---- values ---- */

static float float_at(const char *data, uint32_t dtype, uint64_t i) {
  uint16_t half;
  float value;
  if (dtype == OPIPE_FLOAT) {
    memcpy(&value, data + i * sizeof value, sizeof value);
    return value;
  }
  memcpy(&half, data + i * sizeof half, sizeof half);
  return dtype == OPIPE_BFLOAT16 ? opi_bfloat_to_float(half) : opi_half_to_float(half);
}

static void put_float(char *data, uint32_t dtype, uint64_t i, float value) {
  const uint16_t half = dtype == OPIPE_BFLOAT16  ? opi_bfloat_of(value)
                        : dtype == OPIPE_FLOAT16 ? opi_half_of(value)
                                                 : 0;
  if (dtype == OPIPE_FLOAT)
    memcpy(data + i * sizeof value, &value, sizeof value);
  else
    memcpy(data + i * sizeof half, &half, sizeof half);
}

static void add(const plain *p, const char *part, uint64_t n, bool first) {
  const uint32_t dtype = p->value->dtype;
  if (dtype == OPIPE_DOUBLE) {
    double *sums = (double *)(void *)p->t->meets.sums;
    for (uint64_t i = 0; i < n; ++i) {
      double value;
      memcpy(&value, part + i * sizeof value, sizeof value);
      sums[i] = first ? value : sums[i] + value;
    }
    return;
  }
  float *sums = (float *)(void *)p->t->meets.sums;
  for (uint64_t i = 0; i < n; ++i)
    sums[i] = first ? float_at(part, dtype, i) : sums[i] + float_at(part, dtype, i);
}

static void round_sums(const plain *p, char *out, uint64_t n) {
  const float *sums = (const float *)(const void *)p->t->meets.sums;
  if (p->value->dtype == OPIPE_DOUBLE) {
    memcpy(out, p->t->meets.sums, (size_t)n * sizeof(double));
    return;
  }
  for (uint64_t i = 0; i < n; ++i)
    put_float(out, p->value->dtype, i, sums[i]);
}

/* ---- parts ---- */

/* Copies member m's part into the whole, or out of it. */
static void move_part(const plain *p, uint32_t m, bool into) {
  const opi_group_value *v = p->value;
  const uint64_t unit = v->inner * p->size;
  uint64_t first = 0, row = 0;
  for (uint32_t k = 0; k < p->meeting->n_ranks; ++k) {
    first += k < m ? (uint64_t)v->parts[k] * unit : 0;
    row += (uint64_t)v->parts[k] * unit;
  }
  const size_t n_bytes = (size_t)((uint64_t)v->parts[m] * unit);
  for (uint64_t o = 0; o < v->outer && n_bytes != 0; ++o) {
    char *whole = p->t->meets.whole + o * row + first, *part = p->t->meets.part + o * n_bytes;
    memcpy(into ? whole : part, into ? part : whole, n_bytes);
  }
}

static opipe_status sum_value(const plain *p) {
  const opi_group_value *v = p->value;
  opi_meets *meets = &p->t->meets;
  const uint64_t n = opi_meet_values(p->meeting, v);
  const bool gathers = v->kind == OPI_COLLECTIVE_GATHER;
  for (uint32_t m = 0; m < p->meeting->n_ranks; ++m) {
    OPI_TRY(move(p, m, v->in_cell[m], gathers ? meets->part : meets->whole, true));
    if (gathers)
      move_part(p, m, true);
    else
      add(p, meets->whole, n, m == 0);
  }
  if (!gathers)
    round_sums(p, meets->whole, n);
  for (uint32_t m = 0; m < p->meeting->n_ranks; ++m) {
    if (v->kind == OPI_COLLECTIVE_SCATTER)
      move_part(p, m, false);
    OPI_TRY(move(p, m, v->out_cell[m],
                 v->kind == OPI_COLLECTIVE_SCATTER ? meets->part : meets->whole, false));
  }
  return OPIPE_OK;
}

opipe_status opi_plain_sum(opi_compiled *t, uint32_t meeting, opipe_error *err) {
  const opi_list_meeting *m = &t->lists->meetings[meeting];
  for (uint32_t i = 0; i < m->n_values; ++i) {
    const plain p = {.t = t,
                     .meeting = m,
                     .value = &m->values[i],
                     .size = opi_dtype_bits(m->values[i].dtype) / 8,
                     .err = err};
    OPI_TRY(sum_value(&p));
  }
  return OPIPE_OK;
}
