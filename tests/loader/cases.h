/* SPDX-License-Identifier: Apache-2.0 */
/* Operators by one-line cases: file form in, canonical form, shapes and axis rule out.
 *
 *   "Slice@9 f[4,6]^1 | starts=[1] ends=[3] axes=[0] -> Slice f[2,6]^1"
 *
 * OP@VERSION (ms.OP: of com.microsoft), inputs, "|" attributes, "->" the canonical operator that
 * makes output 0 ("alias": no node, "const": known) and every output's type and shape; or "!STATUS
 * part of the message", or "!carry part". inputs   f h d B i n u o c q [shape]: unknown tensor of
 * float32 float16 float64 bfloat16 int64 int32 uint8 bool, c int8, q uint4 i{1,2}: known, rank 1
 * i=5: known, rank 0    i#[2,3]: known zeros of a shape    -: absent ^axis[:outer:inner]  what the
 * input carries, or the output must attrs    name=1  name=0.5f  name=[1,2]  name=f[1,2] (floats)
 * name=$text
 */
#ifndef TESTS_LOADER_CASES_H
#define TESTS_LOADER_CASES_H

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/loader/graphs.h"

enum { TEST_MOST_VALUES = 2048 }; /* of a bound graph */

typedef struct test_term {
  uint32_t dtype;
  bool known;
  int64_t shape[OPIPE_MAX_RANK + 4];
  uint32_t rank;
  int64_t numbers[64]; /* of a known rank 0 or 1 */
  double real;
  bool zeros;
  opi_carry carry;
} test_term;

static uint32_t test_dtype(char c) {
  static const char letters[] = "fhdBinuocq";
  static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_FLOAT16, OPIPE_DOUBLE, OPIPE_BFLOAT16,
                                   OPIPE_INT64, OPIPE_INT32,   OPIPE_UINT8,  OPIPE_BOOL,
                                   OPIPE_INT8,  OPIPE_UINT4};
  const char *at = strchr(letters, c);
  return at != NULL && c != '\0' ? types[at - letters] : OPIPE_UNDEFINED;
}

static uint32_t test_numbers(const char **at, char end, int64_t *out) {
  uint32_t n = 0;
  ++*at;
  while (**at != end && **at != '\0') {
    char *rest = NULL;
    out[n++] = strtoll(*at, &rest, 10);
    *at = *rest == ',' ? rest + 1 : rest;
  }
  if (**at == end)
    ++*at;
  return n;
}

static test_term test_term_read(const char **at) {
  test_term t = {.dtype = test_dtype(**at), .carry = {-1, 0, 1, 1}};
  ++*at;
  if (**at == '#') {
    t.known = t.zeros = true;
    ++*at;
  }
  if (**at == '[') {
    t.rank = test_numbers(at, ']', t.shape);
  } else if (**at == '{') {
    t.known = true;
    t.rank = 1;
    t.shape[0] = test_numbers(at, '}', t.numbers);
  } else if (**at == '=') {
    char *rest = NULL;
    t.known = true;
    t.real = strtod(*at + 1, &rest);
    t.numbers[0] = strtoll(*at + 1, NULL, 10);
    *at = rest;
  }
  if (**at == '^') {
    int64_t *parts[3] = {NULL, &t.carry.outer, &t.carry.inner};
    char *rest = NULL;
    t.carry.axis = (int32_t)strtol(*at + 1, &rest, 10);
    for (int i = 1; i < 3 && *rest == ':'; ++i)
      *parts[i] = strtoll(rest + 1, &rest, 10);
    *at = rest;
  }
  return t;
}

static void test_skip_blanks(const char **at) {
  while (**at == ' ')
    ++*at;
}

static bool test_starts(const char **at, const char *text) {
  test_skip_blanks(at);
  if (strncmp(*at, text, strlen(text)) != 0)
    return false;
  *at += strlen(text);
  return true;
}

static uint32_t test_add_term(test_graph *t, const test_term *term) {
  if (!term->known)
    return test_input(t, NULL, term->dtype, term->shape, term->rank);
  if (term->zeros)
    return test_known(t, NULL, term->dtype, term->shape, term->rank, NULL);
  const bool real = opi_dtype_is_float(term->dtype);
  const double number = term->real;
  uint8_t data[512] = {0};
  const uint32_t n = term->rank == 0 ? 1 : (uint32_t)term->shape[0];
  const uint32_t size = opi_dtype_bits(term->dtype) / 8;
  for (uint32_t k = 0; k < n; ++k) {
    const float single = (float)(real && term->rank == 0 ? number : (double)term->numbers[k]);
    if (real)
      memcpy(data + k * size, &single, size < 4 ? size : 4);
    else
      memcpy(data + k * size, &term->numbers[k], size);
  }
  return test_known(t, NULL, term->dtype, term->shape, term->rank, data);
}

static opipe_attr test_attr_read(test_graph *t, const char **at) {
  const size_t n = strcspn(*at, "=");
  opipe_attr attr = {.name = opi_arena_strndup(&t->arena, *at, n)};
  *at += n + 1;
  if (**at == '[' || strncmp(*at, "f[", 2) == 0) {
    const bool real = **at == 'f';
    int64_t ints[64];
    float floats[64];
    *at += real;
    attr.n = test_numbers(at, ']', ints);
    attr.kind = real ? OPIPE_ATTR_FLOATS : OPIPE_ATTR_INTS;
    for (uint32_t i = 0; i < attr.n; ++i)
      floats[i] = (float)ints[i];
    attr.data = real ? opi_arena_copy(&t->arena, floats, attr.n * sizeof(*floats))
                     : opi_arena_copy(&t->arena, ints, attr.n * sizeof(*ints));
  } else if (**at == '$') {
    const size_t length = strcspn(*at + 1, " ");
    attr.kind = OPIPE_ATTR_STRING;
    attr.n = (uint32_t)length;
    attr.data = opi_arena_strndup(&t->arena, *at + 1, length);
    *at += 1 + length;
  } else {
    char *rest = NULL;
    attr.f = strtod(*at, &rest);
    attr.kind = *rest == 'f' ? OPIPE_ATTR_FLOAT : OPIPE_ATTR_INT;
    if (attr.kind == OPIPE_ATTR_INT)
      attr.i = strtoll(*at, &rest, 10);
    *at = *rest == 'f' ? rest + 1 : rest;
  }
  return attr;
}

static bool test_shape_is(const opi_value *v, const test_term *wanted) {
  if (v->dtype != wanted->dtype || (uint32_t)v->rank != wanted->rank)
    return false;
  for (uint32_t d = 0; d < wanted->rank; ++d) {
    if (v->shape[d] != wanted->shape[d])
      return false;
  }
  return true;
}

static bool test_carry_is(const opi_value *v, const opi_carry *found, const opi_carry *wanted) {
  if (found->axis < 0 || wanted->axis < 0)
    return found->axis == wanted->axis;
  const int64_t all = found->outer * found->inner;
  return found->axis == wanted->axis && found->outer == wanted->outer &&
         found->inner == wanted->inner && all != 0 && v->shape[found->axis] % all == 0;
}

typedef struct test_case {
  const char *text;
  test_graph graph;
  opi_carry carries[16]; /* of graph inputs */
  uint32_t n_carries;
  uint32_t n_outputs;
  char why[600]; /* empty: passed */
} test_case;

static void test_wrong(test_case *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void test_wrong(test_case *c, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(c->why, sizeof(c->why), fmt, args);
  va_end(args);
}

/* "OP@VERSION inputs | attrs": one node; returns what follows "->". */
static const char *test_case_read(test_case *c) {
  const char *at = c->text;
  const size_t n_op = strcspn(at, "@");
  const char *op = opi_arena_strndup(&c->graph.arena, at, n_op);
  char *rest = NULL;
  const uint32_t version = (uint32_t)strtoul(at + n_op + 1, &rest, 10);
  uint32_t in[64], n_in = 0, n_attrs = 0;
  opipe_attr attrs[8];
  at = rest;
  const char *arrow = strstr(c->text, " -> ") + 1;
  for (test_skip_blanks(&at); at < arrow && *at != '|'; test_skip_blanks(&at)) {
    if (*at == '-') {
      in[n_in++] = OPIPE_NONE;
      ++at;
      continue;
    }
    const test_term term = test_term_read(&at);
    in[n_in++] = test_add_term(&c->graph, &term);
    if (!term.known)
      c->carries[c->n_carries++] = term.carry;
  }
  if (*at == '|')
    ++at;
  for (test_skip_blanks(&at); at < arrow; test_skip_blanks(&at))
    attrs[n_attrs++] = test_attr_read(&c->graph, &at);
  at = arrow + 2;
  c->n_outputs = 0;
  const char *count = at;
  (void)test_starts(&count, "");
  while (*count != '\0' && *count != '!') {
    if ((*count == '[') || (*count == '='))
      ++c->n_outputs;
    ++count;
  }
  if (c->n_outputs == 0)
    c->n_outputs = 1;
  uint32_t out[16];
  const bool contrib = strncmp(op, "ms.", 3) == 0;
  opi_node *node = test_node(&c->graph, contrib ? op + 3 : op, version, in, n_in, attrs, n_attrs,
                             out, c->n_outputs);
  if (contrib)
    node->domain = "com.microsoft";
  for (uint32_t o = 0; o < c->n_outputs; ++o)
    test_output(&c->graph, out[o]);
  return at;
}

static int32_t test_status(const char **at) {
  if (test_starts(at, "INVALID"))
    return OPIPE_E_INVALID;
  if (test_starts(at, "UNSUPPORTED"))
    return OPIPE_E_UNSUPPORTED;
  if (test_starts(at, "LIMIT"))
    return OPIPE_E_LIMIT;
  return OPIPE_OK;
}

/* The node that made output `o`, seen through the copy that inputs and constants leave by. */
static const char *test_maker(const opi_graph *g, uint32_t o) {
  const opi_node *node = &g->nodes[g->values[g->outputs[o]].producer];
  if (strcmp(node->op, "Identity") != 0)
    return node->op;
  return g->values[node->in[0]].data != NULL ? "const" : "alias";
}

static void test_check_outputs(test_case *c, const char *at, const opi_bound *bound) {
  const opi_graph *g = bound->graph;
  opi_carry carry[TEST_MOST_VALUES];
  opipe_error err = OPIPE_ERROR_INIT;
  char shape[128];
  test_skip_blanks(&at);
  const size_t n_op = strcspn(at, " ");
  const char *maker = test_maker(g, 0);
  if (strlen(maker) != n_op || strncmp(maker, at, n_op) != 0)
    test_wrong(c, "became %s", maker);
  at += n_op;
  OPI_ASSERT_FATAL(g->n_values <= TEST_MOST_VALUES);
  if (opi_carry_axis(g, NULL, c->carries, carry, &err) < 0) {
    test_wrong(c, "carry: %s", err.message);
    return;
  }
  for (uint32_t o = 0; o < c->n_outputs; ++o) {
    test_skip_blanks(&at);
    const test_term wanted = test_term_read(&at);
    const opi_value *v = &g->values[g->outputs[o]];
    if (!test_shape_is(v, &wanted)) {
      test_wrong(c, "output %u is %s %s", o, opi_dtype_name(v->dtype),
                 opi_shape_text(shape, sizeof(shape), v->shape, (uint32_t)v->rank));
    }
    const opi_carry *found = &carry[g->outputs[o]];
    if (!test_carry_is(v, found, &wanted.carry)) {
      test_wrong(c, "output %u carries %d:%lld:%lld", o, found->axis, (long long)found->outer,
                 (long long)found->inner);
    }
  }
}

static void test_check_carry_refused(test_case *c, const char *part, const opi_bound *bound) {
  opi_carry carry[TEST_MOST_VALUES];
  opipe_error err = OPIPE_ERROR_INIT;
  test_skip_blanks(&part);
  const opipe_status status = opi_carry_axis(bound->graph, NULL, c->carries, carry, &err);
  if (status != OPIPE_E_UNSUPPORTED || strstr(err.message, part) == NULL)
    test_wrong(c, "carry: status %d, '%s'", status, err.message);
}

static void test_run_case(const char *text) {
  test_case c = {.text = text};
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  test_open(&c.graph);
  const char *at = test_case_read(&c);
  opi_bind_options options = test_options();
  const opipe_status status = opi_bind(&c.graph.model, &options, &bound, &err);
  if (test_starts(&at, "!carry")) {
    if (status < 0)
      test_wrong(&c, "does not bind: %s", err.message);
    else
      test_check_carry_refused(&c, at, bound);
  } else if (test_starts(&at, "!")) {
    const int32_t wanted = test_status(&at);
    test_skip_blanks(&at);
    if (status != wanted || strstr(err.message, at) == NULL)
      test_wrong(&c, "status %d, '%s'", status, status < 0 ? err.message : "");
  } else if (status < 0) {
    test_wrong(&c, "does not bind: %s", err.message);
  } else {
    test_check_outputs(&c, at, bound);
  }
  (void)opi_test_check(c.why[0] == '\0', __FILE__, __LINE__, false, "%s\n    %s", text, c.why);
  opi_bound_free(bound);
  test_close(&c.graph);
}

static void test_run_cases(const char *const *cases, size_t n) {
  for (size_t i = 0; i < n; ++i)
    test_run_case(cases[i]);
}
#define TEST_CASES(...)                                \
  do {                                                 \
    static const char *const cases_[] = {__VA_ARGS__}; \
    test_run_cases(cases_, OPI_COUNT(cases_));         \
  } while (0)

#endif /* TESTS_LOADER_CASES_H */
