/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of UCX in memory of ours. A callback says that one is over; nothing else happens in
 * it, but that the rank's doorbell rings.
 */
#include "ucx.h"

void ucx_op_init(ucx_op *op, ucx_worker *worker, uint32_t peer, char **io_requests,
                 void (*over)(ucx_op *op)) {
  *io_requests += worker->world->request_bytes;
  *op = (ucx_op){.request = *io_requests, .worker = worker, .peer = peer, .over = over};
}

static void end(ucx_op *op, ucp_code status) {
  op->status = status;
  atomic_store_explicit(&op->pending, 0, memory_order_release);
  if (status < 0 && status != UCP_CANCELED)
    ucx_lose(op->worker, op->peer, status);
}

static void has_sent(void *request, ucp_code status, void *ctx) {
  ucx_op *op = ctx;
  (void)request;
  end(op, status);
  if (op->over != NULL)
    op->over(op);
}

static void has_come(void *request, ucp_code status, const ucp_arrived *what, void *ctx) {
  ucx_op *op = ctx;
  (void)request;
  op->n_bytes = what != NULL && status == UCP_FINE ? what->n_bytes : 0;
  end(op, status);
  if (op->over != NULL)
    op->over(op);
}

static void begin(ucx_op *op) {
  op->status = UCP_FINE;
  atomic_store_explicit(&op->pending, 1, memory_order_relaxed);
}

static void begun(ucx_op *op, const void *answer) {
  const ucp_code code = ucp_answer(answer);
  if (code != UCP_IN_PROGRESS)
    end(op, code);
}

/* A worker that was stopped does nothing more: the world has ended, or the rank has left. */
void ucx_send_op(ucx_op *op, const void *data, uint64_t n_bytes, uint64_t tag) {
  const ucx_worker *worker = op->worker;
  const ucp_op_want want = {
      .mask = UCP_OP_REQUEST | UCP_OP_CALLBACK | UCP_OP_CTX | UCP_OP_MEMORY_TYPE,
      .request = op->request,
      .fn.sent = has_sent,
      .ctx = op,
      .memory_type = UCP_MEMORY_HOST};
  const ucp_calls *ucp = &worker->world->library->ucp;
  ucp_handle ep = worker->peers[op->peer].ep;
  begin(op);
  if (worker->stopped || ep == NULL)
    end(op, UCP_CANCELED);
  else
    begun(op, ucp->tag_send(ep, data, n_bytes, tag, &want));
}

void ucx_recv_op(ucx_op *op, void *data, uint64_t n_bytes, uint64_t tag, uint64_t mask) {
  const ucx_worker *worker = op->worker;
  ucp_arrived arrived = {0, 0};
  const ucp_op_want want = {
      .mask = UCP_OP_REQUEST | UCP_OP_CALLBACK | UCP_OP_CTX | UCP_OP_MEMORY_TYPE | UCP_OP_ARRIVED,
      .request = op->request,
      .fn.received = has_come,
      .ctx = op,
      .memory_type = UCP_MEMORY_HOST,
      .arrived = &arrived};
  begin(op);
  op->n_bytes = 0;
  if (worker->stopped) {
    end(op, UCP_CANCELED);
    return;
  }
  const void *answer =
      worker->world->library->ucp.tag_recv(worker->worker, data, n_bytes, tag, mask, &want);
  if (ucp_answer(answer) == UCP_FINE)
    op->n_bytes = arrived.n_bytes;
  begun(op, answer);
}

void ucx_cancel_op(ucx_op *op) {
  const ucx_worker *worker = op->worker;
  if (worker != NULL && ucx_is_pending(op) && !worker->stopped)
    worker->world->library->ucp.request_cancel(worker->worker, op->request);
}

void ucx_forget_op(ucx_op *op) {
  if (ucx_is_pending(op)) {
    op->status = UCP_CANCELED;
    atomic_store_explicit(&op->pending, 0, memory_order_release);
  }
}
