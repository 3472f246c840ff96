/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Attention of token rows: rows of several sequences, keys and values in pages, against plain loops
 * in double; the bits of a row whatever the other rows and the pages are; copies of pages, in
 * order; what is outside is reported and does no harm. */
#include "kit.h"

enum { SEQUENCES = 3, CONTEXT = 320, MOST_ROWS = 8 };

typedef struct form {
  uint32_t dtype;
  int64_t heads, kv_heads, depth, value_depth, window;
  double softcap;
  bool slopes;
} form;

/* Rows of a pass: of sequence 0 the 300th token, of 1 a slice at its beginning, of 2 one behind a
 * part's border; a row that is none. */
static const int64_t sequence_of[MOST_ROWS] = {0, 1, 1, 1, -1, 2, 2, 0};
static const int64_t position_of[MOST_ROWS] = {299, 0, 1, 2, 0, 127, 128, 300};

/* All sequences: keys and values by sequence, head and token. */
typedef struct story {
  const form *f;
  kit_tensor q, k, v, slopes; /* q by row of a pass; k, v [sequence][token][kv_heads * depth] */
} story;

static story make_story(const form *f) {
  const int64_t tokens = SEQUENCES * CONTEXT;
  const story s = {.f = f,
                   .q = kit_random(f->dtype, MOST_ROWS * f->heads * f->depth, 1, -1, 1),
                   .k = kit_random(f->dtype, tokens * f->kv_heads * f->depth, 2, -1, 1),
                   .v = kit_random(f->dtype, tokens * f->kv_heads * f->value_depth, 3, -1, 1),
                   .slopes = kit_random(OPIPE_FLOAT, f->heads, 4, 0.01, 0.5)};
  return s;
}

/* n elements of `from` at element `at` to element `to`. */
static void move(const kit_tensor *to, int64_t at, const kit_tensor *from, int64_t first,
                 int64_t n) {
  memcpy((char *)to->data + at * to->bytes, (const char *)from->data + first * from->bytes,
         (size_t)n * to->bytes);
}

/* A pass over rows [first, first + n) of the story, with pages of `page` tokens. */
typedef struct pass {
  cuda_row_attention_args args;
  kit_tensor y, keys, values, q, k, v;
} pass;

static int64_t page_of(int64_t sequence, int64_t p, int64_t pages) {
  return (sequence * pages + p) * 7 % (SEQUENCES * pages); /* no neighbours; 3, 15 and 138 */
}

/* Tokens before a pass' own lie in pages; where nobody may look, they are not numbers. */
static void fill_pages(const story *s, const pass *p, int64_t first, int64_t n) {
  const form *f = s->f;
  const int64_t page = p->args.page, pages = p->args.pages;
  for (int64_t r = first; r < first + n; ++r) {
    for (int64_t t = 0; sequence_of[r] >= 0 && t < position_of[r]; ++t) {
      for (int64_t h = 0; h < f->kv_heads; ++h) {
        const int64_t at =
            (page_of(sequence_of[r], t / page, pages) * f->kv_heads + h) * page + t % page;
        const int64_t from = (sequence_of[r] * CONTEXT + t) * f->kv_heads + h;
        move(&p->keys, at * f->depth, &s->k, from * f->depth, f->depth);
        move(&p->values, at * f->value_depth, &s->v, from * f->value_depth, f->value_depth);
      }
    }
  }
}

static pass make_pass(const story *s, int64_t first, int64_t n, int64_t page) {
  const form *f = s->f;
  const int64_t pages = (CONTEXT + page - 1) / page, pool = SEQUENCES * pages;
  const int64_t k_row = f->kv_heads * f->depth, v_row = f->kv_heads * f->value_depth;
  int64_t table[SEQUENCES * CONTEXT];
  pass p = {.y = kit_new(f->dtype, n * f->heads * f->value_depth),
            .keys = kit_new(f->dtype, pool * page * k_row),
            .values = kit_new(f->dtype, pool * page * v_row),
            .q = kit_new(f->dtype, n * f->heads * f->depth),
            .k = kit_new(f->dtype, n * k_row),
            .v = kit_new(f->dtype, n * v_row)};
  for (int64_t i = 0; i < pool; ++i)
    table[i] = page_of(i / pages, i % pages, pages);
  move(&p.q, 0, &s->q, first * f->heads * f->depth, p.q.n);
  for (int64_t r = 0; r < n; ++r) {
    const int64_t sequence = sequence_of[first + r] < 0 ? 0 : sequence_of[first + r];
    const int64_t from = sequence * CONTEXT + position_of[first + r];
    move(&p.k, r * k_row, &s->k, from * k_row, k_row);
    move(&p.v, r * v_row, &s->v, from * v_row, v_row);
  }
  p.args = (cuda_row_attention_args){
      .y = p.y.data,
      .q = p.q.data,
      .k = p.k.data,
      .v = p.v.data,
      .position = kit_placed(position_of + first, (size_t)n * sizeof position_of[0]),
      .sequence = kit_placed(sequence_of + first, (size_t)n * sizeof sequence_of[0]),
      .table = kit_placed(table, (size_t)pool * sizeof table[0]),
      .slopes = f->slopes ? s->slopes.data : NULL,
      .key_pages = p.keys.data,
      .value_pages = p.values.data,
      .status = kit_status(),
      .rows = n,
      .heads = f->heads,
      .kv_heads = f->kv_heads,
      .depth = f->depth,
      .value_depth = f->value_depth,
      .page = page,
      .pages = pages,
      .sequences = SEQUENCES,
      .pool = pool,
      .window = f->window,
      .scale = 0.3,
      .softcap = f->softcap};
  p.args.workspace = kit_workspace(cuda_row_attention_workspace(&p.args));
  fill_pages(s, &p, first, n);
  return p;
}

static void run_pass(const pass *p, uint32_t dtype) {
  cuda_launch launches[CUDA_LAUNCHES];
  const uint32_t n = cuda_plan_row_attention(&p->args, dtype, launches);
  OPI_ASSERT_FATAL(n > 0);
  KIT_RUN(launches, n, &p->y, &p->keys, &p->values);
}

/* Row r and head h in double. */
static void plain_row(const story *s, int64_t r, int64_t h, double *out) {
  const form *f = s->f;
  const int64_t kv = h / (f->heads / f->kv_heads), end = position_of[r] + 1;
  const int64_t begin = f->window > 0 && end > f->window ? end - f->window : 0;
  double score[CONTEXT], top = -(double)INFINITY, sum = 0;
  for (int64_t j = begin; j < end; ++j) {
    const int64_t from = (sequence_of[r] * CONTEXT + j) * f->kv_heads + kv;
    double x = 0;
    for (int64_t d = 0; d < f->depth; ++d)
      x += kit_get(&s->q, (r * f->heads + h) * f->depth + d) * kit_get(&s->k, from * f->depth + d);
    x *= 0.3;
    x = f->softcap > 0 ? f->softcap * tanh(x / f->softcap) : x;
    x += f->slopes ? kit_get(&s->slopes, h) * (double)(j + 1 - end) : 0;
    score[j] = x;
    top = fmax(top, x);
  }
  for (int64_t j = begin; j < end; ++j)
    sum += score[j] = exp(score[j] - top);
  for (int64_t j = begin; j < end; ++j) {
    const int64_t from = (sequence_of[r] * CONTEXT + j) * f->kv_heads + kv;
    for (int64_t d = 0; d < f->value_depth; ++d)
      out[d] += score[j] / sum * kit_get(&s->v, from * f->value_depth + d);
  }
}

static const form forms[] = {{OPIPE_FLOAT, 4, 2, 20, 24, 0, 0, false},
                             {OPIPE_FLOAT, 12, 1, 8, 40, 0, 5, false},
                             {OPIPE_FLOAT, 2, 2, 33, 16, 150, 0, true},
                             {OPIPE_BFLOAT16, 4, 2, 16, 16, 0, 0, false},
                             {OPIPE_FLOAT16, 2, 1, 64, 64, 40, 0, false}};

static void test_rows_against_loops(void) {
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
    const form *f = &forms[i];
    const story s = make_story(f);
    const pass p = make_pass(&s, 0, MOST_ROWS, 64);
    double *want = kit_doubles(p.y.n);
    for (int64_t r = 0; r < MOST_ROWS; ++r) {
      for (int64_t h = 0; sequence_of[r] >= 0 && h < f->heads; ++h)
        plain_row(&s, r, h, want + (r * f->heads + h) * f->value_depth);
    }
    run_pass(&p, f->dtype);
    KIT_CLOSE(p.y, want, f->dtype == OPIPE_FLOAT ? 1e-5 : 0);
    OPI_ASSERT(p.args.status->code == CUDA_STATUS_OK);
    kit_end();
  }
}

/* Alone, and in pages of other sizes, a row has the same bits. */
static void test_bits_of_a_row(void) {
  static const int64_t sizes[] = {7, 320};
  for (size_t i = 0; i < 3; ++i) {
    const form *f = &forms[i];
    const story s = make_story(f);
    const pass all = make_pass(&s, 0, MOST_ROWS, 64);
    const int64_t each = f->heads * f->value_depth;
    run_pass(&all, f->dtype);
    for (int64_t r = 0; r < MOST_ROWS; r += 3) {
      const pass one = make_pass(&s, r, 1, sizes[r % 2]);
      run_pass(&one, f->dtype);
      OPI_ASSERT(kit_same(&one.y, 0, &all.y, r * each, each));
    }
    kit_end();
  }
}

/* ---- copies ---- */

/* Page 0 to 2, what is then in 2 to 1, nothing, and none: in this order, as many tokens each. */
static void test_copies_in_order(void) {
  static const int64_t list[5][3] = {{0, 2, 40}, {2, 1, 64}, {1, 3, 0}, {-1, 3, 64}, {3, 3, 64}};
  const form f = {OPIPE_FLOAT16, 1, 1, 3, 2, 0, 0, false};
  const story s = make_story(&f);
  pass p = make_pass(&s, 0, 1, 64);
  const kit_tensor keys = kit_random(f.dtype, p.keys.n, 7, 1, 2);
  const kit_tensor want = kit_copy(&keys);
  cuda_launch launches[CUDA_LAUNCHES];
  for (size_t c = 0; c < 5; ++c) {
    if (list[c][0] >= 0)
      move(&want, list[c][1] * 64 * 3, &want, list[c][0] * 64 * 3, list[c][2] * 3);
  }
  p.args.rows = 0;
  p.args.copies = kit_placed(list, sizeof list);
  p.args.n_copies = 5;
  p.args.key_pages = keys.data;
  const uint32_t n = cuda_plan_row_attention(&p.args, f.dtype, launches);
  OPI_ASSERT_FATAL(n == 1);
  KIT_RUN(launches, n, &keys, &p.values);
  OPI_ASSERT(kit_same(&keys, 0, &want, 0, keys.n));
  OPI_ASSERT(p.args.status->code == CUDA_STATUS_OK);
  kit_end();
}

/* ---- bad data ---- */

static void expect_report(int64_t sequence, int64_t position, int64_t page, const int64_t *copy,
                          uint32_t code, int64_t value, int64_t limit) {
  const form *f = &forms[0];
  const story s = make_story(f);
  pass p = make_pass(&s, 0, 2, 64);
  const int64_t sequences[2] = {1, sequence}, positions[2] = {0, position};
  int64_t table[SEQUENCES * 5];
  cuda_launch launches[CUDA_LAUNCHES];
  for (int i = 0; i < SEQUENCES * 5; ++i)
    table[i] = i == 10 ? page : i;
  p.args.sequence = kit_placed(sequences, sizeof sequences);
  p.args.position = kit_placed(positions, sizeof positions);
  p.args.table = kit_placed(table, sizeof table);
  p.args.node = 9;
  if (copy != NULL) {
    p.args.copies = kit_placed(copy, 3 * sizeof copy[0]);
    p.args.n_copies = 1;
  }
  const uint32_t n = cuda_plan_row_attention(&p.args, f->dtype, launches);
  OPI_ASSERT_FATAL(n > 0);
  for (uint32_t i = 0; i < n; ++i) /* keys are not numbers: no row's result is compared */
    KIT_RUN(&launches[i], 1, &p.keys);
  const cuda_status *status = p.args.status;
  OPI_ASSERT(status->code == code && status->value == value && status->limit == limit &&
             status->node == 9);
  kit_end();
}

static void test_what_is_outside_is_reported(void) {
  static const int64_t from[3] = {15, 0, 1}, to[3] = {0, -1, 1}, tokens[3] = {0, 1, 65};
  expect_report(3, 0, 0, NULL, CUDA_STATUS_SEQUENCE, 3, 3);
  expect_report(2, -1, 0, NULL, CUDA_STATUS_POSITION, -1, 320);
  expect_report(2, 320, 0, NULL, CUDA_STATUS_POSITION, 320, 320);
  expect_report(2, 5, -1, NULL, CUDA_STATUS_PAGE, -1, 15);
  expect_report(2, 5, 15, NULL, CUDA_STATUS_PAGE, 15, 15);
  expect_report(2, 5, 0, from, CUDA_STATUS_PAGE, 15, 15);
  expect_report(2, 5, 0, to, CUDA_STATUS_PAGE, -1, 15);
  expect_report(2, 5, 0, tokens, CUDA_STATUS_COPY, 65, 64);
}

/* Many rows are cut into launches of as many as the workspace has room for, and never too many. */
static void test_launches(void) {
  cuda_launch launches[CUDA_LAUNCHES];
  cuda_row_attention_args args = {.rows = 4096,
                                  .heads = 32,
                                  .kv_heads = 8,
                                  .depth = 128,
                                  .value_depth = 128,
                                  .page = 64,
                                  .pages = 512,
                                  .sequences = 8,
                                  .pool = 4096};
  uint32_t n = cuda_plan_row_attention(&args, OPIPE_BFLOAT16, launches);
  OPI_ASSERT(n > 3 && n <= CUDA_LAUNCHES);
  args.rows = 4;
  OPI_ASSERT(cuda_plan_row_attention(&args, OPIPE_FLOAT, launches) == 3);
  OPI_ASSERT(cuda_row_attention_workspace(&args) <= UINT64_C(64) << 20);
  OPI_ASSERT(cuda_plan_row_attention(&args, OPIPE_DOUBLE, launches) == 0);
  args.depth = 257;
  OPI_ASSERT(cuda_plan_row_attention(&args, OPIPE_FLOAT, launches) == 0);
}

OPI_TEST_MAIN("cuda kernels: attention of token rows", OPI_TEST(test_rows_against_loops),
              OPI_TEST(test_bits_of_a_row), OPI_TEST(test_copies_in_order),
              OPI_TEST(test_what_is_outside_is_reported), OPI_TEST(test_launches))
