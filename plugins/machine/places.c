/* SPDX-License-Identifier: Apache-2.0 */
/* How members of a group find each other: those of a group that collects by its id, others by their
 * ranks, and by how often these ranks have opened a group before.
 */
#include "machine.h"

enum { ALIGN = 64 };

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ (hash >> 29);
}

void machine_hash_ranks(const uint32_t *ranks, uint32_t n, uint64_t out_hash[2]) {
  out_hash[0] = UINT64_C(0x6a09e667f3bcc908);
  out_hash[1] = UINT64_C(0xbb67ae8584caa73b);
  for (uint32_t i = 0; i < n; ++i) {
    out_hash[0] = mix(out_hash[0], ranks[i]);
    out_hash[1] = mix(out_hash[1] + out_hash[0], ranks[i] + UINT64_C(1));
  }
}

void machine_hash_id(uint64_t id, uint64_t out_hash[2]) {
  out_hash[0] = mix(UINT64_C(0x3c6ef372fe94f82b), id);
  out_hash[1] = mix(UINT64_C(0xa54ff53a5f1d36f1), id);
}

opipe_status machine_take_place(const opipe_host *host, machine_count **io_counts,
                                const uint32_t *ranks, uint32_t n, uint32_t rank,
                                const uint64_t hash[2], uint32_t *out_index, uint32_t *out_turn,
                                opipe_error *err) {
  uint32_t n_times = 0, place = 0;
  machine_count *count = *io_counts;
  while (count != NULL &&
         (count->rank != rank || count->hash[0] != hash[0] || count->hash[1] != hash[1]))
    count = count->next;
  if (count == NULL) {
    count = opipe_zeroed(host, "a group", sizeof *count, ALIGN, err);
    if (count == NULL)
      return OPIPE_E_NOMEM;
    *count = (machine_count){.next = *io_counts, .hash = {hash[0], hash[1]}, .rank = rank};
    *io_counts = count;
  }
  for (uint32_t i = 0; i < n; ++i)
    n_times += ranks[i] == rank;
  *out_turn = count->n / n_times;
  place = count->n++ % n_times;
  for (uint32_t i = 0; i < n; ++i) {
    if (ranks[i] == rank && place-- == 0) {
      *out_index = i;
      break;
    }
  }
  return OPIPE_OK;
}

void machine_forget_places(const opipe_host *host, machine_count **io_counts) {
  while (*io_counts != NULL) {
    machine_count *count = *io_counts;
    *io_counts = count->next;
    opipe_free(host, count, sizeof *count, ALIGN);
  }
}
