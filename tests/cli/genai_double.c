/* SPDX-License-Identifier: Apache-2.0 */
/* A double of ONNX Runtime GenAI's C library, as far as text goes: a token is a byte, its id the
 * byte's number; a conversation's text is its JSON and "assistant: ". */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct oga_result {
  char text[256];
} oga_result;
typedef struct oga_sequences {
  size_t n;
  int32_t *ids;
} oga_sequences;
typedef struct oga_stream {
  char bytes[8]; /* of a character that has begun */
  size_t n;
} oga_stream;

static oga_result *fail(const char *text, const char *of) {
  oga_result *result = malloc(sizeof *result);
  if (result != NULL)
    (void)snprintf(result->text, sizeof result->text, "%s %.200s", text, of);
  return result;
}

const char *OgaResultGetError(const oga_result *result) {
  return result->text;
}

void OgaDestroyResult(oga_result *result) {
  free(result);
}

oga_result *OgaCreateTokenizerFromPath(const char *folder, int **out) {
  char path[4096];
  (void)snprintf(path, sizeof path, "%s/genai_config.json", folder);
  FILE *file = fopen(path, "r");
  if (file == NULL)
    return fail("Error opening", path);
  (void)fclose(file);
  *out = calloc(1, sizeof **out);
  return NULL;
}

void OgaDestroyTokenizer(int *tokenizer) {
  free(tokenizer);
}

oga_result *OgaCreateSequences(oga_sequences **out) {
  *out = calloc(1, sizeof **out);
  return NULL;
}

void OgaDestroySequences(oga_sequences *sequences) {
  free(sequences->ids);
  free(sequences);
}

oga_result *OgaTokenizerEncode(const int *tokenizer, const char *text, oga_sequences *out) {
  (void)tokenizer;
  out->n = strlen(text);
  out->ids = calloc(out->n + 1, sizeof *out->ids);
  for (size_t i = 0; out->ids != NULL && i < out->n; ++i)
    out->ids[i] = (unsigned char)text[i];
  return out->ids == NULL ? fail("out of memory", "") : NULL;
}

size_t OgaSequencesGetSequenceCount(const oga_sequences *sequences, size_t index) {
  return index == 0 ? sequences->n : 0;
}

const int32_t *OgaSequencesGetSequenceData(const oga_sequences *sequences, size_t index) {
  return index == 0 ? sequences->ids : NULL;
}

oga_result *OgaTokenizerDecode(const int *tokenizer, const int32_t *ids, size_t n,
                               const char **out) {
  char *text = calloc(n + 1, 1);
  (void)tokenizer;
  for (size_t i = 0; text != NULL && i < n; ++i)
    text[i] = (char)ids[i];
  *out = text;
  return text == NULL ? fail("out of memory", "") : NULL;
}

oga_result *OgaTokenizerApplyChatTemplate(const int *tokenizer, const char *template,
                                          const char *messages, const char *tools, bool asks,
                                          const char **out) {
  static const char ends[] = "assistant: ";
  const size_t n = strlen(messages) + sizeof ends;
  char *text = malloc(n);
  (void)tokenizer;
  if (template != NULL || tools != NULL || strstr(messages, "no template") != NULL) {
    free(text);
    return fail("no template for", messages);
  }
  if (text != NULL)
    (void)snprintf(text, n, "%s%s", messages, asks ? ends : "");
  *out = text;
  return NULL;
}

void OgaDestroyString(const char *text) {
  free((void *)(uintptr_t)text);
}

oga_result *OgaCreateTokenizerStream(const int *tokenizer, oga_stream **out) {
  (void)tokenizer;
  *out = calloc(1, sizeof **out);
  return NULL;
}

void OgaDestroyTokenizerStream(oga_stream *stream) {
  free(stream);
}

/* Bytes of a character come with its last one. */
oga_result *OgaTokenizerStreamDecode(oga_stream *stream, int32_t id, const char **out) {
  static _Thread_local char piece[8];
  const unsigned char byte = (unsigned char)id;
  if (byte < 0x80 || byte >= 0xc0)
    stream->n = 0;
  if (stream->n < sizeof stream->bytes)
    stream->bytes[stream->n++] = (char)byte;
  const unsigned char first = (unsigned char)stream->bytes[0];
  const size_t wanted = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  const bool whole = first < 0x80 || (first >= 0xc0 && stream->n >= wanted);
  memset(piece, 0, sizeof piece);
  if (whole) {
    memcpy(piece, stream->bytes, stream->n);
    stream->n = 0;
  }
  *out = piece;
  return NULL;
}
