/* SPDX-License-Identifier: Apache-2.0 */
/* One action from its text: stage [@replica] KIND [micro-batch] [/slice] [~part] ['version] [+]
 * [>stage] [@replica]. */
#include <string.h>

#include "partition/schedule/order.h"

enum { NUMBER_MOST = 1 << 24, KIND_MOST = 12 };

static bool take_number(const char **io_at, const char *end, uint32_t most, uint32_t *out) {
  const char *at = *io_at;
  uint64_t n = 0;
  while (at < end && *at >= '0' && *at <= '9' && n <= most)
    n = n * 10 + (uint64_t)(*at++ - '0');
  if (at == *io_at || n > most)
    return false;
  *io_at = at;
  *out = (uint32_t)n;
  return true;
}

static bool take_char(const char **io_at, const char *end, char c) {
  if (*io_at == end || **io_at != c)
    return false;
  ++*io_at;
  return true;
}

/* B and BW of the old dialect are I and B. */
static uint32_t kind_of(const char *name, size_t n, uint32_t dialect) {
  if (dialect == OPI_DIALECT_TORCH_OLD && n == 1 && *name == 'B')
    return OPI_DO_I;
  if (dialect == OPI_DIALECT_TORCH_OLD && n == 2 && memcmp(name, "BW", 2) == 0)
    return OPI_DO_B;
  if (n == strlen("REDUCE_GRAD") && memcmp(name, "REDUCE_GRAD", n) == 0)
    return OPI_DO_REDUCE;
  for (uint32_t k = 0; k < OPI_DO_IDLE; ++k) {
    if (strlen(opi_do_kind_name(k)) == n && memcmp(opi_do_kind_name(k), name, n) == 0)
      return k;
  }
  return OPI_DO_KINDS;
}

static bool wants_microbatch(uint32_t kind) {
  return kind != OPI_DO_REDUCE && kind != OPI_DO_STEP && kind != OPI_DO_UNSHARD &&
         kind != OPI_DO_RESHARD;
}

/* What may stand behind the micro-batch. */
static const char *take_marks(const char **io_at, const char *end, opi_cell_text *cell) {
  uint32_t n = 0;
  if (take_char(io_at, end, '/')) {
    if (!take_number(io_at, end, UINT16_MAX, &n))
      return "a slice is missing after '/'";
    cell->item.slice = (uint16_t)n;
  }
  if (take_char(io_at, end, '~')) {
    if (!take_number(io_at, end, UINT8_MAX, &n))
      return "a part is missing after '~'";
    cell->item.part = (uint8_t)n;
  }
  if (take_char(io_at, end, '\'')) {
    if (!take_number(io_at, end, UINT16_MAX, &n))
      return "a weight version is missing after '";
    cell->item.version = (uint16_t)n;
  }
  if (take_char(io_at, end, '+'))
    cell->item.flags |= OPIPE_ACTION_NEXT_STEP;
  if (!take_char(io_at, end, '>'))
    return NULL;
  if (!opi_do_is_message(cell->item.kind))
    return "only messages have another end";
  if (!take_number(io_at, end, NUMBER_MOST, &cell->other))
    return "a stage is missing after '>'";
  if (!take_char(io_at, end, '@'))
    return NULL;
  if (!take_number(io_at, end, UINT16_MAX, &n))
    return "a replica is missing after '@'";
  cell->item.peer = (uint16_t)n;
  cell->peer_given = true;
  return NULL;
}

bool opi_cell_parse(const char **io_at, const char *end, uint32_t dialect, opi_cell_text *cell,
                    const char **out_why) {
  uint32_t n = 0;
  *cell = (opi_cell_text){.item = {.stage = OPIPE_NONE, .edge = OPIPE_NONE}, .other = OPIPE_NONE};
  const bool has_stage = take_number(io_at, end, NUMBER_MOST, &cell->item.stage);
  if (take_char(io_at, end, '@')) {
    *out_why = "a replica is missing after '@'";
    if (!take_number(io_at, end, UINT16_MAX, &n))
      return false;
    cell->item.replica = (uint16_t)n;
  }
  const char *name = *io_at;
  while (*io_at < end && ((**io_at >= 'A' && **io_at <= 'Z') || **io_at == '_') &&
         *io_at - name < KIND_MOST)
    ++*io_at;
  const uint32_t kind = kind_of(name, (size_t)(*io_at - name), dialect);
  *out_why = "there is no such kind of action";
  if (kind == OPI_DO_KINDS)
    return false;
  cell->item.kind = (uint8_t)kind;
  *out_why =
      kind == OPI_DO_STEP ? "a STEP belongs to the rank, not to a stage" : "the stage is missing";
  if (has_stage == (kind == OPI_DO_STEP))
    return false;
  *out_why = "the micro-batch is missing";
  if (wants_microbatch(kind) && !take_number(io_at, end, NUMBER_MOST, &cell->item.microbatch))
    return false;
  *out_why = take_marks(io_at, end, cell);
  if (*out_why == NULL && !cell->peer_given)
    cell->item.peer = cell->item.replica;
  return *out_why == NULL;
}
