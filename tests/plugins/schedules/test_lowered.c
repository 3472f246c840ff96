/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of the schedules here through the library's passes: lowered, they pass the proof under
 * every rule that tells streams apart; the library's simulator and the test's own say the same;
 * written as text and read by the schedule "csv" they are the same records.  ctest: timeout=120
 */
#include <math.h>

#include "partition/schedule/events.h"
#include "partition/schedule/order.h"
#include "tests/plugins/schedules/lab.h"

static opipe_error err = OPIPE_ERROR_INIT;

static const struct {
  const char *id, *key, *value;
} every[] = {{"zb-h1", NULL, NULL},
             {"zb-h2", NULL, NULL},
             {"zb-auto", "memory", "1.5"},
             {"interleaved", "backward", "halves"},
             {"zb-interleaved", "chunks", "2"},
             {"zb-interleaved", "chunks", "3"},
             {"zbv", NULL, NULL},
             {"zbv", "order", "torch"},
             {"v-half", NULL, NULL},
             {"v-min", NULL, NULL},
             {"dualpipev", NULL, NULL},
             {"terapipe", "slices", "3"},
             {"seq1f1b", "slices", "4"}};

typedef struct passed {
  asked_order o;
  opi_stage_edge edges[ASKED_INSTANCES];
  opi_problem problem;
  opi_do_list *list;
} passed;

static void take_up(passed *x, const lab_request *q) {
  OPI_ASSERT_OK_FATAL(lab_ask(q, &x->o), &asked_err);
  const opipe_layout *l = &x->o.layout;
  opi_edges_chain(x->edges, l->n_stages);
  x->problem = (opi_problem){.n_ranks = l->n_ranks,
                             .n_stages = l->n_stages,
                             .n_replicas = l->n_replicas,
                             .n_microbatches = q->m,
                             .n_slices = l->n_slices,
                             .n_parts = l->n_parts,
                             .mode = q->mode,
                             .instance_rank = x->o.instance_rank,
                             .edges = x->edges,
                             .n_edges = l->n_stages - 1};
  OPI_ASSERT_OK_FATAL(opi_do_list_from_records(&x->problem, x->o.actions, x->o.n,
                                               opi_allocator_system(), &x->list, &err),
                      &err);
}

static void let_go(passed *x) {
  opi_do_list_free(x->list);
  asked_end(&x->o);
}

/* ---- proof ---- */

static void prove(const passed *x, const lab_request *q, uint32_t depth) {
  static const uint32_t rules[] = {OPI_RULE_TAG, OPI_RULE_STREAM};
  const opi_lowering how = {depth};
  opi_do_list *lowered = NULL;
  if (opi_lower_order(&x->problem, x->list, &how, opi_allocator_system(), &lowered, &err) < 0) {
    OPI_FAIL("%s, %u ranks, %u micro-batches, depth %u: %s", q->id, q->n_ranks, q->m, depth,
             err.message);
    return;
  }
  for (size_t k = 0; k < sizeof rules / sizeof rules[0]; ++k) {
    opi_proof proof = {0};
    if (opi_proof_check(&x->problem, lowered, rules[k], opi_allocator_system(), &proof, &err) < 0) {
      OPI_FAIL("%s, %u ranks, %u micro-batches, depth %u, %s: %s", q->id, q->n_ranks, q->m, depth,
               opi_rule_name(rules[k]), err.message);
    } else {
      OPI_ASSERT(true);
    }
  }
  opi_do_list_free(lowered);
}

static void test_proof(void) {
  static passed x;
  for (size_t k = 0; k < sizeof every / sizeof every[0]; ++k) {
    for (uint32_t p = 1; p <= 5; ++p) {
      for (uint32_t m = 1; m <= 13; m += 2) {
        const lab_request q = {every[k].id, every[k].key, every[k].value, OPIPE_MODE_TRAIN, p, 0,
                               m,           NULL};
        take_up(&x, &q);
        prove(&x, &q, 0);
        prove(&x, &q, 1);
        let_go(&x);
      }
    }
  }
}

/* ---- simulation ---- */

static void test_simulators_agree(void) {
  static passed x;
  static uint64_t f[32], i[32], w[32];
  static double df[32], di[32], dw[32], peak[32];
  opi_test_random random = {17};
  for (size_t k = 0; k < sizeof every / sizeof every[0]; ++k) {
    for (uint32_t m = 1; m <= 16; m += 5) {
      for (uint32_t s = 0; s < 32; ++s) {
        df[s] = (double)(f[s] = 12 * (1 + opi_test_next(&random) % 9));
        di[s] = (double)(i[s] = 12 * (1 + opi_test_next(&random) % 9));
        dw[s] = (double)(w[s] = 12 * (1 + opi_test_next(&random) % 9));
      }
      const lab_costs costs = {.ns = {f, i, w}};
      const lab_request q = {every[k].id, every[k].key, every[k].value, OPIPE_MODE_TRAIN, 4, 0,
                             m,           &costs};
      take_up(&x, &q);
      const lab_times mine = lab_run(&x.o, &costs);
      const opi_costs theirs = {.stage_forward = df, .stage_input = di, .stage_weight = dw};
      opi_simulation s = {.peak_stash = peak};
      OPI_ASSERT_OK_FATAL(
          opi_simulate_order(&x.problem, x.list, &theirs, opi_allocator_system(), &s, &err), &err);
      if (fabs(s.makespan - mine.makespan) > 1e-6 || fabs(s.span - mine.span) > 1e-6 ||
          fabs(s.bubble - mine.bubble) > 1e-9) {
        OPI_FAIL("%s, %u micro-batches: %.3f %.3f %.6f, not %.3f %.3f %.6f", q.id, m, s.makespan,
                 s.span, s.bubble, mine.makespan, mine.span, mine.bubble);
      }
      for (uint32_t r = 0; r < 4; ++r)
        OPI_ASSERT(fabs(peak[r] - mine.peak[r]) < 1e-9);
      let_go(&x);
    }
  }
}

/* ---- text and back ---- */

static void check_text(passed *x, const lab_request *q, opi_do_list *list, uint32_t format) {
  opi_order *order = NULL;
  opi_text text;
  static asked_order back;
  OPI_ASSERT_OK_FATAL(opi_order_make(&x->problem, list, opi_allocator_system(), &order, &err),
                      &err);
  opi_text_init(&text, opi_allocator_system());
  OPI_ASSERT_OK_FATAL(opi_order_write(order, format, OPI_DIALECT_OPIPE, &text, &err), &err);
  const lab_request again = {"csv", "text", text.data, q->mode, 0, x->problem.n_stages, q->m, NULL};
  if (lab_ask(&again, &back) < 0) {
    OPI_FAIL("%s, format %u: %s", q->id, format, asked_err.message);
  } else {
    OPI_ASSERT_INT(back.layout.n_slices, x->problem.n_slices);
    OPI_ASSERT_INT(
        memcmp(back.instance_rank, x->o.instance_rank, x->problem.n_stages * sizeof(uint32_t)), 0);
    OPI_ASSERT_INT(back.n, x->o.n);
    OPI_ASSERT_INT(memcmp(back.actions, x->o.actions, x->o.n * sizeof(opipe_action)), 0);
  }
  asked_end(&back);
  opi_text_release(&text);
  opi_order_free(order);
}

static void test_text_and_back(void) {
  static passed x;
  for (size_t k = 0; k < sizeof every / sizeof every[0]; ++k) {
    const lab_request q = {every[k].id, every[k].key, every[k].value, OPIPE_MODE_TRAIN, 3, 0,
                           7,           NULL};
    take_up(&x, &q);
    const opi_lowering early = {0};
    opi_do_list *lowered = NULL, *plain = NULL;
    OPI_ASSERT_OK_FATAL(
        opi_lower_order(&x.problem, x.list, &early, opi_allocator_system(), &lowered, &err), &err);
    check_text(&x, &q, lowered, OPI_ORDER_TEXT); /* takes the list over */
    OPI_ASSERT_OK_FATAL(
        opi_do_list_without(x.list, OPI_DO_IDLE, opi_allocator_system(), &plain, &err), &err);
    check_text(&x, &q, plain, OPI_ORDER_CSV);
    let_go(&x);
  }
}

OPI_TEST_MAIN("lowered schedules", OPI_TEST(test_proof), OPI_TEST(test_simulators_agree),
              OPI_TEST(test_text_and_back))
