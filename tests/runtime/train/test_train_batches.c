/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of operations under the rule GROUPED, over the emulated transport with its table looked
 * at: neighbouring sends and receives stand between batch_begin and batch_end, on the rank's
 * thread; a transport without the slots gets the same bits; a batch in which something fails is
 * ended. ctest: timeout=300 */
#include <stdatomic.h>

#include "partition/lists/lists.h"
#include "tests/runtime/train/kit.h"

enum { M = 4, CLASSES = 32, NEVER = -1 };

static const char *model_path(void) {
  return opi_test_source("tests/data/gpt_8block/model.onnx");
}

/* ---- a table that counts ---- */

static const opipe_transport *inner;
static atomic_int n_begun, n_ended, n_within, n_alone, n_after,
    fail_in; /* fail_in: batches to go, NEVER */
static _Thread_local int open_batches;

static opipe_status counted_begin(opipe_endpoint *endpoint, opipe_error *err) {
  const opipe_status status = inner->batch_begin(endpoint, err);
  if (status != OPIPE_OK)
    return status;
  OPI_ASSERT_INT(open_batches, 0);
  ++open_batches;
  ++n_begun;
  return OPIPE_OK;
}

static opipe_status counted_end(opipe_endpoint *endpoint, opipe_error *err) {
  OPI_ASSERT_INT(open_batches, 1);
  --open_batches;
  ++n_ended;
  return inner->batch_end(endpoint, err);
}

static void count_operation(opipe_status status) {
  OPI_ASSERT(open_batches == 0 || status != OPIPE_PENDING);
  if (status == OPIPE_OK)
    ++*(open_batches != 0 ? &n_within : &n_alone);
}

static opipe_status counted_send(opipe_stream *stream, uint64_t sequence,
                                 const opipe_region *region, opipe_event *ready, opipe_event *done,
                                 opipe_error *err) {
  if (open_batches != 0 && fail_in != NEVER && n_begun > fail_in)
    return opi_fail(err, OPIPE_E_DEVICE, "the link is down");
  const opipe_status status = inner->send(stream, sequence, region, ready, done, err);
  count_operation(status);
  return status;
}

static opipe_status counted_recv(opipe_stream *stream, uint64_t sequence,
                                 const opipe_region *region, opipe_event *done, opipe_error *err) {
  const opipe_status status = inner->recv(stream, sequence, region, done, err);
  count_operation(status);
  return status;
}

static opipe_status counted_recv_after(opipe_stream *stream, uint64_t sequence,
                                       const opipe_region *region, opipe_event *ready,
                                       opipe_event *done, opipe_error *err) {
  OPI_ASSERT(open_batches == 1 && ready != NULL && done != NULL);
  ++n_after;
  return inner->recv_after(stream, sequence, region, ready, done, err);
}

/* The kit's sessions run over it. */
static void look_at_table(kit *k, bool batches, opipe_transport *out_table) {
  inner = k->transport.table;
  *out_table = *inner;
  out_table->send = counted_send;
  out_table->recv = counted_recv;
  out_table->batch_begin = batches ? counted_begin : NULL;
  out_table->batch_end = batches ? counted_end : NULL;
  out_table->recv_after = batches ? counted_recv_after : NULL;
  k->transport.table = out_table;
  n_after = n_begun = n_ended = n_within = n_alone = 0;
  fail_in = NEVER;
}

/* ---- tests ---- */

static void open_kit(kit *k, const char *schedule, uint32_t n_ranks, kit_case *out_case) {
  *out_case = kit_case_of(schedule, n_ranks, M, true);
  out_case->transport = "emulated:rule=grouped,latency_us=20";
  OPI_ASSERT_OK_FATAL(kit_open(k, model_path(), 8, 8), &k->err);
  OPI_ASSERT_OK_FATAL(kit_plan(k, out_case), &k->err);
}

static void compare(const char *schedule, uint32_t n_ranks) {
  kit k;
  kit_case c;
  kit_outcome reference, together, alone;
  opipe_transport table;
  open_kit(&k, schedule, n_ranks, &c);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &reference), &k.err);
  const opi_transport_ref shipped = k.transport;
  look_at_table(&k, true, &table);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, 0, &together), &k.err);
  OPI_ASSERT(n_begun > 0 && n_begun == n_ended);
  OPI_ASSERT(n_within >= n_begun + n_begun / 2); /* a part of a body may leave one alone */
  const int n_all = n_within + n_alone;
  k.transport = shipped;
  look_at_table(&k, false, &table);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, 0, &alone), &k.err);
  OPI_ASSERT_INT(n_begun, 0);
  OPI_ASSERT_INT(n_alone, n_all);
  kit_compare(schedule, &together, &reference, 0);
  kit_compare(schedule, &alone, &reference, 0);
  kit_close(&k);
}

static void test_neighbours_start_together(void) {
  compare("1f1b", 2);
  compare("2bw", 2);
  compare("2bw", 4);
  compare("zb-h1", 4);
}

/* The session ends with what failed, and no batch is left open. */
static void test_a_failure_ends_the_batch(void) {
  for (int batches = 0; batches < 6; batches += 3) {
    kit k;
    kit_case c;
    kit_outcome out;
    opipe_transport table;
    open_kit(&k, "1f1b", 2, &c);
    look_at_table(&k, true, &table);
    fail_in = batches;
    OPI_ASSERT_ERROR(kit_train(&k, &c, CLASSES, 0, &out), OPIPE_E_STATE, &k.err,
                     "the link is down");
    OPI_ASSERT(n_begun > batches);
    OPI_ASSERT_INT(n_begun, n_ended);
    kit_close(&k);
  }
}

/* ---- asynchronous devices: batches are queued with the work ---- */

static void compare_queued(const char *schedule, uint32_t n_ranks, const char *transport) {
  kit k;
  kit_outcome reference, queued, waiting;
  opipe_transport table;
  kit_case c = kit_case_of(schedule, n_ranks, M, true);
  c.device = "emulated";
  c.device_options = "async=1";
  c.transport = transport;
  OPI_ASSERT_OK_FATAL(kit_open(&k, model_path(), 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &reference), &k.err);
  const opi_transport_ref shipped = k.transport;
  look_at_table(&k, true, &table);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, 0, &queued), &k.err);
  OPI_ASSERT(n_begun > 0 && n_begun == n_ended && n_after > 0);
  const int n_all = n_within + n_alone + n_after;
  k.transport = shipped;
  look_at_table(&k, false, &table);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, 0, &waiting), &k.err);
  OPI_ASSERT_INT(n_after, 0);
  OPI_ASSERT_INT(n_alone, n_all);
  kit_compare(schedule, &queued, &reference, 0);
  kit_compare(schedule, &waiting, &reference, 0);
  kit_close(&k);
}

static void test_batches_are_queued_with_the_work(void) {
  compare_queued("1f1b", 2, "emulated:rule=grouped");
  compare_queued("zb-h1", 4, "emulated:rule=grouped");
  compare_queued("2bw", 2, "emulated:rule=grouped");
  compare_queued("chimera", 2, "emulated:rule=grouped,latency_us=20");
}

OPI_TEST_MAIN("batches of operations", OPI_TEST(test_neighbours_start_together),
              OPI_TEST(test_batches_are_queued_with_the_work),
              OPI_TEST(test_a_failure_ends_the_batch))
