/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient of Einsum, whatever the equation.
 *
 * dX_i = Einsum(dY, the other operands -> the letters of operand i that any of those has), then:
 * letters that only operand i has were summed: the result is spread over them; a letter that stands
 * in operand i twice is a diagonal: the result is written there and 0 elsewhere.
 */
#include <string.h>

#include "loader/ops/gradients.h"
#include "loader/ops/rules.h"

enum { MAX_TERMS = 16 };

typedef struct terms {
  char in[MAX_TERMS][OPIPE_MAX_RANK + 1];
  char out[OPIPE_MAX_RANK + 1];
  uint32_t n;
} terms;

/* Canonical equations: letters, commas, one arrow. */
static bool read_terms(const char *text, uint32_t n_in, terms *t) {
  char *at = t->in[0];
  memset(t, 0, sizeof(*t));
  t->n = 1;
  for (const char *p = text; *p != '\0'; ++p) {
    if (*p == ',' || *p == '-') {
      if (*p == ',' && t->n == MAX_TERMS)
        return false;
      at = *p == ',' ? t->in[t->n++] : t->out;
      p += *p == '-' ? 1 : 0; /* over the '>' */
      continue;
    }
    const size_t length = strlen(at);
    if (length == OPIPE_MAX_RANK)
      return false;
    at[length] = *p;
  }
  return t->n == n_in;
}

static void add_letter(char *set, char letter) {
  if (strchr(set, letter) == NULL)
    set[strlen(set)] = letter;
}

/* The letters of operand i that the output or another operand has, each once. */
static void shared_letters(const terms *t, uint32_t i, char *set) {
  memset(set, 0, OPIPE_MAX_RANK + 1);
  for (const char *p = t->in[i]; *p != '\0'; ++p) {
    bool there = strchr(t->out, *p) != NULL;
    for (uint32_t k = 0; k < t->n; ++k)
      there = there || (k != i && strchr(t->in[k], *p) != NULL);
    if (there)
      add_letter(set, *p);
  }
}

/* Einsum(dY, the other operands -> set). */
static opipe_status contract(opi_grad *g, const opi_node *node, const terms *t, uint32_t i,
                             const char *set, uint32_t *out, opipe_error *err) {
  uint32_t in[MAX_TERMS] = {opi_grad_of(g, node, 0)}, n = 1;
  opi_attrs attrs = {.n = 0};
  opi_text text;
  opi_text_init(&text, g->builder->allocator);
  opi_text_printf(&text, "%s", t->out);
  for (uint32_t k = 0; k < t->n; ++k) {
    if (k == i)
      continue;
    opi_text_printf(&text, ",%s", t->in[k]);
    in[n++] = node->in[k];
  }
  opi_text_printf(&text, "->%s", set);
  opipe_status status;
  if (text.failed || text.data == NULL) {
    status = opi_fail_nomem(err, text.n, "an equation");
  } else if (n == 1 && strcmp(set, t->out) == 0) {
    *out = in[0];
    status = OPIPE_OK;
  } else {
    opi_attrs_string(&attrs, "equation", text.data);
    status = opi_k_one(g->builder, "Einsum", 12, in, n, &attrs, out, err);
  }
  opi_text_release(&text);
  return status;
}

/* 1 where the axes a < c of `shape` agree, else 0: [1, .., n, .., n, .., 1]. */
static opipe_status diagonal(opi_grad *g, const int64_t *shape, uint32_t rank, uint32_t a,
                             uint32_t c, uint32_t *out, opipe_error *err) {
  int64_t wide[OPIPE_MAX_RANK];
  uint32_t band;
  for (uint32_t d = 0; d < rank; ++d)
    wide[d] = d == a || d == c ? shape[d] : 1;
  OPI_TRY(opi_k_band(g->builder, shape[a], shape[a], 0, 0, 0, &band, err));
  return opi_k_reshape(g->builder, band, wide, rank, out, err);
}

/* From letters `set` to the axes of operand i: spread, diagonals, in the operand's order. */
static opipe_status spread(opi_grad *g, const char *labels, const char *set, const opi_value *like,
                           uint32_t d, uint32_t *out, opipe_error *err) {
  const uint32_t rank = (uint32_t)like->rank;
  int64_t narrow[OPIPE_MAX_RANK];
  for (uint32_t a = 0; a < rank; ++a) { /* `set` has the operand's order */
    const bool first = strchr(labels, labels[a]) == labels + a;
    narrow[a] = first && strchr(set, labels[a]) != NULL ? like->shape[a] : 1;
  }
  OPI_TRY(opi_k_reshape(g->builder, d, narrow, rank, &d, err));
  OPI_TRY(opi_k_expand(g->builder, d, like->shape, rank, &d, err));
  for (uint32_t a = 0; a < rank; ++a) {
    const uint32_t first = (uint32_t)(strchr(labels, labels[a]) - labels);
    uint32_t mask, zero;
    if (first == a)
      continue;
    OPI_TRY(diagonal(g, like->shape, rank, first, a, &mask, err));
    OPI_TRY(opi_grad_const(g, d, 0, &zero, err));
    OPI_TRY(opi_k_where(g->builder, mask, d, zero, &d, err));
  }
  *out = d;
  return OPIPE_OK;
}

opipe_status opi_gradient_einsum(opi_grad *g, const opi_node *node, opipe_error *err) {
  const char *text = opi_attr_string(node, "equation", "");
  char set[OPIPE_MAX_RANK + 1];
  terms t;
  uint32_t d;
  if (!read_terms(text, node->n_in, &t)) {
    return opi_node_fail(g->builder, node, err, OPIPE_E_INTERNAL,
                         "the equation '%.80s' is not in canonical form", text);
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (!opi_grad_wants(g, node, i))
      continue;
    const opi_value like = *opi_b_value(g->builder, node->in[i]);
    shared_letters(&t, i, set);
    OPI_TRY(contract(g, node, &t, i, set, &d, err));
    OPI_TRY(spread(g, t.in[i], set, &like, d, &d, err));
    OPI_TRY(opi_grad_give(g, node, i, d, err));
  }
  return OPIPE_OK;
}
