/* SPDX-License-Identifier: Apache-2.0 */
/* See rows.h. */
#include "loader/graph/rows.h"

#include <math.h>
#include <string.h>

typedef struct resizing {
  const opi_row_change *by;
  const opi_graph *a, *b;
  opi_graph *out;
  opi_arena *arena;
  opipe_error *err;
} resizing;

/* A known tensor, of a value or of an attribute. */
typedef struct content {
  const void *data;
  const int64_t *shape;
  uint64_t n_bytes;
  uint32_t rank, dtype;
} content;

bool opi_rows_int(const opi_row_change *by, int64_t a, int64_t b, int64_t *out) {
  *out = a;
  if (a == b)
    return true;
  if (a % by->rows_a != 0 || b % by->rows_b != 0 || a / by->rows_a != b / by->rows_b)
    return false;
  *out = a / by->rows_a * by->rows;
  return true;
}

static bool near(double a, double b) {
  return fabs(a - b) <= 4e-7 * fabs(a); /* a few roundings of fp32 */
}

bool opi_rows_double(const opi_row_change *by, double a, double b, double *out) {
  const double rows_a = (double)by->rows_a, rows_b = (double)by->rows_b, rows = (double)by->rows;
  *out = a;
  if (a == b || (isnan(a) && isnan(b)))
    return true;
  if (near(a / rows_a, b / rows_b)) {
    *out = a / rows_a * rows;
    return true;
  }
  *out = a * rows_a / rows;
  return near(a * rows_a, b * rows_b);
}

/* ---- known tensors ---- */

static opipe_status differs(const resizing *r, const char *what, const char *name) {
  return opi_fail(r->err, OPIPE_E_UNSUPPORTED,
                  "graphs of %lld and of %lld rows differ in %s '%s' by more than the rows",
                  (long long)r->by->rows_a, (long long)r->by->rows_b, what, name);
}

/* Integers and numbers of a known tensor, as the widest type of their kind. */
static void load(uint32_t dtype, const void *from, int64_t *out_whole, double *out_real) {
  int32_t word = 0;
  float single = 0;
  if (dtype == OPIPE_INT64)
    memcpy(out_whole, from, sizeof(*out_whole));
  else if (dtype == OPIPE_INT32)
    *out_whole = (memcpy(&word, from, sizeof(word)), word);
  else if (dtype == OPIPE_DOUBLE)
    memcpy(out_real, from, sizeof(*out_real));
  else
    *out_real = (memcpy(&single, from, sizeof(single)), single);
}

static void store(uint32_t dtype, int64_t whole, double real, void *to) {
  const int32_t word = (int32_t)whole;
  const float single = (float)real;
  if (dtype == OPIPE_INT64)
    memcpy(to, &whole, sizeof(whole));
  else if (dtype == OPIPE_INT32)
    memcpy(to, &word, sizeof(word));
  else if (dtype == OPIPE_DOUBLE)
    memcpy(to, &real, sizeof(real));
  else
    memcpy(to, &single, sizeof(single));
}

static bool resize_element(const resizing *r, uint32_t dtype, const void *a, const void *b,
                           void *out) {
  const bool integer = dtype == OPIPE_INT64 || dtype == OPIPE_INT32;
  int64_t whole[3] = {0};
  double real[3] = {0};
  if (!integer && dtype != OPIPE_DOUBLE && dtype != OPIPE_FLOAT)
    return false;
  load(dtype, a, &whole[0], &real[0]);
  load(dtype, b, &whole[1], &real[1]);
  if (integer ? !opi_rows_int(r->by, whole[0], whole[1], &whole[2])
              : !opi_rows_double(r->by, real[0], real[1], &real[2]))
    return false;
  store(dtype, whole[2], real[2], out);
  return true;
}

static void *new_data(const resizing *r, uint64_t n_bytes) {
  return opi_arena_array(r->arena, (size_t)n_bytes + 1, 1);
}

/* Tensors of one shape: number by number. */
static opipe_status resize_numbers(const resizing *r, const char *name, const content *a,
                                   const content *b, content *out) {
  const uint64_t size = opi_dtype_bits(a->dtype) / 8;
  if (a->data == b->data || memcmp(a->data, b->data, (size_t)a->n_bytes) == 0)
    return OPIPE_OK;
  char *data = new_data(r, a->n_bytes);
  if (data == NULL)
    return opi_fail_nomem(r->err, a->n_bytes, "a constant");
  for (uint64_t i = 0; size != 0 && i < a->n_bytes; i += size) {
    const char *x = (const char *)a->data + i, *y = (const char *)b->data + i;
    if (memcmp(x, y, (size_t)size) == 0)
      memcpy(data + i, x, (size_t)size);
    else if (!resize_element(r, a->dtype, x, y, data + i))
      return differs(r, "the numbers of constant", name);
  }
  out->data = data;
  return size == 0 ? differs(r, "constant", name) : OPIPE_OK;
}

/* The one dimension that grows. */
typedef struct growth {
  uint64_t before, k, after_bytes; /* of its rows, k entries each */
} growth;

static bool find_growth(const resizing *r, const content *a, const content *b, growth *out) {
  bool found = false;
  *out = (growth){.before = 1, .after_bytes = opi_dtype_bits(a->dtype) / 8};
  for (uint32_t d = 0; d < a->rank; ++d) {
    if (a->shape[d] != b->shape[d]) {
      if (found || a->shape[d] % r->by->rows_a != 0)
        return false;
      found = true;
      out->k = (uint64_t)(a->shape[d] / r->by->rows_a);
    } else if (found) {
      out->after_bytes *= (uint64_t)a->shape[d];
    } else {
      out->before *= (uint64_t)a->shape[d];
    }
  }
  return found && opi_dtype_bits(a->dtype) % 8 == 0;
}

/* Entry e of row i where one part holds n rows: rows of k entries, or k entries of rows. */
static uint64_t entry_at(const growth *g, uint64_t n, bool inner, uint64_t part, uint64_t i,
                         uint64_t e) {
  return (part * n * g->k + (inner ? i * g->k + e : e * n + i)) * g->after_bytes;
}

/* The first rows of both, which must be the same; `data` NULL: only looks. */
static bool take_rows(const resizing *r, const growth *g, const content *a, const content *b,
                      bool inner, char *data) {
  const uint64_t n_a = (uint64_t)r->by->rows_a, n_b = (uint64_t)r->by->rows_b;
  const uint64_t n = data == NULL ? n_a : (uint64_t)r->by->rows;
  for (uint64_t i = 0; i < g->before * n * g->k; ++i) {
    const uint64_t part = i / (n * g->k), row = i / g->k % n, e = i % g->k;
    const char *x = (const char *)a->data + entry_at(g, n_a, inner, part, row, e);
    const char *y = (const char *)b->data + entry_at(g, n_b, inner, part, row, e);
    if (data != NULL)
      memcpy(data + entry_at(g, n, inner, part, row, e), x, (size_t)g->after_bytes);
    else if (memcmp(x, y, (size_t)g->after_bytes) != 0)
      return false;
  }
  return true;
}

static opipe_status resize_rows(const resizing *r, const char *name, const content *a,
                                const content *b, content *out) {
  growth g;
  if (!find_growth(r, a, b, &g))
    return differs(r, "the shape of constant", name);
  const bool inner = take_rows(r, &g, a, b, true, NULL);
  if (!inner && !take_rows(r, &g, a, b, false, NULL))
    return differs(r, "the rows of constant", name);
  char *data = new_data(r, out->n_bytes);
  if (data == NULL)
    return opi_fail_nomem(r->err, out->n_bytes, "a constant");
  (void)take_rows(r, &g, a, b, inner, data);
  out->data = data;
  return OPIPE_OK;
}

/* `out` has b's shape resized on return; shape and data are a's where nothing changes. */
static opipe_status resize_content(const resizing *r, const char *name, const content *a,
                                   const content *b, content *out) {
  bool same = a->rank == b->rank && a->dtype == b->dtype;
  *out = *a;
  for (uint32_t d = 0; same && d < a->rank; ++d)
    same = a->shape[d] == b->shape[d];
  if (same)
    return a->data == NULL ? OPIPE_OK : resize_numbers(r, name, a, b, out);
  if (a->rank != b->rank || a->dtype != b->dtype)
    return differs(r, "tensor", name);
  int64_t *shape = opi_arena_copy(r->arena, a->shape, a->rank * sizeof *shape);
  if (shape == NULL)
    return opi_fail_nomem(r->err, a->rank * sizeof *shape, "a shape");
  for (uint32_t d = 0; d < a->rank; ++d) {
    if (!opi_rows_int(r->by, a->shape[d], b->shape[d], &shape[d]))
      return differs(r, "the shape of tensor", name);
  }
  out->shape = shape;
  if (!opi_tensor_bytes(a->dtype, shape, a->rank, &out->n_bytes))
    return differs(r, "the size of tensor", name);
  return a->data == NULL ? OPIPE_OK : resize_rows(r, name, a, b, out);
}

static opipe_status resize_value(const resizing *r, const opi_value *a, const opi_value *b,
                                 opi_value *out) {
  const content x = {a->data, a->shape, a->n_bytes, (uint32_t)a->rank, a->dtype};
  const content y = {b->data, b->shape, b->n_bytes, (uint32_t)b->rank, b->dtype};
  content made;
  *out = *a;
  if (a->producer != b->producer || ((a->flags ^ b->flags) & ~(uint32_t)OPI_VALUE_BORROWED) != 0 ||
      (a->data == NULL) != (b->data == NULL))
    return differs(r, "tensor", a->name);
  OPI_TRY(resize_content(r, a->name, &x, &y, &made));
  out->shape = made.shape == x.shape ? a->shape : (int64_t *)(uintptr_t)made.shape;
  out->data = made.data;
  out->n_bytes = made.n_bytes;
  if (made.data != a->data)
    out->flags &= ~(uint32_t)OPI_VALUE_BORROWED;
  return OPIPE_OK;
}

/* ---- nodes ---- */

static opipe_status resize_list(const resizing *r, const char *node, const opipe_attr *a,
                                const opipe_attr *b, opipe_attr *out) {
  const bool whole = a->kind == OPIPE_ATTR_INTS;
  const uint64_t size = whole ? sizeof(int64_t) : sizeof(float);
  const int64_t shape[1] = {a->n};
  const content x = {a->data, shape, a->n * size, 1, whole ? OPIPE_INT64 : OPIPE_FLOAT};
  content y = x, made = x;
  y.data = b->data;
  if (a->n != b->n)
    return differs(r, "an attribute of node", node);
  if (a->n != 0)
    OPI_TRY(resize_numbers(r, a->name, &x, &y, &made));
  out->data = made.data;
  return OPIPE_OK;
}

static opipe_status resize_literal(const resizing *r, const opipe_attr *a, const opipe_attr *b,
                                   opipe_attr *out) {
  const opipe_literal *la = a->data, *lb = b->data;
  const content x = {la->data, la->shape, la->n_bytes, la->rank, la->dtype};
  const content y = {lb->data, lb->shape, lb->n_bytes, lb->rank, lb->dtype};
  content made;
  opipe_literal *literal = OPI_ARENA_NEW(r->arena, opipe_literal);
  if (literal == NULL)
    return opi_fail_nomem(r->err, sizeof *literal, "an attribute");
  OPI_TRY(resize_content(r, a->name, &x, &y, &made));
  *literal = (opipe_literal){made.data, made.shape, made.n_bytes, made.dtype, made.rank};
  out->data = literal;
  return OPIPE_OK;
}

static bool same_strings(const opipe_attr *a, const opipe_attr *b) {
  const char *const *x = a->data, *const *y = b->data;
  bool same = a->n == b->n;
  for (uint32_t i = 0; same && i < a->n; ++i)
    same = strcmp(x[i], y[i]) == 0;
  return same;
}

static opipe_status resize_attr(const resizing *r, const char *node, const opipe_attr *a,
                                const opipe_attr *b, opipe_attr *out) {
  bool fits = strcmp(a->name, b->name) == 0 && a->kind == b->kind;
  *out = *a;
  if (fits) {
    switch (a->kind) {
      case OPIPE_ATTR_INT:
        fits = opi_rows_int(r->by, a->i, b->i, &out->i);
        break;
      case OPIPE_ATTR_FLOAT:
        fits = opi_rows_double(r->by, a->f, b->f, &out->f);
        break;
      case OPIPE_ATTR_INTS:
      case OPIPE_ATTR_FLOATS:
        return resize_list(r, node, a, b, out);
      case OPIPE_ATTR_TENSOR:
        return resize_literal(r, a, b, out);
      case OPIPE_ATTR_STRINGS:
        fits = same_strings(a, b);
        break;
      default:
        fits = a->n == b->n && (a->n == 0 || memcmp(a->data, b->data, a->n) == 0);
        break;
    }
  }
  return fits ? OPIPE_OK : differs(r, "an attribute of node", node);
}

static bool same_wires(const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b) {
  return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a * sizeof *a) == 0);
}

static opipe_status resize_node(const resizing *r, const opi_node *a, const opi_node *b,
                                opi_node *out) {
  *out = *a;
  if (strcmp(a->op, b->op) != 0 || strcmp(a->domain, b->domain) != 0 || a->pass != b->pass ||
      !same_wires(a->in, a->n_in, b->in, b->n_in) ||
      !same_wires(a->out, a->n_out, b->out, b->n_out) || a->n_attrs != b->n_attrs)
    return differs(r, "node", a->name);
  out->attrs = OPI_ARENA_ARRAY(r->arena, opipe_attr, a->n_attrs);
  if (out->attrs == NULL)
    return opi_fail_nomem(r->err, a->n_attrs * sizeof *out->attrs, "a node");
  for (uint32_t i = 0; i < a->n_attrs; ++i)
    OPI_TRY(resize_attr(r, a->name, &a->attrs[i], &b->attrs[i], &out->attrs[i]));
  return OPIPE_OK;
}

static opipe_status resize_all(const resizing *r) {
  const opi_graph *a = r->a, *b = r->b;
  opi_graph *out = r->out;
  for (uint32_t n = 0; n < a->n_nodes && n < b->n_nodes; ++n)
    OPI_TRY(resize_node(r, &a->nodes[n], &b->nodes[n], &out->nodes[n]));
  if (a->n_nodes != b->n_nodes || a->n_values != b->n_values ||
      !same_wires(a->inputs, a->n_inputs, b->inputs, b->n_inputs) ||
      !same_wires(a->outputs, a->n_outputs, b->outputs, b->n_outputs))
    return differs(r, "the contents, graph", a->name);
  for (uint32_t v = 0; v < a->n_values; ++v)
    OPI_TRY(resize_value(r, &a->values[v], &b->values[v], &out->values[v]));
  return OPIPE_OK;
}

opipe_status opi_graph_with_rows(const opi_graph *a, const opi_graph *b,
                                 const opi_row_change *change, opi_arena *arena,
                                 opi_graph **out_graph, opipe_error *err) {
  opi_graph *out = OPI_ARENA_NEW(arena, opi_graph);
  if (change->rows < 1 || change->rows > change->rows_a || change->rows_a >= change->rows_b) {
    return opi_fail(err, OPIPE_E_INTERNAL, "a graph of %lld rows from those of %lld and %lld",
                    (long long)change->rows, (long long)change->rows_a, (long long)change->rows_b);
  }
  if (out == NULL)
    return opi_fail_nomem(err, sizeof *out, "a graph");
  *out = *a;
  out->arena = arena;
  out->values = OPI_ARENA_ARRAY(arena, opi_value, a->n_values);
  out->nodes = OPI_ARENA_ARRAY(arena, opi_node, a->n_nodes);
  out->room_values = a->n_values;
  out->room_nodes = a->n_nodes;
  out->room_inputs = a->n_inputs;
  out->room_outputs = a->n_outputs;
  if (out->values == NULL || out->nodes == NULL)
    return opi_fail_nomem(err, a->n_values * sizeof *out->values, "a graph");
  const resizing r = {change, a, b, out, arena, err};
  OPI_TRY(resize_all(&r));
  *out_graph = out;
  return OPIPE_OK;
}
