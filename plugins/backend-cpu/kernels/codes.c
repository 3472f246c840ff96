/* SPDX-License-Identifier: Apache-2.0 */
/* Packed codes: sizes, packing, and the division of a product among the team. */
#include "codes.h"

#include <string.h>

#include "codes_plan.h"
#include "half.h"
#include "table.h"

bool cpu_codes_bytes(const cpu_codes *form, uint64_t *out_bytes) {
  const bool known = (form->bits == 2 || form->bits == 4 || form->bits == 8) &&
                     form->scale <= CPU_BF16 && form->zeros < CPU_ZEROS_COUNT && form->k >= 0 &&
                     form->n >= 0 && form->zero >= 0 && form->zero < 1 << form->bits;
  const bool blocks = form->block > 0 && (form->block >= form->k || form->block % 16 == 0);
  /* 8 bytes a step and column are more than any form takes */
  if (!known || !blocks || form->k > INT64_MAX / (CPU_PANEL * 16) ||
      form->block > INT64_MAX / (CPU_PANEL * 16))
    return false;
  const uint64_t panels = ((uint64_t)form->n + CPU_PANEL - 1) / CPU_PANEL;
  return !__builtin_mul_overflow((uint64_t)codes_panel_bytes(form), panels, out_bytes);
}

/* ---- packing ---- */

static uint32_t code_at(const cpu_code_source *s, int64_t i, int64_t j) {
  const int64_t step = s->i_inner == 0 ? i * s->i_stride
                                       : i / s->i_inner * s->i_outer + i % s->i_inner * s->i_stride;
  const int64_t at = step + j * s->j_stride, per_byte = 8 / (int64_t)s->bits;
  const uint8_t byte = ((const uint8_t *)s->data)[at / per_byte];
  const uint32_t code =
      (uint32_t)(byte >> (at % per_byte * (int64_t)s->bits)) & ((1u << s->bits) - 1u);
  return s->is_signed ? code ^ (1u << (s->bits - 1)) : code;
}

static float number_at(const cpu_code_source *s, int64_t i, int64_t j) {
  const char *data = s->data;
  const int64_t at = i * s->i_stride + j * s->j_stride;
  uint16_t half;
  float value;
  if (s->type == CPU_F32) {
    memcpy(&value, data + at * 4, sizeof value);
    return value;
  }
  memcpy(&half, data + at * 2, sizeof half);
  return s->type == CPU_F16 ? cpu_f16_to_f32(half) : cpu_bf16_to_f32(half);
}

/* One number of a head, in the form's type: a source of that type, or of fp32, is kept exactly. */
static void put_number(const cpu_codes *form, float value, char *to) {
  const uint16_t half = form->scale == CPU_F16 ? cpu_f32_to_f16(value) : cpu_f32_to_bf16(value);
  if (form->scale == CPU_F32)
    memcpy(to, &value, sizeof value);
  else
    memcpy(to, &half, sizeof half);
}

static void pack_head(const cpu_codes *form, const cpu_codes_source *source, int64_t block,
                      int64_t column, int64_t columns, char *out) {
  const int64_t bytes = form->scale == CPU_F32 ? 4 : 2;
  char *zeros = out + codes_scale_bytes(form);
  memset(out, 0, (size_t)codes_head_bytes(form));
  if (source->scales.data == NULL)
    return;
  for (int64_t u = 0; u < columns; ++u) {
    put_number(form, number_at(&source->scales, block, column + u), out + u * bytes);
    if (form->zeros == CPU_ZEROS_BYTES)
      zeros[u] = (char)code_at(&source->zeros, block, column + u);
    else if (form->zeros == CPU_ZEROS_FLOATS)
      put_number(form, number_at(&source->zeros, block, column + u), zeros + u * bytes);
  }
}

/* The word of codes [k, k + count) of a column, where they are the bytes of the source. */
static uint32_t whole_word(const cpu_code_source *s, int64_t k, int64_t column) {
  const uint32_t flip = s->bits == 8 ? 0x80808080u : s->bits == 4 ? 0x88888888u : 0xaaaaaaaau;
  const uint8_t *at =
      (const uint8_t *)s->data + (k + column * s->j_stride) / (8 / (int64_t)s->bits);
  const uint32_t word =
      (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
  return s->is_signed ? word ^ flip : word;
}

static uint32_t word_of(const cpu_code_source *s, int64_t k, int64_t count, int64_t column) {
  uint32_t word = 0;
  for (int64_t i = 0; i < count; ++i)
    word |= code_at(s, k + i, column) << ((uint32_t)i * s->bits);
  return word;
}

/* Words of one block: k from `begin` on, `steps` of them. */
static void pack_words(const cpu_codes *form, const cpu_code_source *s, int64_t begin,
                       int64_t steps, int64_t column, int64_t columns, uint32_t *out) {
  const int64_t per_word = 32 / (int64_t)form->bits, per_byte = 8 / (int64_t)form->bits;
  const bool bytes = s->i_stride == 1 && s->i_inner == 0 && s->j_stride % per_byte == 0;
  for (int64_t k = 0; k < steps; k += per_word, out += CPU_PANEL) {
    const int64_t count = steps - k < per_word ? steps - k : per_word;
    for (int64_t u = 0; u < CPU_PANEL; ++u) {
      out[u] = u >= columns                 ? 0
               : bytes && count == per_word ? whole_word(s, begin + k, column + u)
                                            : word_of(s, begin + k, count, column + u);
    }
  }
}

/* In place of scales: the sum of a block's codes, int32 [64]; of 8 bits. */
static void put_sums(const uint32_t *words, int64_t steps, int32_t *out) {
  for (int64_t k = 0; k < steps; k += 4, words += CPU_PANEL) {
    for (int64_t u = 0; u < CPU_PANEL; ++u) {
      const uint32_t w = words[u];
      out[u] += (int32_t)((w & 0xffu) + (w >> 8 & 0xffu) + (w >> 16 & 0xffu) + (w >> 24));
    }
  }
}

typedef struct pack_job {
  const cpu_codes *form;
  const cpu_codes_source *source;
  int64_t first, count; /* panels */
  char *packed;
} pack_job;

static void pack_task(void *argument, int32_t worker, int32_t workers) {
  const pack_job *job = argument;
  const cpu_codes *form = job->form;
  cpu_range share;
  cpu_team_share(job->count, worker, workers, &share.begin, &share.end);
  for (int64_t j = job->first + share.begin; j < job->first + share.end; ++j) {
    const int64_t column = j * CPU_PANEL;
    const int64_t columns = form->n - column < CPU_PANEL ? form->n - column : CPU_PANEL;
    char *out = job->packed + j * codes_panel_bytes(form);
    for (int64_t k = 0; k < form->k; k += form->block) {
      const int64_t steps = form->k - k < form->block ? form->k - k : form->block;
      pack_head(form, job->source, k / form->block, column, columns, out);
      out += codes_head_bytes(form);
      pack_words(form, &job->source->codes, k, steps, column, columns, (uint32_t *)(void *)out);
      if (job->source->scales.data == NULL) {
        put_sums((const uint32_t *)(void *)out, steps,
                 (int32_t *)(void *)(out - codes_head_bytes(form)));
      }
      out += codes_word_bytes(form, steps);
    }
  }
}

int64_t cpu_codes_panels(const cpu_codes *form) {
  return form->n / CPU_PANEL + (form->n % CPU_PANEL != 0);
}

void cpu_codes_pack(const cpu_exec *x, const cpu_codes *form, const cpu_codes_source *source,
                    int64_t first, int64_t count, void *packed) {
  pack_job job = {form, source, first, count, packed};
  cpu_team_run(x->team, pack_task, &job);
}

/* ---- the product ---- */

enum { BUFFER_FLOATS = CPU_CHAIN * CPU_PANEL };

bool cpu_codes_workspace(int32_t threads, const cpu_codes *form, int64_t m, bool int8,
                         uint64_t *out_bytes) {
  *out_bytes = threads > 0 ? (uint64_t)threads * BUFFER_FLOATS * sizeof(float) : 0;
  if (!int8)
    return threads > 0;
  return form->block <= CODES_INT8_BLOCK && m >= 0 &&
         !__builtin_mul_overflow((uint64_t)codes_row_bytes(form), (uint64_t)m, out_bytes);
}

typedef struct codes_job {
  const cpu_kernels *kernels;
  const cpu_byte_kernels *bytes;
  cpu_codes_product product;
  int64_t m;
  void *workspace;
} codes_job;

static void round_task(void *argument, int32_t worker, int32_t workers) {
  const codes_job *job = argument;
  const cpu_codes_product *p = &job->product;
  cpu_range rows;
  cpu_team_share(job->m, worker, workers, &rows.begin, &rows.end);
  job->kernels->round_rows(p->form, p->a, p->a_stride, rows, job->workspace);
}

static void codes_task(void *argument, int32_t worker, int32_t workers) {
  const codes_job *job = argument;
  cpu_range panels, rows;
  cpu_product_share(job->m, job->product.form->n, worker, workers, &panels, &rows);
  if (rows.begin >= rows.end || panels.begin >= panels.end)
    return;
  if (job->product.rounded != NULL) {
    job->bytes->product_codes(&job->product, panels, rows);
  } else {
    job->kernels->product_codes(&job->product, panels, rows,
                                (float *)job->workspace + (int64_t)worker * BUFFER_FLOATS);
  }
}

void cpu_codes_matmul(const cpu_exec *x, const cpu_codes_args *args) {
  if (args->m == 0 || args->form->n == 0)
    return;
  codes_job job = {.kernels = x->kernels,
                   .bytes = args->int8 ? cpu_bytes_of(x) : NULL,
                   .product = {.form = args->form,
                               .packed = args->packed,
                               .a = args->a,
                               .a_stride = args->a_stride,
                               .c = args->c,
                               .c_stride = args->c_stride,
                               .epilogue = args->epilogue},
                   .m = args->m,
                   .workspace = args->workspace};
  cpu_team *team = cpu_product_team(x, args->m, args->form->n, args->form->k);
  if (args->int8) {
    cpu_team_run(args->m > 1 ? team : NULL, round_task, &job);
    job.product.rounded = args->workspace;
  }
  cpu_team_run(team, codes_task, &job);
}

/* ---- integers by integers ---- */

bool cpu_codes_integer_workspace(const cpu_codes *form, int64_t m, uint64_t *out_bytes) {
  const uint64_t row = (uint64_t)codes_integer_row(form);
  return form->bits == 8 && form->block >= form->k && form->scale == CPU_F32 &&
         form->zeros == CPU_ZEROS_ONE && m >= 0 &&
         !__builtin_mul_overflow(row, (uint64_t)m, out_bytes);
}

typedef struct integer_job {
  const cpu_byte_kernels *bytes;
  const cpu_codes_integer_args *args;
} integer_job;

/* to[i] = from[i] ^ flip, where `to` may be `from`; returns the sum of from[i] ^ low as unsigned
 * numbers, eight bytes at a time: in pairs of 16 bits, which hold 128 of them. */
static uint32_t flip_bytes(const uint8_t *from, int64_t n, uint8_t flip, uint8_t low, uint8_t *to) {
  enum { WORD = 8, HELD = 128 };
  const uint64_t ones = UINT64_C(0x0101010101010101), even = UINT64_C(0x00ff00ff00ff00ff);
  uint32_t sum = 0;
  int64_t i = 0;
  while (i + WORD <= n) {
    uint64_t pairs = 0;
    for (int k = 0; k < HELD && i + WORD <= n; ++k, i += WORD) {
      uint64_t word;
      memcpy(&word, from + i, WORD);
      const uint64_t flipped = word ^ ones * flip, numbers = word ^ ones * low;
      memcpy(to + i, &flipped, WORD);
      pairs += (numbers & even) + (numbers >> 8 & even);
    }
    for (int k = 0; k < 4; ++k)
      sum += (uint32_t)(pairs >> 16 * k & 0xffffu);
  }
  for (; i < n; ++i) {
    const uint8_t byte = from[i];
    to[i] = byte ^ flip;
    sum += (uint32_t)(byte ^ low);
  }
  return sum;
}

int64_t cpu_codes_integer_row(const cpu_codes *form) {
  return codes_integer_row(form);
}

int32_t cpu_signed_bytes(const void *from, bool is_signed, int64_t n, void *to) {
  const uint8_t flip = is_signed ? 0 : 0x80;
  const uint32_t raised = flip_bytes(from, n, flip, flip ^ 0x80, to); /* each by 128 */
  return (int32_t)(raised - UINT32_C(128) * (uint32_t)n);
}

/* Rows of A as signed bytes behind their sums. */
static void signed_task(void *argument, int32_t worker, int32_t workers) {
  const integer_job *job = argument;
  const cpu_codes_integer_args *g = job->args;
  const int64_t k = g->form->k, row = codes_integer_row(g->form);
  cpu_range rows;
  cpu_team_share(g->m, worker, workers, &rows.begin, &rows.end);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    char *to = (char *)g->workspace + r * row, *bytes = to + CPU_ALIGN_BYTES;
    const int32_t sum = cpu_signed_bytes((const char *)g->a + r * k, g->a_signed, k, bytes);
    memset(bytes + k, 0, (size_t)(row - CPU_ALIGN_BYTES - k));
    memcpy(to, &sum, sizeof sum);
  }
}

static void integer_task(void *argument, int32_t worker, int32_t workers) {
  const integer_job *job = argument;
  cpu_range panels, rows;
  cpu_product_share(job->args->m, job->args->form->n, worker, workers, &panels, &rows);
  if (rows.begin < rows.end && panels.begin < panels.end)
    job->bytes->product_integer(job->args, panels, rows);
}

void cpu_codes_integer(const cpu_exec *x, const cpu_codes_integer_args *args) {
  if (args->m == 0 || args->form->n == 0)
    return;
  integer_job job = {cpu_bytes_of(x), args};
  cpu_team *team = cpu_product_team(x, args->m, args->form->n, args->form->k);
  if (args->a != NULL)
    cpu_team_run(args->m > 1 ? team : NULL, signed_task, &job);
  cpu_team_run(team, integer_task, &job);
}
