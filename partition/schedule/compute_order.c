/* SPDX-License-Identifier: Apache-2.0 */
/* The core's side of the schedule interface: a plugin's answers are data and are checked. Records
 * arrive in each rank's order, but ranks may interleave; they are sorted by rank, keeping the order
 * of emission. */
#include "partition/schedule/compute_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/base/nearest.h"
#include "partition/schedule/order.h"
#include "partition/schedule/passes.h"

enum { OPTIONS_MOST = 4096 };
static const double NS_MOST = 1e18;

/* In torch's older dialect B is the gradient of the input, I here. */
static opipe_status check_dialect(const opi_order *order, const char *path, opipe_error *err) {
  const uint32_t n_b = opi_do_list_count(order->list, 1u << OPI_DO_B),
                 n_w = opi_do_list_count(order->list, 1u << OPI_DO_W);
  if (n_b == 0 || n_w == 0 || opi_do_list_count(order->list, 1u << OPI_DO_I) != 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s: %u W and %u B, but no I: a whole B leaves nothing to W; if this is torch's "
                  "older dialect, where B is the input's gradient alone, convert the file first",
                  path, n_w, n_b);
}

/* The order of a file, as CSV, in the arena. */
static opipe_status read_order(const char *path, opi_arena *arena, char **out_text,
                               opipe_error *err) {
  opi_order *order = NULL;
  opi_text text;
  opi_text_init(&text, arena->allocator);
  opipe_status status = opi_order_read_file(path, OPI_DIALECT_OPIPE, arena->allocator, &order, err);
  if (status == OPIPE_OK)
    status = check_dialect(order, path, err);
  if (status == OPIPE_OK)
    status = opi_order_write(order, OPI_ORDER_CSV, OPI_DIALECT_OPIPE, &text, err);
  if (status == OPIPE_OK) {
    *out_text = opi_arena_strndup(arena, text.data, text.n);
    if (*out_text == NULL)
      status = opi_fail_nomem(err, text.n, "a schedule's text");
  }
  opi_text_release(&text);
  opi_order_free(order);
  return status;
}

const char *opi_schedule_plugin(const char *name) {
  return strcmp(name, "file") == 0 ? "csv" : name;
}

static opipe_status split_file(const char *path, opi_arena *arena, const char **out_name,
                               opipe_schedule_setting **out_settings, uint32_t *out_n,
                               opipe_error *err) {
  opipe_schedule_setting *setting = OPI_ARENA_NEW(arena, opipe_schedule_setting);
  char *text = NULL;
  if (setting == NULL)
    return opi_fail_nomem(err, sizeof *setting, "a schedule's option");
  OPI_TRY(read_order(path, arena, &text, err));
  *setting = (opipe_schedule_setting){.key = "text", .value = text};
  *out_name = opi_schedule_plugin("file");
  *out_settings = setting;
  *out_n = 1;
  return OPIPE_OK;
}

opipe_status opi_schedule_split(const char *spec, opi_arena *arena, const char **out_name,
                                opipe_schedule_setting **out_settings, uint32_t *out_n,
                                opipe_error *err) {
  const char *colon = strchr(spec, ':');
  const size_t n_name = colon == NULL ? strlen(spec) : (size_t)(colon - spec);
  char *name = opi_arena_strndup(arena, spec, n_name);
  opipe_schedule_setting *settings = NULL;
  uint32_t n = 0, room = 0;
  if (name == NULL)
    return opi_fail_nomem(err, n_name, "a schedule's name");
  if (colon != NULL && strcmp(name, "file") == 0)
    return split_file(colon + 1, arena, out_name, out_settings, out_n, err);
  if (!opi_text_is_utf8(spec))
    return opi_fail(err, OPIPE_E_INVALID, "schedule '%s': its options are not UTF-8", name);
  for (const char *at = colon == NULL ? "" : colon + 1; *at != '\0';) {
    const char *end = strchr(at, ',');
    const size_t length = end == NULL ? strlen(at) : (size_t)(end - at);
    char *pair = opi_arena_strndup(arena, at, length);
    if (pair == NULL || !opi_arena_grow(arena, (void **)&settings, &room, n + 1, sizeof(*settings)))
      return opi_fail_nomem(err, length, "a schedule's option");
    char *equals = strchr(pair, '=');
    if (equals == NULL || equals == pair) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "schedule '%s': option '%s' is not of the form key=value", name, pair);
    }
    *equals = '\0';
    settings[n++] = (opipe_schedule_setting){.key = pair, .value = equals + 1};
    at += length + (end != NULL);
  }
  *out_name = name;
  *out_settings = settings;
  *out_n = n;
  return OPIPE_OK;
}

/* ---- options ---- */

static bool is_choice(const char *choices, const char *value) {
  const size_t n = strlen(value);
  for (const char *at = choices; at != NULL && *at != '\0';) {
    const char *end = strchr(at, '|');
    const size_t length = end == NULL ? strlen(at) : (size_t)(end - at);
    if (length == n && memcmp(at, value, n) == 0)
      return true;
    at += length + (end != NULL);
  }
  return false;
}

static int64_t whole(double x) {
  return x >= 9.2e18 ? INT64_MAX : x > -9.2e18 ? (int64_t)x : INT64_MIN;
}

static opipe_status check_value(const char *name, const opipe_schedule_option *option,
                                const char *value, opipe_error *err) {
  int64_t number = 0;
  char *end = NULL, meant[OPI_NEAREST_ROOM];
  switch (option->type) {
    case 'i':
      if (opi_parse_int(value, whole(option->min), whole(option->max), &number))
        return OPIPE_OK;
      return opi_fail(err, OPIPE_E_INVALID,
                      "schedule '%s': %s=%s is not an integer in [%.0f, %.0f]", name, option->key,
                      value, option->min, option->max);
    case 'x': {
      const double x = strtod(value, &end);
      if (end != value && *end == '\0' && x >= option->min && x <= option->max)
        return OPIPE_OK;
      return opi_fail(err, OPIPE_E_INVALID, "schedule '%s': %s=%s is not a number in [%g, %g]",
                      name, option->key, value, option->min, option->max);
    }
    case 's':
      if (is_choice(option->choices, value))
        return OPIPE_OK;
      return opi_fail(err, OPIPE_E_INVALID, "schedule '%s': %s=%s is none of %s%s", name,
                      option->key, value, option->choices == NULL ? "" : option->choices,
                      option->choices == NULL
                          ? ""
                          : opi_nearest_of(value, option->choices, "|", meant, sizeof meant));
    default:
      return OPIPE_OK;
  }
}

opipe_status opi_schedule_options(const opi_schedule_ref *schedule,
                                  const opipe_schedule_option **out_options, uint32_t *out_n,
                                  opipe_error *err) {
  const opipe_schedule_option *options = NULL;
  uint32_t n = 0;
  OPI_TRY(OPI_ASK("schedule", schedule, options, err, schedule->self, &options, &n));
  if (n > OPTIONS_MOST || (n != 0 && options == NULL)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "schedule '%s' lists %u options%s; at most %d are possible", schedule->id, n,
                    options == NULL ? ", but their address is NULL" : "", OPTIONS_MOST);
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (options[i].key == NULL)
      return opi_fail(err, OPIPE_E_INVALID, "schedule '%s': option %u has no key", schedule->id, i);
  }
  *out_options = options;
  *out_n = n;
  return OPIPE_OK;
}

/* Refuses the option and lists the known ones. */
static opipe_status no_such_option(const char *id, const char *key,
                                   const opipe_schedule_option *options, uint32_t n,
                                   opipe_error *err) {
  char known[200] = "", meant[OPI_NEAREST_ROOM];
  size_t used = 0;
  opi_nearest nearest = {.word = key, .n = strlen(key)};
  for (uint32_t o = 0; o < n && used < sizeof known; ++o) {
    const int wrote =
        snprintf(known + used, sizeof known - used, "%s%s", o == 0 ? "" : ", ", options[o].key);
    used += wrote < 0 ? 0 : (size_t)wrote;
    opi_nearest_look(&nearest, options[o].key);
  }
  return opi_fail(err, OPIPE_E_NOTFOUND, "schedule '%s' has no option '%.80s': %s%s%s", id, key,
                  n == 0 ? "it has none" : "it has ", known,
                  opi_nearest_words(&nearest, meant, sizeof meant));
}

opipe_status opi_schedule_check_settings(const opi_schedule_ref *schedule,
                                         const opipe_schedule_setting *settings, uint32_t n,
                                         opipe_error *err) {
  const opipe_schedule_option *options = NULL;
  uint32_t n_options = 0;
  OPI_TRY(opi_schedule_options(schedule, &options, &n_options, err));
  for (uint32_t i = 0; i < n; ++i) {
    const opipe_schedule_option *found = NULL;
    for (uint32_t o = 0; o < n_options && found == NULL; ++o) {
      if (strcmp(options[o].key, settings[i].key) == 0)
        found = &options[o];
    }
    if (found == NULL)
      return no_such_option(schedule->id, settings[i].key, options, n_options, err);
    OPI_TRY(check_value(schedule->id, found, settings[i].value, err));
  }
  return OPIPE_OK;
}

/* ---- order ---- */

/* Derives the schedule's own layout from the plan's. rank_of [n_ranks]: for each of the plan's
 * ranks, the layout's rank of which it is a replica or a member of its tensor group; first [at most
 * n_ranks]: the first of each. Returns the number of the layout's ranks. */
static uint32_t layout_ranks(const opi_decision *plan, uint32_t *rank_of, uint32_t *first) {
  const uint32_t n = plan->n_ranks / opi_plan_copies(plan);
  uint32_t n_ranks = 0;
  for (uint32_t r = 0; r < n; ++r) {
    bool begins = plan->shares == NULL && r % opi_plan_width(plan) == 0;
    for (uint32_t s = 0; s < plan->n_stages && !begins; ++s)
      begins = opi_plan_rank(plan, s, 0) == r;
    if (begins)
      first[n_ranks++] = r;
    rank_of[r] = n_ranks == 0 ? 0 : n_ranks - 1;
  }
  return n_ranks;
}

typedef struct collect {
  opi_decision *plan;
  opipe_action *actions; /* a block of its own */
  uint32_t n, room;
  uint32_t first_rank, first_replica, first_microbatch; /* of the current copy */
  uint32_t n_ranks;                                     /* of the layout */
  bool cells;                                           /* idle cells are allowed */
  uint64_t most;                                        /* most records that repeat nothing */
  const uint32_t *first; /* [n_ranks] the plan's rank; the first of replicas that share
                            micro-batches */
  opipe_error why;       /* the first refusal, which plugins may fail to return */
} collect;

static opipe_status make_room(collect *c, uint32_t need, opipe_error *err) {
  uint32_t room = c->room < 64 ? 64 : c->room;
  while (room < need)
    room *= 2;
  if (room == c->room)
    return OPIPE_OK;
  opipe_action *actions =
      opi_resize(c->plan->allocator, c->actions, c->room * sizeof *actions, room * sizeof *actions);
  if (actions == NULL)
    return opi_fail_nomem(err, room * sizeof *actions, "actions");
  c->actions = actions;
  c->room = room;
  return OPIPE_OK;
}

/* Adds the schedule's record to the plan, once or for each replica. */
static opipe_status take_action(collect *c, const opipe_action *given, opipe_error *err) {
  const opi_decision *plan = c->plan;
  const bool cut =
      plan->shares != NULL && given->pass != OPIPE_CELL_IDLE && given->stage < plan->n_stages;
  const uint32_t n = cut ? plan->shares[given->stage] : 1;
  if (given->rank >= c->n_ranks || (plan->shares != NULL && given->replica != 0)) {
    return opi_fail(err, OPIPE_E_INVALID, "schedule '%s', action %u: rank %u of %u, replica %u",
                    plan->schedule.name, c->n, given->rank, c->n_ranks, given->replica);
  }
  if (given->pass == OPIPE_CELL_IDLE && !c->cells) {
    return opi_fail(err, OPIPE_E_INVALID, "schedule '%s', action %u: an idle cell",
                    plan->schedule.name, c->n);
  }
  if (given->reserved != 0) {
    return opi_fail(err, OPIPE_E_INVALID, "schedule '%s', action %u: reserved is %llu, not 0",
                    plan->schedule.name, c->n, (unsigned long long)given->reserved);
  }
  if (n > OPI_ACTIONS_MOST || c->n + n > OPI_ACTIONS_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "schedule '%s' emits more than %d actions",
                    plan->schedule.name, OPI_ACTIONS_MOST);
  }
  if (c->n + n > c->most) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "schedule '%s' emits more than %llu actions: %u stages x %u replicas of %u "
                    "micro-batches have no more",
                    plan->schedule.name, (unsigned long long)c->most, plan->n_stages,
                    plan->n_replicas, plan->n_microbatches);
  }
  OPI_TRY(make_room(c, c->n + n, err));
  for (uint32_t i = 0; i < n; ++i) {
    opipe_action *action = &c->actions[c->n++];
    *action = *given;
    action->rank = c->first_rank + c->first[given->rank] + i;
    action->replica = (uint16_t)(given->replica + c->first_replica + i);
    action->microbatch += c->first_microbatch;
  }
  return OPIPE_OK;
}

static opipe_status take_all(collect *c, const opipe_action *actions, uint32_t n,
                             opipe_error *err) {
  if (n != 0 && actions == NULL) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "schedule '%s', action %u: %u more, but their address is NULL",
                    c->plan->schedule.name, c->n, n);
  }
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(take_action(c, &actions[i], err));
  return OPIPE_OK;
}

static opipe_status take_actions(void *ctx, const opipe_action *actions, uint32_t n,
                                 opipe_error *err) {
  collect *c = ctx;
  if (c->why.status == OPIPE_OK)
    (void)take_all(c, actions, n, &c->why);
  return c->why.status == OPIPE_OK ? OPIPE_OK : opi_fail(err, c->why.status, "%s", c->why.message);
}

static opipe_status sort_by_rank(opi_plan *plan, const collect *c, opipe_error *err) {
  plan->decided.actions = OPI_ARENA_ARRAY(&plan->arena, opipe_action, c->n);
  plan->decided.rank_first =
      OPI_ARENA_ARRAY(&plan->arena, uint32_t, (size_t)plan->decided.n_ranks + 1);
  if (plan->decided.actions == NULL || plan->decided.rank_first == NULL)
    return opi_fail_nomem(err, c->n * sizeof(opipe_action), "actions");
  for (uint32_t i = 0; i < c->n; ++i)
    ++plan->decided.rank_first[c->actions[i].rank + 1];
  for (uint32_t rank = 0; rank < plan->decided.n_ranks; ++rank)
    plan->decided.rank_first[rank + 1] += plan->decided.rank_first[rank];
  for (uint32_t i = 0; i < c->n; ++i) /* meanwhile: the index for the rank's next record */
    plan->decided.actions[plan->decided.rank_first[c->actions[i].rank]++] = c->actions[i];
  for (uint32_t rank = plan->decided.n_ranks; rank > 0; --rank)
    plan->decided.rank_first[rank] = plan->decided.rank_first[rank - 1];
  plan->decided.rank_first[0] = 0;
  plan->decided.n_actions = c->n;
  return OPIPE_OK;
}

/* Replicas of a stage, as the schedule knows them. */
static uint32_t replicas_known(const opi_decision *plan) {
  return plan->shares != NULL ? 1 : plan->n_replicas / opi_plan_copies(plan);
}

/* Spreads the plan's per-stage values over the schedule's instances; at least 1 for a stage with
 * work. */
static uint64_t *per_instance(const opi_decision *plan, opi_arena *scratch, const double *ns) {
  const uint32_t n_replicas = replicas_known(plan), n = plan->n_stages * n_replicas;
  uint64_t *out = OPI_ARENA_ARRAY(scratch, uint64_t, n);
  for (uint32_t i = 0; out != NULL && i < n; ++i) {
    const uint32_t s = i / n_replicas;
    const double own = ns[s] / (plan->shares == NULL ? 1 : plan->shares[s]);
    out[i] = own < 1 ? 1 : own < NS_MOST ? (uint64_t)own : (uint64_t)NS_MOST;
  }
  return out;
}

/* Describes one copy: its problem and layout. Fills first [n_ranks] up to the number of its ranks.
 */
static opipe_status describe_problem(const opi_plan *plan, const opi_order_wish *wish,
                                     opi_arena *scratch, opipe_layout *layout,
                                     opipe_schedule_problem *problem, uint32_t *first,
                                     opipe_error *err) {
  const uint32_t n_replicas = replicas_known(&plan->decided),
                 n = plan->decided.n_stages * n_replicas;
  uint32_t *rank_of = OPI_ARENA_ARRAY(scratch, uint32_t, plan->decided.n_ranks);
  if (rank_of == NULL)
    return opi_fail_nomem(err, plan->decided.n_ranks * sizeof *rank_of, "a schedule");
  const uint32_t n_ranks = layout_ranks(&plan->decided, rank_of, first);
  double *ones = OPI_ARENA_ARRAY(scratch, double, plan->decided.n_stages);
  uint64_t *zeros = OPI_ARENA_ARRAY(scratch, uint64_t, n);
  uint64_t *transfer = OPI_ARENA_ARRAY(scratch, uint64_t, n);
  uint64_t *stash = OPI_ARENA_ARRAY(scratch, uint64_t, n);
  uint64_t *free_bytes = OPI_ARENA_ARRAY(scratch, uint64_t, n_ranks);
  uint32_t *ranks = OPI_ARENA_ARRAY(scratch, uint32_t, n);
  if (ones == NULL || zeros == NULL || transfer == NULL || stash == NULL || free_bytes == NULL ||
      ranks == NULL)
    return opi_fail_nomem(err, n * sizeof(uint64_t), "a schedule");
  const double *forward =
      plan->predicted.times.stage_ns == NULL ? ones : plan->predicted.times.stage_ns;
  *problem = (opipe_schedule_problem){
      .struct_size = (uint32_t)OPIPE_END(opipe_schedule_problem, rank_memory_bytes),
      .mode = opi_plan_mode(&plan->decided),
      .n_settings = plan->decided.schedule.n_settings,
      .settings = plan->decided.schedule.settings,
      .layout = layout,
      .forward_ns = per_instance(&plan->decided, scratch, forward),
      .backward_input_ns = zeros,
      .backward_weight_ns = zeros,
      .transfer_ns = transfer,
      .stash_bytes = stash,
      .rank_memory_bytes = free_bytes};
  if (opi_plan_trains(&plan->decided) && plan->predicted.times.input_ns != NULL &&
      plan->predicted.times.weight_ns != NULL) {
    problem->backward_input_ns =
        per_instance(&plan->decided, scratch, plan->predicted.times.input_ns);
    problem->backward_weight_ns =
        per_instance(&plan->decided, scratch, plan->predicted.times.weight_ns);
  }
  if (problem->forward_ns == NULL || problem->backward_input_ns == NULL ||
      problem->backward_weight_ns == NULL)
    return opi_fail_nomem(err, n * sizeof(uint64_t), "a schedule");
  for (uint32_t r = 0; r < n_ranks; ++r)
    free_bytes[r] = UINT64_MAX;
  for (uint32_t r = 0;
       wish->free_bytes != NULL && r < plan->decided.n_ranks / opi_plan_copies(&plan->decided);
       ++r) {
    if (wish->free_bytes[r] < free_bytes[rank_of[r]])
      free_bytes[rank_of[r]] = wish->free_bytes[r];
  }
  for (uint32_t i = 0; i < n; ++i) {
    stash[i] = plan->predicted.stage_stash_bytes == NULL
                   ? 0
                   : plan->predicted.stage_stash_bytes[i / n_replicas];
    transfer[i] = wish->transfer_ns;
    ranks[i] = rank_of[opi_plan_rank(&plan->decided, i / n_replicas, i % n_replicas)];
  }
  *layout = (opipe_layout){.struct_size = (uint32_t)OPIPE_END(opipe_layout, slice_lengths),
                           .n_ranks = n_ranks,
                           .n_stages = plan->decided.n_stages,
                           .n_replicas = n_replicas,
                           .n_slices = plan->decided.n_slices == 0 ? 1 : plan->decided.n_slices,
                           .n_parts = plan->decided.n_parts == 0 ? 1 : plan->decided.n_parts,
                           .versions = plan->decided.versions,
                           .sync = plan->decided.sync,
                           .in_flight = plan->decided.in_flight,
                           .instance_room = n,
                           .instance_rank = ranks,
                           .slice_lengths = plan->decided.slice_lengths};
  return OPIPE_OK;
}

/* Counts a forward, two half backwards per part, and an update. Idle cells have no limit. */
static uint64_t most_actions(const opi_decision *plan, const opipe_layout *layout, bool cells) {
  const uint64_t instances = (uint64_t)plan->n_stages * plan->n_replicas;
  const uint64_t each = (uint64_t)layout->n_slices * (1 + 2 * (uint64_t)layout->n_parts);
  const uint64_t n = instances * plan->n_microbatches; /* below 2^48: see OPI_ACTIONS_MOST */
  return cells || n > OPI_ACTIONS_MOST || each > OPI_ACTIONS_MOST ? UINT64_MAX
                                                                  : n * each + instances;
}

/* Every stage has a forward of every micro-batch. */
opipe_status opi_schedule_limit(const opi_decision *plan, opipe_error *err) {
  const uint64_t n = (uint64_t)plan->n_stages * plan->n_microbatches;
  return n <= OPI_ACTIONS_MOST
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_LIMIT,
                        "%u stages x %u micro-batches are %llu forwards: at most %d actions are "
                        "possible",
                        plan->n_stages, plan->n_microbatches, (unsigned long long)n,
                        OPI_ACTIONS_MOST);
}

static opipe_status order(const opi_schedule_ref *schedule, const opi_order_wish *wish,
                          opi_plan *plan, opi_arena *scratch, opipe_error *err) {
  const bool with_cells = wish->cells;
  const struct {
    const opipe_schedule_cells *table;
    const char *id;
  } with_idle = {schedule->cells, schedule->id};
  opipe_layout layout;
  opipe_schedule_problem problem;
  uint32_t *first = OPI_ARENA_ARRAY(scratch, uint32_t, plan->decided.n_ranks);
  if (first == NULL)
    return opi_fail_nomem(err, plan->decided.n_ranks * sizeof *first, "a schedule");
  OPI_TRY(opi_schedule_limit(&plan->decided, err));
  OPI_TRY(describe_problem(plan, wish, scratch, &layout, &problem, first, err));
  collect c = {.plan = &plan->decided,
               .n_ranks = layout.n_ranks,
               .cells = with_cells,
               .first = first,
               .why = OPIPE_ERROR_INIT};
  c.most = most_actions(&plan->decided, &layout, with_cells);
  if (with_cells && schedule->cells == NULL)
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "schedule '%s' has no table", schedule->id);
  plan->decided.n_actions = 0;
  opipe_status status = OPIPE_OK;
  for (uint32_t k = 0; status >= 0 && k < opi_plan_copies(&plan->decided); ++k) {
    problem.n_microbatches = opi_plan_copy_share(&plan->decided, k);
    if (problem.n_microbatches == 0)
      continue; /* copies take requests in turn */
    c.first_rank = k * layout.n_ranks * opi_plan_width(&plan->decided);
    c.first_replica = k * layout.n_replicas;
    status = with_cells ? OPI_ASK("schedule", &with_idle, cells, err, schedule->self, &problem,
                                  take_actions, &c)
                        : OPI_ASK("schedule", schedule, plan, err, schedule->self, &problem,
                                  take_actions, &c);
    if (status >= 0 && c.why.status < 0)
      status = opi_fail(err, c.why.status, "%s", c.why.message);
    c.first_microbatch += problem.n_microbatches;
  }
  if (status >= 0)
    status = sort_by_rank(plan, &c, err);
  opi_free(plan->decided.allocator, c.actions, c.room * sizeof *c.actions);
  return status;
}

opipe_status opi_schedule_order(const opi_schedule_ref *schedule, const opi_order_wish *wish,
                                opi_plan *plan, opipe_error *err) {
  opi_arena scratch;
  opi_arena_init(&scratch, plan->decided.allocator, 0);
  const opipe_status status = order(schedule, wish, plan, &scratch, err);
  opi_arena_release(&scratch);
  return status;
}

opi_problem opi_plan_problem(const opi_decision *plan) {
  const bool slices = plan->n_slices > 1;
  return (opi_problem){.n_ranks = plan->n_ranks,
                       .n_stages = plan->n_stages,
                       .n_replicas = plan->n_replicas,
                       .n_microbatches = plan->n_microbatches,
                       .n_slices = slices ? plan->n_slices : 1,
                       .n_parts = plan->n_parts == 0 ? 1 : plan->n_parts,
                       .mode = opi_plan_mode(plan),
                       .versions = plan->versions,
                       .sync = plan->sync,
                       .instance_rank = plan->instance_rank,
                       .stage_shares = plan->shares,
                       .slice_lengths = slices ? plan->slice_lengths : NULL};
}
