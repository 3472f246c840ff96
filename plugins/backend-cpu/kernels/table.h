/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that exist once per instruction set, all of them working on one thread's share. The
 * files named after an operation (matmul.c, attention.c ...) divide the work and call through this
 * table; only they include it. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_TABLE_H_
#define OPIPE_BACKEND_CPU_KERNELS_TABLE_H_

#include "dots.h"
#include "kernels.h"

/* C = epilogue(A B) for panels [panel_begin, panel_end) of B and rows [row_begin, row_end) of A. */
typedef struct cpu_product {
  int64_t n, k;
  const float *a;
  int64_t a_stride;
  const float *panels; /* panel 0 */
  float *c;
  int64_t c_stride;
  const cpu_epilogue *epilogue; /* NULL: none */
} cpu_product;

/* The same with panels of fp16 or bf16; of cpu_dots with rows of bf16, and panels of any type. */
typedef struct cpu_half_product {
  cpu_product product; /* its panels are not read */
  const uint16_t *a;   /* read by cpu_dots in place of the product's, by its stride */
  const void *panels;  /* panel 0 */
  cpu_dtype dtype;     /* of the panels; fp32 is rounded to bf16 */
} cpu_half_product;

/* The same with packed codes (codes.h) for panels of W. */
typedef struct cpu_codes_product {
  const cpu_codes *form;
  const void *packed;  /* panel 0 */
  const void *rounded; /* rows of A in 8 bits (codes_plan.h); NULL: a is read */
  const float *a;
  int64_t a_stride;
  float *c;
  int64_t c_stride;
  const cpu_epilogue *epilogue; /* NULL: none */
} cpu_codes_product;

enum {
  CPU_DX_DEPTH = 1024, /* columns of dY a block */
  CPU_DW_ROWS = 512,   /* rows a block */
  CPU_DW_DEPTH = 4096  /* columns of X a block */
};

enum { CPU_CHANNEL_BLOCK = CPU_PANEL }; /* channels that a unit of conv_last_body.h works on */

/* Half-open ranges of what a share covers. */
typedef struct cpu_range {
  int64_t begin, end;
} cpu_range;

/* Rows [row, row + count), of one sequence and at consecutive positions, by heads that share a kv
 * head. */
typedef struct cpu_attention_unit {
  int64_t row, count;
  cpu_range heads;
} cpu_attention_unit;

/* Products of bytes: exact integers, so that whoever computes them gives the same bits. There are
 * kinds (bytes.h) with other instructions beside that of an instruction set. */
struct cpu_byte_kernels {
  /* The same for rounded rows. */
  void (*product_codes)(const cpu_codes_product *p, cpu_range panels, cpu_range rows);
  void (*product_integer)(const cpu_codes_integer_args *args, cpu_range panels, cpu_range rows);
};

/* Products of bf16 by bf16 of one kind. */
struct cpu_dots {
  cpu_dots_kind kind;
  /* buffer: CPU_CHAIN rows of a panel in fp32 */
  void (*product)(const cpu_half_product *p, cpu_range panels, cpu_range rows, float *buffer);
  /* dX, as cpu_kernels.product_dx; panels of fp32 */
  void (*product_dx)(const cpu_half_product *p, cpu_range panels, cpu_range rows, float *buffer);
  /* out[columns][CPU_DW_ROWS] = X[rows][columns] turned, zeros up to whole CPU_DOTS_STEPS */
  void (*turn)(const uint16_t *x, int64_t x_stride, int64_t rows, int64_t columns, uint16_t *out);
  /* dW, as cpu_kernels.product_dw, with columns of X from `turn` */
  void (*product_dw)(const cpu_matmul_dw_args *args, const uint16_t *turned, cpu_range sample,
                     cpu_range depth, cpu_range panels, float *buffer);
};

/* sums[r][f] += the sum of a[r][k] * b[f][k] over n elements; rows of a end in whole vectors of 16
 * (zeros, or what b has nothing for). */
typedef struct cpu_row_sums_args {
  const float *a;
  int64_t a_stride, a_rows;
  const float *b;
  int64_t b_stride, b_rows;
  int64_t n;
  float *sums;
} cpu_row_sums_args;

struct cpu_kernels {
  cpu_isa isa;
  cpu_byte_kernels bytes; /* CPU_BYTES_PLAIN */
  /* One panel of 64 columns, from column 64 * panel on: out[k][64], missing columns 0. */
  void (*pack_panel)(const cpu_pack_source *source, int64_t panel, float *out);
  /* The same of a source of fp16 or bf16, whose elements stay as they are. */
  void (*pack_half_panel)(const cpu_pack_source *source, int64_t panel, uint16_t *out);
  void (*product)(const cpu_product *p, cpu_range panels, cpu_range rows);
  /* buffer: CPU_CHAIN rows of a panel */
  void (*product_half)(const cpu_half_product *p, cpu_range panels, cpu_range rows, float *buffer);
  /* buffer: CPU_CHAIN rows of a panel */
  void (*product_codes)(const cpu_codes_product *p, cpu_range panels, cpu_range rows,
                        float *buffer);
  /* Makes the rounded rows. */
  void (*round_rows)(const cpu_codes *form, const float *a, int64_t a_stride, cpu_range rows,
                     void *out);
  /* The same for dX = dY W^T: `panels` are those of W (K by N), n counts columns of dX, k of dY;
   * buffer: CPU_DX_DEPTH rows of a panel. */
  void (*product_dx)(const cpu_product *p, cpu_range panels, cpu_range rows, float *buffer);
  /* dW += X^T dY for panels of dW and rows `depth` of them; turned: those columns of X, turned,
   * [depth][turned_stride]; buffer: a row of a panel for each of the sample. */
  void (*product_dw)(const cpu_matmul_dw_args *args, const float *turned, int64_t turned_stride,
                     cpu_range sample, cpu_range depth, cpu_range panels, float *buffer);
  void (*sum_columns)(const float *in, int64_t in_row, int64_t rows, int64_t columns, float *out);
  void (*product_f64)(const cpu_matmul_f64_args *args, const double *a, const double *panel,
                      int64_t columns, double *c, cpu_range rows);
  void (*transpose)(const float *in, int64_t in_stride, int64_t rows, int64_t columns, float *out,
                    int64_t out_stride);
  void (*unary)(cpu_unary op, const float *in, float *out, int64_t n);
  void (*binary)(const cpu_binary_args *args, cpu_range rows);
  void (*bias_activation)(const cpu_bias_args *args, cpu_range rows);
  void (*convert)(cpu_dtype from, const void *in, cpu_dtype to, void *out, int64_t n);
  void (*softmax)(const cpu_softmax_args *args, cpu_range rows);
  void (*norm)(const cpu_norm_args *args, cpu_range rows);
  void (*reduce_rows)(cpu_reduce op, int64_t columns, const float *in, int64_t in_row, float *out,
                      cpu_range rows);
  void (*rotary)(const cpu_rotary_args *args, cpu_range rows); /* rows of batch * heads * rows */
  /* All query rows of `heads`, which share a kv head; see attention_few_body.h. */
  void (*attention_few)(const cpu_attention_args *args, int64_t batch, cpu_range heads,
                        void *workspace);
  /* Row blocks [begin, end) of the query rows of one (batch, head); see attention_body.h. */
  void (*attention)(const cpu_attention_args *args, int64_t batch, int64_t head, cpu_range blocks,
                    void *workspace);
  /* One unit of attention_rows.c; see attention_rows_body.h. */
  void (*attention_rows)(const cpu_row_attention_args *args, const cpu_attention_unit *unit,
                         void *workspace);
  void (*add)(const float *from, float *to, int64_t n);
  double (*sum_squares)(const float *in, int64_t n);
  void (*row_sums)(const cpu_row_sums_args *args);
  void (*norm_grad)(const cpu_norm_grad_args *args, cpu_range rows);
  void (*norm_statistics)(const cpu_norm_grad_scale_args *args, cpu_range rows);
  void (*norm_grad_scale)(const cpu_norm_grad_scale_args *args, cpu_range columns);
  void (*softmax_grad)(bool log, int64_t columns, const float *dy, const float *y, float *dx,
                       cpu_range rows);
  void (*activation_grad)(cpu_activation activation, const float *dy, const float *x, float *dx,
                          int64_t n);
  void (*attention_grad)(const cpu_attention_grad_args *args, int64_t batch, int64_t kv_head,
                         float *workspace);
  void (*loss_grad)(const cpu_loss_grad_args *args, cpu_range rows);
  void (*update)(const cpu_update_args *args, cpu_range share);
  /* Units of conv_last_body.h. */
  void (*depthwise)(const cpu_conv_last_args *args, const cpu_epilogue *epilogue,
                    const float *panels, cpu_range units);
  void (*pool)(const cpu_pool_last_args *args, cpu_range units);
  /* Patches of output pixels `rows`, channels [c, c + n): to [rows][taps][n], and up to sixteen
   * numbers behind them. */
  void (*patches)(const cpu_conv_last_args *args, cpu_range rows, int64_t c, int64_t n, float *to);
  void (*quantize)(const cpu_quantize_args *args, cpu_range share);
  void (*dequantize)(const cpu_dequantize_args *args, cpu_range share);
  /* io: the least and the greatest so far */
  void (*range)(const float *in, int64_t n, float *io);
};

/* matmul.c: what `worker` computes of a product of m rows and n columns: panels where there are
 * enough of them, else rows; whichever makes the largest share smaller. */
void cpu_product_share(int64_t m, int64_t n, int32_t worker, int32_t workers, cpu_range *out_panels,
                       cpu_range *out_rows);
/* The team for a product; NULL: it is not worth waking anybody. */
cpu_team *cpu_product_team(const cpu_exec *x, int64_t m, int64_t n, int64_t k);

/* bytes.c: what products of bytes are computed with. */
const cpu_byte_kernels *cpu_bytes_of(const cpu_exec *x);

extern const cpu_byte_kernels cpu_bytes_avx2_vnni;   /* x86-64 only */
extern const cpu_byte_kernels cpu_bytes_avx512_vnni; /* x86-64 only */
extern const cpu_byte_kernels cpu_bytes_tiles;       /* x86-64 only */
extern const cpu_byte_kernels cpu_bytes_tiles_model;
extern const cpu_dots cpu_dots_pairs_model;
extern const cpu_dots cpu_dots_tiles_model;
extern const cpu_dots cpu_dots_pairs; /* x86-64 only */
extern const cpu_dots cpu_dots_tiles; /* x86-64 only */
extern const cpu_kernels cpu_kernels_portable;
extern const cpu_kernels cpu_kernels_avx2;   /* x86-64 only */
extern const cpu_kernels cpu_kernels_avx512; /* x86-64 only */

#endif
