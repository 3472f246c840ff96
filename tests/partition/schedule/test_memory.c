/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of reading, lowering, proving, timing, drawing and printing fails once: an error
 * each time, and nothing leaks. Malformed files end the same way.
 */
#include "partition/schedule/draw.h"
#include "tests/partition/schedule/orders.h"

static const char table[] =
    "#onnx-pipe-schedule v1\n"
    "#ranks=2 stages=2 replicas=2 microbatches=2 slices=1 parts=1 mode=train versions=one "
    "sync=eager-opt\n#place=0,1,1,0\n"
    "rank 0: 0F0 1@1F1 1@1B1 0B0\n"
    "rank 1: 0@1F1 1F0 1B0 0@1B1\n";

static opipe_status print_all(const opi_order *order, const opipe_allocator *allocator,
                              opipe_error *err) {
  opi_text text;
  opipe_status status = OPIPE_OK;
  opi_text_init(&text, allocator);
  for (uint32_t format = 0; format < 3 && status == OPIPE_OK; ++format)
    status = opi_order_write(order, format, OPI_DIALECT_OPIPE, &text, err);
  if (status == OPIPE_OK)
    status = opi_draw_order(&order->problem, order->list, &opi_unit_costs, allocator, &text, err);
  opi_text_release(&text);
  return status;
}

static opipe_status use_all(opi_test_memory *memory, void *arg) {
  const opipe_allocator *allocator = &memory->allocator;
  const opi_lowering how = {.receive_depth = 1};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_order *order = NULL, *lowered = NULL, *aligned = NULL;
  double peak[2];
  opi_simulation result = {.peak_stash = peak};
  (void)arg;
  opipe_status status =
      opi_order_read(table, sizeof table - 1, OPI_DIALECT_OPIPE, allocator, &order, &err);
  if (status == OPIPE_OK)
    status = opi_order_lower(order, &how, allocator, &lowered, &err);
  for (uint32_t rule = 0; rule < OPI_RULES && status == OPIPE_OK; ++rule) {
    opi_proof proof = {0};
    if (rule == OPI_RULE_PAIR || rule == OPI_RULE_BLOCKING)
      continue; /* two directions and late receives: refused */
    status = opi_proof_check(&lowered->problem, lowered->list, rule, allocator, &proof, &err);
  }
  if (status == OPIPE_OK) {
    status =
        opi_simulate_order(&order->problem, order->list, &opi_unit_costs, allocator, &result, &err);
  }
  if (status == OPIPE_OK)
    status = opi_order_align(order, allocator, &aligned, &err);
  if (status == OPIPE_OK)
    status = print_all(lowered, allocator, &err);
  OPI_ASSERT(status == OPIPE_OK || err.message[0] != '\0');
  opi_order_free(aligned);
  opi_order_free(lowered);
  opi_order_free(order);
  return status;
}

static void test_every_allocation_may_fail(void) {
  OPI_ASSERT(opi_test_every_allocation(use_all, NULL, 2000) > 20);
}

static void test_malformed_files_say_where(void) {
  static const struct {
    const char *text, *says;
  } rows[] = {
      {"", "no ranks"},
      {"0F0,0B0,,x\n", "row 1, column 4: 'x'"},
      {"0F0,0B0\n0F1\n", "row 2, column 1: rank 1, step 0: stage 0 is on rank 0 as well"},
      {"F0\n", "row 1, column 1: 'F0': the stage is missing"},
      {"0F\n", "the micro-batch is missing"},
      {"0F0x\n", "more text after"},
      {"99999999999F0\n", "row 1, column 1"},
      {"0F99999999999\n", "row 1, column 1"},
      {"(0F0;0B1)OVERLAP\n", "it must end in )OVERLAP_F_B"},
      {"(0F0)OVERLAP_F_B\n", "';' is missing"},
      {"(0F0;0SEND_F0)OVERLAP_F_B\n", "only computes overlap"},
      {"0@1F0\n", "need a header"},
      {"2F0,2B0\n", "stage 0 is on no rank"},
      {"0RECV_F0\n", "row 1, column 1: '0RECV_F0': stage 0 of 1 has no such neighbour"},
      {"#schedule\n", "is not a schedule's header"},
      {"#onnx-pipe-schedule v1\n#ranks=0\n", "the header's ranks=0"},
      {"#onnx-pipe-schedule v1\n#color=blue\n", "unknown key 'color'"},
      {"#onnx-pipe-schedule v1\n#ranks\n", "'ranks' is not key=value"},
      {"#onnx-pipe-schedule v1\nrank 0: 0F0\n", "the header must say"},
      {"rank 0: 0F0 0B0\nrank 2: 1F0\n", "'rank 1:' was expected"},
      {"{\"format\": \"other\", \"version\": 1, \"actions\": []}", "format 'other'"},
      {"{\"format\": \"onnx-pipe-schedule\", \"version\": 1, \"actions\": [], \"color\": 1}",
       "unknown key 'color'"},
      {"{\"format\": 3}", "format"},
      {"{", "schedule"},
  };
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    opi_order *order = NULL;
    const opipe_status status =
        opi_order_read(rows[i].text, strlen(rows[i].text), OPI_DIALECT_OPIPE,
                       opi_allocator_system(), &order, &err);
    (void)opi_test_check(status < 0 && strstr(err.message, rows[i].says) != NULL, __FILE__,
                         __LINE__, false, "'%s': status %d, '%s', wanted '%s'", rows[i].text,
                         (int)status, err.message, rows[i].says);
    opi_order_free(order);
  }
}

enum { WIDE = 16, BYTES_PER_ACTION = 64 };

/* F and B in turn, every rank: enough for lists to outweigh what there is one of. */
static void test_lowering_and_proving_take_64_bytes_per_action(void) {
  static made m;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *list = NULL, *lowered = NULL;
  opi_test_memory memory;
  opi_proof proof = {0};
  const opi_lowering how = {.receive_depth = 0};
  made_begin(&m, WIDE, 1000);
  for (uint32_t rank = 0; rank < WIDE; ++rank) {
    for (uint32_t i = 0; i < 2000; ++i) {
      m.records[m.n++] =
          (opipe_action){.rank = rank,
                         .stage = rank,
                         .microbatch = i % 1000,
                         .pass = (uint8_t)(i < 1000 ? OPIPE_PASS_FORWARD : OPIPE_PASS_BACKWARD)};
    }
  }
  opi_test_memory_init(&memory);
  OPI_ASSERT_OK_FATAL(
      opi_do_list_from_records(&m.problem, m.records, m.n, &memory.allocator, &list, &err), &err);
  OPI_ASSERT_OK_FATAL(opi_lower_order(&m.problem, list, &how, &memory.allocator, &lowered, &err),
                      &err);
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
    OPI_ASSERT_OK(opi_proof_check(&m.problem, lowered, rule, &memory.allocator, &proof, &err),
                  &err);
  }
  if (memory.peak_bytes > (uint64_t)BYTES_PER_ACTION * lowered->n_items)
    OPI_FAIL("%llu bytes for %u actions", (unsigned long long)memory.peak_bytes, lowered->n_items);
  opi_do_list_free(lowered);
  opi_do_list_free(list);
  OPI_ASSERT(opi_test_memory_end(&memory));
}

static void test_too_many_actions_are_refused_by_count(void) {
  static made m;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *list = NULL, *lowered = NULL;
  opi_test_memory memory;
  const opi_lowering how = {.receive_depth = 0};
  made_begin(&m, WIDE, 1 << 24);
  opi_test_memory_init(&memory);
  OPI_ASSERT_OK_FATAL(
      opi_do_list_from_records(&m.problem, m.records, 0, &memory.allocator, &list, &err), &err);
  const uint64_t before = memory.peak_bytes;
  OPI_ASSERT_INT(opi_lower_order(&m.problem, list, &how, &memory.allocator, &lowered, &err),
                 OPIPE_E_LIMIT);
  OPI_ASSERT(strstr(err.message, "1811939328 actions once lowered: at most 134217728") != NULL);
  OPI_ASSERT_INT(memory.peak_bytes, before);
  opi_do_list_free(list);
  OPI_ASSERT(opi_test_memory_end(&memory));
}

OPI_TEST_MAIN("memory and files of schedules", OPI_TEST(test_every_allocation_may_fail),
              OPI_TEST(test_malformed_files_say_where),
              OPI_TEST(test_lowering_and_proving_take_64_bytes_per_action),
              OPI_TEST(test_too_many_actions_are_refused_by_count))
