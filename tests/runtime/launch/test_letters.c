/* SPDX-License-Identifier: Apache-2.0 */
/* Letters between any two processes of a team: their order, their bytes, what each end knows of the
 * other, and what becomes of them when a box or the team ends.
 */
#include <stdlib.h>

#include "tests/runtime/launch/team_kit.h"

enum { SIZE = 4, LETTERS = 40, WINDOW = 4, MOST = 70000 };
static const uint64_t PATIENCE_NS = UINT64_C(20000000000);

/* One end of the way between two processes. */
typedef struct end {
  opi_box *box;
  uint64_t key, n_sent, n_read;
  _Atomic uint32_t rings;
} end;

typedef struct written {
  opi_envelope envelope;
  uint8_t bytes[MOST];
} written;

static void ring(void *ctx) {
  atomic_fetch_add(&((end *)ctx)->rings, 1);
}

/* Letter n of a process: sizes from 1 to more than a frame. */
static uint64_t fill(uint8_t *out, uint32_t from, uint32_t to, uint64_t n) {
  const uint64_t n_bytes = 1 + (n * 7919 + from * 31 + to) % (n % 5 == 0 ? (uint64_t)MOST : 900);
  memset(out, (int)(from * 16 + to + n), (size_t)n_bytes);
  return n_bytes;
}

static opipe_status send_some(kit_member *m, end *e, uint32_t to, written *out) {
  while (e->n_sent < LETTERS && e->n_sent - atomic_load(&e->box->n_answered) < WINDOW) {
    out->envelope = (opi_envelope){.key = e->key, .n_taken = e->n_read, .to = to};
    const uint64_t n = fill(out->bytes, m->rank, to, e->n_sent);
    OPI_TRY(opi_team_letter(m->team, &out->envelope, sizeof out->envelope + n, &m->err));
    ++e->n_sent;
  }
  return OPIPE_OK;
}

static opipe_status read_some(kit_member *m, end *e, uint32_t from, uint8_t *got,
                              uint8_t *expected) {
  while (atomic_load(&e->box->n_come) != e->n_read) {
    uint64_t n = 0;
    const uint64_t wanted = fill(expected, from, m->rank, e->n_read);
    OPI_TRY(opi_team_letter_take(m->team, e->box, got, MOST, &n, &m->err));
    if (n != wanted || memcmp(got, expected, (size_t)n) != 0)
      return opi_fail(&m->err, OPIPE_E_INTERNAL, "letter %d of %u", (int)e->n_read, from);
    ++e->n_read;
    const opi_envelope answer = {.key = e->key, .n_taken = e->n_read, .to = from};
    OPI_TRY(opi_team_letter(m->team, &answer, sizeof answer, &m->err));
  }
  return OPIPE_OK;
}

static bool is_over(const end *e) {
  return e->n_sent == LETTERS && e->n_read == LETTERS &&
         atomic_load(&e->box->n_answered) == LETTERS;
}

static opipe_status talk(kit_member *m, end *ends, written *out, uint8_t *got, uint8_t *expected) {
  const uint64_t until = opi_clock_ns() + PATIENCE_NS;
  for (uint32_t n = 0; n < SIZE - 1 && opi_clock_ns() < until;) {
    n = 0;
    for (uint32_t r = 0; r < SIZE; ++r) {
      if (r == m->rank)
        continue;
      OPI_TRY(send_some(m, &ends[r], r, out));
      OPI_TRY(read_some(m, &ends[r], r, got, expected));
      n += is_over(&ends[r]) ? 1 : 0;
    }
    if (n < SIZE - 1)
      kit_sleep_ms(1);
  }
  for (uint32_t r = 0; r < SIZE; ++r) {
    if (r != m->rank && (!is_over(&ends[r]) || atomic_load(&ends[r].rings) == 0)) {
      return opi_fail(&m->err, OPIPE_E_TIMEOUT, "process %u: %u letters sent, %u read", r,
                      (unsigned)ends[r].n_sent, (unsigned)ends[r].n_read);
    }
  }
  return OPIPE_OK;
}

static opipe_status open_boxes(kit_member *m, end *ends) {
  for (uint32_t r = 0; r < SIZE; ++r) {
    const uint32_t low = r < m->rank ? r : m->rank, high = r < m->rank ? m->rank : r;
    ends[r] = (end){.key = 100 + low * SIZE + high};
    if (r != m->rank)
      OPI_TRY(opi_team_box_open(m->team, ends[r].key, ring, &ends[r], &ends[r].box, &m->err));
  }
  return kit_gather(m->team, "opened", UINT64_MAX, &m->err);
}

static opipe_status write_to_all(kit_member *m) {
  end ends[SIZE];
  written *out = malloc(sizeof *out);
  uint8_t *got = malloc(MOST), *expected = malloc(MOST);
  opipe_status status = OPIPE_E_NOMEM;
  if (out != NULL && got != NULL && expected != NULL)
    status = open_boxes(m, ends);
  if (status == OPIPE_OK)
    status = talk(m, ends, out, got, expected);
  /* Letters for a closed box are dropped. */
  for (uint32_t r = 0; r < SIZE && status == OPIPE_OK; ++r)
    opi_team_box_close(m->team, ends[r].box);
  if (status == OPIPE_OK) {
    const opi_envelope late = {.key = ends[(m->rank + 1) % SIZE].key, .to = (m->rank + 1) % SIZE};
    status = opi_team_letter(m->team, &late, sizeof late, &m->err);
  }
  if (status == OPIPE_OK)
    status = kit_gather(m->team, "closed", UINT64_MAX, &m->err);
  free(out);
  free(got);
  free(expected);
  return status;
}

static void test_letters_come_in_order(void) {
  kit_team k = {.size = SIZE, .job = kit_job("letters"), .run = write_to_all};
  kit_run(&k);
  for (uint32_t r = 0; r < SIZE; ++r)
    OPI_ASSERT_OK(k.members[r].status, &k.members[r].err);
}

/* Whoever waits for a letter hears of the end. */
static opipe_status wait_for_the_end(kit_member *m) {
  end ends[SIZE];
  uint8_t got[16];
  uint64_t n = 0;
  OPI_TRY(open_boxes(m, ends));
  end *e = &ends[(m->rank + 1) % SIZE];
  opi_box *second = NULL;
  if (opi_team_box_open(m->team, e->key, ring, e, &second, &m->err) != OPIPE_E_STATE)
    return OPIPE_E_INTERNAL;
  if (opi_team_letter_take(m->team, e->box, got, sizeof got, &n, &m->err) != OPIPE_PENDING)
    return OPIPE_E_INTERNAL;
  OPI_TRY(kit_gather(m->team, "waiting", UINT64_MAX, &m->err));
  if (m->rank == 2)
    OPI_TRY(opi_team_abort(m->team, "enough", &m->err));
  const uint64_t until = opi_clock_ns() + PATIENCE_NS;
  while ((atomic_load(&e->box->broken) == 0 || atomic_load(&e->rings) == 0) &&
         opi_clock_ns() < until)
    kit_sleep_ms(1);
  const opipe_status status = opi_team_letter_take(m->team, e->box, got, sizeof got, &n, &m->err);
  for (uint32_t r = 0; r < SIZE; ++r)
    opi_team_box_close(m->team, ends[r].box);
  return status;
}

static void test_the_end_of_a_team_breaks_boxes(void) {
  kit_team k = {.size = SIZE, .job = kit_job("broken"), .run = wait_for_the_end};
  kit_run(&k);
  for (uint32_t r = 0; r < SIZE; ++r)
    OPI_ASSERT_ERROR(k.members[r].status, OPIPE_E_PEER, &k.members[r].err, "enough");
}

OPI_TEST_MAIN("letters", OPI_TEST(test_letters_come_in_order),
              OPI_TEST(test_the_end_of_a_team_breaks_boxes))
