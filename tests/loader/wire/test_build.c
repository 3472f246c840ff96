/* SPDX-License-Identifier: Apache-2.0 */
/* Models from tables: whatever file is read, its graph given as tables is the same model, content
 * is read where it lies, and what is written is read as the same again, with the content inside or
 * beside it. And what tables can say wrongly is refused by name. ctest: timeout=120
 */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "loader/wire/save.h"
#include "partition/make/make.h"
#include "tests/loader/wire/tables.h"

/* ---- files as tables ---- */

static uint32_t n_built, n_apart; /* models, ones that were also written with a file of data */

static const opi_value *find(const opi_graph *g, const char *name) {
  for (uint32_t v = 0; v < g->n_values; ++v) {
    if (strcmp(g->values[v].name, name) == 0)
      return &g->values[v];
  }
  return NULL;
}

static const char *name_of(const opi_graph *g, const uint32_t *list, uint32_t n, uint32_t i) {
  return i < n && list[i] != OPIPE_NONE ? g->values[list[i]].name : "";
}

static bool same_node(const opi_graph *a, const opi_graph *b, uint32_t i) {
  const opi_node *x = &a->nodes[i], *y = &b->nodes[i];
  bool same = strcmp(x->name, y->name) == 0 && strcmp(x->op, y->op) == 0 &&
              strcmp(x->domain, y->domain) == 0 && x->version == y->version &&
              x->n_attrs == y->n_attrs;
  for (uint32_t k = 0; k < x->n_in || k < y->n_in; ++k)
    same = same && strcmp(name_of(a, x->in, x->n_in, k), name_of(b, y->in, y->n_in, k)) == 0;
  for (uint32_t k = 0; k < x->n_out || k < y->n_out; ++k)
    same = same && strcmp(name_of(a, x->out, x->n_out, k), name_of(b, y->out, y->n_out, k)) == 0;
  for (uint32_t k = 0; same && k < x->n_attrs; ++k)
    same = strcmp(x->attrs[k].name, y->attrs[k].name) == 0 && x->attrs[k].kind == y->attrs[k].kind;
  return same;
}

static bool same_value(const opi_value *x, const opi_value *y) {
  return x->dtype == y->dtype && x->rank == y->rank && x->n_bytes == y->n_bytes &&
         (x->data == NULL) == (y->data == NULL) &&
         (x->rank <= 0 || memcmp(x->shape, y->shape, (size_t)x->rank * sizeof(int64_t)) == 0) &&
         (x->data == NULL || memcmp(x->data, y->data, (size_t)x->n_bytes) == 0);
}

/* Nodes in their order, values by name, the content of every initializer. */
static void expect_same(const char *path, const char *what, const opi_model *a,
                        const opi_model *b) {
  const opi_graph *x = a->graph, *y = b->graph;
  opi_test_check(x->n_nodes == y->n_nodes && x->n_values == y->n_values &&
                     x->n_inputs == y->n_inputs && x->n_outputs == y->n_outputs,
                 __FILE__, __LINE__, true, "%s, %s: counts", path, what);
  for (uint32_t n = 0; n < x->n_nodes; ++n) {
    opi_test_check(same_node(x, y, n), __FILE__, __LINE__, false, "%s, %s: node '%s'", path, what,
                   x->nodes[n].name);
  }
  for (uint32_t v = 0; v < x->n_values; ++v) {
    const opi_value *to = find(y, x->values[v].name);
    opi_test_check(to != NULL && same_value(&x->values[v], to), __FILE__, __LINE__, false,
                   "%s, %s: value '%s'", path, what, x->values[v].name);
  }
}

static void expect_same_print(const char *path, const opi_model *a, const opi_model *b) {
  uint64_t x[2], y[2];
  opi_model_fingerprint(a, x);
  opi_model_fingerprint(b, y);
  opi_test_check(x[0] == y[0] && x[1] == y[1], __FILE__, __LINE__, false, "%s: fingerprints", path);
}

static void expect_written(const char *path, const opi_model *from, const opi_model *built,
                           uint64_t most) {
  opipe_error err = OPIPE_ERROR_INIT;
  const char *out = opi_test_build("tests/built.onnx"),
             *data = opi_test_build("tests/built.onnx.data");
  const opi_load_params again = {.path = out};
  opi_model *model = NULL;
  (void)unlink(out);
  (void)unlink(data);
  const opipe_status status = most == OPI_BUILT_MOST
                                  ? opi_model_write(built, out, &err)
                                  : opi_built_save(built, NULL, 0, most, out, &err);
  opi_test_check(status == OPIPE_OK, __FILE__, __LINE__, false, "%s: %s", path, err.message);
  if (OPI_ASSERT_OK(opi_model_load(&again, &model, &err), &err))
    expect_same(path, "written", from, model), expect_same_print(path, built, model);
  if (access(data, F_OK) == 0)
    ++n_apart;
  opi_model_free(model);
  (void)unlink(out);
  (void)unlink(data);
}

static int each_file(const char *path, const struct stat *info, int kind, struct FTW *at) {
  static size_t n;
  const opi_load_params file = {.path = path};
  const opi_load_params env = {.allocator = opi_allocator_system()};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL, *built = NULL;
  opipe_build_params tables;
  opi_arena arena;
  const size_t length = strlen(path);
  (void)at;
  if (kind != FTW_F || length < 5 || strcmp(path + length - 5, ".onnx") != 0 ||
      info->st_size > 8 << 20 || !opi_test_covers(n++, 4) ||
      opi_model_load(&file, &model, NULL) < 0)
    return 0;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  if (tables_of(&arena, model, &tables)) {
    opi_test_check(opi_model_build(&tables, &env, &built, &err) == OPIPE_OK, __FILE__, __LINE__,
                   false, "%s: %s", path, err.message);
    if (built != NULL) {
      ++n_built;
      expect_same(path, "built", model, built);
      expect_written(path, model, built, OPI_BUILT_MOST);
      expect_written(path, model, built, 1);
    }
  }
  opi_model_free(built);
  opi_model_free(model);
  opi_arena_release(&arena);
  return 0;
}

static void test_files_as_tables_are_the_same_models(void) {
  n_built = n_apart = 0;
  (void)nftw(opi_test_source("tests/data"), each_file, 16, FTW_PHYS);
  OPI_ASSERT(opi_test_is_cover() ? n_built > 0 : n_built > 10 && n_apart > 2);
}

static void test_models_of_the_shared_folder_too(void) {
  const char *graphs = opi_test_shared("models/graphs");
  const char *modern = graphs == NULL ? NULL : opi_test_shared("models/modern");
  if (graphs == NULL || modern == NULL)
    return;
  n_built = 0;
  (void)nftw(graphs, each_file, 16, FTW_PHYS);
  (void)nftw(modern, each_file, 16, FTW_PHYS);
  OPI_ASSERT(n_built > (opi_test_is_cover() ? 0 : 5));
}

/* ---- one small graph: y = x W + b, given by hand ---- */

enum { IN = 3, OUT = 2 };
static const float weights[IN * OUT] = {1, 2, 3, 4, 5, 6}, bias[OUT] = {0.5f, -0.5f};
static const int64_t x_shape[] = {-1, IN}, w_shape[] = {IN, OUT}, b_shape[] = {OUT};
static const char *const x_dims[] = {"batch", NULL};
static const char *const in0[] = {"x", "w"}, *const out0[] = {"p"};
static const char *const in1[] = {"p", "b"}, *const out1[] = {"y"};

typedef struct small {
  opipe_build_value x, y;
  opipe_build_tensor tensors[2];
  opipe_build_node nodes[2];
  opipe_build_opset opset;
  opipe_build_graph graph;
  opipe_build_params params;
  opi_model *model;
  opipe_error err;
} small;

static void make_small(small *s) {
  memset(s, 0, sizeof *s);
  s->err.struct_size = sizeof s->err;
  s->x = (opipe_build_value){"x", x_shape, x_dims, OPIPE_FLOAT, 2};
  s->y = (opipe_build_value){.name = "y", .rank = -1};
  s->tensors[0] =
      (opipe_build_tensor){"w", w_shape, weights, NULL, 0, sizeof weights, OPIPE_FLOAT, 2};
  s->tensors[1] = (opipe_build_tensor){"b", b_shape, bias, NULL, 0, sizeof bias, OPIPE_FLOAT, 1};
  s->nodes[0] = (opipe_build_node){"last", "Add", NULL, in1, out1, NULL, 2, 1, 0, 0};
  s->nodes[1] = (opipe_build_node){NULL, "MatMul", "", in0, out0, NULL, 2, 1, 0, 0};
  s->opset = (opipe_build_opset){NULL, 17};
  s->graph = opipe_build_graph_init();
  s->graph.inputs = &s->x, s->graph.n_inputs = 1;
  s->graph.outputs = &s->y, s->graph.n_outputs = 1;
  s->graph.tensors = s->tensors, s->graph.n_tensors = 2;
  s->graph.nodes = s->nodes, s->graph.n_nodes = 2;
  s->params = opipe_build_params_init();
  s->params.graph = &s->graph;
  s->params.opsets = &s->opset, s->params.n_opsets = 1;
}

static opipe_status build(small *s) {
  const opi_load_params env = {.base_dir = s->params.base_dir,
                               .flags = s->params.flags,
                               .allocator = opi_allocator_system()};
  opi_model_free(s->model);
  s->model = NULL;
  return opi_model_build(&s->params, &env, &s->model, &s->err);
}

static void test_content_is_read_where_it_lies(void) {
  small s;
  make_small(&s);
  OPI_ASSERT_OK_FATAL(build(&s), &s.err);
  OPI_ASSERT(find(s.model->graph, "w")->data == weights);
  OPI_ASSERT(find(s.model->graph, "b")->data == bias);
  OPI_ASSERT_INT(s.model->graph->n_nodes, 2);
  OPI_ASSERT_STR(s.model->graph->nodes[0].op, "MatMul"); /* put into an order */
  OPI_ASSERT_STR(s.model->graph->values[s.model->graph->inputs[0]].dim_names[0], "batch");
  OPI_ASSERT_INT(s.model->external_bytes, 0);
  opi_model_free(s.model);
}

static void write_file(const char *path, const void *data, size_t n) {
  FILE *file = fopen(path, "wb");
  OPI_ASSERT_FATAL(file != NULL);
  OPI_ASSERT(fwrite(data, 1, n, file) == n);
  OPI_ASSERT(fclose(file) == 0);
}

static void test_content_in_files_is_mapped(void) {
  small s;
  char path[512];
  char bytes[16 + sizeof weights] = {0};
  memcpy(bytes + 16, weights, sizeof weights);
  (void)snprintf(path, sizeof path, "%s", opi_test_build("tests/build_weights.bin"));
  write_file(path, bytes, sizeof bytes);
  make_small(&s);
  s.tensors[0].data = NULL;
  s.tensors[0].offset_bytes = 16;
  s.tensors[0].file = path; /* the host's own path */
  OPI_ASSERT_OK_FATAL(build(&s), &s.err);
  OPI_ASSERT(memcmp(find(s.model->graph, "w")->data, weights, sizeof weights) == 0);
  OPI_ASSERT_INT(s.model->external_bytes, sizeof weights);
  OPI_ASSERT_ERROR(opi_model_write(s.model, path, &s.err), OPIPE_E_INVALID, &s.err,
                   "written over"); /* the weights themselves */
  s.tensors[0].offset_bytes = 17;
  OPI_ASSERT_ERROR(build(&s), OPIPE_E_INVALID, &s.err, "24 bytes at offset 17");
  s.tensors[0].offset_bytes = UINT64_MAX;
  OPI_ASSERT_ERROR(build(&s), OPIPE_E_INVALID, &s.err, "beyond the 40 bytes");
  s.tensors[0].offset_bytes = 16;
  s.tensors[0].file = "/no/such/file";
  OPI_ASSERT_ERROR(build(&s), OPIPE_E_NOTFOUND, &s.err, "tensor 'w': '/no/such/file'");
  s.params.base_dir = opi_test_build("tests");
  s.tensors[0].file = "build_weights.bin"; /* by the rules of external data */
  OPI_ASSERT_OK(build(&s), &s.err);
  s.tensors[0].file = path;
  OPI_ASSERT_ERROR(build(&s), OPIPE_E_INVALID, &s.err, "is absolute");
  s.tensors[0].file = "../tests/build_weights.bin";
  OPI_ASSERT_ERROR(build(&s), OPIPE_E_INVALID, &s.err, "'..'");
  opi_model_free(s.model);
  (void)unlink(path);
}

static void test_what_tables_say_wrongly_is_refused(void) {
  static const int64_t negative[] = {-2, IN};
  static const opipe_literal literal = {NULL, w_shape, 24, OPIPE_FLOAT, 2};
  small s, body;
  make_small(&s);
#define REFUSED(change, status, part) \
  make_small(&s);                     \
  change;                             \
  OPI_ASSERT_ERROR(build(&s), status, &s.err, part);
  REFUSED(s.tensors[0].n_bytes = 20, OPIPE_E_INVALID, "'w' has 20 bytes, float32 [3, 2] makes 24")
  REFUSED(s.tensors[0].data = NULL, OPIPE_E_INVALID, "24 bytes are neither in memory nor in a file")
  REFUSED(s.tensors[0].file = "f", OPIPE_E_INVALID, "'w' has its content in memory and in file 'f'")
  REFUSED(s.tensors[0].rank = 17, OPIPE_E_LIMIT, "'w' has 17 dimensions")
  REFUSED(s.tensors[0].dtype = 99, OPIPE_E_INVALID, "unknown element type 99")
  REFUSED(s.tensors[1].name = "w", OPIPE_E_INVALID, "w")
  REFUSED(s.x.rank = 17, OPIPE_E_INVALID, "'x' has rank 17")
  REFUSED(s.x.shape = negative, OPIPE_E_INVALID, "dimension 0 is -2")
  REFUSED(s.x.dtype = OPIPE_UNDEFINED, OPIPE_E_INVALID, "'x' has no element type")
  REFUSED(s.nodes[1].n_outputs = 0, OPIPE_E_INVALID, "p")
  REFUSED(s.graph.n_nodes = 1, OPIPE_E_INVALID, "p")
  REFUSED(s.y.name = "z", OPIPE_E_INVALID, "nothing makes its output 'z'")
  REFUSED(s.params.n_opsets = 0, OPIPE_E_INVALID, "opset")
  REFUSED(s.params.ir_version = 99, OPIPE_E_UNSUPPORTED, "99")
  REFUSED(s.nodes[0].domain = "a\xff", OPIPE_E_INVALID, "UTF-8")
  opipe_attr attr = {"a", NULL, 0, 0, OPIPE_ATTR_INTS, 2};
#define REFUSED_ATTR(change, status, part) \
  REFUSED((change, s.nodes[0].attrs = &attr, s.nodes[0].n_attrs = 1), status, part)
  REFUSED_ATTR(attr.n = 2, OPIPE_E_INVALID, "node 0 ('last', Add): attribute 'a' (kind 4")
  attr = (opipe_attr){"a", &literal, 0, 0, OPIPE_ATTR_TENSOR, 1};
  REFUSED_ATTR(attr.n = 1, OPIPE_E_INVALID, "a tensor of 24 bytes without data")
  make_small(&body);
  body.tensors[0].data = NULL, body.tensors[0].file = "f";
  attr = (opipe_attr){"a", &body.graph, 0, 0, OPIPE_ATTR_GRAPH, 1};
  REFUSED_ATTR(attr.n = 1, OPIPE_E_UNSUPPORTED, "'w' of a body has its content in file 'f'")
  body.tensors[0].data = weights, body.tensors[0].file = NULL;
  body.nodes[0].attrs = &attr, body.nodes[0].n_attrs = 1; /* a graph inside itself */
  REFUSED_ATTR(attr.n = 1, OPIPE_E_LIMIT, "graphs nest ")
#undef REFUSED
#undef REFUSED_ATTR
  opi_model_free(s.model);
}

/* ---- memory ---- */

static opipe_status build_and_write(opi_test_memory *memory, void *arg) {
  small *s = arg;
  const char *out = opi_test_build("tests/built_small.onnx");
  const opi_load_params env = {.allocator = &memory->allocator};
  opi_model *model = NULL;
  opipe_status status = opi_model_build(&s->params, &env, &model, &s->err);
  if (status == OPIPE_OK)
    status = opi_built_save(model, NULL, 0, 1, out, &s->err);
  opi_model_free(model);
  (void)unlink(out);
  return status;
}

static void test_memory_that_runs_out_leaves_nothing(void) {
  small s;
  make_small(&s);
  OPI_ASSERT(opi_test_every_allocation(build_and_write, &s, 1000) > 20);
}

OPI_TEST_MAIN("build", OPI_TEST(test_files_as_tables_are_the_same_models),
              OPI_TEST(test_models_of_the_shared_folder_too),
              OPI_TEST(test_content_is_read_where_it_lies),
              OPI_TEST(test_content_in_files_is_mapped),
              OPI_TEST(test_what_tables_say_wrongly_is_refused),
              OPI_TEST(test_memory_that_runs_out_leaves_nothing))
