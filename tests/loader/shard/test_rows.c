/* SPDX-License-Identifier: Apache-2.0 */
/* Every operator's row beside a divided or partial input: the members' outputs, joined or summed,
 * are the whole graph's, for 2 to 5 members with unequal parts. Numbers are small integers, so that
 * whatever is linear has the same bits.
 *
 * A case: "OP@VERSION inputs | attributes -> form". X[shape]: a product whose columns (the last
 * axis) are divided, P[shape]: one that is partial, G[shape]: a layer that is,
 * B[shape]: X above 0; others as in cases.h, and
 * f[shape] is a parameter. form: d (divided), s (summed), w (stays whole), = (the same bits).
 */
#include <math.h>

#include "loader/ops/registry.h"
#include "tests/loader/shard/members.h"
#include "tests/loader/terms.h"

static const char *const cases[] = {
    "Add@14 X[2,3,10] f[10] -> d=",
    "Add@14 X[2,3,10] f[3,1] -> d=",
    "Add@14 X[2,3,10] X[2,3,10] -> d=",
    "Add@14 P[2,3,7] f[7] -> s=",
    "Add@14 P[2,3,7] P[2,3,7] -> s=",
    "Sub@14 P[2,3,7] P[2,3,7] -> s=",
    "Sub@14 X[2,3,10] f[2,1,10] -> d=",
    "Mul@14 X[2,3,10] f[10] -> d=",
    "Mul@14 P[2,3,7] f[2,3,1] -> s=",
    "Div@14 X[2,3,10] f=3 -> d",
    "Div@14 P[2,3,7] f=2 -> s=",
    "Pow@15 X[2,3,10] f=2 -> d=",
    "Mod@13 X[2,3,10] f=3 | fmod=1 -> d=",
    "Max@13 X[2,3,10] f[10] -> d=",
    "Min@13 X[2,3,10] f[3,10] -> d=",
    "Clip@13 X[2,3,10] f=-3 f=5 -> d=",
    "Clip@13 P[2,3,7] f=-3 f=5 -> s=",
    "Cast@19 X[2,3,10] | to=7 -> d=",
    "Where@16 B[2,3,10] X[2,3,10] f[10] -> d=",
    "And@7 B[2,3,10] B[2,3,10] -> d=",
    "Or@7 B[2,3,10] B[2,3,10] -> d=",
    "Xor@7 B[2,3,10] B[2,3,10] -> d=",
    "Not@1 B[2,3,10] -> d=",
    "Equal@19 X[2,3,10] f[10] -> d=",
    "Neg@13 P[2,3,7] -> s=",
    "Identity@16 X[2,3,10] -> d=",
    "Reshape@14 X[2,3,10] i{6,10} -> d=",
    "Reshape@14 X[2,3,10] i{2,30} -> d=",
    "Reshape@14 P[2,3,8] i{6,2,4} -> s=",
    "Expand@13 X[2,3,10] i{4,2,3,10} -> d=",
    "Expand@13 P[2,3,7] i{4,2,3,7} -> s=",
    "Transpose@13 X[2,3,10] | perm=[2,0,1] -> d=",
    "Transpose@13 P[2,3,7] | perm=[2,0,1] -> s=",
    "Tile@13 X[2,3,10] i{1,2,3} -> d=",
    "Concat@13 X[2,3,10] X[2,3,10] | axis=2 -> d=",
    "Concat@13 X[2,3,10] X[2,3,10] | axis=1 -> d=",
    "Concat@13 P[2,3,7] P[2,3,7] | axis=2 -> s=",
    "Split@13 X[2,3,10] i{10} | axis=2 -> d=",
    "Pad@13 X[2,3,10] i{0,1,0,0,1,0} -> d=",
    "Pad@13 X[2,3,10] i{0,0,1,0,0,1} -> w=",
    "Trilu@14 X[2,3,10] i=0 | upper=1 -> w=",
    "Slice@13 X[2,3,10] i{0} i{2} i{1} i{1} -> d=",
    "Slice@13 X[2,3,20] i{0} i{20} i{2} i{2} -> w=",
    "Slice@13 X[2,3,10] i{0} i{10} i{2} i{3} -> w=",
    "Slice@13 P[2,3,7] i{1} i{6} i{2} i{2} -> s=",
    "Gather@13 X[2,3,10] i{2,0} | axis=1 -> d=",
    "Gather@13 X[2,3,10] i{9,7,5,3,1} | axis=2 -> d=",
    "Gather@13 P[2,3,7] i{2,0} | axis=2 -> s=",
    "GatherElements@13 X[2,3,10] i#[2,3,4] | axis=2 -> w=",
    "GatherND@13 X[2,3,10] i#[2,1] -> d=",
    "ScatterElements@18 X[2,3,10] i#[1,1,1] f[1,1,1] -> w=",
    "ScatterND@18 X[2,3,10] i#[1,3] f[1] -> w=",
    "OneHot@11 X[2,3,10] i=4 f[2] -> d=",
    "TopK@11 X[2,3,10] i{2} | axis=1 -> d=",
    "TopK@11 X[2,3,10] i{2} | axis=2 -> w=",
    "ArgMax@13 X[2,3,10] | axis=1 -> d=",
    "ArgMin@13 X[2,3,10] | axis=2 -> w=",
    "CumSum@14 X[2,3,10] i=1 -> d=",
    "CumSum@14 X[2,3,10] i=2 -> w=",
    "CumSum@14 P[2,3,7] i=1 -> s=",
    "ReduceSum@13 X[2,3,10] i{2} -> s=",
    "ReduceSum@13 X[2,3,10] i{1} -> d=",
    "ReduceSum@13 P[2,3,7] i{2} -> s=",
    "ReduceMean@18 X[2,3,10] i{2} -> w",
    "ReduceMean@18 P[2,3,8] i{2} -> s=",
    "ReduceMax@18 X[2,3,10] i{1} -> d=",
    "ReduceMax@18 X[2,3,10] i{2} -> w=",
    "ReduceMin@18 X[2,3,10] i{0} -> d=",
    "ReduceProd@18 X[2,3,10] i{1} -> d=",
    "ReduceL1@18 X[2,3,10] i{1} -> d=",
    "ReduceL2@18 X[2,3,10] i{1} -> d",
    "ReduceSumSquare@18 X[2,3,10] i{1} -> d=",
    "ReduceLogSum@18 X[2,3,10] i{1} -> d",
    "ReduceLogSumExp@18 X[2,3,10] i{1} -> d",
    "Softmax@13 X[2,3,10] | axis=1 -> d",
    "Softmax@13 X[2,3,10] | axis=2 -> w",
    "Softmax@13 P[2,3,7] | axis=2 -> s",
    "LogSoftmax@13 X[2,3,10] | axis=1 -> d",
    "Hardmax@13 X[2,3,10] | axis=1 -> d=",
    "LayerNormalization@17 X[2,3,10] f[10] -> w",
    "LayerNormalization@17 P[2,3,7] f[7] -> s",
    "RMSNormalization@23 X[2,3,10] f[10] -> w",
    "BatchNormalization@15 X[2,3,10] f[3] f[3] f[3] f[3] -> d",
    "GroupNormalization@21 X[2,4,10] f[4] f[4] | num_groups=2 -> w",
    "PRelu@16 X[2,3,10] f[10] -> w=",
    "PRelu@16 X[2,3,10] f[3,1] -> d=",
    "MatMul@13 X[2,3,10] f[10,7] -> d=",
    "MatMul@13 P[2,3,10] f[10,7] -> d=",
    "Gemm@13 X[6,10] f[10,7] f[7] | beta=2f -> d=",
    "Gemm@13 P[6,7] f[7,6] f[6] -> d=",
    "Relu@14 G[6,7] -> s=",
    "ms.FusedMatMul@1 X[6,10] f[5,10] | transB=1 alpha=2f -> d=",
    "Einsum@12 X[2,3,10] f[10,4] | equation=$abk,kn->abn -> s=",
    "Conv@11 X[2,3,10] f[4,3,1] -> w=",
    "AveragePool@19 X[2,3,10] | kernel_shape=[2] -> w=",
    "MaxPool@12 X[2,3,10] | kernel_shape=[2] -> w=",
    "SoftmaxCrossEntropyLoss@13 X[6,10] i{0,3,9,4,5,1} | reduction=$sum -> g",
    "SoftmaxCrossEntropyLoss@13 X[6,10] i{0,3,9,4,5,1} | reduction=$mean ignore_index=3 -> g",
    "SoftmaxCrossEntropyLoss@13 X[6,10] i{0,3,9,4,5,1} f[10] | reduction=$none -> g",
    "NegativeLogLikelihoodLoss@13 X[6,10] i{0,3,9,4,5,1} | reduction=$sum -> w=",
};

/* The sequence form: behind a partial sum, the member's rows (r), or all of them (w). The numbers
 * are those of the plain form to the bit. "> OP" more is done with the result. */
static const char *const row_cases[] = {
    "Relu@14 P[2,3,7] -> r",
    "Relu@14 P[1,1,7] -> r",
    "Relu@14 P[1,2,7] -> r",
    "Relu@14 P[4,7] -> r",
    "Relu@14 G[6,7] -> r",
    "Relu@14 G[3,7] -> r",
    "LayerNormalization@17 P[2,3,7] f[7] f[7] -> r",
    "LayerNormalization@17 P[2,3,7] f[3,7] | axis=1 -> w",
    "RMSNormalization@23 P[2,3,7] f[7] -> r",
    "Mul@14 P[2,3,7] P[2,3,7] -> r",
    "Max@13 P[2,3,7] f[7] -> r",
    "Max@13 P[2,3,7] f[3,7] -> r",
    "Max@13 P[2,3,7] f[1,3,1] -> r",
    "Max@13 P[2,3,7] f[2,1,7] -> r",
    "Max@13 P[2,3,7] f[2,3,1] -> r",
    "Max@13 P[1,5,7] f[5,1] -> r",
    "Max@13 P[1,3,7] f[2,3,7] -> w",
    "Max@13 P[6,7] f[1,6,7] -> r",
    "Max@13 P[2,3,7] P[2,3,7] -> r",
    "Cast@19 P[2,3,7] | to=7 -> w",
    "Cast@19 P[2,3,7] | to=10 -> r",
    "Cast@19 P[2,3,7] | to=6 -> w",
    "Softmax@13 P[2,3,7] | axis=2 -> r",
    "Softmax@13 P[2,3,7] | axis=1 -> w",
    "Softmax@13 P[2,1,7] | axis=1 -> w",
    "TopK@11 P[2,3,7] i{2} | axis=2 -> w",
    "TopK@11 P[2,3,7] i{2} | axis=1 -> w",
    "ReduceMax@18 P[2,3,7] i{2} -> r",
    "ReduceMax@18 P[2,3,7] i{2} | keepdims=0 -> r",
    "ReduceMax@18 P[2,3,7] i{1} -> w",
    "ArgMax@13 P[2,3,7] | axis=2 keepdims=0 -> w",
    "CumSum@14 P[2,3,7] i=2 > Relu -> r",
    "CumSum@14 P[2,3,7] i=1 > Relu -> r",
    "Reshape@14 P[2,3,8] i{6,8} > Relu -> r",
    "Reshape@14 P[2,3,8] i{2,3,2,4} > Relu -> r",
    "Reshape@14 P[2,3,8] i{2,24} > Relu -> r",
    "Transpose@13 P[2,3,7] | perm=[1,0,2] > Relu -> r",
    "Where@16 o#[2,3,1] P[2,3,7] f[7] -> r",
    "GatherElements@13 P[2,3,7] i#[2,3,4] | axis=2 > Relu -> r",
    "GatherElements@13 P[2,3,7] i#[2,2,7] | axis=1 -> w",
    "GatherND@13 P[2,3,7] i#[2,1] -> w",
    "ScatterND@18 P[2,3,7] i#[1,3] f[1] -> w",
    "Pad@13 P[2,3,7] i{0,1,0,0,1,0} -> w",
    "Tile@13 P[2,3,7] i{1,2,1} -> w",
    "Conv@11 P[2,3,7] f[4,3,1] -> w",
};

/* Rows with cases of their own in test_heads.c, or without float inputs. */
static const char *const elsewhere[] = {"Attention",      "RotaryEmbedding",
                                        "Dropout",        "DequantizeLinear",
                                        "QuantizeLinear", "DynamicQuantizeLinear",
                                        "MatMulInteger",  "ConvInteger",
                                        "NonZero",        "DFT",
                                        "TensorScatter"};

/* ---- one case ---- */

typedef struct builder {
  test_graph g;
  uint64_t seed;
} builder;

static uint32_t parameter(builder *b, const int64_t *shape, uint32_t rank) {
  float data[2048];
  opi_test_random random = {++b->seed};
  uint64_t n = 1;
  for (uint32_t d = 0; d < rank; ++d)
    n *= (uint64_t)shape[d];
  for (uint64_t i = 0; i < n; ++i) {
    data[i] = (float)((int)opi_test_uniform(&random, 1, 3.99)) *
              (opi_test_uniform(&random, 0, 1) < 0.4 && rank > 1 ? -1.0f : 1.0f);
  }
  return test_known(&b->g, NULL, OPIPE_FLOAT, shape, rank, data);
}

/* A product of rank `rank` with its last axis divided, or, behind another, a partial sum. */
static uint32_t product(builder *b, const test_term *term, bool partial) {
  int64_t shape[OPIPE_MAX_RANK];
  const int64_t first[2] = {4, partial ? 10 : term->shape[term->rank - 1]};
  const int64_t second[2] = {10, term->shape[term->rank - 1]};
  memcpy(shape, term->shape, term->rank * sizeof *shape);
  shape[term->rank - 1] = 4;
  const uint32_t x = test_input(&b->g, NULL, OPIPE_FLOAT, shape, term->rank);
  const uint32_t y = test_op(&b->g, "MatMul", x, parameter(b, first, 2));
  return partial ? test_op(&b->g, "MatMul", y, parameter(b, second, 2)) : y;
}

/* A layer whose rows are divided; its bias is added behind the sum, times 2. */
static uint32_t layer(builder *b, const test_term *term) {
  const test_term wide = {.rank = 2, .shape = {term->shape[0], 10}};
  const int64_t shape[2] = {10, term->shape[1]};
  const opipe_attr beta = OPI_ATTR_F("beta", 2);
  uint32_t in[3] = {product(b, &wide, false)}, out = OPIPE_NONE;
  in[1] = parameter(b, shape, 2);
  in[2] = parameter(b, shape + 1, 1);
  test_node(&b->g, "Gemm", 13, in, 3, &beta, 1, &out, 1);
  return out;
}
static uint32_t read_input(builder *b, const char **at) {
  const char letter = **at;
  if (letter == 'X' || letter == 'P' || letter == 'B' || letter == 'G') {
    const char *own = *at + 1;
    test_term term = {.dtype = OPIPE_FLOAT};
    term.rank = test_numbers(&own, ']', term.shape);
    *at = own;
    const uint32_t x = letter == 'G' ? layer(b, &term) : product(b, &term, letter == 'P');
    const float zero = 0;
    return letter != 'B'
               ? x
               : test_op(&b->g, "Greater", x, test_known(&b->g, NULL, OPIPE_FLOAT, NULL, 0, &zero));
  }
  const test_term term = test_term_read(at);
  return term.known ? test_add_term(&b->g, &term) : parameter(b, term.shape, term.rank);
}

static const char *read_case(builder *b, const char *text) {
  const char *at = text, *arrow = strstr(text, " -> ");
  char *rest = NULL;
  const char *then = strstr(text, " > ");
  const char *end = then == NULL ? arrow : then;
  const size_t n_op = strcspn(text, "@");
  const char *op = opi_arena_strndup(&b->g.arena, text, n_op);
  const bool contrib = strncmp(op, "ms.", 3) == 0;
  uint32_t in[8], n_in = 0, n_attrs = 0, out[2];
  opipe_attr attrs[8];
  const uint32_t version = (uint32_t)strtoul(text + n_op + 1, &rest, 10);
  at = rest;
  for (test_skip_blanks(&at); at < end && *at != '|'; test_skip_blanks(&at))
    in[n_in++] = read_input(b, &at);
  at += *at == '|';
  for (test_skip_blanks(&at); at < end; test_skip_blanks(&at))
    attrs[n_attrs++] = test_attr_read(&b->g, &at);
  const uint32_t n_out = strcmp(op, "TopK") == 0 ? 2 : 1;
  opi_node *node =
      test_node(&b->g, contrib ? op + 3 : op, version, in, n_in, attrs, n_attrs, out, n_out);
  node->domain = contrib ? "com.microsoft" : "";
  if (then != NULL) {
    const char *next = opi_arena_strndup(&b->g.arena, then + 3, (size_t)(arrow - then) - 3);
    out[0] = test_op(&b->g, next, out[0], OPIPE_NONE);
  }
  for (uint32_t o = 0; o < n_out; ++o)
    test_output(&b->g, out[o]);
  return arrow + 4;
}

/* Small integers for every input. */
static void *fill(opi_arena *arena, const opi_value *v, uint64_t seed) {
  opi_test_random random = {seed};
  float *data = opi_arena_alloc(arena, v->n_bytes + 1);
  for (uint64_t i = 0; i < v->n_bytes / 4; ++i)
    data[i] = (float)(int)opi_test_uniform(&random, -2.99, 2.99);
  return data;
}

static double element(const opi_value *v, const void *data, uint64_t i) {
  return v->dtype == OPIPE_FLOAT   ? (double)((const float *)data)[i]
         : v->dtype == OPIPE_INT64 ? (double)((const int64_t *)data)[i]
                                   : (double)((const uint8_t *)data)[i];
}

static void check_output(const char *text, const opi_bound *bound, const opi_shards *shards,
                         const test_group *t, uint32_t o, const void *want, bool same) {
  const opi_value *y = &bound->graph->values[bound->graph->outputs[o]];
  double worst = 0;
  for (uint32_t r = 0; r < shards->width; ++r) {
    const opi_shard_member *m = &shards->members[r];
    const uint32_t v = m->bound->graph->outputs[o];
    const opi_value *own = &m->bound->graph->values[v];
    const opi_shard_part *part = test_part_of(m->outputs, m->n_outputs, bound->graph->outputs[o]);
    const void *from = part == NULL ? want : test_pack(t->arena, y, want, part);
    for (uint64_t i = 0; i < opi_elems(own); ++i) {
      const double a = element(y, from, i), b = element(own, t->members[r].data[v], i);
      if (!(isnan(a) && isnan(b)) && !(isinf(a) && a == b))
        worst = fmax(worst, isnan(a) != isnan(b) ? INFINITY : fabs(a - b) / fmax(1, fabs(a)));
    }
  }
  (void)opi_test_check(worst <= (same ? 0 : 1e-5), __FILE__, __LINE__, false,
                       "%s: width %u differs by %g", text, shards->width, worst);
}

static bool run_width(const opi_bound *bound, uint32_t width, uint32_t flags, void *const *inputs,
                      test_group *t, opi_shards **out_shards, opipe_error *err) {
  const opi_shard_wish wish = {.width = width,
                               .flags = flags,
                               .evaluator = test_backend_evaluator(),
                               .allocator = opi_allocator_system()};
  t->evaluator = wish.evaluator;
  if (opi_shard(bound, &wish, out_shards, err) < 0)
    return false;
  test_group_open(t, bound, *out_shards, inputs);
  return test_group_run(t, err) >= 0;
}

static void check_width(const char *text, const opi_bound *bound, uint32_t width, const char *form,
                        void *const *inputs, void *const *want, opi_arena *arena) {
  test_group t = {.arena = arena};
  opi_shards *shards = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const bool ok = run_width(bound, width, 0, inputs, &t, &shards, &err);
  (void)opi_test_check(ok, __FILE__, __LINE__, false, "%s: width %u: %s", text, width, err.message);
  for (uint32_t o = 0; ok && o < bound->graph->n_outputs; ++o)
    check_output(text, bound, shards, &t, o, want[o], strchr(form, '=') != NULL);
  if (ok) {
    const bool parts = shards->members[0].n_outputs == bound->graph->n_outputs;
    const char is = parts ? 'd' : t.n_gathers > 0 ? 'g' : t.n_sums > 0 ? 's' : 'w';
    (void)opi_test_check(is == *form, __FILE__, __LINE__, false, "%s: width %u: it is '%c' (%s)",
                         text, width, is, shards->n_reasons == 0 ? "" : shards->reasons[0].why);
  }
  opi_shards_free(shards);
}

/* The sequence form beside the plain one. */
static void check_rows(const char *text, const opi_bound *bound, uint32_t width, const char *form,
                       void *const *inputs, void *const *want, opi_arena *arena) {
  test_group plain = {.arena = arena}, t = {.arena = arena};
  opi_shards *shards[2] = {NULL, NULL};
  opipe_error err = OPIPE_ERROR_INIT;
  const bool ok = run_width(bound, width, 0, inputs, &plain, &shards[0], &err) &&
                  run_width(bound, width, OPI_SHARD_SEQUENCE, inputs, &t, &shards[1], &err);
  (void)want;
  (void)opi_test_check(ok, __FILE__, __LINE__, false, "%s: width %u: %s", text, width, err.message);
  for (uint32_t r = 0; ok && r < width; ++r) {
    const opi_graph *a = plain.members[r].graph, *b = t.members[r].graph;
    for (uint32_t o = 0; o < a->n_outputs; ++o) {
      const uint32_t x = a->outputs[o], y = b->outputs[o];
      const bool same =
          a->values[x].n_bytes == b->values[y].n_bytes &&
          memcmp(plain.members[r].data[x], t.members[r].data[y], a->values[x].n_bytes) == 0;
      (void)opi_test_check(same, __FILE__, __LINE__, false, "%s: width %u: other bits", text,
                           width);
    }
  }
  if (ok) {
    const char is = t.n_scatters > 0 ? 'r' : 'w';
    (void)opi_test_check(is == *form && (t.n_sums == 0) == (is == 'r'), __FILE__, __LINE__, false,
                         "%s: width %u: %u scatters, %u sums", text, width, t.n_scatters, t.n_sums);
  }
  opi_shards_free(shards[0]);
  opi_shards_free(shards[1]);
}

typedef void (*width_checker)(const char *text, const opi_bound *bound, uint32_t width,
                              const char *form, void *const *inputs, void *const *want,
                              opi_arena *arena);

static void check_case(const char *text, width_checker check) {
  builder b = {.seed = 1};
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena arena;
  void *inputs[8], *want[4];
  const opi_evaluator *evaluator = test_backend_evaluator();
  test_model m = {.n_inputs = 0};
  test_open(&b.g);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const char *form = read_case(&b, text);
  opi_bind_options options = test_options();
  options.evaluator = evaluator;
  if (opi_bind(&b.g.model, &options, &bound, &err) < 0) {
    OPI_FAIL("%s: %s", text, err.message);
  } else {
    for (uint32_t i = 0; i < bound->graph->n_inputs; ++i) {
      opi_value *v = &m.inputs[m.n_inputs++];
      *v = bound->graph->values[bound->graph->inputs[i]];
      v->data = inputs[i] = fill(&arena, v, i + 7);
    }
    OPI_ASSERT_OK(test_run(&m, bound, evaluator, &arena, want, &err), &err);
    for (uint32_t width = 2; width <= 5; ++width)
      check(text, bound, width, form, inputs, want, &arena);
  }
  opi_bound_free(bound);
  opi_arena_release(&arena);
  test_close(&b.g);
}

static void test_cases(void) {
  for (size_t i = 0; i < OPI_COUNT(cases); ++i)
    check_case(cases[i], check_width);
}

static void test_rows_of_sums(void) {
  for (size_t i = 0; i < OPI_COUNT(row_cases); ++i)
    check_case(row_cases[i], check_rows);
}

static bool is_listed(const char *name) {
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    const char *at = strncmp(cases[i], "ms.", 3) == 0 ? cases[i] + 3 : cases[i];
    if (strncmp(at, name, strlen(name)) == 0 && at[strlen(name)] == '@')
      return true;
  }
  for (size_t i = 0; i < OPI_COUNT(elsewhere); ++i) {
    if (strcmp(elsewhere[i], name) == 0)
      return true;
  }
  return false;
}

/* Rows of one or two inputs that need nothing else are cases by themselves. */
static void test_every_row_has_an_answer(void) {
  for (uint32_t i = 0; opi_op_at(i) != NULL; ++i) {
    const opi_op *op = opi_op_at(i);
    char text[128];
    if (op->infer == NULL || strcmp(op->domain, "opipe") == 0)
      continue;
    OPI_ASSERT(op->sums != 0);
    if (is_listed(op->name))
      continue;
    (void)snprintf(text, sizeof text, "%s%s@%u X[2,3,10]%s -> d",
                   op->domain[0] == '\0' ? "" : "ms.", op->name, (unsigned)op->schema,
                   op->min_in == 2 ? " f[10]" : "");
    check_case(text, check_width);
  }
}

OPI_TEST_MAIN("rows beside divided inputs", OPI_TEST(test_cases), OPI_TEST(test_rows_of_sums),
              OPI_TEST(test_every_row_has_an_answer))
