/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and links described by the caller, in numbers or in a cluster file. They are checked as
 * strictly as the answers of plugins. */
#include <inttypes.h>

#include "partition/plan/env.h"
#include "partition/plan/rules.h"

/* A value must be 0 or within [least, most]. */
static opipe_status check_number(const char *what, const char *name, double value, double least,
                                 double most, opipe_error *err) {
  if (value == 0 || (value >= least && value <= most))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" is %g; it must be 0, or from %g to %g", what,
                  name, value, least, most);
}

static opipe_status check_flags(const char *what, uint32_t flags, uint32_t known,
                                opipe_error *err) {
  if ((flags & ~known) == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s: \"flags\" is 0x%x: the bits 0x%x are unknown (known: 0x%x)", what, flags,
                  flags & ~known, known);
}

opipe_status opi_device_describe(const opipe_device_description *d, const char *what,
                                 opi_device_spec *io_spec, opi_device_facts *out_facts,
                                 opipe_error *err) {
  enum { ALIGNMENT_MOST = 1 << 24 };
  const uint32_t flags = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS |
                         OPIPE_DEVICE_EMULATED | OPIPE_DEVICE_ALONE | OPIPE_DEVICE_HANDS_ON;
  if (d->alignment == 0 || (d->alignment & (d->alignment - 1)) != 0 ||
      d->alignment > ALIGNMENT_MOST) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: \"alignment\" is %u; it must be a power of two from 1 to %d", what,
                    d->alignment, ALIGNMENT_MOST);
  }
  OPI_TRY(check_number(what, "flops", d->flops, 1, 1e30, err));
  OPI_TRY(check_number(what, "bandwidth", d->bandwidth, 1, 1e30, err));
  OPI_TRY(check_number(what, "launch_ns", d->launch_ns, 0, 1e15, err));
  OPI_TRY(check_flags(what, d->flags, flags, err));
  if (d->memory_bytes > INT64_MAX) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"memory_bytes\" is %" PRIu64 ", at most 2^63-1",
                    what, d->memory_bytes);
  }
  if (io_spec == NULL)
    return OPIPE_OK;
  io_spec->alignment = d->alignment;
  io_spec->flags = d->flags;
  io_spec->domain = d->domain;
  *out_facts = (opi_device_facts){.flops = d->flops,
                                  .bandwidth = d->bandwidth,
                                  .launch_ns = d->launch_ns,
                                  .max_threads = d->max_threads,
                                  .described = true};
  return OPIPE_OK;
}

opipe_status opi_link_describe(const opipe_link_description *l, const char *what,
                               opi_link *out_link, opipe_error *err) {
  const uint32_t flags = OPIPE_TRANSPORT_DIRECT | OPIPE_TRANSPORT_REDUCES |
                         OPIPE_TRANSPORT_EMULATED | OPIPE_TRANSPORT_COLLECTIVES |
                         OPIPE_TRANSPORT_QUEUED | OPIPE_TRANSPORT_MACHINES |
                         OPIPE_TRANSPORT_UNORDERED | OPIPE_TRANSPORT_SCATTERED;
  if (l->rule >= OPI_RULES) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"rule\" is %u; 0 to %d are known", what, l->rule,
                    OPI_RULES - 1);
  }
  if (l->thread_rule > OPIPE_THREADS_PER_ENDPOINT) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"thread_rule\" is %u; 0 to %d are known", what,
                    l->thread_rule, OPIPE_THREADS_PER_ENDPOINT);
  }
  OPI_TRY(check_flags(what, l->flags, flags, err));
  OPI_TRY(check_number(what, "latency_ns", l->latency_ns, 0, 1e15, err));
  OPI_TRY(check_number(what, "bandwidth", l->bandwidth, 1, 1e18, err));
  if (out_link != NULL) {
    *out_link = (opi_link){.latency_ns = l->latency_ns,
                           .bytes_per_ns = l->bandwidth * 1e-9,
                           .rule = l->rule,
                           .thread_rule = l->thread_rule,
                           .flags = l->flags,
                           .max_ranks = l->max_ranks,
                           .queues = l->rule == OPIPE_RULE_GROUPED};
  }
  return OPIPE_OK;
}
