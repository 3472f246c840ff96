/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions and collects by direct exchange. Every member has a segment of the values: of an
 * all-reduce an equal share of the blocks, else its part. It gets the others' values of its
 * segment, piece by piece, adds them from member 0 on in their order, so that the bits do not
 * depend on who came when, and gives the sums to the others; of a reduce-scatter it keeps them; of
 * an all-gather it gives its part. Each round begins with a head, by which members see that they
 * have come to the same. An all-reduce is a collect of one region.
 */
#include "ucx.h"

typedef struct head {
  uint32_t kind, dtype;
  uint64_t n_values, sequence;
  uint64_t parts[]; /* [n] but of an all-reduce */
} head;

static uint64_t size_of(const opipe_group *g) {
  return opipe_collect_size(g->round.what.kind, g->round.what.dtype);
}

static bool adds(const opipe_group *g) {
  return g->round.what.kind != OPIPE_COLLECT_ALL_GATHER;
}

/* Are sums, or parts, given to the others? */
static bool gives(const opipe_group *g) {
  return g->round.what.kind != OPIPE_COLLECT_REDUCE_SCATTER;
}

static opipe_part segment_of(const opipe_group *g, uint32_t m) {
  if (g->round.what.kind != OPIPE_COLLECT_ALL_REDUCE)
    return opipe_collect_part(&g->round.what, m, g->round.n_values);
  const uint64_t n_blocks = (g->round.n_values + OPIPE_SUM_BLOCK - 1) / OPIPE_SUM_BLOCK;
  const uint64_t whole = n_blocks / g->n, rest = n_blocks % g->n;
  const uint64_t begin = (whole * m + rest * m / g->n) * OPIPE_SUM_BLOCK;
  uint64_t limit = (whole * (m + 1) + rest * (m + 1) / g->n) * OPIPE_SUM_BLOCK;
  limit = limit < g->round.n_values ? limit : g->round.n_values;
  return (opipe_part){begin, limit > begin ? limit - begin : 0};
}

static uint64_t count_pieces(const opipe_group *g, uint32_t m) {
  const uint64_t most = g->piece_bytes / size_of(g);
  return (segment_of(g, m).n + most - 1) / most;
}

/* Values of piece k of member m's segment. */
static opipe_part piece_of(const opipe_group *g, uint32_t m, uint64_t k) {
  const opipe_part segment = segment_of(g, m);
  const uint64_t most = g->piece_bytes / size_of(g), at = k * most;
  const uint64_t left = segment.n - at;
  return (opipe_part){segment.first + at, left < most ? left : most};
}

/* ---- heads ---- */

static void say_head(opipe_group *g, uint32_t m, char *place) {
  head *h = (head *)(void *)place;
  const uint64_t n = g->round.what.parts == NULL ? 0 : g->n;
  h->kind = g->round.what.kind;
  h->dtype = g->round.what.dtype;
  h->n_values = g->round.n_values;
  h->sequence = g->round.begun;
  if (n != 0)
    memcpy(h->parts, g->round.what.parts, n * sizeof *h->parts);
  ucx_lane_send(g, m, sizeof *h + n * sizeof *h->parts);
}

/* Has the member come to the same? */
static opipe_status agree(const opipe_group *g, uint32_t m, const char *data, uint64_t n_bytes,
                          opipe_error *err) {
  const head *h = (const head *)(const void *)data;
  opipe_collect_head other = {.rank = g->ranks[m]};
  const bool fits =
      n_bytes >= sizeof *h && h->sequence == g->round.begun &&
      n_bytes == sizeof *h + (h->kind == OPIPE_COLLECT_ALL_REDUCE ? 0 : g->n * sizeof *h->parts);
  if (!fits) {
    return opipe_fail(
        err, OPIPE_E_PEER, "round %llu: rank %u sends %llu bytes that are no head of it",
        (unsigned long long)(g->round.begun - 1), other.rank, (unsigned long long)n_bytes);
  }
  other.kind = h->kind;
  other.dtype = h->dtype;
  other.n_values = h->n_values;
  other.parts = h->parts;
  return machine_round_agree(&g->round, &other, err);
}

/* ---- pieces ---- */

static void give_values(opipe_group *g, uint32_t m, char *place) {
  const opipe_part piece = piece_of(g, m, g->members[m].sent);
  const uint64_t size = size_of(g);
  opipe_cursor_get(&g->round.from, piece.first * size, place, piece.n * size);
  ucx_lane_send(g, m, piece.n * size);
  ++g->members[m].sent;
}

/* Sums, or a part, of member m. */
static opipe_status take_sums(opipe_group *g, uint32_t m, const char *data, uint64_t n_bytes,
                              opipe_error *err) {
  const opipe_part piece = piece_of(g, m, g->members[m].come);
  const uint64_t size = size_of(g);
  if (n_bytes != piece.n * size) {
    return opipe_fail(err, OPIPE_E_PEER,
                      "round %llu: a piece of rank %u has %llu bytes, expected are %llu",
                      (unsigned long long)(g->round.begun - 1), g->ranks[m],
                      (unsigned long long)n_bytes, (unsigned long long)(piece.n * size));
  }
  opipe_cursor_put(&g->round.to, piece.first * size, data, n_bytes);
  ucx_lane_taken(g, m, UCX_SUMS);
  ++g->members[m].come;
  return OPIPE_OK;
}

/* Have all others' values of the next piece come? */
static opipe_status has_values(const opipe_group *g, uint64_t n_bytes, opipe_error *err) {
  for (uint32_t m = 0; m < g->n; ++m) {
    uint64_t n = 0;
    if (m == g->round.index)
      continue;
    if (ucx_lane_look(g, m, UCX_VALUES, &n) == NULL)
      return OPIPE_PENDING;
    if (n != n_bytes) {
      return opipe_fail(err, OPIPE_E_PEER,
                        "round %llu: values of rank %u have %llu bytes, expected are %llu",
                        (unsigned long long)(g->round.begun - 1), g->ranks[m],
                        (unsigned long long)n, (unsigned long long)n_bytes);
    }
  }
  return OPIPE_OK;
}

/* Is there a place for the next sums, that all have been given before? */
static bool has_place(const opipe_group *g) {
  const uint64_t number = g->base + g->added;
  for (uint32_t m = 0; m < g->n && gives(g); ++m) {
    const ucx_member *member = &g->members[m];
    if (m != g->round.index && (number - member->n_sums >= UCX_WINDOW ||
                                ucx_is_pending(&member->sums[number % UCX_WINDOW])))
      return false;
  }
  return true;
}

static void add_values(opipe_group *g, opipe_part piece, char *out) {
  const uint64_t size = size_of(g);
  uint64_t own[OPIPE_SUM_BLOCK];
  opipe_sum sum;
  for (uint64_t at = 0; at < piece.n; at += OPIPE_SUM_BLOCK) {
    const uint64_t block = OPIPE_SUM_BLOCK, n = piece.n - at < block ? piece.n - at : block;
    for (uint32_t m = 0; m < g->n; ++m) {
      uint64_t n_bytes = 0;
      const char *values = (const char *)own;
      if (m == g->round.index)
        opipe_cursor_get(&g->round.from, (piece.first + at) * size, own, n * size);
      else
        values = ucx_lane_look(g, m, UCX_VALUES, &n_bytes) + at * size;
      opipe_sum_add(&sum, g->round.what.dtype, values, 0, n, m == 0);
    }
    opipe_sum_round(&sum, g->round.what.dtype, out + at * size, n);
  }
}

/* The next piece of the own segment, into a place from which it is given, and to the own list. */
static opipe_status add_piece(opipe_group *g, opipe_error *err) {
  const opipe_part piece = piece_of(g, g->round.index, g->added);
  const uint64_t size = size_of(g), segment = segment_of(g, g->round.index).first;
  char *out = g->room.sums[(g->base + g->added) % UCX_WINDOW];
  const opipe_status status = adds(g) ? has_values(g, piece.n * size, err) : OPIPE_OK;
  if (status != OPIPE_OK)
    return status;
  if (adds(g))
    add_values(g, piece, out);
  else
    opipe_cursor_get(&g->round.from, (piece.first - segment) * size, out, piece.n * size);
  for (uint32_t m = 0; m < g->n && adds(g); ++m) {
    if (m != g->round.index)
      ucx_lane_taken(g, m, UCX_VALUES);
  }
  opipe_cursor_put(&g->round.to, (gives(g) ? piece.first : piece.first - segment) * size, out,
                   piece.n * size);
  ++g->added;
  return OPIPE_OK;
}

/* ---- a round ---- */

static bool all_are(const opipe_group *g, bool agreed) {
  for (uint32_t m = 0; m < g->n; ++m) {
    const ucx_member *member = &g->members[m];
    if (m != g->round.index && !(agreed ? member->agreed : member->said))
      return false;
  }
  return true;
}

/* One step with each of a member's messages. OK: something moved. */
static opipe_status go_on_with(opipe_group *g, uint32_t m, opipe_error *err) {
  ucx_member *member = &g->members[m];
  uint64_t n_bytes = 0;
  opipe_status done = OPIPE_PENDING;
  char *place = ucx_lane_place(g, m);
  if (place != NULL && !member->said) {
    say_head(g, m, place);
    member->said = true;
    done = OPIPE_OK;
  } else if (place != NULL && adds(g) && member->sent < count_pieces(g, m)) {
    give_values(g, m, place);
    done = OPIPE_OK;
  }
  const char *data =
      member->agreed || !all_are(g, false) ? NULL : ucx_lane_look(g, m, UCX_VALUES, &n_bytes);
  if (data != NULL) {
    done = agree(g, m, data, n_bytes, err);
    if (done < 0)
      return done;
    ucx_lane_taken(g, m, UCX_VALUES);
    member->agreed = true;
  }
  data = member->agreed && gives(g) && member->come < count_pieces(g, m)
             ? ucx_lane_look(g, m, UCX_SUMS, &n_bytes)
             : NULL;
  if (data != NULL) {
    done = take_sums(g, m, data, n_bytes, err);
    if (done < 0)
      return done;
  }
  if (gives(g) && member->given < g->added && ucx_sums_free(g, m)) {
    ucx_sums_send(g, m, piece_of(g, g->round.index, member->given).n * size_of(g));
    ++member->given;
    done = OPIPE_OK;
  }
  return done;
}

static opipe_status go_on(opipe_group *g, opipe_error *err) {
  bool moved = true;
  while (moved) {
    moved = false;
    for (uint32_t m = 0; m < g->n; ++m) {
      const opipe_status status = m == g->round.index ? OPIPE_PENDING : go_on_with(g, m, err);
      if (status < 0)
        return status;
      moved = moved || status == OPIPE_OK;
    }
    if (g->added < count_pieces(g, g->round.index) && all_are(g, true) && has_place(g)) {
      const opipe_status status = add_piece(g, err);
      if (status < 0)
        return status;
      moved = moved || status == OPIPE_OK;
    }
  }
  return OPIPE_OK;
}

static bool is_over(const opipe_group *g) {
  const uint64_t own = count_pieces(g, g->round.index);
  if (g->added < own || !all_are(g, true))
    return false;
  for (uint32_t m = 0; m < g->n; ++m) {
    const ucx_member *member = &g->members[m];
    const uint64_t its = m == g->round.index ? 0 : count_pieces(g, m);
    if (m != g->round.index && ((adds(g) && member->sent < its) ||
                                (gives(g) && (member->come < its || member->given < own))))
      return false;
  }
  return true;
}

/* Begins the round, which was checked, when its values are there. */
static opipe_status begin(opipe_group *g, opipe_error *err) {
  const opipe_status status = machine_round_values(&g->round, &g->endpoint->unready, err);
  if (status != OPIPE_OK)
    return status;
  g->added = 0;
  for (uint32_t m = 0; m < g->n; ++m) {
    ucx_member *member = &g->members[m];
    member->said = member->agreed = false;
    member->sent = member->come = member->given = 0;
  }
  ++g->round.begun;
  return go_on(g, err);
}

static opipe_status finish(opipe_group *g, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = ucx_go_on(e, err);
  if (status < 0 || g->round.ended > sequence)
    return status;
  if (g->round.begun <= sequence)
    return OPIPE_PENDING;
  status = go_on(g, err);
  if (status < 0)
    return status;
  if (!is_over(g))
    return OPIPE_PENDING;
  status = machine_round_end(&g->round, err);
  if (g->round.ended > sequence)
    g->base += gives(g) ? g->added : 0;
  return status;
}

/* ---- the slots ---- */

static bool is_known(const opipe_group *g) {
  return g->by_ucx && g->n_known + 1 == g->n;
}

opipe_status ucx_all_reduce(opipe_group *g, uint64_t sequence, const opipe_region *region,
                            uint64_t n_elems, uint32_t dtype, opipe_event *ready, opipe_event *done,
                            opipe_error *err) {
  if (g->near != NULL)
    return shm_transport.all_reduce(g->near, sequence, region, n_elems, dtype, ready, done, err);
  opipe_status status = ucx_go_on(g->endpoint, err);
  if (status == OPIPE_OK)
    status = machine_round_reduce(&g->round, sequence, region, n_elems, dtype, ready, done, err);
  if (status != OPIPE_OK)
    return status;
  return is_known(g) ? begin(g, err) : OPIPE_PENDING;
}

opipe_status ucx_group_test(opipe_group *g, uint64_t sequence, opipe_error *err) {
  return g->near != NULL ? shm_transport.group_test(g->near, sequence, err)
                         : finish(g, sequence, err);
}

opipe_status ucx_collect(opipe_collective *collective, uint64_t sequence,
                         const opipe_collect *collect, opipe_error *err) {
  opipe_group *g = &collective->group;
  if (g->near_collective != NULL)
    return shm_transport.collect(g->near_collective, sequence, collect, err);
  opipe_status status = ucx_go_on(g->endpoint, err);
  if (status == OPIPE_OK)
    status = machine_round_collect(&g->round, sequence, collect, err);
  if (status != OPIPE_OK)
    return status;
  return is_known(g) ? begin(g, err) : OPIPE_PENDING;
}

opipe_status ucx_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err) {
  opipe_group *g = &collective->group;
  return g->near_collective != NULL ? shm_transport.collect_test(g->near_collective, sequence, err)
                                    : finish(g, sequence, err);
}
