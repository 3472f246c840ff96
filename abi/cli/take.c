/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the values of tables.c's rows: by type into the row's field, or by a reader of the row's
 * own. */
#include <stdlib.h>
#include <string.h>

#include "tables.h"
#include "values.h"

static void *field(const cli_option *option, cli_options *out) {
  return (char *)out + option->at;
}

/* ---- by type ---- */

int cli_take_flag(const cli_option *option, const char *value, cli_options *out) {
  (void)value;
  *(bool *)field(option, out) = true;
  return CLI_DONE;
}

int cli_take_bits(const cli_option *option, const char *value, cli_options *out) {
  (void)value;
  *(uint32_t *)field(option, out) |= (uint32_t)option->most;
  return CLI_DONE;
}

int cli_take_text(const cli_option *option, const char *value, cli_options *out) {
  *(const char **)field(option, out) = value;
  return CLI_DONE;
}

int cli_take_list(const cli_option *option, const char *value, cli_options *out) {
  return cli_take_item(option->name, value, field(option, out));
}

int cli_take_numeral(const cli_option *option, const char *value, cli_options *out) {
  return cli_take_number(option->name, value, field(option, out));
}

int cli_take_amount(const cli_option *option, const char *value, cli_options *out) {
  return cli_take_memory(option->name, value, field(option, out));
}

int cli_take_real(const cli_option *option, const char *value, cli_options *out) {
  return cli_take_double(option->name, value, field(option, out));
}

int cli_take_within(const cli_option *option, const char *value, cli_options *out) {
  return cli_take_count(option->name, value, option->least, option->most, field(option, out));
}

int cli_take_index(const cli_option *option, const char *value, cli_options *out) {
  return cli_take_choice(option->name, value, option->choices, field(option, out));
}

/* ---- readers of their own ---- */

/* The device's text is followed by its backend options. */
static char *device_options(cli_options *o, uint32_t device, size_t *out_room) {
  char *own = o->on.device_text[device];
  char *rest = own + sizeof(o->on.device_text[0]) / 2;
  *out_room = sizeof(o->on.device_text[0]) / 2;
  return rest;
}

void cli_add_device_option(cli_options *o, uint32_t device, const char *word) {
  size_t room = 0;
  char *rest = device_options(o, device, &room);
  const size_t used = strlen(rest);
  (void)snprintf(rest + used, room - used, "%s%s", used == 0 ? "" : ",", word);
  o->on.devices[device].options = rest;
}

/* KIND[:INDEX|:UUID][,memory=SIZE][,threads=N][,key=value for the backend ...] */
int cli_take_device(const cli_option *option, const char *text, cli_options *o) {
  (void)option;
  if (o->on.n_devices == 64)
    return cli_usage("--device is given more than 64 times");
  char *own = o->on.device_text[o->on.n_devices];
  opipe_device_choice *choice = &o->on.devices[o->on.n_devices];
  if (strlen(text) >= sizeof(o->on.device_text[0]) / 2)
    return cli_usage("--device %s: too long", text);
  memset(choice, 0, sizeof(*choice));
  (void)snprintf(own, sizeof(o->on.device_text[0]), "%s", text);
  size_t room = 0;
  device_options(o, o->on.n_devices, &room)[0] = '\0';
  char *save = NULL;
  for (char *word = strtok_r(own, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
    if (choice->kind == NULL) {
      char *colon = strchr(word, ':');
      choice->kind = word;
      if (colon != NULL && colon[1] >= '0' && colon[1] <= '9') { /* otherwise a uuid */
        *colon = '\0';
        if (cli_take_count("device", colon + 1, 0, 1023, &choice->index) != CLI_DONE)
          return CLI_USAGE;
        o->team.numbered[o->on.n_devices] = true;
      }
    } else if (strncmp(word, "memory=", 7) == 0) {
      if (cli_take_memory("device memory", word + 7, &choice->memory_bytes) != CLI_DONE)
        return CLI_USAGE;
    } else if (strncmp(word, "threads=", 8) == 0) {
      if (cli_take_count("device threads", word + 8, 1, 4096, &choice->threads) != CLI_DONE)
        return CLI_USAGE;
    } else {
      cli_add_device_option(o, o->on.n_devices, word);
    }
  }
  if (choice->kind == NULL || choice->kind[0] == '\0')
    return cli_usage("--device '%s' names no kind", text);
  ++o->on.n_devices;
  return CLI_DONE;
}

/* ",key=0" or ",key=1" at the start of a text; NULL: it is neither, else what follows. */
static const char *take_flag(const char *text, const char *key, bool *io_flag) {
  const size_t n = strlen(key);
  if (text[0] != ',' || strncmp(text + 1, key, n) != 0 || text[n + 1] != '=' ||
      (text[n + 2] != '0' && text[n + 2] != '1'))
    return NULL;
  *io_flag = text[n + 2] == '1';
  return text + n + 3;
}

/* T[,sequence=0|1][,scattered=0|1] */
int cli_take_tensor(const cli_option *option, const char *value, cli_options *out) {
  const char *comma = strchr(value, ',');
  char number[16] = "";
  const size_t n = comma == NULL ? strlen(value) : (size_t)(comma - value);
  if (n < sizeof number)
    memcpy(number, value, n);
  if (cli_take_count(option->name, n < sizeof number ? number : value, 1, 4096, &out->t.tensor) !=
      CLI_DONE)
    return CLI_USAGE;
  out->t.sequence = out->t.scattered = false;
  for (const char *at = comma, *next; at != NULL && at[0] != '\0'; at = next) {
    next = take_flag(at, "sequence", &out->t.sequence);
    next = next == NULL ? take_flag(at, "scattered", &out->t.scattered) : next;
    if (next == NULL) {
      return cli_usage("--tensor %s: only ,sequence= and ,scattered=, 0 or 1, may follow the width",
                       value);
    }
  }
  return CLI_DONE;
}

/* Source of node times, or the stages' times. */
int cli_take_cost(const cli_option *option, const char *value, cli_options *out) {
  if (strchr(value, '=') == NULL)
    return cli_take_choice(option->name, value, option->choices, &out->plan.cost);
  out->plan.stage_costs.costs = cli_unit_costs;
  return cli_take_costs(value, &out->plan.stage_costs);
}

/* Costs of orders; values of earlier options stay. */
int cli_take_order_cost(const cli_option *option, const char *value, cli_options *out) {
  (void)option;
  if (out->plan.stage_costs.costs.struct_size == 0)
    out->plan.stage_costs.costs = cli_unit_costs;
  return cli_take_costs(value, &out->plan.stage_costs);
}

int cli_take_dropout(const cli_option *option, const char *value, cli_options *out) {
  char *end = NULL;
  out->graph.graph_dropout = strcmp(value, "graph") == 0;
  out->graph.ratio_dropout = false;
  out->graph.says_dropout = true;
  if (out->graph.graph_dropout || strcmp(value, "off") == 0)
    return CLI_DONE;
  out->graph.dropout_ratio = strtod(value, &end);
  out->graph.ratio_dropout =
      end != value && *end == '\0' && out->graph.dropout_ratio >= 0 && out->graph.dropout_ratio < 1;
  return out->graph.ratio_dropout
             ? CLI_DONE
             : cli_usage("--%s %s: off, graph or a ratio below 1 is needed", option->name, value);
}

/* Both options' globs in one list, since the last match wins. */
int cli_take_glob(const cli_option *option, const char *value, cli_options *out) {
  cli_train_texts *t = &out->t;
  t->globs_train[t->globs.n % CLI_LIST_MOST] = option->most != 0;
  return cli_take_item(option->name, value, &t->globs);
}

int cli_take_check(const cli_option *option, const char *value, cli_options *out) {
  uint32_t which = 0;
  out->run.check = value == NULL ? "max" : value;
  return cli_take_choice(option->name, out->run.check, option->choices, &which);
}

int cli_take_seed(const cli_option *option, const char *value, cli_options *out) {
  return cli_parse_u64(value, UINT64_MAX - 1, &out->seed)
             ? CLI_DONE
             : cli_usage("--%s %s: an integer from 0 to 2^64 - 2 is needed", option->name, value);
}

int cli_take_receives(const cli_option *option, const char *value, cli_options *out) {
  uint32_t *depth = field(option, out);
  *depth = strcmp(value, "early") == 0 ? 0 : 1;
  if (*depth == 0 || strcmp(value, "lazy") == 0)
    return CLI_DONE;
  if (strncmp(value, "lazy=", 5) == 0)
    return cli_take_count("receives lazy", value + 5, option->least, option->most, depth);
  return cli_usage("--%s %s: early, lazy or lazy=DEPTH is needed", option->name, value);
}

/* --auto[=step|throughput|memory|latency] */
int cli_take_auto(const cli_option *option, const char *value, cli_options *o) {
  o->planner.decides = true;
  return value == NULL
             ? CLI_DONE
             : cli_take_choice(option->name, value, option->choices, &o->planner.objective);
}

/* profile --cluster[=FILE|NAME]: without a value, this machine. */
int cli_take_machine(const cli_option *option, const char *value, cli_options *o) {
  (void)option;
  o->planner.machine = value == NULL;
  o->plan.cluster = value;
  return CLI_DONE;
}
