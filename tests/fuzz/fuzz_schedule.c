/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the proof: the bytes choose stages, replicas, slices, parts, an order, how its receives
 * are placed and which neighbours are swapped or moved. An order that the proof accepts under a
 * rule must run in every interleaving (of small lists), and over the emulated transport under that
 * rule; one that it refuses must block in some interleaving, and the refusal must give the cycle.
 */
#include "abi/registry/registry.h"
#include "opipe/transport.h"
#include "tests/fuzz/must.h"
#include "tests/partition/schedule/drive.h"
#include "tests/partition/schedule/random_order.h"

enum { STATES_MOST = REPLAY_STATES / 16 };

/* ---- counts ---- */

static struct {
  uint64_t orders, refused_orders, lists, searched, accepted[OPI_RULES], refused[OPI_RULES];
} seen;

__attribute__((destructor)) static void report(void) {
  (void)fprintf(stderr, "%llu orders (%llu perturbed ones refused), %llu lists, %llu searched",
                (unsigned long long)seen.orders, (unsigned long long)seen.refused_orders,
                (unsigned long long)seen.lists, (unsigned long long)seen.searched);
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
    (void)fprintf(stderr, "; %s: %llu run, %llu refused", opi_rule_name(rule),
                  (unsigned long long)seen.accepted[rule], (unsigned long long)seen.refused[rule]);
  }
  (void)fprintf(stderr, "\n");
}

extern const opipe_plugin *const opi_static_plugins[];

static opi_plugin_ref open_transport(void) {
  static opi_registry *registry;
  static opi_plugin_ref ref;
  opipe_error err = OPIPE_ERROR_INIT;
  if (registry != NULL)
    return ref;
  const opi_registry_params params = {.allocator = opi_allocator_system(), .only_static = true};
  must(opi_registry_create(&params, &registry, &err) >= 0, err.message);
  for (uint32_t i = 0; opi_static_plugins[i] != NULL; ++i)
    must(opi_registry_add_static(registry, opi_static_plugins[i], &err) >= 0, err.message);
  must(opi_registry_find(registry, OPIPE_KIND_TRANSPORT, "emulated", &ref, &err) >= 0, err.message);
  return ref;
}

static void perturb_list(opi_do_list *list, random_bytes *b) {
  for (uint32_t n = random_take(b, 4); n > 0; --n) {
    const uint32_t rank = random_take(b, list->n_ranks);
    const uint32_t count = list->rank_first[rank + 1] - list->rank_first[rank];
    if (count < 2)
      continue;
    opi_do *a = &list->items[list->rank_first[rank] + random_take(b, count - 1)];
    const opi_do held = *a;
    a[0] = a[1];
    a[1] = held;
  }
}

/* ---- judged ---- */

static void refused(const opipe_error *err, opipe_status status) {
  must(status == OPIPE_E_INVALID && err->message[0] != '\0', "a refusal without a reason");
  must(strncmp(err->message, "deadlock", 8) != 0 || strstr(err->message, " waits for ") != NULL,
       "a deadlock without its cycle");
}

/* The list that something is wrong with, before the end. */
static void must_hold(bool condition, const char *what, const random_order *m,
                      const opi_do_list *list, uint32_t rule) {
  char text[64];
  for (uint32_t rank = 0; !condition && rank < list->n_ranks; ++rank) {
    (void)fprintf(stderr, "rank %u:", rank);
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i)
      (void)fprintf(stderr, " %s", opi_do_text(&m->problem, &list->items[i], text, sizeof text));
    (void)fprintf(stderr, "\n");
  }
  if (!condition)
    (void)fprintf(stderr, "rule %s, ", opi_rule_name(rule));
  must(condition, what);
}

static void compare(const random_order *m, const opi_do_list *list,
                    const opi_plugin_ref *transport) {
  const bool small = replay_states(list) <= STATES_MOST;
  ++seen.lists;
  seen.searched += small;
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
    opipe_error err = OPIPE_ERROR_INIT, other = OPIPE_ERROR_INIT;
    opi_proof proof = {0};
    uint32_t states = 0;
    opipe_status opened = OPIPE_OK;
    const opipe_status status =
        opi_proof_check(&m->problem, list, rule, opi_allocator_system(), &proof, &err);
    ++(status >= 0 ? seen.accepted : seen.refused)[rule];
    if (status < 0)
      refused(&err, status);
    if (small) {
      must_hold((status >= 0) == replay_all(&m->problem, list, rule, &states),
                status >= 0 ? "the proof accepts what stands still" : err.message, m, list, rule);
    }
    const bool ran =
        drive_runs(transport->table, transport->self, &m->problem, list, rule, &opened, &other);
    must(opened >= 0, other.message);
    must_hold(ran == (status >= 0), ran ? err.message : "the proof accepts what does not run", m,
              list, rule);
  }
}

static void lower(const random_order *m, const opi_do_list *order, random_bytes *b,
                  const opi_plugin_ref *transport) {
  const opipe_allocator *allocator = opi_allocator_system();
  opi_do_list *sent = NULL, *placed = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (opi_pass_messages(&m->problem, order, allocator, &sent, &err) < 0) {
    ++seen.refused_orders;
    must(strstr(err.message, " waits for ") != NULL, "an order that stands still, untold");
    return;
  }
  const uint32_t depth = random_take(b, 4);
  if (depth > 0)
    must(opi_pass_defer(&m->problem, sent, depth, allocator, &placed, &err) >= 0, err.message);
  opi_do_list *list = placed != NULL ? placed : sent;
  if (list->n_items <= REPLAY_ITEMS) {
    compare(m, list, transport);
    perturb_list(list, b);
    compare(m, list, transport);
  }
  opi_do_list_free(placed);
  opi_do_list_free(sent);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static random_order m;
  random_bytes b = {data, data + size, 0};
  const opi_plugin_ref transport = open_transport();
  opi_do_list *order = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!random_make(&m, &b))
    return 0;
  ++seen.orders;
  random_perturb_records(&m, &b);
  must(opi_do_list_from_records(&m.problem, m.records, m.n, opi_allocator_system(), &order, &err) >=
           0,
       err.message);
  const bool whole = opi_pass_check(&m.problem, order, opi_allocator_system(), &err) >= 0;
  must(whole || err.message[0] != '\0', "an order is refused without a reason");
  if (!whole) {
    ++seen.refused_orders;
    must(!random_order_ends(&m, order), err.message);
  } else {
    const uint64_t before = seen.refused_orders;
    lower(&m, order, &b, &transport);
    must((seen.refused_orders == before) == random_order_ends(&m, order),
         "an order that ends is refused, or one that stands still is not");
  }
  opi_do_list_free(order);
  return 0;
}
