/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors and fences of a host's GPU, through the host's table: bits of the same request from host
 * memory, and what the driver was asked for: no copy, no wait. On the doubles, where work is done
 * late and out of order but for what streams and events say.
 * ctest: timeout=120
 */
#include "lent.h"

#define MS UINT64_C(1000000)
#define SOON (20000 * MS) /* for what has to come: a test that is broken ends */

static const opipe_plan_params one_rank = {.struct_size = sizeof one_rank, .n_stages = 1};

#define LENT_OPEN(h, model, how, flags) \
  if (!lent_open(h, model, how, flags)) \
  OPI_SKIP("%s", "the doubles of CUDA need a C++ compiler at build")

/* A rank may not have let go of a request yet that its host is done with. */
static opipe_request *submit(lent_host *h, const opipe_submit_params *params) {
  const opipe_api *api = h->k.api;
  opipe_request *request = NULL;
  opipe_status status = api->session_submit(h->k.session, params, &request, &h->k.err);
  if (status == OPIPE_PENDING) {
    OPI_ASSERT_OK_FATAL(api->session_wait_room(h->k.session, SOON, &h->k.err), &h->k.err);
    status = api->session_submit(h->k.session, params, &request, &h->k.err);
  }
  OPI_ASSERT_OK_FATAL(status, &h->k.err);
  return request;
}

/* The number of rounds: few in a cover. */
static int rounds(int all) {
  return opi_test_is_cover() ? 2 : all;
}

static void end(lent_host *h, opipe_request *request) {
  OPI_ASSERT_OK(h->k.api->request_wait(request, SOON, &h->k.err), &h->k.err);
  h->k.api->request_release(request);
}

/* Written late, read at once, on one stream of the host's; the library is between. */
static void round_trip(lent_host *h, const opipe_binding_io *in, const opipe_binding_io *out) {
  const opipe_submit_params params = lent_params(in, out);
  opipe_request *request = submit(h, &params);
  OPI_ASSERT_OK(h->k.api->request_queued(request, SOON, &h->k.err), &h->k.err);
  lent_bring(h, (CUdeviceptr)(uintptr_t)out->tensor.data);
  OPI_ASSERT(lent_is_right(h));
  end(h, request);
}

/* ---- in place ---- */

typedef struct counted {
  uint64_t writes, reads, copies, waits;
} counted;

static counted count_round(lent_host *h, CUdeviceptr ids, CUdeviceptr to) {
  const opipe_binding_io in = lent_ids(h, ids), out = lent_out(h, to);
  const cuda_double_facts a = lent_look(h);
  lent_fill(h, ids);
  round_trip(h, &in, &out);
  const cuda_double_facts b = lent_look(h);
  return (counted){b.writes - a.writes, b.reads - a.reads, b.copies - a.copies, b.waits - a.waits};
}

/* The one write, read and wait are the host's. */
static void nothing_is_copied(const opipe_plan_params *how) {
  lent_host h;
  LENT_OPEN(&h, LENT_MODEL, how, 0);
  for (int round = 0; round < rounds(5); ++round) {
    const counted n = count_round(&h, h.d_ids, h.d_out);
    OPI_ASSERT_INT(n.copies, 0);
    OPI_ASSERT_INT(n.writes, 1);
    OPI_ASSERT_INT(n.reads, 1);
    OPI_ASSERT_INT(n.waits, 1);
  }
  lent_close(&h);
}

static void test_nothing_is_copied(void) {
  nothing_is_copied(&one_rank);
}

static void test_nothing_is_copied_in_micro_batches(void) {
  const opipe_plan_params how = {.struct_size = sizeof how, .n_stages = 1, .n_microbatches = 2};
  nothing_is_copied(&how);
}

/* Two ranks of one GPU: what travels between them is copied, and nothing else. */
static void test_ranks_share_a_gpu(void) {
  const opipe_plan_params how = {.struct_size = sizeof how, .n_stages = 2, .n_microbatches = 2};
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &how, 0);
  const counted first = count_round(&h, h.d_ids, h.d_out);
  const counted n = count_round(&h, h.d_ids, h.d_out);
  OPI_ASSERT(first.copies == n.copies && first.writes == n.writes && first.reads == n.reads);
  const counted moved = count_round(&h, h.d_ids + 8, h.d_out);
  OPI_ASSERT_INT(moved.copies, n.copies + 2); /* the ids of two micro-batches */
  lent_close(&h);
}

static void test_the_reference_takes_them_too(void) {
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, OPIPE_SESSION_REFERENCE);
  for (int round = 0; round < 2; ++round)
    OPI_ASSERT_INT(count_round(&h, h.d_ids, h.d_out).copies, 0);
  lent_close(&h);
}

/* More sets of addresses than programs are bound to: the rest is copied. */
static void test_addresses_that_change(void) {
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, 0);
  uint64_t copies = 0;
  for (CUdeviceptr slot = 0; slot < LENT_SLOTS; ++slot)
    copies += count_round(&h, h.d_ids + slot * 4096, h.d_out).copies;
  OPI_ASSERT_INT(copies, (LENT_SLOTS - 16) * 2);
  OPI_ASSERT_INT(count_round(&h, h.d_ids, h.d_out).copies, 0);
  for (int round = 0; round < 70; ++round)
    OPI_ASSERT_INT(count_round(&h, h.d_ids, h.d_out).copies, 0);
  OPI_ASSERT_INT(count_round(&h, h.d_ids + 20 * 4096, h.d_out).copies, 0); /* one has rested */
  lent_close(&h);
}

/* ---- not in place ---- */

static void test_what_does_not_fit_is_copied(void) {
  enum { WIDE = 24 };
  static const int64_t strides[2] = {WIDE, 1};
  lent_host h;
  LENT_OPEN(&h, LENT_MODEL, &one_rank, 0);
  const counted off = count_round(&h, h.d_ids + 8, h.d_out); /* an element behind a boundary */
  OPI_ASSERT(off.copies == 1 && off.writes == 1 && off.reads == 1 && off.waits == 1);
  const counted out = count_round(&h, h.d_ids, h.d_out + 4);
  OPI_ASSERT_INT(out.copies, 1);
  opipe_binding_io in = lent_ids(&h, h.d_ids), to = lent_out(&h, h.d_out);
  in.tensor.strides = strides;
  for (CUdeviceptr row = 0; row < LENT_BATCH; ++row) {
    OPI_ASSERT(h.driver.write(h.d_ids + row * WIDE * 8, h.ids + row * LENT_SEQ, LENT_SEQ * 8,
                              h.stream) == CUDA_OK);
  }
  const uint64_t before = lent_look(&h).copies;
  round_trip(&h, &in, &to);
  OPI_ASSERT_INT(lent_look(&h).copies - before, LENT_BATCH);
  lent_close(&h);
}

/* ---- fences ---- */

/* The host waits for nothing but its own event. */
static void test_events_say_when(void) {
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, 0);
  CUevent come = NULL, done = NULL;
  OPI_ASSERT_FATAL(h.driver.event_create(&come, CUDA_EVENT_DISABLE_TIMING) == CUDA_OK);
  OPI_ASSERT_FATAL(h.driver.event_create(&done, CUDA_EVENT_DISABLE_TIMING) == CUDA_OK);
  for (int round = 0; round < rounds(5); ++round) {
    opipe_binding_io in = lent_ids(&h, h.d_ids), out = lent_out(&h, h.d_out);
    in.ready = (opipe_fence){.kind = OPIPE_FENCE_NATIVE_EVENT, .handle = come};
    out.done = (opipe_fence){.kind = OPIPE_FENCE_NATIVE_EVENT, .handle = done};
    lent_fill(&h, h.d_ids);
    OPI_ASSERT(h.driver.event_record(come, h.stream) == CUDA_OK);
    const opipe_submit_params params = lent_params(&in, &out);
    opipe_request *request = submit(&h, &params);
    OPI_ASSERT_OK(h.k.api->request_queued(request, SOON, &h.k.err), &h.k.err);
    OPI_ASSERT(h.driver.stream_wait(h.stream, done, 0) == CUDA_OK);
    lent_bring(&h, h.d_out);
    OPI_ASSERT(lent_is_right(&h));
    end(&h, request);
  }
  OPI_ASSERT(h.driver.event_destroy(come) == CUDA_OK && h.driver.event_destroy(done) == CUDA_OK);
  lent_close(&h);
}

/* Memory that the host still reads is not written over, and the host does not write over memory
 * that is being read. */
static void test_memory_is_used_again(void) {
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, 0);
  opipe_binding_io in = lent_ids(&h, h.d_ids), out = lent_out(&h, h.d_out);
  in.done = out.ready = lent_stream(&h);
  lent_fill(&h, h.d_ids);
  for (int round = 0; round < rounds(8); ++round) {
    const opipe_submit_params params = lent_params(&in, &out);
    opipe_request *request = submit(&h, &params);
    OPI_ASSERT_OK(h.k.api->request_queued(request, SOON, &h.k.err), &h.k.err);
    if (round % 2 == 0) /* nothing is on its way there */
      memset(h.got, 0, h.out_bytes);
    OPI_ASSERT(h.driver.read(h.got, h.d_out, h.out_bytes, h.stream) == CUDA_OK);
    OPI_ASSERT(h.driver.fill(h.d_out, 0xee, h.out_bytes, h.stream) == CUDA_OK);
    OPI_ASSERT(h.driver.fill(h.d_ids, 0x7f, sizeof h.ids, h.stream) == CUDA_OK);
    lent_fill(&h, h.d_ids);
    if (round % 2 != 0) { /* behind two requests at once, too */
      OPI_ASSERT(h.driver.stream_sync(h.stream) == CUDA_OK);
      OPI_ASSERT(lent_is_right(&h));
    }
    end(&h, request);
  }
  lent_close(&h);
}

/* The stream is held: nothing comes. */
static void test_a_fence_that_never_comes_holds_up_its_own_request(void) {
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, 0);
  const opipe_binding_io in = lent_ids(&h, h.d_ids), host = kit_ids(h.ids, h.ids_shape);
  opipe_submit_params late = lent_params(&in, NULL), other = lent_params(&host, NULL);
  h.hold(h.stream, true);
  lent_fill(&h, h.d_ids);
  late.deadline_ns = 100 * MS; /* of the one stream that there is */
  opipe_request *first = submit(&h, &late);
  OPI_ASSERT_ERROR(h.k.api->request_wait(first, SOON, &h.k.err), OPIPE_E_TIMEOUT, &h.k.err,
                   "its deadline passed");
  h.k.api->request_release(first);
  late.deadline_ns = 60000 * MS;
  first = submit(&h, &late);
  other.stream = 2;
  end(&h, submit(&h, &other));
  OPI_ASSERT_INT(h.k.api->request_poll(first, &h.k.err), OPIPE_PENDING);
  OPI_ASSERT_ERROR(h.k.api->request_queued(first, 0, &h.k.err), OPIPE_E_TIMEOUT, &h.k.err,
                   "is not queued");
  h.hold(h.stream, false);
  end(&h, first); /* it comes in time */
  lent_close(&h);
}

/* All requests are of one stream: the device waits, the host does not. */
static void test_one_stream_is_queued_before_its_fence_has_come(void) {
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, 0);
  const opipe_binding_io in = lent_ids(&h, h.d_ids), out = lent_out(&h, h.d_out);
  const opipe_submit_params params = lent_params(&in, &out);
  h.hold(h.stream, true);
  lent_fill(&h, h.d_ids);
  opipe_request *request = submit(&h, &params);
  OPI_ASSERT_OK(h.k.api->request_queued(request, SOON, &h.k.err), &h.k.err);
  OPI_ASSERT_INT(h.k.api->request_poll(request, &h.k.err), OPIPE_PENDING);
  h.hold(h.stream, false);
  lent_bring(&h, h.d_out);
  OPI_ASSERT(lent_is_right(&h));
  end(&h, request);
  lent_close(&h);
}

/* Several streams, no deadline: a device that waited for one would hold up the others. late: which
 * fence does not come, that of the ids or that of the answer's memory. */
static void others_go_on(uint32_t late) {
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, 0); /* it has had a request of stream 0 */
  CUstream free_stream = NULL;
  OPI_ASSERT_FATAL(h.driver.stream_create(&free_stream, CUDA_STREAM_NON_BLOCKING) == CUDA_OK);
  const opipe_fence free_fence = {.kind = OPIPE_FENCE_NATIVE_STREAM, .handle = free_stream};
  opipe_binding_io in = lent_ids(&h, h.d_ids), out = lent_out(&h, h.d_out);
  opipe_binding_io there = lent_ids(&h, h.d_ids + 4096);
  opipe_submit_params held = lent_params(&in, &out), other = lent_params(&there, NULL);
  opipe_request *first = NULL, *behind = NULL;
  there.ready = free_fence;
  in.ready = late == 0 ? lent_stream(&h) : free_fence;
  out.ready = late == 1 ? lent_stream(&h) : free_fence;
  OPI_ASSERT(h.driver.write(h.d_ids, h.ids, sizeof h.ids, free_stream) == CUDA_OK);
  OPI_ASSERT(h.driver.write(h.d_ids + 4096, h.ids, sizeof h.ids, free_stream) == CUDA_OK);
  held.stream = 1;
  h.hold(h.stream, true);
  lent_fill(&h, h.d_ids + 2 * 4096); /* something that the stream is at */
  first = submit(&h, &held);         /* there is room for two requests */
  for (other.stream = 2; other.stream < 6; ++other.stream)
    end(&h, submit(&h, &other));
  other.stream = 1;
  behind = submit(&h, &other);
  OPI_ASSERT_INT(h.k.api->request_poll(first, &h.k.err), OPIPE_PENDING);
  OPI_ASSERT_INT(h.k.api->request_poll(behind, &h.k.err), OPIPE_PENDING);
  OPI_ASSERT_ERROR(h.k.api->request_queued(first, 0, &h.k.err), OPIPE_E_TIMEOUT, &h.k.err,
                   "is not queued");
  const uint64_t copies = lent_look(&h).copies;
  h.hold(h.stream, false);
  end(&h, behind);
  end(&h, first);
  OPI_ASSERT_INT(lent_look(&h).copies, copies); /* still in place */
  lent_bring(&h, h.d_out);
  OPI_ASSERT(lent_is_right(&h));
  OPI_ASSERT(h.driver.stream_destroy(free_stream) == CUDA_OK);
  lent_close(&h);
}

static void test_the_ids_of_one_stream_hold_up_no_other(void) {
  others_go_on(0);
}

static void test_the_answer_of_one_stream_holds_up_no_other(void) {
  others_go_on(1);
}

/* The host polls the fences of values that it computes from host memory. */
static void test_fences_of_host_memory(void) {
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, 0);
  int64_t come[LENT_IDS] = {0};
  lent_fill(&h, h.d_ids);
  OPI_ASSERT(h.driver.read(come, h.d_ids, sizeof come, h.stream) == CUDA_OK);
  opipe_binding_io in = kit_ids(come, h.ids_shape), out = lent_out(&h, h.d_out);
  in.ready = in.done = lent_stream(&h);
  round_trip(&h, &in, &out);
  lent_close(&h);
}

/* ---- outputs of the library's ---- */

static opipe_status give(void *ctx, uint32_t index, const opipe_tensor *tensor, uint64_t n_bytes,
                         void **out_data) {
  const lent_host *h = ctx;
  OPI_ASSERT(index == 0 && n_bytes == h->out_bytes && tensor->device_type == OPIPE_DL_CUDA &&
             tensor->device_id == 0);
  *out_data = (void *)(uintptr_t)h->d_out;
  return OPIPE_OK;
}

static void test_outputs_stay_on_the_device(void) {
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, 0);
  const opipe_binding_io in = lent_ids(&h, h.d_ids);
  opipe_submit_params params = lent_params(&in, NULL);
  uint64_t before = 0;
  params.flags = OPIPE_SUBMIT_DEVICE_OUTPUTS;
  for (int round = 0; round < rounds(4); ++round) {
    opipe_tensor out;
    lent_fill(&h, h.d_ids);
    opipe_request *request = submit(&h, &params);
    OPI_ASSERT_OK_FATAL(h.k.api->request_wait(request, SOON, &h.k.err), &h.k.err);
    OPI_ASSERT_OK_FATAL(h.k.api->request_output(request, 0, &out, &h.k.err), &h.k.err);
    OPI_ASSERT(out.device_type == OPIPE_DL_CUDA && out.device_id == 0);
    lent_bring(&h, (CUdeviceptr)(uintptr_t)out.data);
    OPI_ASSERT(lent_is_right(&h));
    h.k.api->request_release(request);
    OPI_ASSERT(round == 0 || lent_look(&h).live_bytes == before); /* kept for the next */
    before = lent_look(&h).live_bytes;
  }
  params.on_output = give;
  params.on_output_ctx = &h;
  end(&h, submit(&h, &params));
  lent_bring(&h, h.d_out);
  OPI_ASSERT(lent_is_right(&h));
  lent_close(&h);
}

/* ---- refusals ---- */

static void refused(lent_host *h, const opipe_binding_io *in, const opipe_binding_io *out,
                    opipe_status status, const char *why) {
  const opipe_submit_params params = lent_params(in, out);
  opipe_request *request = NULL;
  OPI_ASSERT_ERROR(h->k.api->session_submit(h->k.session, &params, &request, &h->k.err), status,
                   &h->k.err, why);
}

static void test_what_is_not_ours_is_refused_by_name(void) {
  static const int64_t backwards[2] = {-LENT_SEQ, 1};
  static float home[4];
  lent_host h;
  CUdeviceptr other = 0;
  CUcontext first = NULL, second = NULL;
  void *pinned = NULL;
  LENT_OPEN(&h, LENT_SMALL, &one_rank, 0);
  opipe_binding_io in = lent_ids(&h, h.d_ids), out = lent_out(&h, h.d_out);
  in.tensor.device_id = 1;
  refused(&h, &in, NULL, OPIPE_E_INVALID,
          "tensor 'input_ids' lies on device 2:1, no rank here is on it (rank 0: 2:0)");
  in = lent_ids(&h, (CUdeviceptr)(uintptr_t)home & ~(CUdeviceptr)7);
  refused(&h, &in, NULL, OPIPE_E_INVALID, "is no memory of CUDA's");
  OPI_ASSERT_FATAL(h.driver.context_retain(&first, 0) == CUDA_OK);
  OPI_ASSERT_FATAL(h.driver.context_push(first) == CUDA_OK);
  OPI_ASSERT_FATAL(h.driver.host_alloc(&pinned, 4096, 0) == CUDA_OK);
  in = lent_ids(&h, (CUdeviceptr)(uintptr_t)pinned);
  refused(&h, &in, NULL, OPIPE_E_INVALID, "is pinned host memory, not of GPU 0 (cuda:0)");
  OPI_ASSERT(h.driver.host_free(pinned) == CUDA_OK && h.driver.context_pop(&first) == CUDA_OK);
  OPI_ASSERT(h.driver.context_release(0) == CUDA_OK);
  in = lent_ids(&h, h.d_ids + 3);
  refused(&h, &in, NULL, OPIPE_E_INVALID, "which is no multiple of its element's 8 bytes");
  in = lent_ids(&h, h.d_ids);
  in.tensor.strides = backwards;
  refused(&h, &in, NULL, OPIPE_E_UNSUPPORTED, "with stride -16 in dimension 0");
  OPI_ASSERT_FATAL(h.driver.context_retain(&second, 1) == CUDA_OK);
  OPI_ASSERT_FATAL(h.driver.context_push(second) == CUDA_OK);
  OPI_ASSERT_FATAL(h.driver.memory_alloc(&other, 4096) == CUDA_OK);
  in = lent_ids(&h, other);
  refused(&h, &in, NULL, OPIPE_E_INVALID, "is memory of GPU 1, not of 0 (cuda:0)");
  OPI_ASSERT(h.driver.memory_free(other) == CUDA_OK && h.driver.context_pop(&second) == CUDA_OK);
  OPI_ASSERT(h.driver.context_release(1) == CUDA_OK);
  in = lent_ids(&h, h.d_ids);
  in.ready = (opipe_fence){.kind = OPIPE_FENCE_NATIVE_EVENT};
  refused(&h, &in, NULL, OPIPE_E_INVALID, "a native event without a handle");
  in.ready = lent_stream(&h);
  out.tensor.device_type = OPIPE_DL_CPU;
  out.tensor.data = h.got;
  refused(&h, &in, &out, OPIPE_E_UNSUPPORTED, "is in host memory, which the host writes");
  lent_fill(&h, h.d_ids);
  out = lent_out(&h, h.d_out);
  round_trip(&h, &in, &out); /* nothing of it is left */
  lent_close(&h);
}

/* Two replicas of the one stage read the ids. */
static void test_one_event_is_one_ranks(void) {
  const opipe_plan_params how = {
      .struct_size = sizeof how, .n_stages = 1, .replicas = 2, .n_microbatches = 2};
  lent_host h;
  LENT_OPEN(&h, LENT_SMALL, &how, 0);
  opipe_binding_io in = lent_ids(&h, h.d_ids), out = lent_out(&h, h.d_out);
  lent_fill(&h, h.d_ids);
  round_trip(&h, &in, &out);
  in.done = (opipe_fence){.kind = OPIPE_FENCE_NATIVE_EVENT, .handle = h.context};
  refused(&h, &in, NULL, OPIPE_E_UNSUPPORTED,
          "tensor 'input_ids': 2 ranks touch it, one native event can say that 1 is done");
  lent_close(&h);
}

/* ---- training ---- */

static double train_on(lent_host *h, const opipe_binding_io *inputs) {
  opipe_request *ticket = NULL;
  opipe_train_report report = {.struct_size = sizeof report};
  opipe_submit_params params = opipe_submit_params_init();
  params.n_inputs = 2;
  params.inputs = inputs;
  OPI_ASSERT_OK_FATAL(h->k.api->session_train_step(h->k.session, &params, &ticket, &h->k.err),
                      &h->k.err);
  OPI_ASSERT_OK_FATAL(h->k.api->request_wait(ticket, SOON, &h->k.err), &h->k.err);
  OPI_ASSERT_OK(h->k.api->request_report(ticket, &report, &h->k.err), &h->k.err);
  h->k.api->request_release(ticket);
  return report.loss;
}

static void test_a_training_batch(void) {
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .ignore = -100,
                                     .shift = 1,
                                     .optimizer = OPIPE_OPTIMIZER_SGD,
                                     .lr = 0};
  const opipe_device_choice device = {.kind = "cuda"};
  const opipe_plan_params how = {.struct_size = sizeof how,
                                 .n_stages = 2,
                                 .n_microbatches = 2,
                                 .schedule = "1f1b",
                                 .devices = &device,
                                 .n_devices = 1,
                                 .devices_stride = sizeof device,
                                 .train = &train};
  lent_host h;
  if (!lent_driver(&h))
    OPI_SKIP("%s", "the doubles of CUDA need a C++ compiler at build");
  h.ids_shape[0] = LENT_BATCH;
  h.ids_shape[1] = LENT_SEQ;
  for (int64_t i = 0; i < LENT_IDS; ++i)
    h.ids[i] = i * 7 % 32;
  OPI_ASSERT_OK_FATAL(kit_plan_training(&h.k, LENT_MODEL, LENT_BATCH, LENT_SEQ, &how), &h.k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&h.k, NULL), &h.k.err);
  opipe_binding_io inputs[2] = {kit_ids(h.ids, h.ids_shape), kit_ids(h.ids, h.ids_shape)};
  inputs[1].name = "labels";
  const double wanted = train_on(&h, inputs);
  inputs[0] = lent_ids(&h, h.d_ids);
  inputs[0].done = lent_stream(&h);
  for (int round = 0; round < rounds(3); ++round) {
    lent_fill(&h, h.d_ids);
    OPI_ASSERT(train_on(&h, inputs) == wanted);
    OPI_ASSERT(h.driver.fill(h.d_ids, 0x7f, sizeof h.ids, h.stream) == CUDA_OK);
  }
  inputs[1] = lent_ids(&h, h.d_ids);
  inputs[1].name = "labels";
  opipe_submit_params params = lent_params(inputs, NULL);
  opipe_request *ticket = NULL;
  params.n_inputs = 2;
  OPI_ASSERT_ERROR(h.k.api->session_train_step(h.k.session, &params, &ticket, &h.k.err),
                   OPIPE_E_UNSUPPORTED, &h.k.err, "labels 'labels' lie on device 2:0");
  lent_close(&h);
}

OPI_TEST_MAIN("cuda lent", OPI_TEST(test_nothing_is_copied),
              OPI_TEST(test_nothing_is_copied_in_micro_batches), OPI_TEST(test_ranks_share_a_gpu),
              OPI_TEST(test_the_reference_takes_them_too), OPI_TEST(test_addresses_that_change),
              OPI_TEST(test_what_does_not_fit_is_copied), OPI_TEST(test_events_say_when),
              OPI_TEST(test_memory_is_used_again),
              OPI_TEST(test_a_fence_that_never_comes_holds_up_its_own_request),
              OPI_TEST(test_one_stream_is_queued_before_its_fence_has_come),
              OPI_TEST(test_the_ids_of_one_stream_hold_up_no_other),
              OPI_TEST(test_the_answer_of_one_stream_holds_up_no_other),
              OPI_TEST(test_fences_of_host_memory), OPI_TEST(test_outputs_stay_on_the_device),
              OPI_TEST(test_what_is_not_ours_is_refused_by_name),
              OPI_TEST(test_one_event_is_one_ranks), OPI_TEST(test_a_training_batch))
