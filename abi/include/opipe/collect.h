/* SPDX-License-Identifier: Apache-2.0 */
/* For writers of transports with collectives: checks, lists of regions as places in memory, sums by
 * the rule of transport.h. Header only, as helpers.h; nothing here is part of the ABI.
 *
 *   members   opipe_collective_check, opipe_collective_agree
 *   meetings  opipe_collect_check, opipe_collect_agree, opipe_collect_part; of both kinds of group:
 *             opipe_round_check, opipe_round_agree
 *   lists     opipe_span, opipe_cursor, opipe_cursor_move, _at, _get, _put
 *   sums      opipe_sum_size, opipe_sum_add, opipe_sum_round
 *   both      opipe_collect_share: a member's share of a meeting among members that see each
 *             other's memory
 *   devices   opipe_bounce_spans, opipe_bounce_read, opipe_bounce_write: through host memory
 *
 * Thread rule: functions work only on their arguments, and queue work of the backend where they are
 * given one.
 */
#ifndef OPIPE_COLLECT_H
#define OPIPE_COLLECT_H

#include "halves.h"
#include "helpers.h"
#include "transport.h"

#if OPIPE_TARGET_MINOR >= 5

#ifdef __cplusplus
extern "C" {
#endif

/* ---- members ---- */

/* Checks the params of a collective_open by `rank` of a world of n_ranks. *out_index: its place.
 * Errors: ABI, INVALID. */
static inline opipe_status opipe_collective_check(uint32_t rank, uint32_t n_ranks,
                                                  const opipe_collective_params *params,
                                                  uint32_t *out_index, opipe_error *err) {
  const unsigned long long id = params->id;
  uint32_t index = OPIPE_NONE;
  if (params->struct_size < OPIPE_END(opipe_collective_params, n_regions)) {
    return opipe_fail(err, OPIPE_E_ABI, "collective_open: struct_size %u is too small",
                      params->struct_size);
  }
  for (uint32_t i = 0; i < params->n_ranks; ++i) {
    if (params->ranks[i] >= n_ranks) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "collective_open: member %u of group %llu is rank %u: it must be below %u",
                        i, id, params->ranks[i], n_ranks);
    }
    for (uint32_t k = 0; k < i; ++k) {
      if (params->ranks[k] == params->ranks[i]) {
        return opipe_fail(err, OPIPE_E_INVALID,
                          "collective_open: members %u and %u of group %llu are rank %u", k, i, id,
                          params->ranks[i]);
      }
    }
    index = params->ranks[i] == rank ? i : index;
  }
  if (index == OPIPE_NONE) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "collective_open: rank %u is not among the %u members of group %llu", rank,
                      params->n_ranks, id);
  }
  if (params->n_bytes > PTRDIFF_MAX || params->n_regions == 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "collective_open: group %llu has lists of %llu bytes in %u regions", id,
                      (unsigned long long)params->n_bytes, params->n_regions);
  }
  *out_index = index;
  return OPIPE_OK;
}

/* Checks that a member's params are those that its peers gave. Errors: INVALID. */
static inline opipe_status opipe_collective_agree(uint32_t rank,
                                                  const opipe_collective_params *params,
                                                  const uint32_t *ranks, uint32_t n,
                                                  uint64_t n_bytes, opipe_error *err) {
  const unsigned long long id = params->id;
  if (params->n_ranks != n || params->n_bytes != n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "collective_open: rank %u opens group %llu with %u members and %llu bytes, "
                      "its peers with %u members and %llu bytes",
                      rank, id, params->n_ranks, (unsigned long long)params->n_bytes, n,
                      (unsigned long long)n_bytes);
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (params->ranks[i] != ranks[i]) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "collective_open: rank %u says that member %u of group %llu is rank %u, "
                        "its peers that it is rank %u",
                        rank, i, id, params->ranks[i], ranks[i]);
    }
  }
  return OPIPE_OK;
}

/* ---- meetings ---- */

static inline const char *opipe_collect_name(uint32_t kind) {
  static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather"};
  return kind < OPIPE_COLLECT_KINDS ? names[kind] : "unknown";
}

/* Bytes of one value of a type that can be added; 0: it cannot. */
static inline uint32_t opipe_sum_size(uint32_t dtype) {
  switch (dtype) {
    case OPIPE_DOUBLE:
    case OPIPE_FLOAT:
    case OPIPE_FLOAT16:
    case OPIPE_BFLOAT16:
      return opipe_dtype_bits(dtype) / 8;
    default:
      return 0;
  }
}

/* Bytes of one value that a collect of this kind can have; 0: it cannot. */
static inline uint32_t opipe_collect_size(uint32_t kind, uint32_t dtype) {
  const uint32_t bits = opipe_dtype_bits(dtype);
  if (kind != OPIPE_COLLECT_ALL_GATHER)
    return opipe_sum_size(dtype);
  return bits % 8 == 0 ? bits / 8 : 0;
}

/* Values of a list. Errors: INVALID: too long for the group, or a region that cuts a value. */
static inline opipe_status opipe_list_values(const opipe_collective_params *group, const char *what,
                                             const opipe_region *list, uint32_t n, uint32_t size,
                                             uint64_t *out_n, opipe_error *err) {
  uint64_t n_bytes = 0;
  if (n > group->n_regions) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "collect: `%s` has %u regions, group %llu was opened for %u", what, n,
                      (unsigned long long)group->id, group->n_regions);
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (list[i].n_bytes % size != 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "collect: region %u of `%s` has %llu bytes, a value has %u", i, what,
                        (unsigned long long)list[i].n_bytes, size);
    }
    if (list[i].n_bytes > group->n_bytes - n_bytes) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "collect: `%s` has %llu bytes or more, group %llu was opened for %llu",
                        what, (unsigned long long)n_bytes + list[i].n_bytes,
                        (unsigned long long)group->id, (unsigned long long)group->n_bytes);
    }
    n_bytes += list[i].n_bytes;
  }
  *out_n = n_bytes / size;
  return OPIPE_OK;
}

/* A part: `n` values from value `first` on. */
typedef struct opipe_part {
  uint64_t first, n;
} opipe_part;

/* Member m's part of a meeting of n_values; of an all-reduce all. */
static inline opipe_part opipe_collect_part(const opipe_collect *c, uint32_t m, uint64_t n_values) {
  opipe_part part = {0, n_values};
  if (c->kind == OPIPE_COLLECT_ALL_REDUCE)
    return part;
  for (uint32_t i = 0; i < m; ++i)
    part.first += c->parts[i];
  part.n = c->parts[m];
  return part;
}

static inline opipe_status opipe_collect_totals(const opipe_collective_params *group,
                                                const opipe_collect *c, uint32_t index,
                                                const uint64_t given[2], uint64_t *out_values,
                                                opipe_error *err) {
  uint64_t n = given[0];
  if (c->kind != OPIPE_COLLECT_ALL_REDUCE) {
    n = 0;
    for (uint32_t i = 0; i < group->n_ranks; ++i) {
      if (c->parts[i] > UINT64_MAX - n)
        return opipe_fail(err, OPIPE_E_INVALID, "collect: parts of more than 2^64 values");
      n += c->parts[i];
    }
  }
  const uint64_t own = opipe_collect_part(c, index, n).n;
  const uint64_t wanted[2] = {c->kind == OPIPE_COLLECT_ALL_GATHER ? own : n,
                              c->kind == OPIPE_COLLECT_REDUCE_SCATTER ? own : n};
  for (int i = 0; i < 2; ++i) {
    if (given[i] != wanted[i]) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "collect: `%s` of member %u of group %llu has %llu values, its %s has %llu",
                        i == 0 ? "from" : "to", index, (unsigned long long)group->id,
                        (unsigned long long)given[i], opipe_collect_name(c->kind),
                        (unsigned long long)wanted[i]);
    }
  }
  *out_values = n;
  return OPIPE_OK;
}

/* Checks what member `index` asks of a group that was opened with `group`. *out_values: all parts
 * together. Errors: ABI, INVALID, UNSUPPORTED. */
static inline opipe_status opipe_collect_check(const opipe_collective_params *group, uint32_t index,
                                               const opipe_collect *c, uint64_t *out_values,
                                               opipe_error *err) {
  uint64_t given[2] = {0, 0};
  if (c->struct_size < OPIPE_END(opipe_collect, done))
    return opipe_fail(err, OPIPE_E_ABI, "collect: struct_size %u is too small", c->struct_size);
  if (c->kind >= OPIPE_COLLECT_KINDS)
    return opipe_fail(err, OPIPE_E_INVALID, "collect: unknown kind %u", c->kind);
  const uint32_t size = opipe_collect_size(c->kind, c->dtype);
  if (size == 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "collect: %s of %s: %s",
                      opipe_collect_name(c->kind), opipe_dtype_name(c->dtype),
                      c->kind == OPIPE_COLLECT_ALL_GATHER
                          ? "values of whole bytes are gathered"
                          : "float64, float32, float16 and bfloat16 are added");
  }
  if ((c->parts == NULL) != (c->kind == OPIPE_COLLECT_ALL_REDUCE)) {
    return opipe_fail(err, OPIPE_E_INVALID, "collect: an %s with%s parts",
                      opipe_collect_name(c->kind), c->parts == NULL ? "out" : "");
  }
  opipe_status status = opipe_list_values(group, "from", c->from, c->n_from, size, &given[0], err);
  if (status >= 0)
    status = opipe_list_values(group, "to", c->to, c->n_to, size, &given[1], err);
  return status < 0 ? status : opipe_collect_totals(group, c, index, given, out_values, err);
}

/* Which collect a member has come to. */
typedef struct opipe_collect_head {
  uint32_t rank, kind, dtype, reserved;
  uint64_t n_values;
  const uint64_t *parts; /* [n members] or NULL */
} opipe_collect_head;

/* Checks that two members have come to the same. Errors: INVALID. */
static inline opipe_status opipe_collect_agree(uint64_t id, uint64_t sequence, uint32_t n,
                                               const opipe_collect_head *a,
                                               const opipe_collect_head *b, opipe_error *err) {
  if (a->kind != b->kind || a->dtype != b->dtype || a->n_values != b->n_values) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "collect %llu of group %llu: rank %u comes to an %s of %llu %s, rank %u to "
                      "an %s of %llu %s",
                      (unsigned long long)sequence, (unsigned long long)id, a->rank,
                      opipe_collect_name(a->kind), (unsigned long long)a->n_values,
                      opipe_dtype_name(a->dtype), b->rank, opipe_collect_name(b->kind),
                      (unsigned long long)b->n_values, opipe_dtype_name(b->dtype));
  }
  for (uint32_t i = 0; i < n && a->kind != OPIPE_COLLECT_ALL_REDUCE; ++i) {
    if (a->parts[i] != b->parts[i]) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "collect %llu of group %llu: part %u has %llu values for rank %u, %llu for "
                        "rank %u",
                        (unsigned long long)sequence, (unsigned long long)id, i,
                        (unsigned long long)a->parts[i], a->rank, (unsigned long long)b->parts[i],
                        b->rank);
    }
  }
  return OPIPE_OK;
}

/* The same for the round of either kind of group. collects: NULL of one that group_open opened,
 * whose rounds are all_reduce's. Errors: INVALID. */
static inline opipe_status opipe_round_agree(const opipe_collective_params *collects,
                                             uint64_t sequence, uint32_t n,
                                             const opipe_collect_head *a,
                                             const opipe_collect_head *b, opipe_error *err) {
  if (collects != NULL)
    return opipe_collect_agree(collects->id, sequence, n, a, b, err);
  if (a->n_values == b->n_values && a->dtype == b->dtype)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID,
                    "all_reduce round %llu: the members' counts or types differ; rank %u gave "
                    "%llu of %s, rank %u %llu of %s",
                    (unsigned long long)sequence, a->rank, (unsigned long long)a->n_values,
                    opipe_dtype_name(a->dtype), b->rank, (unsigned long long)b->n_values,
                    opipe_dtype_name(b->dtype));
}

/* Checks that round `sequence` is the next of a member that has begun and ended so many. A group
 * that collects has one at a time. collects: as above. Errors: STATE. */
static inline opipe_status opipe_round_check(const char *call,
                                             const opipe_collective_params *collects,
                                             uint64_t sequence, uint32_t rank, uint64_t begun,
                                             uint64_t ended, opipe_error *err) {
  if (begun != sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "%s: round %llu where rank %u is at round %llu", call,
                      (unsigned long long)sequence, rank, (unsigned long long)begun);
  }
  if (collects != NULL && ended != sequence) {
    return opipe_fail(err, OPIPE_E_STATE,
                      "%s: round %llu of group %llu while round %llu has not ended for rank %u",
                      call, (unsigned long long)sequence, (unsigned long long)collects->id,
                      (unsigned long long)ended, rank);
  }
  return OPIPE_OK;
}

/* ---- lists ---- */

/* A region in memory. */
typedef struct opipe_span {
  char *data;
  uint64_t n_bytes;
} opipe_span;

/* A place in a list; moving on is cheap. Set `spans` and `n`, the rest to 0. */
typedef struct opipe_cursor {
  const opipe_span *spans; /* [n] */
  uint32_t n, at;          /* at: a span */
  uint64_t first;          /* bytes before it */
} opipe_cursor;

/* Moves to byte `offset` of the list, which has *io_bytes there, not 0: *io_bytes is cut to those
 * that follow in the same span. Returns the place in span c->at. */
static inline uint64_t opipe_cursor_move(opipe_cursor *c, uint64_t offset, uint64_t *io_bytes) {
  if (offset < c->first)
    c->at = 0, c->first = 0;
  while (offset - c->first >= c->spans[c->at].n_bytes)
    c->first += c->spans[c->at++].n_bytes;
  const uint64_t within = offset - c->first, left = c->spans[c->at].n_bytes - within;
  *io_bytes = *io_bytes < left ? *io_bytes : left;
  return within;
}

/* The same; returns the address. */
static inline char *opipe_cursor_at(opipe_cursor *c, uint64_t offset, uint64_t *io_bytes) {
  const uint64_t within = opipe_cursor_move(c, offset, io_bytes);
  return c->spans[c->at].data + within;
}

/* Copies n_bytes from byte `offset` on out of the list, or into it. */
static inline void opipe_cursor_get(opipe_cursor *c, uint64_t offset, void *dst, uint64_t n_bytes) {
  for (uint64_t done = 0; done < n_bytes;) {
    uint64_t n = n_bytes - done;
    const char *src = opipe_cursor_at(c, offset + done, &n);
    if (src != (char *)dst + done)
      memmove((char *)dst + done, src, (size_t)n);
    done += n;
  }
}
static inline void opipe_cursor_put(opipe_cursor *c, uint64_t offset, const void *src,
                                    uint64_t n_bytes) {
  for (uint64_t done = 0; done < n_bytes;) {
    uint64_t n = n_bytes - done;
    char *dst = opipe_cursor_at(c, offset + done, &n);
    if (dst != (const char *)src + done)
      memmove(dst, (const char *)src + done, (size_t)n);
    done += n;
  }
}

/* ---- sums ---- */

enum { OPIPE_SUM_BLOCK = 512 }; /* values that are added at once, on the stack */

typedef union opipe_sum {
  float narrow[OPIPE_SUM_BLOCK]; /* of all types but float64 */
  double wide[OPIPE_SUM_BLOCK];
} opipe_sum;

/* sum[first ..] = (begins) or += the n values at `data`. first + n is at most OPIPE_SUM_BLOCK. */
static inline void opipe_sum_add(opipe_sum *sum, uint32_t dtype, const void *data, uint64_t first,
                                 uint64_t n, bool begins) {
  float *narrow = sum->narrow + first;
  double *wide = sum->wide + first;
  const uint16_t *halves = (const uint16_t *)data;
  if (begins && dtype == OPIPE_DOUBLE) {
    memcpy(wide, data, (size_t)n * sizeof *wide);
  } else if (begins && dtype == OPIPE_FLOAT) {
    memcpy(narrow, data, (size_t)n * sizeof *narrow);
  } else if (dtype == OPIPE_DOUBLE) {
    for (uint64_t i = 0; i < n; ++i)
      wide[i] += ((const double *)data)[i];
  } else if (dtype == OPIPE_FLOAT) {
    for (uint64_t i = 0; i < n; ++i)
      narrow[i] += ((const float *)data)[i];
  } else {
    for (uint64_t i = 0; i < n; ++i) {
      const float value =
          dtype == OPIPE_BFLOAT16 ? opipe_bf16_to_f32(halves[i]) : opipe_f16_to_f32(halves[i]);
      narrow[i] = begins ? value : narrow[i] + value;
    }
  }
}

/* The first n values of a sum in their type. */
static inline void opipe_sum_round(const opipe_sum *sum, uint32_t dtype, void *dst, uint64_t n) {
  uint16_t *halves = (uint16_t *)dst;
  if (dtype == OPIPE_DOUBLE) {
    memcpy(dst, sum->wide, (size_t)n * sizeof sum->wide[0]);
  } else if (dtype == OPIPE_FLOAT) {
    memcpy(dst, sum->narrow, (size_t)n * sizeof sum->narrow[0]);
  } else {
    for (uint64_t i = 0; i < n; ++i) {
      halves[i] = dtype == OPIPE_BFLOAT16 ? opipe_f32_to_bf16(sum->narrow[i])
                                          : opipe_f32_to_f16(sum->narrow[i]);
    }
  }
}

/* ---- members that see each other's memory ---- */

/* Values [begin, limit) of the lists from [n], added, to the lists to [n_to], in which they begin
 * at value to_begin. */
static inline void opipe_collect_sums(uint32_t dtype, opipe_cursor *from, uint32_t n,
                                      uint64_t begin, uint64_t limit, opipe_cursor *to,
                                      uint32_t n_to, uint64_t to_begin) {
  const uint64_t size = opipe_sum_size(dtype);
  opipe_sum sum;
  uint64_t rounded[OPIPE_SUM_BLOCK];
  for (uint64_t at = begin; at < limit; at += OPIPE_SUM_BLOCK) {
    const uint64_t block = OPIPE_SUM_BLOCK, n_values = limit - at < block ? limit - at : block;
    for (uint32_t m = 0; m < n; ++m) {
      for (uint64_t done = 0; done < n_values;) {
        uint64_t n_bytes = (n_values - done) * size;
        const char *data = opipe_cursor_at(&from[m], (at + done) * size, &n_bytes);
        opipe_sum_add(&sum, dtype, data, done, n_bytes / size, m == 0);
        done += n_bytes / size;
      }
    }
    opipe_sum_round(&sum, dtype, rounded, n_values);
    for (uint32_t m = 0; m < n_to; ++m)
      opipe_cursor_put(&to[m], (at - begin + to_begin) * size, rounded, n_values * size);
  }
}

/* Does member `index`'s work once all have come: in an all-reduce it adds a share of the blocks for
 * all members, of a reduce-scatter its part; of an all-gather it fetches all parts. When all
 * members have, the meeting is over. from, to [n]: cursors of its own over all members' lists. */
static inline void opipe_collect_share(const opipe_collect *c, uint32_t n, uint32_t index,
                                       uint64_t n_values, opipe_cursor *from, opipe_cursor *to) {
  const opipe_part own = opipe_collect_part(c, index, n_values);
  const uint64_t size = opipe_collect_size(c->kind, c->dtype);
  if (c->kind == OPIPE_COLLECT_REDUCE_SCATTER) {
    opipe_collect_sums(c->dtype, from, n, own.first, own.first + own.n, &to[index], 1, 0);
  } else if (c->kind == OPIPE_COLLECT_ALL_REDUCE) {
    const uint64_t n_blocks = (n_values + OPIPE_SUM_BLOCK - 1) / OPIPE_SUM_BLOCK;
    const uint64_t whole = n_blocks / n, rest = n_blocks % n;
    const uint64_t begin = (whole * index + rest * index / n) * OPIPE_SUM_BLOCK;
    const uint64_t limit = (whole * (index + 1) + rest * (index + 1) / n) * OPIPE_SUM_BLOCK;
    opipe_collect_sums(c->dtype, from, n, begin, limit < n_values ? limit : n_values, to, n, begin);
  } else {
    for (uint32_t m = 0; m < n; ++m) {
      const opipe_part part = opipe_collect_part(c, m, n_values);
      for (uint64_t done = 0; done < part.n * size;) {
        uint64_t n_bytes = part.n * size - done;
        const char *data = opipe_cursor_at(&from[m], done, &n_bytes);
        opipe_cursor_put(&to[index], part.first * size + done, data, n_bytes);
        done += n_bytes;
      }
    }
  }
}

/* ---- members whose values have no host address: through `bounce`, memory for all values ---- */

/* The member's lists as they lie in the bounce, one span each. */
static inline void opipe_bounce_spans(const opipe_collect *c, uint32_t index, uint64_t n_values,
                                      char *bounce, opipe_span *out_from, opipe_span *out_to) {
  const opipe_part own = opipe_collect_part(c, index, n_values);
  const uint64_t size = opipe_collect_size(c->kind, c->dtype);
  const opipe_span all = {bounce, n_values * size};
  const opipe_span part = {bounce + own.first * size, own.n * size};
  *out_from = c->kind == OPIPE_COLLECT_ALL_GATHER ? part : all;
  *out_to = c->kind == OPIPE_COLLECT_REDUCE_SCATTER ? part : all;
}

/* Queues the reads of `from` to there, behind `ready`, and records `moved`. */
static inline opipe_status opipe_bounce_read(const opipe_backend *backend, opipe_queue *queue,
                                             const opipe_collect *c, const opipe_span *from,
                                             opipe_event *moved, opipe_error *err) {
  char *at = from->data;
  opipe_status status = c->ready == NULL ? OPIPE_OK : backend->event_wait(queue, c->ready, err);
  for (uint32_t i = 0; i < c->n_from && status >= 0; ++i) {
    if (c->from[i].n_bytes != 0)
      status = backend->read(queue, at, &c->from[i], err);
    at += c->from[i].n_bytes;
  }
  return status < 0 ? status : backend->event_record(queue, moved, err);
}

/* Queues the writes of `to` from there, and records `moved`. */
static inline opipe_status opipe_bounce_write(const opipe_backend *backend, opipe_queue *queue,
                                              const opipe_collect *c, const opipe_span *to,
                                              opipe_event *moved, opipe_error *err) {
  const char *at = to->data;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < c->n_to && status >= 0; ++i) {
    if (c->to[i].n_bytes != 0)
      status = backend->write(queue, &c->to[i], at, err);
    at += c->to[i].n_bytes;
  }
  return status < 0 ? status : backend->event_record(queue, moved, err);
}

#ifdef __cplusplus
}
#endif
#endif
#endif /* OPIPE_COLLECT_H */
