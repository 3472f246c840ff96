/* SPDX-License-Identifier: Apache-2.0 */
/* generate FOLDER|MODEL: what is asked for, and what comes of it. */
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include <jansson.h>
#include <pthread.h>

#include "cli.h"

/* A folder of ONNX Runtime GenAI; all zero for a model's file. */
typedef struct cli_genai {
  json_t *config; /* genai_describe's answer; NULL: it is a file */
  char model[4096];
  uint32_t context; /* 0: not known */
} cli_genai;

/* Reads the folder, if the model is one, and completes options: of a plan for generation.
 * out_folder: zeroed; its config is the caller's to give back, whatever is returned. */
int cli_ask_generation(cli_options *io_options, cli_genai *out_folder);

/* Text to ids and back, by the library of ONNX Runtime GenAI. generate_text.c */
typedef struct cli_tokenizer cli_tokenizer;
int cli_tokenizer_open(const char *folder, cli_tokenizer **out);
void cli_tokenizer_close(cli_tokenizer *tokenizer); /* accepts NULL */
/* ids [*out_n], malloc'ed. */
int cli_tokenizer_encode(const cli_tokenizer *tokenizer, const char *text, uint32_t **out_ids,
                         uint32_t *out_n);
/* A piece of text behind the pieces before it, valid until the next call; stream: made by begin. */
void *cli_tokenizer_begin(const cli_tokenizer *tokenizer);
const char *cli_tokenizer_piece(const cli_tokenizer *tokenizer, void *stream, uint32_t id);
void cli_tokenizer_end(const cli_tokenizer *tokenizer, void *stream); /* accepts NULL */

struct cli_generating;

/* One answer of a request. Under the lock of cli_generating until it has ended. */
typedef struct cli_answer {
  struct cli_generating *all;
  opipe_sequence *sequence; /* NULL: not begun, or given back */
  uint32_t *ids;            /* [n], malloc'ed with its room */
  double *times;            /* [n], beside them: when each came */
  double *logprobs;         /* [n]; NaN: none */
  uint32_t n, room, end;    /* OPIPE_END_* */
  uint32_t n_others;        /* of the first answer: others that have begun */
  bool ended;
  char *text; /* of `ids`, malloc'ed; NULL: none */
  size_t n_text;
  void *stream;
  opipe_error why;
} cli_answer;

/* One request. */
typedef struct cli_ask {
  uint32_t line; /* of its file; 0: of an option */
  double at;     /* seconds after the first */
  uint64_t salt;
  char *text; /* malloc'ed; NULL: ids are given */
  uint32_t *ids;
  uint32_t n_ids;
  char *sampling; /* JSON, malloc'ed */
  uint32_t n_answers;
  cli_answer *answers; /* [n_answers] */
  double start;        /* when it was submitted */
} cli_ask;

typedef struct cli_asks {
  cli_ask *list;
  uint32_t n, room;
  const char *source; /* of lines; NULL: options */
} cli_asks;

/* Requests from --prompt, --ids, --requests or the lines of standard input, in order of arrival;
 * what they do not say is as in options and `base` (an object, or NULL). generate_asks.c */
int cli_asks_read(const cli_options *o, json_t *base, cli_asks *out);
/* Prompts become ids. */
int cli_asks_encode(const cli_asks *asks, const cli_tokenizer *tokenizer);
bool cli_asks_have_text(const cli_asks *asks);
void cli_asks_free(cli_asks *asks);

typedef struct cli_generating {
  cli_session *s;
  opipe_session *session;
  const cli_tokenizer *tokenizer; /* NULL: ids alone */
  pthread_mutex_t lock;
  pthread_cond_t ended; /* an answer has */
  bool streams;         /* tokens go to the terminal as they come */
  bool failed;          /* there is no memory for what comes */
  double begun, over;   /* seconds */
} cli_generating;

/* Runs the requests at their times. generate_run.c */
int cli_generate_all(cli_generating *g, const cli_asks *asks);
/* --reference: each request alone, by the plan's stages one after the other; 1: ids differ. */
int cli_generate_alone(const cli_options *o, cli_session *s, const cli_asks *asks, FILE *json);
void cli_print_generated(const cli_generating *g, const cli_asks *asks, const cli_json *json);

#endif /* CLI_GENERATE_H */
