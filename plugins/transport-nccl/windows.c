/* SPDX-License-Identifier: Apache-2.0 */
/* A round's work, window by window of its values. A member may cut its lists into regions as it
 * likes, the others do not know how: so windows and calls follow from the values and the parts
 * alone, and what lies in several regions goes through the scratch, in the lane's order.
 *
 *   groups of one region   one window: no list is cut
 *   others                 windows of NCCL_SCRATCH bytes
 *   calls of a window      an all-reduce; or for each part in it a reduce to, a broadcast from its
 *                          member; of equal parts in one window a reduce-scatter, an all-gather
 */
#include "world.h"

/* A piece of a window with one call: values [first, first + n) of all, of one member's part. */
typedef struct piece {
  uint32_t member;
  uint64_t first, n;
} piece;

enum { PIECES_MOST = OPIPE_BATCH_MOST };

uint64_t nccl_window_bytes(const opipe_group *g) {
  return g->round.params.n_regions > 1 ? NCCL_SCRATCH : 0;
}

static uint64_t size_of(const opipe_group *g) {
  return opipe_collect_size(g->round.what.kind, g->round.what.dtype);
}

static bool gathers(const opipe_group *g) {
  return g->round.what.kind == OPIPE_COLLECT_ALL_GATHER;
}

/* Which type, and how many of it a value has. */
static ncclDataType_t type_of(const opipe_group *g, uint64_t *out_each) {
  *out_each = 1;
  if (gathers(g)) {
    *out_each = size_of(g);
    return NCCL_BYTES;
  }
  switch (g->round.what.dtype) {
    case OPIPE_DOUBLE:
      return NCCL_FLOAT64;
    case OPIPE_FLOAT16:
      return NCCL_FLOAT16;
    case OPIPE_BFLOAT16:
      return NCCL_BFLOAT16;
    default:
      return NCCL_FLOAT32;
  }
}

/* ---- windows and their pieces: alike on all members ---- */

/* Calls fn for each piece from value `first` on; the values behind the last. */
static uint64_t walk(const opipe_group *g, uint64_t first,
                     opipe_status (*fn)(const opipe_group *g, const piece *p, opipe_error *err),
                     opipe_status *io_status, opipe_error *err) {
  const opipe_collect *what = &g->round.what;
  const uint64_t room = nccl_window_bytes(g) / size_of(g), n = g->round.n_values;
  const uint64_t limit = room != 0 && n - first > room ? first + room : n;
  uint32_t n_pieces = 0;
  uint64_t at = first;
  if (what->kind == OPIPE_COLLECT_ALL_REDUCE) {
    const piece all = {0, first, limit - first};
    if (fn != NULL && *io_status >= 0)
      *io_status = fn(g, &all, err);
    return limit;
  }
  opipe_part part = {0, 0};
  for (uint32_t m = 0; m < g->n && at < limit && n_pieces < PIECES_MOST; ++m) {
    part = (opipe_part){part.first + part.n, what->parts[m]};
    if (part.first + part.n <= at)
      continue;
    const uint64_t end = part.first + part.n < limit ? part.first + part.n : limit;
    const piece p = {m, at, end - at};
    if (fn != NULL && *io_status >= 0)
      *io_status = fn(g, &p, err);
    ++n_pieces;
    at = end;
  }
  return at;
}

/* Has every member an equal part, whole in one window, in the communicator's order? */
static bool is_even(const opipe_group *g) {
  const opipe_collect *what = &g->round.what;
  bool even = g->sorted && nccl_window_bytes(g) == 0 && what->kind != OPIPE_COLLECT_ALL_REDUCE;
  for (uint32_t m = 1; m < g->n && even; ++m)
    even = what->parts[m] == what->parts[0];
  return even;
}

/* ---- places ---- */

/* Where values [first, first + n) of a list lie in one region; 0: they do not. */
static uint64_t direct(const opipe_group *g, bool to, uint64_t first, uint64_t n) {
  const opipe_span *spans = g->round.spans + (to ? g->round.params.n_regions : 0);
  opipe_cursor cursor = {.spans = spans, .n = to ? g->round.what.n_to : g->round.what.n_from};
  const uint64_t wanted = n * size_of(g);
  uint64_t n_bytes = wanted;
  const char *data = opipe_cursor_at(&cursor, first * size_of(g), &n_bytes);
  return n_bytes == wanted ? (uint64_t)(uintptr_t)data : 0;
}

static uint64_t scratch_of(const opipe_group *g, uint64_t first) {
  return g->endpoint->own.scratch + (first - g->first) * size_of(g);
}

/* Copies values of a list to the scratch, or back. */
static opipe_status pack(const opipe_group *g, bool to, uint64_t list_first, uint64_t first,
                         uint64_t n, opipe_error *err) {
  const opipe_endpoint *e = g->endpoint;
  const opipe_region *list = to ? g->round.what.to : g->round.what.from;
  const opipe_span *spans = g->round.spans + (to ? g->round.params.n_regions : 0);
  opipe_cursor cursor = {.spans = spans, .n = to ? g->round.what.n_to : g->round.what.n_from};
  const uint64_t size = size_of(g);
  opipe_status status = OPIPE_OK;
  for (uint64_t done = 0; done < n * size && status >= 0;) {
    uint64_t n_bytes = n * size - done;
    const uint64_t within = opipe_cursor_move(&cursor, list_first * size + done, &n_bytes);
    const opipe_region *region = &list[cursor.at];
    const opipe_region home = {region->buffer, region->offset_bytes + within, n_bytes};
    const opipe_region away = {e->own.scratch_buffer, (first - g->first) * size + done, n_bytes};
    status = to ? e->backend->copy(e->lane, &home, &away, err)
                : e->backend->copy(e->lane, &away, &home, err);
    done += n_bytes;
  }
  return status;
}

/* The value of a member's own list at which piece `p` begins; false: it has nothing of it. */
static bool own_first(const opipe_group *g, const piece *p, bool to, uint64_t *out_first) {
  const opipe_collect *what = &g->round.what;
  const bool parted = what->kind == OPIPE_COLLECT_ALL_REDUCE ? false : to != gathers(g);
  *out_first = p->first;
  if (!parted)
    return true;
  *out_first = p->first - opipe_collect_part(what, p->member, g->round.n_values).first;
  return p->member == g->round.index;
}

/* ---- a window ---- */

static opipe_status pack_piece(const opipe_group *g, const piece *p, opipe_error *err) {
  uint64_t first = 0;
  if (!own_first(g, p, false, &first) || direct(g, false, first, p->n) != 0)
    return OPIPE_OK;
  return pack(g, false, first, p->first, p->n, err);
}

static opipe_status unpack_piece(const opipe_group *g, const piece *p, opipe_error *err) {
  uint64_t first = 0;
  if (!own_first(g, p, true, &first) || direct(g, true, first, p->n) != 0)
    return OPIPE_OK;
  return pack(g, true, first, p->first, p->n, err);
}

/* The address of a piece in a list, or in the scratch; NULL: the member has nothing of it. */
static void *place_of(const opipe_group *g, const piece *p, bool to) {
  uint64_t first = 0;
  if (!own_first(g, p, to, &first))
    return NULL;
  const uint64_t address = direct(g, to, first, p->n);
  return (void *)(uintptr_t)(address != 0 ? address : scratch_of(g, p->first));
}

static opipe_status call_piece(const opipe_group *g, const piece *p, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  const nccl_calls *nccl = &e->world->library->nccl;
  const nccl_comm *comm = g->comm;
  uint64_t each = 1;
  const ncclDataType_t type = type_of(g, &each);
  const void *from = place_of(g, p, false);
  void *to = place_of(g, p, true);
  const int root = (int)g->roots[p->member];
  const size_t n = (size_t)(p->n * each);
  if (g->round.what.kind == OPIPE_COLLECT_ALL_REDUCE) {
    return nccl_fine(e, comm, "ncclAllReduce",
                     nccl->all_reduce(from, to, n, type, NCCL_ADD, comm->comm, e->stream), err);
  }
  if (gathers(g)) {
    return nccl_fine(e, comm, "ncclBroadcast",
                     nccl->broadcast(from, to, n, type, root, comm->comm, e->stream), err);
  }
  return nccl_fine(e, comm, "ncclReduce",
                   nccl->reduce(from, to, n, type, NCCL_ADD, root, comm->comm, e->stream), err);
}

static opipe_status call_even(const opipe_group *g, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  const nccl_calls *nccl = &e->world->library->nccl;
  const nccl_comm *comm = g->comm;
  uint64_t each = 1;
  const ncclDataType_t type = type_of(g, &each);
  const uint64_t n = g->round.what.parts[0];
  const void *from = (const void *)(uintptr_t)direct(g, false, 0, gathers(g) ? n : n * g->n);
  void *to = (void *)(uintptr_t)direct(g, true, 0, gathers(g) ? n * g->n : n);
  if (gathers(g)) {
    return nccl_fine(e, comm, "ncclAllGather",
                     nccl->all_gather(from, to, (size_t)(n * each), type, comm->comm, e->stream),
                     err);
  }
  return nccl_fine(e, comm, "ncclReduceScatter",
                   nccl->reduce_scatter(from, to, (size_t)n, type, NCCL_ADD, comm->comm, e->stream),
                   err);
}

opipe_status nccl_window_launch(opipe_group *g, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = OPIPE_OK;
  const bool even = is_even(g);
  g->first = g->limit;
  if (even)
    g->limit = g->round.n_values;
  else
    g->limit = walk(g, g->first, pack_piece, &status, err);
  if (status >= 0)
    status = nccl_launch_begin(e, err);
  if (status < 0)
    return status;
  if (even)
    status = call_even(g, err);
  else
    (void)walk(g, g->first, call_piece, &status, err);
  status = nccl_launch_end(e, g->comm, status, err);
  g->flying = status >= 0;
  g->launch = g->last = e->n_launches;
  nccl_noted(e, g->record, g->launch);
  return status;
}

opipe_status nccl_window_unpack(const opipe_group *g, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (!is_even(g))
    (void)walk(g, g->first, unpack_piece, &status, err);
  return status;
}
