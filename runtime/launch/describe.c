/* SPDX-License-Identifier: Apache-2.0 */
/* A team for people and programs: where it meets, who is in it, how far each has come. */
#include <string.h>

#include "runtime/launch/team.h"

void opi_team_info(opi_team *t, opipe_team_info *out) {
  opi_lock_take(&t->lock);
  *out = (opipe_team_info){.struct_size = (uint32_t)sizeof *out,
                           .rank = t->place.rank,
                           .size = t->place.size,
                           .local_rank = t->place.local_rank,
                           .local_size = t->place.local_size,
                           .failed = t->failed,
                           .launcher = t->place.launcher,
                           .job = t->place.job};
  opi_lock_give(&t->lock);
}

static const char *state_of(const opi_team *t, uint32_t rank) {
  return t->failed && t->culprit == rank ? "failed" : t->members[rank].left ? "left" : "there";
}

static void write_json(const opi_team *t, opi_text *out) {
  opi_text_printf(out, "{\"rank\": %u, \"size\": %u, \"launcher\": ", t->place.rank, t->place.size);
  opi_text_json(out, t->place.launcher);
  opi_text_puts(out, ", \"job\": ");
  opi_text_json(out, t->place.job);
  opi_text_printf(out, ", \"carrier\": \"%s\", \"address\": ", t->carrier->name);
  opi_text_json(out, t->address);
  opi_text_puts(out, ", \"failure\": ");
  if (t->failed)
    opi_text_json(out, t->failure.message);
  else
    opi_text_puts(out, "null");
  opi_text_puts(out, ", \"processes\": [");
  for (uint32_t r = 0; r < t->place.size; ++r) {
    const opi_process *m = &t->members[r];
    opi_text_printf(
        out, "%s{\"rank\": %u, \"pid\": %lld, \"state\": \"%s\", \"moves\": %llu, \"at\": ",
        r == 0 ? "" : ", ", r, (long long)m->pid, state_of(t, r), (unsigned long long)m->moves);
    opi_text_json(out, m->at);
    opi_text_puts(out, "}");
  }
  opi_text_puts(out, "]}\n");
}

static void write_text(const opi_team *t, opi_text *out) {
  opi_text_printf(out, "process %u of %u of job '%s', launcher %s; channel: %s, %s\n",
                  t->place.rank, t->place.size, t->place.job, t->place.launcher, t->carrier->name,
                  t->address);
  for (uint32_t r = 0; r < t->place.size; ++r) {
    const opi_process *m = &t->members[r];
    opi_text_printf(out, "  rank %u: pid %lld, %s", r, (long long)m->pid, state_of(t, r));
    if (m->at[0] != '\0')
      opi_text_printf(out, ", at '%s', move %llu", m->at, (unsigned long long)m->moves);
    opi_text_puts(out, "\n");
  }
  if (t->failed)
    opi_text_printf(out, "  failed: %s\n", t->failure.message);
}

opipe_status opi_team_describe(opi_team *t, uint32_t format, opi_text *out, opipe_error *err) {
  opi_lock_take(&t->lock);
  if (format == OPIPE_FORMAT_JSON)
    write_json(t, out);
  else
    write_text(t, out);
  opi_lock_give(&t->lock);
  return out->failed ? opi_fail_nomem(err, out->n, "a text") : OPIPE_OK;
}
