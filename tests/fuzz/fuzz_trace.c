/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the trace of requests that the command generate reads (--requests): refused once with a
 * message, or requests in order of arrival, each with ids or a text, and sampling that the library
 * reads or refuses.
 */
#include <math.h>
#include <stdarg.h>

#include "abi/cli/generate.h"
#include "runtime/generate/sample.h"
#include "tests/fuzz/must.h"

enum { VOCAB = 64 };

static const uint8_t *bytes; /* of the file */
static size_t n_bytes;
static uint32_t n_messages;
static char message[512];

/* ---- the parts of the command that the reader stands on ---- */

static int say(const char *fmt, va_list args, int status) {
  ++n_messages;
  (void)vsnprintf(message, sizeof message, fmt, args);
  return status;
}

int cli_fail(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const int status = say(fmt, args, CLI_FAILED);
  va_end(args);
  return status;
}

int cli_usage(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const int status = say(fmt, args, CLI_USAGE);
  va_end(args);
  return status;
}

bool cli_was_given(const cli_options *o, const char *name) {
  (void)o, (void)name;
  return false;
}

int cli_file_read(const char *path, void **out_data, size_t *out_n) {
  char *copy = malloc(n_bytes + 1);
  (void)path;
  must(copy != NULL, "no memory");
  if (n_bytes > 0)
    memcpy(copy, bytes, n_bytes);
  copy[n_bytes] = '\0';
  *out_data = copy;
  *out_n = n_bytes;
  return CLI_DONE;
}

int cli_gather(void *ctx, const void *data, size_t n) {
  (void)ctx, (void)data, (void)n;
  return OPIPE_E_INTERNAL; /* of standard input alone */
}

int cli_tokenizer_encode(const cli_tokenizer *tokenizer, const char *text, uint32_t **out_ids,
                         uint32_t *out_n) {
  (void)tokenizer, (void)text;
  *out_ids = NULL;
  *out_n = 0;
  return CLI_DONE;
}

/* ---- requests of a trace ---- */

static void use_sampling(const cli_ask *ask) {
  opi_sampling how = opi_sampling_default;
  opi_arena arena;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const opipe_status status =
      opi_sampling_read(ask->sampling, strlen(ask->sampling), VOCAB, &arena, &how, &err);
  must(status >= 0 || err.message[0] != '\0', "a status without a message");
  must(status != OPIPE_E_INTERNAL, err.message);
  must(status < 0 || how.n == ask->n_answers, "room for other answers than the library gives");
  opi_arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static cli_options options;
  cli_asks asks;
  bytes = data;
  n_bytes = size;
  n_messages = 0;
  options.generate.requests = "trace";
  const int status = cli_asks_read(&options, NULL, &asks);
  must((status == CLI_DONE) == (n_messages == 0), message);
  must(n_messages <= 1, "two reasons");
  must(status != CLI_DONE || asks.n > 0, "no request, and no reason");
  for (uint32_t i = 0; status == CLI_DONE && i < asks.n; ++i) {
    const cli_ask *ask = &asks.list[i];
    must((ask->ids == NULL) != (ask->text == NULL), "a request without a prompt");
    must(isfinite(ask->at) && ask->at >= 0, "a time that is none");
    must(i == 0 || asks.list[i - 1].at <= ask->at, "an order that is none");
    must(ask->n_answers >= 1 && ask->answers != NULL, "no room for an answer");
    use_sampling(ask);
  }
  cli_asks_free(&asks);
  return 0;
}
