/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions that exporters write into dim_param: "past_seq + seq", "(((s1 - 1)//8)) + 1",
 * "2*batch", "Max(1, n)". Text that does not parse whole is a plain name.
 *
 * Division rounds towards minus infinity, as the exporters' Python does. Every operation is checked
 * for overflow; depth and length are bounded, the text being hostile.
 */
#include "loader/passes/private.h"

#include <ctype.h>

enum { MOST_LENGTH = 512, MOST_NESTING = 64 };

typedef enum expr_kind {
  EXPR_NUMBER,
  EXPR_NAME,
  EXPR_ADD,
  EXPR_SUB,
  EXPR_MUL,
  EXPR_DIV,
  EXPR_MOD,
  EXPR_MAX,
  EXPR_MIN
} expr_kind;

struct opi_expr {
  expr_kind kind;
  int64_t number;
  const char *name;
  uint32_t id; /* of the name */
  opi_expr *a, *b;
};

typedef struct parser {
  opi_arena *arena;
  const char *at;
  int depth;
  bool failed; /* out of memory */
} parser;

static opi_expr *parse_sum(parser *p);

static void skip_blanks(parser *p) {
  while (*p->at == ' ' || *p->at == '\t')
    ++p->at;
}

static opi_expr *make(parser *p, expr_kind kind, opi_expr *a, opi_expr *b) {
  opi_expr *e = OPI_ARENA_NEW(p->arena, opi_expr);
  if (e == NULL) {
    p->failed = true;
    return NULL;
  }
  *e = (opi_expr){.kind = kind, .a = a, .b = b};
  return e;
}

static bool is_name_char(char c) {
  return isalnum((unsigned char)c) || c == '_' || c == '.' || c == ':';
}

/* "batch-size" is one name; a difference is written with blanks or before a digit. */
static bool is_inner_hyphen(const char *at) {
  return *at == '-' && isalpha((unsigned char)at[1]);
}

static opi_expr *parse_number(parser *p) {
  int64_t number = 0;
  while (isdigit((unsigned char)*p->at)) {
    if (__builtin_mul_overflow(number, 10, &number) ||
        __builtin_add_overflow(number, *p->at - '0', &number))
      return NULL;
    ++p->at;
  }
  if (is_name_char(*p->at))
    return NULL;
  opi_expr *e = make(p, EXPR_NUMBER, NULL, NULL);
  if (e != NULL)
    e->number = number;
  return e;
}

/* name | max(a, b, ...) | min(a, b, ...) */
static opi_expr *parse_name(parser *p) {
  const char *start = p->at;
  while (is_name_char(*p->at) || is_inner_hyphen(p->at))
    ++p->at;
  const char *name = opi_arena_strndup(p->arena, start, (size_t)(p->at - start));
  if (name == NULL) {
    p->failed = true;
    return NULL;
  }
  skip_blanks(p);
  if (*p->at != '(') {
    opi_expr *e = make(p, EXPR_NAME, NULL, NULL);
    if (e != NULL)
      e->name = name;
    return e;
  }
  const bool max = strcmp(name, "Max") == 0 || strcmp(name, "max") == 0;
  if (!max && strcmp(name, "Min") != 0 && strcmp(name, "min") != 0)
    return NULL;
  ++p->at;
  opi_expr *e = parse_sum(p);
  while (e != NULL && *p->at == ',') {
    ++p->at;
    opi_expr *b = parse_sum(p);
    e = b == NULL ? NULL : make(p, max ? EXPR_MAX : EXPR_MIN, e, b);
  }
  if (e == NULL || *p->at != ')')
    return NULL;
  ++p->at;
  return e;
}

static opi_expr *parse_factor(parser *p) {
  skip_blanks(p);
  if (++p->depth > MOST_NESTING)
    return NULL;
  opi_expr *e = NULL;
  if (*p->at == '-') {
    ++p->at;
    opi_expr *b = parse_factor(p);
    opi_expr *zero = make(p, EXPR_NUMBER, NULL, NULL);
    e = b == NULL || zero == NULL ? NULL : make(p, EXPR_SUB, zero, b);
  } else if (*p->at == '(') {
    ++p->at;
    e = parse_sum(p);
    if (e == NULL || *p->at != ')')
      return NULL;
    ++p->at;
  } else if (isdigit((unsigned char)*p->at)) {
    e = parse_number(p);
  } else if (is_name_char(*p->at)) {
    e = parse_name(p);
  }
  --p->depth;
  skip_blanks(p);
  return e;
}

static opi_expr *parse_product(parser *p) {
  opi_expr *e = parse_factor(p);
  while (e != NULL && (*p->at == '*' || *p->at == '/' || *p->at == '%')) {
    const char op = *p->at++;
    if (op == '*' && *p->at == '*')
      return NULL;
    if (op == '/' && *p->at == '/')
      ++p->at;
    opi_expr *b = parse_factor(p);
    const expr_kind kind = op == '*' ? EXPR_MUL : op == '/' ? EXPR_DIV : EXPR_MOD;
    e = b == NULL ? NULL : make(p, kind, e, b);
  }
  return e;
}

static opi_expr *parse_sum(parser *p) {
  if (++p->depth > MOST_NESTING)
    return NULL;
  opi_expr *e = parse_product(p);
  while (e != NULL && (*p->at == '+' || *p->at == '-')) {
    const expr_kind kind = *p->at++ == '+' ? EXPR_ADD : EXPR_SUB;
    opi_expr *b = parse_product(p);
    e = b == NULL ? NULL : make(p, kind, e, b);
  }
  --p->depth;
  return e;
}

opipe_status opi_expr_parse(opi_arena *arena, const char *text, opi_expr **out_expr,
                            opipe_error *err) {
  parser p = {.arena = arena, .at = text};
  *out_expr = NULL;
  if (strnlen(text, MOST_LENGTH + 1) > MOST_LENGTH)
    return OPIPE_OK;
  opi_expr *e = parse_sum(&p);
  if (p.failed)
    return opi_fail_nomem(err, sizeof(opi_expr), "an expression");
  if (e != NULL && *p.at == '\0')
    *out_expr = e;
  return OPIPE_OK;
}

bool opi_expr_visit(opi_expr *e, opi_expr_visitor visit, void *ctx) {
  if (e == NULL)
    return true;
  if (e->kind == EXPR_NAME)
    return visit(ctx, e->name, &e->id);
  return opi_expr_visit(e->a, visit, ctx) && opi_expr_visit(e->b, visit, ctx);
}

uint32_t opi_expr_size(const opi_expr *e) {
  return e == NULL ? 0 : 1 + opi_expr_size(e->a) + opi_expr_size(e->b);
}

static bool divide(int64_t a, int64_t b, bool remainder, int64_t *out) {
  if (b == 0 || (a == INT64_MIN && b == -1))
    return false;
  int64_t q = a / b, r = a % b;
  if (r != 0 && (r < 0) != (b < 0)) {
    --q;
    r += b;
  }
  *out = remainder ? r : q;
  return true;
}

bool opi_expr_eval(const opi_expr *e, opi_expr_lookup lookup, const void *ctx, int64_t *out) {
  int64_t a = 0, b = 0;
  if (e->kind == EXPR_NUMBER) {
    *out = e->number;
    return true;
  }
  if (e->kind == EXPR_NAME)
    return lookup(ctx, e->name, e->id, out);
  if (!opi_expr_eval(e->a, lookup, ctx, &a) || !opi_expr_eval(e->b, lookup, ctx, &b))
    return false;
  switch (e->kind) {
    case EXPR_ADD:
      return !__builtin_add_overflow(a, b, out);
    case EXPR_SUB:
      return !__builtin_sub_overflow(a, b, out);
    case EXPR_MUL:
      return !__builtin_mul_overflow(a, b, out);
    case EXPR_DIV:
      return divide(a, b, false, out);
    case EXPR_MOD:
      return divide(a, b, true, out);
    case EXPR_MAX:
      *out = a > b ? a : b;
      return true;
    case EXPR_MIN:
      *out = a < b ? a : b;
      return true;
    default:
      return false;
  }
}
