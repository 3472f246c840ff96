/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are taken back before a rank has begun with them: once they have finished, what
 * they borrowed is the host's again, and their state may go, although ranks come by them later.
 * And a state's request for which there is no memory. ctest: timeout=120
 */
#include <sys/mman.h>
#include <unistd.h>

#include "tests/abi/decoder_kit.h"

#define SOON UINT64_C(60000000000)
static const int64_t ids[32] = {1, 2, 3, 4, 5, 6, 7, 8};

/* ---- a state ---- */

static opipe_status open_on(host_kit *k, const opipe_context_params *context, const char *device,
                            const char *options) {
  const opipe_device_choice choice = {.kind = device, .options = options, .threads = 1};
  opipe_plan_params params = opipe_plan_params_init();
  params.devices = &choice;
  params.n_devices = 1;
  params.n_streams = 2;
  return decoder_open(k, context, params);
}

static opipe_status decode(host_kit *k, opipe_state *state, bool first, opipe_request **out) {
  return decoder_submit(k, state, first, ids, out, &k->err);
}

/* Ranks are busy with another state's request meanwhile. */
static void test_a_state_goes_with_a_cancelled_request(void) {
  host_kit k;
  opipe_state *busy = NULL, *state = NULL;
  opipe_request *before = NULL, *request = NULL;
  uint32_t n_taken_back = 0;
  OPI_ASSERT_OK_FATAL(open_on(&k, NULL, "emulated", "time_us=30000"), &k.err);
  OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &busy, &k.err), &k.err);
  OPI_ASSERT_OK_FATAL(decode(&k, busy, true, &before), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(before, SOON, &k.err), &k.err);
  for (uint32_t i = 0; i < 6; ++i) {
    k.api->request_release(before);
    OPI_ASSERT_OK_FATAL(decode(&k, busy, false, &before), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &state, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(decode(&k, state, true, &request), &k.err);
    OPI_ASSERT_OK(k.api->request_cancel(request, &k.err), &k.err);
    OPI_ASSERT_INT(k.api->request_wait(request, SOON, &k.err), OPIPE_E_CANCELLED);
    n_taken_back += k.api->request_poll(before, &k.err) == OPIPE_PENDING;
    k.api->request_release(request);
    k.api->state_close(state);
    OPI_ASSERT_OK(k.api->request_wait(before, SOON, &k.err), &k.err);
  }
  OPI_ASSERT(n_taken_back > 0);
  k.api->request_release(before);
  k.api->state_close(busy);
  kit_close(&k);
}

/* Each allocation of the first request of a state is refused once; returns how many there are. */
static uint64_t refuse_each(host_kit *k, opi_test_memory *memory) {
  uint64_t n_refused = 0, n = 0;
  do {
    opipe_state *state = NULL;
    opipe_request *request = NULL;
    OPI_ASSERT_OK_FATAL(k->api->session_state_open(k->session, NULL, &state, &k->err), &k->err);
    n_refused = memory->n_failed;
    memory->fail_at = ++n;
    const opipe_status status = decode(k, state, true, &request);
    memory->fail_at = 0;
    OPI_ASSERT(status == OPIPE_OK || (status == OPIPE_E_NOMEM && memory->n_failed > n_refused));
    if (status == OPIPE_OK) {
      OPI_ASSERT_OK(k->api->request_wait(request, SOON, &k->err), &k->err);
      k->api->request_release(request);
    }
    k->api->state_close(state);
  } while (memory->n_failed > n_refused);
  return n;
}

/* At first its shape is made too, and stays; then what a state has of its own is all there is. */
static void test_no_memory_for_a_request_of_a_state(void) {
  opi_test_memory memory = {.fail_at = 0};
  opi_test_memory_init(&memory);
  const opipe_context_params context = {.struct_size = sizeof context,
                                        .allocator = &memory.allocator};
  host_kit k;
  OPI_ASSERT_OK_FATAL(open_on(&k, &context, "cpu", NULL), &k.err);
  const uint64_t with_shape = refuse_each(&k, &memory), alone = refuse_each(&k, &memory);
  OPI_ASSERT(with_shape > alone && alone > 2);
  kit_close(&k);
  OPI_ASSERT(opi_test_memory_end(&memory));
}

/* ---- flags ---- */

static void *new_flag(void) {
  void *page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  OPI_ASSERT_FATAL(page != MAP_FAILED);
  return page;
}

/* Whoever reads it from now on is ended by a signal. */
static void drop_flag(void *flag) {
  (void)munmap(flag, (size_t)sysconf(_SC_PAGESIZE));
}

static void drop_when_done(void *ctx, opipe_request *request, opipe_status status) {
  (void)request;
  (void)status;
  drop_flag(ctx);
}

typedef struct flagged {
  bool trains, late, in_on_done, another;
} flagged;

static opipe_status start(host_kit *k, const flagged *f, opipe_submit_params *params,
                          opipe_request **out) {
  return f->trains ? k->api->session_train_step(k->session, params, out, &k->err)
                   : k->api->session_submit(k->session, params, out, &k->err);
}

/* A request that waits for its flag is taken back, or late; others come behind it. */
static void take_back(host_kit *k, const flagged *f) {
  static const int64_t shape[2] = {2, 8};
  opipe_binding_io in[2] = {kit_ids(ids, shape), kit_ids(ids, shape)};
  opipe_submit_params params = opipe_submit_params_init();
  opipe_request *request = NULL, *behind = NULL;
  void *flag = new_flag();
  in[1].name = "labels";
  in[0].ready = (opipe_fence){.kind = OPIPE_FENCE_HOST_FLAG, .handle = flag};
  params.inputs = in;
  params.n_inputs = f->trains ? 2 : 1;
  params.deadline_ns = f->late ? 2000000 : 0;
  params.on_done = f->in_on_done ? drop_when_done : NULL;
  params.on_done_ctx = flag;
  OPI_ASSERT_OK_FATAL(start(k, f, &params, &request), &k->err);
  in[0].ready = (opipe_fence){.kind = OPIPE_FENCE_NONE};
  params.deadline_ns = 0;
  params.on_done = NULL;
  if (f->another)
    OPI_ASSERT_OK_FATAL(start(k, f, &params, &behind), &k->err);
  if (!f->late)
    OPI_ASSERT_OK(k->api->request_cancel(request, &k->err), &k->err);
  OPI_ASSERT_INT(k->api->request_wait(request, SOON, &k->err),
                 f->late ? OPIPE_E_TIMEOUT : OPIPE_E_CANCELLED);
  if (!f->in_on_done)
    drop_flag(flag);
  k->api->request_release(request);
  if (!f->another)
    OPI_ASSERT_OK_FATAL(start(k, f, &params, &behind), &k->err);
  OPI_ASSERT_OK(k->api->request_wait(behind, SOON, &k->err), &k->err);
  k->api->request_release(behind);
}

static void test_a_flag_goes_with_its_request(void) {
  for (uint32_t trains = 0; trains < 2; ++trains) {
    host_kit k;
    const opipe_train_options train = {.struct_size = sizeof train,
                                       .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                       .labels = "labels",
                                       .lr = 0.001};
    opipe_plan_params params = opipe_plan_params_init();
    params.n_stages = 2;
    params.train = trains != 0 ? &train : NULL;
    OPI_ASSERT_OK_FATAL(
        kit_plan_bound(&k, NULL, "tests/data/gpt_8block/model.onnx", 2, 8,
                       trains != 0 ? OPIPE_BIND_TRAIN : OPIPE_BIND_DEFAULTS, &params),
        &k.err);
    OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
    for (uint32_t how = 0; how < 16; ++how) {
      const flagged f = {trains != 0, (how & 1) != 0, (how & 2) != 0, (how & 4) != 0};
      take_back(&k, &f);
    }
    kit_close(&k);
  }
}

OPI_TEST_MAIN("requests that are taken back", OPI_TEST(test_a_state_goes_with_a_cancelled_request),
              OPI_TEST(test_no_memory_for_a_request_of_a_state),
              OPI_TEST(test_a_flag_goes_with_its_request))
