/* SPDX-License-Identifier: Apache-2.0 */
/* Domain "opipe": shapes and types that rules give, what they refuse, the axis rule, work.
 *
 * These operators have no file form, so nodes are emitted through a builder. One line a case:
 * inputs f d h B i (float double half bfloat16 int64) with [shape]^axis, "-" absent; "->" outputs
 * alike, or "!part of the message", or "!carry part".
 */
#include "loader/ops/common.h"
#include "loader/ops/kit.h"
#include "tests/loader/graphs.h"

enum { MOST = 8 };

typedef struct bench {
  opi_arena arena, scratch;
  opi_graph *graph;
  opi_builder b;
  opipe_error err;
} bench;

static void open_bench(bench *t) {
  memset(t, 0, sizeof(*t));
  opi_arena_init(&t->arena, opi_allocator_system(), 0);
  opi_arena_init(&t->scratch, opi_allocator_system(), 0);
  t->err = (opipe_error)OPIPE_ERROR_INIT;
  t->graph = opi_graph_new(&t->arena, "train");
  test_need(t->graph != NULL);
  test_need(opi_b_open(&t->b, t->graph, &t->scratch, opi_allocator_system(), &t->err) >= 0);
}

static void close_bench(bench *t) {
  opi_b_close(&t->b);
  opi_arena_release(&t->scratch);
  opi_arena_release(&t->arena);
}

typedef struct term {
  uint32_t dtype;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank;
  int32_t axis;
} term;

static bool read_term(const char **at, term *out) {
  static const char letters[] = "fdhBi";
  static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_DOUBLE, OPIPE_FLOAT16, OPIPE_BFLOAT16,
                                   OPIPE_INT64};
  char *rest = NULL;
  while (**at == ' ')
    ++*at;
  *out = (term){.axis = -1};
  if (**at == '-') {
    ++*at;
    return false;
  }
  out->dtype = types[strchr(letters, **at) - letters];
  for (*at += 2; **at != ']'; *at += **at == ',') {
    out->shape[out->rank++] = strtoll(*at, &rest, 10);
    *at = rest;
  }
  ++*at;
  if (**at == '^') {
    out->axis = (int32_t)strtol(*at + 1, &rest, 10);
    *at = rest;
  }
  return true;
}

static void check_output(bench *t, const char *text, const char **at, uint32_t v,
                         const opi_carry *carry) {
  term want;
  if (!read_term(at, &want)) {
    OPI_ASSERT(v == OPIPE_NONE);
    return;
  }
  const opi_value *x = opi_b_value(&t->b, v);
  const bool same = x->dtype == want.dtype && x->rank == (int32_t)want.rank &&
                    (want.rank == 0 || memcmp(x->shape, want.shape, want.rank * 8) == 0);
  (void)opi_test_check(same, __FILE__, __LINE__, false, "%s: another shape or type", text);
  (void)opi_test_check(carry->axis == want.axis, __FILE__, __LINE__, false, "%s: carried along %d",
                       text, carry->axis);
}

/* want: bit per output. */
static void check(const char *op, const opi_attrs *attrs, uint32_t want, const char *text) {
  bench t;
  uint32_t in[MOST], out[MOST] = {0}, n_in = 0;
  opi_carry in_carry[MOST], out_carry[MOST];
  const char *at = text;
  open_bench(&t);
  for (; *at == ' ' || strncmp(at, "->", 2) != 0;) {
    term x;
    const bool there = read_term(&at, &x);
    in[n_in] = OPIPE_NONE;
    if (there) {
      in[n_in] = opi_b_borrow(&t.b, opi_b_name(&t.b), x.dtype, x.shape, x.rank, NULL);
      test_need(in[n_in] != OPIPE_NONE);
    }
    in_carry[n_in++] = (opi_carry){there ? x.axis : -1, 0, 1, 1};
    while (*at == ' ')
      ++at;
  }
  for (at += 2; *at == ' ';)
    ++at;
  opipe_status status = opi_k_node(&t.b, op, "opipe", 1, in, n_in, want, attrs, out, &t.err);
  const bool for_carry = strncmp(at, "!carry ", 7) == 0;
  if (status >= 0) {
    const opi_node *node = &t.graph->nodes[t.graph->n_nodes - 1];
    const opi_op *row = opi_op_find("opipe", op);
    opi_work work;
    opi_node_work(t.graph, node, &work);
    OPI_ASSERT((work.flops > 0 || row->work == opi_work_move) && work.bytes > 0);
    for (uint32_t o = 0; o < MOST; ++o)
      out_carry[o] = (opi_carry){-1, 0, 1, 1};
    if (row->carry != NULL)
      status = row->carry(t.graph, node, in_carry, out_carry, &t.err);
  }
  if (*at == '!') {
    const char *part = at + (for_carry ? 7 : 1);
    (void)opi_test_check(status < 0 && strstr(t.err.message, part) != NULL, __FILE__, __LINE__,
                         false, "%s %s\n    %s", op, text,
                         status < 0 ? t.err.message : "not refused");
  } else {
    (void)opi_test_check(status >= 0, __FILE__, __LINE__, false, "%s %s\n    %s", op, text,
                         t.err.message);
    for (uint32_t o = 0; status >= 0 && *at != '\0'; ++o)
      check_output(&t, text, &at, (want >> o & 1u) != 0 ? out[o] : OPIPE_NONE, &out_carry[o]);
  }
  close_bench(&t);
}

static opi_attrs axis_of(int64_t axis) {
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "axis", axis);
  return attrs;
}

static void test_element_and_line_rules(void) {
  const opi_attrs last = axis_of(1);
  check("Accumulate", NULL, 1, "h[2,3] -> f[2,3]");
  check("Accumulate", NULL, 1, "d[] -> f[]");
  check("Accumulate", NULL, 1, "i[2] -> !must be a floating-point type");
  check("ActivationGrad", NULL, 1, "h[4,3]^0 h[4,3]^0 -> h[4,3]^0");
  check("ActivationGrad", NULL, 1, "f[4,3] f[3] -> !has shape [4, 3], [3] is needed");
  check("ActivationGrad", NULL, 1, "f[4] h[4] -> !is of type float32");
  check("SoftmaxGrad", &last, 1, "f[4,3]^0 f[4,3]^0 -> f[4,3]^0");
  check("SoftmaxGrad", &last, 1, "f[4,3]^1 f[4,3]^1 -> !carry summed over");
  check("LogSoftmaxGrad", &last, 1, "B[4,3] B[4,3] -> B[4,3]");
  check("LogSoftmaxGrad", &last, 1, "f[4] f[4] -> !axis 1 is outside");
}

static void test_norm_rules(void) {
  const opi_attrs axis = axis_of(1);
  check("LayerNormalizationGrad", &axis, 1, "f[4,3]^0 h[4,3]^0 f[3] -> h[4,3]^0");
  check("LayerNormalizationGrad", &axis, 1, "f[4,3]^1 f[4,3]^1 f[3] -> !carry normalised over");
  check("LayerNormalizationGrad", &axis, 1, "f[4,3]^0 f[4,3] f[3] -> !carry different");
  check("RMSNormalizationGrad", &axis, 1, "f[4,3] f[4,3] f[4] -> !(Scale) has 4 elements, 3");
  check("RMSNormalizationGrad", &axis, 1, "f[4,3] f[3,4] f[4] -> !is needed");
  check("LayerNormalizationGradScale", &axis, 3, "h[4,3,2] h[4,3,2] -> f[3,2] f[3,2]");
  check("LayerNormalizationGradScale", &axis, 2, "d[4,3] d[4,3] -> - d[3]");
  check("RMSNormalizationGradScale", &axis, 1, "f[4,3] B[4,3] -> f[3]");
}

static void test_gather_rule(void) {
  const int64_t shape[3] = {2, 5, 3};
  opi_attrs attrs = axis_of(1);
  opi_attrs_ints(&attrs, "shape", shape, 3);
  check("GatherGrad", &attrs, 1, "h[2,4,6,3] i[4,6] -> h[2,5,3]");
  check("GatherGrad", &attrs, 1, "f[2,3] i[] -> f[2,5,3]");
  check("GatherGrad", &attrs, 1, "f[2,4,3] i[5] -> !has shape [2, 4, 3], [2, 5, 3] is needed");
  check("GatherGrad", &attrs, 1, "f[2,4,3] f[4] -> !it must be int32, int64");
  attrs.n = 1;
  check("GatherGrad", &attrs, 1, "f[2,4,3] i[4] -> !attributes shape and axis");
}

static opi_attrs window(const int64_t *shape) {
  static const int64_t ones[2] = {1, 1}, kernel[2] = {2, 3}, pads[4] = {0, 1, 0, 1};
  opi_attrs attrs = {.n = 0};
  opi_attrs_ints(&attrs, "kernel_shape", kernel, 2);
  opi_attrs_ints(&attrs, "strides", ones, 2);
  opi_attrs_ints(&attrs, "dilations", ones, 2);
  opi_attrs_ints(&attrs, "pads", pads, 4);
  opi_attrs_int(&attrs, "group", 2);
  opi_attrs_ints(&attrs, "shape", shape, 4);
  return attrs;
}

static void test_window_rules(void) {
  const int64_t x[4] = {1, 4, 5, 6}, w[4] = {2, 2, 2, 3};
  const opi_attrs to_x = window(x), to_w = window(w);
  check("ConvGradX", &to_x, 1, "f[1,2,4,6] f[2,2,2,3] -> f[1,4,5,6]");
  check("ConvGradX", &to_x, 1, "f[1,2,5,6] f[2,2,2,3] -> !axis 2 of the window's input is 5");
  check("ConvGradX", &to_x, 1, "f[1,2,4,6] f[2,4,2,3] -> !do not fit");
  check("ConvGradX", &to_x, 1, "f[1,2,4] f[2,2,2] -> !attribute shape has 4 numbers");
  check("ConvGradW", &to_w, 1, "h[1,2,4,6] h[1,4,5,6] -> h[2,2,2,3]");
  check("ConvGradW", &to_w, 1, "f[1,2,4,6] h[1,4,5,6] -> !is of type float32");
  check("AveragePoolGrad", &to_x, 1, "f[1,4,4,6] -> f[1,4,5,6]");
  check("MaxPoolGrad", &to_x, 1, "f[1,4,4,6] f[1,4,5,6] -> f[1,4,5,6]");
  check("MaxPoolGrad", &to_x, 1, "f[1,4,4,6] f[1,4,6,6] -> !has shape [1, 4, 6, 6]");
  check("MaxPoolGrad", &to_x, 1, "f[1,3,4,6] f[1,4,5,6] -> !the channels of X");
}

static void test_attention_rule(void) {
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "q_num_heads", 4);
  opi_attrs_int(&attrs, "kv_num_heads", 2);
  check("AttentionGrad", &attrs, 7,
        "f[1,3,8] f[1,3,8] f[1,5,4] f[1,5,4] -> f[1,3,8] f[1,5,4] f[1,5,4]");
  check("AttentionGrad", &attrs, 0x3a,
        "h[1,4,3,2] h[1,4,3,2] h[1,2,5,2] h[1,2,5,2] h[3,7] h[1,2,2,2] h[1,2,2,2] -> "
        "- h[1,2,5,2] - h[3,7] h[1,2,2,2] h[1,2,2,2]");
  check("AttentionGrad", &attrs, 9, "f[1,3,8] f[1,3,8] f[1,5,4] f[1,5,4] -> !output 3 is the");
  check("AttentionGrad", &attrs, 1, "f[1,3,4] f[1,3,8] f[1,5,4] f[1,5,4] -> !is needed");
  check("AttentionGrad", &attrs, 1, "f[1,3,8] h[1,3,8] h[1,5,4] h[1,5,4] -> !is of type float32");
}

static void test_loss_and_dropout_rules(void) {
  opi_attrs none = {.n = 0};
  opi_attrs_string(&none, "reduction", "none");
  check("SoftmaxCrossEntropyLossGrad", NULL, 1, "f[] f[4,3] i[4] -> f[4,3]");
  check("SoftmaxCrossEntropyLossGrad", &none, 1, "h[4,2] h[4,3,2] i[4,2] h[3] -> h[4,3,2]");
  check("SoftmaxCrossEntropyLossGrad", &none, 1, "f[] f[4,3] i[4] -> !has shape [], [4] is needed");
  check("SoftmaxCrossEntropyLossGrad", NULL, 1, "f[] f[4,3] i[3] -> !has shape [3], [4] is needed");
  check("SoftmaxCrossEntropyLossGrad", NULL, 1, "f[] f[4,3] i[4] f[4] -> !the classes");
  check("SoftmaxCrossEntropyLossGrad", NULL, 1, "f[] f[4,3] f[4] -> !must be int32, int64");
  check("Dropout", NULL, 1, "h[4,3]^0 i[] i[] i[] i[] -> h[4,3]^0");
  check("Dropout", NULL, 1, "f[4,3] i[] i[2] i[] i[] -> !a scalar of the run");
}

/* Operators of the members of a tensor group. */
static void test_group_rules(void) {
  const int64_t parts[3] = {4, 3, 3}, negative[2] = {5, -1};
  opi_attrs group = axis_of(1), one = axis_of(1), wrong = axis_of(1), range = {.n = 0};
  opi_attrs_ints(&group, "parts", parts, 3);
  opi_attrs_int(&group, "member", 1);
  opi_attrs_ints(&one, "parts", parts, 3);
  opi_attrs_int(&one, "member", 3);
  opi_attrs_ints(&wrong, "parts", negative, 2);
  opi_attrs_int(&wrong, "member", 0);
  opi_attrs_int(&range, "first", 3);
  opi_attrs_int(&range, "whole", 10);
  check("GroupGather", &group, 1, "h[2,3]^0 -> h[2,10]^0");
  check("GroupGather", &group, 1, "f[2,3]^1 -> !carry depend on each other");
  check("GroupGather", &group, 1, "f[2,4] -> !the member's own part");
  check("GroupGather", &one, 1, "f[2,3] -> !member");
  check("GroupGather", &wrong, 1, "f[2,5] -> !part 1 has -1 entries");
  check("GroupGather", NULL, 1, "f[2,5] -> !attribute parts is missing");
  check("GroupScatter", &group, 1, "f[2,10] -> f[2,3]");
  check("GroupScatter", &group, 1, "f[2,9] -> !the parts of all members");
  check("GroupSum", NULL, 1, "d[2,3]^1 -> d[2,3]^1");
  check("GroupSpread", NULL, 1, "B[2,3]^0 -> B[2,3]^0");
  check("GatherPart", &range, 1, "h[4,5] i[2,3]^0 -> h[2,3,5]^0");
  check("GatherPart", &range, 1, "h[8,5] i[2] -> !first");
  check("GatherPart", &range, 1, "h[11,5] i[2] -> !whole");
  check("GatherPart", &range, 1, "h[4,5]^0 i[2] -> !carry a part already");
  check("CrossEntropyPart", &range, 1, "h[6,4]^0 i[6]^0 -> f[1,6,3]^1");
  check("CrossEntropyPart", &range, 1, "f[6,4,2]^2 i[6,2]^1 -> f[1,6,2,3]^2");
  check("CrossEntropyPart", &range, 1, "f[6,4]^1 i[6] -> !carry the classes");
  check("CrossEntropyPart", &range, 1, "f[6,4] i[5] -> !has shape [5], [6] is needed");
  check("CrossEntropyMerge", &range, 3, "f[6,4] i[6] f[10] f[2,6,3] -> f[] f[6]");
  check("CrossEntropyMerge", &range, 3, "f[6,4] i[6] f[4] f[2,6,3] -> !all classes");
  check("CrossEntropyMerge", &range, 3, "f[6,4] i[6] - f[2,5,3] -> !is needed");
  opi_attrs_string(&range, "reduction", "sum");
  check("CrossEntropyPartGrad", &range, 1, "f[] f[6,4] i[6] - f[6] -> f[6,4]");
  check("CrossEntropyPartGrad", &range, 1, "f[6] f[6,4] i[6] - f[6] -> !has shape [6], []");
}

/* A part of the rows. */
static void test_part_of_rows(void) {
  const int64_t shape[2] = {4, 3};
  opi_attrs attrs = axis_of(0);
  opi_attrs_ints(&attrs, "shape", shape, 2);
  opi_attrs_int(&attrs, "first", 3);
  opi_attrs_int(&attrs, "whole", 7);
  check("GatherGrad", &attrs, 1, "f[5,3] i[5] -> f[4,3]");
  attrs.list[2].i = 4;
  check("GatherGrad", &attrs, 1, "f[5,3] i[5] -> !first");
}

OPI_TEST_MAIN("operators of training", OPI_TEST(test_group_rules), OPI_TEST(test_part_of_rows),
              OPI_TEST(test_element_and_line_rules), OPI_TEST(test_norm_rules),
              OPI_TEST(test_gather_rule), OPI_TEST(test_window_rules),
              OPI_TEST(test_attention_rule), OPI_TEST(test_loss_and_dropout_rules))
