/* SPDX-License-Identifier: Apache-2.0 */
/* A message that goes back and forth between two processes through the own calls of transport-shm,
 * or of transport-ucx over TCP: recv, reserve, send, test, and wait between them. Prints the time
 * of one way, half of a round trip. Usage: bench_processes [--ucx] [--spin US] [--count N] [--bytes
 * N]
 */
#include <getopt.h>

#include "tests/plugins/transport-shm/pair.h"

typedef struct setting {
  uint64_t count, n_bytes;
  uint32_t spin_us;
} setting;

static opipe_status post_receive(end *e, const setting *s, uint64_t q) {
  const opipe_region to = {e->slots, q % 2 * (BYTES / 2), s->n_bytes};
  UNTIL(e, e->t->recv(e->in, q, &to, NULL, &e->err));
  return OPIPE_OK;
}

static opipe_status send_one(end *e, const setting *s, uint64_t q) {
  const opipe_region from = {e->own, 0, s->n_bytes};
  UNTIL(e, e->t->reserve(e->out, q, &e->err));
  UNTIL(e, e->t->send(e->out, q, &from, NULL, NULL, &e->err));
  return OPIPE_OK;
}

static opipe_status arrives(end *e, uint64_t q) {
  UNTIL(e, e->t->test(e->in, q, &e->err));
  return OPIPE_OK;
}

/* One receive ahead, so that no sender waits for it. */
static opipe_status go(end *e, const setting *s, uint32_t rank, uint64_t *out_ns) {
  TRY(post_receive(e, s, 0));
  for (uint64_t q = 0; q < s->count; ++q) {
    const uint64_t start = now_ns(NULL);
    if (rank == 0)
      TRY(send_one(e, s, q));
    TRY(arrives(e, q));
    if (q + 1 < s->count)
      TRY(post_receive(e, s, q + 1));
    if (rank == 1)
      TRY(send_one(e, s, q));
    out_ns[q] = (now_ns(NULL) - start) / 2;
  }
  return OPIPE_OK;
}

static int by_value(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

static void report(const setting *s, uint64_t *ns) {
  qsort(ns, s->count, sizeof *ns, by_value);
  printf(
      "%s  bytes %llu  spin %u us  hops %llu  median %llu ns  p10 %llu  p90 %llu  p99 "
      "%llu\n",
      pair_transport, (unsigned long long)s->n_bytes, s->spin_us, (unsigned long long)s->count,
      (unsigned long long)ns[s->count / 2], (unsigned long long)ns[s->count / 10],
      (unsigned long long)ns[s->count / 10 * 9], (unsigned long long)ns[s->count / 100 * 99]);
}

static int play(uint32_t rank, note *notes, const setting *s) {
  end e = {.patience_ns = UINT64_C(10000000000), .spin_us = s->spin_us};
  uint64_t *ns = calloc(s->count, sizeof *ns);
  opipe_status status = ns == NULL ? OPIPE_E_NOMEM : open_end(&e, rank, notes);
  if (status == OPIPE_OK)
    status = await_ready(&e);
  if (status == OPIPE_OK)
    status = go(&e, s, rank, ns);
  if (status < 0)
    (void)fprintf(stderr, "rank %u: %s\n", rank, e.err.message);
  else if (rank == 0)
    report(s, ns);
  if (status == OPIPE_OK)
    close_end(&e);
  free(ns);
  (void)fflush(stdout);
  return status == OPIPE_OK ? 0 : 1;
}

int main(int argc, char **argv) {
  static const struct option options[] = {{"spin", required_argument, NULL, 's'},
                                          {"count", required_argument, NULL, 'c'},
                                          {"bytes", required_argument, NULL, 'b'},
                                          {"ucx", no_argument, NULL, 'u'},
                                          {NULL, 0, NULL, 0}};
  setting s = {.count = 20000, .n_bytes = 4096, .spin_us = 50};
  int option = 0;
  while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
    const uint64_t n = optarg == NULL ? 0 : strtoull(optarg, NULL, 10);
    if (option == 's')
      s.spin_us = (uint32_t)n;
    else if (option == 'c' && n >= 100)
      s.count = n;
    else if (option == 'b' && n <= BYTES / 2)
      s.n_bytes = n;
    else if (option != 'u' || !take_ucx())
      return 2;
  }
  note *notes = new_board();
  const pid_t other = fork();
  if (other == 0)
    _exit(play(1, notes, &s));
  const int own = play(0, notes, &s);
  return status_of(other) == 0 ? own : 1;
}
