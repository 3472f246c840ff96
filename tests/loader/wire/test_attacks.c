/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=300 */
/* The hostile files of tests/data/attacks, as far as reading a file decides: refused with the word
 * that the attack expects, or read; never more than a few seconds, never a crash. Attacks on one
 * operator (what they name is the node 'victim') are refused later, when the model is bound.
 */
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/loader/wire/writer.h"

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool make_attacks(const char *dir) {
  const char *python = getenv("OPIPE_PYTHON");
  if (python == NULL || python[0] == '\0')
    python = "python3";
  const char *maker = opi_test_source("tests/data/attacks/make.py");
  const char *good = opi_test_source("tests/data/odd/functions_nested/model.onnx");
  const pid_t child = fork();
  if (child == 0) {
    execlp(python, python, maker, dir, "--model", good, (char *)NULL);
    _exit(127);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

typedef struct outcome {
  opipe_status status;
  opipe_error err;
} outcome;

/* With an allocator that counts: an attack must not take wild amounts of memory either. */
static outcome attempt(const char *path) {
  outcome o = {.err = OPIPE_ERROR_INIT};
  opi_test_memory memory = {0};
  opi_model *model = NULL;
  opi_test_memory_init(&memory);
  const opi_load_params params = {.path = path, .allocator = &memory.allocator};
  const double start = seconds();
  o.status = opi_model_load(&params, &model, &o.err);
  const double took = seconds() - start;
  const double most = opi_test_is_sanitized() ? 100 : 10;
  opi_test_check(took < most, __FILE__, __LINE__, false, "%s: %.1f s", path, took);
  opi_model_free(model);
  opi_test_check(memory.peak_bytes < UINT64_C(512) << 20, __FILE__, __LINE__, false,
                 "%s: %llu bytes", path, (unsigned long long)memory.peak_bytes);
  OPI_ASSERT(opi_test_memory_end(&memory));
  return o;
}

/* Attacks on one operator: what they name is the node, or their sizes are refused when memory is
 * asked for. Strings are refused where they are used. */
static bool is_refused_later(const char *name, const char *text) {
  static const char *const names[] = {"strings", "expand_huge", "onehot_huge"};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    if (strcmp(name, names[i]) == 0)
      return true;
  }
  return strcmp(text, "victim") == 0;
}

static void check_attack(const char *dir, const char *name) {
  char path[1024], expect[256] = "";
  struct stat info;
  (void)snprintf(path, sizeof(path), "%s/%s/expect.txt", dir, name);
  if (stat(path, &info) != 0)
    return;
  FILE *file = fopen(path, "re");
  OPI_ASSERT_FATAL(file != NULL && fgets(expect, sizeof(expect), file) != NULL);
  (void)fclose(file);
  expect[strcspn(expect, "\n")] = '\0';
  (void)snprintf(path, sizeof(path), "%s/%s/model.onnx", dir, name);
  const outcome o = attempt(path);
  const bool refused = o.status < 0;
  if (strncmp(expect, "load ", 5) == 0) {
    const char *text = expect + 5;
    const bool later = is_refused_later(name, text);
    opi_test_check(refused || later, __FILE__, __LINE__, false, "%s was read", name);
    if (!refused)
      return;
    opi_test_check(strstr(o.err.message, text) != NULL, __FILE__, __LINE__, false,
                   "%s: '%s' is not in: %s", name, text, o.err.message);
  } else if (strcmp(expect, "refuse") == 0) {
    const bool later = is_refused_later(name, "");
    opi_test_check(refused || later, __FILE__, __LINE__, false, "%s was read", name);
  } else if (strcmp(expect, "runs") == 0) {
    opi_test_check(!refused, __FILE__, __LINE__, false, "%s: %s", name, o.err.message);
  }
}

static uint32_t for_each(const char *dir, void (*visit)(const char *dir, const char *name)) {
  uint32_t n = 0;
  DIR *at = opendir(dir);
  OPI_ASSERT_FATAL(at != NULL);
  for (const struct dirent *entry = readdir(at); entry != NULL; entry = readdir(at)) {
    if (entry->d_name[0] == '.')
      continue;
    visit(dir, entry->d_name);
    ++n;
  }
  (void)closedir(at);
  return n;
}

static void check_damaged(const char *dir, const char *name) {
  char path[1024];
  (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
  const outcome o = attempt(path);
  OPI_ASSERT(o.status == OPIPE_OK || o.err.message[0] != '\0');
}

static void test_attacks(void) {
  const char *dir = opi_test_tmp("attacks");
  if (!make_attacks(dir))
    OPI_SKIP("make.py did not run: no python3 here?");
  OPI_ASSERT(for_each(dir, check_attack) > 200);
  char path[512];
  (void)snprintf(path, sizeof(path), "%s/truncated", dir);
  OPI_ASSERT(for_each(path, check_damaged) > 10);
  (void)snprintf(path, sizeof(path), "%s/flipped", dir);
  OPI_ASSERT(for_each(path, check_damaged) >= 400);
}

OPI_TEST_MAIN("attacks", OPI_TEST(test_attacks))
