/* SPDX-License-Identifier: Apache-2.0 */
/* Text by the tokenizer of ONNX Runtime GenAI's C library, which is opened when a text is given. It
 * reads the tokenizer's files of a folder, and not its model. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"

/* Objects of that library, and its functions that are called here. */
typedef struct oga_result oga_result;
typedef struct oga_tokenizer oga_tokenizer;
typedef struct oga_sequences oga_sequences;
typedef struct oga_stream oga_stream;

struct cli_tokenizer {
  void *library; /* stays open: it has threads and exit handlers of its own */
  oga_tokenizer *tokenizer;
  const char *(*result_error)(const oga_result *result);
  void (*result_free)(oga_result *result);
  oga_result *(*open)(const char *folder, oga_tokenizer **out);
  void (*close)(oga_tokenizer *tokenizer);
  oga_result *(*sequences)(oga_sequences **out);
  void (*sequences_free)(oga_sequences *sequences);
  oga_result *(*encode)(const oga_tokenizer *tokenizer, const char *text, oga_sequences *out);
  size_t (*count)(const oga_sequences *sequences, size_t index);
  const int32_t *(*data)(const oga_sequences *sequences, size_t index);
  oga_result *(*stream)(const oga_tokenizer *tokenizer, oga_stream **out);
  void (*stream_free)(oga_stream *stream);
  oga_result *(*decode)(oga_stream *stream, int32_t id, const char **out);
};

#define MISSING                                                                       \
  "a text needs the tokenizer of ONNX Runtime GenAI: %s; set ONNX_PIPE_GENAI to its " \
  "libonnxruntime-genai.so and ORT_LIB_PATH to libonnxruntime.so, or give ids"

/* Prints the library's reason and frees it. */
static int refuse(const cli_tokenizer *t, const char *what, oga_result *result) {
  const int status = cli_fail("%s: %s", what, t->result_error(result));
  t->result_free(result);
  return status;
}

static int find_functions(cli_tokenizer *t, const char *path) {
  const struct {
    const char *name;
    void *at; /* of a pointer to a function */
  } rows[] = {{"OgaResultGetError", &t->result_error},
              {"OgaDestroyResult", &t->result_free},
              {"OgaCreateTokenizerFromPath", &t->open},
              {"OgaDestroyTokenizer", &t->close},
              {"OgaCreateSequences", &t->sequences},
              {"OgaDestroySequences", &t->sequences_free},
              {"OgaTokenizerEncode", &t->encode},
              {"OgaSequencesGetSequenceCount", &t->count},
              {"OgaSequencesGetSequenceData", &t->data},
              {"OgaCreateTokenizerStream", &t->stream},
              {"OgaDestroyTokenizerStream", &t->stream_free},
              {"OgaTokenizerStreamDecode", &t->decode}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    void *found = dlsym(t->library, rows[i].name);
    if (found == NULL) {
      return cli_fail("%s has no %s: ONNX Runtime GenAI 0.18 or newer is needed", path,
                      rows[i].name);
    }
    memcpy(rows[i].at, &found, sizeof found);
  }
  return CLI_DONE;
}

/* GenAI's library ends the process if it does not find ONNX Runtime's, which is therefore looked
 * for first, by the same names. */
static int find_runtime(void) {
  const char *named = secure_getenv("ORT_LIB_PATH");
  const char *const paths[] = {named, "libonnxruntime.so.1", "libonnxruntime.so"};
  for (size_t i = named == NULL ? 1 : 0; i < (named == NULL ? 3u : 1u); ++i) {
    if (dlopen(paths[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE) != NULL)
      return CLI_DONE;
  }
  return cli_fail(MISSING, dlerror());
}

int cli_tokenizer_open(const char *folder, cli_tokenizer **out) {
  const char *named = secure_getenv("ONNX_PIPE_GENAI");
  const char *path = named == NULL ? "libonnxruntime-genai.so" : named;
  cli_tokenizer *t = calloc(1, sizeof *t);
  int status = t == NULL ? cli_fail("out of memory") : find_runtime();
  if (status == CLI_DONE) {
    t->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    status = t->library == NULL ? cli_fail(MISSING, dlerror()) : find_functions(t, path);
  }
  oga_result *result = status == CLI_DONE ? t->open(folder, &t->tokenizer) : NULL;
  if (result != NULL)
    status = refuse(t, folder, result);
  if (status == CLI_DONE)
    *out = t;
  else
    free(t);
  return status;
}

void cli_tokenizer_close(cli_tokenizer *t) {
  if (t == NULL)
    return;
  t->close(t->tokenizer);
  free(t);
}

int cli_tokenizer_encode(const cli_tokenizer *t, const char *text, uint32_t **out_ids,
                         uint32_t *out_n) {
  oga_sequences *sequences = NULL;
  oga_result *result = t->sequences(&sequences);
  if (result == NULL)
    result = t->encode(t->tokenizer, text, sequences);
  int status = result == NULL ? CLI_DONE : refuse(t, "a prompt", result);
  const size_t n = status == CLI_DONE ? t->count(sequences, 0) : 0;
  uint32_t *ids = malloc((n + 1) * sizeof *ids);
  if (status == CLI_DONE && ids == NULL)
    status = cli_fail("out of memory");
  if (status == CLI_DONE && n > 0)
    memcpy(ids, t->data(sequences, 0), n * sizeof *ids);
  if (sequences != NULL)
    t->sequences_free(sequences);
  if (status != CLI_DONE) {
    free(ids);
    return status;
  }
  *out_ids = ids;
  *out_n = (uint32_t)n;
  return CLI_DONE;
}

void *cli_tokenizer_begin(const cli_tokenizer *t) {
  oga_stream *stream = NULL;
  oga_result *result = t->stream(t->tokenizer, &stream);
  if (result == NULL)
    return stream;
  (void)refuse(t, "a stream of text", result);
  return NULL;
}

const char *cli_tokenizer_piece(const cli_tokenizer *t, void *stream, uint32_t id) {
  const char *piece = NULL;
  oga_result *result = stream == NULL ? NULL : t->decode(stream, (int32_t)id, &piece);
  if (result != NULL)
    t->result_free(result);
  return piece == NULL ? "" : piece;
}

void cli_tokenizer_end(const cli_tokenizer *t, void *stream) {
  if (stream != NULL)
    t->stream_free(stream);
}
