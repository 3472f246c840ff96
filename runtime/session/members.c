/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a tensor group compute whole values each for itself, and go on with what they have: if
 * they did not compute the same bits they would drift apart.
 */
#include "runtime/session/members.h"

#include <stdio.h>
#include <string.h>

enum { TEXT = 160 };

/* The device of a rank, as it describes itself. */
typedef struct member_device {
  const char *backend, *options;
  char name[TEXT];
  uint32_t alignment, threads;
} member_device;

static opipe_status ask(const opi_setup *s, uint32_t rank, member_device *out, opipe_error *err) {
  const opi_device_spec *spec = &s->plan->decided.devices[rank];
  opipe_device_info info = {.struct_size = (uint32_t)sizeof info};
  OPI_TRY(opi_device_ask(&s->env.backends[rank], spec->index, &info, err));
  *out = (member_device){.backend = s->env.backends[rank].id,
                         .options = spec->options == NULL ? "" : spec->options,
                         .alignment = info.alignment,
                         .threads = spec->threads};
  (void)snprintf(out->name, sizeof out->name, "%s", info.name);
  return OPIPE_OK;
}

static opipe_status differ(const uint32_t ranks[2], const char *what, const char *a, const char *b,
                           opipe_error *err) {
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "ranks %u and %u are members of one tensor group and would compute other bits: "
                  "%s '%s' and '%s'",
                  ranks[0], ranks[1], what, a, b);
}

static opipe_status differ_by(const uint32_t ranks[2], const char *what, uint32_t a, uint32_t b,
                              opipe_error *err) {
  char numbers[2][16];
  (void)snprintf(numbers[0], sizeof numbers[0], "%u", a);
  (void)snprintf(numbers[1], sizeof numbers[1], "%u", b);
  return differ(ranks, what, numbers[0], numbers[1], err);
}

static opipe_status compare(const opi_setup *s, const uint32_t ranks[2], opipe_error *err) {
  member_device a, b;
  OPI_TRY(ask(s, ranks[0], &a, err));
  OPI_TRY(ask(s, ranks[1], &b, err));
  if (strcmp(a.backend, b.backend) != 0)
    return differ(ranks, "backends", a.backend, b.backend, err);
  if (strcmp(a.name, b.name) != 0)
    return differ(ranks, "devices", a.name, b.name, err);
  if (strcmp(a.options, b.options) != 0)
    return differ(ranks, "options", a.options, b.options, err);
  if (a.alignment != b.alignment)
    return differ_by(ranks, "alignments", a.alignment, b.alignment, err);
  if (a.threads != b.threads)
    return differ_by(ranks, "threads", a.threads, b.threads, err);
  return OPIPE_OK;
}

opipe_status opi_members_check(const opi_setup *s, opipe_error *err) {
  const uint32_t width = opi_plan_width(&s->plan->decided);
  for (uint32_t i = 1; i < s->n_here; ++i) {
    const uint32_t ranks[2] = {s->here[i - 1], s->here[i]};
    if (ranks[0] / width == ranks[1] / width)
      OPI_TRY(compare(s, ranks, err));
  }
  return OPIPE_OK;
}
