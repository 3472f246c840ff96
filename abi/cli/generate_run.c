/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of generate are submitted at their times; tokens come by callbacks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "generate.h"
#include "progress.h"

/* ---- callbacks: on the session's thread ---- */

static bool grow(cli_answer *a) {
  if (a->n < a->room)
    return true;
  const uint32_t room = a->room == 0 ? 64 : a->room * 2;
  uint32_t *ids = realloc(a->ids, room * sizeof *ids);
  a->ids = ids == NULL ? a->ids : ids;
  double *times = realloc(a->times, room * sizeof *times);
  a->times = times == NULL ? a->times : times;
  double *logprobs = realloc(a->logprobs, room * sizeof *logprobs);
  a->logprobs = logprobs == NULL ? a->logprobs : logprobs;
  if (ids == NULL || times == NULL || logprobs == NULL)
    return false;
  a->room = room;
  return true;
}

/* The token's text goes to the answer, and to the terminal if it streams. */
static bool add_text(cli_answer *a, uint32_t id) {
  const cli_generating *g = a->all;
  char number[16];
  (void)snprintf(number, sizeof number, a->n == 0 ? "%u" : " %u", id);
  const char *piece =
      g->tokenizer == NULL ? number : cli_tokenizer_piece(g->tokenizer, a->stream, id);
  if (g->streams) {
    (void)fputs(piece, stdout);
    (void)fflush(stdout);
  }
  if (g->tokenizer == NULL)
    return true;
  const size_t n = strlen(piece);
  char *text = realloc(a->text, a->n_text + n + 1);
  if (text == NULL)
    return false;
  memcpy(text + a->n_text, piece, n + 1);
  a->text = text;
  a->n_text += n;
  return true;
}

static opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                             opipe_error *err) {
  cli_answer *a = ctx;
  (void)sequence;
  if (!grow(a) || !add_text(a, token->id)) {
    (void)snprintf(err->message, sizeof err->message, "out of memory");
    return OPIPE_E_NOMEM;
  }
  a->times[a->n] = cli_now();
  a->logprobs[a->n] = token->logprob;
  a->ids[a->n++] = token->id;
  return OPIPE_OK;
}

static void on_end(void *ctx, opipe_sequence *sequence, uint32_t reason, const opipe_error *why) {
  cli_answer *a = ctx;
  (void)sequence;
  (void)pthread_mutex_lock(&a->all->lock);
  a->end = reason;
  if (why != NULL)
    a->why = *why;
  a->ended = true;
  (void)pthread_cond_signal(&a->all->ended);
  (void)pthread_mutex_unlock(&a->all->lock);
}

static void begin_answer(cli_generating *g, cli_answer *a) {
  a->all = g;
  a->stream = g->tokenizer == NULL ? NULL : cli_tokenizer_begin(g->tokenizer);
}

/* The next answer of a request: `ctx` is that of its first one. */
static void on_answer(void *ctx, opipe_sequence *sequence, opipe_sequence *answer, void **io_ctx) {
  cli_answer *first = ctx;
  (void)sequence;
  cli_answer *a = first + first->n_others++ + 1; /* there are as many as were asked for */
  begin_answer(first->all, a);
  a->sequence = answer;
  *io_ctx = a;
}

/* ---- the main thread ---- */

/* Gives back sequences of answers that have ended; returns how many are under way. */
static uint32_t reap(cli_generating *g, const cli_asks *asks) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < asks->n; ++i) {
    cli_ask *ask = &asks->list[i];
    for (uint32_t k = 0; ask->start != 0 && k < ask->n_answers; ++k) {
      cli_answer *a = &ask->answers[k];
      (void)pthread_mutex_lock(&g->lock);
      const bool ended = a->ended;
      (void)pthread_mutex_unlock(&g->lock);
      n += !ended;
      if (!ended || a->sequence == NULL)
        continue;
      g->s->api->sequence_release(a->sequence);
      a->sequence = NULL;
      if (g->tokenizer != NULL)
        cli_tokenizer_end(g->tokenizer, a->stream);
      a->stream = NULL;
    }
  }
  return n;
}

/* Sleeps until an answer ends, or for at most `seconds`. */
static void nap(cli_generating *g, double seconds) {
  struct timespec until;
  const double part = seconds < 0.1 ? seconds : 0.1; /* signals are looked at, too */
  (void)clock_gettime(CLOCK_REALTIME, &until);
  const double at = (double)until.tv_nsec + part * 1e9;
  until.tv_sec += (time_t)(at / 1e9);
  until.tv_nsec = (long)fmod(at, 1e9);
  (void)pthread_mutex_lock(&g->lock);
  (void)pthread_cond_timedwait(&g->ended, &g->lock, &until);
  (void)pthread_mutex_unlock(&g->lock);
}

static int submit(cli_generating *g, const cli_asks *asks, cli_ask *ask) {
  opipe_error err = OPIPE_ERROR_INIT;
  char where[512] = "generate";
  opipe_generate_params params = opipe_generate_params_init();
  cli_answer *first = &ask->answers[0];
  begin_answer(g, first);
  params.ids = ask->ids;
  params.n_ids = ask->n_ids;
  params.sampling = ask->sampling;
  params.salt = ask->salt;
  params.ctx = first;
  params.on_token = on_token;
  params.on_end = on_end;
  params.on_answer = ask->n_answers > 1 ? on_answer : NULL;
  ask->start = cli_now();
  opipe_sequence *sequence = NULL;
  const opipe_status status = g->s->api->session_generate(g->session, &params, &sequence, &err);
  if (status == OPIPE_OK) {
    first->sequence = sequence;
    return CLI_DONE;
  }
  if (ask->line != 0)
    (void)snprintf(where, sizeof where, "%.400s:%u", asks->source, ask->line);
  ask->start = 0;
  if (g->tokenizer != NULL)
    cli_tokenizer_end(g->tokenizer, first->stream);
  first->stream = NULL;
  return cli_report(where, &err);
}

/* Is there a sequence for each answer? */
static bool has_room(const cli_generating *g, const cli_ask *ask) {
  opipe_generation_info info = opipe_generation_info_init();
  return g->s->api->session_generation(g->session, &info, NULL) < 0 || info.open == 0 ||
         info.open + ask->n_answers <= info.n_sequences;
}

int cli_generate_all(cli_generating *g, const cli_asks *asks) {
  struct sigaction before[CLI_STOP_SIGNALS];
  int status = CLI_DONE;
  uint32_t next = 0, n_under_way = 0;
  cli_listen(before);
  g->begun = cli_now();
  while (status == CLI_DONE && (next < asks->n || n_under_way > 0)) {
    cli_ask *ask = next < asks->n ? &asks->list[next] : NULL;
    const double wait = ask == NULL ? 1 : g->begun + ask->at - cli_now();
    if (ask != NULL && wait <= 0 && (n_under_way == 0 || has_room(g, ask))) {
      status = submit(g, asks, ask);
      ++next;
    } else {
      nap(g, wait > 0 ? wait : 0.1);
    }
    n_under_way = reap(g, asks);
    if (cli_asked_to_stop() != 0)
      status = CLI_SIGNALLED + cli_asked_to_stop();
  }
  g->over = cli_now();
  cli_stop_listening(before);
  for (uint32_t i = 0; status != CLI_DONE && i < asks->n; ++i) { /* turns under way end */
    for (uint32_t k = 0; k < asks->list[i].n_answers; ++k)
      g->s->api->sequence_release(asks->list[i].answers[k].sequence);
  }
  for (uint32_t i = 0; status == CLI_DONE && i < asks->n; ++i) {
    for (uint32_t k = 0; k < asks->list[i].n_answers; ++k) {
      const cli_answer *a = &asks->list[i].answers[k];
      if (a->end == OPIPE_END_FAILED)
        status = cli_report("generate", &a->why);
    }
  }
  return status;
}

/* ---- results ---- */

static const char *const ends[] = {"none", "stop", "tokens", "context", "failed", "cancelled"};

static int compare_doubles(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return a < b ? -1 : a > b;
}

typedef struct measured {
  uint64_t n_prompt, n_tokens;
  double first_ms, gap_ms, gap_99_ms; /* mean; median; 99 % */
} measured;

static measured measure(const cli_asks *asks) {
  measured m = {.n_tokens = 0};
  uint64_t n_answers = 0, n_gaps = 0;
  for (uint32_t i = 0; i < asks->n; ++i) {
    m.n_prompt += asks->list[i].n_ids;
    for (uint32_t k = 0; k < asks->list[i].n_answers; ++k) {
      const cli_answer *a = &asks->list[i].answers[k];
      m.n_tokens += a->n;
      n_answers += a->n > 0;
      m.first_ms += a->n > 0 ? 1e3 * (a->times[0] - asks->list[i].start) : 0;
    }
  }
  m.first_ms /= n_answers == 0 ? 1 : (double)n_answers;
  double *gaps = m.n_tokens == 0 ? NULL : malloc(m.n_tokens * sizeof *gaps);
  for (uint32_t i = 0; gaps != NULL && i < asks->n; ++i) {
    for (uint32_t k = 0; k < asks->list[i].n_answers; ++k) {
      const cli_answer *a = &asks->list[i].answers[k];
      for (uint32_t t = 1; t < a->n; ++t)
        gaps[n_gaps++] = 1e3 * (a->times[t] - a->times[t - 1]);
    }
  }
  if (gaps != NULL && n_gaps > 0) {
    qsort(gaps, n_gaps, sizeof *gaps, compare_doubles);
    m.gap_ms = gaps[n_gaps / 2];
    m.gap_99_ms = gaps[n_gaps * 99 / 100];
  }
  free(gaps);
  return m;
}

static void put_answer(FILE *json, const cli_answer *a) {
  (void)fputs("{\"ids\": [", json);
  for (uint32_t t = 0; t < a->n; ++t)
    (void)fprintf(json, t == 0 ? "%u" : ", %u", a->ids[t]);
  (void)fputs("]", json);
  if (a->n > 0 && !isnan(a->logprobs[0])) {
    (void)fputs(", \"logprobs\": [", json);
    for (uint32_t t = 0; t < a->n; ++t) {
      (void)fputs(t == 0 ? "" : ", ", json);
      cli_json_number(json, a->logprobs[t]);
    }
    (void)fputs("]", json);
  }
  if (a->text != NULL) {
    (void)fputs(", \"text\": ", json);
    cli_json_text(json, a->text);
  }
  (void)fprintf(json, ", \"end\": \"%s\"", ends[a->end]);
  if (a->end == OPIPE_END_FAILED) {
    (void)fputs(", \"why\": ", json);
    cli_json_text(json, a->why.message);
  }
  (void)fputs("}", json);
}

static void put_requests(FILE *json, const cli_asks *asks) {
  (void)fputs(", \"requests\": [", json);
  for (uint32_t i = 0; i < asks->n; ++i) {
    const cli_ask *ask = &asks->list[i];
    (void)fprintf(json, "%s{\"prompt\": %u, \"answers\": [", i == 0 ? "" : ", ", ask->n_ids);
    for (uint32_t k = 0; k < ask->n_answers; ++k) {
      (void)fputs(k == 0 ? "" : ", ", json);
      put_answer(json, &ask->answers[k]);
    }
    const cli_answer *a = &ask->answers[0];
    (void)fprintf(json, "], \"first_ms\": %.4f, \"ms\": %.4f}",
                  a->n == 0 ? 0 : 1e3 * (a->times[0] - ask->start),
                  a->n == 0 ? 0 : 1e3 * (a->times[a->n - 1] - ask->start));
  }
  (void)fputs("]", json);
}

static void print_requests(const cli_generating *g, const cli_asks *asks) {
  for (uint32_t i = 0; i < asks->n; ++i) {
    const cli_ask *ask = &asks->list[i];
    for (uint32_t k = 0; k < ask->n_answers && !g->streams; ++k) {
      const cli_answer *a = &ask->answers[k];
      (void)printf(ask->n_answers > 1 ? "request %u, answer %u:" : "request %u:", i, k);
      for (uint32_t t = 0; a->text == NULL && t < a->n; ++t)
        (void)printf(" %u", a->ids[t]);
      (void)printf("%s%s (%s)\n", a->text == NULL ? "" : " ", a->text == NULL ? "" : a->text,
                   ends[a->end]);
    }
  }
}

void cli_print_generated(const cli_generating *g, const cli_asks *asks, const cli_json *json) {
  const measured m = measure(asks);
  const double seconds = g->over - g->begun;
  opipe_generation_info info = opipe_generation_info_init();
  (void)g->s->api->session_generation(g->session, &info, NULL);
  if (json->file == NULL) {
    if (g->streams)
      (void)puts("");
    print_requests(g, asks);
    (void)printf(
        "%u request%s in %.3f s: %llu prompt tokens, %llu tokens, %.1f tokens per second; "
        "first token %.1f ms, then %.2f ms (99 %%: %.2f)\n",
        asks->n, asks->n == 1 ? "" : "s", seconds, (unsigned long long)m.n_prompt,
        (unsigned long long)m.n_tokens, (double)m.n_tokens / seconds, m.first_ms, m.gap_ms,
        m.gap_99_ms);
    (void)printf(
        "%llu passes of %llu rows; %llu prompt tokens reused, %llu evictions, %llu of %llu "
        "drafted tokens accepted; idle %.1f %%\n",
        (unsigned long long)info.passes, (unsigned long long)info.computed,
        (unsigned long long)info.reused, (unsigned long long)info.evicted,
        (unsigned long long)info.accepted, (unsigned long long)info.drafted, 100 * info.bubble);
    return;
  }
  put_requests(json->file, asks);
  (void)fprintf(json->file,
                ", \"prompt_tokens\": %llu, \"tokens\": %llu, \"seconds\": %.6f, "
                "\"tokens_per_s\": %.4f, \"first_ms\": %.4f, \"between_ms\": {\"p50\": %.4f, "
                "\"p99\": %.4f}",
                (unsigned long long)m.n_prompt, (unsigned long long)m.n_tokens, seconds,
                (double)m.n_tokens / seconds, m.first_ms, m.gap_ms, m.gap_99_ms);
  (void)fprintf(json->file,
                ", \"generation\": {\"rows\": %u, \"groups\": %u, \"page\": %u, \"pages\": %u, "
                "\"context\": %u, \"passes\": %llu, \"computed\": %llu, \"reused\": %llu, "
                "\"evicted\": %llu, \"drafted\": %llu, \"accepted\": %llu, \"bubble\": %.4f}",
                info.rows, info.groups, info.page, info.n_pages, info.context,
                (unsigned long long)info.passes, (unsigned long long)info.computed,
                (unsigned long long)info.reused, (unsigned long long)info.evicted,
                (unsigned long long)info.drafted, (unsigned long long)info.accepted, info.bubble);
}

/* ---- alone ---- */

/* Compares the answers of one request with those that it has alone. */
static bool same_alone(const cli_ask *ask, const cli_ask *alone) {
  for (uint32_t k = 0; k < ask->n_answers; ++k) {
    const cli_answer *a = &ask->answers[k], *b = &alone->answers[k];
    if (a->n != b->n || a->end != b->end ||
        (a->n > 0 && memcmp(a->ids, b->ids, a->n * sizeof *a->ids) != 0))
      return false;
  }
  return true;
}

int cli_generate_alone(const cli_options *o, cli_session *s, const cli_asks *asks, FILE *json) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_session_params params = {.struct_size = sizeof params,
                                       .flags = cli_session_flags(o) | OPIPE_SESSION_REFERENCE,
                                       .spin_us = UINT32_MAX};
  cli_generating g = {.s = s, .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
  uint32_t n_other = 0;
  int status = CLI_DONE;
  if (s->api->session_open(s->context, s->plan, &params, &g.session, &err) < 0)
    return cli_report("reference", &err);
  for (uint32_t i = 0; i < asks->n && status == CLI_DONE; ++i) {
    const cli_ask *ask = &asks->list[i];
    cli_ask alone = *ask;
    const cli_asks one = {&alone, 1, 1, asks->source};
    alone.at = alone.start = 0;
    alone.answers = calloc(alone.n_answers, sizeof *alone.answers);
    status = alone.answers == NULL ? cli_fail("out of memory") : cli_generate_all(&g, &one);
    if (status == CLI_DONE && !same_alone(ask, &alone) && n_other++ == 0)
      (void)fprintf(stderr, "onnx-pipe: request %u: other tokens than alone\n", i);
    for (uint32_t k = 0; alone.answers != NULL && k < alone.n_answers; ++k) {
      free(alone.answers[k].ids);
      free(alone.answers[k].times);
      free(alone.answers[k].logprobs);
    }
    free(alone.answers);
  }
  s->api->session_close(g.session);
  if (status != CLI_DONE)
    return status;
  if (json != NULL)
    (void)fprintf(json, ", \"reference\": {\"requests\": %u, \"other\": %u}", asks->n, n_other);
  else if (n_other == 0)
    (void)printf("the tokens of each request alone, by the plan's stages one by one\n");
  else
    (void)printf("%u of %u requests have other tokens alone\n", n_other, asks->n);
  return n_other == 0 ? CLI_DONE : CLI_CHECK_FAILED;
}
