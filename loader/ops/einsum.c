/* SPDX-License-Identifier: Apache-2.0 */
/* Einsum: parses the equation, spells out the ellipsis and the implicit output, lowers two-operand
 * products to one MatMul.
 *
 * Labels are the letters themselves; an ellipsis gets letters that the equation does not use.
 * Everything but a plain product of two operands (diagonals, one or three operands, axes that only
 * one operand has and the output lacks) stays an Einsum whose equation has one letter per axis.
 */
#include "loader/ops/einsum.h"

#include <ctype.h>
#include <string.h>

#include "loader/ops/kit.h"

enum { MAX_TERMS = 16, MAX_LABELS = 52 };

typedef struct term {
  char labels[OPIPE_MAX_RANK + 1]; /* a NUL-terminated string of letters */
  uint32_t n;
  int32_t ellipsis; /* where it stands, -1: none */
} term;

typedef struct equation {
  term in[MAX_TERMS];
  term out;
  uint32_t n_in;
  bool has_out;
  int64_t extent[128]; /* by letter, 0: not seen */
} equation;

static opipe_status parse_term(const opi_builder *b, const opi_node *node, const char **io_text,
                               term *out, opipe_error *err) {
  const char *p = *io_text;
  *out = (term){.ellipsis = -1};
  for (; *p != '\0' && *p != ',' && !(p[0] == '-' && p[1] == '>'); ++p) {
    if (*p == ' ')
      continue;
    if (p[0] == '.' && p[1] == '.' && p[2] == '.' && out->ellipsis < 0) {
      out->ellipsis = (int32_t)out->n;
      p += 2;
    } else if (isalpha((unsigned char)*p) != 0 && out->n < OPIPE_MAX_RANK) {
      out->labels[out->n++] = *p;
    } else {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "the equation cannot be read at '%.20s'",
                           p);
    }
  }
  *io_text = p;
  return OPIPE_OK;
}

static opipe_status parse(const opi_builder *b, const opi_node *node, equation *e,
                          opipe_error *err) {
  const char *p = opi_attr_string(node, "equation", NULL);
  memset(e, 0, sizeof(*e));
  if (p == NULL)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "attribute 'equation' is missing");
  for (;;) {
    if (e->n_in == MAX_TERMS) {
      return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "the equation has more than %d operands",
                           MAX_TERMS);
    }
    OPI_TRY(parse_term(b, node, &p, &e->in[e->n_in++], err));
    if (*p != ',')
      break;
    ++p;
  }
  if (*p != '\0') {
    p += 2;
    e->has_out = true;
    OPI_TRY(parse_term(b, node, &p, &e->out, err));
    if (*p != '\0') {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID, "the equation cannot be read at '%.20s'",
                           p);
    }
  } else {
    e->out.ellipsis = -1;
  }
  if (e->n_in != node->n_in) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "the equation has %u operands, the node %u inputs", e->n_in, node->n_in);
  }
  return OPIPE_OK;
}

/* Puts `n` of `letters` in at the ellipsis. */
static opipe_status fill(const opi_builder *b, const opi_node *node, term *t, const char *letters,
                         uint32_t n, opipe_error *err) {
  char joined[2 * OPIPE_MAX_RANK + 2] = {0};
  if (t->ellipsis < 0)
    return OPIPE_OK;
  if (t->n + n > OPIPE_MAX_RANK) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "a term of the equation has more than %d axes", OPIPE_MAX_RANK);
  }
  const size_t at = (size_t)t->ellipsis;
  memcpy(joined, t->labels, at);
  if (n != 0)
    memcpy(joined + at, letters, n);
  memcpy(joined + at + n, t->labels + at, t->n - at);
  t->n += n;
  t->ellipsis = -1;
  memcpy(t->labels, joined, t->n + 1);
  return OPIPE_OK;
}

static bool uses(const equation *e, char letter) {
  for (uint32_t i = 0; i < e->n_in; ++i) {
    if (strchr(e->in[i].labels, letter) != NULL)
      return true;
  }
  return e->has_out && strchr(e->out.labels, letter) != NULL;
}

/* Letters seen once, in alphabetical order, after the ellipsis. */
static void implicit_output(equation *e) {
  e->out = (term){.ellipsis = -1};
  for (uint32_t i = 0; i < e->n_in; ++i) {
    if (e->in[i].ellipsis >= 0)
      e->out.ellipsis = 0;
  }
  for (int c = 'A'; c <= 'z'; ++c) {
    uint32_t seen = 0;
    if (isalpha(c) == 0)
      continue;
    for (uint32_t i = 0; i < e->n_in; ++i) {
      for (const char *p = e->in[i].labels; *p != '\0'; ++p)
        seen += *p == c;
    }
    if (seen == 1 && e->out.n < OPIPE_MAX_RANK)
      e->out.labels[e->out.n++] = (char)c;
  }
  e->has_out = true;
}

/* Replaces every ellipsis by fresh letters. */
static opipe_status expand_ellipsis(const opi_builder *b, const opi_node *node, equation *e,
                                    opipe_error *err) {
  char fresh[OPIPE_MAX_RANK + 1] = {0};
  uint32_t widest = 0, n_fresh = 0;
  for (uint32_t i = 0; i < e->n_in; ++i) {
    const opi_value *v = opi_input(b, node, i);
    const term *t = &e->in[i];
    OPI_TRY(opi_need(b, node, i, "operand", OPI_T_FLOAT | OPI_T_WIDE, 0, OPIPE_MAX_RANK, err));
    OPI_TRY(opi_need_same_type(b, node, 0, i, err));
    if (t->ellipsis < 0 ? t->n != (uint32_t)v->rank : t->n > (uint32_t)v->rank) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "input '%s' is of rank %d, its term has %u letters", v->name, v->rank,
                           t->n);
    }
    if (t->ellipsis >= 0 && (uint32_t)v->rank - t->n > widest)
      widest = (uint32_t)v->rank - t->n;
  }
  for (int c = 'A'; c <= 'z' && n_fresh < widest; ++c) {
    if (isalpha(c) != 0 && !uses(e, (char)c))
      fresh[n_fresh++] = (char)c;
  }
  if (n_fresh < widest) {
    return opi_node_fail(b, node, err, OPIPE_E_LIMIT, "the equation has more than %d letters",
                         MAX_LABELS);
  }
  for (uint32_t i = 0; i < e->n_in; ++i) {
    const uint32_t own = (uint32_t)opi_input(b, node, i)->rank - e->in[i].n;
    OPI_TRY(fill(b, node, &e->in[i], fresh + (widest - own), own, err));
  }
  return fill(b, node, &e->out, fresh, widest, err);
}

static opipe_status extents(const opi_builder *b, const opi_node *node, equation *e, bool broadcast,
                            opipe_error *err) {
  for (uint32_t i = 0; i < e->n_in; ++i) {
    const opi_value *v = opi_input(b, node, i);
    for (uint32_t a = 0; a < e->in[i].n; ++a) {
      int64_t *seen = &e->extent[(unsigned char)e->in[i].labels[a] & 127];
      const int64_t here = v->shape[a] + 1; /* 0 means not seen */
      if (*seen == 0 || (broadcast && *seen == 2))
        *seen = here;
      if (*seen == here || (broadcast && here == 2))
        continue;
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "input '%s' has %lld along '%c', another operand %lld", v->name,
                           (long long)v->shape[a], e->in[i].labels[a], (long long)(*seen - 1));
    }
  }
  for (uint32_t a = 0; a < e->out.n; ++a) {
    const char letter = e->out.labels[a];
    if (e->extent[(unsigned char)letter & 127] == 0 ||
        strchr(e->out.labels + a + 1, letter) != NULL) {
      return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                           "the output's letter '%c' is in no operand, or twice", letter);
    }
  }
  return OPIPE_OK;
}

/* -- lowering ---------------------------------------------------------------------------------- */

typedef struct groups {
  char batch[OPIPE_MAX_RANK + 1], rows[OPIPE_MAX_RANK + 1], cols[OPIPE_MAX_RANK + 1],
      sums[OPIPE_MAX_RANK + 1];
} groups;

static void add(char *set, char letter) {
  const size_t n = strlen(set);
  if (n < OPIPE_MAX_RANK && strchr(set, letter) == NULL)
    set[n] = letter;
}

static bool repeats(const term *t) {
  for (uint32_t a = 0; a < t->n; ++a) {
    if (strchr(t->labels + a + 1, t->labels[a]) != NULL)
      return true;
  }
  return false;
}

/* False when the equation is no product of two matrices. */
static bool as_product(const equation *e, groups *g) {
  const char *x = e->in[0].labels, *y = e->in[1].labels, *z = e->out.labels;
  memset(g, 0, sizeof(*g));
  if (e->n_in != 2 || repeats(&e->in[0]) || repeats(&e->in[1]))
    return false;
  for (const char *p = x; *p != '\0'; ++p) {
    const bool in_y = strchr(y, *p) != NULL, in_z = strchr(z, *p) != NULL;
    if (!in_y && !in_z)
      return false;
    add(in_y ? (in_z ? g->batch : g->sums) : g->rows, *p);
  }
  for (const char *p = y; *p != '\0'; ++p) {
    if (strchr(x, *p) != NULL)
      continue;
    if (strchr(z, *p) == NULL)
      return false;
    add(g->cols, *p);
  }
  return g->sums[0] != '\0' && strlen(g->batch) + 2 <= OPIPE_MAX_RANK &&
         strlen(g->batch) + strlen(g->rows) + strlen(g->cols) <= OPIPE_MAX_RANK;
}

static int64_t extent_of(const equation *e, const char *letters) {
  int64_t n = 1;
  for (; *letters != '\0'; ++letters)
    n *= e->extent[(unsigned char)*letters & 127] - 1;
  return n;
}

/* Transposes x from `labels` to batch + first + second and merges each of the last two groups into
 * one axis. */
static opipe_status arrange(opi_builder *b, const equation *e, uint32_t x, const char *labels,
                            const char *batch, const char *first, const char *second, uint32_t *out,
                            opipe_error *err) {
  int64_t perm[OPIPE_MAX_RANK], shape[OPIPE_MAX_RANK];
  uint32_t n = 0, rank = 0;
  const char *const parts[3] = {batch, first, second};
  for (uint32_t k = 0; k < 3; ++k) {
    for (const char *p = parts[k]; *p != '\0'; ++p)
      perm[n++] = strchr(labels, *p) - labels;
  }
  OPI_TRY(opi_k_transpose(b, x, perm, n, &x, err));
  for (const char *p = batch; *p != '\0'; ++p)
    shape[rank++] = e->extent[(unsigned char)*p & 127] - 1;
  shape[rank++] = extent_of(e, first);
  shape[rank++] = extent_of(e, second);
  return opi_k_reshape(b, x, shape, rank, out, err);
}

static opipe_status lower_product(opi_builder *b, const opi_node *node, const equation *e,
                                  const groups *g, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK], perm[OPIPE_MAX_RANK];
  char order[3 * OPIPE_MAX_RANK + 1] = {0};
  uint32_t in[2], z;
  OPI_TRY(arrange(b, e, node->in[0], e->in[0].labels, g->batch, g->rows, g->sums, &in[0], err));
  OPI_TRY(arrange(b, e, node->in[1], e->in[1].labels, g->batch, g->sums, g->cols, &in[1], err));
  OPI_TRY(opi_k_one(b, "MatMul", 13, in, 2, NULL, &z, err));
  memcpy(order, g->batch, strlen(g->batch));
  memcpy(order + strlen(order), g->rows, strlen(g->rows));
  memcpy(order + strlen(order), g->cols, strlen(g->cols));
  const uint32_t rank = (uint32_t)strlen(order);
  for (uint32_t a = 0; a < rank; ++a)
    shape[a] = e->extent[(unsigned char)order[a] & 127] - 1;
  OPI_TRY(opi_k_reshape(b, z, shape, rank, &z, err));
  for (uint32_t a = 0; a < rank; ++a)
    perm[a] = strchr(order, e->out.labels[a]) - order;
  OPI_TRY(opi_k_transpose(b, z, perm, rank, &z, err));
  return opi_b_result(b, node, 0, z, err);
}

/* Makes every operand's axes the full extents (an ellipsis may broadcast). */
static opipe_status widen(opi_builder *b, const equation *e, const opi_node *node, uint32_t *in,
                          opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK];
  for (uint32_t i = 0; i < e->n_in; ++i) {
    for (uint32_t a = 0; a < e->in[i].n; ++a)
      shape[a] = e->extent[(unsigned char)e->in[i].labels[a] & 127] - 1;
    OPI_TRY(opi_k_expand(b, node->in[i], shape, e->in[i].n, &in[i], err));
  }
  return OPIPE_OK;
}

opipe_status opi_einsum_lift(opi_builder *b, const opi_node *node, opipe_error *err) {
  uint32_t in[MAX_TERMS], z;
  opi_attrs attrs = {.n = 0};
  opi_text text;
  equation e;
  groups g;
  OPI_TRY(parse(b, node, &e, err));
  if (!e.has_out)
    implicit_output(&e);
  OPI_TRY(expand_ellipsis(b, node, &e, err));
  OPI_TRY(extents(b, node, &e, true, err));
  OPI_TRY(widen(b, &e, node, in, err));
  opi_node wide = *node;
  wide.in = in;
  if (as_product(&e, &g))
    return lower_product(b, &wide, &e, &g, err);
  opi_text_init(&text, b->allocator);
  for (uint32_t i = 0; i < e.n_in; ++i)
    opi_text_printf(&text, "%s%s", i == 0 ? "" : ",", e.in[i].labels);
  opi_text_printf(&text, "->%s", e.out.labels);
  opipe_status status = OPIPE_OK;
  if (text.failed || text.data == NULL) {
    status = opi_fail_nomem(err, text.n, "an equation");
  } else {
    opi_attrs_string(&attrs, "equation", text.data);
    status = opi_k_one(b, "Einsum", 12, in, e.n_in, &attrs, &z, err);
  }
  opi_text_release(&text);
  return status < 0 ? status : opi_b_result(b, node, 0, z, err);
}

opipe_status opi_einsum_infer(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t shape[OPIPE_MAX_RANK];
  equation e;
  OPI_TRY(parse(b, node, &e, err));
  if (!e.has_out || e.out.ellipsis >= 0)
    return opi_node_fail(b, node, err, OPIPE_E_INVALID, "the equation is not in canonical form");
  OPI_TRY(expand_ellipsis(b, node, &e, err));
  OPI_TRY(extents(b, node, &e, false, err));
  for (uint32_t a = 0; a < e.out.n; ++a)
    shape[a] = e.extent[(unsigned char)e.out.labels[a] & 127] - 1;
  return opi_b_set(b, node, 0, opi_input(b, node, 0)->dtype, shape, e.out.n, err);
}

void opi_einsum_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const char *text = opi_attr_string(node, "equation", "");
  bool seen[128] = {false};
  uint32_t operand = 0;
  double n = 1;
  for (uint32_t axis = 0; *text != '\0' && *text != '-'; ++text) {
    if (*text == ',') {
      ++operand;
      axis = 0;
      continue;
    }
    const opi_value *v = operand < node->n_in ? &graph->values[node->in[operand]] : NULL;
    if (v != NULL && axis < (uint32_t)v->rank && !seen[*text & 127])
      n *= (double)v->shape[axis];
    seen[*text & 127] = true;
    ++axis;
  }
  out_work->flops = (double)node->n_in * n;
  out_work->bytes = opi_work_bytes(graph, node);
}

opipe_status opi_einsum_carry(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                              opi_carry *out, opipe_error *err) {
  const char *text = opi_attr_string(node, "equation", "");
  const char *arrow = strstr(text, "->");
  char letter = '\0';
  out[0] = (opi_carry){.axis = -1};
  if (arrow == NULL)
    return opi_carry_refuse(graph, node, 0, "the equation has no output", err);
  for (uint32_t pass = 0; pass < 2; ++pass) {
    uint32_t operand = 0;
    int32_t axis = 0;
    for (const char *p = text; p < arrow && operand < node->n_in; ++p) {
      if (*p == ',') {
        ++operand;
        axis = 0;
        continue;
      }
      const bool here = in[operand].axis == axis++;
      if (pass == 0 && here && letter == '\0') {
        letter = *p;
        out[0] = in[operand];
      } else if (pass == 0 ? here && *p != letter : letter != '\0' && here != (*p == letter)) {
        return opi_carry_refuse(graph, node, operand, "operands carry it at different letters",
                                err);
      }
    }
  }
  if (letter == '\0')
    return OPIPE_OK;
  const char *at = strchr(arrow + 2, letter);
  if (at == NULL)
    return opi_carry_refuse(graph, node, 0, "it is summed over", err);
  out[0].axis = (int32_t)(at - (arrow + 2));
  return OPIPE_OK;
}
