/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a world:
 *   rule=tag|stream|edge|pair|blocking|grouped   which messages may overtake which (rules.c)
 *   latency_us=N          every message
 *   bandwidth=N           bytes per second of a stream; 0: no limit
 *   jitter_us=N           every message, and every round of a group, comes up to N later, by chance
 *   seed=N                which times chance draws; default 0
 *   setup_us=N            endpoint_ready answers PENDING so long after each opening, and messages
 *                         before its OK are refused
 *   scattered=0|1         whether members of tensor groups should send parts over the link
 *   stall=SRC:DST:SEQ:MS  message SEQ from rank SRC to rank DST comes MS milliseconds later (may be
 *                         given several times)
 *   lose=SRC:DST:SEQ      it never comes
 */
#include <errno.h>
#include <stdlib.h>

#include "emulated.h"

static bool read_number(const char *text, double most, double *out) {
  char *end = NULL;
  errno = 0;
  *out = strtod(text, &end);
  return end != text && *end == '\0' && errno == 0 && *out >= 0 && *out <= most;
}

/* "a:b:c" into n numbers. */
static bool read_list(const char *text, uint64_t *out, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    char *end = NULL;
    errno = 0;
    if (*text < '0' || *text > '9')
      return false;
    out[i] = strtoull(text, &end, 10);
    if (errno != 0 || *end != (i + 1 < n ? ':' : '\0'))
      return false;
    text = end + 1;
  }
  return true;
}

static opipe_status read_fault(const char *key, const char *value, options *out, opipe_error *err) {
  const bool lost = strcmp(key, "lose") == 0;
  uint64_t n[4] = {0};
  if (!read_list(value, n, lost ? 3 : 4) || n[0] > UINT32_MAX || n[1] > UINT32_MAX ||
      n[3] > 86400000) {
    return opipe_fail(err, OPIPE_E_INVALID, "transport 'emulated': %s=%s: expected %s", key, value,
                      lost ? "SRC:DST:SEQ" : "SRC:DST:SEQ:MS");
  }
  if (out->n_faults == FAULTS_MOST) {
    return opipe_fail(err, OPIPE_E_LIMIT, "transport 'emulated': more than %d stalls and losses",
                      FAULTS_MOST);
  }
  out->faults[out->n_faults++] = (fault){.src = (uint32_t)n[0],
                                         .dst = (uint32_t)n[1],
                                         .sequence = n[2],
                                         .delay_ns = lost ? UINT64_MAX : n[3] * UINT64_C(1000000)};
  return OPIPE_OK;
}

/* The time that the option sets; NULL: none. */
static uint64_t *time_of(options *o, const char *key) {
  uint64_t *const times[] = {&o->latency_ns, &o->jitter_ns, &o->setup_ns};
  static const char *const keys[] = {"latency_us", "jitter_us", "setup_us"};
  for (uint32_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
    if (strcmp(key, keys[i]) == 0)
      return times[i];
  }
  return NULL;
}

static opipe_status read_option(const char *key, const char *value, options *out,
                                opipe_error *err) {
  double number = 0;
  if (strcmp(key, "stall") == 0 || strcmp(key, "lose") == 0)
    return read_fault(key, value, out, err);
  if (strcmp(key, "rule") == 0) {
    static const char *const rules[] = {"tag", "stream", "edge", "pair", "blocking", "grouped"};
    for (uint32_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
      if (strcmp(value, rules[i]) == 0) {
        out->rule = i; /* OPIPE_RULE_* */
        return OPIPE_OK;
      }
    }
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "transport 'emulated': rule=%s: expected tag, stream, edge, pair, blocking or "
        "grouped",
        value);
  }
  if (strcmp(key, "scattered") == 0) {
    out->scattered = strcmp(value, "1") == 0;
    return out->scattered || strcmp(value, "0") == 0
               ? OPIPE_OK
               : opipe_fail(err, OPIPE_E_INVALID,
                            "transport 'emulated': scattered=%s: expected 0 or 1", value);
  }
  if (strcmp(key, "seed") == 0) {
    return read_list(value, &out->seed, 1)
               ? OPIPE_OK
               : opipe_fail(err, OPIPE_E_INVALID,
                            "transport 'emulated': seed=%s: expected a whole number", value);
  }
  uint64_t *const time = time_of(out, key);
  if (time == NULL && strcmp(key, "bandwidth") != 0) {
    return opipe_fail(err, OPIPE_E_NOTFOUND,
                      "transport 'emulated' has no option '%s' (rule, latency_us, bandwidth, "
                      "jitter_us, seed, setup_us, scattered, stall, lose)",
                      key);
  }
  const bool is_time = time != NULL;
  if (!read_number(value, is_time ? 1e9 : 1e15, &number) ||
      (!is_time && number != 0 && number < 1)) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "transport 'emulated': %s=%s is not a number in range (%s)", key, value,
                      is_time ? "0 to 1e9" : "0, or 1 to 1e15");
  }
  if (is_time)
    *time = (uint64_t)(number * 1e3);
  else
    out->bytes_per_ns = number * 1e-9;
  return OPIPE_OK;
}

opipe_status emutrans_options(const char *text, options *out, opipe_error *err) {
  char key[32], value[96];
  memset(out, 0, sizeof *out);
  for (;;) {
    const int more = opipe_option_next(&text, key, sizeof key, value, sizeof value);
    if (more == 0)
      return OPIPE_OK;
    if (more < 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "transport 'emulated': options cannot be understood from '%.60s' on", text);
    }
    const opipe_status status = read_option(key, value, out, err);
    if (status < 0)
      return status;
  }
}
