/* SPDX-License-Identifier: Apache-2.0 */
/* Atoms, united as the graph requires, and labels: atoms for the entries of some dimensions. */
#include <string.h>

#include "loader/shard/sharder.h"

/* ---- atoms ---- */

uint32_t opi_sh_fresh(opi_sharder *s, uint32_t n) {
  const uint32_t first = s->n_atoms;
  if (n > UINT32_MAX - first || !opi_arena_grow(&s->scratch, (void **)&s->parent, &s->room_atoms,
                                                first + n, sizeof(*s->parent))) {
    s->failed = true;
    return 0;
  }
  for (uint32_t i = 0; i < n; ++i)
    s->parent[first + i] = first + i;
  s->n_atoms += n;
  return first;
}

uint32_t opi_sh_find(opi_sharder *s, uint32_t atom) {
  while (s->parent[atom] != atom) {
    s->parent[atom] = s->parent[s->parent[atom]];
    atom = s->parent[atom];
  }
  return atom;
}

static uint32_t region_root(opi_sharder *s, uint32_t o) {
  while (s->openings[o].parent != o) {
    s->openings[o].parent = s->openings[s->openings[o].parent].parent;
    o = s->openings[o].parent;
  }
  return o;
}

uint32_t opi_sh_opening(opi_sharder *s, uint32_t atom) {
  uint32_t lo = 0, hi = s->n_openings;
  while (hi - lo > 1) {
    const uint32_t mid = lo + (hi - lo) / 2;
    if (s->openings[mid].first <= atom)
      lo = mid;
    else
      hi = mid;
  }
  return region_root(s, lo);
}

/* The lower atom, and the earlier opening, stay the root. */
void opi_sh_unite(opi_sharder *s, uint32_t a, uint32_t b) {
  a = opi_sh_find(s, a);
  b = opi_sh_find(s, b);
  if (a == b)
    return;
  const uint32_t low = a < b ? a : b, high = a < b ? b : a;
  const uint32_t x = opi_sh_opening(s, low), y = opi_sh_opening(s, high);
  s->parent[high] = low;
  if (x == y)
    return;
  opi_opening *to = &s->openings[x < y ? x : y], *from = &s->openings[x < y ? y : x];
  from->parent = x < y ? x : y;
  to->heads = to->heads || from->heads;
  if (from->failed && !to->failed) {
    to->failed = true;
    to->why = from->why;
  }
}

/* ---- labels ---- */

static uint64_t extent_of(const opi_labels *l, const int64_t *shape, uint32_t k) {
  return (uint64_t)shape[l->dims[k]];
}

/* Elements of the labelled dimensions behind the k-th. */
static uint64_t stride_of(const opi_labels *l, const int64_t *shape, uint32_t k) {
  uint64_t stride = 1;
  for (uint32_t j = k + 1; j < l->n_dims; ++j)
    stride *= extent_of(l, shape, j);
  return stride;
}

opi_labels *opi_sh_labels(opi_sharder *s, const int64_t *shape, const uint8_t *dims,
                          uint32_t n_dims) {
  opi_labels *l = OPI_ARENA_NEW(&s->scratch, opi_labels);
  if (l == NULL) {
    s->failed = true;
    return NULL;
  }
  l->n_dims = n_dims;
  l->n = 1;
  for (uint32_t k = 0; k < n_dims; ++k) {
    l->dims[k] = dims[k];
    l->n *= (uint64_t)shape[dims[k]];
  }
  l->atoms = OPI_ARENA_ARRAY(&s->scratch, uint32_t, l->n);
  s->failed = s->failed || l->atoms == NULL;
  return l->atoms == NULL ? NULL : l;
}

opi_labels *opi_sh_copy(opi_sharder *s, const opi_labels *l) {
  opi_labels *copy = l == NULL ? NULL : OPI_ARENA_NEW(&s->scratch, opi_labels);
  if (copy == NULL) {
    s->failed = s->failed || l != NULL;
    return NULL;
  }
  *copy = *l;
  copy->atoms = opi_arena_copy(&s->scratch, l->atoms, l->n * sizeof(*l->atoms));
  s->failed = s->failed || copy->atoms == NULL;
  return copy->atoms == NULL ? NULL : copy;
}

bool opi_sh_has(const opi_labels *l, uint32_t d) {
  for (uint32_t k = 0; l != NULL && k < l->n_dims; ++k) {
    if (l->dims[k] == d)
      return true;
  }
  return false;
}

/* Takes the k-th dimension away; its first entry represents it. */
static void drop(opi_labels *l, const int64_t *shape, uint32_t k) {
  const uint64_t extent = extent_of(l, shape, k), stride = stride_of(l, shape, k);
  uint64_t to = 0;
  for (uint64_t i = 0; extent != 0 && i < l->n; ++i) {
    if (i / stride % extent == 0)
      l->atoms[to++] = l->atoms[i];
  }
  l->n = to;
  --l->n_dims;
  memmove(l->dims + k, l->dims + k + 1, l->n_dims - k);
}

void opi_sh_mix(opi_sharder *s, opi_labels *l, const int64_t *shape, uint32_t d) {
  for (uint32_t k = 0; k < l->n_dims; ++k) {
    if (l->dims[k] != d)
      continue;
    const uint64_t extent = extent_of(l, shape, k), stride = stride_of(l, shape, k);
    for (uint64_t i = 0; i < l->n; ++i) {
      const uint64_t at = i / stride % extent;
      if (at != 0)
        opi_sh_unite(s, l->atoms[i], l->atoms[i - at * stride]);
    }
    drop(l, shape, k);
    return;
  }
}

void opi_sh_reduce(opi_sharder *s, opi_labels *l, const int64_t *shape) {
  for (uint32_t k = l->n_dims; k-- > 0;) {
    const uint64_t extent = extent_of(l, shape, k), stride = stride_of(l, shape, k);
    bool same = true;
    for (uint64_t i = 0; same && i < l->n; ++i) {
      const uint64_t at = i / stride % extent;
      same = at == 0 || opi_sh_find(s, l->atoms[i]) == opi_sh_find(s, l->atoms[i - at * stride]);
    }
    if (same)
      drop(l, shape, k);
  }
}

void opi_sh_equate(opi_sharder *s, const opi_labels *a, const opi_labels *b, const int64_t *shape) {
  opi_labels *x = opi_sh_copy(s, a), *y = opi_sh_copy(s, b);
  for (uint32_t d = 0; x != NULL && y != NULL && d < OPIPE_MAX_RANK; ++d) {
    if (opi_sh_has(x, d) && !opi_sh_has(y, d))
      opi_sh_mix(s, x, shape, d);
    else if (opi_sh_has(y, d) && !opi_sh_has(x, d))
      opi_sh_mix(s, y, shape, d);
  }
  for (uint64_t i = 0; x != NULL && y != NULL && i < x->n; ++i)
    opi_sh_unite(s, x->atoms[i], y->atoms[i]);
}

/* ---- in another form ---- */

typedef struct group_map { /* dimensions from[i0, i1) hold the same elements as to[j0, j1) */
  int32_t i0, i1, j0, j1;
} group_map;

/* False: the shapes have different numbers of elements, or none. */
static bool match(const opi_value *from, const opi_value *to, group_map *groups, uint32_t *out_n) {
  int32_t i = 0, j = 0;
  *out_n = 0;
  while (i < from->rank || j < to->rank) {
    group_map *g = &groups[(*out_n)++];
    int64_t a = i < from->rank ? from->shape[i] : 1, b = j < to->rank ? to->shape[j] : 1;
    g->i0 = i;
    g->j0 = j;
    i += i < from->rank;
    j += j < to->rank;
    while (a != b) {
      if (a == 0 || b == 0 || (a < b ? i >= from->rank : j >= to->rank))
        return false;
      if (a < b)
        a *= from->shape[i++];
      else
        b *= to->shape[j++];
    }
    g->i1 = i;
    g->j1 = j;
  }
  return true;
}

/* The place in `l` of the element at `at` (coordinates of `to`). */
static uint64_t place_in(const opi_labels *l, const opi_value *from, const opi_value *to,
                         const group_map *groups, uint32_t n_groups, const int64_t *at) {
  int64_t own[OPIPE_MAX_RANK] = {0};
  for (uint32_t g = 0; g < n_groups; ++g) {
    int64_t flat = 0;
    for (int32_t j = groups[g].j0; j < groups[g].j1; ++j)
      flat = flat * to->shape[j] + at[j];
    for (int32_t i = groups[g].i1; i-- > groups[g].i0;) {
      own[i] = flat % from->shape[i];
      flat /= from->shape[i];
    }
  }
  uint64_t place = 0;
  for (uint32_t k = 0; k < l->n_dims; ++k)
    place = place * extent_of(l, from->shape, k) + (uint64_t)own[l->dims[k]];
  return place;
}

opi_labels *opi_sh_reshape(opi_sharder *s, const opi_labels *l, const opi_value *from,
                           const opi_value *to) {
  group_map groups[2 * OPIPE_MAX_RANK + 1];
  uint8_t dims[OPIPE_MAX_RANK];
  uint32_t n_groups = 0, n = 0;
  if (!match(from, to, groups, &n_groups))
    return NULL;
  for (uint32_t g = 0; g < n_groups; ++g) {
    bool any = false;
    for (int32_t i = groups[g].i0; i < groups[g].i1; ++i)
      any = any || opi_sh_has(l, (uint32_t)i);
    for (int32_t j = groups[g].j0; any && j < groups[g].j1; ++j) {
      if (to->shape[j] != 1)
        dims[n++] = (uint8_t)j;
    }
  }
  opi_labels *made = opi_sh_labels(s, to->shape, dims, n);
  for (uint64_t i = 0; made != NULL && i < made->n; ++i) {
    int64_t at[OPIPE_MAX_RANK] = {0};
    uint64_t rest = i;
    for (uint32_t k = n; k-- > 0;) {
      at[dims[k]] = (int64_t)(rest % (uint64_t)to->shape[dims[k]]);
      rest /= (uint64_t)to->shape[dims[k]];
    }
    made->atoms[i] = l->atoms[place_in(l, from, to, groups, n_groups, at)];
  }
  if (made != NULL)
    opi_sh_reduce(s, made, to->shape);
  return made;
}

opi_labels *opi_sh_select(opi_sharder *s, const opi_labels *l, const opi_value *from, uint32_t axis,
                          const int64_t *list, uint64_t n) {
  int64_t shape[OPIPE_MAX_RANK];
  memcpy(shape, from->shape, (size_t)from->rank * sizeof(*shape));
  shape[axis] = (int64_t)n;
  opi_labels *made = opi_sh_labels(s, shape, l->dims, l->n_dims);
  uint32_t k = 0;
  while (k < l->n_dims && l->dims[k] != axis)
    ++k;
  if (made == NULL || k == l->n_dims)
    return made == NULL ? NULL : opi_sh_copy(s, l);
  const uint64_t stride = stride_of(l, from->shape, k), extent = extent_of(l, from->shape, k);
  for (uint64_t i = 0; i < made->n; ++i) {
    const uint64_t outer = i / (stride * n), at = (uint64_t)list[i / stride % n];
    made->atoms[i] = l->atoms[(outer * extent + at) * stride + i % stride];
  }
  return made;
}
