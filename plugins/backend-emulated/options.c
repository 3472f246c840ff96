/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a device:
 *   memory=BYTES        declared memory, at most what the opening allows
 *   time_us=N           every run takes so long
 *   forward_us=N backward_input_us=N backward_weight_us=N
 *                       a run takes the sum of those passes of which it has nodes
 *                       (times: N of all stages, or N+N+... of each stage of the plan)
 *   flops=N bandwidth=N else: by the nodes' products and bytes at these rates (per second)
 *   host_bandwidth=N    copies between device and host run at this rate (bytes per second); else
 *                       they take no time
 *   compute=on|off      off: only the time passes; memory begins as zeros, outputs keep what was in
 *                       them
 *   async=0|1           1: what a queue is given is done later, by a thread of the queue's own
 *   queue=N             so many operations wait in such a queue, 1 to 65536
 *   fail_run=N          the Nth run of the device fails at once
 *   fail_late=N         it fails when its event completes
 *   stall_run=N:MS      the Nth run takes MS milliseconds longer
 *   fail_alloc=N        the Nth buffer is refused
 *   fail_copy=N         the Nth copy between device and host fails when its event completes
 *   kernels=...         goes to the inner backend, as any other key
 */
#include <errno.h>
#include <stdlib.h>

#include "emulated.h"

static bool read_real(const char *text, char stop, double most, double *out,
                      const char **out_rest) {
  char *end = NULL;
  errno = 0;
  *out = strtod(text, &end);
  const bool good = end != text && *end == stop && errno == 0 && *out >= 0 && *out <= most;
  *out_rest = good ? end : text;
  return good;
}

static bool read_count(const char *text, const char stop, uint64_t *out, const char **out_rest) {
  char *end = NULL;
  errno = 0;
  if (*text < '0' || *text > '9')
    return false;
  *out = strtoull(text, &end, 10);
  *out_rest = end;
  return errno == 0 && *end == stop;
}

static opipe_status malformed(const char *key, const char *value, const char *wanted,
                              opipe_error *err) {
  return opipe_fail(err, OPIPE_E_INVALID, "backend 'emulated': %s=%s: expected %s", key, value,
                    wanted);
}

static opipe_status read_rate(const char *key, const char *value, options *out, opipe_error *err) {
  double number = 0;
  if (!read_real(value, '\0', 1e18, &number, &value))
    return malformed(key, value, "a number from 0 to 1e18", err);
  if (strcmp(key, "flops") == 0)
    out->flops = number;
  else if (strcmp(key, "host_bandwidth") == 0)
    out->host_bandwidth = number;
  else
    out->bandwidth = number;
  return OPIPE_OK;
}

/* N, or N+N+...: one for each stage of the plan. */
static opipe_status read_times(const char *key, const char *value, times *out, opipe_error *err) {
  const char *at = value;
  for (out->n = 0; out->n < STAGES_MOST;) {
    double us = 0;
    const bool last = strchr(at, '+') == NULL;
    if (!read_real(at, last ? '\0' : '+', 1e12, &us, &at)) {
      return malformed(key, value, "microseconds from 0 to 1e12, of all stages or N+N+... of each",
                       err);
    }
    out->ns[out->n++] = (uint64_t)(us * 1e3);
    if (last)
      return OPIPE_OK;
    ++at;
  }
  return opipe_fail(err, OPIPE_E_LIMIT, "backend 'emulated': %s lists more than %d stages", key,
                    STAGES_MOST);
}

static opipe_status read_fault(const char *key, const char *value, options *out, opipe_error *err) {
  const char *rest = NULL;
  uint64_t n = 0, ms = 0;
  const bool stalls = strcmp(key, "stall_run") == 0;
  if (!read_count(value, stalls ? ':' : '\0', &n, &rest))
    return malformed(key, value, stalls ? "N:MS" : "a whole number", err);
  if (stalls && (!read_count(rest + 1, '\0', &ms, &rest) || ms > 86400000))
    return malformed(key, value, "N:MS with MS up to 86400000", err);
  if (stalls) {
    out->stall_run = n;
    out->stall_ns = ms * UINT64_C(1000000);
  } else if (strcmp(key, "fail_run") == 0) {
    out->fail_run = n;
  } else if (strcmp(key, "fail_late") == 0) {
    out->fail_late = n;
  } else if (strcmp(key, "fail_alloc") == 0) {
    out->fail_alloc = n;
  } else if (strcmp(key, "fail_copy") == 0) {
    out->fail_copy = n;
  } else {
    out->memory_bytes = n;
  }
  return OPIPE_OK;
}

static opipe_status read_async(const char *key, const char *value, options *out, opipe_error *err) {
  const char *rest = NULL;
  uint64_t n = 0;
  const bool counts = strcmp(key, "queue") == 0;
  if (!read_count(value, '\0', &n, &rest) || n > (counts ? QUEUED_MOST : 1) || (counts && n == 0))
    return malformed(key, value, counts ? "a whole number from 1 to 65536" : "0 or 1", err);
  if (counts)
    out->queued_most = (uint32_t)n;
  else
    out->async = n == 1;
  return OPIPE_OK;
}

/* Unknown options are the inner backend's to accept or refuse. */
static opipe_status pass_on(const char *key, const char *value, options *out, opipe_error *err) {
  const size_t used = strlen(out->inner);
  const int n = snprintf(out->inner + used, sizeof out->inner - used, "%s%s=%s",
                         used == 0 ? "" : ",", key, value);
  if (n > 0 && (size_t)n < sizeof out->inner - used)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_LIMIT,
                    "backend 'emulated': options for the inner backend exceed %zu bytes",
                    sizeof out->inner);
}

static bool is_one_of(const char *key, const char *const *keys, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (strcmp(key, keys[i]) == 0)
      return true;
  }
  return false;
}

/* Where the times of an option go; NULL: it is none of time. */
static times *times_of(const char *key, options *out) {
  if (strcmp(key, "time_us") == 0)
    return &out->run;
  if (strcmp(key, "forward_us") == 0)
    return &out->pass[OPIPE_PASS_FORWARD];
  if (strcmp(key, "backward_input_us") == 0)
    return &out->pass[OPIPE_PASS_BACKWARD_INPUT];
  return strcmp(key, "backward_weight_us") == 0 ? &out->pass[OPIPE_PASS_BACKWARD_WEIGHT] : NULL;
}

static opipe_status read_option(const char *key, const char *value, options *out,
                                opipe_error *err) {
  static const char *const rates[] = {"flops", "bandwidth", "host_bandwidth"};
  static const char *const counts[] = {"memory",    "fail_run",   "fail_late",
                                       "stall_run", "fail_alloc", "fail_copy"};
  static const char *const queues[] = {"async", "queue"};
  times *by_stage = times_of(key, out);
  if (by_stage != NULL)
    return read_times(key, value, by_stage, err);
  if (is_one_of(key, rates, sizeof rates / sizeof rates[0]))
    return read_rate(key, value, out, err);
  if (is_one_of(key, counts, sizeof counts / sizeof counts[0]))
    return read_fault(key, value, out, err);
  if (is_one_of(key, queues, sizeof queues / sizeof queues[0]))
    return read_async(key, value, out, err);
  if (strcmp(key, "compute") != 0)
    return pass_on(key, value, out, err);
  if (strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
    return malformed(key, value, "on or off", err);
  out->compute = strcmp(value, "on") == 0;
  return OPIPE_OK;
}

opipe_status emudev_options(const char *text, options *out, opipe_error *err) {
  char key[32], value[1024];
  memset(out, 0, sizeof *out);
  out->compute = true;
  out->queued_most = QUEUED_PLAIN;
  for (;;) {
    const int more = opipe_option_next(&text, key, sizeof key, value, sizeof value);
    if (more == 0)
      return OPIPE_OK;
    if (more < 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "backend 'emulated': options cannot be understood from '%.60s' on", text);
    }
    const opipe_status status = read_option(key, value, out, err);
    if (status < 0)
      return status;
  }
}
