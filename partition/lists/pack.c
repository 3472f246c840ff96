/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets of a rank's tensors in a mini-batch, by its own order of actions. Every occurrence holds
 * its bytes from the first action that touches it (if received: from its POST) to the last (if
 * sent: to the action before which it should have left), and occurrences with overlapping lifetimes
 * share no byte. The rank's list is walked with a sorted list of free blocks, once per way of
 * fitting, and the tightest result is kept; O(n log n) plus the free blocks. */
#include <stdlib.h>
#include <string.h>

#include "partition/lists/slots.h"

typedef struct block {
  uint64_t at, end; /* bytes */
} block;

/* One rank's occurrences. */
typedef struct pack {
  opi_slots *s;
  opi_arena *scratch;
  uint64_t align;
  uint32_t *starts, *ends; /* [n] occurrences by first action, by last action */
  uint64_t *sizes;         /* [occurrences] bytes, aligned */
  uint64_t *tried;         /* [occurrences] offsets of the current way */
  block *free;             /* [n + 1] by place */
  block *held;             /* [2 n + 1] by place; their last owners: holders */
  uint32_t *holders;       /* [2 n + 1] */
  uint32_t n, n_free, n_held;
  uint64_t top; /* most bytes in use so far */
} pack;

/* The block for a tensor: the lowest that fits, or the smallest. */
enum { FIT_LOWEST, FIT_SMALLEST, N_FITS };

static const opi_occurrence *at(const pack *p, uint32_t occurrence) {
  return &p->s->occurrences[occurrence];
}

/* ---- lifetimes ---- */

/* The number of the rank's records that have ended by then, by the clock. */
static uint32_t ended_by(const opi_slots *s, uint32_t rank, uint64_t ns, bool before) {
  const uint32_t first = s->plan->rank_first[rank];
  uint32_t low = first, high = s->plan->rank_first[rank + 1];
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (s->times->clock_end[middle] < ns + (before ? 0 : 1))
      low = middle + 1;
    else
      high = middle;
  }
  return low - first;
}

/* A received tensor's place starts one record before its sender starts to make it, by the clock, as
 * real times differ from modelled ones; if messages are matched by order, when it is made. Any
 * other tensor starts with the first record that touches it. */
static void find_life(opi_slots *s, uint32_t c, uint32_t m) {
  const uint32_t n_mb = s->plan->n_microbatches;
  const opi_cell *cell = &s->cut->cells[c];
  opi_occurrence *o = &s->occurrences[(size_t)c * n_mb + m];
  const uint32_t first = s->plan->rank_first[o->rank];
  o->from = o->first_action - first;
  for (uint32_t r = cell->route;
       cell->source == OPI_CELL_RECEIVED && r < cell->route + cell->n_routes; ++r) {
    const opi_route *route = &s->cuts[opi_row_class_of(s->plan->whole, m)]->routes[r];
    const size_t made = ((size_t)route->src_stage * n_mb + m) * OPI_PHASES + route->phase;
    if (route->empty || route->within)
      continue;
    uint32_t posted = ended_by(
        s, o->rank, s->strict ? s->times->phase_end[made] : s->times->phase_start[made], false);
    posted -= posted > 0 && !s->strict;
    o->from = posted < o->from ? posted : o->from;
  }
  o->to = ended_by(s, o->rank, o->t1, true);
}

/* ---- one rank ---- */

typedef struct by_life {
  uint32_t when;
  uint32_t index;
  uint64_t n_bytes;
} by_life;

/* Orders by action, then by falling size. */
static int compare_life(const void *x, const void *y) {
  const by_life *a = x, *b = y;
  if (a->when != b->when)
    return a->when < b->when ? -1 : 1;
  if (a->n_bytes != b->n_bytes)
    return a->n_bytes > b->n_bytes ? -1 : 1;
  return a->index < b->index ? -1 : a->index > b->index;
}

static void sort_lives(const pack *p, by_life *lives, uint32_t *items, bool ends) {
  for (uint32_t i = 0; i < p->n; ++i) {
    const opi_occurrence *o = at(p, items[i]);
    lives[i] = (by_life){ends ? o->to : o->from, items[i], p->sizes[items[i]]};
  }
  qsort(lives, p->n, sizeof *lives, compare_life);
  for (uint32_t i = 0; i < p->n; ++i)
    items[i] = lives[i].index;
}

/* The free block for n_bytes; n_free: none fits. */
static uint32_t choose(const pack *p, uint64_t n_bytes, uint32_t fit) {
  uint32_t best = p->n_free;
  for (uint32_t i = 0; i < p->n_free; ++i) {
    const uint64_t room = p->free[i].end - p->free[i].at;
    if (room < n_bytes)
      continue;
    if (fit == FIT_LOWEST)
      return i;
    if (best == p->n_free || room < p->free[best].end - p->free[best].at)
      best = i;
  }
  return best;
}

static void remove_free(pack *p, uint32_t i) {
  --p->n_free;
  memmove(&p->free[i], &p->free[i + 1], (p->n_free - i) * sizeof *p->free);
}

static bool take(pack *p, uint32_t occurrence, uint32_t fit) {
  const uint64_t n_bytes = p->sizes[occurrence];
  uint32_t i = choose(p, n_bytes, fit);
  if (i == p->n_free) { /* grow the end, starting in the last free block if it reaches the end */
    const bool open = p->n_free > 0 && p->free[p->n_free - 1].end == p->top;
    const uint64_t from = open ? p->free[p->n_free - 1].at : p->top;
    if (opi_add_u64(from, n_bytes, &p->top))
      return false;
    p->n_free -= open;
    p->tried[occurrence] = from;
    return true;
  }
  p->tried[occurrence] = p->free[i].at;
  p->free[i].at += n_bytes;
  if (p->free[i].at == p->free[i].end)
    remove_free(p, i);
  return true;
}

static void give(pack *p, uint32_t occurrence) {
  const block b = {p->tried[occurrence], p->tried[occurrence] + p->sizes[occurrence]};
  uint32_t low = 0, high = p->n_free;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (p->free[middle].at < b.at)
      low = middle + 1;
    else
      high = middle;
  }
  const bool left = low > 0 && p->free[low - 1].end == b.at;
  const bool right = low < p->n_free && p->free[low].at == b.end;
  if (left) {
    p->free[low - 1].end = right ? p->free[low].end : b.end;
    if (right)
      remove_free(p, low);
  } else if (right) {
    p->free[low].at = b.at;
  } else {
    memmove(&p->free[low + 1], &p->free[low], (p->n_free - low) * sizeof *p->free);
    p->free[low] = b;
    ++p->n_free;
  }
}

/* False: more than 2^64 bytes. */
static bool walk(pack *p, uint32_t fit) {
  uint32_t ended = 0;
  p->n_free = 0;
  p->top = 0;
  for (uint32_t i = 0; i < p->n; ++i) {
    while (!p->s->reference && at(p, p->ends[ended])->to < at(p, p->starts[i])->from)
      give(p, p->ends[ended++]);
    if (!take(p, p->starts[i], fit))
      return false;
  }
  return true;
}

/* The most bytes held at one time. */
static uint64_t peak(const pack *p, bool stash) {
  const uint32_t n_mb = p->s->plan->n_microbatches;
  uint64_t now = 0, most = 0;
  uint32_t ended = 0;
  for (uint32_t i = 0; i < p->n; ++i) {
    for (; !p->s->reference && at(p, p->ends[ended])->to < at(p, p->starts[i])->from; ++ended) {
      if (!stash || p->s->cut->cells[p->ends[ended] / n_mb].stash)
        now -= p->sizes[p->ends[ended]];
    }
    if (!stash || p->s->cut->cells[p->starts[i] / n_mb].stash)
      now += p->sizes[p->starts[i]];
    most = now > most ? now : most;
  }
  return most;
}

/* ---- previous owners of bytes ---- */

static opipe_status note_before(pack *p, opi_occurrence *o, uint32_t holder) {
  opi_slots *s = p->s;
  for (uint32_t i = o->before; i != OPIPE_NONE; i = s->before[i].next) {
    if (s->before[i].occurrence == holder)
      return OPIPE_OK;
  }
  if (!opi_arena_grow(p->scratch, (void **)&s->before, &s->room_before, s->n_before + 1,
                      sizeof *s->before))
    return opi_fail_nomem(s->err, sizeof *s->before, "slots");
  s->before[s->n_before] = (opi_before){holder, o->before};
  o->before = s->n_before++;
  return OPIPE_OK;
}

/* Takes over bytes from their owners; owners keep the rest of theirs. */
static opipe_status take_over(pack *p, uint32_t occurrence) {
  opi_occurrence *o = &p->s->occurrences[occurrence];
  const block b = {o->offset_bytes, o->offset_bytes + p->sizes[occurrence]};
  block put[3];
  uint32_t who[3], n_put = 0, low = 0, high = p->n_held;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (p->held[middle].end <= b.at)
      low = middle + 1;
    else
      high = middle;
  }
  for (high = low; high < p->n_held && p->held[high].at < b.end; ++high)
    OPI_TRY(note_before(p, o, p->holders[high]));
  if (high > low && p->held[low].at < b.at) {
    put[n_put] = (block){p->held[low].at, b.at};
    who[n_put++] = p->holders[low];
  }
  put[n_put] = b;
  who[n_put++] = occurrence;
  if (high > low && p->held[high - 1].end > b.end) {
    put[n_put] = (block){b.end, p->held[high - 1].end};
    who[n_put++] = p->holders[high - 1];
  }
  memmove(&p->held[low + n_put], &p->held[high], (p->n_held - high) * sizeof *p->held);
  memmove(&p->holders[low + n_put], &p->holders[high], (p->n_held - high) * sizeof *p->holders);
  memcpy(&p->held[low], put, n_put * sizeof *put);
  memcpy(&p->holders[low], who, n_put * sizeof *who);
  p->n_held = p->n_held + n_put - (high - low);
  return OPIPE_OK;
}

/* ---- all of it ---- */

static opipe_status list_rank(pack *p, uint32_t rank) {
  const opi_slots *s = p->s;
  const uint32_t n_mb = s->plan->n_microbatches;
  const uint32_t n = s->cut->n_cells * n_mb;
  p->align = s->alignment[rank] == 0 ? 1 : s->alignment[rank];
  p->n = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const opi_occurrence *o = &s->occurrences[i];
    if (o->rank != rank || o->home != OPIPE_NONE || opi_slots_apart(s, i / n_mb) ||
        opi_slots_held(s, i / n_mb))
      continue;
    const uint32_t class = opi_row_class_of(s->plan->whole, i % n_mb);
    uint64_t n_bytes = s->cuts[class]->cells[i / n_mb].n_bytes;
    if (opi_add_u64(n_bytes, p->align - 1, &n_bytes))
      return OPIPE_E_LIMIT;
    n_bytes &= ~(p->align - 1);
    p->sizes[i] = n_bytes < p->align ? p->align : n_bytes;
    p->starts[p->n] = p->ends[p->n] = i;
    ++p->n;
  }
  return OPIPE_OK;
}

static opipe_status pack_rank(pack *p, uint32_t rank, by_life *lives) {
  opi_slots *s = p->s;
  uint64_t least = UINT64_MAX;
  if (list_rank(p, rank) < 0)
    goto overflow;
  sort_lives(p, lives, p->starts, false);
  sort_lives(p, lives, p->ends, true);
  for (uint32_t fit = 0; fit < N_FITS; ++fit) {
    if (!walk(p, fit))
      goto overflow;
    if (p->top >= least)
      continue;
    least = p->top;
    for (uint32_t i = 0; i < p->n; ++i)
      s->occurrences[p->starts[i]].offset_bytes = p->tried[p->starts[i]];
  }
  s->stash_bytes[rank] = peak(p, true);
  s->boundary_bytes[rank] = p->n == 0 ? 0 : least - s->stash_bytes[rank];
  p->n_held = 0;
  for (uint32_t i = 0; i < p->n && !s->reference; ++i)
    OPI_TRY(take_over(p, p->starts[i]));
  return OPIPE_OK;
overflow:
  return opi_fail(s->err, OPIPE_E_LIMIT, "the tensors kept on rank %u exceed 2^64 bytes", rank);
}

opipe_status opi_slots_pack(opi_slots *s, opi_arena *scratch) {
  const uint32_t n_mb = s->plan->n_microbatches;
  const size_t n = (size_t)s->cut->n_cells * n_mb;
  pack p = {.s = s,
            .scratch = scratch,
            .starts = OPI_ARENA_ARRAY(scratch, uint32_t, n),
            .ends = OPI_ARENA_ARRAY(scratch, uint32_t, n),
            .sizes = OPI_ARENA_ARRAY(scratch, uint64_t, n),
            .tried = OPI_ARENA_ARRAY(scratch, uint64_t, n),
            .free = OPI_ARENA_ARRAY(scratch, block, n + 1),
            .held = OPI_ARENA_ARRAY(scratch, block, 2 * n + 1),
            .holders = OPI_ARENA_ARRAY(scratch, uint32_t, 2 * n + 1)};
  by_life *lives = OPI_ARENA_ARRAY(scratch, by_life, n);
  if (p.starts == NULL || p.ends == NULL || p.sizes == NULL || p.tried == NULL || p.free == NULL ||
      p.held == NULL || p.holders == NULL || lives == NULL)
    return opi_fail_nomem(s->err, n * sizeof *lives, "slots");
  for (uint32_t i = 0; i < n; ++i) {
    if (s->occurrences[i].home == OPIPE_NONE)
      find_life(s, i / n_mb, i % n_mb);
  }
  for (uint32_t rank = 0; rank < s->plan->n_ranks; ++rank)
    OPI_TRY(pack_rank(&p, rank, lives));
  return OPIPE_OK;
}
