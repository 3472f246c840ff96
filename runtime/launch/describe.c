/* SPDX-License-Identifier: Apache-2.0 */
/* A team for people and programs: where it meets, who is in it, how far each has come. */
#include <string.h>

#include "runtime/launch/team.h"

void opi_team_info(opi_team *t, opipe_team_info *out) {
  uint32_t n = 0, lower = 0, machines = 0;
  opi_lock_take(&t->lock);
  opi_neighbours_count(t, &n, &lower);
  for (uint32_t r = 0; r < t->place.size; ++r)
    machines += t->members[r].machine == r;
  *out = (opipe_team_info){.struct_size = (uint32_t)sizeof *out,
                           .rank = t->place.rank,
                           .size = t->place.size,
                           .local_rank = lower,
                           .local_size = n,
                           .failed = t->failed,
                           .launcher = t->place.launcher,
                           .job = t->place.job,
                           .machine = t->members[t->place.rank].machine,
                           .n_machines = machines};
  opi_lock_give(&t->lock);
}

uint32_t opi_team_machine(opi_team *t, uint32_t rank, const char **out_host) {
  opi_lock_take(&t->lock);
  const uint32_t machine = t->members[rank].machine;
  opi_lock_give(&t->lock);
  *out_host = t->members[rank].host;
  return machine;
}

static const char *state_of(const opi_team *t, uint32_t rank) {
  return t->members[rank].left ? "left" : t->failed && t->culprit == rank ? "failed" : "there";
}

static void write_json(const opi_team *t, opi_text *out) {
  opi_text_printf(out, "{\"rank\": %u, \"size\": %u, \"launcher\": ", t->place.rank, t->place.size);
  opi_text_json(out, t->place.launcher);
  opi_text_puts(out, ", \"job\": ");
  opi_text_json(out, t->place.job);
  opi_text_printf(out, ", \"carrier\": \"%s\", \"address\": ", t->carrier->name);
  opi_text_json(out, t->reach.address);
  opi_text_puts(out, ", \"failure\": ");
  if (t->failed)
    opi_text_json(out, t->failure.message);
  else
    opi_text_puts(out, "null");
  opi_text_puts(out, ", \"processes\": [");
  for (uint32_t r = 0; r < t->place.size; ++r) {
    const opi_process *m = &t->members[r];
    opi_text_printf(out, "%s{\"rank\": %u, \"pid\": %lld, \"machine\": %u, \"host\": ",
                    r == 0 ? "" : ", ", r, (long long)m->pid, m->machine);
    opi_text_json(out, m->host);
    opi_text_printf(out, ", \"state\": \"%s\", \"moves\": %llu, \"at\": ", state_of(t, r),
                    (unsigned long long)m->moves);
    opi_text_json(out, m->at);
    opi_text_puts(out, "}");
  }
  opi_text_puts(out, "]}\n");
}

static void write_text(const opi_team *t, opi_text *out) {
  opi_text_printf(out, "process %u of %u of job '%s', launcher %s; channel: %s, %s\n",
                  t->place.rank, t->place.size, t->place.job, t->place.launcher, t->carrier->name,
                  t->reach.address);
  if (t->carrier->greets && !t->reach.token.is_set)
    opi_text_puts(out, "  without a token: only processes of this user and machine\n");
  for (uint32_t r = 0; r < t->place.size; ++r) {
    const opi_process *m = &t->members[r];
    opi_text_printf(out, "  rank %u: pid %lld%s%s, %s", r, (long long)m->pid,
                    t->reach.spread ? " of " : "", t->reach.spread ? m->host : "", state_of(t, r));
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
