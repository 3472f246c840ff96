/* SPDX-License-Identifier: Apache-2.0 */
/* A host in C that trains: a causal language model on the bytes of a text, cut into stages; then it
 * lets the model write.
 *
 *   cc -std=c11 -I<prefix>/include train.c -ldl -o train
 *   ./train <prefix>/lib/libonnxpipe.so model.onnx text.txt [STAGES [STEPS [PROMPT]]]
 * The model's input is input_ids [batch, seq] of int64 with a vocabulary of at least 256, its
 * output logits. The host owns the data; a step takes pointers to it and gives a ticket. Two steps
 * are in flight. STEPS 0: only write.
 */
#include <opipe/host_helpers.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 16, SEQ = 64, MICROBATCHES = 4 };

static opipe_error err = OPIPE_ERROR_INIT;

/* Ends the program when a call failed: the message names the thing. */
static void need(opipe_status status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "%s: %s\n", what, err.message);
  exit(1);
}

/* ---- data ---- */

typedef struct mini_batch {
  int64_t ids[BATCH * SEQ];
  opipe_binding_io inputs[2]; /* the ids are the labels too: shifted by the library */
} mini_batch;

static unsigned char *text;
static size_t text_n;

static void read_text(const char *path) {
  FILE *file = fopen(path, "rb");
  text = malloc(1 << 20);
  if (file == NULL || text == NULL) {
    fprintf(stderr, "%s cannot be read\n", path);
    exit(1);
  }
  text_n = fread(text, 1, 1 << 20, file);
  fclose(file);
  if (text_n <= SEQ) {
    fprintf(stderr, "%s: %zu bytes, more than %d are needed\n", path, text_n, SEQ);
    exit(1);
  }
}

static void prepare(mini_batch *b) {
  static const int64_t shape[2] = {BATCH, SEQ};
  static const char *const names[2] = {"input_ids", "labels"};
  memset(b, 0, sizeof *b);
  for (int i = 0; i < 2; ++i)
    b->inputs[i] = opipe_named(names[i], opipe_dense(OPIPE_INT64, b->ids, shape, 2));
}

/* Pieces of the text from anywhere. */
static void draw(mini_batch *b) {
  static uint64_t state = 1;
  for (int row = 0; row < BATCH; ++row) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const size_t at = (size_t)(state >> 33) % (text_n - SEQ);
    for (int i = 0; i < SEQ; ++i)
      b->ids[row * SEQ + i] = text[at + (size_t)i];
  }
}

/* ---- training ---- */

static void finish(const opipe_api *api, opipe_request *ticket, uint32_t n_steps) {
  opipe_train_report report = {.struct_size = sizeof report};
  need(api->request_wait(ticket, UINT64_MAX, &err), "step");
  need(api->request_report(ticket, &report, &err), "report");
  if (report.step % 20 == 1 || report.step == n_steps) {
    printf("step %3llu  loss %.4f  gradient norm %.3f\n", (unsigned long long)report.step,
           report.loss, report.gradient_norm);
  }
  api->request_release(ticket);
}

static void train(const opipe_api *api, opipe_session *session, uint32_t n_steps) {
  static mini_batch batches[2];
  opipe_request *tickets[2] = {NULL};
  for (uint32_t step = 0; step < n_steps; ++step) {
    mini_batch *b = &batches[step % 2];
    if (step >= 2)
      finish(api, tickets[step % 2], n_steps); /* its memory is ours again */
    prepare(b);
    draw(b);
    opipe_submit_params submit = opipe_submit_params_init();
    submit.n_inputs = 2;
    submit.inputs = b->inputs;
    need(api->session_submit_wait(session, OPIPE_START_STEP, &submit, UINT64_MAX,
                                  &tickets[step % 2], &err),
         "train_step");
  }
  need(api->session_flush(session, &err), "flush");
  for (uint32_t step = n_steps < 2 ? 0 : n_steps - 2; step < n_steps; ++step)
    finish(api, tickets[step % 2], n_steps);
}

/* ---- writing ---- */

/* The likeliest byte after `n` bytes of the first row. */
static int next_byte(const opipe_api *api, opipe_session *session, mini_batch *b, int n) {
  opipe_request *request = NULL;
  opipe_tensor logits;
  opipe_submit_params submit = opipe_submit_params_init();
  submit.n_inputs = 2;
  submit.inputs = b->inputs;
  need(api->session_submit_wait(session, OPIPE_START_EVALUATION, &submit, UINT64_MAX, &request,
                                &err),
       "evaluate");
  need(api->request_wait(request, UINT64_MAX, &err), "evaluate");
  need(api->request_output(request, 1, &logits, &err), "logits");
  const float *row = (const float *)logits.data + (n - 1) * logits.shape[2];
  int best = 0;
  for (int c = 1; c < logits.shape[2] && c < 256; ++c)
    best = row[c] > row[best] ? c : best;
  api->request_release(request);
  return best;
}

static void write_text(const opipe_api *api, opipe_session *session, const char *prompt,
                       uint32_t n_letters) {
  static mini_batch b;
  int n = 0;
  prepare(&b);
  for (const char *at = prompt; *at != '\0' && n < SEQ; ++at)
    b.ids[n++] = (unsigned char)*at;
  printf("\n%.*s", n, prompt);
  for (uint32_t i = 0; n > 0 && i < n_letters; ++i) {
    const int c = next_byte(api, session, &b, n);
    putchar(c >= 32 || c == '\n' ? c : '?');
    fflush(stdout);
    if (n == SEQ) { /* the window moves on */
      memmove(b.ids, b.ids + SEQ / 4, (SEQ - SEQ / 4) * sizeof b.ids[0]);
      n -= SEQ / 4;
    }
    b.ids[n++] = c;
  }
  printf("\n");
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr,
            "usage: %s libonnxpipe.so model.onnx text.txt [STAGES [STEPS [PROMPT [LETTERS]]]]\n",
            argv[0]);
    return 2;
  }
  const uint32_t n_stages = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 2;
  const uint32_t n_steps = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 100;
  const uint32_t n_letters = argc > 7 ? (uint32_t)strtoul(argv[7], NULL, 10) : 240;
  const opipe_api *api = NULL;
  opipe_context *context = NULL;
  opipe_model *model = NULL, *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  read_text(argv[3]);

  need(opipe_open_library(argv[1], &api, &err), "library");
  need(api->context_create(NULL, &context, &err), "context");
  opipe_load_params load = opipe_load_params_init();
  load.path = argv[2];
  need(api->model_load(context, &load, &model, &err), "load");
  const opipe_dim dims[] = {{"batch", BATCH}, {"seq", SEQ}};
  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = OPIPE_BIND_DEFAULTS | OPIPE_BIND_TRAIN;
  bind.dims = dims;
  bind.n_dims = 2;
  need(api->model_bind(model, &bind, &bound, &err), "bind");
  opipe_train_options options = opipe_train_options_init(); /* with AdamW's usual numbers */
  options.loss = OPIPE_LOSS_CROSS_ENTROPY;
  options.output = "logits";
  options.labels = "labels";
  options.shift = 1;
  options.optimizer = OPIPE_OPTIMIZER_ADAMW;
  options.lr = 0.003;
  options.decay = 0.01;
  options.clip_norm = 1;
  const opipe_device_choice device = {.kind = "cpu", .threads = 1};
  opipe_plan_params params = opipe_plan_params_init();
  params.n_stages = n_stages;
  params.devices = &device;
  params.n_devices = 1;
  params.n_microbatches = MICROBATCHES;
  params.schedule = "1f1b";
  params.train = &options;
  need(api->plan_make(bound, &params, &plan, &err), "plan");
  need(api->session_open(context, plan, NULL, &session, &err), "session");
  api->plan_destroy(plan); /* a session keeps what it needs */

  train(api, session, n_steps);
  write_text(api, session, argc > 6 ? argv[6] : "The", n_letters);

  api->session_close(session);
  api->model_destroy(bound);
  api->model_destroy(model);
  api->context_destroy(context);
  free(text);
  return 0;
}
