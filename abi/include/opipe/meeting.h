/* SPDX-License-Identifier: Apache-2.0 */
/* For writers of transports whose ranks share memory: how the two ends of a stream, and the members
 * of a group, find their common object. Header only, as helpers.h; nothing here is part of the ABI.
 *
 *   wires     opipe_wire_open, opipe_wire_leave, opipe_wire_drop
 *   circles   opipe_circle_join, opipe_circle_meet, opipe_circle_leave
 *
 * A transport's own struct has an opipe_wire, or an opipe_circle, as its first member; the list
 * states its size. The first to open makes the object, the others must describe it alike, and the
 * last to leave destroys it.
 *
 * Thread rule: set-up only, under one lock of the caller. Memory is the host's.
 */
#ifndef OPIPE_MEETING_H
#define OPIPE_MEETING_H

#include "collect.h"
#include "streams.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OPIPE_MEETING_ALIGN = 16 };

/* ---- wires: the shared object of a stream's ends ---- */

typedef struct opipe_wire {
  struct opipe_wire *next;
  opipe_stream_params params;
  void *cells;    /* [params.depth] the transport's own, initially zero */
  uint64_t sides; /* open ends: bit 0 source, bit 1 destination */
} opipe_wire;

typedef struct opipe_wires {
  const opipe_host *host;
  uint32_t n_ranks; /* of the world */
  uint32_t reserved;
  opipe_wire *first;
  size_t wire_bytes, wire_align; /* sizes of the transport's own struct, and of its cells */
  size_t cell_bytes, cell_align;
} opipe_wires;

/* Frees a wire that is not in the list. */
static inline void opipe_wire_free(const opipe_wires *all, opipe_wire *w) {
  opipe_free(all->host, w->cells, (uint64_t)w->params.depth * all->cell_bytes, all->cell_align);
  opipe_free(all->host, w, all->wire_bytes, all->wire_align);
}

static inline opipe_status opipe_wire_make(opipe_wires *all, const opipe_stream_params *params,
                                           opipe_wire **out_wire, opipe_error *err) {
  opipe_wire *w =
      (opipe_wire *)opipe_zeroed(all->host, "a stream", all->wire_bytes, all->wire_align, err);
  if (w == NULL)
    return OPIPE_E_NOMEM;
  w->params = *params;
  w->cells = opipe_zeroed(all->host, "a stream", (uint64_t)params->depth * all->cell_bytes,
                          all->cell_align, err);
  if (w->cells == NULL) {
    opipe_wire_free(all, w);
    return OPIPE_E_NOMEM;
  }
  w->next = all->first;
  all->first = w;
  *out_wire = w;
  return OPIPE_OK;
}

/* Opens the ends that `rank` holds. Errors: those of opipe_stream_check; NOMEM; INVALID (the peer
 * describes the stream differently); STATE (already open). */
static inline opipe_status opipe_wire_open(opipe_wires *all, uint32_t rank,
                                           const opipe_stream_params *params, opipe_wire **out_wire,
                                           opipe_error *err) {
  const uint32_t sides = opipe_stream_sides(params, rank);
  opipe_status status = opipe_stream_check(rank, all->n_ranks, params, err);
  opipe_wire *w = all->first;
  if (status < 0)
    return status;
  while (w != NULL && !opipe_stream_same(&w->params, params))
    w = w->next;
  if (w == NULL)
    status = opipe_wire_make(all, params, &w, err);
  else
    status = opipe_stream_agree(rank, params, &w->params, err);
  if (status >= 0 && (w->sides & sides) != 0) {
    status =
        opipe_fail(err, OPIPE_E_STATE, "stream %u of stages %u -> %u is open already on rank %u",
                   params->index, params->src_stage, params->dst_stage, rank);
  }
  if (status >= 0) {
    w->sides |= sides;
    *out_wire = w;
  }
  return status;
}

/* True: no end is open any more, so the wire is to be dropped. */
static inline bool opipe_wire_leave(opipe_wire *w, uint32_t sides) {
  w->sides &= ~(uint64_t)sides;
  return w->sides == 0;
}

static inline void opipe_wire_drop(opipe_wires *all, opipe_wire *w) {
  opipe_wire **at = &all->first;
  while (*at != w)
    at = &(*at)->next;
  *at = w->next;
  opipe_wire_free(all, w);
}

/* For endpoint_ready of a transport whose worlds are not joined with others. UNSUPPORTED: `rank`
 * has a wire to a rank that has no endpoint in its world, and never will. is_there: tells whether a
 * rank has one. */
static inline opipe_status opipe_wires_within(const opipe_wires *all, uint32_t rank, const char *id,
                                              bool (*is_there)(const void *world, uint32_t rank),
                                              const void *world, opipe_error *err) {
  for (const opipe_wire *w = all->first; w != NULL; w = w->next) {
    const uint32_t src = w->params.src_rank, dst = w->params.dst_rank;
    const uint32_t peer = src == rank ? dst : src;
    if ((src == rank || dst == rank) && !is_there(world, peer)) {
      return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                        "transport '%s' joins the ranks of one session: rank %u is in this one, "
                        "and its peer, rank %u, is not",
                        id, rank, peer);
    }
  }
  return OPIPE_OK;
}

/* ---- circles: the shared object of a group's members ---- */

typedef struct opipe_circle {
  struct opipe_circle *next;
  uint32_t *ranks; /* [n] in the order that every member gave */
  bool *joined;    /* [n] */
  void *members;   /* [n] the transport's own, initially zero */
  uint32_t n;
  uint32_t n_open;
  uint64_t n_bytes;
  uint64_t id; /* of a group that collects, which is in a list of its own */
} opipe_circle;

typedef struct opipe_circles {
  const opipe_host *host;
  uint32_t n_ranks; /* of the world */
  uint32_t reserved;
  opipe_circle *first;
  size_t circle_bytes, circle_align; /* sizes of the transport's own struct, and of its members */
  size_t member_bytes, member_align;
} opipe_circles;

/* The first free place of `rank`; c->n: none. A rank that is listed several times takes its places
 * in the order in which it opens. */
static inline uint32_t opipe_circle_place(const opipe_circle *c, uint32_t rank) {
  uint32_t i = 0;
  while (i < c->n && (c->ranks[i] != rank || c->joined[i]))
    ++i;
  return i;
}

/* Frees a circle that is not in the list. */
static inline void opipe_circle_free(const opipe_circles *all, opipe_circle *c) {
  const uint64_t n = c->n;
  opipe_free(all->host, c->ranks, n * sizeof *c->ranks, OPIPE_MEETING_ALIGN);
  opipe_free(all->host, c->joined, n * sizeof *c->joined, OPIPE_MEETING_ALIGN);
  opipe_free(all->host, c->members, n * all->member_bytes, all->member_align);
  opipe_free(all->host, c, all->circle_bytes, all->circle_align);
}

static inline opipe_status opipe_circle_make(opipe_circles *all, const uint32_t *ranks, uint32_t n,
                                             uint64_t n_bytes, opipe_circle **out_circle,
                                             opipe_error *err) {
  opipe_circle *c =
      (opipe_circle *)opipe_zeroed(all->host, "a group", all->circle_bytes, all->circle_align, err);
  if (c == NULL)
    return OPIPE_E_NOMEM;
  c->n = n;
  c->n_bytes = n_bytes;
  c->ranks = (uint32_t *)opipe_zeroed(all->host, "a group", n * sizeof *c->ranks,
                                      OPIPE_MEETING_ALIGN, err);
  c->joined =
      (bool *)opipe_zeroed(all->host, "a group", n * sizeof *c->joined, OPIPE_MEETING_ALIGN, err);
  c->members = opipe_zeroed(all->host, "a group", n * all->member_bytes, all->member_align, err);
  if (c->ranks == NULL || c->joined == NULL || c->members == NULL) {
    opipe_circle_free(all, c);
    return OPIPE_E_NOMEM;
  }
  memcpy(c->ranks, ranks, n * sizeof *ranks);
  c->next = all->first;
  all->first = c;
  *out_circle = c;
  return OPIPE_OK;
}

/* Finds or makes the circle of these ranks in which `rank` has a free place, and takes the place.
 * Several circles with equal members are told apart by the order of opening. Errors: those of
 * opipe_group_check; NOMEM; INVALID (peers gave another size). */
static inline opipe_status opipe_circle_join(opipe_circles *all, uint32_t rank,
                                             const uint32_t *ranks, uint32_t n, uint64_t n_bytes,
                                             opipe_circle **out_circle, uint32_t *out_index,
                                             opipe_error *err) {
  opipe_circle *found = NULL;
  opipe_status status = opipe_group_check(rank, all->n_ranks, ranks, n, n_bytes, err);
  if (status < 0)
    return status;
  for (opipe_circle *c = all->first; c != NULL; c = c->next) {
    if (c->n == n && memcmp(c->ranks, ranks, n * sizeof *ranks) == 0 &&
        opipe_circle_place(c, rank) < n)
      found = c; /* the list has the newest first: the oldest is found last */
  }
  if (found == NULL) {
    status = opipe_circle_make(all, ranks, n, n_bytes, &found, err);
  } else if (found->n_bytes != n_bytes) {
    status = opipe_fail(err, OPIPE_E_INVALID,
                        "group_open: rank %u opens it with %llu bytes, its peers with %llu", rank,
                        (unsigned long long)n_bytes, (unsigned long long)found->n_bytes);
  }
  if (status >= 0) {
    *out_circle = found;
    *out_index = opipe_circle_place(found, rank);
    found->joined[*out_index] = true;
    ++found->n_open;
  }
  return status;
}

#if OPIPE_TARGET_MINOR >= 5
/* Finds or makes the circle of a group that collects, and takes the rank's place in it. `all` has
 * no other circles. Errors: those of opipe_collective_check; NOMEM; INVALID (members differ);
 * STATE. */
static inline opipe_status opipe_circle_meet(opipe_circles *all, uint32_t rank,
                                             const opipe_collective_params *params,
                                             opipe_circle **out_circle, uint32_t *out_index,
                                             opipe_error *err) {
  const uint32_t n = params->n_ranks;
  opipe_status status = opipe_collective_check(rank, all->n_ranks, params, out_index, err);
  opipe_circle *c = all->first;
  if (status < 0)
    return status;
  while (c != NULL && c->id != params->id)
    c = c->next;
  if (c == NULL) {
    status = opipe_circle_make(all, params->ranks, n, params->n_bytes, &c, err);
    if (status >= 0)
      c->id = params->id;
  } else {
    status = opipe_collective_agree(rank, params, c->ranks, c->n, c->n_bytes, err);
  }
  if (status >= 0 && c->joined[*out_index]) {
    status =
        opipe_fail(err, OPIPE_E_STATE, "collective_open: group %llu is open already on rank %u",
                   (unsigned long long)params->id, rank);
  }
  if (status < 0)
    return status;
  c->joined[*out_index] = true;
  ++c->n_open;
  *out_circle = c;
  return OPIPE_OK;
}
#endif

/* Places are not freed one by one: the last member to leave destroys the circle. */
static inline void opipe_circle_leave(opipe_circles *all, opipe_circle *c) {
  if (--c->n_open > 0)
    return;
  opipe_circle **at = &all->first;
  while (*at != c)
    at = &(*at)->next;
  *at = c->next;
  opipe_circle_free(all, c);
}

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_MEETING_H */
