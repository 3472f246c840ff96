/* SPDX-License-Identifier: Apache-2.0 */
/* External data: what is found, and everything that must not be. Each rule is tried twice, with
 * openat2 and with the fall-back that needs none.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/wire/wire.h"
#include "tests/loader/wire/writer.h"

static const float numbers[] = {1, 2, 3, 4, 5, 6, 7, 8};

/* A fresh folder below the test's own. */
static const char *folder(const char *name) {
  const char *path = opi_test_tmp(name);
  OPI_ASSERT_FATAL(mkdir(path, 0700) == 0);
  return path;
}

static void path_of(char out[512], const char *dir, const char *name) {
  (void)snprintf(out, 512, "%s/%s", dir, name);
}

static void put_file(const char *dir, const char *name, const void *data, size_t n) {
  char path[512];
  path_of(path, dir, name);
  OPI_ASSERT_FATAL(opi_test_write_file(path, data, n));
}

static void put_link(const char *dir, const char *name, const char *target) {
  char path[512];
  path_of(path, dir, name);
  OPI_ASSERT_FATAL(symlink(target, path) == 0);
}

/* A model with w = float32 [4] in `location`, y = w + x. */
static bytes external_model(const char *location, const char *offset, const char *length) {
  const int64_t dims[] = {4};
  bytes graph = {0};
  w_sub(&graph, 1, w_node("Add", "add", NULL, "x w", "y"));
  w_sub(&graph, 5, w_external("w", OPIPE_FLOAT, dims, 1, location, offset, length));
  w_sub(&graph, 11, w_value("x", OPIPE_FLOAT, dims, 1));
  w_sub(&graph, 12, w_value("y", OPIPE_FLOAT, dims, 1));
  return w_model(graph, 8);
}

static void put_model(const char *dir, const char *name, bytes model) {
  put_file(dir, name, model.data, model.n);
  free(model.data);
}

static opipe_status load(const char *dir, const char *name, uint32_t flags, opi_model **out_model,
                         opipe_error *err) {
  char path[512];
  path_of(path, dir, name);
  const opi_load_params params = {.path = path, .flags = flags};
  *out_model = NULL;
  return opi_model_load(&params, out_model, err);
}

static void expect_weights(const char *dir, const char *name, uint32_t flags, const float *wanted) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  OPI_ASSERT_OK(load(dir, name, flags, &model, &err), &err);
  if (model == NULL)
    return;
  const uint32_t w = w_find(model->graph, "w");
  OPI_ASSERT(memcmp(model->graph->values[w].data, wanted, 16) == 0);
  OPI_ASSERT_INT(model->external_bytes, 16);
  opi_model_free(model);
}

static void expect_refusal(const char *dir, const char *name, uint32_t flags, opipe_status wanted,
                           const char *part) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  OPI_ASSERT_ERROR(load(dir, name, flags, &model, &err), wanted, &err, part);
  OPI_ASSERT(strstr(err.message, "'w'") != NULL);
  opi_model_free(model);
}

static void test_ranges(void) {
  const char *dir = folder("ranges");
  put_file(dir, "w.bin", numbers, sizeof(numbers));
  struct {
    const char *offset, *length;
    const float *wanted; /* NULL: refused */
  } cases[] = {{NULL, NULL, numbers},
               {"0", "16", numbers},
               {"16", "16", numbers + 4},
               {"4", NULL, numbers + 1},
               {"17", NULL, NULL},
               {"16", "12", NULL},
               {"0", "32", NULL},
               {"18446744073709551615", "16", NULL},
               {"18446744073709551616", NULL, NULL},
               {"-1", NULL, NULL},
               {"+4", NULL, NULL},
               {"0x4", NULL, NULL},
               {"", NULL, NULL},
               {"4 ", NULL, NULL}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    put_model(dir, "m.onnx", external_model("w.bin", cases[i].offset, cases[i].length));
    if (cases[i].wanted != NULL)
      expect_weights(dir, "m.onnx", 0, cases[i].wanted);
    else
      expect_refusal(dir, "m.onnx", 0, OPIPE_E_INVALID, "");
  }
}

/* An offset that no element can be aligned to: big tensors stay where they are. */
static void test_large_unaligned_tensors_are_not_copied(void) {
  const char *dir = folder("unaligned");
  enum { N = 1 << 18 };
  uint8_t *data = calloc(N * 4 + 3, 1);
  data[3 + 4 * (N - 1)] = 7;
  put_file(dir, "w.bin", data, N * 4 + 3);
  free(data);
  const int64_t dims[] = {N};
  bytes graph = {0};
  w_sub(&graph, 5, w_external("w", OPIPE_INT32, dims, 1, "w.bin", "3", NULL));
  w_sub(&graph, 12, w_value("w", OPIPE_INT32, dims, 1));
  put_model(dir, "m.onnx", w_model(graph, 8));
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  OPI_ASSERT_OK_FATAL(load(dir, "m.onnx", 0, &model, &err), &err);
  const opi_value *w = &model->graph->values[w_find(model->graph, "w")];
  OPI_ASSERT_INT((uintptr_t)w->data % 4, 3);
  OPI_ASSERT_INT(((const uint8_t *)w->data)[4 * (N - 1)], 7);
  OPI_ASSERT(model->arena.total_bytes < 65536);
  opi_model_free(model);
}

static void test_locations(void) {
  const char *dir = folder("locations"), *inner = folder("locations/sub");
  put_file(dir, "w.bin", numbers, sizeof(numbers));
  put_file(inner, "w.bin", numbers, sizeof(numbers));
  put_file(opi_test_tmpdir(), "outside.bin", numbers, sizeof(numbers));
  char absolute[512];
  path_of(absolute, dir, "w.bin");
  static const char *const good[] = {"w.bin", "./w.bin", "sub/w.bin", "sub//w.bin", "sub/./w.bin"};
  for (size_t i = 0; i < OPI_COUNT(good); ++i) {
    put_model(dir, "m.onnx", external_model(good[i], NULL, NULL));
    expect_weights(dir, "m.onnx", 0, numbers);
  }
  const char *const bad[] = {
      "../outside.bin", "sub/../w.bin",          "..",     "", ".", "sub", absolute,
      "sub\\w.bin",     "sub/../../outside.bin", "w.bin/", "/"};
  for (size_t i = 0; i < OPI_COUNT(bad); ++i) {
    put_model(dir, "m.onnx", external_model(bad[i], NULL, NULL));
    opipe_error err = OPIPE_ERROR_INIT;
    opi_model *model = NULL;
    OPI_ASSERT(load(dir, "m.onnx", OPI_LOAD_ALLOW_SYMLINKS, &model, &err) < 0);
    OPI_ASSERT(strstr(err.message, "external data") != NULL);
  }
}

static void test_missing_files(void) {
  const char *dir = folder("missing");
  put_model(dir, "m.onnx", external_model("none.bin", NULL, NULL));
  expect_refusal(dir, "m.onnx", 0, OPIPE_E_NOTFOUND, "none.bin");
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  OPI_ASSERT_OK_FATAL(load(dir, "m.onnx", OPI_LOAD_GRAPH_ONLY, &model, &err), &err);
  const opi_value *w = &model->graph->values[w_find(model->graph, "w")];
  OPI_ASSERT(w->data == NULL);
  OPI_ASSERT_INT(w->flags, OPI_VALUE_INITIALIZER | OPI_VALUE_MISSING);
  OPI_ASSERT_INT(w->shape[0], 4);
  opi_model_free(model);
  /* Only absence is forgiven. */
  put_model(dir, "m.onnx", external_model("../none.bin", NULL, NULL));
  expect_refusal(dir, "m.onnx", OPI_LOAD_GRAPH_ONLY, OPIPE_E_INVALID, "'..'");
}

static void test_links(void) {
  const char *dir = folder("links");
  char path[512], other[512];
  put_file(opi_test_tmpdir(), "target.bin", numbers, sizeof(numbers));
  put_file(dir, "w.bin", numbers, sizeof(numbers));
  put_link(dir, "inside.bin", "w.bin");
  put_link(dir, "outside.bin", "../target.bin");
  put_link(dir, "up", "..");
  put_link(dir, "loop.bin", "loop.bin");
  static const char *const links[] = {"inside.bin", "outside.bin", "up/target.bin"};
  for (size_t i = 0; i < OPI_COUNT(links); ++i) {
    put_model(dir, "m.onnx", external_model(links[i], NULL, NULL));
    expect_refusal(dir, "m.onnx", 0, OPIPE_E_INVALID, "--allow-symlinks");
    expect_weights(dir, "m.onnx", OPI_LOAD_ALLOW_SYMLINKS, numbers);
  }
  put_model(dir, "m.onnx", external_model("loop.bin", NULL, NULL));
  expect_refusal(dir, "m.onnx", 0, OPIPE_E_INVALID, "--allow-symlinks");

  path_of(path, dir, "w.bin");
  path_of(other, dir, "second_name.bin");
  OPI_ASSERT_FATAL(link(path, other) == 0);
  put_model(dir, "m.onnx", external_model("w.bin", NULL, NULL));
  expect_refusal(dir, "m.onnx", 0, OPIPE_E_INVALID, "--allow-hardlinks");
  expect_weights(dir, "m.onnx", OPI_LOAD_ALLOW_HARDLINKS, numbers);
}

static void test_special_files(void) {
  const char *dir = folder("special");
  char path[512];
  path_of(path, dir, "fifo");
  OPI_ASSERT_FATAL(mkfifo(path, 0600) == 0);
  path_of(path, dir, "folder");
  OPI_ASSERT_FATAL(mkdir(path, 0700) == 0);
  static const char *const names[] = {"fifo", "folder"};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    put_model(dir, "m.onnx", external_model(names[i], NULL, NULL));
    expect_refusal(dir, "m.onnx", 0, OPIPE_E_INVALID, "not a regular file");
    /* In the model's place. */
    opipe_error err = OPIPE_ERROR_INIT;
    opi_model *model = NULL;
    OPI_ASSERT_ERROR(load(dir, names[i], 0, &model, &err), OPIPE_E_INVALID, &err,
                     "not a regular file");
  }
}

/* cache/blobs/{A,B}; cache/snapshot/{model.onnx -> ../blobs/A, model.onnx.data -> ../blobs/B}. */
static void test_hub_cache(void) {
  (void)folder("cache");
  const char *blobs = folder("cache/blobs"), *snapshot = folder("cache/snapshot");
  const char *elsewhere = folder("cache/elsewhere");
  put_model(blobs, "A", external_model("model.onnx.data", NULL, NULL));
  put_file(blobs, "B", numbers, sizeof(numbers));
  put_file(elsewhere, "C", numbers + 4, 16);
  put_link(snapshot, "model.onnx", "../blobs/A");
  expect_refusal(snapshot, "model.onnx", 0, OPIPE_E_NOTFOUND, "model.onnx.data");
  put_link(snapshot, "model.onnx.data", "../blobs/B");
  expect_weights(snapshot, "model.onnx", 0, numbers);
  /* Reached by its own name the model has no data beside it. */
  expect_refusal(blobs, "A", 0, OPIPE_E_NOTFOUND, "model.onnx.data");
  /* A chain of links. */
  put_link(elsewhere, "model.onnx", "../snapshot/model.onnx");
  put_link(elsewhere, "model.onnx.data", "../snapshot/model.onnx.data");
  expect_weights(elsewhere, "model.onnx", 0, numbers);
  /* Targets in two folders. */
  char path[512];
  path_of(path, snapshot, "model.onnx.data");
  OPI_ASSERT_FATAL(unlink(path) == 0);
  put_link(snapshot, "model.onnx.data", "../elsewhere/C");
  expect_refusal(snapshot, "model.onnx", 0, OPIPE_E_INVALID, "--allow-symlinks");
  expect_weights(snapshot, "model.onnx", OPI_LOAD_ALLOW_SYMLINKS, numbers + 4);
}

/* The same rules without openat2. */
static void test_fallback(void) {
  const char *dir = folder("fallback"), *inner = folder("fallback/sub");
  put_file(inner, "w.bin", numbers, sizeof(numbers));
  put_link(dir, "link.bin", "sub/w.bin");
  put_link(dir, "linked", "sub");
  char path[512];
  path_of(path, dir, "fifo");
  OPI_ASSERT_FATAL(mkfifo(path, 0600) == 0);
  const int at = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
  OPI_ASSERT_FATAL(at >= 0);
  struct {
    const char *location, *part;
    opipe_status wanted;
  } cases[] = {{"sub/w.bin", "", OPIPE_OK},
               {"./sub//w.bin", "", OPIPE_OK},
               {"link.bin", "--allow-symlinks", OPIPE_E_INVALID},
               {"linked/w.bin", "--allow-symlinks", OPIPE_E_INVALID},
               {"sub", "regular", OPIPE_E_INVALID},
               {"fifo", "regular", OPIPE_E_INVALID},
               {"sub/none", "is missing", OPIPE_E_NOTFOUND},
               {"none/w.bin", "is missing", OPIPE_E_NOTFOUND},
               {"sub/w.bin/x", "is missing", OPIPE_E_NOTFOUND},
               {"../fallback/sub/w.bin", "'..'", OPIPE_E_INVALID}};
  for (size_t i = 0; i < OPI_COUNT(cases); ++i) {
    for (uint32_t flags = 0; flags <= OPI_EXTERNAL_NO_OPENAT2; flags += OPI_EXTERNAL_NO_OPENAT2) {
      opipe_error err = OPIPE_ERROR_INIT;
      int fd = -1;
      uint64_t n_bytes = 0;
      const opipe_status status =
          opi_external_open(at, dir, NULL, cases[i].location, flags, &fd, &n_bytes, &err);
      if (cases[i].wanted == OPIPE_OK) {
        OPI_ASSERT_OK(status, &err);
        OPI_ASSERT_INT(n_bytes, sizeof(numbers));
      } else {
        OPI_ASSERT_ERROR(status, cases[i].wanted, &err, cases[i].part);
      }
      if (fd >= 0)
        (void)close(fd);
    }
  }
  (void)close(at);
}

typedef struct log_lines {
  char text[1024];
} log_lines;

static void keep_line(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  log_lines *lines = ctx;
  (void)file;
  (void)line;
  OPI_ASSERT_INT(level, OPIPE_LOG_WARN);
  const size_t n = strlen(lines->text);
  (void)snprintf(lines->text + n, sizeof(lines->text) - n, "%s\n", msg);
}

static void test_unknown_keys_warn(void) {
  const char *dir = folder("keys");
  put_file(dir, "w.bin", numbers, sizeof(numbers));
  const int64_t dims[] = {4};
  bytes graph = {0};
  for (int i = 0; i < 2; ++i) {
    bytes w = w_external(i == 0 ? "w" : "v", OPIPE_FLOAT, dims, 1, "w.bin", NULL, NULL);
    w_entry(&w, "prepacked_0", "x");
    w_entry(&w, "checksum", "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    w_sub(&graph, 5, w);
  }
  w_sub(&graph, 12, w_value("w", OPIPE_FLOAT, dims, 1));
  put_model(dir, "m.onnx", w_model(graph, 8));
  char path[512];
  path_of(path, dir, "m.onnx");
  log_lines lines = {{0}};
  const opi_logger logger = {&lines, keep_line, OPIPE_LOG_WARN};
  const opi_load_params params = {.path = path, .logger = &logger};
  opi_model *model = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(opi_model_load(&params, &model, &err), &err);
  opi_model_free(model);
  const char *key = strstr(lines.text, "prepacked_0");
  OPI_ASSERT(key != NULL && strstr(key + 1, "prepacked_0") == NULL);
  OPI_ASSERT(strstr(lines.text, "checksums of external data are not verified") != NULL);
}

static void test_base_folder_of_a_model_in_memory(void) {
  const char *dir = folder("memory");
  put_file(dir, "w.bin", numbers, sizeof(numbers));
  bytes b = external_model("w.bin", NULL, NULL);
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  opi_load_params params = {.data = b.data, .n_bytes = b.n, .base_dir = dir};
  OPI_ASSERT_OK_FATAL(opi_model_load(&params, &model, &err), &err);
  OPI_ASSERT_INT(model->external_bytes, 16);
  opi_model_free(model);
  model = NULL;
  params.base_dir = NULL;
  OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_INVALID, &err, "no folder");
  params.base_dir = opi_test_tmp("no_such_folder");
  OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_NOTFOUND, &err, "no_such_folder");
  params.base_dir = NULL;
  params.flags = OPI_LOAD_GRAPH_ONLY;
  OPI_ASSERT_OK(opi_model_load(&params, &model, &err), &err);
  opi_model_free(model);
  free(b.data);
}

OPI_TEST_MAIN("external", OPI_TEST(test_ranges),
              OPI_TEST(test_large_unaligned_tensors_are_not_copied), OPI_TEST(test_locations),
              OPI_TEST(test_missing_files), OPI_TEST(test_links), OPI_TEST(test_special_files),
              OPI_TEST(test_hub_cache), OPI_TEST(test_fallback), OPI_TEST(test_unknown_keys_warn),
              OPI_TEST(test_base_folder_of_a_model_in_memory))
