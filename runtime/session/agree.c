/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the hashes of plan and kernels once round the ring of ranks, over the transport that will
 * carry the tensors. */
#include "runtime/session/agree.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/device/device.h"

enum { HASHES = 2, HASH_BYTES = HASHES * 16, WAIT_NS = 1000000 };

typedef struct talk {
  const opi_agree_params *p;
  const opi_agree_rank *rank;
  opipe_buffer *buffer; /* the hashes sent; at the next multiple of the alignment, those received */
  opipe_memory *memory;
  opipe_stream *out, *in;
  opipe_region sent, got;
  uint64_t said_hashes[HASHES][2];
  bool posted, heard;
  bool reserved, said, told;
} talk;

static uint32_t before(const talk *t) {
  return (t->rank->index + t->p->n_ranks - 1) % t->p->n_ranks;
}

static uint32_t behind(const talk *t) {
  return (t->rank->index + 1) % t->p->n_ranks;
}

static opipe_status sync(const talk *t, opipe_error *err) {
  const opi_agree_rank *r = t->rank;
  if (r->event == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_record(r->backend, r->queue, r->event, t->p->timeout_ns, err));
  return OPI_ASK("backend", r->backend, event_sync, err, r->event, t->p->timeout_ns);
}

static opipe_status open_stream(talk *t, uint32_t src, uint32_t dst, opipe_stream **out,
                                opipe_error *err) {
  const opipe_stream_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .kind = OPIPE_STREAM_CONTROL,
      .src_rank = src,
      .dst_rank = dst,
      .src_stage = OPIPE_NONE, /* no stage, unlike the streams of credits */
      .dst_stage = OPIPE_NONE,
      .depth = 1,
      .n_bytes = HASH_BYTES};
  return OPI_MAKE("transport", t->p->transport, stream_open, out, err, t->rank->endpoint, &params);
}

static opipe_status begin(talk *t, opipe_error *err) {
  const opi_agree_rank *r = t->rank;
  const uint64_t align = r->alignment > HASH_BYTES ? r->alignment : HASH_BYTES;
  OPI_TRY(OPI_MAKE("backend", r->backend, buffer_alloc, &t->buffer, err, r->device, 2 * align,
                   OPIPE_BUFFER_BOUNDARY));
  OPI_TRY(OPI_ASK("transport", t->p->transport, memory_register, err, r->endpoint, t->buffer,
                  2 * align, &t->memory));
  t->sent = (opipe_region){.buffer = t->buffer, .n_bytes = HASH_BYTES};
  t->got = (opipe_region){.buffer = t->buffer, .offset_bytes = align, .n_bytes = HASH_BYTES};
  OPI_TRY(open_stream(t, r->index, behind(t), &t->out, err));
  OPI_TRY(open_stream(t, before(t), r->index, &t->in, err));
  memcpy(t->said_hashes[0], r->plan, sizeof t->said_hashes[0]);
  memcpy(t->said_hashes[1], r->kernels, sizeof t->said_hashes[1]);
  OPI_TRY(OPI_ASK("backend", r->backend, write, err, r->queue, &t->sent, t->said_hashes));
  return sync(t, err);
}

static opipe_status tell(talk *t, bool *io_moved, opipe_error *err) {
  const opi_transport_ref *via = t->p->transport;
  opipe_status status = OPIPE_OK;
  if (!t->reserved) {
    status = OPI_POLL("transport", via, reserve, err, t->out, 0);
    t->reserved = status == OPIPE_OK;
  }
  if (t->reserved && !t->said) {
    status = OPI_POLL("transport", via, send, err, t->out, 0, &t->sent, NULL, NULL);
    t->said = status == OPIPE_OK;
    *io_moved = *io_moved || t->said;
  }
  if (t->said && !t->told) {
    status = OPI_POLL("transport", via, test, err, t->out, 0);
    t->told = status == OPIPE_OK;
    *io_moved = *io_moved || t->told;
  }
  return status < 0 ? status : OPIPE_OK;
}

static opipe_status hear(talk *t, bool *io_moved, opipe_error *err) {
  const opi_transport_ref *via = t->p->transport;
  opipe_status status = OPIPE_OK;
  if (!t->posted) {
    status = OPI_POLL("transport", via, recv, err, t->in, 0, &t->got, NULL);
    t->posted = status == OPIPE_OK;
    *io_moved = *io_moved || t->posted;
  }
  if (t->posted && !t->heard) {
    status = OPI_POLL("transport", via, test, err, t->in, 0);
    t->heard = status == OPIPE_OK;
    *io_moved = *io_moved || t->heard;
  }
  return status < 0 ? status : OPIPE_OK;
}

/* Rank 0 tells first, the others hear first. So messages have one order, for transports that match
 * by order or run one operation at a time. */
static opipe_status take_turns(talk *t, bool *io_moved, opipe_error *err) {
  const bool first = t->rank->index == 0;
  if (first)
    OPI_TRY(tell(t, io_moved, err));
  if (!first || t->said)
    OPI_TRY(hear(t, io_moved, err));
  return !first && t->posted ? tell(t, io_moved, err) : OPIPE_OK;
}

/* Sleeps until something rings for `t`, but only for a while: other ranks here may have progressed.
 */
static opipe_status wait(const talk *t, uint32_t seen, uint64_t deadline_ns, opipe_error *err) {
  const opi_transport_ref *via = t->p->transport;
  const uint64_t ms = t->p->timeout_ns / 1000000;
  const opi_together *together = &t->p->together;
  if (together->check != NULL)
    OPI_TRY(together->check(together->ctx, err));
  if (opi_clock_ns() >= deadline_ns) {
    return t->heard ? opi_fail(err, OPIPE_E_TIMEOUT,
                               "transport '%s': rank %u could not tell rank %u within %" PRIu64
                               " ms which plan it holds",
                               via->id, t->rank->index, behind(t), ms)
                    : opi_fail(err, OPIPE_E_TIMEOUT,
                               "transport '%s': rank %u has not heard within %" PRIu64
                               " ms which plan rank %u holds",
                               via->id, t->rank->index, ms, before(t));
  }
  const opipe_status status = via->table->wait(t->rank->endpoint, seen, WAIT_NS, err);
  return status == OPIPE_E_TIMEOUT ? OPIPE_OK
                                   : opi_answer(status, "transport", via->id, "wait", err);
}

static opipe_endpoint *endpoint_of(const void *ctx, uint32_t index) {
  const opi_agree_rank *ranks = ctx;
  return ranks[index].endpoint;
}

static opipe_status exchange(talk *talks, uint32_t n, opipe_error *err) {
  const uint64_t timeout_ns = talks->p->timeout_ns, now_ns = opi_clock_ns();
  const uint64_t deadline_ns = timeout_ns < UINT64_MAX - now_ns ? now_ns + timeout_ns : UINT64_MAX;
  for (;;) {
    const talk *waits = NULL;
    uint32_t seen = 0;
    bool moved = false;
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t bell = talks[i].p->transport->table->doorbell(talks[i].rank->endpoint);
      OPI_TRY(take_turns(&talks[i], &moved, err));
      if ((talks[i].heard && talks[i].told) || (waits != NULL && (!waits->heard || talks[i].heard)))
        continue;
      waits = &talks[i];
      seen = bell;
    }
    if (waits == NULL)
      return OPIPE_OK;
    if (!moved)
      OPI_TRY(wait(waits, seen, deadline_ns, err));
  }
}

static opipe_status compare(const talk *t, opipe_error *err) {
  uint64_t theirs[HASHES][2] = {{0, 0}};
  const uint64_t *own = t->rank->plan, *kernels = t->rank->kernels;
  OPI_TRY(OPI_ASK("backend", t->rank->backend, read, err, t->rank->queue, theirs, &t->got));
  OPI_TRY(sync(t, err));
  if (memcmp(theirs[0], own, sizeof theirs[0]) != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "rank %u holds plan %016" PRIx64 "%016" PRIx64 ", rank %u plan %016" PRIx64
                    "%016" PRIx64 ": all ranks of a run need the same one",
                    t->rank->index, own[0], own[1], before(t), theirs[0][0], theirs[0][1]);
  }
  if (memcmp(theirs[1], kernels, sizeof theirs[1]) == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "the plan of rank %u has kernels %016" PRIx64 "%016" PRIx64
                  ", that of rank %u %016" PRIx64 "%016" PRIx64
                  " (0: none): all ranks of a run need the same ones",
                  t->rank->index, kernels[0], kernels[1], before(t), theirs[1][0], theirs[1][1]);
}

static void end(const talk *t) {
  t->p->transport->table->stream_close(t->in);
  t->p->transport->table->stream_close(t->out);
  t->p->transport->table->memory_drop(t->memory);
  t->rank->backend->table->buffer_free(t->buffer);
}

opipe_status opi_agree(const opi_agree_params *p, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  opipe_error own = OPIPE_ERROR_INIT;
  err = err == NULL ? &own : err; /* abort needs the reason */
  if (p->n_ranks < 2 || p->n_ranks_here == 0)
    return OPIPE_OK;
  talk *talks = opi_alloc_zero(p->allocator, p->n_ranks_here, sizeof *talks);
  if (talks == NULL)
    return opi_fail_nomem(err, p->n_ranks_here * sizeof *talks, "ranks");
  for (uint32_t i = 0; i < p->n_ranks_here; ++i) {
    talks[i].p = p;
    talks[i].rank = &p->ranks[i];
  }
  for (uint32_t i = 0; i < p->n_ranks_here && status == OPIPE_OK; ++i)
    status = begin(&talks[i], err);
  if (status == OPIPE_OK) {
    status = opi_endpoints_ready(
        &(opi_ready){p->transport, endpoint_of, p->ranks, p->n_ranks_here, p->timeout_ns, NULL},
        err);
  }
  if (status == OPIPE_OK)
    status = exchange(talks, p->n_ranks_here, err);
  for (uint32_t i = 0; i < p->n_ranks_here && status == OPIPE_OK; ++i)
    status = compare(&talks[i], err);
  if (status < 0)
    p->transport->table->abort(p->world, p->ranks->index, err);
  for (uint32_t i = 0; status < 0 && i < p->n_ranks_here; ++i) {
    opipe_error late = OPIPE_ERROR_INIT; /* queued work may use the buffers freed below */
    (void)sync(&talks[i], &late);
  }
  for (uint32_t i = 0; i < p->n_ranks_here; ++i)
    end(&talks[i]);
  opi_free(p->allocator, talks, p->n_ranks_here * sizeof *talks);
  return status;
}
