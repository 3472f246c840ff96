/* SPDX-License-Identifier: Apache-2.0 */
/* Is an attention causal? One layer over embedded tokens, its mask spelt in the ways of exporters:
 * what is causal is sliced and gives the rows of the whole, fused or not; what is not, or cannot be
 * shown, is refused with the row, the token and the input behind it. */
#include "tests/loader/graphs.h"
#include "tests/loader/passes/sequence.h"

enum { ROWS = 2, TOKENS = 7, WIDTH = 4, WORDS = 16 };

typedef struct layer {
  test_graph t;
  uint32_t ids, scores, rows, columns, low; /* low: 0, or -3.4e38 at later columns; float [S, S] */
} layer;

static uint32_t number(layer *l, float x) {
  return test_known(&l->t, NULL, OPIPE_FLOAT, NULL, 0, &x);
}

static uint32_t whole(layer *l, int64_t x) {
  return test_known(&l->t, NULL, OPIPE_INT64, NULL, 0, &x);
}

static uint32_t three(layer *l, const char *op, uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t in[3] = {a, b, c};
  uint32_t out;
  test_node(&l->t, op, 18, in, 3, NULL, 0, &out, 1);
  return out;
}

static uint32_t cast(layer *l, uint32_t x, uint32_t dtype) {
  const opipe_attr to = OPI_ATTR_I("to", (int64_t)dtype);
  uint32_t out;
  test_node(&l->t, "Cast", 13, &x, 1, &to, 1, &out, 1);
  return out;
}

static uint32_t raise(layer *l, uint32_t x, int64_t axis) {
  return test_op(&l->t, "Unsqueeze", x, test_ints(&l->t, NULL, &axis, 1));
}

static uint32_t softmax(layer *l, uint32_t x) {
  const opipe_attr axis = OPI_ATTR_I("axis", -1);
  uint32_t out;
  test_node(&l->t, "Softmax", 13, &x, 1, &axis, 1, &out, 1);
  return out;
}

static uint32_t weight(layer *l, const char *name, int64_t rows, int64_t columns) {
  const int64_t shape[2] = {rows, columns};
  opi_test_random random = {(uint64_t)name[0]};
  float data[WORDS * WIDTH];
  for (int64_t i = 0; i < rows * columns; ++i)
    data[i] = (float)opi_test_uniform(&random, -1, 1);
  return test_known(&l->t, name, OPIPE_FLOAT, shape, 2, data);
}

static uint32_t masked(layer *l, uint32_t cond, float fill) {
  return three(l, "Where", cond, number(l, fill), number(l, 0));
}

/* An input [batch, seq]. */
static uint32_t input(layer *l, const char *name, uint32_t dtype) {
  const int64_t shape[2] = {-1, -1};
  const uint32_t v = test_input(&l->t, name, dtype, shape, 2);
  test_dim(&l->t, v, 0, "batch");
  test_dim(&l->t, v, 1, "seq");
  return v;
}

static uint32_t embedded;

static void open_layer(layer *l) {
  static const int64_t turn[3] = {0, 2, 1};
  const opipe_attr perm = OPI_ATTR_N("perm", turn, 3);
  uint32_t keys;
  test_open(&l->t);
  l->ids = input(l, "ids", OPIPE_INT64);
  embedded = test_op(&l->t, "Gather", weight(l, "table", WORDS, WIDTH), l->ids);
  const uint32_t k = test_op(&l->t, "MatMul", embedded, weight(l, "keys", WIDTH, WIDTH));
  test_node(&l->t, "Transpose", 13, &k, 1, &perm, 1, &keys, 1);
  l->scores = test_op(&l->t, "MatMul",
                      test_op(&l->t, "MatMul", embedded, weight(l, "queries", WIDTH, WIDTH)), keys);
  const uint32_t shape = test_op(&l->t, "Shape", l->ids, OPIPE_NONE);
  const uint32_t length = test_op(&l->t, "Gather", shape, whole(l, 1));
  const uint32_t range = three(l, "Range", whole(l, 0), length, whole(l, 1));
  l->rows = raise(l, range, 1);
  l->columns = raise(l, range, 0);
  l->low = masked(l, test_op(&l->t, "Greater", l->columns, l->rows), -3.4e38f);
}

static void finish(layer *l, uint32_t weights) {
  const uint32_t v = test_op(&l->t, "MatMul", embedded, weight(l, "values", WIDTH, WIDTH));
  test_output(&l->t, test_op(&l->t, "MatMul", weights, v));
}

static void add(layer *l, uint32_t mask) {
  finish(l, softmax(l, test_op(&l->t, "Add", l->scores, mask)));
}

/* ---- causal models ---- */

static uint32_t pad(layer *l, float fill) {
  const uint32_t mask = cast(l, input(l, "mask", OPIPE_INT64), OPIPE_FLOAT);
  return test_op(&l->t, "Mul", test_op(&l->t, "Sub", number(l, 1), raise(l, mask, 1)),
                 number(l, fill));
}

static void plain(layer *l) {
  add(l, l->low);
}
static void small(layer *l) {
  add(l, masked(l, test_op(&l->t, "Greater", l->columns, l->rows), -1e4f));
}
static void cast_to_bool(layer *l) {
  finish(l,
         softmax(l, three(l, "Where", cast(l, l->low, OPIPE_BOOL), number(l, -1e9f), l->scores)));
}
static void less_than_zero(layer *l) {
  const uint32_t all = test_op(&l->t, "Add", l->low, pad(l, -3.4e38f));
  finish(l, softmax(l, three(l, "Where", test_op(&l->t, "Less", all, number(l, 0)),
                             number(l, -INFINITY), l->scores)));
}
static void with_padding(layer *l) {
  add(l, test_op(&l->t, "Add", pad(l, -3.4e38f), l->low));
}
static void window(layer *l) {
  const uint32_t before = test_op(&l->t, "LessOrEqual", l->columns, l->rows);
  const uint32_t first = test_op(&l->t, "Sub", l->rows, whole(l, 3));
  const uint32_t seen = test_op(&l->t, "And", before, test_op(&l->t, "Greater", l->columns, first));
  add(l, masked(l, test_op(&l->t, "Not", seen, OPIPE_NONE), -INFINITY));
}
static void multiplied(layer *l) {
  const uint32_t keep = cast(l, test_op(&l->t, "LessOrEqual", l->columns, l->rows), OPIPE_FLOAT);
  const uint32_t drop =
      test_op(&l->t, "Mul", test_op(&l->t, "Sub", number(l, 1), keep), number(l, -1e4f));
  finish(l, softmax(l, test_op(&l->t, "Add", test_op(&l->t, "Mul", l->scores, keep), drop)));
}
static void documents(layer *l) {
  const uint32_t of = input(l, "documents", OPIPE_INT64);
  const uint32_t same = test_op(&l->t, "Equal", raise(l, of, 2), raise(l, of, 1));
  const uint32_t seen =
      test_op(&l->t, "And", test_op(&l->t, "LessOrEqual", l->columns, l->rows), same);
  add(l, three(l, "Where", seen, number(l, 0), number(l, -1e9f)));
}
static void with_batch(layer *l) {
  const uint32_t shape = test_op(&l->t, "Shape", l->ids, OPIPE_NONE);
  const int64_t batch = 0, zero = 0;
  const uint32_t n = test_op(&l->t, "Gather", shape, test_ints(&l->t, NULL, &batch, 1));
  const uint32_t parts[2] = {n, test_op(&l->t, "Shape", l->low, OPIPE_NONE)};
  const opipe_attr axis = OPI_ATTR_I("axis", 0);
  uint32_t all;
  (void)zero;
  test_node(&l->t, "Concat", 13, parts, 2, &axis, 1, &all, 1);
  add(l, test_op(&l->t, "Expand", raise(l, l->low, 0), all));
}
static void slopes(layer *l) {
  const uint32_t far = cast(l, test_op(&l->t, "Sub", l->columns, l->rows), OPIPE_FLOAT);
  add(l, test_op(&l->t, "Add", l->low, test_op(&l->t, "Mul", far, number(l, 0.5f))));
}
/* A column beside the scores takes part in the Softmax and is dropped after it; `first`: it stands
 * before them. */
static void sink(layer *l, bool first) {
  const int64_t one_shape[3] = {1, 1, 1}, begin = first, last = first ? INT64_MAX : -1, two = 2;
  const float logit = 0.75f;
  const uint32_t shape = test_op(&l->t, "Shape", l->ids, OPIPE_NONE);
  const uint32_t sizes[2] = {shape, test_ints(&l->t, NULL, one_shape, 1)};
  const opipe_attr front = OPI_ATTR_I("axis", 0), columns = OPI_ATTR_I("axis", 2);
  uint32_t full, joined, in[5];
  test_node(&l->t, "Concat", 13, sizes, 2, &front, 1, &full, 1);
  const uint32_t one = test_known(&l->t, "sink", OPIPE_FLOAT, one_shape, 3, &logit);
  const uint32_t column = test_op(&l->t, "Expand", one, full);
  const uint32_t scores = test_op(&l->t, "Add", l->scores, l->low);
  const uint32_t both[2] = {first ? column : scores, first ? scores : column};
  test_node(&l->t, "Concat", 13, both, 2, &columns, 1, &joined, 1);
  const int64_t axes[1] = {-1}, step[1] = {1};
  uint32_t top, dropped;
  in[0] = joined;
  in[1] = test_ints(&l->t, NULL, &two, 1);
  const opipe_attr keep = OPI_ATTR_I("keepdims", 1);
  test_node(&l->t, "ReduceMax", 18, in, 2, &keep, 1, &top, 1);
  in[0] = softmax(l, test_op(&l->t, "Sub", joined, top));
  in[1] = test_ints(&l->t, NULL, &begin, 1);
  in[2] = test_ints(&l->t, NULL, &last, 1);
  in[3] = test_ints(&l->t, NULL, axes, 1);
  in[4] = test_ints(&l->t, NULL, step, 1);
  test_node(&l->t, "Slice", 13, in, 5, NULL, 0, &dropped, 1);
  finish(l, dropped);
}
static void sink_behind(layer *l) {
  sink(l, false);
}
static void sink_before(layer *l) {
  sink(l, true);
}
/* exp(x - max) / sum */
static void taken_apart(layer *l) {
  const int64_t two = 2;
  const opipe_attr keep = OPI_ATTR_I("keepdims", 1);
  uint32_t in[2] = {test_op(&l->t, "Add", l->scores, l->low), test_ints(&l->t, NULL, &two, 1)};
  uint32_t top, sum;
  test_node(&l->t, "ReduceMax", 18, in, 2, &keep, 1, &top, 1);
  in[0] = test_op(&l->t, "Exp", test_op(&l->t, "Sub", in[0], top), OPIPE_NONE);
  test_node(&l->t, "ReduceSum", 18, in, 2, &keep, 1, &sum, 1);
  finish(l, test_op(&l->t, "Div", in[0], sum));
}

/* ---- others ---- */

static void no_mask(layer *l) {
  finish(l, softmax(l, l->scores));
}
static void one_ahead(layer *l) {
  const uint32_t next = test_op(&l->t, "Add", l->rows, whole(l, 1));
  add(l, masked(l, test_op(&l->t, "Greater", l->columns, next), -1e9f));
}
static void weak(layer *l) {
  add(l, masked(l, test_op(&l->t, "Greater", l->columns, l->rows), -5));
}
static void prefix(layer *l) {
  const uint32_t of = cast(l, input(l, "prefix", OPIPE_INT64), OPIPE_BOOL);
  const uint32_t seen =
      test_op(&l->t, "Or", test_op(&l->t, "LessOrEqual", l->columns, l->rows), raise(l, of, 1));
  add(l, three(l, "Where", seen, number(l, 0), number(l, -1e9f)));
}
static void positions(layer *l) {
  const uint32_t at = input(l, "positions", OPIPE_INT64);
  const uint32_t seen = test_op(&l->t, "LessOrEqual", raise(l, at, 1), raise(l, at, 2));
  add(l, three(l, "Where", seen, number(l, 0), number(l, -1e9f)));
}
static void below_four(layer *l) { /* an input that is 0 or 1 would make it false everywhere */
  const uint32_t at = input(l, "positions", OPIPE_INT64);
  const uint32_t far = test_op(&l->t, "Less", raise(l, at, 1), whole(l, 4));
  const uint32_t later = test_op(&l->t, "Greater", l->columns, l->rows);
  add(l, masked(l, test_op(&l->t, "And", later, far), -1e9f));
}
static void given_mask(layer *l) {
  const uint32_t mask = input(l, "bias", OPIPE_FLOAT);
  add(l, raise(l, mask, 1));
}

typedef struct spelling {
  void (*make)(layer *l);
  const char *name, *refused; /* NULL: it is causal */
} spelling;

static const spelling SPELLINGS[] = {
    {plain, "plain", NULL},
    {small, "-1e4", NULL},
    {cast_to_bool, "large negatives cast to bool", NULL},
    {less_than_zero, "less than 0", NULL},
    {with_padding, "with padding", NULL},
    {window, "a window", NULL},
    {multiplied, "multiplied", NULL},
    {documents, "documents", NULL},
    {with_batch, "with the batch in its shape", NULL},
    {slopes, "ALiBi", NULL},
    {sink_behind, "a sink", NULL},
    {sink_before, "a sink before", NULL},
    {taken_apart, "a Softmax taken apart", NULL},
    {no_mask, "no mask", "it is not causal: "},
    {one_ahead, "one ahead", "row 0 may read token 1"},
    {weak, "a weak bias", "row 0 may read token 1"},
    {prefix, "a prefix", "depends on input 'prefix'"},
    {positions, "positions", "depends on input 'positions'"},
    {below_four, "positions below four", "depends on input 'positions'"},
    {given_mask, "a bias that is given", "depends on input 'bias'"},
};

/* Batch and tokens; inputs hold 0 and 1, ids anything below the table's rows. */
static bool open_spelling(sequence *q, layer *l, const spelling *s, uint32_t flags) {
  memset(q, 0, sizeof *q);
  opi_arena_init(&q->arena, opi_allocator_system(), 0);
  q->evaluator = test_backend_evaluator();
  open_layer(l);
  s->make(l);
  q->m.model = &l->t.model;
  for (uint32_t i = 0; i < l->t.graph->n_inputs; ++i) {
    opi_value v = l->t.graph->values[l->t.graph->inputs[i]];
    const int64_t shape[2] = {ROWS, TOKENS};
    v.shape = opi_arena_copy(&q->arena, shape, sizeof shape);
    if (!opi_tensor_bytes(v.dtype, shape, 2, &v.n_bytes))
      return false;
    v.data = test_fill(&q->arena, &v, i + 3);
    for (int64_t k = 0; v.dtype == OPIPE_INT64 && k < ROWS * TOKENS; ++k)
      ((int64_t *)(uintptr_t)v.data)[k] = i == 0 ? k * 5 % WORDS : k % TOKENS < 6;
    q->m.inputs[q->m.n_inputs++] = v;
  }
  return bind_sequence(q, s->name, flags);
}

static void close_spelling(sequence *q, layer *l) {
  q->m.model = NULL;
  close_sequence(q);
  test_close(&l->t);
}

static bool check_spelling(const spelling *s, uint32_t flags) {
  static const int64_t lengths[] = {2, 1, 4};
  char what[160];
  sequence q;
  layer l;
  (void)snprintf(what, sizeof what, "%s%s", s->name, flags == 0 ? "" : ", not fused");
  const bool bound = open_spelling(&q, &l, s, flags);
  if (!bound) {
    OPI_FAIL("%s", what);
  } else if (s->refused == NULL) {
    check_slices(&q, what, lengths, 3);
  } else {
    opipe_error err = OPIPE_ERROR_INIT;
    opi_token_slice *slice = NULL;
    const opi_graph *g = q.whole->graph;
    const opi_token_wish wish = {&g->values[g->outputs[0]].name, 1, 0, 2};
    const opipe_status status =
        opi_slice_tokens(q.tokens, &wish, q.evaluator, opi_allocator_system(), &slice, &err);
    if (status != OPIPE_E_UNSUPPORTED || strstr(err.message, "node '") == NULL ||
        strstr(err.message, s->refused) == NULL) {
      OPI_FAIL("%s: status %d, %s; to be refused with: %s", what, (int)status, err.message,
               s->refused);
    }
    opi_token_slice_free(slice);
  }
  close_spelling(&q, &l);
  return bound;
}

static void test_every_spelling(void) {
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("the CPU backend is not built");
  for (size_t i = 0; i < OPI_COUNT(SPELLINGS); ++i) {
    OPI_ASSERT(check_spelling(&SPELLINGS[i], 0));
    OPI_ASSERT(check_spelling(&SPELLINGS[i], OPI_BIND_NO_FUSE));
  }
}

OPI_TEST_MAIN("causality", OPI_TEST(test_every_spelling))
