/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the answers of plugins before they are used: statuses and messages of their slots, and the
 * numbers of devices and programs, which become sizes and offsets. Messages name the plugin and the
 * number.
 */
#include <string.h>

#include "loader/base/base.h"

enum { ALIGNMENT_MOST = 1 << 24 };
static const double RATE_MOST = 1e30, LAUNCH_NS_MOST = 1e15;

opipe_status opi_answer_failed(opipe_status status, const char *kind, const char *id,
                               const char *slot, opipe_error *err) {
  const bool backend = strcmp(kind, "backend") == 0; /* INVALID would say that data is at fault */
  const bool known = status < 0 && status >= OPIPE_E_INTERNAL;
  const bool cancelled = backend && status == OPIPE_E_CANCELLED; /* the host alone cancels */
  const opipe_status own = cancelled || (!known && backend) ? OPIPE_E_DEVICE
                           : known                          ? status
                                                            : OPIPE_E_INVALID;
  if (err == NULL)
    return own;
  if (status >= 0) {
    return opi_fail(err, own, "%s '%s': %s answered %d, which is neither done nor failed", kind, id,
                    slot, (int)status);
  }
  /* Another status's message is left over from an earlier failure. */
  if (err->status != status && err->status != 0)
    err->message[0] = '\0';
  if (err->message[0] == '\0') {
    return opi_fail(err, own, "%s '%s': %s failed with status %d, without a message", kind, id,
                    slot, (int)status);
  }
  bool odd = memchr(err->message, '\0', sizeof(err->message)) == NULL || err->status != status;
  err->message[sizeof(err->message) - 1] = '\0';
  odd = opi_text_clean(err->message, sizeof(err->message)) || odd;
  err->status = own;
  if (!known) {
    (void)opi_error_prefix(err, "%s '%s': %s failed with the unknown status %d: ", kind, id, slot,
                           (int)status);
  } else if (odd || cancelled) {
    (void)opi_error_prefix(err, "%s '%s': %s failed: ", kind, id, slot);
  }
  return own;
}

opipe_status opi_made(opipe_status status, const void *out, const char *kind, const char *id,
                      const char *slot, opipe_error *err) {
  const void *object = NULL;
  memcpy(&object, out, sizeof object);
  return status != OPIPE_OK || object != NULL
             ? status
             : opi_fail(err, OPIPE_E_DEVICE, "%s '%s': %s answered 0 without an object", kind, id,
                        slot);
}

/* A number of [least, most], else 0: unknown. */
static double within(double value, double least, double most) {
  return value >= least && value <= most ? value : 0;
}

opipe_status opi_device_check(opipe_device_info *io_info, const char *id, uint32_t index,
                              opipe_error *err) {
  const uint32_t alignment = io_info->alignment == 0 ? 1 : io_info->alignment;
  if ((alignment & (alignment - 1)) != 0 || alignment > ALIGNMENT_MOST) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "backend '%s': device %u has an alignment of %u bytes, which is not a power of two "
        "up to %d",
        id, index, alignment, ALIGNMENT_MOST);
  }
  io_info->alignment = alignment;
  io_info->peak_flops = within(io_info->peak_flops, 1, RATE_MOST);
  io_info->bandwidth = within(io_info->bandwidth, 1, RATE_MOST);
  io_info->launch_ns = within(io_info->launch_ns, 0, LAUNCH_NS_MOST);
  io_info->fp64_flops = within(io_info->fp64_flops, 1, RATE_MOST);
  io_info->fp16_flops = within(io_info->fp16_flops, 1, RATE_MOST);
  io_info->bf16_flops = within(io_info->bf16_flops, 1, RATE_MOST);
  io_info->uuid[sizeof(io_info->uuid) - 1] = '\0';
  io_info->name[sizeof(io_info->name) - 1] = '\0';
  return OPIPE_OK;
}

opipe_status opi_program_check(const opipe_program_info *info, const char *id, opipe_error *err) {
  if (info->host_bytes > OPI_PLUGIN_BYTES_MOST) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "backend '%s': a program keeps %llu bytes of the host (at most 2^48 are "
                    "possible)",
                    id, (unsigned long long)info->host_bytes);
  }
  if (info->arena_bytes <= OPI_PLUGIN_BYTES_MOST && info->workspace_bytes <= info->arena_bytes)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_INVALID,
      "backend '%s': a program has an arena of %llu bytes (at most 2^48 are possible) and "
      "%llu of workspace in it",
      id, (unsigned long long)info->arena_bytes, (unsigned long long)info->workspace_bytes);
}
