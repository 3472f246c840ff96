/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Real files: every odd one does what files.txt says, and no model of these folders is missing
 * there; every real transformer is read, and whatever is read is consistent.
 */
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

#include "tests/loader/wire/writer.h"

static opipe_status load(const char *path, uint32_t flags, opi_model **out_model,
                         opipe_error *err) {
  const opi_load_params params = {.path = path, .flags = flags};
  *out_model = NULL;
  return opi_model_load(&params, out_model, err);
}

/* ---- consistency ---- */

static bool value_is_sound(const opi_graph *graph, uint32_t v) {
  const opi_value *value = &graph->values[v];
  if (value->name == NULL || value->rank < -1 || value->rank > OPIPE_MAX_RANK)
    return false;
  if (value->producer != OPIPE_NONE && value->producer >= graph->n_nodes)
    return false;
  if (value->data == NULL)
    return true;
  uint64_t n_bytes = 0;
  if (!opi_tensor_bytes(value->dtype, value->shape, (uint32_t)value->rank, &n_bytes))
    return false;
  return n_bytes == value->n_bytes && value->producer == OPIPE_NONE;
}

/* Indices in range, values read after they are made, data of the size that the type has. */
static bool graph_is_sound(const opi_graph *graph) {
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    if (!value_is_sound(graph, v))
      return false;
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    if (node->name == NULL || node->op == NULL || node->domain == NULL || node->version < 1)
      return false;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (node->in[i] == OPIPE_NONE)
        continue;
      if (node->in[i] >= graph->n_values)
        return false;
      const uint32_t producer = graph->values[node->in[i]].producer;
      if (producer != OPIPE_NONE && producer >= n)
        return false;
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
      if (node->out[i] == OPIPE_NONE)
        continue;
      if (node->out[i] >= graph->n_values || graph->values[node->out[i]].producer != n)
        return false;
    }
    for (uint32_t a = 0; a < node->n_attrs; ++a) {
      if (node->attrs[a].kind != OPI_ATTR_GRAPH)
        continue;
      const opi_graph *inner = node->attrs[a].data;
      if (inner->outer != graph || !graph_is_sound(inner))
        return false;
    }
  }
  for (uint32_t i = 0; i < graph->n_captures; ++i) {
    if (graph->capture_inner[i] >= graph->n_values)
      return false;
    if (graph->capture_outer[i] >= graph->outer->n_values)
      return false;
  }
  return true;
}

static void expect_loads(const char *path, uint32_t flags, uint32_t n_nodes) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  const opipe_status status = load(path, flags, &model, &err);
  if (status < 0) {
    OPI_FAIL("%s: %s", path, err.message);
    return;
  }
  if (n_nodes != 0) {
    opi_test_check(model->n_file_nodes == n_nodes, __FILE__, __LINE__, false,
                   "%s: %u nodes, expected %u", path, model->n_file_nodes, n_nodes);
  }
  opi_test_check(graph_is_sound(model->graph), __FILE__, __LINE__, false, "%s: unsound graph",
                 path);
  opi_model_free(model);
}

/* ---- the list ---- */

static opipe_status status_of(const char *name) {
  static const struct {
    const char *name;
    opipe_status status;
  } names[] = {{"INVALID", OPIPE_E_INVALID}, {"UNSUPPORTED", OPIPE_E_UNSUPPORTED}};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    if (strcmp(names[i].name, name) == 0)
      return names[i].status;
  }
  OPI_FAIL("files.txt: unknown status %s", name);
  return OPIPE_OK;
}

/* Ends the word at `text` and gives what follows the blank; "" at the end. */
static char *cut_word(char *text) {
  const size_t n = strcspn(text, " ");
  if (text[n] == '\0')
    return text + n;
  text[n] = '\0';
  return text + n + 1;
}

static void check_line(char *line) {
  char *path = line, *what = cut_word(path), *arg = cut_word(what), *text = cut_word(arg);
  OPI_ASSERT_FATAL(*what != '\0' && *arg != '\0');
  char relative[512];
  (void)snprintf(relative, sizeof(relative), "models/%s", path);
  const char *full = opi_test_shared(relative);
  OPI_ASSERT_FATAL(full != NULL);
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  if (strcmp(what, "loads") == 0) {
    expect_loads(full, 0, (uint32_t)strtoul(arg, NULL, 10));
  } else if (strcmp(what, "without-weights") == 0) {
    OPI_ASSERT_ERROR(load(full, 0, &model, &err), OPIPE_E_NOTFOUND, &err, "external data");
    expect_loads(full, OPI_LOAD_GRAPH_ONLY, (uint32_t)strtoul(arg, NULL, 10));
  } else {
    OPI_ASSERT_STR(what, "refused");
    OPI_ASSERT_ERROR(load(full, 0, &model, &err), status_of(arg), &err, text);
  }
  opi_model_free(model);
}

static void test_odd_files(void) {
  if (opi_test_shared("models/loader_edge") == NULL)
    return;
  size_t n_bytes = 0;
  char *list = opi_test_read_file(opi_test_source("tests/loader/wire/files.txt"), &n_bytes);
  OPI_ASSERT_FATAL(list != NULL);
  for (char *line = list, *next = NULL; line != NULL && *line != '\0'; line = next) {
    next = strchr(line, '\n');
    if (next != NULL)
      *next++ = '\0';
    if (line[0] != '#')
      check_line(line);
  }
  free(list);
}

/* ---- folders ---- */

typedef void (*visit_fn)(void *ctx, const char *path);

static void walk(const char *dir, visit_fn visit, void *ctx) {
  DIR *at = opendir(dir);
  OPI_ASSERT_FATAL(at != NULL);
  for (const struct dirent *entry = readdir(at); entry != NULL; entry = readdir(at)) {
    char path[1024];
    struct stat info;
    if (entry->d_name[0] == '.')
      continue;
    const int length = snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
    if (length < 0 || (size_t)length >= sizeof(path) || stat(path, &info) != 0)
      continue;
    const size_t n = strlen(path);
    if (S_ISDIR(info.st_mode))
      walk(path, visit, ctx);
    else if (n > 5 && strcmp(path + n - 5, ".onnx") == 0)
      visit(ctx, path);
  }
  (void)closedir(at);
}

typedef struct listing {
  const char *list;
  const char *root;
  uint32_t n;
} listing;

static void is_listed(void *ctx, const char *path) {
  listing *l = ctx;
  char line[1024];
  (void)snprintf(line, sizeof(line), "\n%s ", path + strlen(l->root) + 1);
  opi_test_check(strstr(l->list, line) != NULL, __FILE__, __LINE__, false, "%s is not in files.txt",
                 path);
  ++l->n;
}

static void test_every_odd_file_is_listed(void) {
  const char *root = opi_test_shared("models");
  if (root == NULL)
    return;
  size_t n_bytes = 0;
  char *list = opi_test_read_file(opi_test_source("tests/loader/wire/files.txt"), &n_bytes);
  OPI_ASSERT_FATAL(list != NULL);
  listing l = {list, root, 0};
  static const char *const folders[] = {"loader_edge", "dynamo_exports", "contrib_single_ops"};
  for (size_t i = 0; i < OPI_COUNT(folders); ++i) {
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s", root, folders[i]);
    walk(path, is_listed, &l);
  }
  OPI_ASSERT(l.n > 400);
  free(list);
}

static void must_load(void *ctx, const char *path) {
  ++*(uint32_t *)ctx;
  expect_loads(path, 0, 0);
}

static void test_every_transformer_loads(void) {
  static const char *const folders[] = {"models/graphs", "models/gradients", "models/modern",
                                        "models/fusion_patterns", "models/pipeline_cuts"};
  uint32_t n = 0;
  for (size_t i = 0; i < OPI_COUNT(folders); ++i) {
    const char *path = opi_test_shared(folders[i]);
    if (path == NULL)
      return;
    walk(path, must_load, &n);
  }
  OPI_ASSERT(n > 100);
}

/* Its constants are replaced by later ones of the same name, and it is not sorted. */
static void test_counts_the_nodes_of_the_file(void) {
  const char *path = opi_test_shared("models/graphs/gpt2_past_12layer/model.onnx");
  if (path == NULL)
    return;
  expect_loads(path, 0, 3069);
}

static void test_own_models_load(void) {
  static const char *const names[] = {"demo",   "gpt_8block",      "llama_8block",   "encoder",
                                      "vision", "encoder_decoder", "llama_external", "gpt_bf16"};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    char path[256];
    (void)snprintf(path, sizeof(path), "tests/data/%s/model.onnx", names[i]);
    expect_loads(opi_test_source(path), 0, 0);
  }
}

OPI_TEST_MAIN("files", OPI_TEST(test_odd_files), OPI_TEST(test_every_odd_file_is_listed),
              OPI_TEST(test_every_transformer_loads), OPI_TEST(test_counts_the_nodes_of_the_file),
              OPI_TEST(test_own_models_load))
