/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's device, for inference and training alike: memory charged to the budget, programs, and
 * copies between the host's tensors and its buffers.
 */
#include <stdio.h>

#include "loader/base/sizes.h"
#include "partition/plan/kernels.h"
#include "runtime/device/device.h"
#include "runtime/device/record.h"

/* ---- memory ---- */

opipe_status opi_rank_charge(opi_rank *rank, uint64_t n_bytes, const char *what, opipe_error *err) {
  const opi_setup *s = rank->setup;
  char whose[96];
  if (s->env.budget == NULL || n_bytes == 0)
    return OPIPE_OK;
  (void)snprintf(whose, sizeof whose, "rank %u: %s", rank->index, what);
  OPI_TRY(opi_budget_charge(s->env.budget, s->env.backends[rank->index].id,
                            s->plan->decided.devices[rank->index].index, n_bytes, whose, err));
  rank->charged_bytes += n_bytes;
  return OPIPE_OK;
}

void opi_rank_discharge(opi_rank *rank, uint64_t n_bytes) {
  const opi_setup *s = rank->setup;
  if (s->env.budget == NULL)
    return;
  opi_budget_release(s->env.budget, s->env.backends[rank->index].id,
                     s->plan->decided.devices[rank->index].index, n_bytes);
  rank->charged_bytes -= n_bytes;
}

/* Where messages arrive in the transport's own memory, that is what boundary buffers are made of.
 */
static bool uses_wire_memory(const opi_rank *rank, uint32_t kind) {
  const opipe_transport *transport = rank->setup->transport;
  return kind == OPIPE_BUFFER_BOUNDARY && rank->endpoint != NULL &&
         (rank->device_flags & OPIPE_DEVICE_HOST_MEMORY) != 0 &&
         OPIPE_HAS(transport, opipe_transport, memory_free) && transport->memory_alloc != NULL &&
         OPIPE_HAS(rank->backend, opipe_backend, buffer_import) &&
         rank->backend->buffer_import != NULL;
}

static opipe_status take_wire_memory(opi_rank *rank, uint64_t n_bytes, opi_block *out_block,
                                     opipe_error *err) {
  OPI_TRY(
      OPI_ASK_WIRE(rank->setup, memory_alloc, err, rank->endpoint, n_bytes, &out_block->wire_data));
  if (out_block->wire_data == NULL || (uintptr_t)out_block->wire_data % rank->alignment != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "transport '%s': memory at %p, the device's buffers are aligned to %u bytes",
                    rank->setup->env.transport.id, out_block->wire_data, rank->alignment);
  }
  rank->wire_bytes += n_bytes;
  return OPI_MAKE_RANK(rank, buffer_import, &out_block->buffer, err, rank->device,
                       (uint64_t)(uintptr_t)out_block->wire_data, n_bytes);
}

/* The device holds its cap for what it has handed out; the transport's memory comes on top. */
static opipe_status check_cap(const opi_rank *rank, uint64_t n_bytes, bool wire, opipe_error *err) {
  const uint64_t cap =
      rank->setup->reference ? 0 : rank->setup->plan->decided.devices[rank->index].memory_bytes;
  opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
  uint64_t used = rank->wire_bytes;
  if (cap == 0 || (!wire && used == 0))
    return OPIPE_OK;
  OPI_TRY(OPI_ASK_RANK(rank, device_usage, err, rank->device, &usage));
  for (uint32_t kind = 0; kind < OPIPE_BUFFER_KINDS; ++kind)
    used += usage.live_bytes[kind];
  if (used <= cap && n_bytes <= cap - used)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_LIMIT, "%s are in use, the device's cap is %s", OPI_SIZE(used),
                  OPI_SIZE(cap));
}

static opipe_status allocate(opi_rank *rank, uint64_t n_bytes, uint32_t kind, opi_block *out_block,
                             opipe_error *err) {
  void *host = NULL;
  const bool wire = uses_wire_memory(rank, kind);
  OPI_TRY(check_cap(rank, n_bytes, wire, err));
  if (wire) {
    OPI_TRY(take_wire_memory(rank, n_bytes, out_block, err));
  } else {
    OPI_TRY(
        OPI_MAKE_RANK(rank, buffer_alloc, &out_block->buffer, err, rank->device, n_bytes, kind));
  }
  if ((kind == OPIPE_BUFFER_BOUNDARY || kind == OPIPE_BUFFER_STATE) &&
      (rank->device_flags & OPIPE_DEVICE_HOST_MEMORY) != 0)
    OPI_TRY(opi_buffer_host(rank, out_block->buffer, &host, err));
  out_block->host = host;
  return OPIPE_OK;
}

opipe_status opi_rank_take(opi_rank *rank, uint64_t n_bytes, uint32_t kind, const char *what,
                           opi_block *out_block, opipe_error *err) {
  *out_block = (opi_block){.n_bytes = 0};
  if (n_bytes == 0)
    return OPIPE_OK;
  OPI_TRY(opi_rank_charge(rank, n_bytes, what, err));
  out_block->n_bytes = n_bytes;
  const opipe_status status = allocate(rank, n_bytes, kind, out_block, err);
  if (status == OPIPE_OK)
    return OPIPE_OK;
  opi_rank_give(rank, out_block);
  return opi_error_prefix(err, "rank %u, %s of %s: ", rank->index, what, OPI_SIZE(n_bytes));
}

opipe_status opi_rank_register(const opi_rank *rank, opi_block *block, opipe_error *err) {
  if (block->buffer == NULL || rank->endpoint == NULL)
    return OPIPE_OK;
  const opipe_status status = OPI_ASK_WIRE(rank->setup, memory_register, err, rank->endpoint,
                                           block->buffer, block->n_bytes, &block->memory);
  return status < 0 ? opi_error_prefix(err, "rank %u, a buffer of %s: ", rank->index,
                                       OPI_SIZE(block->n_bytes))
                    : OPIPE_OK;
}

void opi_rank_give(opi_rank *rank, opi_block *block) {
  if (block->n_bytes == 0)
    return;
  if (block->memory != NULL)
    rank->setup->transport->memory_drop(block->memory);
  rank->backend->buffer_free(block->buffer);
  if (block->wire_data != NULL) {
    rank->setup->transport->memory_free(rank->endpoint, block->wire_data);
    rank->wire_bytes -= block->n_bytes;
  }
  opi_rank_discharge(rank, block->n_bytes);
  *block = (opi_block){.buffer = NULL};
}

/* ---- kernels ---- */

/* Gives the plan's table to the device. A table that does not fit causes a warning, or is refused
 * if the session requires one. */
opipe_status opi_rank_give_kernels(opi_rank *rank, opipe_error *err) {
  const opi_setup *s = rank->setup;
  const bool needed = (s->flags & OPIPE_SESSION_TUNED) != 0;
  char why[OPI_KERNELS_WHY_ROOM];
  if (!needed && s->plan->predicted.kernels == NULL)
    return OPIPE_OK;
  if (s->plan->predicted.kernels == NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "the plan has no table of kernels that were chosen by measuring, and one is "
                    "required: 'onnx-pipe tune' makes it");
  }
  OPI_TRY(opi_kernels_give(s->plan->predicted.kernels, opi_rank_backend(rank), rank->device,
                           &rank->has_kernels, why, err));
  if (rank->has_kernels || !opi_backend_tunes(opi_rank_backend(rank)))
    return OPIPE_OK;
  if (needed)
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "%s: measure again, by 'onnx-pipe tune'", why);
  opi_log(s->env.logger, OPIPE_LOG_WARN, "rank %u: %s; it computes by its backend's own choice",
          rank->index, why);
  return OPIPE_OK;
}

/* Reports kernels that were not chosen by the table, because their shape is not in it or the
 * backend did not take its choice. */
static opipe_status check_kernels(const opi_rank *rank, const opipe_program *program,
                                  uint32_t stage, opipe_error *err) {
  const opi_setup *s = rank->setup;
  const char *first = NULL;
  opipe_kernel *kernels = NULL;
  opi_arena arena;
  uint32_t n = 0;
  opi_arena_init(&arena, s->allocator, 0);
  opipe_status status = opi_kernels_ask(opi_rank_backend(rank), program, &arena, &kernels, &n, err);
  const uint32_t n_own = status < 0 ? 0 : opi_kernels_count_own(kernels, n, &first);
  if (n_own != 0 && (s->flags & OPIPE_SESSION_TUNED) != 0) {
    status = opi_fail(err, OPIPE_E_UNSUPPORTED,
                      "%u of %u kernels are not as the plan's table says, '%.200s' is the first",
                      n_own, n, first);
  } else if (n_own != 0) {
    opi_log(s->env.logger, OPIPE_LOG_WARN,
            "rank %u, stage %u: %u of %u kernels are the backend's own choice, the plan's table "
            "does not serve for '%.200s'",
            rank->index, stage, n_own, n, first);
  }
  opi_arena_release(&arena);
  return status;
}

/* ---- programs ---- */

/* Waits in slices, so that an abort is noticed and the watchdog looks. */
opipe_status opi_queue_sync(const opi_rank *rank, opipe_queue *queue, opipe_event *event,
                            opipe_error *err) {
  if (event == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_record(opi_rank_backend(rank), queue, event, OPI_RECORD_NS, err));
  opipe_status status = OPIPE_E_TIMEOUT;
  while (status == OPIPE_E_TIMEOUT && !opi_session_failed(rank->setup)) {
    status = rank->backend->event_sync(event, OPI_LOOK_NS, err);
    if (status != OPIPE_E_TIMEOUT)
      status = opi_answer(status, "backend", opi_rank_backend(rank)->id, "event_sync", err);
    if (status == OPIPE_E_TIMEOUT)
      rank->setup->above.watch(rank->setup);
  }
  return status;
}

opipe_status opi_rank_compile(const opi_rank *rank, const opipe_graph *graph, uint32_t stage,
                              uint32_t flags, opipe_program **out_program,
                              opipe_program_info *out_info, opipe_error *err) {
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, stage),
      .flags = rank->setup->compile_flags | flags,
      .graph = graph,
      .stage = stage};
  *out_info =
      (opipe_program_info){.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  opipe_status status = OPI_MAKE_RANK(rank, compile, out_program, err, rank->device, &params);
  if (status == OPIPE_OK)
    status = opi_program_ask(opi_rank_backend(rank), *out_program, out_info, err);
  if (status == OPIPE_OK && rank->has_kernels)
    status = check_kernels(rank, *out_program, stage, err);
  return status < 0 ? opi_error_prefix(err, "rank %u, stage %u: ", rank->index, stage) : OPIPE_OK;
}

opipe_status opi_rank_bind(const opi_rank *rank, uint32_t stage, const opipe_bind_params *params,
                           opipe_binding **out_binding, opipe_error *err) {
  const opipe_status status = OPI_MAKE_RANK(rank, bind, out_binding, err, rank->device, params);
  return status < 0 ? opi_error_prefix(err, "rank %u, stage %u: ", rank->index, stage) : OPIPE_OK;
}

/* ---- tensors ---- */

static bool is_plain_host(const opi_rank *rank) {
  const uint32_t both = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  return (rank->device_flags & both) == both;
}

/* Ranks may still use the staging memory from before, so it is kept until the end. */
opipe_status opi_rank_reserve_staging(opi_rank *rank, uint64_t n_bytes, opipe_error *err) {
  opi_setup *s = rank->setup;
  if (rank->event != NULL) {
    const uint64_t many = OPI_STAGED * n_bytes, most = OPI_STAGING_BYTES;
    n_bytes = many < most ? many : 2 * n_bytes > most ? 2 * n_bytes : most;
  }
  if (is_plain_host(rank) || n_bytes <= rank->staging_bytes)
    return OPIPE_OK;
  opi_staging *more = OPI_ARENA_NEW(&s->arena, opi_staging);
  if (more == NULL)
    return opi_fail_nomem(err, sizeof *more, "staging memory");
  OPI_TRY(opi_pinned_take(opi_rank_backend(rank), rank->device, s->allocator, n_bytes,
                          "staging memory", &more->memory, err));
  more->next = rank->stagings;
  rank->stagings = more;
  rank->staging_bytes = n_bytes;
  atomic_store_explicit(&rank->staging, more, memory_order_release);
  return OPIPE_OK;
}

opipe_status opi_rank_write(opi_rank *rank, const opi_view *view, const opipe_region *region,
                            char *host, opipe_error *err) {
  const char *src = view->data;
  if (region->n_bytes == 0)
    return OPIPE_OK;
  if (is_plain_host(rank)) {
    opi_view_gather(view, host);
    return OPIPE_OK;
  }
  if (!opi_view_is_dense(view)) {
    char *staging = opi_rank_staging(rank);
    opi_view_gather(view, staging);
    src = staging;
  }
  OPI_TRY(OPI_ASK_RANK(rank, write, err, rank->queue, region, src));
  return opi_rank_sync(rank, err); /* the source may be reused, by us or by the caller */
}

opipe_status opi_rank_read(opi_rank *rank, const opipe_region *region, char *host,
                           const char **out_data, opipe_error *err) {
  *out_data = host;
  if (is_plain_host(rank))
    return OPIPE_OK;
  char *staging = opi_rank_staging(rank);
  OPI_TRY(OPI_ASK_RANK(rank, read, err, rank->queue, staging, region));
  *out_data = staging;
  return opi_rank_sync(rank, err);
}
