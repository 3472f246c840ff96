/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of generate: from options, from a file, from standard input. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate.h"
#include "values.h"

enum { ASK_MOST = 1 << 20, ANSWERS_MOST = 1024, SECONDS_MOST = 1000000000 };

void cli_asks_free(cli_asks *asks) {
  for (uint32_t i = 0; i < asks->n; ++i) {
    cli_ask *a = &asks->list[i];
    for (uint32_t k = 0; a->answers != NULL && k < a->n_answers; ++k) {
      free(a->answers[k].ids);
      free(a->answers[k].times);
      free(a->answers[k].logprobs);
      free(a->answers[k].text);
    }
    free(a->answers);
    free(a->text);
    free(a->ids);
    free(a->sampling);
  }
  free(asks->list);
  *asks = (cli_asks){NULL, 0, 0, NULL};
}

bool cli_asks_have_text(const cli_asks *asks) {
  for (uint32_t i = 0; i < asks->n; ++i) {
    if (asks->list[i].text != NULL)
      return true;
  }
  return false;
}

int cli_asks_encode(const cli_asks *asks, const cli_tokenizer *tokenizer) {
  for (uint32_t i = 0; i < asks->n; ++i) {
    cli_ask *a = &asks->list[i];
    const int status =
        a->text == NULL ? CLI_DONE : cli_tokenizer_encode(tokenizer, a->text, &a->ids, &a->n_ids);
    if (status != CLI_DONE)
      return status;
  }
  return CLI_DONE;
}

/* ---- one request ---- */

/* A new request with room for its answers; takes `sampling` over. */
static int add(cli_asks *asks, json_t *sampling, cli_ask **out) {
  const json_t *n = json_object_get(sampling, "n");
  const json_int_t n_answers = n == NULL ? 1 : json_integer_value(n);
  if (asks->n == asks->room) {
    const uint32_t room = asks->room == 0 ? 16 : asks->room * 2;
    cli_ask *list = room > ASK_MOST ? NULL : realloc(asks->list, room * sizeof *list);
    if (list == NULL) {
      json_decref(sampling);
      return cli_fail("there is no memory for %u requests", room);
    }
    asks->list = list;
    asks->room = room;
  }
  cli_ask *a = &asks->list[asks->n++];
  *a = (cli_ask){.n_answers = 1};
  if (n_answers >= 1 && n_answers <= ANSWERS_MOST) /* else refused when it is submitted */
    a->n_answers = (uint32_t)n_answers;
  a->answers = calloc(a->n_answers, sizeof *a->answers);
  a->sampling = json_dumps(sampling, JSON_COMPACT | JSON_REAL_PRECISION(17));
  json_decref(sampling);
  *out = a;
  return a->answers == NULL || a->sampling == NULL ? cli_fail("out of memory") : CLI_DONE;
}

/* "1,2,3" */
static int take_ids(const char *text, cli_ask *a) {
  const size_t most = strlen(text) / 2 + 1;
  a->ids = malloc(most * sizeof *a->ids);
  if (a->ids == NULL)
    return cli_fail("out of memory");
  for (const char *at = text;; ++at) {
    char *end = NULL;
    errno = 0;
    const unsigned long long id = strtoull(at, &end, 10);
    if (end == at || *at < '0' || *at > '9' || errno != 0 || id > UINT32_MAX - 1 ||
        (*end != ',' && *end != '\0'))
      return cli_usage("--ids %s: ids such as 1,2,3 are needed", text);
    a->ids[a->n_ids++] = (uint32_t)id;
    if (*end == '\0')
      return CLI_DONE;
    at = end;
  }
}

/* "text", or "@FILE" */
static int take_prompt(const char *text, cli_ask *a) {
  void *data = NULL;
  size_t n = 0;
  if (text[0] != '@') {
    a->text = strdup(text);
    return a->text == NULL ? cli_fail("out of memory") : CLI_DONE;
  }
  const int status = cli_file_read(text + 1, &data, &n);
  a->text = data;
  if (status == CLI_DONE && memchr(data, '\0', n) != NULL)
    return cli_fail("--prompt %s: a text is needed, byte %zu is 0", text, strlen(data));
  return status;
}

/* ---- sampling ---- */

static int set(json_t *object, const char *key, json_t *value) {
  return json_object_set_new(object, key, value) == 0 ? CLI_DONE : cli_fail("out of memory");
}

/* A number of --sampling. */
static int set_pair(json_t *object, const char *pair) {
  char key[64];
  const char *equals = strchr(pair, '=');
  char *end = NULL;
  if (equals == NULL || equals == pair || (size_t)(equals - pair) >= sizeof key)
    return cli_usage("--sampling %s: KEY=VALUE,... is needed", pair);
  (void)snprintf(key, sizeof key, "%.*s", (int)(equals - pair), pair);
  const long long whole = strtoll(equals + 1, &end, 10);
  if (end != equals + 1 && *end == '\0')
    return set(object, key, json_integer(whole));
  const double number = strtod(equals + 1, &end);
  json_t *real = end == equals + 1 || *end != '\0' ? NULL : json_real(number);
  return real == NULL ? cli_usage("--sampling %s: a number is needed", pair)
                      : set(object, key, real);
}

/* "2,13+17": ids, and sequences of ids. */
static int set_stops(json_t *object, const char *text) {
  json_t *stops = json_array(), *one = json_array();
  int status = stops == NULL || one == NULL ? cli_fail("out of memory") : CLI_DONE;
  for (const char *at = text; status == CLI_DONE; ++at) {
    char *end = NULL;
    const unsigned long id = strtoul(at, &end, 10);
    if (end == at || *at < '0' || *at > '9' || id > UINT32_MAX - 1 ||
        strchr(",+", *end) == NULL) { /* the end of the text too */
      status = cli_usage("--stop %s: ids such as 2,13+17 are needed", text);
      break;
    }
    (void)json_array_append_new(one, json_integer((json_int_t)id));
    if (*end != '+') {
      (void)json_array_append_new(stops, one);
      one = json_array();
    }
    if (*end == '\0')
      break;
    at = end;
  }
  json_decref(one);
  if (status == CLI_DONE)
    return set(object, "stop", stops);
  json_decref(stops);
  return status;
}

/* The options, over the defaults of the folder. */
static int sampling_of(const cli_options *o, json_t *base, json_t **out) {
  const cli_generate_options *g = &o->generate;
  json_t *s = base == NULL ? json_object() : json_deep_copy(base);
  char pairs[1024], *rest = NULL;
  int status = s == NULL ? cli_fail("out of memory") : CLI_DONE;
  if (status == CLI_DONE && base == NULL)
    status = set(s, "temperature", json_real(0));
  if (status == CLI_DONE)
    status = set(s, "max_tokens", json_integer(g->max_tokens == 0 ? 128 : g->max_tokens));
  if (status == CLI_DONE && cli_was_given(o, "seed"))
    status = set(s, "seed", json_integer((json_int_t)o->seed));
  if (status == CLI_DONE && cli_was_given(o, "temperature"))
    status = set(s, "temperature", json_real(g->temperature));
  if (status == CLI_DONE && cli_was_given(o, "top-p"))
    status = set(s, "top_p", json_real(g->top_p));
  if (status == CLI_DONE && cli_was_given(o, "min-p"))
    status = set(s, "min_p", json_real(g->min_p));
  if (status == CLI_DONE && cli_was_given(o, "top-k"))
    status = set(s, "top_k", json_integer(g->top_k));
  if (status == CLI_DONE && g->stop != NULL)
    status = set_stops(s, g->stop);
  if (status == CLI_DONE && g->sampling != NULL && strlen(g->sampling) >= sizeof pairs) {
    status = cli_usage("--sampling: %zu bytes, at most %zu are read", strlen(g->sampling),
                       sizeof pairs - 1);
  }
  if (status == CLI_DONE && g->sampling != NULL) {
    (void)snprintf(pairs, sizeof pairs, "%s", g->sampling);
    for (char *pair = strtok_r(pairs, ",", &rest); pair != NULL && status == CLI_DONE;
         pair = strtok_r(NULL, ",", &rest))
      status = set_pair(s, pair);
  }
  if (status == CLI_DONE)
    *out = s;
  else
    json_decref(s);
  return status;
}

/* ---- lines ---- */

/* A request's own members, apart from its sampling; takes them out of `object`. */
static int take_members(json_t *object, const char *where, cli_ask *a) {
  json_t *ids = json_object_get(object, "ids"), *prompt = json_object_get(object, "prompt");
  const json_t *at = json_object_get(object, "at"), *salt = json_object_get(object, "salt");
  if ((ids == NULL) == (prompt == NULL))
    return cli_fail("%s: \"ids\" or \"prompt\" is needed, and not both", where);
  if ((ids != NULL && !json_is_array(ids)) || (prompt != NULL && !json_is_string(prompt))) {
    return cli_fail("%s: \"%s\" must be %s", where, ids != NULL ? "ids" : "prompt",
                    ids != NULL ? "a list of ids" : "a text");
  }
  if (at != NULL && (!json_is_number(at) || !(json_number_value(at) >= 0) ||
                     json_number_value(at) > SECONDS_MOST))
    return cli_fail("%s: \"at\" must be seconds, from 0 to %d", where, SECONDS_MOST);
  if (salt != NULL && (!json_is_integer(salt) || json_integer_value(salt) < 0))
    return cli_fail("%s: \"salt\" must be an integer from 0 on", where);
  a->at = at == NULL ? 0 : json_number_value(at);
  a->salt = salt == NULL ? 0 : (uint64_t)json_integer_value(salt);
  if (prompt != NULL && (a->text = strdup(json_string_value(prompt))) == NULL)
    return cli_fail("out of memory");
  a->n_ids = ids == NULL ? 0 : (uint32_t)json_array_size(ids);
  if (ids != NULL && (a->ids = calloc(a->n_ids + (size_t)1, sizeof *a->ids)) == NULL)
    return cli_fail("out of memory");
  for (uint32_t i = 0; i < a->n_ids; ++i) {
    const json_t *id = json_array_get(ids, i);
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= (json_int_t)UINT32_MAX)
      return cli_fail("%s: element %u of \"ids\" must be an id", where, i);
    a->ids[i] = (uint32_t)json_integer_value(id);
  }
  return CLI_DONE;
}

static int read_line(cli_asks *asks, const char *line, size_t n, uint32_t number, json_t *base) {
  char where[512];
  json_error_t error;
  cli_ask own = {.line = number}, *a = NULL;
  (void)snprintf(where, sizeof where, "%.400s:%u", asks->source, number);
  json_t *object = json_loadb(line, n, JSON_REJECT_DUPLICATES, &error);
  if (object == NULL)
    return cli_fail("%s: %s at column %d", where, error.text, error.column);
  int status = json_is_object(object) ? take_members(object, where, &own)
                                      : cli_fail("%s: a JSON object is needed", where);
  static const char *const mine[] = {"ids", "prompt", "at", "salt"};
  for (size_t i = 0; i < sizeof mine / sizeof *mine; ++i)
    (void)json_object_del(object, mine[i]);
  json_t *sampling = status == CLI_DONE ? json_deep_copy(base) : NULL;
  if (status == CLI_DONE && (sampling == NULL || json_object_update(sampling, object) != 0))
    status = cli_fail("out of memory");
  json_decref(object);
  if (status == CLI_DONE) {
    status = add(asks, sampling, &a);
    sampling = NULL;
  }
  json_decref(sampling);
  if (status != CLI_DONE) {
    free(own.text);
    free(own.ids);
    return status;
  }
  own.answers = a->answers;
  own.n_answers = a->n_answers;
  own.sampling = a->sampling;
  *a = own;
  return CLI_DONE;
}

static int by_arrival(const void *x, const void *y) {
  const cli_ask *a = x, *b = y;
  if (a->at != b->at)
    return a->at < b->at ? -1 : 1;
  return a->line < b->line ? -1 : a->line > b->line;
}

static int read_lines(const char *text, size_t n, json_t *base, cli_asks *out) {
  uint32_t number = 1;
  for (size_t at = 0; at < n; ++number) {
    const char *end = memchr(text + at, '\n', n - at);
    const size_t length = end == NULL ? n - at : (size_t)(end - text) - at;
    const bool empty = strspn(text + at, " \t\r") >= length;
    const int status = empty ? CLI_DONE : read_line(out, text + at, length, number, base);
    if (status != CLI_DONE)
      return status;
    at += length + 1;
  }
  if (out->n == 0)
    return cli_fail("%s: no request", out->source);
  qsort(out->list, out->n, sizeof *out->list, by_arrival);
  return CLI_DONE;
}

static int read_stdin(json_t *base, cli_asks *out) {
  cli_gathered all = {NULL, 0, 0};
  char part[4096];
  size_t n = 0;
  int status = CLI_DONE;
  if (isatty(STDIN_FILENO) == 1)
    return cli_usage("--prompt, --ids or --requests is needed, or JSON lines on standard input");
  while (status == CLI_DONE && (n = fread(part, 1, sizeof part, stdin)) > 0)
    status = cli_gather(&all, part, n) < 0 ? cli_fail("out of memory") : CLI_DONE;
  out->source = "standard input";
  if (status == CLI_DONE)
    status = read_lines(all.data == NULL ? "" : all.data, all.n, base, out);
  free(all.data);
  return status;
}

static int read_options(const cli_options *o, json_t *base, cli_asks *out) {
  const cli_generate_options *g = &o->generate;
  int status = CLI_DONE;
  for (uint32_t i = 0; i < g->ids.n + g->prompts.n && status == CLI_DONE; ++i) {
    cli_ask *a = NULL;
    status = add(out, json_deep_copy(base), &a);
    if (status == CLI_DONE && i < g->ids.n)
      status = take_ids(g->ids.items[i], a);
    else if (status == CLI_DONE)
      status = take_prompt(g->prompts.items[i - g->ids.n], a);
  }
  return status;
}

int cli_asks_read(const cli_options *o, json_t *base, cli_asks *out) {
  const cli_generate_options *g = &o->generate;
  const bool options = g->ids.n + g->prompts.n > 0;
  json_t *sampling = NULL;
  void *data = NULL;
  size_t n = 0;
  *out = (cli_asks){NULL, 0, 0, NULL};
  if (options && g->requests != NULL) {
    return cli_usage("--requests %s: --%s is not allowed beside it", g->requests,
                     g->ids.n > 0 ? "ids" : "prompt");
  }
  int status = sampling_of(o, base, &sampling);
  if (status == CLI_DONE && options) {
    status = read_options(o, sampling, out);
  } else if (status == CLI_DONE && g->requests != NULL) {
    out->source = g->requests;
    status = cli_file_read(g->requests, &data, &n);
    if (status == CLI_DONE)
      status = read_lines(data, n, sampling, out);
    free(data);
  } else if (status == CLI_DONE) {
    status = read_stdin(sampling, out);
  }
  json_decref(sampling);
  return status;
}
