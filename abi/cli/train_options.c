/* SPDX-License-Identifier: Apache-2.0 */
/* Converts texts of `train` to the library's options: NAME:key=value,key=value. A key that a name
 * does not take is an error that lists those that it takes. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "values.h"

enum { KEYS = 12 };
#define WHOLE_MOST 9007199254740992.0 /* 2^53 */

/* ---- NAME:key=value,... ---- */

typedef struct spec {
  const char *option, *name;
  char *keys[KEYS], *values[KEYS];
  bool used[KEYS];
  uint32_t n;
} spec;

static int split(const char *option, const char *text, char *own, size_t room, spec *out) {
  *out = (spec){.option = option};
  if (strlen(text) >= room)
    return cli_usage("--%s %s: too long", option, text);
  (void)snprintf(own, room, "%s", text);
  out->name = own;
  char *rest = strchr(own, ':');
  if (rest == NULL)
    return CLI_DONE;
  *rest++ = '\0';
  if (strcmp(own, "output") == 0) { /* output:NAME; names may contain anything */
    out->values[0] = rest;
    return CLI_DONE;
  }
  char *save = NULL;
  for (char *word = strtok_r(rest, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
    char *equals = strchr(word, '=');
    if (equals == NULL || out->n == KEYS) {
      return cli_usage("--%s %s: '%s' is not key=value, or there are more than %d", option, text,
                       word, KEYS);
    }
    *equals = '\0';
    for (uint32_t i = 0; i < out->n; ++i) {
      if (strcmp(out->keys[i], word) == 0)
        return cli_usage("--%s %s: %s is given twice", option, text, word);
    }
    out->keys[out->n] = word;
    out->values[out->n++] = equals + 1;
  }
  return CLI_DONE;
}

/* NULL: not given. */
static const char *value_of(spec *s, const char *key) {
  for (uint32_t i = 0; i < s->n; ++i) {
    if (strcmp(s->keys[i], key) != 0)
      continue;
    s->used[i] = true;
    return s->values[i];
  }
  return NULL;
}

static int number_of(spec *s, const char *key, double low, double *io) {
  const char *text = value_of(s, key);
  char *end = NULL;
  if (text == NULL)
    return CLI_DONE;
  const double value = strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= low && value <= 1e300))
    return cli_usage("--%s: %s=%s: a number of at least %g is needed", s->option, key, text, low);
  *io = value;
  return CLI_DONE;
}

/* The same for an integer that a double represents exactly. */
static int whole_of(spec *s, const char *key, double low, double *io) {
  const int status = number_of(s, key, low, io);
  const char *text = value_of(s, key);
  return status != CLI_DONE || text == NULL || (*io == floor(*io) && *io <= WHOLE_MOST)
             ? status
             : cli_usage("--%s: %s=%s: a whole number from %.0f to %.0f is needed", s->option, key,
                         text, low, WHOLE_MOST);
}

static int all_used(const spec *s, const char *known) {
  char meant[OPI_NEAREST_ROOM];
  for (uint32_t i = 0; i < s->n; ++i) {
    if (s->used[i])
      continue;
    return cli_usage("--%s %s: it takes %s, not '%s'%s", s->option, s->name, known, s->keys[i],
                     opi_nearest_of(s->keys[i], known, ", ", meant, sizeof(meant)));
  }
  return CLI_DONE;
}

static int no_name(const spec *s, const char *known) {
  char meant[OPI_NEAREST_ROOM];
  return cli_usage("--%s %s: one of %s is needed%s", s->option, s->name, known,
                   opi_nearest_of(s->name, known, ", ", meant, sizeof(meant)));
}

/* ---- loss ---- */

static int read_cross_entropy(spec *s, uint32_t shift, opipe_train_options *out) {
  double ignore = -100, shifted = shift;
  out->loss = OPIPE_LOSS_CROSS_ENTROPY;
  out->output = value_of(s, "logits");
  out->labels = value_of(s, "labels");
  int status = whole_of(s, "ignore", -WHOLE_MOST, &ignore);
  if (status == CLI_DONE)
    status = number_of(s, "shift", 0, &shifted);
  if (status == CLI_DONE)
    status = number_of(s, "smoothing", 0, &out->smoothing);
  if (status == CLI_DONE) /* an unknown key first: it may be a misspelt missing one */
    status = all_used(s, "logits, labels, ignore, shift, smoothing");
  if (status == CLI_DONE && out->labels == NULL)
    out->labels = "labels";
  if (status == CLI_DONE && out->output == NULL)
    return cli_usage("--loss cross-entropy: logits=NAME is needed");
  if (status == CLI_DONE && shifted != 0 && shifted != 1)
    return cli_usage("--loss cross-entropy: shift is 0 or 1, not %g", shifted);
  out->ignore = (int64_t)ignore;
  out->shift = (uint32_t)shifted;
  return status;
}

static int read_loss(const char *text, uint32_t shift, char *own, size_t room,
                     opipe_train_options *out) {
  spec s;
  out->ignore = -100;
  if (text == NULL)
    return CLI_DONE;
  int status = split("loss", text, own, room, &s);
  if (status != CLI_DONE)
    return status;
  if (strcmp(s.name, "output") == 0) {
    out->output = s.values[0];
    return out->output == NULL ? cli_usage("--loss output:NAME is needed") : CLI_DONE;
  }
  if (strcmp(s.name, "cross-entropy") == 0)
    return read_cross_entropy(&s, shift, out);
  const bool mse = strcmp(s.name, "mse") == 0;
  if (!mse && strcmp(s.name, "bce") != 0)
    return no_name(&s, "cross-entropy, mse, bce, output");
  out->loss = mse ? OPIPE_LOSS_MSE : OPIPE_LOSS_BCE;
  out->output = value_of(&s, "output");
  out->labels = value_of(&s, "target");
  status = all_used(&s, "output, target");
  return status != CLI_DONE || (out->output != NULL && out->labels != NULL)
             ? status
             : cli_usage("--loss %s: output=NAME,target=NAME is needed", s.name);
}

/* ---- optimizer ---- */

/* A setting of optimizers: a number of the options, or a flag with its two words. */
typedef struct taken {
  const char *key;
  uint32_t takes; /* OPIPE_TAKES_* */
  uint32_t flag;  /* OPIPE_TRAIN_*; 0: a number */
  size_t offset;  /* of the number */
  const char *off, *on;
} taken;

#define NUMBER(KEY, field, key, ...) \
  {key, OPIPE_TAKES_##KEY, 0, offsetof(opipe_train_options, field), NULL, NULL},
#define SWITCH(KEY, field, key, off, on) {key, OPIPE_TAKES_##KEY, OPIPE_TRAIN_##KEY, 0, off, on},
static const taken takes[] = {OPIPE_TAKES(NUMBER, SWITCH)};
enum { N_TAKES = sizeof(takes) / sizeof(takes[0]) };

static int read_switch(spec *s, const taken *t, uint32_t *io_flags) {
  const char *word = value_of(s, t->key);
  if (word == NULL || strcmp(word, t->off) == 0)
    return CLI_DONE;
  if (strcmp(word, t->on) != 0)
    return cli_usage("--optimizer: %s is %s or %s, not %s", t->key, t->off, t->on, word);
  *io_flags |= t->flag;
  return CLI_DONE;
}

static void add_word(char *text, size_t room, const char *between, const char *word) {
  const size_t n = strlen(text);
  (void)snprintf(text + n, room - n, "%s%s", n == 0 ? "" : between, word);
}

static int optimizer_named(const char *name, uint32_t *out) {
  char names[256] = "", meant[OPI_NEAREST_ROOM];
  for (*out = 0; *out < OPIPE_N_OPTIMIZERS; ++*out) {
    const char *known = opipe_optimizer_row_of(*out)->name;
    if (strcmp(name, known) == 0)
      return CLI_DONE;
    add_word(names, sizeof(names), *out == OPIPE_N_OPTIMIZERS - 1 ? " or " : ", ", known);
  }
  return cli_usage("--optimizer %s: %s is needed%s", name, names,
                   opi_nearest_of(name, names, ", ", meant, sizeof(meant)));
}

static int read_optimizer(const char *text, char *own, size_t room, opipe_train_options *out) {
  spec s;
  char known[256] = "";
  const char *lacks = NULL; /* a number without a default */
  int status = split("optimizer", text == NULL ? CLI_OPTIMIZER : text, own, room, &s);
  if (status == CLI_DONE)
    status = optimizer_named(s.name, &out->optimizer);
  if (status != CLI_DONE)
    return status;
  const opipe_optimizer_row *row = opipe_optimizer_row_of(out->optimizer);
  const double *usual = row->usual;
  for (const taken *t = takes; t < takes + N_TAKES && status == CLI_DONE; ++t) {
    double *number = (double *)(void *)((char *)out + t->offset);
    if (t->flag == 0)
      *number = *usual++;
    if ((row->takes & t->takes) == 0)
      continue;
    add_word(known, sizeof(known), ", ", t->key);
    status = t->flag == 0 ? number_of(&s, t->key, 0, number) : read_switch(&s, t, &out->flags);
    lacks = t->flag == 0 && *number < 0 ? t->key : lacks;
  }
  if (status == CLI_DONE)
    status = all_used(&s, known);
  return status != CLI_DONE || lacks == NULL
             ? status
             : cli_usage("--optimizer %s: %s=X is needed", s.name, lacks);
}

static int read_lr_schedule(const char *text, uint64_t n_steps, char *own, size_t room,
                            opipe_train_options *out) {
  static const char *const names[] = {"constant", "linear", "cosine"};
  spec s;
  uint32_t kind = 0;
  double warmup = 0, total = (double)n_steps;
  int status = split("lr-schedule", text == NULL ? "constant" : text, own, room, &s);
  if (status != CLI_DONE)
    return status;
  while (kind < 3 && strcmp(s.name, names[kind]) != 0)
    ++kind;
  if (kind == 3)
    return no_name(&s, "constant, linear, cosine");
  status = whole_of(&s, "warmup", 0, &warmup);
  if (status == CLI_DONE && kind != 0)
    status = whole_of(&s, "total", 1, &total);
  out->lr_schedule = kind;
  out->warmup_steps = (uint64_t)warmup;
  out->total_steps = (uint64_t)total;
  return status == CLI_DONE ? all_used(&s, kind == 0 ? "warmup" : "warmup, total") : status;
}

/* ---- the rest ---- */

/* The first choice is the default. */
static int read_word(const char *option, const char *text, const char *choices, uint32_t *out) {
  *out = 0;
  return text == NULL ? CLI_DONE : cli_take_choice(option, text, choices, out);
}

/* "2" or "2,2,2": copies of the whole pipeline, which share the micro-batches. "2,1": replicas of
 * single stages, which split every micro-batch. */
int cli_read_replicas(const char *text, uint32_t n_stages, uint32_t list[CLI_LIST_MOST],
                      opipe_plan_params *out) {
  uint32_t n_given = 0;
  bool equal = true;
  for (const char *at = text; at != NULL; ++n_given) {
    char *end = NULL;
    const unsigned long n = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
    if (n == 0 || n > 4096 || (*end != ',' && *end != '\0'))
      return cli_usage("--replicas %s: numbers from 1 to 4096 are needed", text);
    if (n_given == CLI_LIST_MOST)
      return cli_usage("--replicas %s: more than %d numbers", text, CLI_LIST_MOST);
    list[n_given] = (uint32_t)n;
    equal = equal && list[n_given] == list[0];
    at = *end == ',' ? end + 1 : NULL;
  }
  if (equal && n_given > 1 && n_stages != 0 && n_given != n_stages)
    return cli_usage("--replicas %s: %u numbers for %u stages", text, n_given, n_stages);
  if (equal) {
    out->n_stages = n_given > 1 ? n_given : 0;
    out->replicas = n_given == 0 ? 0 : list[0];
  } else {
    out->stage_replicas = list;
    out->n_stage_replicas = n_given;
  }
  return CLI_DONE;
}

/* The same for the plan in a file; a file of another kind, or none, gives nothing. */
static uint32_t rows_of_plan(const char *path) {
  json_t *root = json_load_file(path, 0, NULL);
  const json_t *shares = json_object_get(json_object_get(root, "replicas"), "shares");
  const json_int_t m = json_integer_value(json_object_get(root, "microbatches"));
  json_int_t most = 0;
  for (size_t i = 0; i < json_array_size(shares); ++i) {
    const json_int_t n = json_integer_value(json_array_get(shares, i));
    most = n > most ? n : most;
  }
  json_decref(root);
  return m > 0 && most > 0 && m <= UINT32_MAX / most ? (uint32_t)(m * most) : 0;
}

int cli_rows_chosen(const cli_options *o, uint32_t *out_rows) {
  uint32_t list[CLI_LIST_MOST], most = 1;
  opipe_plan_params replicas = {.replicas = 0};
  const uint64_t m = o->plan.n_microbatches == 0 ? 1 : o->plan.n_microbatches;
  *out_rows = o->t.batch != 0 ? o->t.batch : o->plan.n_microbatches;
  if (o->t.batch != 0)
    return CLI_DONE;
  if (cli_read_replicas(o->t.replicas, o->plan.n_stages, list, &replicas) != CLI_DONE)
    return CLI_USAGE;
  for (uint32_t i = 0; i < replicas.n_stage_replicas; ++i)
    most = list[i] > most ? list[i] : most;
  if (o->plan.plan_file != NULL)
    *out_rows = rows_of_plan(o->plan.plan_file);
  else if (most > 1)
    *out_rows = m * most < UINT32_MAX ? (uint32_t)(m * most) : UINT32_MAX;
  return CLI_DONE;
}

int cli_train_read(const cli_options *o, uint64_t n_steps, uint32_t shift, cli_train_own *own,
                   opipe_train_options *out) {
#define WORD(key, word) "|" word
#define TYPE(key, word) OPIPE_##key,
  static const uint32_t types[] = {OPIPE_COMPUTE_TYPES(TYPE)};
  const cli_train_texts *t = &o->t;
  uint32_t type = 0, shard = 0;
  *out = (opipe_train_options){.struct_size = sizeof(*out),
                               .seed = o->seed,
                               .clip_norm = t->clip,
                               .globs = own->globs,
                               .n_globs = t->globs.n,
                               .globs_stride = sizeof(own->globs[0]),
                               .no_decay = t->no_decay.items,
                               .n_no_decay = t->no_decay.n};
  for (uint32_t i = 0; i < t->globs.n; ++i)
    own->globs[i] = (opipe_train_glob){t->globs.items[i], t->globs_train[i], 0};
  int status = read_loss(t->loss, shift, own->text[0], sizeof(own->text[0]), out);
  if (status == CLI_DONE)
    status = read_optimizer(t->optimizer, own->text[1], sizeof(own->text[1]), out);
  if (status == CLI_DONE)
    status = read_lr_schedule(t->lr_schedule, n_steps, own->text[2], sizeof(own->text[2]), out);
  if (status == CLI_DONE)
    status = read_word("recompute", t->recompute, "none|stage|block|attention", &out->recompute);
  if (status == CLI_DONE)
    status = read_word("compute", t->compute, &OPIPE_COMPUTE_TYPES(WORD)[1], &type);
  if (status == CLI_DONE)
    status = read_word("shard", t->shard, "none|optimizer", &shard);
  out->flags |= shard != 0 ? OPIPE_TRAIN_SHARD_OPTIMIZER : 0u;
  out->compute = status == CLI_DONE ? types[type] : 0;
  out->loss_scaling = out->compute == OPIPE_FLOAT16;
  return status;
}

int cli_train_parameters(const cli_options *o, cli_tensor *tensors, opipe_pin *pins,
                         uint32_t *out_n) {
  for (uint32_t i = 0; i < o->t.parameters.n; ++i) {
    const char *text = o->t.parameters.items[i], *equals = strchr(text, '=');
    cli_tensor *t = &tensors[i];
    if (equals == NULL)
      return cli_usage("--parameter %s: NAME=FILE is needed", text);
    const size_t n = strlen(equals + 1);
    const bool npy = n > 4 && strcmp(equals + 1 + n - 4, ".npy") == 0;
    const int read = npy ? cli_npy_read(equals + 1, t) : cli_pb_read(equals + 1, t);
    if (read != CLI_DONE)
      return read;
    if (!cli_tensor_name(t, text, (size_t)(equals - text)))
      return cli_fail("out of memory");
    pins[i] = (opipe_pin){t->name, cli_tensor_view(t)};
    ++*out_n;
  }
  return CLI_DONE;
}
