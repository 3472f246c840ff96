/* SPDX-License-Identifier: Apache-2.0 */
/* A bound that no order beats: each rank alone, as if work could be preempted, with the heads,
 * works and tails of its computes (heads.c). Jackson's preemptive schedule.
 */
#include <math.h>
#include <stdlib.h>

#include "partition/study/improve/works.h"

typedef struct piece {
  double head, left, tail;
} piece;

static int by_head(const void *a, const void *b) {
  const double x = ((const piece *)a)->head, y = ((const piece *)b)->head;
  return x < y ? -1 : x > y;
}

/* A heap with the longest tail on top. */
static void sift(piece *heap, uint32_t n, uint32_t at) {
  for (uint32_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
    child += child + 1 < n && heap[child + 1].tail > heap[child].tail;
    if (heap[at].tail >= heap[child].tail)
      return;
    const piece moved = heap[at];
    heap[at] = heap[child];
    heap[child] = moved;
    at = child;
  }
}

static void push(piece *heap, uint32_t n, piece p) {
  uint32_t at = n;
  for (; at > 0 && heap[(at - 1) / 2].tail < p.tail; at = (at - 1) / 2)
    heap[at] = heap[(at - 1) / 2];
  heap[at] = p;
}

/* Always runs the available piece with the longest tail; pieces are sorted by head. */
static double preemptive(const piece *pieces, uint32_t n, piece *heap) {
  double now = 0, most = 0;
  uint32_t n_heap = 0;
  for (uint32_t next = 0; next < n || n_heap > 0;) {
    if (n_heap == 0)
      now = fmax(now, pieces[next].head);
    for (; next < n && pieces[next].head <= now; ++next)
      push(heap, n_heap++, pieces[next]);
    const double until = next < n ? pieces[next].head : INFINITY;
    if (heap[0].left > until - now) {
      heap[0].left -= until - now;
      now = until;
      continue;
    }
    now += heap[0].left;
    most = fmax(most, now + heap[0].tail);
    heap[0] = heap[--n_heap];
    sift(heap, n_heap, 0);
  }
  return most;
}

opipe_status opi_works_bound(const opi_works *w, opi_arena *arena, double *out_ns,
                             opipe_error *err) {
  double *head = NULL, *tail = NULL;
  piece *pieces = OPI_ARENA_ARRAY(arena, piece, w->n);
  piece *heap = OPI_ARENA_ARRAY(arena, piece, w->n);
  if (pieces == NULL || heap == NULL)
    return opi_fail_nomem(err, w->n * sizeof *pieces, "a bound");
  OPI_TRY(opi_works_heads(w, arena, &head, err));
  OPI_TRY(opi_works_tails(w, arena, &tail, err));
  *out_ns = 0;
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    const uint32_t first = w->rank_first[r], n = w->rank_first[r + 1] - first;
    for (uint32_t i = 0; i < n; ++i)
      pieces[i] = (piece){head[first + i], w->ns[first + i], tail[first + i]};
    qsort(pieces, n, sizeof *pieces, by_head);
    *out_ns = fmax(*out_ns, preemptive(pieces, n, heap));
  }
  return OPIPE_OK;
}
