/* SPDX-License-Identifier: Apache-2.0 */
/* Options of schedules: what they say of themselves, and that each of them changes something. */
#ifndef CONFORMANCE_SCHEDULE_OPTIONS_H
#define CONFORMANCE_SCHEDULE_OPTIONS_H

#include "schedule_kit.h"

enum { OPTIONS_MOST = 256, VALUES_MOST = 8, VALUE_ROOM = 64 };

/* Is `value` one of "a|b|c"? */
static bool is_choice(const char *choices, const char *value) {
  const size_t n = strlen(value);
  for (const char *at = choices; at != NULL; at = strchr(at, '|')) {
    at += *at == '|';
    if (strcspn(at, "|") == n && strncmp(at, value, n) == 0)
      return true;
  }
  return false;
}

static bool in_bounds(const opipe_schedule_option *o, const char *value) {
  char *end = NULL;
  const double x = strtod(value, &end);
  return *value != '\0' && *end == '\0' && x >= o->min && x <= o->max;
}

static bool check_option(const opipe_schedule_option *o, uint32_t i) {
  const bool sound =
      conf_check(o->key != NULL && o->key[0] != '\0' && o->help != NULL,
                 "option %u lacks a key or help", i) &&
      conf_check(o->type != 0 && o->type < 128 && strchr("isxt", (int)o->type) != NULL,
                 "option %u: type %u", i, o->type) &&
      conf_check(o->type != 's' || o->choices != NULL, "option %u has no choices", i);
  if (!sound)
    return false;
  conf_check(strpbrk(o->key, "=, ") == NULL, "option '%s' cannot be written as key=value", o->key);
  conf_check(strchr(o->help, '\n') == NULL, "the help of option '%s' is not one line", o->key);
  conf_check(o->reserved == 0, "option '%s': reserved is %u", o->key, o->reserved);
  conf_check(o->type == 's' || o->choices == NULL, "option '%s' has choices, its type is not 's'",
             o->key);
  conf_check(o->min <= o->max, "option '%s': [%g, %g]", o->key, o->min, o->max);
  if (o->preset != NULL && o->type == 's') {
    conf_check(is_choice(o->choices, o->preset), "option '%s': its preset '%s' is none of '%s'",
               o->key, o->preset, o->choices);
  }
  if (o->preset != NULL && (o->type == 'i' || o->type == 'x')) {
    conf_check(in_bounds(o, o->preset), "option '%s': its preset '%s' is not in [%g, %g]", o->key,
               o->preset, o->min, o->max);
  }
  return true;
}

/* The table, once it is known to be sound; its length 0 else. */
static const opipe_schedule_option *check_options(const subject *s, uint32_t *out_n) {
  const opipe_schedule_option *options = NULL, *again = NULL;
  uint32_t n = 0, n_again = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  bool sound = true;
  *out_n = 0;
  conf_case("options");
  if (!conf_ok(s->table->options(s->self, &options, &n, &err), &err, "options") ||
      !conf_ok(s->table->options(s->self, &again, &n_again, &err), &err, "options, again") ||
      !conf_check(options == again && n == n_again, "options gives two answers") ||
      !conf_check(n <= OPTIONS_MOST, "%u options", n) ||
      !conf_check(options != NULL || n == 0, "%u options, at NULL", n))
    return NULL;
  for (uint32_t i = 0; i < n; ++i) {
    sound = check_option(&options[i], i) && sound;
    for (uint32_t k = 0; k < i && sound; ++k) {
      conf_check(strcmp(options[i].key, options[k].key) != 0, "option '%s' is there twice",
                 options[i].key);
    }
  }
  *out_n = sound ? n : 0;
  return options;
}

/* Checks of the library before a plugin gets a setting. */
static const char *check_settings(const subject *s, const opipe_schedule_option *options,
                                  uint32_t n) {
  for (uint32_t i = 0; i < s->n_settings; ++i) {
    uint32_t k = 0;
    while (k < n && strcmp(options[k].key, s->settings[i].key) != 0)
      ++k;
    if (k == n)
      return "is no option of the schedule";
    if (options[k].type == 's' && !is_choice(options[k].choices, s->settings[i].value))
      return "is none of the option's choices";
    if ((options[k].type == 'i' || options[k].type == 'x') &&
        !in_bounds(&options[k], s->settings[i].value))
      return "is not in the option's range";
  }
  return NULL;
}

/* ---- effects of options ---- */

static uint64_t mix(uint64_t hash, const void *data, size_t n_bytes) {
  for (size_t i = 0; i < n_bytes; ++i)
    hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(1099511628211);
  return hash;
}

static uint64_t mix_case(const subject *s, const request *q, uint64_t hash) {
  static uint32_t rank[INSTANCES_MOST];
  static recorded orders;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_layout l;
  opipe_status status = lay_out(s, q, rank, INSTANCES_MOST, &l, &err);
  hash = mix(hash, &status, sizeof status);
  if (status != OPIPE_OK || (uint64_t)l.n_stages * l.n_replicas > INSTANCES_MOST)
    return hash;
  const uint32_t numbers[] = {l.n_ranks, l.n_stages, l.n_replicas, l.n_slices,
                              l.n_parts, l.versions, l.sync,       l.in_flight};
  hash = mix(hash, numbers, sizeof numbers);
  hash = mix(hash, rank, (size_t)l.n_stages * l.n_replicas * sizeof *rank);
  if (l.slice_lengths != NULL)
    hash = mix(hash, l.slice_lengths, slices_of(&l) * sizeof *l.slice_lengths);
  orders.fail_after = UINT32_MAX;
  for (uint64_t spread = 0; spread <= 5000; spread += 5000) {
    status = order(s, q->mode, &l, q->m, spread, &orders, &err);
    hash =
        mix(mix(hash, &status, sizeof status), orders.actions, orders.n * sizeof orders.actions[0]);
  }
  return hash;
}

static uint64_t fingerprint(const subject *s) {
  uint64_t hash = UINT64_C(14695981039346656037);
  for (uint32_t mode = OPIPE_MODE_FORWARD; mode <= OPIPE_MODE_TRAIN; ++mode) {
    for (uint32_t n = 1; n <= RANKS_MOST; ++n) {
      for (uint32_t m = 1; m <= MICROBATCHES_MOST; m += 3) {
        const request plain = {mode, n, 0, m}, deep = {mode, n, 2 * n, m}, cut = {mode, 0, n, m};
        hash = mix_case(s, &plain, mix_case(s, &deep, mix_case(s, &cut, hash)));
      }
    }
  }
  return hash;
}

/* Some values of an option; how many. */
static uint32_t values_of(const opipe_schedule_option *o, char values[][VALUE_ROOM]) {
  uint32_t n = 0;
  if (o->type == 's') {
    for (const char *at = o->choices; at != NULL && n < VALUES_MOST; at = strchr(at, '|')) {
      at += *at == '|';
      (void)snprintf(values[n++], VALUE_ROOM, "%.*s", (int)strcspn(at, "|"), at);
    }
    return n;
  }
  for (double x = o->min; o->type == 'i' && x <= o->max && n < VALUES_MOST / 2; x += 1)
    (void)snprintf(values[n++], VALUE_ROOM, "%.0f", x);
  return n;
}

/* An option whose values all give the same orders in every case is one that nobody reads. */
static void check_effects(const subject *s, const opipe_schedule_option *options, uint32_t n) {
  char values[VALUES_MOST][VALUE_ROOM];
  const uint64_t plain = n == 0 || s->n_settings != 0 ? 0 : fingerprint(s);
  conf_case("effects of options");
  for (uint32_t i = 0; i < n && s->n_settings == 0; ++i) {
    const uint32_t n_values = values_of(&options[i], values);
    bool changes = false;
    for (uint32_t k = 0; k < n_values && !changes; ++k) {
      subject with = *s;
      with.settings[with.n_settings++] = (opipe_schedule_setting){options[i].key, values[k]};
      changes = fingerprint(&with) != plain;
    }
    if (n_values > 1) {
      conf_check(changes, "option '%s' changes nothing, from '%s' to '%s'", options[i].key,
                 values[0], values[n_values - 1]);
    }
  }
}

#endif /* CONFORMANCE_SCHEDULE_OPTIONS_H */
