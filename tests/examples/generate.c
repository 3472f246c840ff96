/* SPDX-License-Identifier: Apache-2.0 */
/* A host in C that generates: prompts of token ids at once, tokens as they come, a further turn.
 *
 *   cc -std=c11 -I<prefix>/include generate.c -ldl -o generate
 *   ./generate <prefix>/lib/libonnxpipe.so decoder.onnx STAGES TOKENS 1,2,3 [4,5 ...]
 */
#include <opipe/host_helpers.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 64, IDS_MOST = 1024, PROMPTS_MOST = 16 };

static opipe_error err = OPIPE_ERROR_INIT;

/* Ends the program when a call failed: the message names the thing. */
static void need(opipe_status status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "%s: %s\n", what, err.message);
  exit(1);
}

static uint32_t read_ids(const char *text, uint32_t *ids) {
  uint32_t n = 0;
  for (char *end = NULL; *text != '\0' && n < IDS_MOST; text = *end == '\0' ? end : end + 1) {
    ids[n++] = (uint32_t)strtoul(text, &end, 10);
    if (end == text || (*end != ',' && *end != '\0')) {
      fprintf(stderr, "%s: ids such as 1,2,3 are needed\n", text);
      exit(2);
    }
  }
  return n;
}

/* Comes on the session's own thread, one at a time. */
static opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                             opipe_error *why) {
  (void)sequence;
  (void)why;
  printf("prompt %u, position %u: %u\n", *(const uint32_t *)ctx, token->position, token->id);
  return OPIPE_OK; /* a negative status would end the turn */
}

int main(int argc, char **argv) {
  const opipe_api *api = NULL;
  opipe_context *context = NULL;
  opipe_model *model = NULL, *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  opipe_sequence *sequences[PROMPTS_MOST] = {NULL};
  uint32_t ids[IDS_MOST], numbers[PROMPTS_MOST];
  char sampling[64];
  if (argc < 6 || argc - 5 > PROMPTS_MOST) {
    fprintf(stderr, "usage: %s libonnxpipe.so decoder.onnx STAGES TOKENS IDS ...\n", argv[0]);
    return 2;
  }
  need(opipe_open_library(argv[1], &api, &err), "library");
  need(api->context_create(NULL, &context, &err), "context");
  opipe_load_params load = opipe_load_params_init();
  load.path = argv[2];
  need(api->model_load(context, &load, &model, &err), "load");
  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = OPIPE_BIND_DEFAULTS;
  need(api->model_bind(model, &bind, &bound, &err), "bind");

  /* Pages for keys and values, programs for 1, 2, 4 ... rows, passes that are under way at once. */
  opipe_generation_params generation = opipe_generation_params_init();
  generation.context = CONTEXT; /* most ids of a sequence */
  opipe_plan_params params = opipe_plan_params_init();
  params.n_stages = (uint32_t)strtoul(argv[3], NULL, 10);
  params.generation = &generation;
  need(api->plan_make(bound, &params, &plan, &err), "plan");
  need(api->session_open(context, plan, NULL, &session, &err), "session");

  /* All prompts at once: each pass has rows of several. */
  snprintf(sampling, sizeof sampling, "temperature=0,max_tokens=%s", argv[4]);
  for (int i = 5; i < argc; ++i) {
    opipe_generate_params turn = opipe_generate_params_init();
    numbers[i - 5] = (uint32_t)(i - 5);
    turn.ids = ids;
    turn.n_ids = read_ids(argv[i], ids);
    turn.sampling = sampling;
    turn.ctx = &numbers[i - 5];
    turn.on_token = on_token;
    need(api->session_generate(session, &turn, &sequences[i - 5], &err), "generate");
  }
  for (int i = 5; i < argc; ++i)
    need(api->sequence_wait(sequences[i - 5], UINT32_MAX, UINT64_MAX, &err), "wait");

  /* A further turn of the first: only its new ids are computed, if its pages are still there. */
  opipe_generate_params more = opipe_generate_params_init();
  more.ids = ids;
  more.n_ids = read_ids(argv[5], ids);
  more.ctx = &numbers[0];
  more.on_token = on_token;
  need(api->sequence_append(sequences[0], &more, &err), "append");
  need(api->sequence_wait(sequences[0], UINT32_MAX, UINT64_MAX, &err), "wait");

  opipe_generation_info info = opipe_generation_info_init();
  need(api->session_generation(session, &info, &err), "info");
  printf("%llu tokens in %llu passes; %llu prompt ids were there already\n",
         (unsigned long long)info.tokens, (unsigned long long)info.passes,
         (unsigned long long)info.reused);
  for (int i = 5; i < argc; ++i)
    api->sequence_release(sequences[i - 5]);
  api->session_close(session);
  api->plan_destroy(plan);
  api->model_destroy(bound);
  api->model_destroy(model);
  api->context_destroy(context);
  return 0;
}
