/* SPDX-License-Identifier: Apache-2.0 */
/* One-element parameters (the scale and bias of a contrastive model's logits, a learned
 * temperature), found in the file graph before anything is folded.
 */
#include "loader/passes/keep.h"

#include <math.h>
#include <string.h>

#include "loader/ops/kit.h"

/* ---- names ---- */

/* Operators after whose results the exporters name constants. */
static const char *const MADE_OF[] = {"abs",
                                      "add",
                                      "alias",
                                      "all",
                                      "amax",
                                      "amin",
                                      "and",
                                      "any",
                                      "arange",
                                      "argmax",
                                      "as_strided",
                                      "bitwise_and",
                                      "bitwise_not",
                                      "bitwise_or",
                                      "bmm",
                                      "broadcast_to",
                                      "bucketize",
                                      "cast",
                                      "cat",
                                      "ceil",
                                      "chunk",
                                      "clamp",
                                      "clamp_max",
                                      "clamp_min",
                                      "clone",
                                      "complex",
                                      "concat",
                                      "const",
                                      "constant",
                                      "constant_pad_nd",
                                      "contiguous",
                                      "convert_element_type",
                                      "copy",
                                      "cos",
                                      "cumsum",
                                      "detach",
                                      "diag",
                                      "diagonal",
                                      "diff",
                                      "div",
                                      "dropout",
                                      "einsum",
                                      "embedding",
                                      "empty",
                                      "empty_like",
                                      "eq",
                                      "exp",
                                      "expand",
                                      "expand_as",
                                      "expm1",
                                      "eye",
                                      "fill",
                                      "flatten",
                                      "flip",
                                      "floor",
                                      "full",
                                      "full_like",
                                      "gather",
                                      "ge",
                                      "getitem",
                                      "gt",
                                      "index",
                                      "index_put",
                                      "index_select",
                                      "isinf",
                                      "item",
                                      "layer_norm",
                                      "le",
                                      "lift_fresh_copy",
                                      "linear",
                                      "linspace",
                                      "log",
                                      "log1p",
                                      "log2",
                                      "logical_and",
                                      "logical_not",
                                      "logical_or",
                                      "logspace",
                                      "lt",
                                      "masked_fill",
                                      "matmul",
                                      "max",
                                      "maximum",
                                      "mean",
                                      "meshgrid",
                                      "min",
                                      "minimum",
                                      "mm",
                                      "movedim",
                                      "mul",
                                      "narrow",
                                      "ne",
                                      "neg",
                                      "new_full",
                                      "new_ones",
                                      "new_tensor",
                                      "new_zeros",
                                      "norm",
                                      "not",
                                      "ones",
                                      "ones_like",
                                      "or",
                                      "outer",
                                      "pad",
                                      "permute",
                                      "pow",
                                      "prod",
                                      "rand",
                                      "randn",
                                      "reciprocal",
                                      "relu",
                                      "remainder",
                                      "repeat",
                                      "repeat_interleave",
                                      "reshape",
                                      "roll",
                                      "round",
                                      "rsqrt",
                                      "rsub",
                                      "scalar_tensor",
                                      "select",
                                      "select_scatter",
                                      "sigmoid",
                                      "sign",
                                      "sin",
                                      "slice",
                                      "slice_scatter",
                                      "softmax",
                                      "softplus",
                                      "split",
                                      "split_with_sizes",
                                      "sqrt",
                                      "square",
                                      "squeeze",
                                      "stack",
                                      "std",
                                      "sub",
                                      "sum",
                                      "swapaxes",
                                      "sym_size",
                                      "t",
                                      "take",
                                      "tanh",
                                      "tensor",
                                      "tile",
                                      "to",
                                      "transpose",
                                      "tril",
                                      "triu",
                                      "true_divide",
                                      "type_as",
                                      "unbind",
                                      "unflatten",
                                      "unfold",
                                      "unsqueeze",
                                      "var",
                                      "view",
                                      "view_as",
                                      "where",
                                      "zeros",
                                      "zeros_like",
                                      "threshold_cast"};

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/* Length of the name without numbers at its end: "unsqueeze_11" 9, "slice_2_1" 5. */
static size_t stem(const char *name) {
  size_t n = strlen(name);
  while (n > 0) {
    size_t k = n;
    while (k > 0 && is_digit(name[k - 1]))
      --k;
    if (k == n || k == 0 || name[k - 1] != '_')
      break;
    n = k - 1;
  }
  return n;
}

bool opi_name_is_made(const char *name) {
  size_t n = stem(name);
  if (strspn(name, "0123456789") == strlen(name) || strncmp(name, "onnx::", 6) == 0 ||
      name[0] == '/' || name[0] == '_' || strstr(name, "Constant") != NULL ||
      strstr(name, "lifted_tensor") != NULL)
    return true;
  if (strchr(name, '.') != NULL)
    return false;
  if (n == 3 && name[n] == '_' && strncmp(name, "val", 3) == 0)
    return true;
  if (n > 5 && strncmp(name + n - 5, "_cast", 5) == 0)
    return true;
  if (n > 8 && strncmp(name + n - 8, "_default", 8) == 0)
    n -= 8;
  for (size_t k = 0; k < OPI_COUNT(MADE_OF); ++k) {
    if (strlen(MADE_OF[k]) == n && strncmp(MADE_OF[k], name, n) == 0)
      return true;
  }
  return false;
}

bool opi_name_keeps_numbers(const char *name) {
  static const char *const list[] = {"onnx::", "val_",      "_to_copy",  "to",      "clone",
                                     "view",   "reshape",   "unsqueeze", "squeeze", "expand",
                                     "alias",  "transpose", "permute",   "flatten"};
  for (size_t k = 0; k < OPI_COUNT(list); ++k) {
    if (strncmp(name, list[k], strlen(list[k])) == 0)
      return true;
  }
  return false;
}

bool opi_name_is_of_function(const char *name) {
  static const char *const list[] = {"exp",    "expm1",      "softplus", "sigmoid", "tanh",
                                     "log",    "neg",        "rsqrt",    "sqrt",    "pow",
                                     "square", "reciprocal", "log1p",    "abs"};
  const size_t n = stem(name);
  for (size_t k = 0; k < OPI_COUNT(list); ++k) {
    if (strlen(list[k]) == n && strncmp(list[k], name, n) == 0)
      return true;
  }
  return false;
}

static bool near_integer(double x, double slack) {
  return x >= 0.5 && x <= 16384 && fabs(x - round(x)) <= slack * x;
}

bool opi_number_is_plain(const opi_value *value) {
  const double pi = 3.14159265358979323846, slack = 3e-7; /* of fp32 */
  const double x = value->data != NULL ? fabs(opi_known_element(value, 0)) : NAN;
  if (!isfinite(x) || x >= 1e4 || x <= 1e-4)
    return true;
  for (double power = x, p = 1; p <= 4; power *= power, p *= 2) { /* x, x^2, x^4 */
    if (near_integer(power, slack * p) || near_integer(1 / power, slack * p))
      return true;
  }
  return near_integer(x * x * pi, slack) || near_integer(1 / (x * x * pi), slack) ||
         near_integer(x * 1e4, slack) || near_integer(x * 1e6, slack / 100);
}

/* ---- scales and shifts ---- */

/* One graph: the main one, or a body in a node. */
typedef struct search {
  const opi_graph *file;
  opi_uses uses;
  bool *varies;          /* [n_values] depends on an input; what a body is fed does */
  uint32_t *seen;        /* [n_values] number of the last search that came by */
  uint32_t *todo;        /* [n_values] */
  struct search *bodies; /* [n_bodies] of its nodes */
  uint32_t n_bodies, room_bodies;
} search;

static bool is_one_of(const char *op, const char *const *list, size_t n) {
  for (size_t k = 0; k < n; ++k) {
    if (strcmp(op, list[k]) == 0)
      return true;
  }
  return false;
}

/* True if a parameter remains one behind this node: one number in, one number out, including sums
 * and products with other constants. */
static bool passes_on(const opi_node *node) {
  const uint32_t numbers = OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_CAST |
                           OPI_TAKES_STRETCHED | OPI_TAKES_REPEATED | OPI_TAKES_EXTREME |
                           OPI_TAKES_LIMITED | OPI_TAKES_CHOSEN | OPI_TAKES_FUNCTION;
  const opi_op *op = opi_op_of(node);
  return (op->takes & numbers) != 0 || op->meets == OPI_MEETS_SHIFT || op->meets == OPI_MEETS_SCALE;
}

/* A number that a norm adds below a root, or that keeps a divisor from zero. */
static bool is_guard(const search *s, const opi_node *node) {
  static const char *const list[] = {"Sqrt", "Pow", "Log", "Reciprocal"};
  const uint32_t v = opi_node_out(node, 0);
  if (strcmp(node->op, "Add") != 0 || v == OPIPE_NONE || s->uses.first[v] == s->uses.first[v + 1])
    return false;
  for (uint32_t u = s->uses.first[v]; u < s->uses.first[v + 1]; ++u) {
    const opi_node *reader = &s->file->nodes[s->uses.users[u]];
    const bool divides = strcmp(reader->op, "Div") == 0 && opi_node_in(reader, 1) == v;
    if (!divides && !is_one_of(reader->op, list, OPI_COUNT(list)))
      return false;
  }
  return true;
}

/* A factor of what a Gather or a product of activations made, or of a file whose numbers are not
 * there: is it the root of a width? */
static bool is_width(const search *s, const opi_value *scalar, const opi_node *node, uint32_t x) {
  const uint32_t p = s->file->values[x].producer;
  if (p == OPIPE_NONE || opi_op_of(node)->meets != OPI_MEETS_SCALE ||
      (strcmp(s->file->nodes[p].op, "Gather") != 0 && strcmp(s->file->nodes[p].op, "MatMul") != 0))
    return false;
  if (scalar->data == NULL)
    return true;
  const double number = opi_known_element(scalar, 0);
  double square = number * number;
  if (square != 0 && square < 1)
    square = 1 / square;
  /* bf16 numbers are the nearest to such a root */
  const double slack = scalar->dtype == OPIPE_BFLOAT16  ? 8e-3
                       : scalar->dtype == OPIPE_FLOAT16 ? 2e-3
                                                        : 1e-5;
  return square > 1.5 && fabs(square - round(square)) <= slack * square;
}

bool opi_number_is_named(const opi_value *value) {
  return value->rank > 0 && strchr(value->name, '.') != NULL && !opi_name_is_made(value->name);
}

/* Does node scale or shift an activation by value v, which is made of the scalar alone, or multiply
 * with it as a matrix of one element? */
static bool acts(const search *s, const opi_value *scalar, const opi_node *node, uint32_t v,
                 bool direct) {
  const uint32_t meets = opi_op_of(node)->meets;
  const bool product = meets == OPI_MEETS_PRODUCT || meets == OPI_MEETS_LAYER;
  if (node->n_in < 2 || (node->in[0] != v && node->in[1] != v))
    return false;
  const uint32_t other = node->in[0] == v ? node->in[1] : node->in[0];
  if (product)
    return other != OPIPE_NONE && s->varies[other];
  if (meets == OPI_MEETS_NUMBERS) /* an exponent that is learned: opi_number_is_named */
    return opi_number_is_named(scalar) && other != OPIPE_NONE && s->varies[other];
  if ((meets != OPI_MEETS_SHIFT && meets != OPI_MEETS_SCALE) || node->n_in != 2)
    return false;
  if (other == OPIPE_NONE || !s->varies[other] || is_guard(s, node))
    return false;
  return !(direct && is_width(s, scalar, node, other));
}

static bool is_kept(search *s, const opi_value *scalar, uint32_t v, uint32_t number);

/* The same of what bodies read of value v. */
static bool is_kept_inside(search *s, const opi_value *scalar, uint32_t v, uint32_t number) {
  bool kept = false;
  for (uint32_t k = 0; k < s->n_bodies && !kept; ++k) {
    const opi_graph *body = s->bodies[k].file;
    for (uint32_t c = 0; c < body->n_captures && !kept; ++c) {
      kept = body->capture_outer[c] == v &&
             is_kept(&s->bodies[k], scalar, body->capture_inner[c], number);
    }
  }
  return kept;
}

/* Does the scalar, which is value v here, scale or shift an activation? `number`: of this search.
 */
static bool is_kept(search *s, const opi_value *scalar, uint32_t v, uint32_t number) {
  uint32_t n = 0;
  if (s->seen[v] == number)
    return false;
  s->todo[n++] = v;
  s->seen[v] = number;
  while (n > 0) {
    const uint32_t at = s->todo[--n];
    if (is_kept_inside(s, scalar, at, number))
      return true;
    for (uint32_t u = s->uses.first[at]; u < s->uses.first[at + 1]; ++u) {
      const opi_node *node = &s->file->nodes[s->uses.users[u]];
      if (acts(s, scalar, node, at, at == v))
        return true;
      const uint32_t out = opi_node_out(node, 0);
      if (out == OPIPE_NONE || s->varies[out] || s->seen[out] == number || !passes_on(node))
        continue;
      s->seen[out] = number;
      s->todo[n++] = out;
    }
  }
  return false;
}

static opipe_status open_search(search *s, const opi_graph *file, const search *outer,
                                opi_arena *scratch, opipe_error *err);

/* Looks at the bodies of a node. *out_varies: one of them reads what varies. */
static opipe_status open_bodies(search *s, const opi_node *node, opi_arena *scratch,
                                bool *out_varies, opipe_error *err) {
  for (uint32_t a = 0; a < node->n_attrs; ++a) {
    if (node->attrs[a].kind != OPI_ATTR_GRAPH)
      continue;
    const opi_graph *body = node->attrs[a].data;
    if (!opi_arena_grow(scratch, (void **)&s->bodies, &s->room_bodies, s->n_bodies + 1,
                        sizeof *s->bodies))
      return opi_fail_nomem(err, sizeof *s->bodies, "one-element parameters");
    OPI_TRY(open_search(&s->bodies[s->n_bodies], body, s, scratch, err));
    ++s->n_bodies;
    for (uint32_t c = 0; c < body->n_captures; ++c)
      *out_varies = *out_varies || s->varies[body->capture_outer[c]];
  }
  return OPIPE_OK;
}

static opipe_status mark_varying(search *s, const search *outer, opi_arena *scratch,
                                 opipe_error *err) {
  const opi_graph *file = s->file;
  for (uint32_t i = 0; i < file->n_inputs; ++i)
    s->varies[file->inputs[i]] = true;
  for (uint32_t c = 0; outer != NULL && c < file->n_captures; ++c)
    s->varies[file->capture_inner[c]] = outer->varies[file->capture_outer[c]];
  for (uint32_t n = 0; n < file->n_nodes; ++n) {
    const opi_node *node = &file->nodes[n];
    bool varies = false;
    OPI_TRY(open_bodies(s, node, scratch, &varies, err));
    for (uint32_t i = 0; i < node->n_in && !varies; ++i)
      varies = node->in[i] != OPIPE_NONE && s->varies[node->in[i]];
    for (uint32_t o = 0; o < node->n_out && varies; ++o) {
      if (node->out[o] != OPIPE_NONE)
        s->varies[node->out[o]] = true;
    }
  }
  return OPIPE_OK;
}

static opipe_status open_search(search *s, const opi_graph *file, const search *outer,
                                opi_arena *scratch, opipe_error *err) {
  *s = (search){.file = file};
  s->varies = OPI_ARENA_ARRAY(scratch, bool, file->n_values);
  s->seen = OPI_ARENA_ARRAY(scratch, uint32_t, file->n_values);
  s->todo = OPI_ARENA_ARRAY(scratch, uint32_t, (size_t)file->n_values + 1);
  if (s->varies == NULL || s->seen == NULL || s->todo == NULL)
    return opi_fail_nomem(err, (uint64_t)file->n_values * 9, "one-element parameters");
  OPI_TRY(opi_graph_uses(file, scratch, &s->uses, err));
  return mark_varying(s, outer, scratch, err);
}

static bool is_candidate(const opi_value *value) {
  uint64_t n = 0;
  if ((value->flags & OPI_VALUE_INITIALIZER) == 0 || value->rank < 0 ||
      !opi_dtype_is_float(value->dtype) ||
      !opi_shape_elems(value->shape, (uint32_t)value->rank, &n) || n != 1)
    return false;
  if (!opi_name_is_made(value->name))
    return true;
  /* A parameter of shape [1] that was cast (literals have rank 0), or what was computed of one and
   * must not vanish from reports. */
  const bool of_function = opi_name_is_of_function(value->name);
  return value->data != NULL && (opi_number_is_plain(value) ? of_function && value->rank > 0
                                                            : of_function || value->rank > 0);
}

static opipe_status keep_of(search *s, uint32_t *io_number, opi_map *kept, opipe_error *err) {
  for (uint32_t v = 0; v < s->file->n_values; ++v) {
    const opi_value *value = &s->file->values[v];
    if (is_candidate(value) && is_kept(s, value, v, ++*io_number))
      OPI_TRY(opi_map_set(kept, value->name, 1, err));
  }
  for (uint32_t k = 0; k < s->n_bodies; ++k)
    OPI_TRY(keep_of(&s->bodies[k], io_number, kept, err));
  return OPIPE_OK;
}

opipe_status opi_keep_scalars(const opi_graph *file, opi_arena *scratch, opi_map *kept,
                              opipe_error *err) {
  search s;
  uint32_t number = 0;
  OPI_TRY(open_search(&s, file, NULL, scratch, err));
  return keep_of(&s, &number, kept, err);
}
