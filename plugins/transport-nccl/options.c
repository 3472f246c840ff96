/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a world:
 *   ctas=N           thread blocks of the device that messages take at most (1 to 64; 8)
 *   sum_ctas=N       the same for sums, per set of members (0: NCCL's own choice, as without it)
 *   latency_us=N     what the plan's clock takes for a message (20), and
 *   bandwidth=N      bytes per second of a link (5e10)
 *   setup_s=N        how long a communicator may take to come about (1 to 3600; 60)
 *   record=FOLDER|no where the last operations are written when a session fails; without it
 *                    TMPDIR, without that /tmp
 *   check=1          members compare what they have come to before each sum (a round trip)
 *   share=1          tests: several ranks on one GPU, each with an NCCL_HOSTID of its own
 */
#include <errno.h>
#include <stdlib.h>

#include "world.h"

static opipe_status read_number(const char *key, const char *value, double least, double most,
                                double *out, opipe_error *err) {
  char *end = NULL;
  errno = 0;
  const double n = strtod(value, &end);
  if (end == value || *end != '\0' || errno != 0 || !(n >= least && n <= most)) {
    return opipe_fail(err, OPIPE_E_INVALID, "transport 'nccl': %s=%s is no number from %g to %g",
                      key, value, least, most);
  }
  *out = n;
  return OPIPE_OK;
}

static opipe_status read_whole(const char *key, const char *value, uint32_t least, uint32_t most,
                               uint32_t *out, opipe_error *err) {
  double n = 0;
  const opipe_status status = read_number(key, value, least, most, &n, err);
  if (status < 0)
    return status;
  if (n != (double)(uint32_t)n) {
    return opipe_fail(err, OPIPE_E_INVALID, "transport 'nccl': %s=%s is no whole number", key,
                      value);
  }
  *out = (uint32_t)n;
  return OPIPE_OK;
}

static opipe_status read_switch(const char *key, const char *value, bool *out, opipe_error *err) {
  uint32_t n = 0;
  const opipe_status status = read_whole(key, value, 0, 1, &n, err);
  *out = status == OPIPE_OK && n == 1;
  return status;
}

static opipe_status read_record(const char *value, nccl_options *out, opipe_error *err) {
  out->records = strcmp(value, "no") != 0;
  if (out->records && value[0] != '/') {
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "transport 'nccl': record=%s is neither an absolute path of a folder nor 'no'", value);
  }
  (void)snprintf(out->record, sizeof out->record, "%s", value);
  return OPIPE_OK;
}

static opipe_status read_option(const char *key, const char *value, nccl_options *out,
                                opipe_error *err) {
  double us = 0;
  if (strcmp(key, "ctas") == 0)
    return read_whole(key, value, 1, 64, &out->ctas, err);
  if (strcmp(key, "sum_ctas") == 0)
    return read_whole(key, value, 0, 64, &out->sum_ctas, err);
  if (strcmp(key, "setup_s") == 0)
    return read_whole(key, value, 1, 3600, &out->setup_s, err);
  if (strcmp(key, "bandwidth") == 0)
    return read_number(key, value, 1, 1e18, &out->bandwidth, err);
  if (strcmp(key, "check") == 0)
    return read_switch(key, value, &out->check, err);
  if (strcmp(key, "share") == 0)
    return read_switch(key, value, &out->share, err);
  if (strcmp(key, "record") == 0)
    return read_record(value, out, err);
  if (strcmp(key, "latency_us") == 0) {
    const opipe_status status = read_number(key, value, 0, 1e9, &us, err);
    out->latency_ns = status == OPIPE_OK ? us * 1000 : out->latency_ns;
    return status;
  }
  return opipe_fail(err, OPIPE_E_NOTFOUND,
                    "transport 'nccl' has no option '%s' (ctas, sum_ctas, latency_us, bandwidth, "
                    "setup_s, record, check, share)",
                    key);
}

opipe_status nccl_read_options(const char *text, nccl_options *out, opipe_error *err) {
  char key[32], value[NCCL_PATH];
  int more = 1;
  *out = (nccl_options){
      .ctas = 8, .setup_s = 60, .latency_ns = 20000, .bandwidth = 5e10, .records = true};
  while (more > 0) {
    more = opipe_option_next(&text, key, sizeof key, value, sizeof value);
    if (more < 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "transport 'nccl': options cannot be understood from '%.60s' on", text);
    }
    const opipe_status status = more == 0 ? OPIPE_OK : read_option(key, value, out, err);
    if (status < 0)
      return status;
  }
  return OPIPE_OK;
}
