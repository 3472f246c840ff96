/* SPDX-License-Identifier: Apache-2.0 */
/* A restart: training goes on from its own last checkpoint. launch tells the ranks of a restart
 * where the job began, and `train --save DIR` resumes from DIR if it holds a checkpoint since. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"

#define VARIABLE "ONNX_PIPE_RESTART" /* "STEPS GENERATION" of a launch_origin */
enum { PATH_ROOM = 4096, TEXT_ROOM = 48 };

/* Does a word give the option, which may be cut to `least` characters? */
static bool gives(const char *word, const char *option, size_t least) {
  const size_t n = strcspn(word, "=");
  return n >= least && n <= strlen(option) && strncmp(word, option, n) == 0;
}

/* The value of an option in "--option value" or "--option=value"; NULL: not given. The last
 * counts. */
static const char *value_of(char *const *words, const char *option, size_t least) {
  const char *found = NULL;
  for (uint32_t i = 1; words[i] != NULL; ++i) {
    if (!gives(words[i], option, least))
      continue;
    const char *equals = strchr(words[i], '=');
    found = equals != NULL ? equals + 1 : words[i + 1] != NULL ? words[i + 1] : found;
  }
  return found;
}

/* A number of a checkpoint's manifest; 0: the folder has none. */
static uint64_t read_number(const char *folder, const char *name) {
  char path[PATH_ROOM];
  if (folder == NULL || snprintf(path, sizeof path, "%s/manifest.json", folder) >= PATH_ROOM)
    return 0;
  json_t *root = json_load_file(path, 0, NULL);
  const json_int_t n = json_integer_value(json_object_get(root, name));
  json_decref(root);
  return n < 0 ? 0 : (uint64_t)n;
}

void launch_find_origin(char *const *words, launch_origin *out) {
  out->steps = read_number(value_of(words, "--resume", strlen("--resu")), "steps");
  out->generation = read_number(value_of(words, "--save", strlen("--save")), "generation");
}

bool launch_tell_origin(const launch_origin *origin, uint32_t attempt) {
  char text[TEXT_ROOM];
  (void)snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64, origin->steps, origin->generation);
  return attempt == 0 ? unsetenv(VARIABLE) == 0 : setenv(VARIABLE, text, 1) == 0;
}

void cli_resume_restarted(cli_options *io_options) {
  cli_train_texts *t = &io_options->t;
  const char *text = getenv(VARIABLE);
  launch_origin origin;
  if (text == NULL || t->save == NULL ||
      sscanf(text, "%" SCNu64 " %" SCNu64, &origin.steps, &origin.generation) != 2)
    return;
  const uint64_t generation = read_number(t->save, "generation");
  if (generation == 0 || generation == origin.generation)
    return; /* the job has not saved yet */
  const uint64_t steps = read_number(t->save, "steps");
  t->n_steps_done = steps < origin.steps ? 0 : steps - origin.steps;
  t->resume = t->save;
  t->overwrite = false;
}
