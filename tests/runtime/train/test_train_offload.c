/* SPDX-License-Identifier: Apache-2.0 */
/* Stashes in the host's memory: bits, bytes, times, caps, refusals, failures. All schedules, ranks
 * and recomputations: test_train_offload_full.c. ctest: timeout=180 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/trace/trace.h"
#include "tests/runtime/train/memory.h"
#include "tests/runtime/train/offload.h"

enum { ROWS = 8, TOKENS = 8, CLASSES = 32, UNIT = 64, TRIES = 8 };
static const char GPT[] = "tests/data/gpt_8block/model.onnx";

static void open_kit(kit *k, int64_t rows) {
  OPI_ASSERT_OK_FATAL(kit_open(k, opi_test_source(GPT), rows, TOKENS), &k->err);
}

static kit_case place(kit_case c, const kit_place *at) {
  c.device = at->device;
  c.device_index = at->device_index;
  c.device_options = at->device_options;
  c.transport = at->transport;
  return c;
}

/* ---- bits and bytes ---- */

/* Every kind of order: one direction and two, chunks, backwards apart, two versions, token slices;
 * and tensor groups. */
static void test_bits(void) {
  static const char *const schedules[] = {
      "gpipe", "1f1b", "2bw", "zb-h1", "zbv", "chimera", "interleaved:chunks=2", "seq1f1b:slices=2",
      "gpipe"};
  offload_count count = {.passed = 0};
  kit k;
  open_kit(&k, ROWS);
  for (uint32_t i = 0; i < OPI_COUNT(schedules); ++i) {
    const kit_schedule schedule = {schedules[i], 0};
    const bool groups = i + 1 == OPI_COUNT(schedules);
    const uint32_t n_ranks =
        i == 1 || i == 2 || groups ? 4 : 2; /* two keep too few micro-batches */
    kit_case c = place(kit_case_of(schedules[i], n_ranks, 8, i % 2 == 0),
                       &offload_places[i % OFFLOAD_PLACES]);
    if (!opi_test_covers(i, opi_test_is_sanitized() ? 3 : 1))
      continue;
    c.offload = "*";
    c.tensor = groups ? 2 : 0;
    c.spec.recompute = i % 3 == 1 ? OPI_RECOMPUTE_BLOCK : OPI_RECOMPUTE_NONE;
    offload_check(&k, &schedule, &c, &count);
  }
  kit_close(&k);
  OPI_ASSERT(count.failed == 0 && count.passed > 0 && count.n_moves > 0);
}

/* Exact by category, to the byte; freed memory may be overwritten. */
static void test_memory(void) {
  static const memory_row rows[] = {
      {"1f1b", 2, 6, false}, {"2bw", 2, 8, false}, {"gpipe", 3, 2, false, {2, 1}}};
  memory_count count = {.passed = 0};
  kit k;
  open_kit(&k, ROWS);
  for (uint32_t i = 0; i < OPI_COUNT(rows); ++i) {
    kit_case c = place(memory_case(&rows[i], 0, OPIPE_OPTIMIZER_SGD), &offload_places[0]);
    c.offload = "*";
    if (opi_test_is_sanitized() && i != 1)
      continue;
    if (rows[i].replicas[0] != 0)
      c.n_microbatches = 4;
    memory_check(&k, &c, rows[i].schedule, &count);
  }
  kit_close(&k);
  OPI_ASSERT_INT(count.failed, 0);
}

/* ---- caps ---- */

static void read_bytes(const kit *k, uint64_t *out_bytes) {
  for (uint32_t r = 0; r < k->plan->decided.n_ranks; ++r)
    out_bytes[r] = k->plan->predicted.memory[r].total_bytes;
}

/* Under a cap that no plan without offloads holds, auto offloads no more than it must. */
static void test_caps_decide(void) {
  kit k;
  kit_case c = place(kit_case_of("gpipe", 2, 8, false), &offload_places[0]);
  char amount[64];
  open_kit(&k, ROWS);
  c.cut = "add_23";
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  uint64_t without[2], least[2], caps[2];
  read_bytes(&k, without);
  c.offload = "*";
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  const uint32_t n_all = k.plan->decided.n_offload;
  read_bytes(&k, least);
  OPI_ASSERT(least[0] < without[0]);
  memcpy(caps, without, sizeof caps);
  c.caps = caps;
  /* a cap that all fit: nothing is offloaded */
  c.offload = "auto";
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_INT(k.plan->decided.n_offload, 0);
  /* one that demands some, and all */
  caps[0] = (without[0] + least[0]) / 2 / UNIT * UNIT;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT(k.plan->decided.n_offload > 0 && k.plan->decided.n_offload < n_all);
  OPI_ASSERT(k.plan->predicted.memory[0].total_bytes <= caps[0]);
  caps[0] = least[0];
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT(k.plan->predicted.memory[0].total_bytes <= least[0]);
  /* it trains, with the bits of its reference */
  kit_outcome a, b;
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, 0, &a), &k.err);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &b), &k.err);
  kit_compare("auto", &a, &b, 0);
  /* one unit less */
  caps[0] = least[0] - UNIT;
  c.offload = "*";
  OPI_ASSERT_ERROR(kit_plan(&k, &c), OPIPE_E_LIMIT, &k.err, "by 64 bytes");
  c.offload = "auto";
  OPI_ASSERT_ERROR(kit_plan(&k, &c), OPIPE_E_LIMIT, &k.err, "with all stashes offloaded: ");
  /* the host's memory */
  c.caps = NULL;
  c.offload = "*";
  c.offload_bytes = UINT64_C(1) << 40;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  const uint64_t host[] = {k.plan->predicted.memory[0].offload_bytes,
                           k.plan->predicted.memory[1].offload_bytes};
  c.offload_bytes = host[0] > host[1] ? host[0] : host[1];
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  (void)snprintf(amount, sizeof amount, "cap of %llu", (unsigned long long)--c.offload_bytes);
  OPI_ASSERT_ERROR(kit_plan(&k, &c), OPIPE_E_LIMIT, &k.err, amount);
  kit_close(&k);
}

/* ---- times ---- */

typedef struct boxes {
  double first, last; /* of the programs, in us */
  uint32_t n_out, n_back;
  double out, back; /* us of all copies */
} boxes;

/* Adds up a trace's boxes of a kind (0 measured, 1 planned). */
static boxes read_boxes(const char *json, int kind) {
  boxes b = {.first = INFINITY};
  json_t *root = json_loads(json, 0, NULL);
  const json_t *events = json_object_get(root, "traceEvents");
  OPI_ASSERT_FATAL(events != NULL);
  for (size_t i = 0; i < json_array_size(events); ++i) {
    const json_t *e = json_array_get(events, i);
    const char *what = json_string_value(json_object_get(e, "cat"));
    const double at = json_number_value(json_object_get(e, "ts"));
    const double lasts = json_number_value(json_object_get(e, "dur"));
    if (what == NULL || json_integer_value(json_object_get(e, "pid")) != kind)
      continue;
    if (strcmp(what, "offload") == 0) {
      ++b.n_out;
      b.out += lasts;
    } else if (strcmp(what, "reload") == 0) {
      ++b.n_back;
      b.back += lasts;
    } else if (strcmp(what, "F") == 0 || strcmp(what, "B") == 0) {
      b.first = fmin(b.first, at);
      b.last = fmax(b.last, at + lasts);
    }
  }
  json_decref(root);
  return b;
}

/* By the device's own clock, on which programs and copies take what its options say: all of a step
 * is queued at once, so that other work on the machine's cores does not count. Two ranks, and
 * clusters: simulated.c. */
static void time_one(double rate, bool slower) {
  static const double f = 12, i = 8, w = 8;
  const opi_costs costs = {
      .stage_forward = &f, .stage_input = &i, .stage_weight = &w, .n_stages = 1};
  char options[200];
  kit k;
  kit_batch batch;
  opi_session *session = NULL;
  opi_test_text text = {NULL, 0};
  boxes measured = {.n_out = 0};
  double loss = 0, took = INFINITY;
  kit_case c = kit_case_of("gpipe", 1, 6, false);
  (void)snprintf(options, sizeof options,
                 "async=1,compute=off,forward_us=12000,backward_input_us=8000,"
                 "backward_weight_us=8000,host_bandwidth=%.0f",
                 rate);
  c.device = "emulated";
  c.device_options = options;
  c.stages = &costs;
  open_kit(&k, 6);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  const double without = k.plan->predicted.request_ns;
  c.offload = "*";
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  const double planned = k.plan->predicted.request_ns;
  OPI_ASSERT(slower ? planned > 1.02 * without : planned >= without && planned < 1.001 * without);
  OPI_ASSERT_OK_FATAL(kit_session(&k, OPIPE_SESSION_TRACE, &session), &k.err);
  OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, CLASSES, 3, &batch), &k.err);
  for (uint32_t t = 0; t < TRIES && fabs(took - planned) > 0.01 * planned; ++t) {
    OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss), &k.err);
    OPI_ASSERT_OK_FATAL(
        opi_session_trace(session, OPIPE_TRACE_CHROME, NULL, opi_test_take, &text, &k.err), &k.err);
    measured = read_boxes(text.data, 0);
    took = (measured.last - measured.first) * 1e3; /* with ranks that are told late, longer */
    free(text.data);
    text = (opi_test_text){NULL, 0};
  }
  (void)printf("at %.0f bytes/s: %.2f ms without, planned %.2f, measured %.2f\n", rate,
               without * 1e-6, planned * 1e-6, took * 1e-6);
  if (!(fabs(took - planned) <= 0.01 * planned))
    OPI_FAIL("planned %.3f ms, measured %.3f", planned * 1e-6, took * 1e-6);
  const uint32_t n_moves = offload_moves(&k);
  OPI_ASSERT(n_moves > 0 && measured.n_out == n_moves && measured.n_back == n_moves);
  OPI_ASSERT(fabs(measured.out - measured.back) <= 0.01 * measured.out + 1);
  OPI_ASSERT_OK(
      opi_session_trace(session, OPIPE_TRACE_HTML, "offloads", opi_test_take, &text, &k.err),
      &k.err);
  OPI_ASSERT(text.data != NULL && strstr(text.data, "copy") != NULL);
  free(text.data);
  opi_session_close(session);
  kit_close(&k);
}

/* Copies that hide behind programs, and copies that programs wait for. */
static void test_times(void) {
  time_one(1e9, false);
  time_one(4e6, true);
  time_one(2e6, true);
}

/* ---- refusals ---- */

static void refuse(kit *k, kit_case c, opipe_status status, const char *text) {
  OPI_ASSERT_ERROR(kit_plan(k, &c), status, &k->err, text);
}

static void test_refusals(void) {
  kit k;
  open_kit(&k, ROWS);
  kit_case c = kit_case_of("1f1b", 2, 4, false);
  c.offload = "*";
  refuse(&k, c, OPIPE_E_UNSUPPORTED, "computes in the host's memory");
  c = place(c, &offload_places[0]);
  c.offload = "no_such_tensor*";
  refuse(&k, c, OPIPE_E_NOTFOUND, "'no_such_tensor*' matches none of the ");
  c.offload = "*";
  c.schedule = "chimera:concat=halving";
  refuse(&k, c, OPIPE_E_UNSUPPORTED, "backwards in halves");
  kit_close(&k);
}

/* ---- plan files ---- */

static opipe_status read_edited(kit *k, json_t *root) {
  char *text = json_dumps(root, JSON_INDENT(1));
  const opipe_status status = text == NULL ? OPIPE_E_NOMEM : kit_read_plan(k, text, strlen(text));
  free(text);
  return status;
}

/* Tensors are decisions, rates are not; plans without offloads have no such member. */
static void test_plan_files(void) {
  kit k;
  opi_test_text s = {NULL, 0};
  kit_case c = place(kit_case_of("gpipe", 2, 6, false), &offload_places[0]);
  open_kit(&k, ROWS);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(opi_plan_write(k.plan, opi_test_take, &s, &k.err), &k.err);
  OPI_ASSERT(strstr(s.data, "offload") == NULL);
  free(s.data);
  s = (opi_test_text){NULL, 0};
  c.offload = "*";
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  const uint32_t n = k.plan->decided.n_offload;
  const uint64_t bytes = offload_bytes(&k), hash = k.plan->hash[0];
  const double ns = k.plan->predicted.request_ns;
  OPI_ASSERT_OK_FATAL(opi_plan_write(k.plan, opi_test_take, &s, &k.err), &k.err);
  json_t *root = json_loads(s.data, 0, NULL);
  json_t *offload = json_object_get(root, "offload");
  OPI_ASSERT_OK_FATAL(read_edited(&k, root), &k.err);
  OPI_ASSERT(k.plan->decided.n_offload == n && offload_bytes(&k) == bytes);
  OPI_ASSERT(k.plan->hash[0] == hash && k.plan->predicted.request_ns == ns);
  /* flags of the link beyond those decided: kept in files, and older files lack them */
  json_t *link = json_object_get(root, "link");
  OPI_ASSERT((k.plan->decided.link.flags & OPIPE_TRANSPORT_COLLECTIVES) != 0);
  json_object_set_new(link, "flags", json_pack("[s,s]", "direct", "reduces"));
  OPI_ASSERT_OK(read_edited(&k, root), &k.err);
  OPI_ASSERT(k.plan->decided.link.flags == (OPIPE_TRANSPORT_DIRECT | OPIPE_TRANSPORT_REDUCES));
  OPI_ASSERT(k.plan->hash[0] == hash);
  json_object_set_new(link, "queues", json_integer(1));
  OPI_ASSERT_ERROR(read_edited(&k, root), OPIPE_E_INVALID, &k.err, "\"queues\"");
  json_object_del(link, "queues");
  json_object_set_new(offload, "bytes_per_ns", json_pack("[f,f]", 0.5, 0.5));
  OPI_ASSERT_OK(read_edited(&k, root), &k.err);
  OPI_ASSERT(k.plan != NULL && k.plan->hash[0] == hash && k.plan->predicted.request_ns != ns);
  json_object_set_new(offload, "bytes_per_ns", json_pack("[f]", 0.5));
  OPI_ASSERT_INT(read_edited(&k, root), OPIPE_E_INVALID);
  json_object_set_new(offload, "bytes_per_ns", json_pack("[f,f]", -1.0, 0.5));
  OPI_ASSERT_INT(read_edited(&k, root), OPIPE_E_INVALID);
  json_object_del(offload, "bytes_per_ns");
  json_array_append_new(json_object_get(offload, "tensors"), json_string("nobody's"));
  OPI_ASSERT_ERROR(read_edited(&k, root), OPIPE_E_INVALID, &k.err, "'nobody's'");
  json_object_set_new(offload, "tensors", json_array());
  OPI_ASSERT_INT(read_edited(&k, root), OPIPE_E_INVALID);
  json_decref(root);
  free(s.data);
  kit_close(&k);
}

/* ---- failures ---- */

/* A copy that fails is told by rank; the session ends, and another one opens. */
static void test_copies_fail(void) {
  for (uint32_t n = 20; n <= 60; n += 20) {
    char options[80];
    kit k;
    kit_batch batch;
    double loss = 0;
    opi_session *session = NULL;
    kit_case c = place(kit_case_of("gpipe", 2, 6, false), &offload_places[0]);
    (void)snprintf(options, sizeof options, "async=1,host_bandwidth=1e9,fail_copy=%u", n);
    c.device_options = options;
    c.offload = "*";
    open_kit(&k, ROWS);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
    OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, CLASSES, 3, &batch), &k.err);
    OPI_ASSERT_ERROR(kit_step(&k, session, &batch, &loss), OPIPE_E_DEVICE, &k.err,
                     "fails, as its options say");
    OPI_ASSERT(strncmp(k.err.message, "rank ", 5) == 0);
    opi_session_close(session);
    kit_close(&k);
  }
}

/* A session that is closed while steps are under way waits for nothing that never comes. */
static void test_closed_half_way(void) {
  kit k;
  kit_batch batch;
  opi_session *session = NULL;
  opi_request *tickets[3] = {NULL};
  kit_case c = place(kit_case_of("1f1b", 2, 8, false), &offload_places[0]);
  c.device_options = "async=1,host_bandwidth=2e7,time_us=3000";
  c.offload = "*";
  open_kit(&k, ROWS);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  OPI_ASSERT_OK_FATAL(kit_session(&k, 0, &session), &k.err);
  OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, CLASSES, 3, &batch), &k.err);
  const opipe_submit_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
      .n_inputs = batch.n_inputs,
      .io_stride = sizeof(opipe_binding_io),
      .inputs = batch.inputs};
  for (uint32_t i = 0; i < OPI_COUNT(tickets); ++i)
    OPI_ASSERT_OK(opi_train_step(session, &params, &tickets[i], NULL, &k.err), &k.err);
  (void)opi_request_cancel(tickets[2], NULL);
  opi_session_stop(session);
  for (uint32_t i = 0; i < OPI_COUNT(tickets); ++i)
    opi_request_release(tickets[i]);
  opi_session_close(session);
  kit_outcome a, b; /* another session */
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, 0, &a), &k.err);
  OPI_ASSERT_OK_FATAL(kit_train(&k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &b), &k.err);
  kit_compare("after a close", &a, &b, 0);
  kit_close(&k);
}

OPI_TEST_MAIN("offloaded stashes", OPI_TEST(test_bits), OPI_TEST(test_memory),
              OPI_TEST(test_caps_decide), OPI_TEST(test_times), OPI_TEST(test_refusals),
              OPI_TEST(test_plan_files), OPI_TEST(test_copies_fail), OPI_TEST(test_closed_half_way))
