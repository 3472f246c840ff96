/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of transport plugins:
 * conformance-transport [--processes N [--on ID=BACKEND.so]] PATH.so [OPTIONS]
 *
 * With --processes 2 or 3 the ranks are dealt out to so many processes (transport_processes.h), on
 * devices of a backend with --on, one after the other.
 * Without:
 * Ranks are threads of this process, on a host-memory device made of opipe/helpers.h. Messages
 * arrive whole, in the order of the rule, never before their receive was posted where the transport
 * is direct, nor before their event; reserve tells the truth; nobody sleeps through a doorbell;
 * reductions give every member the bits of rising order; abort reaches every rank; what is closed
 * leaves nothing. Each wait has a deadline: a lost wake-up fails, it never hangs.
 */
#include "transport_collects.h"
#include "transport_doors.h"
#include "transport_events.h"
#include "transport_kit.h"
#include "transport_messages.h"
#include "transport_processes.h"
#include "transport_streams.h"
#include "transport_sums.h"
#include "transport_ways.h"

static void check_info(subject *s) {
#if OPIPE_ABI_MINOR >= 5
  enum { KNOWN = 255 }; /* to OPIPE_TRANSPORT_SCATTERED */
#else
  enum { KNOWN = OPIPE_TRANSPORT_DIRECT | OPIPE_TRANSPORT_REDUCES | OPIPE_TRANSPORT_EMULATED };
#endif
  opipe_error err = OPIPE_ERROR_INIT;
  struct {
    opipe_transport_info known;
    unsigned char newer[24];
  } larger;
  conf_case("info");
  s->info.struct_size = (uint32_t)OPIPE_END(opipe_transport_info, bandwidth);
  conf_ok(s->t->info(s->self, &s->info, &err), &err, "info");
  conf_check(s->info.rule <= OPIPE_RULE_GROUPED, "rule %u", s->info.rule);
  conf_check(s->info.thread_rule <= OPIPE_THREADS_PER_ENDPOINT, "thread rule %u",
             s->info.thread_rule);
  conf_check(s->newer || (s->info.flags & ~(uint32_t)KNOWN) == 0, "flags 0x%x, known are 0x%x",
             s->info.flags, (uint32_t)KNOWN);
  conf_check(s->info.latency_ns >= 0 && s->info.latency_ns <= 1e15, "latency %g ns",
             s->info.latency_ns);
  conf_check(s->info.bandwidth == 0 || (s->info.bandwidth >= 1 && s->info.bandwidth <= 1e18),
             "bandwidth %g", s->info.bandwidth);
  conf_check(s->info.max_ranks == 0 || s->info.max_ranks >= RANKS, "at most %u ranks",
             s->info.max_ranks);
  if (!conf_check(((s->info.flags & OPIPE_TRANSPORT_REDUCES) != 0) == (s->t->group_open != NULL),
                  "flags 0x%x, but the slots of groups are %s", s->info.flags,
                  s->t->group_open == NULL ? "NULL" : "there") &&
      s->t->group_open == NULL)
    s->info.flags &= ~(uint32_t)OPIPE_TRANSPORT_REDUCES;
#if OPIPE_ABI_MINOR >= 5
  const bool slots = OPIPE_HAS(s->t, opipe_transport, collect_test) && s->t->collect != NULL;
  conf_check(((s->info.flags & OPIPE_TRANSPORT_COLLECTIVES) != 0) == slots,
             "flags 0x%x, but the slots of collectives are %s", s->info.flags,
             slots ? "there" : "not there");
  conf_check(slots || (s->info.flags & OPIPE_TRANSPORT_QUEUED) == 0,
             "flags 0x%x: queued, without collectives", s->info.flags);
#endif
  for (uint32_t i = 0; i < 2; ++i) { /* of this host, then of a newer one */
    memset(&larger, 0x5a, sizeof larger);
    larger.known.struct_size = i == 0 ? s->info.struct_size : (uint32_t)sizeof larger;
    conf_ok(s->t->info(s->self, &larger.known, &err), &err, "info");
    conf_check(larger.newer[0] == 0x5a && larger.newer[sizeof larger.newer - 1] == 0x5a,
               "info writes beyond what is known");
  }
  s->rule = s->info.rule;
}

/* A world's declaration under given options: sane, the same each time, no wider than info. */
static void check_world_info(subject *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_transport_info first = {.struct_size =
                                    (uint32_t)OPIPE_END(opipe_transport_info, bandwidth)};
  opipe_transport_info again = first;
  conf_case("world_info");
  if (s->t->struct_size < OPIPE_END(opipe_transport, world_info) || s->t->world_info == NULL) {
    conf_skip("it declares the same for all its worlds");
    return;
  }
  conf_ok(s->t->world_info(s->self, s->options, &first, &err), &err, "world_info");
  conf_ok(s->t->world_info(s->self, s->options, &again, &err), &err, "world_info, again");
  conf_check(memcmp(&first, &again, sizeof first) == 0, "two answers for the same options");
  conf_check(first.rule <= OPIPE_RULE_GROUPED, "rule %u", first.rule);
  s->rule = first.rule;
  conf_check(first.latency_ns >= 0 && first.latency_ns < 1e15, "latency %g ns", first.latency_ns);
  conf_check(first.bandwidth == 0 || (first.bandwidth >= 1 && first.bandwidth <= 1e18),
             "bandwidth %g", first.bandwidth);
  conf_check(first.flags == s->info.flags && first.thread_rule == s->info.thread_rule,
             "flags %u, thread rule %u; info says %u and %u", first.flags, first.thread_rule,
             s->info.flags, s->info.thread_rule);
  (void)conf_refused(s->t->world_info(s->self, "no-such-option=1", &again, &err), &err,
                     "an unknown option, by world_info,");
}

static void check_worlds(const subject *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_world *world = NULL;
  opipe_endpoint *endpoint = NULL;
  opipe_world_params params = {(uint32_t)OPIPE_END(opipe_world_params, options), RANKS,
                               "no-such-option=1"};
  conf_case("worlds");
  (void)conf_refused(s->t->world_open(s->self, &params, &world, &err), &err, "an unknown option");
  conf_check(s->t->world_open(s->self, &params, &world, NULL) < 0,
             "an unknown option is accepted where nobody asks for the reason");
  conf_check(world == NULL, "world_open fails, but sets its output");
  params.options = s->options;
  params.n_ranks = s->info.max_ranks + 1;
  if (s->info.max_ranks != 0) {
    (void)conf_refused(s->t->world_open(s->self, &params, &world, &err), &err,
                       "a world of more ranks than info says");
  }
  params.n_ranks = RANKS;
  world = NULL;
  if (conf_made(s->t->world_open(s->self, &params, &world, &err), &world, &err, "world_open")) {
    const opipe_endpoint_params outside = {
        .struct_size = (uint32_t)OPIPE_END(opipe_endpoint_params, reserved), .rank = RANKS};
    (void)conf_refused(s->t->endpoint_open(world, &outside, &endpoint, &err), &err,
                       "an endpoint of a rank that is not there");
    conf_check(endpoint == NULL, "endpoint_open fails, but sets its output");
    s->t->world_close(world);
  }
  s->t->world_close(NULL);
  s->t->endpoint_close(NULL);
  s->t->stream_close(NULL);
  s->t->memory_drop(NULL);
}

int main(int argc, char **argv) {
  subject s;
  const bool dealt_out = argc > 2 && strcmp(argv[1], "--processes") == 0;
  const unsigned long n = dealt_out ? strtoul(argv[2], NULL, 10) : 0;
  const bool on = dealt_out && argc > 4 && strcmp(argv[3], "--on") == 0;
  const int at = on ? 5 : 3; /* PATH.so */
  if (dealt_out && n >= 2 && n <= RANKS && (argc == at + 1 || argc == at + 2) &&
      (!on || strchr(argv[4], '=') != NULL)) {
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    check_processes(argv[at], argc == at + 2 ? argv[at + 1] : NULL, (uint32_t)n,
                    on ? argv[4] : NULL);
    return conf_finish();
  }
  if (dealt_out || (argc != 2 && argc != 3)) {
    (void)fprintf(stderr, "usage: %s [--processes 2|%d [--on ID=BACKEND.so]] PATH.so [OPTIONS]\n",
                  argv[0], RANKS);
    return 2;
  }
  conf_plugin plugin = conf_open(argv[1], OPIPE_KIND_TRANSPORT, OPIPE_TRANSPORT_ID);
  memset(&s, 0, sizeof(s));
  s.t = (const opipe_transport *)plugin.table;
  s.newer = plugin.plugin->abi_minor > OPIPE_ABI_MINOR;
  s.self = plugin.self;
  s.options = argc == 3 ? argv[2] : NULL;
  check_info(&s);
  check_world_info(&s);
  check_worlds(&s);
  check_reserve(&s);
  if (s.rule <= OPIPE_RULE_STREAM) { /* receives are posted ahead */
    check_depth(&s);
    check_messages(&s);
    check_alike(&s);
  }
  check_one_by_one(&s);
  check_too_large(&s);
  check_rings(&s);
  check_batches(&s);
  check_stream_params(&s);
  check_ways(&s);
  check_leaks(&s);
  check_doorbell(&s);
  check_notify(&s);
  check_reductions(&s);
  check_collectives(&s);
  check_events(&s);
  check_abort(&s);
  conf_close(&plugin);
  return conf_finish();
}
