/* SPDX-License-Identifier: Apache-2.0 */
/* Lists executed over transport-emulated under each of its rules: what the proof accepts runs to
 * the end, what it refuses stands still or is refused by the transport. ctest: timeout=120
 */
#include "abi/registry/registry.h"
#include "tests/partition/schedule/replay.h"

enum { DEPTH = 64, STREAMS_MOST = 64 };

static made m;

/* Messages of a stream are numbered in the sender's order. */
typedef struct line {
  opipe_stream *ends[2]; /* sender's, receiver's */
} line;

typedef struct driver {
  replay r;
  const opipe_transport *table;
  opipe_world *world;
  opipe_endpoint *endpoints[REPLAY_RANKS];
  line lines[STREAMS_MOST];         /* (stage * 2 + backward) of the sender */
  uint64_t *sequence;               /* [n_items] of messages */
  uint8_t *sent;                    /* [n_items] accepted */
  uint32_t n_waiting, waiting[256]; /* sends that were tried, in order */
} driver;

static void open_lines(driver *d) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_problem *p = d->r.p;
  for (uint32_t k = 0; k < p->n_stages * 2; ++k) {
    const uint32_t stage = k / 2, other = k % 2 == 0 ? stage + 1 : stage - 1;
    if (other >= p->n_stages || p->instance_rank[stage] == p->instance_rank[other])
      continue;
    const opipe_stream_params params = {.struct_size = sizeof(params),
                                        .kind = k % 2,
                                        .src_rank = p->instance_rank[stage],
                                        .dst_rank = p->instance_rank[other],
                                        .src_stage = stage,
                                        .dst_stage = other,
                                        .depth = DEPTH};
    OPI_ASSERT_OK_FATAL(
        d->table->stream_open(d->endpoints[params.src_rank], &params, &d->lines[k].ends[0], &err),
        &err);
    OPI_ASSERT_OK_FATAL(
        d->table->stream_open(d->endpoints[params.dst_rank], &params, &d->lines[k].ends[1], &err),
        &err);
  }
}

static void open_world(driver *d, opipe_instance *self, uint32_t rule) {
  opipe_error err = OPIPE_ERROR_INIT;
  char options[32];
  (void)snprintf(options, sizeof options, "rule=%s", opi_rule_name(rule));
  const opipe_world_params params = {sizeof(params), d->r.p->n_ranks, options};
  OPI_ASSERT_OK_FATAL(d->table->world_open(self, &params, &d->world, &err), &err);
  for (uint32_t rank = 0; rank < d->r.p->n_ranks; ++rank) {
    const opipe_endpoint_params own = {.struct_size = sizeof(own), .rank = rank};
    OPI_ASSERT_OK_FATAL(d->table->endpoint_open(d->world, &own, &d->endpoints[rank], &err), &err);
  }
  open_lines(d);
}

static void close_world(driver *d) {
  for (uint32_t k = 0; k < STREAMS_MOST; ++k) {
    d->table->stream_close(d->lines[k].ends[0]);
    d->table->stream_close(d->lines[k].ends[1]);
  }
  for (uint32_t rank = 0; rank < d->r.p->n_ranks; ++rank)
    d->table->endpoint_close(d->endpoints[rank]);
  d->table->world_close(d->world);
}

/* The sending item of a message's either end. */
static uint32_t sender_of(const driver *d, uint32_t item) {
  return replay_sends(&d->r.list->items[item]) ? item : replay_counterpart(&d->r, item);
}

static line *line_of(driver *d, uint32_t item) {
  const opi_do *a = &d->r.list->items[sender_of(d, item)];
  return &d->lines[a->stage * 2 + (a->kind == OPI_DO_SEND_B)];
}

static void number_messages(driver *d) {
  const opi_do_list *list = d->r.list;
  for (uint32_t i = 0; i < list->n_items; ++i) {
    if (!opi_do_is_message(list->items[i].kind))
      continue;
    const uint32_t send = sender_of(d, i);
    for (uint32_t k = list->rank_first[replay_rank(&d->r, send)]; k < send; ++k)
      d->sequence[i] += list->items[k].kind == list->items[send].kind &&
                        list->items[k].stage == list->items[send].stage;
  }
}

/* OK, PENDING, or an error: the rule is broken. */
static opipe_status try_send(driver *d, uint32_t item) {
  const opipe_region nothing = {0};
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status =
      d->table->send(line_of(d, item)->ends[0], d->sequence[item], &nothing, NULL, NULL, &err);
  d->sent[item] = d->sent[item] || status == OPIPE_OK;
  return status;
}

static opipe_status arrived(driver *d, uint32_t item) {
  opipe_error err = OPIPE_ERROR_INIT;
  const bool sends = replay_sends(&d->r.list->items[item]);
  if (sends && d->sent[item] == 0)
    return OPIPE_PENDING;
  return d->table->test(line_of(d, item)->ends[!sends], d->sequence[item], &err);
}

/* An earlier send of the same stream waits: streams take them in order. */
static bool behind(const driver *d, uint32_t item) {
  for (uint32_t i = 0; i < d->n_waiting; ++i) {
    const opi_do *a = &d->r.list->items[d->waiting[i]], *b = &d->r.list->items[item];
    if (d->waiting[i] == item)
      return false;
    if (d->r.rule == OPI_RULE_STREAM && a->kind == b->kind && a->stage == b->stage)
      return true;
  }
  return false;
}

static opipe_status retry_sends(driver *d, bool *io_moved) {
  uint32_t kept = 0;
  const uint32_t n = d->n_waiting;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t item = d->waiting[i];
    const opipe_status status = behind(d, item) ? OPIPE_PENDING : try_send(d, item);
    if (status < 0)
      return status;
    if (status == OPIPE_PENDING)
      d->waiting[kept++] = item;
    *io_moved = *io_moved || status == OPIPE_OK;
    memmove(&d->waiting[kept], &d->waiting[i + 1], (n - i - 1) * sizeof(uint32_t));
    d->n_waiting = kept + (n - i - 1);
    memmove(&d->waiting[i + 1], &d->waiting[kept], (n - i - 1) * sizeof(uint32_t));
  }
  d->n_waiting = kept;
  return OPIPE_OK;
}

/* Is everything that compute `item` reads from other ranks there? */
static opipe_status inputs(driver *d, uint32_t item) {
  const opi_do *a = &d->r.list->items[item];
  const bool forward = a->kind == OPI_DO_F;
  if (a->kind == OPI_DO_W || (forward && a->stage == 0) ||
      (!forward && a->stage + 1 == d->r.p->n_stages))
    return OPIPE_OK;
  const uint32_t other = forward ? a->stage - 1 : a->stage + 1;
  if (d->r.p->instance_rank[other] == replay_rank(&d->r, item))
    return replay_done(&d->r,
                       replay_find(&d->r, forward ? OPI_DO_F : OPI_DO_I, other, a->microbatch))
               ? OPIPE_OK
               : OPIPE_PENDING;
  const uint32_t receive =
      replay_find(&d->r, forward ? OPI_DO_RECV_F : OPI_DO_RECV_B, a->stage, a->microbatch);
  return replay_done(&d->r, receive) ? arrived(d, receive) : OPIPE_PENDING;
}

/* Tests the messages in front of a compute, which closes their group. */
static bool group_ended(driver *d, uint32_t rank, uint32_t item) {
  bool ended = true;
  for (uint32_t i = item; i-- > d->r.list->rank_first[rank];) {
    if (!opi_do_is_message(d->r.list->items[i].kind))
      break;
    ended = arrived(d, i) == OPIPE_OK && ended;
  }
  return ended;
}

static opipe_status step(driver *d, uint32_t rank) {
  const uint32_t item = d->r.at[rank];
  const opi_do *a = &d->r.list->items[item];
  const opipe_region nothing = {0};
  opipe_error err = OPIPE_ERROR_INIT;
  if (!opi_do_is_message(a->kind)) {
    if (d->r.rule == OPI_RULE_GROUPED && !group_ended(d, rank, item))
      return OPIPE_PENDING;
    if (a->kind != OPI_DO_F &&
        !replay_done(&d->r, replay_find(&d->r, a->kind == OPI_DO_W ? OPI_DO_I : OPI_DO_F, a->stage,
                                        a->microbatch)))
      return OPIPE_PENDING;
    return inputs(d, item);
  }
  if (!replay_sends(a))
    return d->table->recv(line_of(d, item)->ends[1], d->sequence[item], &nothing, NULL, &err);
  if (!replay_produced(&d->r, item))
    return OPIPE_PENDING;
  d->waiting[d->n_waiting++] = item;
  const opipe_status status = behind(d, item) ? OPIPE_PENDING : try_send(d, item);
  if (status == OPIPE_OK)
    --d->n_waiting;
  return status < 0 ? status : OPIPE_OK; /* it waits in the background */
}

/* Groups end with a test, also those of sends that wait: rounds until nothing moves. */
static bool drive(driver *d) {
  const opi_do_list *list = d->r.list;
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
      opipe_status status = retry_sends(d, &moved);
      while (status == OPIPE_OK && d->r.at[rank] < list->rank_first[rank + 1]) {
        status = step(d, rank);
        if (status == OPIPE_OK) {
          ++d->r.at[rank];
          moved = true;
        }
      }
      if (status < 0)
        return false;
    }
  }
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    if (d->r.at[rank] < list->rank_first[rank + 1])
      return false;
  }
  for (uint32_t i = 0; i < list->n_items; ++i) {
    if (opi_do_is_message(list->items[i].kind) && arrived(d, i) != OPIPE_OK)
      return false;
  }
  return true;
}

static bool runs(const opi_plugin_ref *transport, const opi_do_list *list, uint32_t rule) {
  driver d = {.r = {.p = &m.problem, .list = list, .rule = rule},
              .table = transport->table,
              .sequence = calloc(list->n_items, sizeof(uint64_t)),
              .sent = calloc(list->n_items, 1)};
  memcpy(d.r.at, list->rank_first, list->n_ranks * sizeof(uint32_t));
  open_world(&d, transport->self, rule);
  number_messages(&d);
  const bool good = drive(&d);
  close_world(&d);
  free(d.sequence);
  free(d.sent);
  return good;
}

static void test_the_transport_agrees_with_the_proof(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_registry *registry = NULL;
  opi_plugin_ref transport;
  const opi_registry_params params = {.allocator = opi_allocator_system()};
  opi_test_random random = {99};
  uint32_t ran[OPI_RULES] = {0}, stood[OPI_RULES] = {0};
  OPI_ASSERT_OK_FATAL(opi_registry_create(&params, &registry, &err), &err);
  OPI_ASSERT_OK_FATAL(
      opi_registry_find(registry, OPIPE_KIND_TRANSPORT, "emulated", &transport, &err), &err);
  for (uint32_t round = 0; round < 240; ++round) {
    opi_do_list *list = NULL, *sent = NULL, *placed = NULL;
    const uint32_t ranks = 2 + round % 3, stages = ranks + round % 4;
    replay_random(&m, &random, ranks, stages, 1 + round % 5, round % 3 == 0);
    list = made_list(&m);
    OPI_ASSERT_OK_FATAL(opi_pass_messages(&m.problem, list, opi_allocator_system(), &sent, &err),
                        &err);
    OPI_ASSERT_OK_FATAL(
        opi_pass_defer(&m.problem, sent, 1 + round % 2, opi_allocator_system(), &placed, &err),
        &err);
    if (round % 2 == 1)
      replay_perturb(placed, &random, 1 + round % 5);
    for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
      opi_proof proof = {0};
      const bool proven = opi_proof_check(&m.problem, placed, rule, opi_allocator_system(), &proof,
                                          &err) == OPIPE_OK;
      const bool found = runs(&transport, placed, rule);
      ++(found ? ran : stood)[rule];
      if (proven != found)
        OPI_FAIL("round %u, rule %s: the transport %s, the proof says %s", round,
                 opi_rule_name(rule), found ? "runs" : "stands still",
                 proven ? "yes" : err.message);
    }
    opi_do_list_free(placed);
    opi_do_list_free(sent);
    opi_do_list_free(list);
  }
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule)
    OPI_ASSERT(ran[rule] > 20 && stood[rule] > 20);
  opi_registry_free(registry);
}

OPI_TEST_MAIN("lists over the emulated transport",
              OPI_TEST(test_the_transport_agrees_with_the_proof))
