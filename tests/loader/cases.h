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

#include "tests/loader/terms.h"

enum { TEST_MOST_VALUES = 2048 }; /* of a bound graph */

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
