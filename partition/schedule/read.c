/* SPDX-License-Identifier: Apache-2.0 */
/* Reads orders. Everything is checked at its place: a message names row, column and text.
 *
 * Rows first become cells without edges. The table's problem (stages, places, micro-batches) comes
 * from the header or is inferred from the cells; then messages find their edges. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "loader/base/json.h"
#include "partition/schedule/order.h"

enum { TEXT_MOST = 256 << 20, RANKS_MOST = 1 << 16, STAGES_MOST = 1 << 16, EDGES_MOST = 1 << 20 };

typedef struct source {
  uint32_t row, column; /* from 1 */
  uint32_t other;
} source;

typedef struct reader {
  uint32_t dialect;
  opi_arena arena; /* scratch */
  opi_do_list *list;
  source *sources; /* [n_items of list] */
  uint32_t room_sources;
  uint32_t *row_first; /* [n_rows] */
  uint32_t n_rows, room_rows;
  bool headed;
  opi_problem problem; /* from the header; 0: not given */
  bool said_mode;
  opipe_error *err;
} reader;

static opipe_status add_item(reader *r, const opi_cell_text *cell, uint32_t row, uint32_t column) {
  if (!opi_arena_grow(&r->arena, (void **)&r->sources, &r->room_sources, r->list->n_items + 1,
                      sizeof(*r->sources)))
    return opi_fail_nomem(r->err, sizeof(*r->sources), "cells");
  r->sources[r->list->n_items] = (source){row, column, cell->other};
  return opi_do_list_add(r->list, cell->item, r->err);
}

static opipe_status read_cell(reader *r, const char *at, const char *end, uint32_t row,
                              uint32_t column) {
  const char *why = NULL;
  opi_cell_text cells[2];
  uint32_t n = 0;
  if (!opi_cell_read(at, end, r->dialect, cells, &n, &why)) {
    const size_t length = (size_t)(end - at);
    return opi_fail(r->err, OPIPE_E_INVALID, "row %u, column %u: '%.*s': %s", row, column,
                    (int)(length > 40 ? 40 : length), at, why);
  }
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(add_item(r, &cells[i], row, column));
  return OPIPE_OK;
}

static opipe_status begin_row(reader *r) {
  if (r->n_rows >= RANKS_MOST)
    return opi_fail(r->err, OPIPE_E_LIMIT, "more than %d ranks", RANKS_MOST);
  if (!opi_arena_grow(&r->arena, (void **)&r->row_first, &r->room_rows, r->n_rows + 1,
                      sizeof(uint32_t)))
    return opi_fail_nomem(r->err, sizeof(uint32_t), "rows");
  r->row_first[r->n_rows++] = r->list->n_items;
  return OPIPE_OK;
}

static opipe_status read_cells(reader *r, const char *at, const char *end, char separator,
                               uint32_t row) {
  uint32_t column = 1;
  OPI_TRY(begin_row(r));
  if (at == end)
    return OPIPE_OK;
  for (;; ++column) {
    const char *stop = memchr(at, separator, (size_t)(end - at));
    OPI_TRY(read_cell(r, at, stop == NULL ? end : stop, row, column));
    if (stop == NULL)
      return OPIPE_OK;
    at = stop + 1;
  }
}

/* ---- header ---- */

static opipe_status bad_header(const reader *r, const char *key, const char *value) {
  return opi_fail(r->err, OPIPE_E_INVALID, "the header's %s=%.60s is not understood", key, value);
}

/* Comma-separated numbers; '-' is OPIPE_NONE. */
static opipe_status read_numbers(reader *r, const char *key, const char *value,
                                 const uint32_t **out, uint32_t *out_n) {
  uint32_t *list = NULL, n = 0, room = 0;
  for (const char *at = value;;) {
    uint64_t number = 0;
    const char *first = at;
    if (!opi_arena_grow(&r->arena, (void **)&list, &room, n + 1, sizeof(uint32_t)))
      return opi_fail_nomem(r->err, n, "a header");
    while (*at >= '0' && *at <= '9' && number < UINT32_MAX)
      number = number * 10 + (uint64_t)(*at++ - '0');
    if (at == first && *at == '-') {
      number = OPIPE_NONE;
      ++at;
    } else if (at == first || number >= UINT32_MAX) {
      return bad_header(r, key, value);
    }
    list[n++] = (uint32_t)number;
    if (*at == '\0')
      break;
    if (*at++ != ',' || n >= 1u << 24)
      return bad_header(r, key, value);
  }
  *out = list;
  *out_n = n;
  return OPIPE_OK;
}

static opipe_status read_edges(reader *r, const char *value) {
  opi_stage_edge *edges = NULL;
  uint32_t n = 0, room = 0;
  for (const char *at = value; *at != '\0';) {
    unsigned src = 0, dst = 0;
    int used = 0;
    if (n >= EDGES_MOST || sscanf(at, "%9u>%9u%n", &src, &dst, &used) != 2 || used == 0 ||
        (at[used] != '\0' && at[used] != ','))
      return bad_header(r, "edges", value);
    if (!opi_arena_grow(&r->arena, (void **)&edges, &room, n + 1, sizeof(*edges)))
      return opi_fail_nomem(r->err, n, "a header");
    edges[n++] = (opi_stage_edge){src, dst};
    at += used + (at[used] == ',');
  }
  r->problem.edges = n == 0 ? OPI_ARENA_NEW(&r->arena, opi_stage_edge) : edges;
  r->problem.n_edges = n;
  return r->problem.edges == NULL ? opi_fail_nomem(r->err, n, "a header") : OPIPE_OK;
}

static bool one_of(const char *value, const char *const *names, uint32_t n, uint32_t *out) {
  for (uint32_t i = 0; i < n; ++i) {
    if (strcmp(value, names[i]) == 0) {
      *out = i;
      return true;
    }
  }
  return false;
}

static opipe_status read_key(reader *r, const char *key, const char *value) {
  static const char *const modes[] = {"forward", "train"};
  static const char *const versions[] = {"one", "double"};
  static const char *const syncs[] = {"end", "eager", "eager-opt"};
  opi_problem *p = &r->problem;
  const struct {
    const char *key;
    uint32_t *out;
    uint32_t most;
  } numbers[] = {
      {"ranks", &p->n_ranks, RANKS_MOST},       {"stages", &p->n_stages, STAGES_MOST},
      {"replicas", &p->n_replicas, UINT16_MAX}, {"microbatches", &p->n_microbatches, 1u << 24},
      {"slices", &p->n_slices, UINT16_MAX},     {"parts", &p->n_parts, UINT8_MAX},
      {"copies", &p->n_copies, UINT16_MAX},     {"tensor", &p->n_tensor, UINT16_MAX}};
  const struct {
    const char *key;
    bool *out;
  } choices[] = {
      {"sharded", &p->sharded}, {"sequence", &p->sequence}, {"scattered", &p->scattered}};
  for (size_t i = 0; i < OPI_COUNT(numbers); ++i) {
    int64_t n = 0;
    if (strcmp(key, numbers[i].key) != 0)
      continue;
    if (!opi_parse_int(value, 1, numbers[i].most, &n))
      return bad_header(r, key, value);
    *numbers[i].out = (uint32_t)n;
    return OPIPE_OK;
  }
  static const char *const answers[] = {"0", "1"};
  uint32_t n = 0;
  for (size_t i = 0; i < OPI_COUNT(choices); ++i) {
    if (strcmp(key, choices[i].key) != 0)
      continue;
    *choices[i].out = one_of(value, answers, 2, &n) && n == 1;
    return one_of(value, answers, 2, &n) ? OPIPE_OK : bad_header(r, key, value);
  }
  if (strcmp(key, "mode") == 0) {
    r->said_mode = one_of(value, modes, 2, &p->mode);
    return r->said_mode ? OPIPE_OK : bad_header(r, key, value);
  }
  if (strcmp(key, "versions") == 0)
    return one_of(value, versions, 2, &p->versions) ? OPIPE_OK : bad_header(r, key, value);
  if (strcmp(key, "sync") == 0)
    return one_of(value, syncs, 3, &p->sync) ? OPIPE_OK : bad_header(r, key, value);
  if (strcmp(key, "edges") == 0)
    return read_edges(r, value);
  if (strcmp(key, "place") == 0) {
    OPI_TRY(read_numbers(r, key, value, &p->instance_rank, &n));
    return (uint64_t)p->n_stages * p->n_replicas == n ? OPIPE_OK : bad_header(r, key, value);
  }
  if (strcmp(key, "shares") == 0) {
    OPI_TRY(read_numbers(r, key, value, &p->stage_shares, &n));
    return n == p->n_stages ? OPIPE_OK : bad_header(r, key, value);
  }
  if (strcmp(key, "lengths") == 0) {
    OPI_TRY(read_numbers(r, key, value, &p->slice_lengths, &n));
    bool good = n == p->n_slices;
    for (uint32_t i = 0; i < n && good; ++i)
      good = p->slice_lengths[i] != 0 && p->slice_lengths[i] != OPIPE_NONE;
    return good ? OPIPE_OK : bad_header(r, key, value);
  }
  return opi_fail(r->err, OPIPE_E_INVALID, "the header has an unknown key '%.40s'", key);
}

/* "#onnx-pipe-schedule v1" or "#key=value key=value". */
static opipe_status read_header_line(reader *r, const char *at, const char *end, uint32_t row) {
  static const char magic[] = "#onnx-pipe-schedule ";
  const size_t n = (size_t)(end - at);
  if (!r->headed) {
    if (n < sizeof magic - 1 || memcmp(at, magic, sizeof magic - 1) != 0) {
      return opi_fail(r->err, OPIPE_E_INVALID, "row %u: '%.*s' is not a schedule's header", row,
                      (int)(n > 40 ? 40 : n), at);
    }
    if (n != sizeof magic + 1 || memcmp(at + sizeof magic - 1, "v1", 2) != 0) {
      return opi_fail(r->err, OPIPE_E_UNSUPPORTED, "row %u: format '%.*s'; this build reads v1",
                      row, (int)(n > 40 ? 40 : n), at);
    }
    r->headed = true;
    return OPIPE_OK;
  }
  for (++at; at < end;) {
    const char *stop = memchr(at, ' ', (size_t)(end - at));
    stop = stop == NULL ? end : stop;
    char *pair = opi_arena_strndup(&r->arena, at, (size_t)(stop - at));
    if (pair == NULL)
      return opi_fail_nomem(r->err, (uint64_t)(stop - at), "a header");
    char *equals = strchr(pair, '=');
    if (equals == NULL)
      return opi_fail(r->err, OPIPE_E_INVALID, "row %u: '%.40s' is not key=value", row, pair);
    *equals = '\0';
    OPI_TRY(read_key(r, pair, equals + 1));
    at = stop + (stop < end);
  }
  return OPIPE_OK;
}

/* ---- forms ---- */

static opipe_status read_rank_line(reader *r, const char *at, const char *end, uint32_t row) {
  char expected[24];
  const int n = snprintf(expected, sizeof expected, "rank %u:", r->n_rows);
  if (end - at < n || memcmp(at, expected, (size_t)n) != 0) {
    return opi_fail(r->err, OPIPE_E_INVALID, "row %u: '%.*s': '%s' was expected", row,
                    (int)(end - at > 40 ? 40 : end - at), at, expected);
  }
  at += n;
  at += at < end && *at == ' ';
  return read_cells(r, at, end, ' ', row);
}

/* The end of the last non-blank line; *out_n: blank lines after it. */
static const char *end_of_rows(const char *text, size_t n, uint32_t *out_n) {
  const char *stop = text + n, *last = stop;
  *out_n = 0;
  while (last > text &&
         (last[-1] == ' ' || last[-1] == '\t' || last[-1] == '\r' || last[-1] == '\n'))
    --last;
  const char *newline = memchr(last, '\n', (size_t)(stop - last));
  if (newline == NULL)
    return stop;
  for (const char *at = newline + 1; at < stop; ++*out_n) {
    const char *next = memchr(at, '\n', (size_t)(stop - at));
    at = next == NULL ? stop : next + 1;
  }
  return newline + 1;
}

/* A blank line is an idle rank; at the end only if the header counts it. */
static opipe_status read_lines(reader *r, const char *text, size_t n) {
  uint32_t n_blank = 0;
  const char *at = text, *stop = end_of_rows(text, n, &n_blank);
  bool lines = false; /* "rank N:" lines, else cells */
  for (uint32_t row = 1; at < stop; ++row) {
    const char *newline = memchr(at, '\n', (size_t)(stop - at));
    const char *end = newline == NULL ? stop : newline;
    const char *next = newline == NULL ? stop : newline + 1;
    if (end > at && end[-1] == '\r')
      --end;
    if (end > at && memchr(at, '\0', (size_t)(end - at)) != NULL)
      return opi_fail(r->err, OPIPE_E_INVALID, "row %u holds a zero byte: this is not text", row);
    if (end > at && *at == '#' && r->n_rows == 0) {
      OPI_TRY(read_header_line(r, at, end, row));
    } else {
      lines = lines || (r->n_rows == 0 && end - at >= 5 && memcmp(at, "rank ", 5) == 0);
      OPI_TRY(lines ? read_rank_line(r, at, end, row) : read_cells(r, at, end, ',', row));
    }
    at = next;
  }
  for (; !lines && r->headed && n_blank > 0 && r->n_rows < r->problem.n_ranks; --n_blank)
    OPI_TRY(begin_row(r));
  return OPIPE_OK;
}

static opipe_status read_json_key(reader *r, const char *key, const json_t *value) {
  char number[32];
  if (strcmp(key, "format") == 0 || strcmp(key, "version") == 0 || strcmp(key, "actions") == 0)
    return OPIPE_OK;
  if (json_is_string(value))
    return read_key(r, key, json_string_value(value));
  if (!json_is_integer(value))
    return bad_header(r, key, "(neither text nor number)");
  (void)snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
  return read_key(r, key, number);
}

/* Keys of a JSON order, as they are read. */
static const char *const json_keys[] = {
    "format", "version", "actions", "ranks",    "stages",  "replicas", "microbatches",
    "slices", "parts",   "mode",    "versions", "sync",    "place",    "edges",
    "shares", "lengths", "copies",  "tensor",   "sharded", "sequence", "scattered"};

/* Refuses keys that nothing reads: they may be misspelt. */
static opipe_status check_json_keys(reader *r, const json_t *root) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)root, key, value) {
    size_t k = 0;
    while (k < OPI_COUNT(json_keys) && strcmp(key, json_keys[k]) != 0)
      ++k;
    if (k == OPI_COUNT(json_keys))
      return opi_fail(r->err, OPIPE_E_INVALID, "the schedule has an unknown key '%.40s'", key);
  }
  return OPIPE_OK;
}

static opipe_status read_json_root(reader *r, const json_t *root) {
  const char *format = NULL;
  uint64_t version = 0;
  const json_t *actions = NULL;
  OPI_TRY(opi_json_get_string(root, "schedule", "format", &format, r->err));
  OPI_TRY(opi_json_get_u64(root, "schedule", "version", UINT32_MAX, &version, r->err));
  OPI_TRY(opi_json_get_array(root, "schedule", "actions", &actions, r->err));
  if (strcmp(format, "onnx-pipe-schedule") != 0 || version != 1) {
    return opi_fail(r->err, OPIPE_E_UNSUPPORTED,
                    "format '%.40s' version %llu; this build reads "
                    "onnx-pipe-schedule version 1",
                    format, (unsigned long long)version);
  }
  OPI_TRY(check_json_keys(r, root));
  r->headed = true;
  for (size_t k = 0; k < OPI_COUNT(json_keys); ++k) {
    const json_t *value = json_object_get(root, json_keys[k]);
    if (value != NULL)
      OPI_TRY(read_json_key(r, json_keys[k], value));
  }
  for (size_t row = 0; row < json_array_size(actions); ++row) {
    const json_t *cells = json_array_get(actions, row);
    if (!json_is_array(cells)) {
      return opi_fail(r->err, OPIPE_E_INVALID, "row %zu: actions of a rank must be an array",
                      row + 1);
    }
    OPI_TRY(begin_row(r));
    for (size_t c = 0; c < json_array_size(cells); ++c) {
      const json_t *cell = json_array_get(cells, c);
      if (!json_is_string(cell))
        return opi_fail(r->err, OPIPE_E_INVALID, "row %zu, column %zu: no text", row + 1, c + 1);
      const char *text = json_string_value(cell);
      OPI_TRY(
          read_cell(r, text, text + json_string_length(cell), (uint32_t)row + 1, (uint32_t)c + 1));
    }
  }
  return OPIPE_OK;
}

static opipe_status read_json(reader *r, const char *text, size_t n) {
  json_t *root = NULL;
  OPI_TRY(opi_json_parse(text, n, "the schedule", &root, r->err));
  const opipe_status status =
      json_is_object(root) ? read_json_root(r, root)
                           : opi_fail(r->err, OPIPE_E_INVALID, "the schedule is not a JSON object");
  json_decref(root);
  return status;
}

/* ---- the table's problem ---- */

static uint32_t row_of(const reader *r, uint32_t item) {
  return r->sources[item].row;
}

/* Infers stages, micro-batches and places of a table without header. */
static opipe_status infer(reader *r) {
  opi_problem *p = &r->problem;
  bool backward = false;
  for (uint32_t i = 0; i < r->list->n_items; ++i) {
    const opi_do *a = &r->list->items[i];
    if (a->kind == OPI_DO_IDLE || a->kind == OPI_DO_STEP)
      continue;
    if (a->replica != 0 || a->slice != 0 || a->part != 0 || a->version != 0 ||
        r->sources[i].other != OPIPE_NONE || (a->flags & OPIPE_ACTION_NEXT_STEP) != 0) {
      return opi_fail(r->err, OPIPE_E_INVALID,
                      "row %u, column %u: replicas, slices, parts, versions and other ends need a "
                      "header (#onnx-pipe-schedule v1)",
                      row_of(r, i), r->sources[i].column);
    }
    if (a->stage >= STAGES_MOST) {
      return opi_fail(r->err, OPIPE_E_LIMIT, "row %u, column %u: stage %u; at most %d are read",
                      row_of(r, i), r->sources[i].column, a->stage, STAGES_MOST);
    }
    p->n_stages = a->stage >= p->n_stages ? a->stage + 1 : p->n_stages;
    if (a->microbatch >= p->n_microbatches)
      p->n_microbatches = a->microbatch + 1;
    backward = backward || a->kind == OPI_DO_B || a->kind == OPI_DO_I || a->kind == OPI_DO_W;
  }
  if (p->n_stages == 0)
    return opi_fail(r->err, OPIPE_E_INVALID, "the schedule has no actions");
  p->n_ranks = r->n_rows;
  p->mode = backward ? OPIPE_MODE_TRAIN : OPIPE_MODE_FORWARD;
  p->n_replicas = p->n_slices = p->n_parts = 1;
  uint32_t *places = OPI_ARENA_ARRAY(&r->arena, uint32_t, p->n_stages);
  if (places == NULL)
    return opi_fail_nomem(r->err, p->n_stages * sizeof *places, "places");
  memset(places, 0xff, p->n_stages * sizeof *places);
  p->instance_rank = places;
  for (uint32_t rank = 0; rank < r->n_rows; ++rank) {
    for (uint32_t i = r->list->rank_first[rank]; i < r->list->rank_first[rank + 1]; ++i) {
      const opi_do *a = &r->list->items[i];
      if (a->kind == OPI_DO_IDLE || a->kind == OPI_DO_STEP)
        continue;
      if (places[a->stage] != OPIPE_NONE && places[a->stage] != rank) {
        return opi_fail(r->err, OPIPE_E_INVALID,
                        "row %u, column %u: rank %u, step %u: stage %u is on rank %u as well",
                        row_of(r, i), r->sources[i].column, rank, i - r->list->rank_first[rank],
                        a->stage, places[a->stage]);
      }
      places[a->stage] = rank;
    }
  }
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    if (places[s] == OPIPE_NONE) {
      return opi_fail(r->err, OPIPE_E_INVALID, "stage %u is on no rank (stages 0 to %u)", s,
                      p->n_stages - 1);
    }
  }
  return OPIPE_OK;
}

static opipe_status complete(reader *r) {
  opi_problem *p = &r->problem;
  if (!r->headed) {
    OPI_TRY(infer(r));
  } else if (p->n_ranks != r->n_rows || p->n_stages == 0 || p->n_microbatches == 0 ||
             p->n_replicas == 0 || p->n_slices == 0 || p->n_parts == 0 ||
             p->instance_rank == NULL || !r->said_mode) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "the header must say ranks (%u, there are %u), stages, replicas, microbatches, "
                    "slices, parts, mode and place",
                    p->n_ranks, r->n_rows);
  }
  if (p->edges != NULL)
    return OPIPE_OK;
  opi_stage_edge *edges = OPI_ARENA_ARRAY(&r->arena, opi_stage_edge, p->n_stages);
  if (edges == NULL)
    return opi_fail_nomem(r->err, p->n_stages * sizeof *edges, "edges");
  opi_edges_chain(edges, p->n_stages);
  p->edges = edges;
  p->n_edges = p->n_stages - 1;
  return OPIPE_OK;
}

static uint32_t find_edge(const opi_problem *p, uint32_t src, uint32_t dst) {
  if (src < p->n_edges && p->edges[src].src == src && p->edges[src].dst == dst)
    return src;
  for (uint32_t e = 0; e < p->n_edges; ++e) {
    if (p->edges[e].src == src && p->edges[e].dst == dst)
      return e;
  }
  return OPIPE_NONE;
}

static opipe_status find_edges(reader *r) {
  for (uint32_t i = 0; i < r->list->n_items; ++i) {
    opi_do *a = &r->list->items[i];
    if (!opi_do_is_message(a->kind))
      continue;
    const bool at_src = a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_RECV_B;
    uint32_t other = r->sources[i].other;
    if (other == OPIPE_NONE)
      other = at_src ? a->stage + 1 : a->stage - 1; /* stage 0 wraps around: there is no such edge
                                                     */
    a->edge = find_edge(&r->problem, at_src ? a->stage : other, at_src ? other : a->stage);
    if (a->edge != OPIPE_NONE)
      continue;
    char text[64];
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "row %u, column %u: '%s': stage %u of %u has no such "
                    "neighbour",
                    row_of(r, i), r->sources[i].column,
                    opi_do_text(&r->problem, a, text, sizeof text), a->stage, r->problem.n_stages);
  }
  return OPIPE_OK;
}

static opipe_status close_rows(reader *r) {
  opi_do_list *list = r->list;
  list->n_ranks = r->n_rows;
  list->rank_first = OPI_ARENA_ARRAY(&list->arena, uint32_t, (size_t)r->n_rows + 1);
  if (list->rank_first == NULL)
    return opi_fail_nomem(r->err, r->n_rows * sizeof(uint32_t), "rows");
  if (r->n_rows > 0)
    memcpy(list->rank_first, r->row_first, r->n_rows * sizeof(uint32_t));
  list->rank_first[r->n_rows] = list->n_items;
  return OPIPE_OK;
}

static opipe_status read_all(reader *r, const char *text, size_t n) {
  size_t skip = 0;
  while (skip < n &&
         (text[skip] == ' ' || text[skip] == '\n' || text[skip] == '\t' || text[skip] == '\r'))
    ++skip;
  if (skip < n && text[skip] == '{')
    OPI_TRY(read_json(r, text, n));
  else
    OPI_TRY(read_lines(r, text, n));
  if (r->n_rows == 0)
    return opi_fail(r->err, OPIPE_E_INVALID, "the schedule has no ranks");
  OPI_TRY(close_rows(r));
  OPI_TRY(complete(r));
  return find_edges(r);
}

opipe_status opi_order_read(const char *text, size_t n, uint32_t dialect,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opipe_error *err) {
  reader r = {.dialect = dialect, .err = err};
  if (n > TEXT_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "a schedule of %zu bytes; at most %d are read", n,
                    TEXT_MOST);
  }
  OPI_TRY(opi_do_list_create(allocator, 1, 0, &r.list, err));
  opi_arena_init(&r.arena, allocator, 0);
  opipe_status status = read_all(&r, text, n);
  if (status == OPIPE_OK)
    status = opi_order_make(&r.problem, r.list, allocator, out_order, err);
  else
    opi_do_list_free(r.list);
  opi_arena_release(&r.arena);
  return status;
}

opipe_status opi_order_read_file(const char *path, uint32_t dialect,
                                 const opipe_allocator *allocator, opi_order **out_order,
                                 opipe_error *err) {
  opi_text text;
  char block[1 << 14];
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    return opi_fail_errno(err, errno, "%s", path);
  opi_text_init(&text, allocator);
  size_t n = 0;
  while (text.n <= TEXT_MOST && (n = fread(block, 1, sizeof block, file)) > 0)
    opi_text_add(&text, block, n);
  opipe_status status = OPIPE_OK;
  if (ferror(file) != 0) {
    status = opi_fail_errno(err, errno, "%s", path);
  } else if (text.failed) {
    status = opi_fail_nomem(err, text.room, path);
  } else {
    status = opi_order_read(text.data == NULL ? "" : text.data, text.n, dialect, allocator,
                            out_order, err);
  }
  if (status < 0)
    (void)opi_error_prefix(err, "%s: ", path);
  (void)fclose(file);
  opi_text_release(&text);
  return status;
}
