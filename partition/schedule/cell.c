/* SPDX-License-Identifier: Apache-2.0 */
/* The one grammar of actions, of order files and of plan files.
 *
 *   action  stage [@replica] KIND [micro-batch] [/slice] [~part] ['version] [+] [>stage] [@replica]
 *   cell    nothing or "-" (idle), an action, or a pair: (action;action)OVERLAP_F_B
 */
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

/* In the old dialect B and BW mean I and B. */
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

/* Reads the marks after the micro-batch. */
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

static bool parse(const char **io_at, const char *end, uint32_t dialect, opi_cell_text *cell,
                  const char **out_why) {
  uint32_t n = 0;
  *cell = (opi_cell_text){.item = {.stage = OPIPE_NONE, .edge = OPIPE_NONE}, .other = OPIPE_NONE};
  const bool has_stage = take_number(io_at, end, NUMBER_MOST, &cell->item.stage);
  *out_why = "the stage is above 16777216";
  if (!has_stage && *io_at < end && **io_at >= '0' && **io_at <= '9')
    return false;
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
  *out_why = *io_at - name == 2 && memcmp(name, "BW", 2) == 0
                 ? "BW belongs to torch's older dialect: read the file in that dialect"
                 : "there is no such kind of action";
  if (kind == OPI_DO_KINDS)
    return false;
  cell->item.kind = (uint8_t)kind;
  *out_why =
      kind == OPI_DO_STEP ? "a STEP belongs to the rank, not to a stage" : "the stage is missing";
  if (has_stage == (kind == OPI_DO_STEP))
    return false;
  *out_why = "the micro-batch is missing";
  if (opi_do_has_microbatch(kind) && !take_number(io_at, end, NUMBER_MOST, &cell->item.microbatch))
    return false;
  *out_why = take_marks(io_at, end, cell);
  if (*out_why == NULL && !cell->peer_given)
    cell->item.peer = cell->item.replica;
  return *out_why == NULL;
}

/* Reads "(0F7;7B3)OVERLAP_F_B". Returns NULL, or the reason why it cannot be read. */
static const char *read_pair(const char *at, const char *end, uint32_t dialect,
                             opi_cell_text cells[2]) {
  static const char tail[] = ")OVERLAP_F_B";
  const char *why = NULL;
  ++at;
  if (!parse(&at, end, dialect, &cells[0], &why))
    return why;
  if (!take_char(&at, end, ';'))
    return "';' is missing between the two actions";
  if (!parse(&at, end, dialect, &cells[1], &why))
    return why;
  if ((size_t)(end - at) != sizeof tail - 1 || memcmp(at, tail, sizeof tail - 1) != 0)
    return "it must end in )OVERLAP_F_B";
  if (!opi_do_is_compute(cells[0].item.kind) || !opi_do_is_compute(cells[1].item.kind))
    return "only computes overlap";
  cells[0].item.flags |= OPIPE_ACTION_OVERLAP_NEXT;
  return NULL;
}

bool opi_cell_read(const char *at, const char *end, uint32_t dialect, opi_cell_text out_cells[2],
                   uint32_t *out_n, const char **out_why) {
  *out_n = 1;
  *out_why = NULL;
  if (at == end || (end - at == 1 && *at == '-')) {
    out_cells[0] =
        (opi_cell_text){.item = {.kind = OPI_DO_IDLE, .stage = OPIPE_NONE, .edge = OPIPE_NONE},
                        .other = OPIPE_NONE};
  } else if (*at == '(') {
    *out_n = 2;
    *out_why = read_pair(at, end, dialect, out_cells);
  } else if (parse(&at, end, dialect, out_cells, out_why) && at != end) {
    *out_why = "there is more text after the action";
  }
  return *out_why == NULL;
}

static void put_action(opi_text *to, const opi_problem *problem, const opi_do *a,
                       uint32_t dialect) {
  char text[96];
  const bool old = dialect == OPI_DIALECT_TORCH_OLD;
  if (old && a->kind == OPI_DO_I)
    opi_text_printf(to, "%uB%u", a->stage, a->microbatch);
  else if (old && a->kind == OPI_DO_B)
    opi_text_printf(to, "%uBW%u", a->stage, a->microbatch);
  else if (dialect != OPI_DIALECT_OPIPE && a->kind == OPI_DO_REDUCE)
    opi_text_printf(to, "%uREDUCE_GRAD", a->stage);
  else
    opi_text_puts(to, opi_do_text(problem, a, text, sizeof text));
}

void opi_cells_write(opi_text *to, const opi_problem *problem, const opi_do *items, uint32_t n,
                     const opi_cell_form *form) {
  for (uint32_t i = 0; i < n; ++i) {
    const opi_do *a = &items[i];
    const bool paired = (a->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 && i + 1 < n;
    opi_text_puts(to, i == 0 ? "" : form->separator);
    opi_text_puts(to, form->quote);
    if (a->kind == OPI_DO_IDLE)
      opi_text_puts(to, form->idle);
    opi_text_puts(to, paired ? "(" : "");
    put_action(to, problem, a, form->dialect);
    if (paired) {
      opi_text_puts(to, ";");
      put_action(to, problem, &items[++i], form->dialect);
      opi_text_puts(to, ")OVERLAP_F_B");
    }
    opi_text_puts(to, form->quote);
  }
}
