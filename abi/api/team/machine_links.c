/* SPDX-License-Identifier: Apache-2.0 */
/* Links between the processes of a team, measured by the transport's own calls: process 0 hands a
 * small message back and forth with each other process, then large ones. */
#include "abi/api/team/machine_links.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 2001, COPIES = 9, SMALL_BYTES = 64, LARGE_BYTES = 8 << 20, DEPTH = 2 };
enum { SPIN_US = 50, ID_ROOM = 64 };
#define WAIT_NS UINT64_C(1000000000)
#define READY_NS UINT64_C(10000000000)

typedef struct links {
  opi_context_object *context;
  opi_team *team;
  opipe_team_info info;
  opipe_board board; /* the team's, with keys of this measurement */
  uint32_t number;   /* of process 0's measurements: the same in all */
  opi_backend_ref backend;
  opi_transport_ref transport;
  opipe_device *device;
  opipe_queue *queue;
  opipe_world *world;
  opipe_endpoint *endpoint;
  void *given;                   /* the transport's memory; NULL: it gives none */
  opipe_buffer *received, *sent; /* [DEPTH] large messages; one */
  opipe_memory *received_in, *sent_in;
  opipe_stream **out, **in;     /* [size] of process 0; of others [0] is used */
  uint64_t *out_next, *in_next; /* numbers of the next messages */
  double ns[ROUNDS];
} links;

/* ---- the team ---- */

static opipe_status post(void *ctx, const char *key, const void *bytes, uint64_t n_bytes,
                         opipe_error *err) {
  const links *l = ctx;
  char whole[2 * OPIPE_BOARD_KEY];
  (void)snprintf(whole, sizeof whole, "links %u/%.*s", l->number, OPIPE_BOARD_KEY, key);
  return opi_team_post(l->team, whole, bytes, n_bytes, err);
}

static opipe_status look(void *ctx, const char *key, void *out, uint64_t *io_bytes,
                         opipe_error *err) {
  const links *l = ctx;
  char whole[2 * OPIPE_BOARD_KEY];
  (void)snprintf(whole, sizeof whole, "links %u/%.*s", l->number, OPIPE_BOARD_KEY, key);
  return opi_team_look(l->team, whole, out, io_bytes, err);
}

/* One answer for all: the first refusal, or OK. */
static opipe_status agree(links *l, const char *name, opipe_status own, opipe_error *err) {
  const opipe_error why = own < 0 && err != NULL ? *err : (opipe_error)OPIPE_ERROR_INIT;
  const opipe_gather_params call = {.struct_size = (uint32_t)sizeof call,
                                    .name = name,
                                    .timeout_ns = UINT64_MAX,
                                    .reason = why.message,
                                    .refused = own < 0 ? own : OPIPE_OK};
  return opi_team_gather(l->team, &call, err);
}

static opipe_status take_number(void *ctx, uint32_t process, const void *data, uint64_t n) {
  links *l = ctx;
  if (process == 0 && n == sizeof l->number)
    memcpy(&l->number, data, sizeof l->number);
  return OPIPE_OK;
}

/* All processes take process 0's count. */
static opipe_status number_it(links *l, opipe_error *err) {
  static atomic_uint n_measured;
  const uint32_t own = atomic_fetch_add(&n_measured, 1);
  const opipe_gather_params call = {.struct_size = (uint32_t)sizeof call,
                                    .name = "links",
                                    .timeout_ns = UINT64_MAX,
                                    .data = &own,
                                    .n_bytes = sizeof own,
                                    .part = take_number,
                                    .part_ctx = l};
  return opi_team_gather(l->team, &call, err);
}

/* ---- opening ---- */

static bool gives_memory(const links *l) {
  return OPIPE_HAS(l->transport.table, opipe_transport, memory_free) &&
         l->transport.table->memory_alloc != NULL &&
         OPIPE_HAS(l->backend.table, opipe_backend, buffer_import) &&
         l->backend.table->buffer_import != NULL;
}

static opipe_status open_memory(links *l, opipe_error *err) {
  const opipe_backend *b = l->backend.table;
  const opipe_transport *t = l->transport.table;
  const uint64_t n_bytes = (uint64_t)DEPTH * LARGE_BYTES;
  if (gives_memory(l)) {
    OPI_TRY(t->memory_alloc(l->endpoint, n_bytes, &l->given, err));
    OPI_TRY(b->buffer_import(l->device, (uint64_t)(uintptr_t)l->given, n_bytes, &l->received, err));
  } else {
    OPI_TRY(b->buffer_alloc(l->device, n_bytes, OPIPE_BUFFER_BOUNDARY, &l->received, err));
  }
  OPI_TRY(b->buffer_alloc(l->device, LARGE_BYTES, OPIPE_BUFFER_BOUNDARY, &l->sent, err));
  OPI_TRY(t->memory_register(l->endpoint, l->received, n_bytes, &l->received_in, err));
  return t->memory_register(l->endpoint, l->sent, LARGE_BYTES, &l->sent_in, err);
}

static opipe_status open_world(links *l, const char *options, opipe_error *err) {
  const opipe_backend *b = l->backend.table;
  const opipe_transport *t = l->transport.table;
  const opipe_team_info *team = &l->info;
  const opipe_world_params world = {.struct_size = (uint32_t)sizeof world,
                                    .n_ranks = team->size,
                                    .options = options,
                                    .local_ranks = &team->rank,
                                    .n_local_ranks = 1,
                                    .job = team->job,
                                    .board = &l->board};
  const opipe_device_params device = {.struct_size = (uint32_t)sizeof device, .threads = 1};
  OPI_TRY(b->device_open(l->backend.self, &device, &l->device, err));
  OPI_TRY(b->queue_open(l->device, &l->queue, err));
  OPI_TRY(t->world_open(l->transport.self, &world, &l->world, err));
  const opipe_endpoint_params endpoint = {.struct_size = (uint32_t)sizeof endpoint,
                                          .rank = team->rank,
                                          .backend = b,
                                          .device = l->device,
                                          .queue = l->queue,
                                          .backend_self = l->backend.self,
                                          .backend_id = l->backend.id,
                                          .spin_us = SPIN_US};
  OPI_TRY(t->endpoint_open(l->world, &endpoint, &l->endpoint, err));
  return open_memory(l, err);
}

/* Both directions between process 0 and `other`. */
static opipe_status open_streams(links *l, uint32_t other, opipe_error *err) {
  const uint32_t own = l->info.rank, i = own == 0 ? other : 0;
  for (uint32_t k = 0; k < 2; ++k) {
    const uint32_t src = k == 0 ? 0 : other, dst = k == 0 ? other : 0;
    const opipe_stream_params p = {.struct_size = (uint32_t)sizeof p,
                                   .src_rank = src,
                                   .dst_rank = dst,
                                   .src_stage = src,
                                   .dst_stage = dst,
                                   .depth = DEPTH,
                                   .n_bytes = LARGE_BYTES};
    OPI_TRY(
        l->transport.table->stream_open(l->endpoint, &p, src == own ? &l->out[i] : &l->in[i], err));
  }
  return OPIPE_OK;
}

static opipe_status await_ready(links *l, opipe_error *err) {
  const opipe_transport *t = l->transport.table;
  const struct timespec pause = {.tv_nsec = 50000};
  const uint64_t start = opi_clock_ns();
  if (!OPIPE_HAS(t, opipe_transport, endpoint_ready) || t->endpoint_ready == NULL)
    return OPIPE_OK;
  for (;;) {
    const opipe_status status = t->endpoint_ready(l->endpoint, err);
    if (status != OPIPE_PENDING)
      return status;
    OPI_TRY(opi_team_check(l->team, err));
    if (opi_clock_ns() - start > READY_NS) {
      return opi_fail(
          err, OPIPE_E_TIMEOUT, "transport '%s': process %u does not find the others in %llu s",
          l->transport.id, l->info.rank, (unsigned long long)(READY_NS / UINT64_C(1000000000)));
    }
    (void)nanosleep(&pause, NULL);
  }
}

static opipe_status open_links(links *l, const char *spec, opipe_error *err) {
  const uint32_t size = l->info.size;
  const opi_plugins *plugins = &l->context->plugins;
  const char *options = NULL;
  char id[ID_ROOM];
  OPI_TRY(opi_transport_split(spec, id, &options, err));
  OPI_TRY(plugins->transport(plugins->ctx, id, &l->transport, err));
  OPI_TRY(opi_team_check_transport(l->team, &l->info, &l->transport, err));
  OPI_TRY(plugins->backend(plugins->ctx, "cpu", &l->backend, err));
  OPI_TRY(open_world(l, options, err));
  for (uint32_t r = 1; r < size; ++r) {
    if (l->info.rank == 0 || l->info.rank == r)
      OPI_TRY(open_streams(l, r, err));
  }
  return OPIPE_OK;
}

static void close_links(links *l) {
  const opipe_transport *t = l->transport.table;
  const opipe_backend *b = l->backend.table;
  for (uint32_t i = 0; t != NULL && i < l->info.size; ++i) {
    t->stream_close(l->out[i]);
    t->stream_close(l->in[i]);
  }
  if (t != NULL) {
    t->memory_drop(l->received_in);
    t->memory_drop(l->sent_in);
  }
  if (b != NULL) {
    b->buffer_free(l->received);
    b->buffer_free(l->sent);
  }
  if (l->given != NULL)
    t->memory_free(l->endpoint, l->given);
  if (t != NULL) {
    t->endpoint_close(l->endpoint);
    t->world_close(l->world);
  }
  if (b != NULL) {
    b->queue_close(l->queue);
    b->device_close(l->device);
  }
}

/* ---- messages ---- */

enum { RESERVE = 0, SEND, RECV, ARRIVED };

static opipe_status try_call(links *l, uint32_t i, int call, uint64_t n_bytes, opipe_error *err) {
  const opipe_transport *t = l->transport.table;
  const opipe_region from = {l->sent, 0, n_bytes};
  const opipe_region to = {l->received, l->in_next[i] % DEPTH * LARGE_BYTES, n_bytes};
  switch (call) {
    case RESERVE:
      return t->reserve(l->out[i], l->out_next[i], err);
    case SEND:
      return t->send(l->out[i], l->out_next[i], &from, NULL, NULL, err);
    case RECV:
      return t->recv(l->in[i], l->in_next[i], &to, NULL, err);
    default:
      return t->test(l->in[i], l->in_next[i], err);
  }
}

static opipe_status until_done(links *l, uint32_t i, int call, uint64_t n_bytes, opipe_error *err) {
  const opipe_transport *t = l->transport.table;
  for (uint64_t waited = 0; waited < READY_NS;) {
    const uint32_t seen = t->doorbell(l->endpoint);
    opipe_status status = try_call(l, i, call, n_bytes, err);
    if (status != OPIPE_PENDING)
      return status;
    status = t->wait(l->endpoint, seen, WAIT_NS, err);
    if (status == OPIPE_E_TIMEOUT) {
      waited += WAIT_NS;
      status = opi_team_check(l->team, err);
    }
    if (status < 0)
      return status;
  }
  return opi_fail(err, OPIPE_E_TIMEOUT, "process %u hears nothing over transport '%s' for %llu s",
                  l->info.rank, l->transport.id,
                  (unsigned long long)(READY_NS / UINT64_C(1000000000)));
}

static opipe_status give(links *l, uint32_t i, uint64_t n_bytes, opipe_error *err) {
  OPI_TRY(until_done(l, i, RESERVE, n_bytes, err));
  OPI_TRY(until_done(l, i, SEND, n_bytes, err));
  ++l->out_next[i];
  return OPIPE_OK;
}

static opipe_status take(links *l, uint32_t i, opipe_error *err) {
  OPI_TRY(until_done(l, i, ARRIVED, LARGE_BYTES, err));
  ++l->in_next[i];
  return until_done(l, i, RECV, LARGE_BYTES, err); /* one is posted ahead */
}

static int rising(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Process 0's side: the median time of so many large or small messages, each of which is answered
 * by a small one. */
static opipe_status ask(links *l, uint32_t i, uint64_t n_bytes, uint32_t n, double *out_ns,
                        opipe_error *err) {
  for (uint32_t k = 0; k < n; ++k) {
    const uint64_t start = opi_clock_ns();
    OPI_TRY(give(l, i, n_bytes, err));
    OPI_TRY(take(l, i, err));
    l->ns[k] = (double)(opi_clock_ns() - start);
  }
  qsort(l->ns, n, sizeof *l->ns, rising);
  *out_ns = l->ns[n / 2];
  return OPIPE_OK;
}

static opipe_status measure(links *l, uint32_t other, opi_between *io_slowest, opipe_error *err) {
  const bool asks = l->info.rank == 0;
  const uint32_t i = asks ? other : 0;
  double small = 0, large = 0;
  OPI_TRY(until_done(l, i, RECV, LARGE_BYTES, err));
  for (uint32_t k = 0; k < ROUNDS + COPIES && !asks; ++k) {
    OPI_TRY(take(l, i, err));
    OPI_TRY(give(l, i, SMALL_BYTES, err));
  }
  if (!asks)
    return OPIPE_OK;
  OPI_TRY(ask(l, i, SMALL_BYTES, ROUNDS, &small, err));
  OPI_TRY(ask(l, i, LARGE_BYTES, COPIES, &large, err));
  const double rate = large > small ? LARGE_BYTES / (large - small) : 0;
  if (small / 2 > io_slowest->latency_ns)
    io_slowest->latency_ns = small / 2;
  if (io_slowest->bytes_per_ns == 0 || rate < io_slowest->bytes_per_ns)
    io_slowest->bytes_per_ns = rate;
  return OPIPE_OK;
}

/* Pair by pair: the others sleep meanwhile. The result is left on the board. */
static opipe_status measure_all(links *l, opi_between *out, opipe_error *err) {
  const opipe_board *board = &l->board;
  uint64_t n_bytes = sizeof *out;
  OPI_TRY(agree(l, "links are open", await_ready(l, err), err));
  for (uint32_t r = 1; r < l->info.size; ++r) {
    const bool takes_part = l->info.rank == 0 || l->info.rank == r;
    const opipe_status own = takes_part ? measure(l, r, out, err) : OPIPE_OK;
    OPI_TRY(agree(l, "a link is measured", own, err));
  }
  if (l->info.rank == 0)
    OPI_TRY(board->post(board->ctx, "links", out, sizeof *out, err));
  OPI_TRY(agree(l, "links are known", OPIPE_OK, err));
  return l->info.rank == 0 ? OPIPE_OK : board->look(board->ctx, "links", out, &n_bytes, err);
}

static opipe_status measure_team(links *l, const char *transport, opi_between *out,
                                 opipe_error *err) {
  const uint32_t size = l->info.size;
  opi_arena arena;
  opi_arena_init(&arena, &l->context->allocator, 0);
  l->out = OPI_ARENA_ARRAY(&arena, opipe_stream *, size);
  l->in = OPI_ARENA_ARRAY(&arena, opipe_stream *, size);
  l->out_next = OPI_ARENA_ARRAY(&arena, uint64_t, size);
  l->in_next = OPI_ARENA_ARRAY(&arena, uint64_t, size);
  const bool room = l->out != NULL && l->in != NULL && l->out_next != NULL && l->in_next != NULL;
  opipe_status status = number_it(l, err);
  if (status == OPIPE_OK) {
    status = room ? open_links(l, transport, err) : opi_fail_nomem(err, size, "links");
    status = agree(l, "links are made", status, err);
  }
  if (status == OPIPE_OK)
    status = measure_all(l, out, err);
  if (room)
    close_links(l);
  opi_arena_release(&arena);
  return status;
}

opipe_status opi_links_measure(opi_context_object *context, opipe_team *team, const char *transport,
                               opi_between *out, opipe_error *err) {
  opi_entry in;
  *out = (opi_between){0, 0};
  OPI_TRY(opi_handle_enter(team, OPI_HANDLE_TEAM, "cluster_of_machine", &in, err));
  const opi_team_object *object = in.object;
  opipe_status status = OPIPE_OK;
  links *l = opi_alloc_zero(&context->allocator, 1, sizeof *l);
  if (l == NULL) {
    status = opi_fail_nomem(err, sizeof *l, "a measurement");
  } else {
    l->context = context;
    l->team = object->team;
    l->info.struct_size = (uint32_t)sizeof l->info;
    opi_team_info(l->team, &l->info);
    l->board = (opipe_board){(uint32_t)sizeof l->board, 0, l, post, look};
    if (l->info.size > 1)
      status = measure_team(l, transport, out, err);
    opi_free(&context->allocator, l, sizeof *l);
  }
  opi_handle_leave(&in);
  return status;
}
