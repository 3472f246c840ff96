/* SPDX-License-Identifier: Apache-2.0 */
/* Saving with new values: where external files may go, and what has no place in the file. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/wire/wire.h"
#include "tests/loader/wire/writer.h"

enum { N = 4 };
static const float old_values[N] = {1, 2, 3, 4}, new_values[N] = {5, 6, 7, 8};
static const int64_t dims[] = {N};

static const char *folder(const char *name) {
  const char *path = opi_test_tmp(name);
  OPI_ASSERT_FATAL(mkdir(path, 0700) == 0);
  return path;
}

static const char *path_of(char out[512], const char *dir, const char *name) {
  (void)snprintf(out, 512, "%s/%s", dir, name);
  return out;
}

/* y = x + w, w in w.bin below a folder of its own. */
static opi_model *load_external(const char *dir) {
  char path[512];
  bytes graph = {0};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  w_sub(&graph, 1, w_node("Add", "add", NULL, "x w", "y"));
  w_sub(&graph, 5, w_external("w", OPIPE_FLOAT, dims, 1, "w.bin", NULL, NULL));
  w_sub(&graph, 11, w_value("x", OPIPE_FLOAT, dims, 1));
  w_sub(&graph, 12, w_value("y", OPIPE_FLOAT, dims, 1));
  const bytes file = w_model(graph, 8);
  OPI_ASSERT_FATAL(opi_test_write_file(path_of(path, dir, "w.bin"), old_values, sizeof old_values));
  OPI_ASSERT_FATAL(opi_test_write_file(path_of(path, dir, "m.onnx"), file.data, file.n));
  free(file.data);
  const opi_load_params params = {.path = path};
  OPI_ASSERT_OK_FATAL(opi_model_load(&params, &model, &err), &err);
  return model;
}

static opi_replacement value_of(const char *name, const float *values) {
  return (opi_replacement){.name = name,
                           .data = values,
                           .shape = dims,
                           .n_bytes = sizeof old_values,
                           .dtype = OPIPE_FLOAT,
                           .rank = 1};
}

static void expect_weights(const char *dir, const char *name, const float *wanted) {
  char path[512];
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  const opi_load_params params = {.path = path_of(path, dir, name),
                                  .flags = OPI_LOAD_ALLOW_HARDLINKS};
  if (!OPI_ASSERT_OK(opi_model_load(&params, &model, &err), &err))
    return;
  const uint32_t w = w_find(model->graph, "w");
  OPI_ASSERT(memcmp(model->graph->values[w].data, wanted, sizeof old_values) == 0);
  opi_model_free(model);
}

static void expect_refusal(const opi_model *model, const opi_replacement *list, const char *path,
                           opipe_status wanted, const char *part) {
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_ERROR(opi_model_try_save(model, list, 1, path, &err), wanted, &err, part);
  OPI_ASSERT_ERROR(opi_model_save(model, list, 1, path, &err), wanted, &err, part);
}

/* One model's file of content is no other's: the model is saved again, or elsewhere. */
static void test_external_files_of_another_model_stay(void) {
  char path[512];
  opipe_error err = OPIPE_ERROR_INIT;
  const char *out = folder("out"), *own = folder("own");
  opi_model *model = load_external(own);
  const opi_replacement first = value_of("w", new_values), second = value_of("w", old_values);
  OPI_ASSERT_OK(opi_model_try_save(model, &first, 1, path_of(path, out, "first.onnx"), &err), &err);
  OPI_ASSERT_OK(opi_model_save(model, &first, 1, path, &err), &err);
  expect_refusal(model, &second, path_of(path, out, "second.onnx"), OPIPE_E_INVALID,
                 "out/w.bin, which is there already and is no part of");
  OPI_ASSERT(access(path, F_OK) != 0);
  expect_weights(out, "first.onnx", new_values);
  OPI_ASSERT_OK(opi_model_try_save(model, &second, 1, path_of(path, out, "first.onnx"), &err),
                &err);
  OPI_ASSERT_OK(opi_model_save(model, &second, 1, path, &err), &err);
  expect_weights(out, "first.onnx", old_values);
  OPI_ASSERT_FATAL(opi_test_write_file(path_of(path, out, "broken.onnx"), "no model", 8));
  expect_refusal(model, &first, path, OPIPE_E_INVALID, "is no part of");
  expect_refusal(model, &first, path_of(path, out, "w.bin"), OPIPE_E_INVALID,
                 "the model itself needs another name");
  expect_weights(out, "first.onnx", old_values);
  opi_model_free(model);
}

/* Links lead to the file, whatever it is called there. */
static void test_external_files_are_known_by_what_they_are(void) {
  char path[512], link[512];
  opipe_error err = OPIPE_ERROR_INIT;
  const char *out = folder("linked");
  opi_model *model = load_external(folder("source"));
  const opi_replacement list = value_of("w", new_values);
  OPI_ASSERT_OK(opi_model_save(model, &list, 1, path_of(path, out, "m.onnx"), &err), &err);
  OPI_ASSERT_FATAL(symlink("m.onnx", path_of(link, out, "link.onnx")) == 0);
  OPI_ASSERT_OK(opi_model_save(model, &list, 1, link, &err), &err);
  expect_weights(out, "m.onnx", new_values);
  opi_model_free(model);
}

/* A save or model_write never puts a model in the place of a file that its own weights are read
 * from.
 */
static void test_weights_in_use_are_never_written_over(void) {
  char weights[512], path[512];
  opipe_error err = OPIPE_ERROR_INIT;
  const char *own = folder("in_use"), *out = folder("beside");
  opi_model *model = load_external(own);
  const opi_replacement list = value_of("w", new_values);
  (void)path_of(weights, own, "w.bin");
  OPI_ASSERT_FATAL(symlink(weights, path_of(path, out, "link")) == 0);
  OPI_ASSERT_FATAL(link(weights, path_of(path, out, "second_name")) == 0);
  static const char *const names[] = {"link", "second_name"};
  for (size_t i = 0; i < 3; ++i) {
    const char *target = i < 2 ? path_of(path, out, names[i]) : weights;
    OPI_ASSERT_ERROR(opi_model_write(model, target, &err), OPIPE_E_INVALID, &err,
                     "it would be written over");
    expect_refusal(model, &list, target, OPIPE_E_INVALID, "the model's content lies in");
    OPI_ASSERT_ERROR(opi_model_check_target(model, target, false, &err), OPIPE_E_INVALID, &err,
                     "the model's content lies in");
  }
  expect_weights(own, "m.onnx", old_values);
  /* The same where its external file would go, in a folder whose model shares the weights. */
  OPI_ASSERT_FATAL(symlink(weights, path_of(path, out, "w.bin")) == 0);
  OPI_ASSERT_FATAL(symlink(path_of(weights, own, "m.onnx"), path_of(path, out, "m.onnx")) == 0);
  expect_refusal(model, &list, path_of(path, out, "other.onnx"), OPIPE_E_INVALID,
                 "the model's content lies in");
  expect_weights(own, "m.onnx", old_values);
  /* Its own file it may replace, as long as that is the model's new state. */
  (void)path_of(path, own, "m.onnx");
  OPI_ASSERT_OK(opi_model_write(model, path, &err), &err);
  OPI_ASSERT_OK(opi_model_check_target(model, path, false, &err), &err);
  OPI_ASSERT_ERROR(opi_model_check_target(model, path, true, &err), OPIPE_E_INVALID, &err,
                   "the model itself lies in"); /* also what has taken its place since */
  OPI_ASSERT_OK(opi_model_check_target(model, path_of(path, own, "none"), true, &err), &err);
  expect_weights(own, "m.onnx", old_values);
  opi_model_free(model);
}

/* Parameters that a node holds, or nobody: named before anything is computed, too. */
static void test_parameters_without_a_place_are_named(void) {
  char path[512];
  const char *out = folder("places");
  opi_model *model = load_external(folder("from"));
  const opi_replacement list = value_of("inner.weight", new_values);
  expect_refusal(model, &list, path_of(path, out, "m.onnx"), OPIPE_E_UNSUPPORTED,
                 "'inner.weight' is no initializer of the file");
  OPI_ASSERT(access(path, F_OK) != 0 && access(path_of(path, out, "w.bin"), F_OK) != 0);
  opi_model_free(model);
}

OPI_TEST_MAIN("save", OPI_TEST(test_external_files_of_another_model_stay),
              OPI_TEST(test_external_files_are_known_by_what_they_are),
              OPI_TEST(test_weights_in_use_are_never_written_over),
              OPI_TEST(test_parameters_without_a_place_are_named))
