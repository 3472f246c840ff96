/* SPDX-License-Identifier: Apache-2.0 */
/* Error messages: 512 bytes that the caller owns, written by whoever first knows what is wrong.
 * They are UTF-8 whatever the names in them are, and are cut between characters.
 */
#include "loader/base/base.h"

#include <stdio.h>
#include <string.h>

#include "loader/base/sizes.h"

static void write_message(opipe_error *err, opipe_status status, uint32_t domain, int native,
                          const char *fmt, va_list args) {
  char message[sizeof(err->message)];
  (void)vsnprintf(message, sizeof(message), fmt, args);
  opi_text_mend(message);
  err->status = status;
  err->domain = domain;
  err->native = native;
  memcpy(err->message, message, strlen(message) + 1);
}

opipe_status opi_fail(opipe_error *err, opipe_status status, const char *fmt, ...) {
  if (err != NULL) {
    va_list args;
    va_start(args, fmt);
    write_message(err, status, OPIPE_DOMAIN_NONE, 0, fmt, args);
    va_end(args);
  }
  return status;
}

opipe_status opi_fail_errno(opipe_error *err, int errno_value, const char *fmt, ...) {
  if (err != NULL) {
    va_list args;
    va_start(args, fmt);
    write_message(err, OPIPE_E_IO, OPIPE_DOMAIN_ERRNO, errno_value, fmt, args);
    va_end(args);
    char reason[128];
    const char *text = strerror_r(errno_value, reason, sizeof(reason));
    const size_t used = strlen(err->message);
    (void)snprintf(err->message + used, sizeof(err->message) - used, ": %s", text);
    opi_text_mend(err->message);
  }
  return OPIPE_E_IO;
}

opipe_status opi_fail_nomem(opipe_error *err, uint64_t n_bytes, const char *what) {
  return opi_fail(err, OPIPE_E_NOMEM, "out of memory: %s for %s", OPI_SIZE(n_bytes), what);
}

opipe_status opi_error_prefix(opipe_error *err, const char *fmt, ...) {
  if (err == NULL)
    return OPIPE_E_INVALID;
  char joined[sizeof(err->message)];
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(joined, sizeof(joined), fmt, args);
  va_end(args);
  const size_t used = n < 0 ? 0 : (size_t)n < sizeof(joined) ? (size_t)n : sizeof(joined) - 1;
  const size_t rest = sizeof(joined) - used;
  const size_t have = strnlen(err->message, sizeof(err->message) - 1);
  const size_t take = have < rest - 1 ? have : rest - 1;
  memcpy(joined + used, err->message, take);
  joined[used + take] = '\0';
  opi_text_mend(joined);
  memcpy(err->message, joined, strlen(joined) + 1);
  return err->status;
}

void opi_log(const opi_logger *logger, uint32_t level, const char *fmt, ...) {
  if (logger == NULL || logger->log == NULL || level > logger->level)
    return;
  char line[1024];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(line, sizeof(line), fmt, args);
  va_end(args);
  logger->log(logger->ctx, level, NULL, 0, line);
}
