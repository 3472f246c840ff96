/* SPDX-License-Identifier: Apache-2.0 */
/* Reports on the model's initializers, for train, plan and inspect. */
#include <jansson.h>
#include <stdlib.h>

#include "train.h"

/* Report of model_describe_training; NULL after printing an error. */
static json_t *describe(const cli_options *o, const cli_session *s,
                        const opipe_train_options *options) {
  opipe_error err = OPIPE_ERROR_INIT;
  cli_gathered g = {NULL, 0, 0};
  json_t *root = NULL;
  if (s->api->model_describe_training(s->bound, options, OPIPE_FORMAT_JSON, cli_gather, &g, &err) <
      0)
    (void)cli_report(o->model, &err);
  else if ((root = json_loadb(g.data, g.n, 0, NULL)) == NULL)
    (void)cli_fail("out of memory");
  free(g.data);
  return root;
}

int cli_check_globs(const cli_options *o, const cli_session *s,
                    const opipe_train_options *options) {
  opipe_train_glob globs[CLI_LIST_MOST + 1] = {{"*", 1, 0}}; /* so that at least one is trained */
  opipe_train_options own = *options;
  if (o->t.globs.n == 0 || s->bound == NULL)
    return CLI_DONE;
  for (uint32_t i = 0; i < o->t.globs.n; ++i)
    globs[i + 1] = (opipe_train_glob){o->t.globs.items[i], o->t.globs_train[i], 0};
  own.n_globs = o->t.globs.n + 1;
  own.globs = globs;
  own.globs_stride = sizeof globs[0];
  json_t *root = describe(o, s, &own);
  if (root == NULL)
    return CLI_FAILED;
  const char *first = json_string_value(json_array_get(json_object_get(root, "unmatched"), 0));
  int status = CLI_DONE;
  for (uint32_t i = 0; i < o->t.globs.n && first != NULL && status == CLI_DONE; ++i) {
    if (strcmp(o->t.globs.items[i], first) == 0) {
      status = cli_usage("--%s '%s' matches no initializer of %s: see 'onnx-pipe inspect --train'",
                         o->t.globs_train[i] ? "trainable" : "frozen", first, o->model);
    }
  }
  json_decref(root);
  return status;
}

int cli_put_account(const cli_options *o, const cli_session *s, const opipe_train_options *options,
                    FILE *json) {
  json_t *root = describe(o, s, options);
  if (root == NULL)
    return CLI_FAILED;
  (void)fputs(", \"file\": ", json);
  (void)json_dumpf(json_object_get(root, "file"), json, JSON_ENCODE_ANY);
  json_decref(root);
  return CLI_DONE;
}
