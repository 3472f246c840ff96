/* SPDX-License-Identifier: Apache-2.0 */
/* Products of half types (and TF32) whose rows are no whole vectors: the library has slow kernels
 * for them alone. Where it pays, rows go through scratch, where they begin with lines of memory:
 *
 *   A, B  ──relay──► scratch ┐
 *   C     ──relay──► scratch ┴─ product ─► scratch ──relay──► D
 *
 * A large D is made in pieces, some of its rows at a time; a large operand is taken so. Where its
 * rows are counted by k the pieces are added, which only results of fp32 may be. Distances alone
 * are padded: uneven extents are even.c's.
 *
 *   workspace   [ A | B | D, or what there is of them | the library's ]
 */
#include "rule.h"

enum {
  PIECE_ROWS = 128, /* pieces are multiples of this: the library's tiles, and 256 bytes */
  WHOLE_PIECES = 2, /* most pieces of an operand that is copied as one */
  MOST_PIECES = 4,  /* most pieces of an operand where fewer would leave processors idle */
  TILE = 128 * 256  /* elements of the result that a processor makes at a time */
};

/* An operand or the result as it lies: rows of `n`, at a distance. */
typedef struct side {
  int64_t rows, n, distance, pitch;
  uint32_t size;
  bool padded;  /* it goes through scratch */
  bool by_rows; /* and some of its rows at a time */
  uint64_t at;  /* in scratch */
} side;

/* Extents that are cut into pieces. */
enum { OF_M, OF_N, OF_K, EXTENTS };

typedef struct padding {
  const cuda_product *p;
  const cuda_ends *ends;
  side a, b, d;
  uint32_t along; /* OF_* */
  int64_t extent[EXTENTS];
  int64_t step; /* a piece */
  uint64_t piece_bytes;
  uint64_t n_bytes;
} padding;

static side side_of(int64_t rows, int64_t n, int64_t distance, uint32_t dtype) {
  return (side){.rows = rows,
                .n = n,
                .distance = distance,
                .pitch = cuda_pitch(dtype, n),
                .size = opipe_dtype_bits(dtype) / 8,
                .padded = cuda_is_odd_row(dtype, distance)};
}

static uint64_t whole_bytes(const side *s) {
  return (uint64_t)s->rows * (uint64_t)s->pitch * s->size;
}

/* Does what is moved for each padded side pay? An operand is read and written once, a result that
 * adds to something twice. */
static bool repays(const padding *w) {
  const cuda_product *p = w->p;
  const int64_t size = w->a.size, d_size = w->d.size;
  return (!w->a.padded || cuda_repays_moves(p->n, 2 * size)) &&
         (!w->b.padded || cuda_repays_moves(p->m, 2 * size)) &&
         (!w->d.padded || cuda_repays_moves(p->k, (p->beta != 0 ? 4 : 2) * d_size));
}

/* Elements of the result that keep all processors busy. */
static int64_t busy_elements(const opipe_device *device) {
  const cuda_place *at = device->place;
  int n = device->processors;
  if (n == 0) {
    (void)at->driver->device_attribute(&n, (CUdevice_attribute)CUDA_ATTRIBUTE_PROCESSORS,
                                       at->ordinal);
  }
  return (int64_t)n * TILE;
}

/* Which sides are taken by rows, and along what. False: that cannot be. */
static bool divide(padding *w) {
  const cuda_product *p = w->p;
  const uint64_t most = WHOLE_PIECES * w->piece_bytes;
  const uint32_t a_along = p->trans_a ? OF_M : OF_K, b_along = p->trans_b ? OF_K : OF_N;
  w->a.by_rows = w->a.padded && whole_bytes(&w->a) > most;
  w->b.by_rows = w->b.padded && whole_bytes(&w->b) > most;
  w->along = w->a.by_rows ? a_along : w->b.by_rows ? b_along : OF_N;
  w->d.by_rows = w->d.padded && w->along == OF_N;
  if ((w->a.by_rows && w->b.by_rows && a_along != b_along) || (w->along == OF_M && w->d.padded))
    return false;
  return w->along != OF_K ||
         (p->d_dtype == OPIPE_FLOAT && !p->has_bias && p->through == CUDA_THROUGH_NOTHING &&
          w->ends->c == OPIPE_NONE && (!w->d.padded || whole_bytes(&w->d) <= most));
}

/* Which sides go through scratch. False: the product stays as it is. */
static bool plan(const cuda_rule *r, padding *w) {
  const cuda_product *p = w->p;
  if (p->batch != 1 || !cuda_takes_vectors(r->program->device, p->dtype) ||
      !cuda_is_large_product(r->program->device, p->m, p->n, p->k))
    return false;
  w->a = side_of(p->trans_a ? p->m : p->k, p->trans_a ? p->k : p->m, p->a_distance, p->dtype);
  w->b = side_of(p->trans_b ? p->k : p->n, p->trans_b ? p->n : p->k, p->b_distance, p->dtype);
  w->d = side_of(p->n, p->m, p->d_distance, p->d_dtype);
  w->extent[OF_M] = p->m;
  w->extent[OF_N] = p->n;
  w->extent[OF_K] = p->k;
  w->piece_bytes = (uint64_t)r->program->device->pad_mib << 20;
  return (w->a.padded || w->b.padded || w->d.padded) && !(w->d.padded && p->has_aux) && repays(w) &&
         divide(w);
}

/* Rows that so many bytes hold of each side that is taken by rows. */
static int64_t rows_within(const padding *w, uint64_t n_bytes) {
  const side *all[] = {&w->a, &w->b, &w->d};
  int64_t most = w->extent[w->along];
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    const int64_t fit = (int64_t)n_bytes / (all[i]->pitch * (int64_t)all[i]->size);
    most = all[i]->by_rows && fit < most ? fit : most;
  }
  return most;
}

/* Pieces as large as fit, and as even as that allows. False: they would leave half of the
 * processors idle, or add to the result more often than pays. */
static bool cut(const opipe_device *device, padding *w) {
  const int64_t extent = w->extent[w->along];
  const int64_t other = w->along == OF_M ? w->p->n : w->p->m; /* of a piece's result */
  const int64_t busy = busy_elements(device), more = rows_within(w, MOST_PIECES * w->piece_bytes);
  const int64_t wanted = w->along == OF_K ? more : (busy + other - 1) / other;
  int64_t most = rows_within(w, w->piece_bytes);
  if (most < wanted)
    most = more < wanted ? more : wanted;
  most = most < PIECE_ROWS ? PIECE_ROWS : most == extent ? most : most / PIECE_ROWS * PIECE_ROWS;
  const int64_t n = (extent + most - 1) / most, even = (extent + n - 1) / n;
  w->step = (even + PIECE_ROWS - 1) / PIECE_ROWS * PIECE_ROWS;
  return n == 1 || (w->along == OF_K ? cuda_repays_moves(w->step, 2 * (int64_t)w->d.size)
                                     : 2 * w->step * other >= busy);
}

static void place(padding *w) {
  side *all[] = {&w->a, &w->b, &w->d};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    side *s = all[i];
    const int64_t rows = s->by_rows && w->step < s->rows ? w->step : s->rows;
    s->at = w->n_bytes;
    if (s->padded)
      w->n_bytes += cuda_align_up((uint64_t)rows * (uint64_t)s->pitch * s->size);
  }
}

/* Rows [first, first + n) of a value to their place in scratch, or back. */
static opipe_status relay(cuda_rule *r, const padding *w, const side *s, uint32_t value,
                          uint64_t offset, int64_t first, int64_t n, bool back) {
  const int64_t bytes = (int64_t)offset + first * s->distance * (int64_t)s->size;
  void *dense = cuda_at(r, value, bytes), *scratch = cuda_at(r, CUDA_AT_WORKSPACE, (int64_t)s->at);
  const cuda_relay_args args = {.to = back ? dense : scratch,
                                .from = back ? scratch : dense,
                                .rows = n,
                                .n = s->n,
                                .to_distance = back ? s->distance : s->pitch,
                                .from_distance = back ? s->pitch : s->distance,
                                .size = s->size};
  cuda_launch launch;
  if (!cuda_plan_relay(&args, &launch))
    return cuda_no_kernel(r, &r->program->graph->values[value]);
  CUDA_TRY(cuda_emit(r, &launch));
  cuda_want_workspace(r, w->n_bytes);
  return OPIPE_OK;
}

static cuda_spot spot_of(const side *s, uint32_t value, uint64_t from) {
  return s->padded ? (cuda_spot){CUDA_AT_WORKSPACE, (int64_t)(s->at + from)}
                   : (cuda_spot){value, (int64_t)from};
}

/* How far a side of a piece begins behind the whole, in bytes. */
static uint64_t begin(const side *s, int64_t row, int64_t column) {
  const int64_t rows = s->by_rows ? 0 : row * (s->padded ? s->pitch : s->distance);
  return (uint64_t)(rows + column) * s->size;
}

/* The product of a piece, whose operands are in their places. */
static opipe_status emit_product(cuda_rule *r, const padding *w, int64_t first, int64_t n) {
  const cuda_product *p = w->p;
  const cuda_ends *ends = w->ends;
  const int64_t m_at = w->along == OF_M ? first : 0, n_at = w->along == OF_N ? first : 0,
                k_at = w->along == OF_K ? first : 0;
  const uint64_t d = begin(&w->d, n_at, m_at);
  cuda_product piece = *p;
  *(w->along == OF_M ? &piece.m : w->along == OF_N ? &piece.n : &piece.k) = n;
  piece.beta = k_at > 0 ? 1.0 : p->beta;
  piece.a_distance = w->a.padded ? w->a.pitch : p->a_distance;
  piece.b_distance = w->b.padded ? w->b.pitch : p->b_distance;
  piece.d_distance = w->d.padded ? w->d.pitch : p->d_distance;
  piece.a_offset = (p->trans_a ? begin(&w->a, m_at, k_at) : begin(&w->a, k_at, m_at)) +
                   (w->a.padded ? 0 : p->a_offset);
  piece.b_offset = (p->trans_b ? begin(&w->b, k_at, n_at) : begin(&w->b, n_at, k_at)) +
                   (w->b.padded ? 0 : p->b_offset);
  piece.d_offset = d + (w->d.padded ? 0 : p->d_offset);
  piece.bias_offset += (uint64_t)m_at * w->d.size;
  piece.workspace_at = w->n_bytes;
  const cuda_spots spots = {.a = spot_of(&w->a, ends->a, piece.a_offset),
                            .b = spot_of(&w->b, ends->b, piece.b_offset),
                            .c = {w->d.padded ? OPIPE_NONE : ends->c, (int64_t)d},
                            .d = spot_of(&w->d, ends->d, piece.d_offset),
                            .bias = {ends->bias, ends->bias_bytes + m_at * (int64_t)w->d.size},
                            .aux = {ends->aux, (int64_t)d}};
  return cuda_emit_even(r, &piece, &spots);
}

/* Rows of what is added to go to D's place in scratch. */
static opipe_status fetch_result(cuda_rule *r, const padding *w, int64_t first, int64_t n) {
  const bool has_addend = w->ends->c != OPIPE_NONE;
  return w->d.padded && w->p->beta != 0 ? relay(r, w, &w->d, has_addend ? w->ends->c : w->ends->d,
                                                has_addend ? 0 : w->p->d_offset, first, n, false)
                                        : OPIPE_OK;
}

static opipe_status store_result(cuda_rule *r, const padding *w, int64_t first, int64_t n) {
  return w->d.padded ? relay(r, w, &w->d, w->ends->d, w->p->d_offset, first, n, true) : OPIPE_OK;
}

static opipe_status emit_piece(cuda_rule *r, const padding *w, int64_t first, int64_t n) {
  if (w->a.by_rows)
    CUDA_TRY(relay(r, w, &w->a, w->ends->a, w->p->a_offset, first, n, false));
  if (w->b.by_rows)
    CUDA_TRY(relay(r, w, &w->b, w->ends->b, w->p->b_offset, first, n, false));
  if (w->d.by_rows)
    CUDA_TRY(fetch_result(r, w, first, n));
  CUDA_TRY(emit_product(r, w, first, n));
  return w->d.by_rows ? store_result(r, w, first, n) : OPIPE_OK;
}

opipe_status cuda_emit_padded(cuda_rule *r, const cuda_product *product, const cuda_ends *ends,
                              bool *out_done) {
  padding w = {.p = product, .ends = ends};
  *out_done = plan(r, &w) && cut(r->program->device, &w);
  if (!*out_done)
    return OPIPE_OK;
  if (product->sums != CUDA_SUMS_NOTHING)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "pieces of a product make no sums beside");
  place(&w);
  if (w.a.padded && !w.a.by_rows)
    CUDA_TRY(relay(r, &w, &w.a, ends->a, product->a_offset, 0, w.a.rows, false));
  if (w.b.padded && !w.b.by_rows)
    CUDA_TRY(relay(r, &w, &w.b, ends->b, product->b_offset, 0, w.b.rows, false));
  if (!w.d.by_rows)
    CUDA_TRY(fetch_result(r, &w, 0, w.d.rows));
  const int64_t extent = w.extent[w.along];
  for (int64_t first = 0; first < extent; first += w.step) {
    const int64_t left = extent - first;
    CUDA_TRY(emit_piece(r, &w, first, left < w.step ? left : w.step));
  }
  return w.d.by_rows ? OPIPE_OK : store_result(r, &w, 0, w.d.rows);
}
