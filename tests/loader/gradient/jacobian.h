/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient rules against central differences, in double, through the CPU backend, and the same
 * node in float, half and bfloat16 against that; one line a case:
 *
 *   "Gemm@13 d[2,3] d[3,4] d[4] | alpha=0.5f transB=0 -> y"
 *
 * OP@VERSION (ms.OP: of com.microsoft), inputs, "|" attributes, "->" one letter per output:
 *   y  in the loss   n  made, not in the loss   -  absent
 * and then, where gradients must be refused, "!part of the message".
 * The loss is the sum over outputs of sum(weight * output), weights random. Inputs:
 *   d[2,3]   doubles in [-1, 1], differentiated     d+[..]  in [0.5, 2]    d~[..]  all at least 0.1
 *   apart    d{1,2}[2]  given numbers, differentiated
 *   c...     the same, constant                     f{..}   float constant
 *   i{0,1}[2]  int64 constant (without a shape: rank 1)   n{..}  int32   o{..}  bool
 *   i=3 c=0.5 d=0.5  rank 0                         -       absent
 * Attributes: name=1  name=0.5f  name=[1,2]  name=f[0.5,2]  name=$text  name=@text,text
 */
#ifndef TESTS_LOADER_GRADIENT_JACOBIAN_H
#define TESTS_LOADER_GRADIENT_JACOBIAN_H

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "loader/gradient/gradient.h"
#include "loader/ops/kit.h"
#include "tests/loader/backend_evaluator.h"
#include "tests/loader/graphs.h"

enum { JAC_INPUTS = 12, JAC_ATTRS = 12, JAC_ELEMS = 256, JAC_OUTPUTS = 48 };

typedef struct jac_case {
  const char *text;
  test_graph graph;
  uint64_t seed;
  uint32_t dtype;                 /* of d and c terms */
  const char *params[JAC_INPUTS]; /* names of what is differentiated */
  uint32_t n_params;
  opi_bound *bound;
  opi_training *training;
  double bend; /* added to every gradient, to see that it is found out */
  uint64_t n_compared;
  double gradient[JAC_INPUTS][JAC_ELEMS]; /* of params, 0 where nothing arrives */
  char why[400];
} jac_case;

static inline double jac_random(uint64_t *seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (double)(*seed >> 33) / 1073741824.0 - 1.0;
}

static inline void jac_wrong(jac_case *c, const char *text, double a, double b, uint64_t at) {
  if (c->why[0] == '\0') {
    (void)snprintf(c->why, sizeof(c->why), "%.200s (found %.12g, wanted %.12g, element %llu)", text,
                   a, b, (unsigned long long)at);
  }
}

/* -- reading a case ---------------------------------------------------------------------------- */

static inline void jac_blanks(const char **at) {
  while (**at == ' ')
    ++*at;
}

static inline uint32_t jac_list(const char **at, char end, double *out) {
  uint32_t n = 0;
  ++*at;
  while (**at != end && **at != '\0' && n < JAC_ELEMS) {
    char *rest = NULL;
    out[n++] = strtod(*at, &rest);
    *at = *rest == ',' ? rest + 1 : rest;
  }
  if (**at == end)
    ++*at;
  return n;
}

static inline void jac_fill(jac_case *c, char how, double *out, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    const double r = jac_random(&c->seed);
    out[i] = how == '+' ? 1.25 + 0.75 * r : r;
  }
  if (how != '~')
    return;
  for (uint64_t i = 0; i < n; ++i)
    out[i] = 0.15 * (double)i - 0.075 * (double)n + 0.02 * out[i];
  for (uint64_t i = n; i-- > 1;) {
    const uint64_t k = (uint64_t)((jac_random(&c->seed) + 1.0) * 0.4999 * (double)(i + 1));
    const double held = out[i];
    out[i] = out[k];
    out[k] = held;
  }
}

/* Half and bfloat16, to nearest even; what is too large becomes infinite. */
static inline uint16_t jac_half(double number, uint32_t dtype) {
  const uint32_t bits = dtype == OPIPE_FLOAT16 ? 10 : 7, bias = dtype == OPIPE_FLOAT16 ? 15 : 127;
  const uint16_t sign = signbit(number) ? 0x8000 : 0;
  const uint32_t infinite = ((2 * bias + 1) << bits);
  int exponent = 0;
  if (number == 0 || !isfinite(number))
    return (uint16_t)(sign | (number == 0 ? 0 : infinite));
  (void)frexp(fabs(number), &exponent);
  exponent -= 1;
  if (exponent < 1 - (int)bias)
    exponent = 1 - (int)bias;
  const double steps = rint(ldexp(fabs(number), (int)bits - exponent)); /* of the last place */
  const uint64_t whole = (uint64_t)steps + ((uint64_t)(exponent + (int)bias - 1) << bits);
  return (uint16_t)(sign | (whole > infinite ? infinite : (uint32_t)whole));
}

static inline double jac_load(uint32_t dtype, const void *data, uint64_t i) {
  const opi_value one = {.data = (const char *)data + i * (opi_dtype_bits(dtype) / 8),
                         .n_bytes = opi_dtype_bits(dtype) / 8,
                         .dtype = dtype};
  double number = NAN;
  (void)opi_known_scalar(&one, &number);
  return number;
}

static inline void jac_store(uint32_t dtype, double number, void *data, uint64_t i) {
  switch (dtype) {
    case OPIPE_FLOAT16:
    case OPIPE_BFLOAT16:
      ((uint16_t *)data)[i] = jac_half(number, dtype);
      return;
    case OPIPE_DOUBLE:
      ((double *)data)[i] = number;
      return;
    case OPIPE_FLOAT:
      ((float *)data)[i] = (float)number;
      return;
    case OPIPE_INT64:
      ((int64_t *)data)[i] = number >= 9.2e18 ? INT64_MAX : (int64_t)number;
      return;
    case OPIPE_INT32:
      ((int32_t *)data)[i] = (int32_t)number;
      return;
    default:
      ((uint8_t *)data)[i] = number != 0;
  }
}

/* One term of the inputs; adds it to the graph. */
static inline uint32_t jac_input(jac_case *c, const char **at) {
  static const char letters[] = "dcfino";
  static const uint32_t types[] = {OPIPE_DOUBLE, OPIPE_DOUBLE, OPIPE_FLOAT,
                                   OPIPE_INT64,  OPIPE_INT32,  OPIPE_BOOL};
  double numbers[JAC_ELEMS], dims[OPIPE_MAX_RANK];
  uint8_t data[JAC_ELEMS * 8] = {0};
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank = 0, n = 0;
  const char kind = *(*at)++;
  if (kind == '-')
    return OPIPE_NONE;
  const uint32_t dtype =
      kind == 'd' || kind == 'c' ? c->dtype : types[strchr(letters, kind) - letters];
  const char how = **at == '+' || **at == '~' ? *(*at)++ : ' ';
  bool given = false;
  if (**at == '=') {
    char *rest = NULL;
    numbers[0] = strtod(*at + 1, &rest);
    *at = rest;
    n = 1;
    given = true;
  } else if (**at == '{') {
    n = jac_list(at, '}', numbers);
    shape[0] = n;
    rank = 1;
    given = true;
  }
  if (**at == '[') {
    uint64_t elems = 1;
    rank = jac_list(at, ']', dims);
    for (uint32_t d = 0; d < rank; ++d) {
      shape[d] = (int64_t)dims[d];
      elems *= (uint64_t)shape[d];
    }
    if (!given)
      n = (uint32_t)elems;
    test_need(n == elems && n <= JAC_ELEMS);
  }
  if (!given)
    jac_fill(c, how, numbers, n);
  for (uint32_t i = 0; i < n; ++i)
    jac_store(dtype, numbers[i], data, i);
  const char *name =
      opi_arena_printf(&c->graph.arena, "%c%u", kind == 'd' ? 'p' : 'k', c->graph.n_names++);
  test_need(name != NULL);
  const uint32_t v = test_known(&c->graph, name, dtype, shape, rank, data);
  if (kind == 'd')
    c->params[c->n_params++] = name;
  return v;
}

static inline opipe_attr jac_attr(jac_case *c, const char **at) {
  opipe_attr attr = {0};
  double numbers[JAC_ELEMS];
  const size_t n_name = strcspn(*at, "=");
  char *name = opi_arena_alloc(&c->graph.arena, n_name + 1);
  test_need(name != NULL);
  memcpy(name, *at, n_name);
  name[n_name] = '\0';
  *at += n_name + 1;
  attr.name = name;
  if (strncmp(*at, "f[", 2) == 0) {
    ++*at;
    attr.kind = OPIPE_ATTR_FLOATS;
    attr.n = jac_list(at, ']', numbers);
    float *floats = OPI_ARENA_ARRAY(&c->graph.arena, float, attr.n);
    test_need(floats != NULL);
    for (uint32_t i = 0; i < attr.n; ++i)
      floats[i] = (float)numbers[i];
    attr.data = floats;
  } else if (**at == '@') {
    const char **texts = OPI_ARENA_ARRAY(&c->graph.arena, const char *, JAC_ATTRS);
    test_need(texts != NULL);
    do {
      const size_t n = strcspn(*at + 1, ", ");
      texts[attr.n] = opi_arena_strndup(&c->graph.arena, *at + 1, n);
      test_need(texts[attr.n++] != NULL && attr.n < JAC_ATTRS);
      *at += 1 + n;
    } while (**at == ',');
    attr.kind = OPIPE_ATTR_STRINGS;
    attr.data = texts;
  } else if (**at == '[') {
    attr.kind = OPIPE_ATTR_INTS;
    attr.n = jac_list(at, ']', numbers);
    int64_t *ints = OPI_ARENA_ARRAY(&c->graph.arena, int64_t, attr.n);
    test_need(ints != NULL);
    for (uint32_t i = 0; i < attr.n; ++i)
      ints[i] = (int64_t)numbers[i];
    attr.data = ints;
  } else if (**at == '$') {
    const size_t n = strcspn(*at + 1, " ");
    char *text = opi_arena_alloc(&c->graph.arena, n + 1);
    test_need(text != NULL);
    memcpy(text, *at + 1, n);
    text[n] = '\0';
    attr.kind = OPIPE_ATTR_STRING;
    attr.data = text;
    attr.n = (uint32_t)n;
    *at += 1 + n;
  } else {
    char *rest = NULL;
    const double number = strtod(*at, &rest);
    attr.kind = *rest == 'f' ? OPIPE_ATTR_FLOAT : OPIPE_ATTR_INT;
    attr.f = (double)(float)number;
    attr.i = (int64_t)number;
    *at = *rest == 'f' ? rest + 1 : rest;
  }
  return attr;
}

/* Adds the node; out [n]. */
static inline uint32_t jac_node(jac_case *c, const char **at, uint32_t *out, const char **roles) {
  char op[64];
  uint32_t in[JAC_INPUTS], n_in = 0, n_attrs = 0, n_out = 0;
  opipe_attr attrs[JAC_ATTRS];
  char *rest = NULL;
  const size_t n_op = strcspn(*at, "@");
  test_need(n_op < sizeof(op));
  memcpy(op, *at, n_op);
  op[n_op] = '\0';
  const uint32_t version = (uint32_t)strtoul(*at + n_op + 1, &rest, 10);
  *at = rest;
  for (jac_blanks(at); **at != '|' && strncmp(*at, "->", 2) != 0; jac_blanks(at))
    in[n_in++] = jac_input(c, at);
  if (**at == '|') {
    ++*at;
    for (jac_blanks(at); strncmp(*at, "->", 2) != 0; jac_blanks(at))
      attrs[n_attrs++] = jac_attr(c, at);
  }
  *at += 2;
  jac_blanks(at);
  *roles = *at;
  n_out = (uint32_t)strcspn(*at, " ");
  const bool contrib = strncmp(op, "ms.", 3) == 0;
  const char *name = opi_arena_printf(&c->graph.arena, "%s", contrib ? op + 3 : op);
  test_need(name != NULL);
  opi_node *node = test_node(&c->graph, name, version, in, n_in, attrs, n_attrs, out, n_out);
  if (contrib)
    node->domain = "com.microsoft";
  for (uint32_t o = 0; o < n_out; ++o) {
    if ((*roles)[o] == '-')
      node->out[o] = OPIPE_NONE;
  }
  return n_out;
}

/* The node alone, to learn its outputs' shapes. */
static inline opipe_status jac_bind(jac_case *c, opi_bound **out, opipe_error *err) {
  opi_bind_options options = test_options();
  options.flags |= OPI_BIND_KEEP_PARAMETERS | OPI_BIND_KEEP_TYPES; /* rules of half types too */
  return opi_bind(&c->graph.model, &options, out, err);
}

/* -- the loss ---------------------------------------------------------------------------------- */

/* Adds sum(weight * y) for the outputs that are in it. */
static inline opipe_status jac_loss(jac_case *c, const uint32_t *out, const char *roles, uint32_t n,
                                    opipe_error *err) {
  opi_bound *alone = NULL;
  uint32_t loss = OPIPE_NONE;
  const opi_graph saved = *c->graph.graph;
  for (uint32_t o = 0; o < n; ++o) {
    if (roles[o] == 'y')
      test_output(&c->graph, out[o]);
  }
  OPI_TRY(jac_bind(c, &alone, err));
  const uint32_t n_outputs = alone->graph->n_outputs;
  c->graph.graph->n_outputs = saved.n_outputs;
  for (uint32_t o = 0, k = 0; o < n && k < n_outputs; ++o) {
    double weights[JAC_ELEMS] = {0};
    uint32_t product, sum, as_double = out[o];
    if (roles[o] != 'y')
      continue;
    const opi_value *y = &alone->graph->values[alone->graph->outputs[k++]];
    const double elems = opi_k_elems(y);
    const opipe_attr to = OPI_ATTR_I("to", OPIPE_DOUBLE);
    test_need(elems <= JAC_ELEMS);
    if (y->dtype != OPIPE_DOUBLE)
      test_node(&c->graph, "Cast", 13, &out[o], 1, &to, 1, &as_double, 1);
    for (uint64_t i = 0; (double)i < elems; ++i)
      weights[i] = jac_random(&c->seed);
    const uint32_t w =
        test_known(&c->graph, NULL, OPIPE_DOUBLE, y->shape, (uint32_t)y->rank, weights);
    product = test_op(&c->graph, "Mul", as_double, w);
    const opipe_attr keep = OPI_ATTR_I("keepdims", 0);
    test_node(&c->graph, "ReduceSum", 13, &product, 1, &keep, 1, &sum, 1);
    loss = loss == OPIPE_NONE ? sum : test_op(&c->graph, "Add", loss, sum);
  }
  opi_bound_free(alone);
  test_need(loss != OPIPE_NONE);
  test_rename(&c->graph, loss, "loss");
  test_output(&c->graph, loss);
  return OPIPE_OK;
}

static inline opipe_status jac_build(jac_case *c, opipe_error *err) {
  opi_train_glob globs[1 + JAC_INPUTS] = {{"*", false}};
  for (uint32_t p = 0; p < c->n_params; ++p)
    globs[1 + p] = (opi_train_glob){c->params[p], true};
  const opi_loss loss = {.kind = OPI_LOSS_OUTPUT, .output = "loss"};
  const opi_gradient_options options = {.loss = &loss,
                                        .globs = globs,
                                        .n_globs = 1 + c->n_params,
                                        .compute = OPIPE_FLOAT,
                                        .evaluator = test_backend_evaluator(),
                                        .allocator = opi_allocator_system()};
  OPI_TRY(jac_bind(c, &c->bound, err));
  return opi_gradient_build(c->bound, &options, &c->training, err);
}

/* -- running ----------------------------------------------------------------------------------- */

/* Runs `graph` without its Accumulates and gives wanted [n] values: out[i] is set to dense data in
 * `arena`. */
static inline opipe_status jac_run(const opi_graph *graph, opi_arena *arena, const uint32_t *wanted,
                                   uint32_t n, const void **out, opipe_error *err) {
  static const double one = 1;
  opi_graph plain = *graph;
  uint32_t outputs[JAC_OUTPUTS], n_outputs = 0;
  void *data[JAC_OUTPUTS];
  opipe_graph abi;
  plain.nodes = OPI_ARENA_ARRAY(arena, opi_node, graph->n_nodes);
  plain.values = OPI_ARENA_ARRAY(arena, opi_value, graph->n_values);
  test_need(plain.nodes != NULL && plain.values != NULL && n <= JAC_OUTPUTS);
  memcpy(plain.values, graph->values, graph->n_values * sizeof(opi_value));
  plain.n_nodes = 0;
  for (uint32_t k = 0; k < graph->n_nodes; ++k) {
    if (strcmp(graph->nodes[k].op, "Accumulate") != 0)
      plain.nodes[plain.n_nodes++] = graph->nodes[k];
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if ((graph->values[v].flags & OPI_VALUE_SCALAR) != 0)
      plain.values[v].data = &one;
  }
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t k = 0;
    out[i] = plain.values[wanted[i]].data;
    while (k < n_outputs && outputs[k] != wanted[i])
      ++k;
    if (out[i] == NULL && k == n_outputs) {
      outputs[n_outputs] = wanted[i];
      data[n_outputs++] = opi_arena_alloc(arena, plain.values[wanted[i]].n_bytes);
    }
    if (out[i] == NULL)
      out[i] = data[k];
  }
  plain.inputs = NULL;
  plain.n_inputs = 0;
  plain.outputs = outputs;
  plain.n_outputs = n_outputs;
  OPI_TRY(opi_graph_to_abi(&plain, arena, &abi, err));
  const opi_evaluator *evaluator = test_backend_evaluator();
  return n_outputs == 0 ? OPIPE_OK : evaluator->run(evaluator->ctx, &abi, data, err);
}

static inline opipe_status jac_forward(jac_case *c, double *out_loss, opipe_error *err) {
  opi_arena arena;
  const void *loss = NULL;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const opipe_status status =
      jac_run(c->bound->graph, &arena, c->bound->graph->outputs, 1, &loss, err);
  *out_loss = status < 0 ? NAN : *(const double *)loss;
  opi_arena_release(&arena);
  return status;
}

/* d loss / d element i of the value by central differences. */
static inline opipe_status jac_slope(jac_case *c, opi_value *value, uint64_t i, double *out,
                                     opipe_error *err) {
  const double step = 1e-5;
  const void *held = value->data;
  double *moved = malloc(value->n_bytes), up = 0, down = 0;
  test_need(moved != NULL);
  memcpy(moved, held, value->n_bytes);
  value->data = moved;
  moved[i] = ((const double *)held)[i] + step;
  opipe_status status = jac_forward(c, &up, err);
  moved[i] = ((const double *)held)[i] - step;
  if (status >= 0)
    status = jac_forward(c, &down, err);
  value->data = held;
  free(moved);
  *out = (up - down) / (2 * step);
  return status;
}

static inline opipe_status jac_compare(jac_case *c, uint32_t p, opipe_error *err) {
  const uint32_t v = opi_bound_value(c->bound, c->params[p]);
  if (v == OPIPE_NONE)
    return OPIPE_OK; /* nothing reads it */
  opi_value *value = &c->bound->graph->values[v];
  for (uint64_t i = 0; i < value->n_bytes / 8; ++i) {
    double wanted = 0;
    const double have = c->gradient[p][i] + c->bend;
    OPI_TRY(jac_slope(c, value, i, &wanted, err));
    if (!(fabs(have - wanted) <= 2e-7 * (1 + fabs(wanted))))
      jac_wrong(c, c->params[p], have, wanted, i);
    ++c->n_compared;
  }
  return OPIPE_OK;
}

/* The gradient that Accumulate i of parameter p reads; OPIPE_NONE: there is none. */
static inline uint32_t jac_gradient(const opi_training *t, const opi_train_param *p, uint32_t i) {
  if (i >= p->n_gradients)
    return OPIPE_NONE;
  return t->graph->nodes[t->graph->values[p->gradients[i]].producer].in[0];
}

/* Runs the backward pass: c->gradient, the sum of what a parameter's Accumulates read. */
static inline opipe_status jac_backward(jac_case *c, opipe_error *err) {
  opi_arena arena;
  uint32_t wanted[JAC_OUTPUTS] = {0}, of[JAC_OUTPUTS] = {0}, n = 0;
  const void *out[JAC_OUTPUTS] = {NULL};
  const opi_training *t = c->training;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  for (uint32_t p = 0; p < t->n_params; ++p) {
    for (uint32_t k = 0; k < c->n_params; ++k) {
      const bool same = strcmp(c->params[k], t->params[p].name) == 0;
      for (uint32_t i = 0; same && i < t->params[p].n_gradients; ++i) {
        test_need(n < JAC_OUTPUTS);
        of[n] = k;
        wanted[n++] = jac_gradient(t, &t->params[p], i);
      }
    }
  }
  const opipe_status status = jac_run(t->graph, &arena, wanted, n, out, err);
  for (uint32_t k = 0; k < n && status >= 0; ++k) {
    const opi_value *v = &t->graph->values[wanted[k]];
    for (uint64_t i = 0; (double)i < opi_k_elems(v); ++i)
      c->gradient[of[k]][i] += jac_load(v->dtype, out[k], i);
  }
  opi_arena_release(&arena);
  return status;
}

static inline opipe_status jac_differences(jac_case *c, opipe_error *err) {
  for (uint32_t p = 0; p < c->n_params; ++p)
    OPI_TRY(jac_compare(c, p, err));
  return OPIPE_OK;
}

static inline void jac_free(jac_case *c) {
  opi_training_free(c->training);
  opi_bound_free(c->bound);
  test_close(&c->graph);
}

/* Opens c (jac_free closes it) and fills in why, when the case fails. */
static inline void jac_try(jac_case *c) {
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t out[JAC_OUTPUTS];
  const char *at = c->text, *roles = NULL;
  test_open(&c->graph);
  for (const char *p = c->text; *p != '\0'; ++p)
    c->seed = c->seed * 31 + (unsigned char)*p;
  const uint32_t n_out = jac_node(c, &at, out, &roles);
  opipe_status status = jac_loss(c, out, roles, n_out, &err);
  if (status >= 0)
    status = jac_build(c, &err);
  if (status >= 0)
    status = jac_backward(c, &err);
  if (status >= 0 && c->dtype == OPIPE_DOUBLE)
    status = jac_differences(c, &err);
  const char *refused = strchr(roles, '!');
  if (refused != NULL ? status >= 0 || strstr(err.message, refused + 1) == NULL : status < 0)
    (void)snprintf(c->why, sizeof(c->why), "%.380s", status < 0 ? err.message : "not refused");
  else if (refused == NULL && c->dtype == OPIPE_DOUBLE && c->n_compared == 0)
    (void)snprintf(c->why, sizeof(c->why), "nothing was compared");
}

/* The same node in another type: gradients within `tolerance` of the largest. */
static inline void jac_run_typed(const jac_case *exact, uint32_t dtype, double tolerance) {
  jac_case c = {.text = exact->text, .seed = 1, .dtype = dtype};
  jac_try(&c);
  for (uint32_t p = 0; p < c.n_params && c.why[0] == '\0'; ++p) {
    double largest = 1;
    for (uint32_t i = 0; i < JAC_ELEMS; ++i)
      largest = fmax(largest, fabs(exact->gradient[p][i]));
    for (uint32_t i = 0; i < JAC_ELEMS; ++i) {
      if (!(fabs(c.gradient[p][i] - exact->gradient[p][i]) <= tolerance * largest))
        jac_wrong(&c, c.params[p], c.gradient[p][i], exact->gradient[p][i], i);
    }
  }
  (void)opi_test_check(c.why[0] == '\0', __FILE__, __LINE__, false, "%s\n    %s: %s", c.text,
                       opi_dtype_name(dtype), c.why);
  jac_free(&c);
}

static inline void jac_run_case(const char *text) {
  jac_case c = {.text = text, .seed = 1, .dtype = OPIPE_DOUBLE};
  jac_try(&c);
  (void)opi_test_check(c.why[0] == '\0', __FILE__, __LINE__, false, "%s\n    %s", text, c.why);
  if (c.why[0] == '\0' && c.training != NULL) {
    jac_run_typed(&c, OPIPE_FLOAT, 2e-5);
    jac_run_typed(&c, OPIPE_FLOAT16, 2e-2);
    jac_run_typed(&c, OPIPE_BFLOAT16, 0.15);
  }
  jac_free(&c);
}

static inline void jac_run_cases(const char *const *cases, size_t n) {
  if (test_backend_evaluator() == NULL) {
    opi_test_skip("backend-cpu is not built");
    return;
  }
  for (size_t i = 0; i < n; ++i)
    jac_run_case(cases[i]);
}
#define JAC_CASES(...)                                 \
  do {                                                 \
    static const char *const cases_[] = {__VA_ARGS__}; \
    jac_run_cases(cases_, OPI_COUNT(cases_));          \
  } while (0)

#endif /* TESTS_LOADER_GRADIENT_JACOBIAN_H */
