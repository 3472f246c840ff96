/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: label=nosan */
/* Which models have a row form, and why others have none: rows.txt, one line a model,
 *   PATH CONTEXT [DIM=NUMBER] taken | refused REASON
 * Models of the shared folder and of tests/data (data/...). The logits of what is taken are those
 * of the whole sequence, and have the same bits in another mix. Every decoder of the shared folders
 * that are named below stands in the list. `OPIPE_WRITE=1` writes the results anew.
 */
#include <dirent.h>
#include <unistd.h>

#include "tests/loader/passes/rows.h"

enum { LINE = 600 };

typedef struct entry {
  char path[200], dim[64], result[LINE];
  int64_t context, number;
} entry;

static bool parse(const char *line, entry *e) {
  int at = 0;
  *e = (entry){.number = 0};
  if (sscanf(line, "%199s %ld %n", e->path, &e->context, &at) < 2)
    return false;
  line += at;
  const size_t n = strcspn(line, " \n");
  if (memchr(line, '=', n) != NULL && sscanf(line, "%63[^=]=%ld %n", e->dim, &e->number, &at) == 2)
    line += at;
  (void)snprintf(e->result, sizeof e->result, "%.*s", (int)strcspn(line, "\n"), line);
  return true;
}

/* The file, in the support library's buffer; NULL: it is not there. */
static const char *file_of(const entry *e) {
  char path[300];
  const bool own = strncmp(e->path, "data/", 5) == 0;
  const bool file = strstr(e->path, ".onnx") != NULL;
  (void)snprintf(path, sizeof path, "%s%s%s", own ? "tests/" : "", e->path,
                 file ? "" : "/model.onnx");
  return own ? opi_test_source(path) : opi_test_shared(path);
}

/* The result for a file: with the first line of the reason. */
static void find_result(const entry *e, const char *file, char *out) {
  const opi_dim_binding dim = {e->dim, e->number};
  rows_model t;
  rows_run r;
  opipe_error err = OPIPE_ERROR_INIT;
  bool taken = rows_open(&t, file, e->context, &dim, e->dim[0] != '\0', &err);
  if (taken) {
    const opi_row_wish wish = {.rows = 2, .sequences = 1, .page = 64, .pages = 2};
    opi_row_graph *graph = NULL;
    taken = opi_row_graph_make(t.form, &wish, opi_allocator_system(), &graph, &err) >= 0;
    opi_row_graph_free(graph);
  }
  if (taken) /* forms for training are those for inference in another spelling */
    (void)rows_check_mixes(e->path, &t, strstr(e->path, "/train") != NULL ? 1 : 2, &r);
  (void)snprintf(out, LINE, "%s%.*s", taken ? "taken" : "refused ",
                 taken ? 0 : (int)strcspn(err.message, "\n"), err.message);
  for (char *at; (at = strstr(out, "  ")) != NULL;) /* the list has single spaces */
    memmove(at, at + 1, strlen(at));
  rows_close(&t);
}

/* Every folder with a model below shared/NAME, or in a folder of it, is listed. */
static void check_listed(const char *name, const char *shared, bool deep, const char *list) {
  char path[900], below[500];
  (void)snprintf(path, sizeof path, "%.500s/%.300s", shared, name);
  DIR *dir = opendir(path);
  for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
    if (strchr(e->d_name, '.') != NULL)
      continue;
    (void)snprintf(below, sizeof below, "%.200s/%.200s ", name, e->d_name);
    (void)snprintf(path, sizeof path, "%.500s/%.200s/%.150s/model.onnx", shared, name, e->d_name);
    if (access(path, R_OK) == 0) {
      (void)opi_test_check(strstr(list, below) != NULL, __FILE__, __LINE__, false,
                           "rows.txt has no line for %s", below);
    }
    below[strlen(below) - 1] = '\0';
    if (deep)
      check_listed(below, shared, false, list);
  }
  if (dir != NULL)
    (void)closedir(dir);
}

static void test_models(void) {
  enum { MOST = 1 << 16 };
  static char list[MOST], renewed[MOST];
  const bool writes = getenv("OPIPE_WRITE") != NULL;
  const char *path = opi_test_source("tests/loader/passes/rows.txt");
  char kept[900];
  uint32_t n_taken = 0, n_missing = 0;
  size_t n = 0;
  (void)snprintf(kept, sizeof kept, "%.800s", path);
  FILE *in = fopen(kept, "rb");
  OPI_ASSERT_FATAL(in != NULL);
  list[fread(list, 1, MOST - 1, in)] = '\0';
  (void)fclose(in);
  for (const char *line = list; *line != '\0'; line += strcspn(line, "\n") + 1) {
    entry e;
    char result[LINE];
    const bool is = line[0] != '#' && parse(line, &e);
    const char *file = is ? file_of(&e) : NULL;
    if (file == NULL) {
      n_missing += is;
      n += (size_t)snprintf(renewed + n, MOST - n, "%.*s\n", (int)strcspn(line, "\n"), line);
      continue;
    }
    find_result(&e, file, result);
    n_taken += strcmp(result, "taken") == 0;
    n += (size_t)snprintf(renewed + n, MOST - n, "%s %ld %s%s%.0ld%s%s\n", e.path, e.context, e.dim,
                          e.dim[0] != '\0' ? "=" : "", e.number, e.dim[0] != '\0' ? " " : "",
                          result);
    if (!writes) {
      (void)opi_test_check(strcmp(result, e.result) == 0, __FILE__, __LINE__, false,
                           "%s: %s, not %s", e.path, result, e.result);
    }
  }
  if (writes) {
    FILE *out = fopen(kept, "wb");
    OPI_ASSERT_FATAL(out != NULL);
    OPI_ASSERT(fwrite(renewed, 1, n, out) == n);
    OPI_ASSERT(fclose(out) == 0);
  }
  const char *shared = opi_test_shared("models");
  if (shared != NULL) {
    (void)snprintf(kept, sizeof kept, "%.800s/..", shared);
    check_listed("models/modern", kept, true, list);
    check_listed("models/graphs", kept, false, list);
  }
  OPI_ASSERT(n_taken >= 10);
  if (n_missing != 0)
    printf("SKIP: %u models of the shared folder are not there\n", n_missing);
}

OPI_TEST_MAIN("models in row form", OPI_TEST(test_models))
