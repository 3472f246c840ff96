/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Annotated copies: read back they give the stages; field by field nothing else of the file
 * changed; annotating again replaces; the onnx package's checker accepts them.
 */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/wire/scan.h"
#include "tests/loader/wire/writer.h"

static opipe_status append(void *ctx, const void *data, size_t n) {
  w_raw(ctx, data, n);
  return OPIPE_OK;
}

static uint32_t count_nodes(const opi_model *model) {
  uint32_t n = 0;
  uint64_t at = 0;
  opi_wire_field field, inner;
  while (at < model->file_bytes && opi_wire_next(model->file, model->file_bytes, &at, &field)) {
    if (field.number != 7)
      continue;
    for (uint64_t k = field.data; k < field.end;) {
      OPI_ASSERT_FATAL(opi_wire_next(model->file, field.end, &k, &inner));
      n += inner.number == 1;
    }
  }
  return n;
}

/* Node i is in stage i * n_stages / n_nodes, every seventh in none. */
static int32_t stage_for(uint32_t i, uint32_t n_nodes, uint32_t n_stages) {
  return i % 7 == 6 ? -1 : (int32_t)((uint64_t)i * n_stages / n_nodes);
}

static bytes annotate(const opi_model *model, const char *name, uint32_t n_stages) {
  const uint32_t n_nodes = count_nodes(model);
  int32_t *stages = calloc(n_nodes + 1, sizeof(*stages));
  for (uint32_t i = 0; i < n_nodes; ++i)
    stages[i] = stage_for(i, n_nodes, n_stages);
  opipe_error err = OPIPE_ERROR_INIT;
  bytes out = {0};
  OPI_ASSERT_OK(
      opi_model_annotate(model, name, stages, n_nodes, n_stages, NULL, append, &out, &err), &err);
  free(stages);
  return out;
}

/* ---- comparison, field by field ---- */

typedef struct side {
  const uint8_t *data;
  uint64_t at, end;
} side;

/* The next field that is not an annotation; false at the end. */
static bool next_kept(side *s, uint32_t annotation, opi_wire_field *out) {
  while (s->at < s->end) {
    OPI_ASSERT_FATAL(opi_wire_next(s->data, s->end, &s->at, out));
    if (out->number != annotation)
      return true;
  }
  return false;
}

static bool same_field(const side *a, const opi_wire_field *fa, const side *b,
                       const opi_wire_field *fb) {
  const uint64_t n = fa->end - fa->start;
  return n == fb->end - fb->start && memcmp(a->data + fa->start, b->data + fb->start, n) == 0;
}

static bool same_but_annotations(side a, side b, uint32_t level) {
  /* level 0: model, 1: graph, 2: node; below that bytes are compared. */
  static const uint32_t annotations[] = {26, 0, 10}, inner[] = {7, 1, 0};
  opi_wire_field fa, fb;
  for (;;) {
    const bool more = next_kept(&a, annotations[level], &fa);
    if (more != next_kept(&b, annotations[level], &fb))
      return false;
    if (!more)
      return true;
    if (fa.number != fb.number)
      return false;
    if (inner[level] != 0 && fa.number == inner[level]) {
      const side ia = {a.data, fa.data, fa.end}, ib = {b.data, fb.data, fb.end};
      if (!same_but_annotations(ia, ib, level + 1))
        return false;
    } else if (level == 0 && fa.number == 1) {
      if (fb.value != (fa.value < 11 ? 11 : fa.value))
        return false;
    } else if (!same_field(&a, &fa, &b, &fb)) {
      return false;
    }
  }
}

static bool only_annotations_differ(const uint8_t *a, uint64_t n_a, bytes b) {
  return same_but_annotations((side){a, 0, n_a}, (side){b.data, 0, b.n}, 0);
}

/* ---- tests ---- */

static opi_model *load_path(const char *path) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  const opi_load_params params = {.path = path, .flags = OPI_LOAD_GRAPH_ONLY};
  OPI_ASSERT_OK_FATAL(opi_model_load(&params, &model, &err), &err);
  return model;
}

static void expect_stages(bytes file, uint32_t n_nodes, uint32_t n_stages) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  OPI_ASSERT_OK(w_load(file, OPI_LOAD_GRAPH_ONLY, NULL, &model, &err), &err);
  if (model == NULL)
    return;
  for (uint32_t n = 0; n < model->graph->n_nodes; ++n) {
    const opi_node *node = &model->graph->nodes[n];
    if (!OPI_ASSERT_INT(node->stage, stage_for(node->source, n_nodes, n_stages)))
      break;
  }
  opi_model_free(model);
}

static const char *const own_models[] = {"demo",
                                         "gpt_8block",
                                         "llama_external",
                                         "encoder_legacy",
                                         "odd/unknown_fields",
                                         "odd/functions_nested",
                                         "odd/if_constant",
                                         "odd/unsorted"};

static void test_annotated_models(void) {
  for (size_t i = 0; i < OPI_COUNT(own_models); ++i) {
    char path[256];
    (void)snprintf(path, sizeof(path), "tests/data/%s/model.onnx", own_models[i]);
    opi_model *model = load_path(opi_test_source(path));
    const uint32_t n_nodes = count_nodes(model);
    bytes four = annotate(model, "plan", 4);
    OPI_ASSERT(only_annotations_differ(model->file, model->file_bytes, four));
    expect_stages(four, n_nodes, 4);
    /* Again, with another plan under the same name: as if the first had not been. */
    opipe_error err = OPIPE_ERROR_INIT;
    opi_model *again = NULL;
    OPI_ASSERT_OK_FATAL(w_load(four, OPI_LOAD_GRAPH_ONLY, NULL, &again, &err), &err);
    bytes two = annotate(again, "plan", 2), direct = annotate(model, "plan", 2);
    OPI_ASSERT(two.n == direct.n && memcmp(two.data, direct.data, two.n) == 0);
    /* Under another name both stay; the newer is read. */
    bytes both = annotate(again, "other", 3);
    expect_stages(both, n_nodes, 3);
    OPI_ASSERT(both.n > four.n);
    opi_model_free(again);
    opi_model_free(model);
    free(four.data);
    free(two.data);
    free(direct.data);
    free(both.data);
  }
}

static opipe_status refuse_later(void *ctx, const void *data, size_t n) {
  (void)data;
  uint64_t *left = ctx;
  if (n > *left)
    return OPIPE_E_IO;
  *left -= n;
  return OPIPE_OK;
}

static void test_refusals(void) {
  opi_model *model = load_path(opi_test_source("tests/data/demo/model.onnx"));
  const uint32_t n = count_nodes(model);
  int32_t *stages = calloc(n + 1, sizeof(*stages));
  opipe_error err = OPIPE_ERROR_INIT;
  bytes out = {0};
  OPI_ASSERT_ERROR(opi_model_annotate(model, "", stages, n, 1, NULL, append, &out, &err),
                   OPIPE_E_INVALID, &err, "name");
  OPI_ASSERT_ERROR(opi_model_annotate(model, "p", stages, n, 0, NULL, append, &out, &err),
                   OPIPE_E_INVALID, &err, "0 devices");
  OPI_ASSERT_ERROR(opi_model_annotate(model, "p", stages, n + 1, 1, NULL, append, &out, &err),
                   OPIPE_E_INVALID, &err, "nodes");
  /* nodes beyond those given are left out */
  OPI_ASSERT_OK(opi_model_annotate(model, "p", stages, n - 1, 1, NULL, append, &out, &err), &err);
  stages[1] = -2;
  OPI_ASSERT_ERROR(opi_model_annotate(model, "p", stages, n, 1, NULL, append, &out, &err),
                   OPIPE_E_INVALID, &err, "node 1: stage -2");
  stages[1] = 0;
  for (uint64_t room = 0; room < 3000; room += 37) {
    uint64_t left = room;
    OPI_ASSERT_ERROR(opi_model_annotate(model, "p", stages, n, 1, NULL, refuse_later, &left, &err),
                     OPIPE_E_IO, &err, "status -7");
  }
  free(out.data);
  free(stages);
  opi_model_free(model);
}

/* Runs check_annotated.py; its exit status, -1 when it cannot be run. */
static int run_checker(const char *python, const char *original, const char *copy) {
  const char *script = opi_test_source("tests/loader/wire/check_annotated.py");
  const pid_t child = fork();
  if (child == 0) {
    execlp(python, python, script, original, copy, "plan", "4", (char *)NULL);
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
    return -1;
  return WEXITSTATUS(status);
}

static void test_the_checker_accepts(void) {
  const char *python = getenv("OPIPE_PYTHON");
  if (python == NULL || python[0] == '\0')
    python = "python3";
  for (size_t i = 0; i < OPI_COUNT(own_models); ++i) {
    char path[256];
    (void)snprintf(path, sizeof(path), "tests/data/%s/model.onnx", own_models[i]);
    const char *original = opi_test_source(path), *copy = opi_test_tmp("annotated.onnx");
    opi_model *model = load_path(original);
    bytes file = annotate(model, "plan", 4);
    OPI_ASSERT_FATAL(opi_test_write_file(copy, file.data, file.n));
    free(file.data);
    opi_model_free(model);
    const int status = run_checker(python, original, copy);
    if (status == 77 || status == 127)
      OPI_SKIP("no onnx package for %s", python);
    opi_test_check(status == 0, __FILE__, __LINE__, false, "%s: check_annotated.py says %d", path,
                   status);
  }
}

OPI_TEST_MAIN("annotate", OPI_TEST(test_annotated_models), OPI_TEST(test_refusals),
              OPI_TEST(test_the_checker_accepts))
