/* SPDX-License-Identifier: Apache-2.0 */
/* Training of a model with an odd number of classes on the doubles of CUDA: products in padded rows
 * have the bits of the plan's reference under every schedule and number of ranks, and come close to
 * rows side by side and to the CPU. ctest: timeout=240 */
#include "plugins/backend-cuda/program.h"
#include "tests/loader/wire/writer.h"
#include "tests/plugins/backend-cuda/training.h"

enum { ROWS = 2, CLASSES = 257, DEEP = 256, INPUTS = 16 };

/* ---- the model ---- */

static bytes tokens_of(const char *name, int64_t columns) {
  static const char *const names[] = {"batch", "tokens"};
  bytes shape = {0}, tensor = {0}, type = {0}, b = {0};
  for (uint32_t d = 0; d < 3; ++d) {
    bytes dim = {0};
    if (d < 2)
      w_text(&dim, 2, names[d]);
    else
      w_num(&dim, 1, columns);
    w_sub(&shape, 1, dim);
  }
  w_num(&tensor, 1, OPIPE_FLOAT);
  w_sub(&tensor, 2, shape);
  w_sub(&type, 1, tensor);
  w_text(&b, 1, name);
  w_sub(&b, 2, type);
  return b;
}

static bytes weight_of(const char *name, int64_t rows, int64_t columns, opi_test_random *random) {
  static float data[CLASSES * DEEP];
  const int64_t shape[2] = {rows, columns};
  const size_t n = (size_t)(rows * columns);
  opi_test_fill_f32(random, data, n, -0.1, 0.1);
  return w_tensor(name, OPIPE_FLOAT, shape, 2, data, n * sizeof(float));
}

/* x [batch, tokens, INPUTS] -> a layer of DEEP -> y of CLASSES, by a head that lies as [CLASSES,
 * DEEP], as an embedding's table does, or as [DEEP, CLASSES]. */
static void write_model(const char *path, bool turned) {
  opi_test_random random = {17};
  bytes graph = {0}, b = {0};
  w_sub(&graph, 1, w_node("MatMul", "first", NULL, "x w0", "a"));
  w_sub(&graph, 1, w_node("Tanh", "bend", NULL, "a", "n"));
  if (turned) {
    static const int64_t perm[] = {1, 0};
    bytes turn = w_node("Transpose", "turn", NULL, "head", "head_t");
    w_attr_ints(&turn, "perm", perm, 2);
    w_sub(&graph, 1, turn);
  }
  w_sub(&graph, 1, w_node("MatMul", "scores", NULL, turned ? "n head_t" : "n head", "y"));
  w_text(&graph, 2, "g");
  w_sub(&graph, 5, weight_of("w0", INPUTS, DEEP, &random));
  w_sub(&graph, 5,
        turned ? weight_of("head", CLASSES, DEEP, &random)
               : weight_of("head", DEEP, CLASSES, &random));
  w_sub(&graph, 11, tokens_of("x", INPUTS));
  w_sub(&graph, 12, tokens_of("y", CLASSES));
  w_num(&b, 1, 10);
  w_opset(&b, 8, "", 20);
  w_sub(&b, 7, graph);
  OPI_ASSERT_FATAL(opi_test_write_file(path, b.data, b.n));
  free(b.data);
}

/* ---- compiled programs ---- */

static struct {
  ct_backend cuda;
  opipe_backend table;
  opi_plugins plugins; /* the core's */
  uint32_t n_pitched, n_relays;
} look;

static opipe_status compile(opipe_device *device, const opipe_compile_params *params,
                            opipe_program **out_program, opipe_error *error) {
  const opipe_status status = look.cuda.base.table->compile(device, params, out_program, error);
  const opipe_program *p = status >= 0 ? *out_program : NULL;
  for (uint32_t v = 0; p != NULL && p->matched.pitches != NULL && v < p->graph->n_values; ++v)
    look.n_pitched += p->matched.pitches[v] != 0;
  for (const cuda_step *step = p != NULL ? p->steps : NULL; step != NULL; step = step->next) {
    look.n_relays +=
        step->kind == CUDA_STEP_LAUNCH && strcmp(step->launch.kernel, "opipe_relay") == 0;
  }
  return status;
}

static opipe_status find_backend(void *ctx, const char *id, opi_backend_ref *out_ref,
                                 opipe_error *error) {
  if (strcmp(id, "cuda") != 0)
    return look.plugins.backend(ctx, id, out_ref, error);
  *out_ref = (opi_backend_ref){&look.table, look.cuda.base.self, "cuda"};
  return OPIPE_OK;
}

/* ---- training ---- */

typedef struct odd_case {
  const char *schedule, *options;
  uint32_t n_ranks;
  bool is_pitched; /* values kept from one program to another lie side by side */
  bool turned;     /* the head lies as an embedding's table does */
  int64_t tokens;  /* of a micro-batch, which is a row of the batch */
} odd_case;

static void train(kit *k, const odd_case *of, const char *device, const char *options,
                  uint32_t flags, kit_outcome *out) {
  kit_case c = kit_case_of(of->schedule, of->n_ranks, ROWS, false);
  c.device = device;
  c.device_options = options;
  c.spec.compute = OPIPE_BFLOAT16;
  look.n_pitched = look.n_relays = 0;
  OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
  OPI_ASSERT_OK_FATAL(kit_train(k, &c, CLASSES, flags, out), &k->err);
}

/* The bits of the plan's reference; close to rows side by side, and to the CPU. */
static void run_case(const odd_case *of) {
  kit_outcome padded, other;
  kit k;
  const char *path = opi_test_tmp("odd.onnx");
  write_model(path, of->turned);
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, ROWS, of->tokens), &k.err);
  k.watchdog_ns = UINT64_C(60000000000);
  look.plugins = k.plugins;
  k.plugins.backend = find_backend;
  train(&k, of, "cuda", of->options, 0, &padded);
  OPI_ASSERT(look.n_relays > 0);
  OPI_ASSERT((look.n_pitched > 0) == of->is_pitched);
  train(&k, of, "cuda", of->options, OPIPE_SESSION_REFERENCE, &other);
  kit_compare(of->schedule, &padded, &other, 0);
  if (opi_test_covers(1, 2)) {
    train(&k, of, "cuda", "pad=0", 0, &other);
    OPI_ASSERT(look.n_pitched == 0 && look.n_relays == 0);
    kit_compare("rows side by side", &padded, &other, 2e-3);
  }
  train(&k, of, "cpu", NULL, 0, &other);
  kit_compare("the CPU", &padded, &other, 2e-2);
  kit_close(&k);
}

static bool open_cuda(void) {
  memset(&look, 0, sizeof look);
  if (!ct_open(&look.cuda))
    return false;
  look.table = *look.cuda.base.table;
  look.table.compile = compile;
  return true;
}

static void test_odd_numbers_of_classes(void) {
  /* of products of 1024 tokens and more the head's accumulator goes through scratch, too */
  static const odd_case cases[] = {{"gpipe", "pad=20", 1, true, true, 136},
                                   {"1f1b", "pad=20", 2, true, false, 1024},
                                   {"1f1b", "pad=20,graphs=1", 2, true, true, 136},
                                   {"zb-h1", "pad=20,pad_mib=1", 2, false, true, 136}};
  if (!open_cuda())
    OPI_SKIP("%s", CT_WHY);
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    if (opi_test_covers(i, OPI_COUNT(cases)))
      run_case(&cases[i]);
  }
  bt_close(&look.cuda.base);
}

OPI_TEST_MAIN("odd numbers of classes, trained on doubles of CUDA",
              OPI_TEST(test_odd_numbers_of_classes))
