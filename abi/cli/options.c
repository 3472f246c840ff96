/* SPDX-License-Identifier: Apache-2.0 */
/* The options of inspect, plan, run, train and plugins, read into one struct. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tables.h"
#include "values.h"

/* ---- errors ---- */

int cli_usage(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  (void)fputs("onnx-pipe: ", stderr);
  (void)vfprintf(stderr, fmt, args);
  (void)fputs("\n", stderr);
  va_end(args);
  return CLI_USAGE;
}

int cli_report(const char *what, const opipe_error *err) {
  (void)fprintf(stderr, "onnx-pipe: %s: %s\n", what,
                err->message[0] == '\0' ? "failed" : err->message);
  return CLI_FAILED;
}

/* ---- values ---- */

/* KIND[:INDEX][,memory=SIZE][,threads=N][,key=value for the backend ...] */
static int take_device(const char *text, cli_options *o) {
  if (o->n_devices == 64)
    return cli_usage("--device is given more than 64 times");
  char *own = o->device_text[o->n_devices];
  opipe_device_choice *choice = &o->devices[o->n_devices];
  if (strlen(text) >= sizeof(o->device_text[0]) / 2)
    return cli_usage("--device %s: too long", text);
  memset(choice, 0, sizeof(*choice));
  (void)snprintf(own, sizeof(o->device_text[0]), "%s", text);
  char *rest = own + strlen(own) + 1; /* options for the backend are gathered here */
  const size_t room = sizeof(o->device_text[0]) - (size_t)(rest - own);
  rest[0] = '\0';
  char *save = NULL;
  for (char *word = strtok_r(own, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
    if (choice->kind == NULL) {
      char *colon = strchr(word, ':');
      choice->kind = word;
      if (colon != NULL) {
        *colon = '\0';
        if (cli_take_count("device", colon + 1, 0, 1023, &choice->index) != CLI_DONE)
          return CLI_USAGE;
      }
    } else if (strncmp(word, "memory=", 7) == 0) {
      if (cli_take_size("device memory", word + 7, &choice->memory_bytes) != CLI_DONE)
        return CLI_USAGE;
    } else if (strncmp(word, "threads=", 8) == 0) {
      if (cli_take_count("device threads", word + 8, 1, 4096, &choice->threads) != CLI_DONE)
        return CLI_USAGE;
    } else {
      const size_t used = strlen(rest);
      (void)snprintf(rest + used, room - used, "%s%s", used == 0 ? "" : ",", word);
    }
  }
  if (choice->kind == NULL || choice->kind[0] == '\0')
    return cli_usage("--device '%s' names no kind", text);
  choice->options = rest[0] == '\0' ? NULL : rest;
  ++o->n_devices;
  return CLI_DONE;
}

/* Where node times come from, or the stages' times themselves. */
static int take_cost(const char *text, cli_options *o) {
  if (strchr(text, '=') == NULL)
    return cli_take_choice("cost", text, "rates|measured", &o->cost);
  o->stage_costs.costs = cli_unit_costs;
  return cli_take_costs(text, &o->stage_costs);
}

static int take_dropout(const char *text, cli_options *o) {
  char *end = NULL;
  o->graph_dropout = strcmp(text, "graph") == 0;
  o->ratio_dropout = false;
  o->says_dropout = true;
  if (o->graph_dropout || strcmp(text, "off") == 0)
    return CLI_DONE;
  o->dropout_ratio = strtod(text, &end);
  o->ratio_dropout = end != text && *end == '\0' && o->dropout_ratio >= 0 && o->dropout_ratio < 1;
  return o->ratio_dropout
             ? CLI_DONE
             : cli_usage("--dropout %s: off, graph or a ratio below 1 is needed", text);
}

/* What `train` adds; -1: none of them. */
static int take_train_option(int id, const char *value, cli_options *o) {
  cli_train_texts *t = &o->t;
  switch (id) {
    case O_TRAIN:
      o->train = true;
      return CLI_DONE;
    case O_DATA:
      return cli_take_item("data", value, &t->data);
    case O_BATCH_ROWS:
      return cli_take_count("batch", value, 1, 1u << 30, &t->batch);
    case O_SHUFFLE:
      t->shuffle = true;
      return CLI_DONE;
    case O_GO_ON:
      t->go_on = true;
      return CLI_DONE;
    case O_LOSS:
      t->loss = value;
      return CLI_DONE;
    case O_OPTIMIZER:
      t->optimizer = value;
      return CLI_DONE;
    case O_LR_SCHEDULE:
      t->lr_schedule = value;
      return CLI_DONE;
    case O_CLIP:
      return cli_take_double("clip", value, &t->clip);
    case O_NO_DECAY:
      return cli_take_item("no-decay", value, &t->no_decay);
    case O_TRAINABLE:
    case O_FROZEN:
      t->globs_train[t->globs.n % CLI_LIST_MOST] = id == O_TRAINABLE;
      return cli_take_item(id == O_TRAINABLE ? "trainable" : "frozen", value, &t->globs);
    case O_PARAMETER:
      return cli_take_item("parameter", value, &t->parameters);
    case O_REPLICAS:
      t->replicas = value;
      return CLI_DONE;
    case O_RECOMPUTE:
      t->recompute = value;
      return CLI_DONE;
    case O_COMPUTE:
      t->compute = value;
      return CLI_DONE;
    case O_STEPS:
      return cli_take_number("steps", value, &t->n_steps);
    case O_SAVE:
      t->save = value;
      return CLI_DONE;
    case O_SAVE_EVERY:
      return cli_take_number("save-every", value, &t->save_every);
    case O_RESUME:
      t->resume = value;
      return CLI_DONE;
    case O_SAVE_MODEL:
      t->save_model = value;
      return CLI_DONE;
    case O_TRACE:
      t->trace = value;
      return CLI_DONE;
    case O_SAVE_GRADIENTS:
      t->save_gradients = value;
      return CLI_DONE;
    default:
      return -1;
  }
}

static int take_option(int id, const char *value, cli_options *o) {
  uint32_t which = 0;
  int status = take_train_option(id, value, o);
  if (status >= 0)
    return status;
  switch (id) {
    case O_JSON:
      o->json = true;
      break;
    case O_DEVICE:
      return take_device(value, o);
    case O_STAGES:
      return cli_take_count("stages", value, 1, 4096, &o->n_stages);
    case O_RANKS:
      return cli_take_count("ranks", value, 1, 4096, &o->n_ranks);
    case O_THREADS:
      return cli_take_count("threads", value, 1, 4096, &o->n_threads);
    case O_CUT:
      o->cut = value;
      break;
    case O_PLAN:
      o->plan_file = value;
      break;
    case O_MEMORY:
      return cli_take_size("memory", value, &o->memory_bytes);
    case O_SCHEDULE:
      o->schedule = value;
      break;
    case O_MICROBATCHES:
      return cli_take_count("microbatches", value, 1, 1u << 20, &o->n_microbatches);
    case O_BATCH:
      o->batch = value;
      break;
    case O_DEPTH:
      return cli_take_count("depth", value, 1, 1024, &o->depth);
    case O_TRANSPORT:
      o->transport = value;
      break;
    case O_COST:
      return take_cost(value, o);
    case O_IGNORE:
      o->ignore_annotations = true;
      break;
    case O_BIND:
      return cli_take_item("bind", value, &o->bind);
    case O_PIN:
      return cli_take_item("pin", value, &o->pins);
    case O_NO_FUSE:
      o->no_fuse = true;
      break;
    case O_DROPOUT:
      return take_dropout(value, o);
    case O_SYMLINKS:
      o->load_flags |= OPIPE_LOAD_ALLOW_SYMLINKS;
      break;
    case O_HARDLINKS:
      o->load_flags |= OPIPE_LOAD_ALLOW_HARDLINKS;
      break;
    case O_GRAPH_ONLY:
      o->load_flags |= OPIPE_LOAD_GRAPH_ONLY;
      break;
    case O_SEED:
      return cli_parse_u64(value, UINT64_MAX - 1, &o->seed)
                 ? CLI_DONE
                 : cli_usage("--seed %s: an integer is needed", value);
    case O_PLUGIN:
      return cli_take_item("plugin", value, &o->plugins);
    case O_ANNOTATE:
      o->annotate = value;
      break;
    case O_INPUT:
      return cli_take_item("input", value, &o->inputs);
    case O_OUTPUT:
      o->output = value;
      break;
    case O_REQUESTS:
      return cli_take_count("requests", value, 1, 1u << 30, &o->n_requests);
    case O_CHECK:
      o->check = value == NULL ? "max" : value;
      return cli_take_choice("check", o->check, "max|element", &which);
    case O_RTOL:
      return cli_take_double("rtol", value, &o->rtol);
    case O_ATOL:
      return cli_take_double("atol", value, &o->atol);
    case O_REFERENCE:
      o->reference = true;
      break;
    case O_FINITE:
      o->check_finite = true;
      break;
    case O_WHY:
      o->why = true;
      break;
    default:
      return CLI_USAGE; /* getopt_long has said why */
  }
  return CLI_DONE;
}

/* An option that was given although a whole plan says it; NULL: none. */
static const char *said_by_plan(const cli_options *o) {
  const struct {
    bool given;
    const char *name;
  } all[] = {{o->n_devices != 0, "device"},
             {o->n_stages != 0, "stages"},
             {o->n_ranks != 0, "ranks"},
             {o->n_threads != 0, "threads"},
             {o->cut != NULL, "cut"},
             {o->memory_bytes != 0, "memory"},
             {o->schedule != NULL, "schedule"},
             {o->n_microbatches != 0, "microbatches"},
             {o->t.replicas != NULL, "replicas"},
             {o->batch != NULL, "batch-dim"},
             {o->depth != 0, "depth"},
             {o->transport != NULL, "transport"},
             {o->cost != OPIPE_COST_RATES || o->stage_costs.costs.struct_size != 0, "cost"},
             {o->ignore_annotations, "ignore-annotations"}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    if (all[i].given)
      return all[i].name;
  }
  return NULL;
}

/* Of the options that only a training plan looks at. */
static bool is_of_training(int id) {
  return id > O_TRAIN && id <= O_GO_ON && id != O_REPLICAS;
}

/* Of those, what a training plan holds itself. */
static bool is_in_plan(int id) {
  return (id >= O_OPTIMIZER && id <= O_FROZEN) || id == O_RECOMPUTE || id == O_COMPUTE;
}

static const char *name_of(const cli_option *table, int id) {
  while (table->name != NULL && table->id != id)
    ++table;
  return table->name;
}

int cli_parse(const char *command, int argc, char **argv, cli_options *out) {
  struct option longs[CLI_OPTIONS_MOST];
  const cli_command *s = cli_command_of(command);
  const char *of_training = NULL, *in_plan = NULL;
  cli_long_options(s->table, longs);
  memset(out, 0, sizeof(*out));
  out->rtol = out->atol = -1;
  out->train = out->graph_dropout = strcmp(command, "train") == 0;
  optind = 1;
  for (int id = 0; (id = getopt_long(argc, argv, "ho:", longs, NULL)) != -1;) {
    if (id == 'h' || id == O_HELP) {
      (void)printf("usage: onnx-pipe %s [OPTION ...]%s%s\n\n", s->name,
                   s->operand == NULL ? "" : " ", s->operand == NULL ? "" : s->operand);
      cli_print_options(s->table);
      return -1;
    }
    const int status = take_option(id == 'o' ? O_OUTPUT : id, optarg, out);
    if (status != CLI_DONE)
      return status;
    if (is_of_training(id))
      of_training = name_of(s->table, id);
    if (is_in_plan(id))
      in_plan = name_of(s->table, id);
  }
  if (strcmp(command, "plan") == 0 && !out->train && of_training != NULL)
    return cli_usage("--%s is for plans for training: --train is needed", of_training);
  if (out->train && strcmp(command, "plan") == 0 && !out->says_dropout)
    out->graph_dropout = true; /* as train does */
  const int n_operands = argc - optind;
  if (n_operands != (s->operand != NULL)) {
    return cli_usage("%s takes %s, %d operands were given ('onnx-pipe %s --help')", command,
                     s->operand == NULL ? "no operand" : s->operand, n_operands, command);
  }
  if (s->operand != NULL)
    out->model = argv[optind];
  const char *besides = out->plan_file == NULL ? NULL : said_by_plan(out);
  if (out->plan_file != NULL && besides == NULL)
    besides = in_plan;
  return besides == NULL
             ? CLI_DONE
             : cli_usage("--plan %s is a whole plan: --%s is said by it", out->plan_file, besides);
}
