/* SPDX-License-Identifier: Apache-2.0 */
/* The command of a restart: training goes on from its last checkpoint. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"

enum { PATH_ROOM = 4096 };

/* The value of --option in "--option value" or "--option=value"; NULL: not given. The last
 * counts. */
static const char *value_of(char *const *words, const char *option) {
  const char *found = NULL;
  const size_t n = strlen(option);
  for (uint32_t i = 2; words[1] != NULL && words[i] != NULL; ++i) {
    if (strcmp(words[i], "--") == 0)
      break;
    if (strcmp(words[i], option) == 0 && words[i + 1] != NULL)
      found = words[i + 1];
    else if (strncmp(words[i], option, n) == 0 && words[i][n] == '=')
      found = words[i] + n + 1;
  }
  return found;
}

/* Steps of a checkpoint; false: the folder has none. */
static bool read_steps(const char *folder, uint64_t *out) {
  char path[PATH_ROOM];
  (void)snprintf(path, sizeof path, "%s/manifest.json", folder);
  json_t *root = json_load_file(path, 0, NULL);
  const json_t *step = json_object_get(root, "steps");
  const bool found = json_is_integer(step) || json_is_string(step);
  if (found) {
    *out = json_is_integer(step) ? (uint64_t)json_integer_value(step)
                                 : strtoull(json_string_value(step), NULL, 10);
  }
  json_decref(root);
  return found;
}

uint64_t launch_steps_done(char *const *words, const char *option) {
  uint64_t n = 0;
  const char *folder = value_of(words, option);
  return folder != NULL && read_steps(folder, &n) ? n : 0;
}

/* True if words[i] is one of the options that a restart replaces; *out_n: words that it takes. */
static bool is_replaced(char *const *words, uint32_t i, bool steps, uint32_t *out_n) {
  static const char *const options[] = {"--resume", "--steps"};
  *out_n = 1;
  if (strcmp(words[i], "--overwrite") == 0)
    return true;
  for (uint32_t k = 0; k < (steps ? 2 : 1); ++k) {
    const size_t n = strlen(options[k]);
    if (strncmp(words[i], options[k], n) == 0 && (words[i][n] == '\0' || words[i][n] == '=')) {
      *out_n = words[i][n] == '\0' && words[i + 1] != NULL ? 2 : 1;
      return true;
    }
  }
  return false;
}

bool launch_resumed(char *const *words, uint64_t done_before, char **out, char steps[32]) {
  static char resume[] = "--resume", count[] = "--steps";
  const char *folder = strcmp(words[1], "train") == 0 ? value_of(words, "--save") : NULL;
  const char *wanted = value_of(words, "--steps");
  uint64_t done = 0;
  uint32_t n = 0, taken = 0;
  const bool resumes = folder != NULL && read_steps(folder, &done);
  if (resumes && wanted != NULL) {
    const uint64_t all = done_before + strtoull(wanted, NULL, 10);
    if (done >= all)
      return false;
    (void)snprintf(steps, 32, "%" PRIu64, all - done);
  }
  for (uint32_t i = 0; words[i] != NULL; i += taken) {
    taken = 1;
    if (!resumes || i < 2 || !is_replaced(words, i, wanted != NULL, &taken))
      out[n++] = words[i];
    if (resumes && i == 1) {
      out[n++] = resume;
      out[n++] = (char *)(uintptr_t)folder;
      if (wanted != NULL) {
        out[n++] = count;
        out[n++] = steps;
      }
    }
  }
  out[n] = NULL;
  return true;
}
