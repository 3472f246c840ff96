/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of schedule plugins: conformance-schedule PATH.so [key=value ...]
 *
 * For every small number of ranks and micro-batches: the layout is pure and in range; the order is
 * pure, complete, and can be executed by ranks that each follow their own list, whatever stages
 * cost; errors of the sink are handed on; nothing is read behind what the headers have. A
 * constraint that a case misses must be an error with a message, never a bad plan.
 */
#include "schedule_kit.h"
#include "schedule_options.h"
#include "schedule_run.h"

enum { SLICES_MOST = 4096, PARTS_MOST = 255, IN_FLIGHT_MOST = 65536 };

/* False: too odd to go on with. */
static bool check_layout(const opipe_layout *l, const uint32_t *rank, const request *q) {
  const uint64_t n = (uint64_t)l->n_stages * l->n_replicas;
  if (!conf_check(l->n_ranks > 0 && n > 0 && n <= INSTANCES_MOST && l->n_ranks <= INSTANCES_MOST,
                  "%u ranks, %u stages, %u replicas; there is room for %d instances", l->n_ranks,
                  l->n_stages, l->n_replicas, (int)INSTANCES_MOST) ||
      !conf_check(l->n_slices <= SLICES_MOST && l->n_parts <= PARTS_MOST, "%u slices, %u parts",
                  l->n_slices, l->n_parts))
    return false;
  conf_check(q->ranks == 0 || l->n_ranks == q->ranks, "%u ranks were asked for, %u are laid out",
             q->ranks, l->n_ranks);
  conf_check(q->stages == 0 || l->n_stages == q->stages,
             "%u stages were asked for, %u are laid out", q->stages, l->n_stages);
  conf_check(l->versions <= OPIPE_VERSIONS_DOUBLE_BUFFERED && l->sync <= OPIPE_SYNC_EAGER_OPT,
             "versions %u, sync %u", l->versions, l->sync);
  conf_check(q->mode == OPIPE_MODE_TRAIN || parts_of(l) == 1, "%u parts of a forward", l->n_parts);
  conf_check(l->in_flight <= IN_FLIGHT_MOST, "in_flight %u, at most %d", l->in_flight,
             (int)IN_FLIGHT_MOST);
  for (uint32_t i = 0; i < slices_of(l) && l->slice_lengths != NULL; ++i)
    conf_check(l->slice_lengths[i] > 0, "slice %u has no tokens", i);
  bool sound = true;
  for (uint32_t i = 0; i < n; ++i) {
    sound = conf_check(rank[i] < l->n_ranks, "stage %u is on rank %u of %u", i / l->n_replicas,
                       rank[i], l->n_ranks) &&
            sound;
  }
  return sound;
}

/* Again with exactly the room that it needs, then with too little. */
static void check_room(const subject *s, const request *q, const opipe_layout *l,
                       const uint32_t *rank) {
  static uint32_t again[INSTANCES_MOST];
  const uint32_t n = l->n_stages * l->n_replicas;
  opipe_layout twin;
  opipe_error err = OPIPE_ERROR_INIT;
  conf_ok(lay_out(s, q, again, n, &twin, &err), &err, "layout, again");
  conf_check(twin.n_stages == l->n_stages && twin.n_ranks == l->n_ranks &&
                 twin.n_replicas == l->n_replicas && twin.n_slices == l->n_slices &&
                 twin.n_parts == l->n_parts && twin.versions == l->versions &&
                 twin.sync == l->sync && twin.in_flight == l->in_flight &&
                 memcmp(rank, again, n * sizeof(*rank)) == 0,
             "layout is not pure");
  if (n > 1) {
    conf_error(lay_out(s, q, again, n - 1, &twin, &err), OPIPE_E_LIMIT, &err,
               "layout without room");
    conf_check(twin.n_stages == l->n_stages && twin.n_replicas == l->n_replicas,
               "layout without room does not say what it needs");
  }
}

/* Pure, and nothing is kept for every call. */
static void check_again(const subject *s, const subject *other, const request *q,
                        const opipe_layout *l, const recorded *first) {
  static recorded second;
  opipe_error err = OPIPE_ERROR_INIT;
  const uint64_t before = conf_live_bytes();
  second.fail_after = UINT32_MAX;
  for (uint32_t i = 0; i < 2; ++i) {
    const subject *whom = i == 0 ? s : other;
    conf_ok(order(whom, q->mode, l, q->m, 0, &second, &err), &err, "plan, again");
    conf_check(first->n == second.n &&
                   memcmp(first->actions, second.actions, first->n * sizeof(opipe_action)) == 0,
               i == 0 ? "plan is not pure" : "plan is not pure: another instance's is another");
    if (i == 0) {
      conf_check(conf_live_bytes() <= before, "plan, again, keeps %llu bytes",
                 (unsigned long long)(conf_live_bytes() - before));
    }
  }
  static const opipe_status failures[] = {OPIPE_E_CANCELLED, OPIPE_E_IO};
  for (uint32_t i = 0; i < 2 && first->n > 1; ++i) {
    second.fail_after = i == 0 ? first->n / 2 : 0;
    second.fail_with = failures[i];
    conf_check(order(s, q->mode, l, q->m, 0, &second, &err) == failures[i],
               "plan does not hand on its sink's error");
    conf_check(conf_live_bytes() <= before, "plan keeps %llu bytes when its sink fails",
               (unsigned long long)(conf_live_bytes() - before));
  }
}

static void check_case(const subject *s, const subject *other, const request *q,
                       uint32_t *io_accepted) {
  static uint32_t rank[INSTANCES_MOST];
  static recorded first, whole;
  static char name[128];
  opipe_layout l;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)snprintf(name, sizeof(name), "%s, %u ranks, %u stages, %u micro-batches",
                 q->mode == OPIPE_MODE_TRAIN ? "train" : "forward", q->ranks, q->stages, q->m);
  conf_case(name);
  const opipe_status status = lay_out(s, q, rank, INSTANCES_MOST, &l, &err);
  if (status != OPIPE_OK) { /* a constraint: must be said */
    if (conf_refused(status, &err, "layout fails, but")) {
      conf_check(status == OPIPE_E_INVALID || status == OPIPE_E_UNSUPPORTED,
                 "layout fails with %d (%s)", (int)status, err.message);
    }
    return;
  }
  ++*io_accepted;
  if (!check_layout(&l, rank, q))
    return;
  check_room(s, q, &l, rank);
  for (uint64_t spread = 5000; spread <= 5000; spread -= 5000) { /* then of equal cost */
    first.fail_after = UINT32_MAX;
    if (!conf_ok(order(s, q->mode, &l, q->m, spread, &first, &err), &err, "plan"))
      return;
    check_flags(q->mode, &first);
    const uint32_t steps = unroll(&l, q->m, &first, &whole);
    execute(&l, rank, q->mode, q->m * steps, &whole);
  }
  check_again(s, other, q, &l, &first);
}

static uint32_t check_mode(const subject *s, const subject *other, uint32_t mode) {
  uint32_t accepted = 0;
  for (uint32_t n = 1; n <= RANKS_MOST; ++n) {
    for (uint32_t m = 1; m <= MICROBATCHES_MOST; ++m) {
      const request requests[] = {{mode, n, 0, m}, {mode, 0, n, m}, {mode, n, 2 * n, m}};
      for (uint32_t i = 0; i < 3; ++i)
        check_case(s, other, &requests[i], &accepted);
    }
  }
  return accepted;
}

/* How many cases were accepted. */
static uint32_t check_modes(const subject *s, const subject *other) {
  static uint32_t rank[INSTANCES_MOST];
  const request unknown = {99, 2, 0, 2};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_layout l;
  const uint32_t forward = check_mode(s, other, OPIPE_MODE_FORWARD),
                 train = check_mode(s, other, OPIPE_MODE_TRAIN);
  conf_case("modes");
  conf_check(forward > 0, "no forward case was accepted: every schedule has a forward form");
  if (train == 0)
    conf_skip("no training case was accepted");
  const opipe_status status = lay_out(s, &unknown, rank, INSTANCES_MOST, &l, &err);
  if (status >= 0)
    conf_skip("a mode that is none is laid out as another: a newer host may mean something by it");
  else
    (void)conf_refused(status, &err, "a mode that is none");
  return forward + train;
}

int main(int argc, char **argv) {
  subject s, other;
  static char text[SETTINGS_MOST][128];
  uint32_t n_options = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  if (argc < 2 || argc > 1 + SETTINGS_MOST) {
    (void)fprintf(stderr, "usage: %s PATH.so [key=value ...]\n", argv[0]);
    return 2;
  }
  conf_plugin plugin = conf_open(argv[1], OPIPE_KIND_SCHEDULE, OPIPE_SCHEDULE_ID);
  memset(&s, 0, sizeof(s));
  s.table = plugin.table;
  s.self = plugin.self;
  for (int i = 2; i < argc; ++i) {
    (void)snprintf(text[i - 2], sizeof(text[0]), "%s", argv[i]);
    char *equals = strchr(text[i - 2], '=');
    if (equals == NULL) {
      (void)fprintf(stderr, "%s: '%s' is no setting: KEY=VALUE is needed\n", argv[0], argv[i]);
      return 2;
    }
    *equals = '\0';
    s.settings[s.n_settings++] = (opipe_schedule_setting){text[i - 2], equals + 1};
  }
  const opipe_schedule_option *options = check_options(&s, &n_options);
  const char *wrong = check_settings(&s, options, n_options);
  if (wrong != NULL) {
    (void)fprintf(stderr, "%s: a setting %s\n", argv[0], wrong);
    return 2;
  }
  other = s;
  if (conf_made(plugin.plugin->open(&conf_host, &other.self, &err), &other.self, &err, "open")) {
    if (check_modes(&s, &other) > 0)
      check_effects(&s, options, n_options);
    plugin.plugin->close(other.self);
  }
  conf_close(&plugin);
  return conf_finish();
}
