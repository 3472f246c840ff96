/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets in the arena: storages are placed largest first, each into the smallest gap among those
 * that live at the same time.
 *
 * Placed storages are kept in a search tree by offset (a treap). Each node knows when the first of
 * its subtree begins to live and the last ends, and the largest gap where all of them live:
 * subtrees that are out of time, or that all live and have no gap that is large enough, are passed
 * in one step. O(log n) for each storage where many live at once or one after the other.
 */
#include "program.h"

/* The numbers from `low` on are of the node's whole subtree. */
typedef struct spot {
  const cpu_storage *storage;
  uint32_t left, right; /* OPIPE_NONE: nothing */
  uint32_t priority;    /* above those of both */
  uint32_t first_min, first_max, last_min, last_max;
  uint64_t low, high; /* lowest offset, highest end */
  uint64_t gap;       /* no gap between them is larger if all live */
} spot;

typedef struct search {
  const spot *spots;
  uint32_t first, last;
  uint64_t n_bytes;
  uint64_t end; /* of what was passed and lives */
  uint64_t best, best_size;
} search;

static uint32_t least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

static uint32_t most(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/* Adds the numbers of a subtree that lies behind what `at` sums up so far. */
static void append(spot *at, const spot *next) {
  const uint64_t gap = next->low > at->high ? next->low - at->high : 0;
  at->gap = gap > at->gap ? gap : at->gap;
  at->gap = next->gap > at->gap ? next->gap : at->gap;
  at->high = next->high > at->high ? next->high : at->high;
  at->first_min = least(at->first_min, next->first_min);
  at->first_max = most(at->first_max, next->first_max);
  at->last_min = least(at->last_min, next->last_min);
  at->last_max = most(at->last_max, next->last_max);
}

static void sum_up(spot *spots, uint32_t at) {
  spot *s = &spots[at];
  const cpu_storage *own = s->storage;
  spot sum = {.first_min = own->first,
              .first_max = own->first,
              .last_min = own->last,
              .last_max = own->last,
              .low = own->offset,
              .high = own->offset + own->n_bytes};
  if (s->left != OPIPE_NONE) {
    const spot node = sum;
    sum = spots[s->left];
    append(&sum, &node);
  }
  if (s->right != OPIPE_NONE)
    append(&sum, &spots[s->right]);
  sum.storage = own;
  sum.left = s->left;
  sum.right = s->right;
  sum.priority = s->priority;
  *s = sum;
}

/* The same in every run. */
static uint32_t priority_of(uint32_t i) {
  i = (i ^ i >> 16) * 0x7feb352du;
  i = (i ^ i >> 15) * 0x846ca68bu;
  return i ^ i >> 16;
}

/* Inserts behind those of the same offset; the subtree's new root. */
static uint32_t insert(spot *spots, uint32_t root, uint32_t fresh) {
  if (root == OPIPE_NONE) {
    sum_up(spots, fresh);
    return fresh;
  }
  spot *top = &spots[root];
  const bool go_left = spots[fresh].storage->offset < top->storage->offset;
  const uint32_t child = insert(spots, go_left ? top->left : top->right, fresh);
  uint32_t *inner = go_left ? &spots[child].right : &spots[child].left;
  *(go_left ? &top->left : &top->right) = child;
  if (spots[child].priority <= top->priority) {
    sum_up(spots, root);
    return root;
  }
  *(go_left ? &top->left : &top->right) = *inner;
  *inner = root;
  sum_up(spots, root);
  sum_up(spots, child);
  return child;
}

/* Passes `low` to `high`, which lives. */
static void pass(search *q, uint64_t low, uint64_t high) {
  if (low >= q->end + q->n_bytes && low - q->end < q->best_size) {
    q->best = q->end;
    q->best_size = low - q->end;
  }
  q->end = high > q->end ? high : q->end;
}

static void look(search *q, uint32_t at) {
  while (at != OPIPE_NONE && q->best_size > q->n_bytes) {
    const spot *s = &q->spots[at];
    if (s->last_max < q->first || q->last < s->first_min)
      return;
    if (s->first_max <= q->last && q->first <= s->last_min && s->gap < q->n_bytes) {
      pass(q, s->low, s->high);
      return;
    }
    look(q, s->left);
    if (q->best_size > q->n_bytes && s->storage->first <= q->last && q->first <= s->storage->last)
      pass(q, s->storage->offset, s->storage->offset + s->storage->n_bytes);
    at = s->right;
  }
}

/* The lowest offset of the smallest gap that takes the storage. */
static uint64_t best_gap(const spot *spots, uint32_t root, const cpu_storage *fresh) {
  search q = {.spots = spots,
              .first = fresh->first,
              .last = fresh->last,
              .n_bytes = fresh->n_bytes,
              .best = UINT64_MAX,
              .best_size = UINT64_MAX};
  look(&q, root);
  return q.best != UINT64_MAX ? q.best : q.end;
}

/* Sort keys: larger first, then earlier, then by index. */
static bool goes_before(const cpu_storage *a, const cpu_storage *b) {
  return a->n_bytes != b->n_bytes ? a->n_bytes > b->n_bytes : a->first < b->first;
}

static void sort_storages(const cpu_storage *storages, uint32_t *order, uint32_t n,
                          uint32_t *scratch) {
  for (uint32_t width = 1; width < n; width *= 2) {
    for (uint32_t low = 0; low < n; low += 2 * width) {
      const uint32_t middle = low + width < n ? low + width : n;
      const uint32_t high = low + 2 * width < n ? low + 2 * width : n;
      uint32_t a = low;
      uint32_t b = middle;
      for (uint32_t k = low; k < high; ++k) {
        const bool take_b =
            a == middle || (b < high && goes_before(&storages[order[b]], &storages[order[a]]));
        scratch[k] = take_b ? order[b++] : order[a++];
      }
    }
    memcpy(order, scratch, n * sizeof order[0]);
  }
}

opipe_status cpu_place_arena(opipe_program *program, opipe_error *err) {
  const uint64_t zone = (program->flags & OPIPE_COMPILE_POISON) != 0 ? 2 * CPU_RED_ZONE : 0;
  const cpu_mark mark = cpu_pool_mark(&program->pool);
  uint32_t *order = CPU_POOL_ARRAY(&program->pool, uint32_t, program->n_storages);
  uint32_t *scratch = CPU_POOL_ARRAY(&program->pool, uint32_t, program->n_storages);
  spot *spots = CPU_POOL_ARRAY(&program->pool, spot, program->n_storages);
  uint32_t n = 0;
  uint32_t root = OPIPE_NONE;
  opipe_status status = OPIPE_OK;
  if (order == NULL || scratch == NULL || spots == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory to place %u tensors", program->n_storages);
  for (uint32_t i = 0; i < program->n_storages; ++i) {
    cpu_storage *storage = &program->storages[i];
    if (storage->kind == CPU_PLACE_ARENA) {
      storage->n_bytes = cpu_align_up(storage->n_bytes, CPU_ALIGN_BYTES) + zone;
      order[n++] = i;
    }
  }
  sort_storages(program->storages, order, n, scratch);
  for (uint32_t i = 0; i < n && status >= 0; ++i) {
    cpu_storage *storage = &program->storages[order[i]];
    storage->offset = best_gap(spots, root, storage);
    const uint64_t end = storage->offset + storage->n_bytes;
    if (end > INT64_MAX / 4) {
      status = opipe_fail(err, OPIPE_E_LIMIT, "the arena would need more than %llu bytes",
                          (unsigned long long)end);
    }
    program->temp_bytes = end > program->temp_bytes ? end : program->temp_bytes;
    spots[i] = (spot){
        .storage = storage, .left = OPIPE_NONE, .right = OPIPE_NONE, .priority = priority_of(i)};
    root = insert(spots, root, i);
  }
  cpu_pool_rewind(&program->pool, mark);
  return status;
}
