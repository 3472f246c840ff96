/* SPDX-License-Identifier: Apache-2.0 */
/* See offloads.h. */
#include "partition/program/offloads.h"

#include <stdlib.h>
#include <string.h>

enum { FORWARD = 1u << OPI_PHASE_F };

/* Does a tensor group make the cell's tensor together, or from it? Its meetings know one place. */
static bool is_met(const opi_cut *cut, uint32_t width, const opi_cell *cell) {
  uint32_t i = 0;
  while (i < cut->n_meetings &&
         (cell->stage < cut->meetings[i].at || cell->stage - cut->meetings[i].at >= width))
    ++i;
  return i < cut->n_meetings;
}

/* Whether the cell can be offloaded: a stash that a forward leaves, no result. */
static bool can_leave(const opi_cut *cut, uint32_t width, const opi_cell *cell) {
  if (is_met(cut, width, cell))
    return false;
  if (cell->phase != OPI_PHASE_F || (cell->readers & ~(uint32_t)FORWARD) == 0 || cell->state != 0 ||
      cell->output != OPIPE_NONE || cell->n_bytes == 0)
    return false;
  if (cell->source == OPI_CELL_RECEIVED)
    return (cell->readers & FORWARD) != 0 && !cut->routes[cell->route].within;
  return cell->source == OPI_CELL_MADE;
}

/* ---- refusals ---- */

static opipe_status check_device(const opi_device_spec *d, uint32_t rank, opipe_error *err) {
  const bool real = (d->flags & OPIPE_DEVICE_EMULATED) == 0;
  if (real && (d->flags & OPIPE_DEVICE_HOST_MEMORY) != 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "offload: rank %u's device %s:%u computes in the host's memory, so moving "
                    "stashes to the host saves nothing",
                    rank, d->kind, d->index);
  }
  if ((d->flags & OPIPE_DEVICE_SYNCHRONOUS) != 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "offload: rank %u's device %s:%u is synchronous, so it would wait for every "
                    "copy",
                    rank, d->kind, d->index);
  }
  return OPIPE_OK;
}

opipe_status opi_offload_check(const opi_decision *plan, opipe_error *err) {
  if (plan->n_parts > 1) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "offload: cannot be combined with backwards in halves (schedule '%s'), which "
                    "read rows of what a forward of more rows keeps",
                    plan->schedule.name);
  }
  for (uint32_t r = 0; r < plan->n_ranks; ++r)
    OPI_TRY(check_device(&plan->devices[r], r, err));
  return OPIPE_OK;
}

/* ---- names ---- */

typedef struct candidate {
  const char *name;
  uint64_t n_bytes;
  uint32_t index;
} candidate;

static int by_name(const void *left, const void *right) {
  const candidate *a = left, *b = right;
  const int order = strcmp(a->name, b->name);
  return order != 0 ? order : a->index < b->index ? -1 : a->index > b->index;
}

static int by_size(const void *left, const void *right) {
  const candidate *a = left, *b = right;
  if (a->n_bytes != b->n_bytes)
    return a->n_bytes > b->n_bytes ? -1 : 1;
  return a->index < b->index ? -1 : a->index > b->index;
}

static int by_text(const void *left, const void *right) {
  return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Joins candidates of one name: several stages may keep one tensor. Returns how many are left. */
static uint32_t join_names(candidate *list, uint32_t n) {
  uint32_t kept = 0;
  qsort(list, n, sizeof *list, by_name);
  for (uint32_t i = 0; i < n; ++i) {
    if (kept != 0 && strcmp(list[kept - 1].name, list[i].name) == 0)
      list[kept - 1].n_bytes += list[i].n_bytes;
    else
      list[kept++] = list[i];
  }
  return kept;
}

opipe_status opi_offload_match(const opi_decision *plan, const opi_cut_model *model,
                               const char *glob, opi_arena *arena, const char ***out_names,
                               uint32_t *out_n, opipe_error *err) {
  const opi_cut *cut = model->cuts[0];
  candidate *list = OPI_ARENA_ARRAY(arena, candidate, (size_t)cut->n_cells + 1);
  uint32_t n = 0, n_all = 0;
  if (list == NULL)
    return opi_fail_nomem(err, cut->n_cells * sizeof *list, "offloads");
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    const opi_cell *cell = &cut->cells[c];
    const bool can = can_leave(cut, opi_plan_width(plan), cell);
    n_all += can;
    if (can && opi_glob(glob, cell->name))
      list[n++] = (candidate){cell->name, cell->n_bytes, c};
  }
  if (n == 0) {
    return opi_fail(err, OPIPE_E_NOTFOUND,
                    "offload: '%.100s' matches none of the %u tensors that stages keep from their "
                    "forwards to their backwards",
                    glob, n_all);
  }
  n = join_names(list, n);
  qsort(list, n, sizeof *list, by_size);
  const char **names = OPI_ARENA_ARRAY(arena, const char *, n);
  if (names == NULL)
    return opi_fail_nomem(err, n * sizeof *names, "offloads");
  for (uint32_t i = 0; i < n; ++i) {
    names[i] = opi_arena_strdup(arena, list[i].name);
    if (names[i] == NULL)
      return opi_fail_nomem(err, strlen(list[i].name), "offloads");
  }
  *out_names = names;
  *out_n = n;
  return OPIPE_OK;
}

/* ---- the split ---- */

typedef struct splitting {
  opi_cut *cut;
  const char **names;       /* [n_names] sorted */
  bool *found;              /* [n_names] */
  uint32_t n_names, width;  /* of tensor groups */
  uint32_t *first, *second; /* [n_cells] new indices; second OPIPE_NONE: the cell stays one */
  uint32_t n_split;
} splitting;

static bool is_named(const splitting *s, const opi_cell *cell) {
  const char **at = bsearch(&cell->name, s->names, s->n_names, sizeof *s->names, by_text);
  if (at == NULL || !can_leave(s->cut, s->width, cell))
    return false;
  s->found[at - s->names] = true;
  return true;
}

static void number_cells(splitting *s) {
  uint32_t n = 0;
  for (uint32_t c = 0; c < s->cut->n_cells; ++c) {
    const bool split = is_named(s, &s->cut->cells[c]);
    s->first[c] = n++;
    s->second[c] = split ? n++ : OPIPE_NONE;
    s->n_split += split;
  }
}

/* The cell that the backward reads, fed by route `route`. */
static opi_cell second_cell(const opi_cell *cell, uint32_t route) {
  opi_cell out = *cell;
  out.source = OPI_CELL_RECEIVED;
  out.readers &= ~(uint32_t)FORWARD;
  out.port = OPIPE_NONE;
  out.route = route;
  out.n_routes = 1;
  out.first_out = OPIPE_NONE;
  out.stash = true;
  return out;
}

static void split_cells(const splitting *s, opi_cell *cells, opi_route *routes) {
  opi_cut *cut = s->cut;
  uint32_t n_routes = cut->n_routes;
  for (uint32_t r = 0; r < cut->n_routes; ++r) {
    routes[r] = cut->routes[r];
    routes[r].src_cell = s->first[routes[r].src_cell];
    routes[r].dst_cell = s->first[routes[r].dst_cell];
  }
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    opi_cell *first = &cells[s->first[c]];
    *first = cut->cells[c];
    if (s->second[c] == OPIPE_NONE)
      continue;
    routes[n_routes] = (opi_route){.value = first->value,
                                   .src_stage = first->stage,
                                   .dst_stage = first->stage,
                                   .src_cell = s->first[c],
                                   .dst_cell = s->second[c],
                                   .phase = OPI_PHASE_F,
                                   .within = true,
                                   .offload = true,
                                   .n_bytes = first->n_bytes};
    cells[s->second[c]] = second_cell(first, n_routes++);
    first->readers &= FORWARD;
    first->stash = false;
  }
  for (uint32_t stage = 0; stage < cut->n_stages; ++stage) {
    const uint32_t first = cut->cell_first[stage];
    cut->cell_first[stage] = first == cut->n_cells ? first + s->n_split : s->first[first];
  }
  cut->cell_first[cut->n_stages] = cut->n_cells + s->n_split;
}

/* Programs with a forward have the first cell, backwards the second. */
static opipe_status remap_programs(const splitting *s, opipe_error *err) {
  opi_cut *cut = s->cut;
  for (uint32_t i = 0; i < cut->n_stages * cut->n_kinds; ++i) {
    opi_program *program = &cut->programs[i];
    const uint32_t n = program->graph.n_boundaries;
    const bool forward = (opi_program_phases(i % cut->n_kinds) & FORWARD) != 0;
    if (program->cells == NULL || n == 0)
      continue;
    uint32_t *cells = OPI_ARENA_ARRAY(&cut->arena, uint32_t, n);
    if (cells == NULL)
      return opi_fail_nomem(err, n * sizeof *cells, "offloads");
    for (uint32_t b = 0; b < n; ++b) {
      const uint32_t c = program->cells[b];
      cells[b] = forward || s->second[c] == OPIPE_NONE ? s->first[c] : s->second[c];
    }
    program->cells = cells;
  }
  return OPIPE_OK;
}

static const uint32_t *first_cells(const splitting *s, const uint32_t *cells, uint32_t n) {
  uint32_t *out = OPI_ARENA_ARRAY(&s->cut->arena, uint32_t, n);
  for (uint32_t i = 0; i < n && out != NULL; ++i)
    out[i] = cells[i] == OPIPE_NONE ? OPIPE_NONE : s->first[cells[i]];
  return out;
}

/* Values that members of tensor groups make together are not split: their first cells hold them. */
static opipe_status remap_meetings(const splitting *s, opipe_error *err) {
  opi_cut *cut = s->cut;
  for (uint32_t i = 0; i < cut->n_meetings; ++i) {
    opi_group_meeting *meeting = &cut->meetings[i];
    opi_group_value *values =
        opi_arena_copy(&cut->arena, meeting->values, meeting->n_values * sizeof *values);
    if (values == NULL)
      return opi_fail_nomem(err, meeting->n_values * sizeof *values, "offloads");
    for (uint32_t v = 0; v < meeting->n_values; ++v) {
      values[v].in_cell = first_cells(s, values[v].in_cell, s->width);
      values[v].out_cell = first_cells(s, values[v].out_cell, s->width);
      if (values[v].in_cell == NULL || values[v].out_cell == NULL)
        return opi_fail_nomem(err, s->width * sizeof(uint32_t), "offloads");
    }
    meeting->values = values;
  }
  return OPIPE_OK;
}

static opipe_status split_cut(splitting *s, opi_arena *scratch, opipe_error *err) {
  opi_cut *cut = s->cut;
  const size_t n_outputs = (size_t)cut->graph->n_outputs * cut->n_pieces;
  s->first = OPI_ARENA_ARRAY(scratch, uint32_t, cut->n_cells);
  s->second = OPI_ARENA_ARRAY(scratch, uint32_t, cut->n_cells);
  s->n_split = 0;
  if (s->first == NULL || s->second == NULL)
    return opi_fail_nomem(err, cut->n_cells * sizeof *s->first, "offloads");
  number_cells(s);
  opi_cell *cells = OPI_ARENA_ARRAY(&cut->arena, opi_cell, (size_t)cut->n_cells + s->n_split);
  opi_route *routes = OPI_ARENA_ARRAY(&cut->arena, opi_route, (size_t)cut->n_routes + s->n_split);
  uint32_t *outputs = OPI_ARENA_ARRAY(&cut->arena, uint32_t, n_outputs);
  if (cells == NULL || routes == NULL || outputs == NULL)
    return opi_fail_nomem(err, cut->n_cells * sizeof *cells, "offloads");
  split_cells(s, cells, routes);
  OPI_TRY(remap_programs(s, err));
  OPI_TRY(remap_meetings(s, err));
  for (size_t o = 0; o < n_outputs; ++o) {
    const uint32_t c = cut->output_cell[o];
    outputs[o] = c == OPIPE_NONE ? c : s->first[c];
  }
  cut->cells = cells;
  cut->routes = routes;
  cut->output_cell = outputs;
  cut->n_cells += s->n_split;
  cut->n_routes += s->n_split;
  opi_cut_link_routes(cut);
  return OPIPE_OK;
}

static opipe_status split_all(const opi_decision *plan, opi_cut_model *model, opi_arena *scratch,
                              opipe_error *err) {
  const uint32_t n = plan->n_offload;
  splitting s = {.names = opi_arena_copy(scratch, plan->offload, n * sizeof *plan->offload),
                 .found = OPI_ARENA_ARRAY(scratch, bool, n),
                 .n_names = n,
                 .width = opi_plan_width(plan)};
  if (s.names == NULL || s.found == NULL)
    return opi_fail_nomem(err, n * sizeof *s.names, "offloads");
  qsort(s.names, n, sizeof *s.names, by_text);
  for (uint32_t c = 0; c < model->n_classes; ++c) {
    s.cut = model->cuts[c];
    if (c == 0 || model->cuts[c] != model->cuts[0])
      OPI_TRY(split_cut(&s, scratch, err));
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (!s.found[i]) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "offload: '%.100s' is no tensor that a stage keeps from its forward to its "
                      "backward",
                      s.names[i]);
    }
  }
  return OPIPE_OK;
}

opipe_status opi_offload_split(const opi_decision *plan, opi_cut_model *model, opipe_error *err) {
  opi_arena scratch;
  if (plan->n_offload == 0)
    return OPIPE_OK;
  OPI_TRY(opi_offload_check(plan, err));
  opi_arena_init(&scratch, plan->allocator, 0);
  const opipe_status status = split_all(plan, model, &scratch, err);
  opi_arena_release(&scratch);
  return status;
}
