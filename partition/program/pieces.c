/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces: tokens and rows of a micro-batch, with some of a stage's phases, as stages of their own;
 * in tensor groups, for every member and place of the stage.
 *
 *   token slices               F, B of the first tokens ──> F, B of the next ones  the next slice
 *                                                                                  reads the keys
 *   backwards in halves        F of all rows ══╦══ B of the first rows      one instance: what the
 *                                              ╚══ B of the other rows      halves read of F's
 *                                                                           tensors stays in place
 *   replicas that cut (2, 1)   F, B of the first rows ─┬─ F, B of all rows  a message for every
 *                              F, B of the other rows ─┘                    overlap of rows
 *
 *   tensor groups              a place of a member's program ──> sums ──> the next place
 *
 * All may be combined: a piece has the tokens of one slice, the rows of one share, or of one part
 * of its backward, in the graph of one member. Programs of even places are the members' own; odd
 * ones have none, but meetings (member_meetings.c). Routes lead from a member to itself.
 */
#include "partition/program/pieces.h"

#include <string.h>

enum { FORWARD = 1u << OPI_PHASE_F, BACKWARD = 1u << OPI_PHASE_I | 1u << OPI_PHASE_W };

/* ---- places ---- */

static int64_t first_row(int64_t rows, uint32_t n, uint32_t i) {
  return (rows * (int64_t)i + n - 1) / n;
}

static opipe_status place_piece(const opi_decision *plan, uint32_t s, uint32_t k, int64_t rows,
                                opi_piece *piece, opipe_error *err) {
  const opi_piece_place at = opi_piece_place_of(plan, k);
  const uint32_t n_parts = plan->n_parts > 1 ? plan->n_parts : 1;
  const uint32_t n_shares = plan->shares == NULL ? 1 : plan->shares[s];
  *piece = (opi_piece){.variant = OPIPE_NONE,
                       .graph = at.slice * opi_plan_width(plan) + at.member,
                       .slice = at.slice,
                       .share = at.share};
  if (at.share >= n_shares)
    return OPIPE_OK;
  piece->first = first_row(rows, n_shares, at.share);
  piece->rows = first_row(rows, n_shares, at.share + 1) - piece->first;
  if (piece->rows == 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "stage %u has %u replicas, which cannot share a micro-batch of %lld row%s", s,
                    n_shares, (long long)rows, rows == 1 ? "" : "s");
  }
  piece->phases = at.part != 0                            ? BACKWARD
                  : n_parts == 1 && opi_plan_trains(plan) ? FORWARD | BACKWARD
                                                          : FORWARD;
  if (at.part == 0)
    return OPIPE_OK;
  if (piece->rows < n_parts) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "schedule '%s' cuts the backward of a micro-batch into %u parts along the "
                    "batch: %lld row%s cannot be cut",
                    plan->schedule.name, n_parts, (long long)piece->rows,
                    piece->rows == 1 ? "" : "s");
  }
  const int64_t whole = piece->rows, from = first_row(whole, n_parts, at.part - 1);
  piece->first += from;
  piece->rows = first_row(whole, n_parts, at.part) - from;
  return OPIPE_OK;
}

opipe_status opi_pieces_place(const opi_decision *plan, uint32_t c, int64_t rows,
                              opi_cut_model *model, opipe_error *err) {
  const uint32_t n = plan->n_stages * model->n_pieces;
  const int64_t counted = rows == 0 && !opi_plan_cuts_microbatches(plan) ? 1 : rows;
  model->pieces[c] = OPI_ARENA_ARRAY(&model->arena, opi_piece, n);
  if (model->pieces[c] == NULL)
    return opi_fail_nomem(err, n * sizeof(opi_piece), "pieces");
  for (uint32_t v = 0; v < n; ++v) {
    opi_piece *piece = &model->pieces[c][v];
    OPI_TRY(place_piece(plan, v / model->n_pieces, v % model->n_pieces, counted, piece, err));
    if (piece->phases != 0)
      OPI_TRY(opi_variant_note(model, piece->rows, &piece->variant, err));
  }
  return OPIPE_OK;
}

/* ---- cells ---- */

static const opi_cut *cut_of(const opi_composing *m, const opi_piece *piece) {
  return m->model->variants[piece->variant].slices[piece->graph].cut;
}

/* Whether the member of the piece's graph gives or keeps the output. Member 0 gives the host what
 * is whole; every member keeps what streams keep. */
static bool gives_output(const opi_composing *m, const opi_piece *piece, uint32_t output) {
  const opi_port_part *parts = m->model->variants[piece->variant].slices[piece->graph].output_parts;
  bool gives = output == OPIPE_NONE || parts == NULL || piece->graph % m->model->n_members == 0 ||
               parts[output].axis >= 0;
  for (uint32_t i = 0; i < m->plan->n_states; ++i)
    gives = gives || m->plan->states[i].output_index == output;
  return gives;
}

static opipe_status list_piece(opi_composing *m, uint32_t v, bool count) {
  opi_cut *c = m->cut;
  const uint32_t s = v / m->n_pieces, phases = m->pieces[v].phases;
  const opi_cut *from = cut_of(m, &m->pieces[v]);
  const uint32_t first = from->cell_first[s], end = from->cell_first[s + 1];
  if (!count) {
    m->cell_of[v] = OPI_ARENA_ARRAY(&m->scratch, uint32_t, end - first);
    if (m->cell_of[v] == NULL)
      return opi_fail_nomem(m->err, (end - first) * sizeof(uint32_t), "pieces");
  }
  for (uint32_t i = first; i < end; ++i) {
    opi_cell cell = from->cells[i];
    const bool own = (phases & 1u << cell.phase) != 0;
    if (!count)
      m->cell_of[v][i - first] = OPIPE_NONE;
    if (!own && (cell.phase != OPI_PHASE_F || (cell.readers & phases) == 0))
      continue;
    cell.stage = v;
    cell.output = gives_output(m, &m->pieces[v], cell.output) ? cell.output : OPIPE_NONE;
    cell.readers &= phases;
    cell.route = OPIPE_NONE;
    cell.n_routes = 0;
    if (own && cell.source == OPI_CELL_RECEIVED && cell.readers == 0)
      cell.readers = 1u << cell.phase; /* only for another piece, which receives it here */
    if (!own) {                        /* the forward's piece hands it on */
      cell.source = OPI_CELL_RECEIVED;
      cell.output = OPIPE_NONE;
      cell.state = 0;
      cell.stash = false;
    }
    if (!count) {
      m->cell_of[v][i - first] = c->n_cells;
      c->cells[c->n_cells] = cell;
    }
    ++c->n_cells;
  }
  return OPIPE_OK;
}

/* The piece with the same tokens' and rows' forward. */
static uint32_t forward_piece(const opi_composing *m, uint32_t v) {
  const uint32_t n_pieces = m->model->n_pieces;
  opi_piece_place at = opi_piece_place_of(m->plan, v % n_pieces);
  at.part = 0;
  return v - v % n_pieces + opi_piece_at_place(m->plan, at);
}

static opipe_status list_cells(opi_composing *m) {
  opi_cut *c = m->cut;
  for (uint32_t v = 0; v < c->n_stages; ++v) {
    if (m->pieces[v].phases != 0)
      OPI_TRY(list_piece(m, v, true));
  }
  c->cells = OPI_ARENA_ARRAY(&c->arena, opi_cell, c->n_cells);
  c->cell_first = OPI_ARENA_ARRAY(&c->arena, uint32_t, (size_t)c->n_stages + 1);
  c->used = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  c->phases = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  c->forward_of = OPI_ARENA_ARRAY(&c->arena, uint32_t, c->n_stages);
  m->cell_of = OPI_ARENA_ARRAY(&m->scratch, uint32_t *, c->n_stages);
  if (c->cells == NULL || c->cell_first == NULL || c->used == NULL || c->phases == NULL ||
      c->forward_of == NULL || m->cell_of == NULL)
    return opi_fail_nomem(m->err, c->n_cells * sizeof(opi_cell), "pieces");
  c->n_cells = 0;
  for (uint32_t v = 0; v < c->n_stages; ++v) {
    c->cell_first[v] = c->n_cells;
    c->phases[v] = m->pieces[v].phases;
    c->forward_of[v] = forward_piece(m, v);
    if (m->pieces[v].phases != 0)
      OPI_TRY(list_piece(m, v, false));
  }
  c->cell_first[c->n_stages] = c->n_cells;
  return OPIPE_OK;
}

/* ---- programs ---- */

static opipe_status take_program(opi_composing *m, uint32_t v, uint32_t which) {
  opi_cut *c = m->cut;
  const uint32_t s = v / m->n_pieces;
  opi_program *program = &c->programs[v * c->n_kinds + which];
  if (m->pieces[v].phases == 0 || (opi_program_phases(which) & ~m->pieces[v].phases) != 0)
    return OPIPE_OK;
  const opi_cut *from = cut_of(m, &m->pieces[v]);
  c->used[v] |= from->used[s] & 1u << which;
  if (opi_piece_place_of(m->plan, v % m->model->n_pieces).place % 2 == 1)
    return OPIPE_OK; /* sums alone */
  *program = *opi_program_of(from, s, which);
  const uint32_t n = program->graph.n_boundaries;
  uint32_t *cells = OPI_ARENA_ARRAY(&c->arena, uint32_t, n);
  if (cells == NULL)
    return opi_fail_nomem(m->err, n * sizeof *cells, "pieces");
  for (uint32_t b = 0; b < n; ++b) {
    cells[b] = opi_cell_in_piece(m, v, program->cells[b]);
    if (cells[b] == OPIPE_NONE) {
      return opi_fail(m->err, OPIPE_E_INTERNAL, "a piece of stage %u lacks tensor '%s'", s,
                      from->cells[program->cells[b]].name);
    }
  }
  program->cells = cells;
  return OPIPE_OK;
}

/* Lists outputs: every piece with the forward of the stage that makes one has its rows, tokens and
 * part. An output that is passed through is so in all. */
static opipe_status list_outputs(opi_composing *m) {
  opi_cut *c = m->cut;
  const uint32_t n = c->graph->n_outputs * m->model->n_pieces;
  c->output_port = m->graphs[0].base->output_port;
  c->n_pieces = m->model->n_pieces;
  c->output_cell = OPI_ARENA_ARRAY(&c->arena, uint32_t, (size_t)n + 1);
  if (c->output_cell == NULL)
    return opi_fail_nomem(m->err, n * sizeof(uint32_t), "pieces");
  memset(c->output_cell, 0xff, n * sizeof *c->output_cell);
  for (uint32_t i = 0; i < c->graph->n_outputs * m->n_pieces; ++i) {
    const uint32_t output = i / m->n_pieces, k = i % m->n_pieces;
    const opi_cut *base = m->graphs[m->pieces[k].graph].base; /* the same in all stages */
    const uint32_t cell = output < base->graph->n_outputs ? base->output_cell[output] : OPIPE_NONE;
    if (cell == OPIPE_NONE)
      continue;
    const uint32_t v = base->cells[cell].stage * m->n_pieces + k;
    if ((m->pieces[v].phases & FORWARD) != 0 && gives_output(m, &m->pieces[v], output))
      c->output_cell[output * c->n_pieces + v % c->n_pieces] = opi_cell_in_piece(m, v, cell);
  }
  return OPIPE_OK;
}

static opipe_status compose(opi_composing *m) {
  opi_cut *c = m->cut;
  const uint32_t n = c->n_stages * c->n_kinds;
  OPI_TRY(list_cells(m));
  OPI_TRY(opi_pieces_join(m));
  OPI_TRY(list_outputs(m));
  if (m->model->n_members > 1)
    OPI_TRY(opi_pieces_meet(m));
  c->programs = OPI_ARENA_ARRAY(&c->arena, opi_program, n);
  if (c->programs == NULL)
    return opi_fail_nomem(m->err, n * sizeof *c->programs, "pieces");
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(take_program(m, i / c->n_kinds, i % c->n_kinds));
  return OPIPE_OK;
}

static opipe_status list_graphs(opi_composing *m, const opi_piece_axes *axes) {
  const opi_cut_model *model = m->model;
  const uint32_t n = opi_model_graphs(model);
  m->graphs = OPI_ARENA_ARRAY(&m->scratch, opi_composed_graph, n);
  if (m->graphs == NULL)
    return opi_fail_nomem(m->err, n * sizeof *m->graphs, "pieces");
  for (uint32_t k = 0; k < n; ++k) {
    const opi_variant_slice *first = &model->variants[0].slices[k];
    m->graphs[k] = (opi_composed_graph){.base = first->cut,
                                        .graph = first->graph,
                                        .other = &model->variants[model->n_variants - 1].slices[k],
                                        .axes = axes == NULL ? NULL : &axes[k]};
  }
  return OPIPE_OK;
}

opipe_status opi_pieces_compose(const opi_decision *plan, uint32_t c, const opi_piece_axes *axes,
                                opi_cut_model *model, opipe_error *err) {
  const opi_variant_slice *first = &model->variants[model->pieces[c][0].variant].slices[0];
  if (model->n_pieces == 1) {
    model->cuts[c] = first->cut;
    return OPIPE_OK;
  }
  opi_cut *cut = opi_alloc_zero(plan->allocator, 1, sizeof *cut);
  if (cut == NULL)
    return opi_fail_nomem(err, sizeof *cut, "pieces");
  opi_arena_init(&cut->arena, plan->allocator, 0);
  cut->graph = first->graph;
  cut->training = first->training;
  cut->n_kinds = first->cut->n_kinds;
  cut->sources = first->cut->sources;
  cut->trained = first->cut->trained;
  cut->parts = first->cut->parts;
  cut->n_params = first->cut->n_params;
  cut->n_stages = plan->n_stages * model->n_pieces;
  opi_composing m = {.plan = plan,
                     .model = model,
                     .pieces = model->pieces[c],
                     .rows = model->variants[0].rows,
                     .cut = cut,
                     .n_pieces = opi_pieces_of_place(model),
                     .err = err};
  opi_arena_init(&m.scratch, plan->allocator, 0);
  opipe_status status = list_graphs(&m, axes);
  if (status == OPIPE_OK)
    status = compose(&m);
  opi_arena_release(&m.scratch);
  if (status < 0) {
    opi_cut_free(cut);
    return status;
  }
  model->cuts[c] = cut;
  return OPIPE_OK;
}
