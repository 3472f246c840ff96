/* SPDX-License-Identifier: Apache-2.0 */
/* The layout pass; see channels_last.h.
 *
 *   1. choose   in the order of nodes, which temporaries stand with channels last: results of
 *               convolutions that something goes on with in that form, and of pools, element-wise
 *               operators, joins and means of images that read one.
 *   2. rewrite  nodes read and write the form that their operands have; what is read in the other
 *               form gets a Transpose (a Reshape where no byte moves) once.
 *
 * A convolution of few channels whose result nobody reads in that form stays as it is.
 */
#include "channels_last.h"

#include "ops/op.h"

enum { LEAST_RANK = 3, MOST_RANK = 4, MOST_IN = 32 };

typedef enum node_kind {
  NODE_OTHER = 0,
  NODE_CONV,
  NODE_POOL,
  NODE_UNARY,
  NODE_BINARY,
  NODE_MEAN, /* of all of an image */
  NODE_JOIN,
  NODE_TRANSPOSE
} node_kind;

typedef struct relayout {
  opipe_program *program;
  const opipe_graph *from;
  opipe_graph *to;
  opipe_value *values; /* of `to`; the first are those of `from` */
  opipe_node *nodes;
  uint32_t n_values, n_nodes;
  bool *last;     /* [from n_values] stands with channels last */
  bool *goes_on;  /* [from n_values] a node can go on with it in that form */
  uint32_t *twin; /* [from n_values] the same in the other form, OPIPE_NONE: not made yet */
  bool full;      /* the pool is */
} relayout;

/* -- kinds of nodes ---------------------------------------------------------------------------- */

static bool is_standard(const opipe_node *node) {
  return node->domain == NULL || node->domain[0] == '\0' || strcmp(node->domain, "ai.onnx") == 0;
}

static bool is_among(const char *name, const char *const *names, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    if (strcmp(names[i], name) == 0)
      return true;
  }
  return false;
}

static const opipe_value *in_of(const relayout *r, const opipe_node *node, uint32_t i) {
  return i < node->n_in && node->in[i] != OPIPE_NONE ? &r->from->values[node->in[i]] : NULL;
}

static bool is_number(const opipe_value *v) {
  return v->dtype == OPIPE_FLOAT || cpu_is_half(v->dtype);
}

static bool has_form(const opipe_value *v) {
  return is_number(v) && v->rank >= LEAST_RANK && v->rank <= MOST_RANK;
}

static bool same_shape(const opipe_value *a, const opipe_value *b) {
  return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

/* ReduceMean over all spatial axes. */
static bool is_image_mean(const relayout *r, const opipe_node *node) {
  const opipe_value *x = in_of(r, node, 0), *axes = in_of(r, node, 1);
  if (strcmp(node->op, "ReduceMean") != 0 || axes == NULL || axes->role != OPIPE_VALUE_CONSTANT ||
      axes->dtype != OPIPE_INT64 || axes->n_bytes != (uint64_t)(x->rank - 2) * 8)
    return false;
  for (uint32_t i = 0; i + 2 < x->rank; ++i) {
    int64_t axis;
    memcpy(&axis, (const char *)axes->data + 8 * i, 8);
    if (axis != (int64_t)i + 2)
      return false;
  }
  return true;
}

static node_kind kind_of(const relayout *r, const opipe_node *node) {
  static const char *const unary[] = {"Relu",      "Sigmoid",     "Tanh",     "HardSwish", "Elu",
                                      "LeakyRelu", "HardSigmoid", "Clip",     "Gelu",      "Swish",
                                      "Mish",      "Softplus",    "Softsign", "Erf",       "Exp",
                                      "Sqrt",      "Abs",         "Neg",      "Celu",      "Selu"};
  static const char *const binary[] = {"Add", "Sub", "Mul", "Div", "Max", "Min"};
  const opipe_value *x = in_of(r, node, 0);
  if (!is_standard(node) || node->n_out != 1 || node->out[0] == OPIPE_NONE || x == NULL ||
      node->n_in > MOST_IN || r->from->values[node->out[0]].dtype != x->dtype || !is_number(x))
    return NODE_OTHER;
  if (is_among(node->op, binary, CPU_COUNT_OF(binary)) && node->n_in == 2)
    return in_of(r, node, 1) == NULL ? NODE_OTHER : NODE_BINARY;
  if (!has_form(x))
    return NODE_OTHER;
  if (strcmp(node->op, "Conv") == 0)
    return node->n_in > 1 && in_of(r, node, 1) != NULL ? NODE_CONV : NODE_OTHER;
  if (strcmp(node->op, "MaxPool") == 0 || strcmp(node->op, "AveragePool") == 0)
    return NODE_POOL;
  if (strcmp(node->op, "Concat") == 0)
    return opipe_attr_int(node, "axis", 0) == 1 ? NODE_JOIN : NODE_OTHER;
  if (strcmp(node->op, "Transpose") == 0)
    return NODE_TRANSPOSE;
  if (is_image_mean(r, node))
    return NODE_MEAN;
  return is_among(node->op, unary, CPU_COUNT_OF(unary)) ? NODE_UNARY : NODE_OTHER;
}

/* -- shapes of both forms ---------------------------------------------------------------------- */

/* [N, C, spatial...] to [N, spatial..., C]. */
static int64_t *last_shape(relayout *r, const opipe_value *v) {
  int64_t *shape = CPU_POOL_ARRAY(&r->program->pool, int64_t, v->rank);
  if (shape == NULL) {
    r->full = true;
    return NULL;
  }
  shape[0] = v->shape[0];
  for (uint32_t d = 2; d < v->rank; ++d)
    shape[d - 1] = v->shape[d];
  shape[v->rank - 1] = v->shape[1];
  return shape;
}

/* No byte moves between the forms: one channel, or one pixel. */
static bool is_flat(const opipe_value *v) {
  int64_t pixels = 1;
  for (uint32_t d = 2; d < v->rank; ++d)
    pixels *= v->shape[d];
  return pixels == 1 || v->shape[1] == 1;
}

/* An operand beside one of `like`'s shape that is one number for each channel (and row), or one at
 * all: its form with channels last into shape [rank of like]. */
static bool broadcast_shape(const opipe_value *v, const opipe_value *like, int64_t *shape) {
  int64_t first[MOST_RANK];
  if (v->rank > like->rank)
    return false;
  for (uint32_t d = 0; d < like->rank; ++d) {
    const bool there = d + v->rank >= like->rank;
    first[d] = there ? v->shape[d + v->rank - like->rank] : 1;
    if (d >= 2 && first[d] != 1)
      return false;
  }
  for (uint32_t d = 0; d < like->rank; ++d)
    shape[d] = d == 0 ? first[0] : d + 1 == like->rank ? first[1] : 1;
  return true;
}

/* -- choosing ---------------------------------------------------------------------------------- */

/* A node of two operands that can work with channels last: each is whole or broadcasts so. */
static bool binary_fits(const relayout *r, const opipe_node *node) {
  const opipe_value *y = &r->from->values[node->out[0]];
  int64_t shape[MOST_RANK];
  if (!has_form(y))
    return false;
  for (uint32_t i = 0; i < 2; ++i) {
    const opipe_value *x = in_of(r, node, i);
    if (x->dtype != y->dtype || (!same_shape(x, y) && !broadcast_shape(x, y, shape)))
      return false;
  }
  return true;
}

static bool is_last(const relayout *r, uint32_t v) {
  return v != OPIPE_NONE && r->last[v];
}

/* The whole operand that decides the form; OPIPE_NONE: none stands with channels last. */
static uint32_t leader(const relayout *r, const opipe_node *node, node_kind kind) {
  const opipe_value *y = &r->from->values[node->out[0]];
  for (uint32_t i = 0; i < (kind == NODE_BINARY ? 2 : kind == NODE_JOIN ? node->n_in : 1); ++i) {
    if (is_last(r, node->in[i]) &&
        (kind != NODE_BINARY || same_shape(&r->from->values[node->in[i]], y)))
      return node->in[i];
  }
  return OPIPE_NONE;
}

/* Does the Transpose turn what stands [N, spatial..., C] anyway into [N, C, spatial...]? */
static bool brings_first(const opipe_node *node) {
  uint32_t n = 0;
  const int64_t *perm = opipe_attr_ints(node, "perm", &n);
  if (perm == NULL || n < LEAST_RANK || n > MOST_RANK || perm[0] != 0 || perm[1] != (int64_t)n - 1)
    return false;
  for (uint32_t d = 2; d < n; ++d) {
    if (perm[d] != (int64_t)d - 1)
      return false;
  }
  return true;
}

/* The other way. */
static bool brings_last(const opipe_node *node) {
  uint32_t n = 0;
  const int64_t *perm = opipe_attr_ints(node, "perm", &n);
  if (perm == NULL || n < LEAST_RANK || n > MOST_RANK || perm[0] != 0 || perm[n - 1] != 1)
    return false;
  for (uint32_t d = 1; d + 1 < n; ++d) {
    if (perm[d] != (int64_t)d + 1)
      return false;
  }
  return true;
}

static bool becomes_last(const relayout *r, const opipe_node *node, node_kind kind) {
  const uint32_t y = node->out[0];
  if (r->from->values[y].role != OPIPE_VALUE_TEMP || !has_form(&r->from->values[y]))
    return false;
  switch (kind) {
    case NODE_CONV:
      return is_last(r, node->in[0]) || r->goes_on[y];
    case NODE_TRANSPOSE:
      return brings_first(node) && r->goes_on[y];
    case NODE_BINARY:
      return leader(r, node, kind) != OPIPE_NONE && binary_fits(r, node);
    case NODE_POOL:
    case NODE_UNARY:
    case NODE_MEAN:
    case NODE_JOIN:
      return leader(r, node, kind) != OPIPE_NONE;
    default:
      return false;
  }
}

/* True when there is such a part. */
static bool choose(relayout *r) {
  bool any = false;
  for (uint32_t i = r->from->n_nodes; i-- > 0;) {
    const opipe_node *node = &r->from->nodes[i];
    const node_kind kind = kind_of(r, node);
    const bool whole = kind == NODE_UNARY || kind == NODE_BINARY;
    for (uint32_t k = 0; k < node->n_in && k < (kind == NODE_JOIN ? MOST_IN : 2); ++k) {
      if (node->in[k] == OPIPE_NONE || kind == NODE_OTHER || (k > 0 && kind != NODE_JOIN && !whole))
        continue;
      r->goes_on[node->in[k]] = r->goes_on[node->in[k]] || kind == NODE_CONV || kind == NODE_POOL ||
                                kind == NODE_MEAN ||
                                (kind == NODE_TRANSPOSE && brings_last(node)) ||
                                ((whole || kind == NODE_JOIN) && r->goes_on[node->out[0]]);
    }
  }
  for (uint32_t i = 0; i < r->from->n_nodes; ++i) {
    const opipe_node *node = &r->from->nodes[i];
    const node_kind kind = kind_of(r, node);
    if (kind == NODE_OTHER || !becomes_last(r, node, kind))
      continue;
    r->last[node->out[0]] = true;
    any = any || kind == NODE_CONV;
  }
  return any;
}

/* -- writing ----------------------------------------------------------------------------------- */

static uint32_t add_value(relayout *r, const opipe_value *like, const int64_t *shape, uint32_t rank,
                          uint32_t role) {
  opipe_value *v = &r->values[r->n_values];
  *v = *like;
  v->shape = shape;
  v->rank = rank;
  v->role = role;
  v->slot = OPIPE_NONE;
  if (role != OPIPE_VALUE_CONSTANT)
    v->data = NULL;
  return r->n_values++;
}

static opipe_node *add_node(relayout *r, const opipe_node *like, const char *op, uint32_t n_in,
                            uint32_t out) {
  uint32_t *ends = CPU_POOL_ARRAY(&r->program->pool, uint32_t, (uint64_t)n_in + 1);
  if (ends == NULL) {
    r->full = true;
    return NULL;
  }
  ends[n_in] = out;
  opipe_node *node = &r->nodes[r->n_nodes++];
  *node = *like;
  node->op = op;
  node->domain = "";
  node->in = ends;
  node->out = ends + n_in;
  node->n_in = n_in;
  node->n_out = 1;
  node->attrs = NULL;
  node->n_attrs = 0;
  return node;
}

/* The node's attributes and room for n more. */
static opipe_attr *take_attrs(relayout *r, const opipe_node *from, opipe_node *node, uint32_t n) {
  opipe_attr *attrs = CPU_POOL_ARRAY(&r->program->pool, opipe_attr, (uint64_t)from->n_attrs + n);
  if (attrs == NULL) {
    r->full = true;
    return NULL;
  }
  if (from->n_attrs > 0)
    memcpy(attrs, from->attrs, from->n_attrs * sizeof *attrs);
  node->attrs = attrs;
  node->n_attrs = from->n_attrs;
  return attrs;
}

static void put_ends(opipe_node *node, const uint32_t *in) {
  memcpy((uint32_t *)(uintptr_t)node->in, in, node->n_in * sizeof *in);
}

/* Other bytes' order for the same tensor: from [..] of value `x` to value `y`. */
static void convert(relayout *r, const opipe_node *like, uint32_t x, uint32_t y, bool to_last,
                    bool flat) {
  static const int64_t perms[2][2][MOST_RANK] = {{{0, 2, 1}, {0, 2, 1}},
                                                 {{0, 3, 1, 2}, {0, 2, 3, 1}}};
  opipe_node *node = add_node(r, like, flat ? "Reshape" : "Transpose", 1, y);
  const uint32_t rank = r->values[x].rank;
  const opipe_node none = {0};
  opipe_attr *attrs = node == NULL ? NULL : take_attrs(r, &none, node, 1);
  if (attrs == NULL)
    return;
  put_ends(node, &x);
  if (!flat) {
    attrs[0] = (opipe_attr){.name = "perm",
                            .data = perms[rank - LEAST_RANK][to_last],
                            .kind = OPIPE_ATTR_INTS,
                            .n = rank};
    node->n_attrs = 1;
  }
}

/* Value v in the form asked for. */
static uint32_t in_form(relayout *r, const opipe_node *like, uint32_t v, bool last) {
  const opipe_value *from = v < r->from->n_values ? &r->from->values[v] : NULL;
  if (v == OPIPE_NONE || from == NULL || r->last[v] == last)
    return v;
  if (r->twin[v] == OPIPE_NONE) {
    const int64_t *shape = last ? last_shape(r, from) : from->shape;
    if (shape == NULL)
      return v;
    r->twin[v] = add_value(r, from, shape, from->rank, OPIPE_VALUE_TEMP);
    convert(r, like, v, r->twin[v], last, is_flat(from));
  }
  return r->twin[v];
}

/* A view of v with another shape. */
static uint32_t viewed(relayout *r, const opipe_node *like, uint32_t v, const int64_t *shape,
                       uint32_t rank) {
  int64_t *own = CPU_POOL_ARRAY(&r->program->pool, int64_t, rank);
  if (own == NULL) {
    r->full = true;
    return v;
  }
  memcpy(own, shape, rank * sizeof *shape);
  const opipe_value *from = &r->values[v];
  if (from->role == OPIPE_VALUE_CONSTANT)
    return add_value(r, from, own, rank, OPIPE_VALUE_CONSTANT);
  const uint32_t y = add_value(r, from, own, rank, OPIPE_VALUE_TEMP);
  opipe_node *node = add_node(r, like, "Reshape", 1, y);
  if (node != NULL)
    put_ends(node, &v);
  return y;
}

/* Operand i of a node that works with channels last. */
static uint32_t last_operand(relayout *r, const opipe_node *node, node_kind kind, uint32_t i) {
  const uint32_t v = node->in[i];
  const opipe_value *y = &r->from->values[node->out[0]];
  int64_t shape[MOST_RANK];
  if (kind == NODE_CONV || kind == NODE_UNARY)
    return i == 0 ? in_form(r, node, v, true) : v;
  if (kind != NODE_BINARY || same_shape(&r->from->values[v], y) || r->last[v])
    return in_form(r, node, v, true);
  if (cpu_elems(&r->from->values[v]) == 1 || !broadcast_shape(&r->from->values[v], y, shape))
    return v;
  return viewed(r, node, v, shape, y->rank);
}

/* Where a node that works with channels last writes its result `out`; with `out` in the other form
 * finish_last turns it afterwards. */
static uint32_t last_result(relayout *r, uint32_t out) {
  const opipe_value *y = &r->from->values[out];
  if (r->last[out])
    return out;
  const int64_t *shape = last_shape(r, y);
  return shape == NULL ? out : add_value(r, y, shape, y->rank, OPIPE_VALUE_TEMP);
}

/* Adds what the operator needs to know. */
static void mark(relayout *r, const opipe_node *node, node_kind kind, opipe_node *made) {
  const opipe_value *x = in_of(r, node, 0);
  opipe_attr *attrs = take_attrs(r, node, made, 2);
  if (attrs == NULL || kind == NODE_UNARY || kind == NODE_BINARY)
    return;
  for (uint32_t a = 0; a < made->n_attrs; ++a) {
    if (kind == NODE_JOIN && strcmp(attrs[a].name, "axis") == 0)
      attrs[a].i = (int64_t)x->rank - 1;
  }
  if (kind == NODE_JOIN)
    return;
  if (kind == NODE_MEAN) {
    made->n_attrs = 0;
    attrs[made->n_attrs++] = (opipe_attr){
        .name = "kernel_shape", .data = x->shape + 2, .kind = OPIPE_ATTR_INTS, .n = x->rank - 2};
  }
  attrs[made->n_attrs++] = (opipe_attr){.name = "channels_last", .i = 1, .kind = OPIPE_ATTR_INT};
}

/* The result of a mean as [N, 1..., C], whatever its axes. */
static uint32_t mean_result(relayout *r, const opipe_node *node, int64_t *shape) {
  const opipe_value *x = in_of(r, node, 0);
  int64_t *own = CPU_POOL_ARRAY(&r->program->pool, int64_t, x->rank);
  if (own == NULL) {
    r->full = true;
    return node->out[0];
  }
  for (uint32_t d = 0; d < x->rank; ++d)
    own[d] = d == 0 ? x->shape[0] : d + 1 == x->rank ? x->shape[1] : 1;
  memcpy(shape, own, x->rank * sizeof *own);
  return add_value(r, &r->from->values[node->out[0]], own, x->rank, OPIPE_VALUE_TEMP);
}

static void write_last(relayout *r, const opipe_node *node, node_kind kind) {
  uint32_t in[MOST_IN];
  int64_t shape[MOST_RANK];
  const uint32_t out = node->out[0], n_in = kind == NODE_MEAN ? 1 : node->n_in;
  for (uint32_t i = 0; i < n_in; ++i)
    in[i] = node->in[i] == OPIPE_NONE ? OPIPE_NONE : last_operand(r, node, kind, i);
  const bool mean = kind == NODE_MEAN && !r->last[out];
  const uint32_t y = mean ? mean_result(r, node, shape) : last_result(r, out);
  opipe_node *made = add_node(r, node, kind == NODE_MEAN ? "AveragePool" : node->op, n_in, y);
  if (made == NULL)
    return;
  put_ends(made, in);
  mark(r, node, kind, made);
  if (y == out)
    return;
  if (!mean) {
    convert(r, node, y, out, false, is_flat(&r->from->values[out]));
    return;
  }
  opipe_node *view = add_node(r, node, "Reshape", 1, out);
  if (view != NULL)
    put_ends(view, &y);
}

/* A Transpose between forms is a view. */
static bool write_transpose(relayout *r, const opipe_node *node) {
  const uint32_t x = node->in[0], y = node->out[0];
  if (!r->last[y] && !(r->last[x] && brings_last(node)))
    return false;
  const uint32_t from = r->last[y] ? in_form(r, node, x, false) : x;
  opipe_node *made = add_node(r, node, "Reshape", 1, y);
  if (made != NULL)
    put_ends(made, &from);
  return true;
}

/* Does the node work with channels last? */
static bool works_last(const relayout *r, const opipe_node *node, node_kind kind) {
  switch (kind) {
    case NODE_CONV:
      return r->last[node->out[0]] || is_last(r, node->in[0]);
    case NODE_POOL:
    case NODE_MEAN:
      return leader(r, node, kind) != OPIPE_NONE;
    case NODE_UNARY:
    case NODE_BINARY:
    case NODE_JOIN:
      return r->last[node->out[0]];
    default:
      return false;
  }
}

static void write_node(relayout *r, const opipe_node *node) {
  const node_kind kind = kind_of(r, node);
  if (works_last(r, node, kind)) {
    write_last(r, node, kind);
    return;
  }
  if (kind == NODE_TRANSPOSE && write_transpose(r, node))
    return;
  bool same = true;
  for (uint32_t i = 0; i < node->n_in; ++i)
    same = same && !is_last(r, node->in[i]);
  if (same) {
    r->nodes[r->n_nodes++] = *node;
    return;
  }
  uint32_t *ends = CPU_POOL_ARRAY(&r->program->pool, uint32_t, node->n_in);
  if (ends == NULL) {
    r->full = true;
    return;
  }
  for (uint32_t i = 0; i < node->n_in; ++i)
    ends[i] = in_form(r, node, node->in[i], false);
  r->nodes[r->n_nodes] = *node;
  r->nodes[r->n_nodes++].in = ends;
}

static opipe_status no_room(opipe_error *err) {
  return opipe_fail(err, OPIPE_E_NOMEM, "no memory for the layout of a graph");
}

/* Each node may convert all that it reads, and its result. */
static bool make_room(relayout *r) {
  cpu_pool *pool = &r->program->pool;
  uint64_t uses = 0;
  for (uint32_t i = 0; i < r->from->n_nodes; ++i)
    uses += (uint64_t)r->from->nodes[i].n_in + 2;
  r->to = CPU_POOL_ARRAY(pool, opipe_graph, 1);
  r->values = CPU_POOL_ARRAY(pool, opipe_value, r->from->n_values + uses);
  r->nodes = CPU_POOL_ARRAY(pool, opipe_node, r->from->n_nodes + uses);
  if (r->to == NULL || r->values == NULL || r->nodes == NULL)
    return false;
  r->n_values = r->from->n_values;
  if (r->n_values > 0)
    memcpy(r->values, r->from->values, r->n_values * sizeof *r->values);
  return r->from->n_values + uses < OPIPE_NONE - 1;
}

opipe_status cpu_channels_last(opipe_program *program, opipe_error *err) {
  cpu_pool *pool = &program->pool;
  relayout r = {.program = program, .from = program->graph};
  r.last = CPU_POOL_ARRAY(pool, bool, r.from->n_values);
  r.goes_on = CPU_POOL_ARRAY(pool, bool, r.from->n_values);
  r.twin = CPU_POOL_ARRAY(pool, uint32_t, r.from->n_values);
  if (r.last == NULL || r.goes_on == NULL || r.twin == NULL)
    return no_room(err);
  if (!choose(&r))
    return OPIPE_OK;
  if (!make_room(&r))
    return no_room(err);
  for (uint32_t v = 0; v < r.from->n_values; ++v) {
    r.twin[v] = OPIPE_NONE;
    if (r.last[v])
      r.values[v].shape = last_shape(&r, &r.from->values[v]);
  }
  for (uint32_t i = 0; i < r.from->n_nodes && !r.full; ++i)
    write_node(&r, &r.from->nodes[i]);
  if (r.full)
    return no_room(err);
  *r.to = *r.from;
  r.to->values = r.values;
  r.to->n_values = r.n_values;
  r.to->nodes = r.nodes;
  r.to->n_nodes = r.n_nodes;
  program->graph = r.to;
  return OPIPE_OK;
}
