/* SPDX-License-Identifier: Apache-2.0 */
/* Lists executed over transport-emulated under each of its rules: what the proof accepts runs to
 * the end, what it refuses stands still or is refused by the transport. ctest: timeout=120
 */
#include "abi/registry/registry.h"
#include "tests/partition/schedule/drive.h"
#include "tests/partition/schedule/replay.h"

static made m;

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
      opipe_status opened = OPIPE_OK;
      const bool found =
          drive_runs(transport.table, transport.self, &m.problem, placed, rule, &opened, &err);
      OPI_ASSERT_OK(opened, &err);
      ++(found ? ran : stood)[rule];
      if (proven != found) {
        OPI_FAIL("round %u, rule %s: the transport %s, the proof says %s", round,
                 opi_rule_name(rule), found ? "runs" : "stands still",
                 proven ? "yes" : err.message);
      }
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
