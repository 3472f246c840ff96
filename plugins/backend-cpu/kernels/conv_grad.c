/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of convolutions; see conv_grad.h. Units of dX are panels of 64 pixels of one (image,
 * group); units of dW are blocks of its rows, for which a thread goes over all images. */
#include "conv_grad.h"

#include <string.h>

#include "conv_patches.h"
#include "table.h"

enum {
  MOST_ROWS = 256, /* of dW in a unit: what it adds up stays in the second-level cache */
  NARROW = 8       /* filters of a group: with fewer, a product would be mostly of nothing */
};

static int64_t rounded(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

/* Bytes of what all threads read and what each has, both aligned. */
static bool floats_of(int32_t threads, int64_t shared, int64_t each, uint64_t *out_bytes) {
  uint64_t n = 0;
  return threads > 0 && shared >= 0 && each >= 0 &&
         !__builtin_mul_overflow((uint64_t)rounded(each, CPU_PANEL), (uint64_t)threads, &n) &&
         !__builtin_add_overflow(n, (uint64_t)rounded(shared, CPU_PANEL), &n) &&
         !__builtin_mul_overflow(n, (uint64_t)sizeof(float), out_bytes);
}

/* ---- dX ---- */

typedef struct input_job {
  const cpu_kernels *kernels;
  const cpu_conv_grad_args *args;
  float *turned;  /* weights [groups][Cin/G][Cout/G * taps] */
  float *threads; /* a panel each */
  int64_t depth;  /* Cout/G * taps */
} input_job;

static int64_t depth_of(const cpu_conv_args *g) {
  return g->c_out / g->groups * cpu_conv_volume(g->kernel);
}

bool cpu_conv_grad_input_workspace(int32_t threads, const cpu_conv_args *of, uint64_t *out_bytes) {
  int64_t weights = 0, panel = 0;
  return !__builtin_mul_overflow(depth_of(of), of->c_in, &weights) &&
         !__builtin_mul_overflow(depth_of(of), (int64_t)CPU_PANEL, &panel) &&
         floats_of(threads, weights, panel, out_bytes);
}

/* W [Cout][Cin/G][taps] to [groups][Cin/G][Cout/G][taps]. */
static void turn_task(void *argument, int32_t worker, int32_t workers) {
  const input_job *j = argument;
  const cpu_conv_args *g = &j->args->of;
  const int64_t taps = cpu_conv_volume(g->kernel);
  const int64_t planes = g->c_in / g->groups, filters = g->c_out / g->groups;
  cpu_range share;
  cpu_team_share(g->c_in, worker, workers, &share.begin, &share.end);
  for (int64_t c = share.begin; c < share.end; ++c) {
    for (int64_t f = 0; f < filters; ++f) {
      const int64_t filter = c / planes * filters + f;
      memcpy(j->turned + (c * filters + f) * taps,
             j->args->other + (filter * planes + c % planes) * taps, (size_t)taps * sizeof(float));
    }
  }
}

/* Writes the elements of a line of dY that one tap reads for elements [x, x + count) of a line of
 * the input: element i is out[(x + i + ahead) / step], if that is whole and there. */
static void spread_line(const float *line, int64_t width, int64_t ahead, int64_t step,
                        int64_t count, float *out) {
  int64_t first = ahead < 0 ? -ahead : 0;
  first += (step - (first + ahead) % step) % step;
  for (int64_t i = first; i < count && (i + ahead) / step < width; i += step)
    out[i] = line[(i + ahead) / step];
}

/* One row of a panel: one tap of one filter for pixels [pixel, pixel + count) of the input. */
static void spread_row(const cpu_conv_args *g, const float *plane, const int64_t tap[3],
                       int64_t pixel, int64_t count, float *out) {
  int64_t place[3] = {pixel / g->in_size[2] / g->in_size[1], pixel / g->in_size[2] % g->in_size[1],
                      pixel % g->in_size[2]};
  memset(out, 0, CPU_PANEL * sizeof(float));
  while (count > 0) {
    const int64_t run = g->in_size[2] - place[2] < count ? g->in_size[2] - place[2] : count;
    int64_t at[3], line = 0;
    bool inside = true;
    for (int a = 0; a < 3; ++a)
      at[a] = place[a] + g->pad_begin[a] - tap[a] * g->dilation[a];
    for (int a = 0; a < 2; ++a) {
      inside = inside && at[a] >= 0 && at[a] % g->stride[a] == 0 &&
               at[a] / g->stride[a] < g->out_size[a];
      line = line * g->out_size[a] + at[a] / g->stride[a];
    }
    if (inside)
      spread_line(plane + line * g->out_size[2], g->out_size[2], at[2], g->stride[2], run, out);
    out += run;
    count -= run;
    place[2] = 0;
    ++place[1];
    place[0] += place[1] == g->in_size[1];
    place[1] = place[1] == g->in_size[1] ? 0 : place[1];
  }
}

static void input_task(void *argument, int32_t worker, int32_t workers) {
  const input_job *j = argument;
  const cpu_conv_args *g = &j->args->of;
  const int64_t pixels = cpu_conv_volume(g->in_size), outputs = cpu_conv_volume(g->out_size);
  const int64_t panels = (pixels + CPU_PANEL - 1) / CPU_PANEL;
  const int64_t planes = g->c_in / g->groups, filters = g->c_out / g->groups;
  const int64_t taps = cpu_conv_volume(g->kernel);
  float *panel = j->threads + worker * rounded(j->depth * CPU_PANEL, CPU_PANEL);
  cpu_range share;
  cpu_team_share(g->images * g->groups * panels, worker, workers, &share.begin, &share.end);
  for (int64_t u = share.begin; u < share.end; ++u) {
    const int64_t pixel = u % panels * CPU_PANEL, group = u / panels % g->groups;
    const int64_t count = pixels - pixel < CPU_PANEL ? pixels - pixel : CPU_PANEL;
    const int64_t image = u / panels / g->groups;
    for (int64_t k = 0; k < j->depth; ++k) {
      const int64_t filter = image * g->c_out + group * filters + k / taps;
      int64_t tap[3];
      cpu_conv_split(k % taps, g->kernel, tap);
      spread_row(g, j->args->dy + filter * outputs, tap, pixel, count, panel + k * CPU_PANEL);
    }
    const cpu_product product = {
        .n = count,
        .k = j->depth,
        .a = j->turned + group * planes * j->depth,
        .a_stride = j->depth,
        .panels = panel,
        .c = j->args->out + (image * g->c_in + group * planes) * pixels + pixel,
        .c_stride = pixels};
    j->kernels->product(&product, (cpu_range){0, 1}, (cpu_range){0, planes});
  }
}

void cpu_conv_grad_input(const cpu_exec *x, const cpu_conv_grad_args *args) {
  const cpu_conv_args *g = &args->of;
  input_job job = {
      .kernels = x->kernels, .args = args, .turned = args->workspace, .depth = depth_of(g)};
  job.threads = job.turned + rounded(job.depth * g->c_in, CPU_PANEL);
  cpu_team_run(x->team, turn_task, &job);
  cpu_team_run(x->team, input_task, &job);
}

/* ---- dW ---- */

typedef struct weight_job {
  const cpu_kernels *kernels;
  const cpu_conv_grad_args *args;
  int64_t rows, units; /* rows of a unit; units of a group */
  int64_t each;        /* floats of a thread */
} weight_job;

/* Rows of dW', [Cin/G * taps, Cout/G], of a group. */
static int64_t rows_of(const cpu_conv_args *g) {
  return g->c_in / g->groups * cpu_conv_volume(g->kernel);
}

static int64_t unit_rows(const cpu_conv_args *g, int32_t threads) {
  const int64_t wanted = (threads + g->groups - 1) / g->groups; /* units of a group */
  const int64_t rows = (rows_of(g) + wanted - 1) / wanted;
  return rows < 1 ? 1 : rows > MOST_ROWS ? MOST_ROWS : rows;
}

static bool is_narrow(const cpu_conv_args *g) {
  return g->c_out / g->groups < NARROW;
}

/* Patches [rows][CPU_CHAIN], dY' in panels [CPU_CHAIN][64], two sums [rows][filters]; narrow:
 * patches and one sum. */
static int64_t weight_floats(const cpu_conv_args *g, int64_t rows) {
  const int64_t filters = rounded(g->c_out / g->groups, CPU_PANEL);
  return is_narrow(g) ? rows * (CPU_CHAIN + NARROW)
                      : rows * CPU_CHAIN + filters * CPU_CHAIN + 2 * rows * filters;
}

bool cpu_conv_grad_weight_workspace(int32_t threads, const cpu_conv_args *of, uint64_t *out_bytes) {
  return threads > 0 && of->c_out < INT32_MAX &&
         floats_of(threads, 0, weight_floats(of, unit_rows(of, threads)), out_bytes);
}

/* dY [filters][pixels], its pixels [pixel, pixel + count), to panels [count][64]. */
static void turn_block(const float *dy, int64_t filters, int64_t pixels, int64_t pixel,
                       int64_t count, float *panels) {
  for (int64_t f = 0; f < rounded(filters, CPU_PANEL); ++f) {
    float *to = panels + f / CPU_PANEL * count * CPU_PANEL + f % CPU_PANEL;
    for (int64_t p = 0; p < count; ++p)
      to[p * CPU_PANEL] = f < filters ? dy[f * pixels + pixel + p] : 0.0f;
  }
}

/* Rows [row, row + n) of the patches of a group, [n][CPU_CHAIN]. */
static void patch_block(const cpu_conv_args *g, const float *in, cpu_range rows, int64_t pixel,
                        int64_t count, float *out) {
  const int64_t taps = cpu_conv_volume(g->kernel);
  for (int64_t r = rows.begin; r < rows.end; ++r, out += CPU_CHAIN) {
    int64_t tap[3];
    cpu_conv_split(r % taps, g->kernel, tap);
    for (int64_t p = 0; p < count; p += CPU_PANEL) {
      cpu_conv_patch_row(g, in + r / taps * cpu_conv_volume(g->in_size), tap, pixel + p,
                         count - p < CPU_PANEL ? count - p : CPU_PANEL, out + p);
    }
  }
}

/* The unit's rows of dW', added up in sums[0] and [1] in turns; what they end in. */
static const float *add_up(const weight_job *j, int64_t group, cpu_range rows, float *space) {
  const cpu_conv_args *g = &j->args->of;
  const int64_t pixels = cpu_conv_volume(g->out_size), planes = g->c_in / g->groups;
  const int64_t filters = g->c_out / g->groups, wide = rounded(filters, CPU_PANEL);
  float *panels = space + j->rows * CPU_CHAIN;
  float *sums[2] = {panels + wide * CPU_CHAIN, panels + wide * CPU_CHAIN + j->rows * wide};
  int last = -1;
  for (int64_t image = 0; image < g->images; ++image) {
    const float *dy = j->args->dy + (image * g->c_out + group * filters) * pixels;
    const float *in =
        j->args->other + (image * g->c_in + group * planes) * cpu_conv_volume(g->in_size);
    for (int64_t pixel = 0; pixel < pixels; pixel += CPU_CHAIN) {
      const int64_t count = pixels - pixel < CPU_CHAIN ? pixels - pixel : CPU_CHAIN;
      const int to = last == 0 ? 1 : 0;
      const cpu_epilogue epilogue = {.alpha = 1.0f,
                                     .activation = CPU_ACT_NONE,
                                     .residual = last < 0 ? NULL : sums[last],
                                     .residual_stride = wide};
      const cpu_product product = {.n = filters,
                                   .k = count,
                                   .a = space,
                                   .a_stride = CPU_CHAIN,
                                   .panels = panels,
                                   .c = sums[to],
                                   .c_stride = wide,
                                   .epilogue = &epilogue};
      turn_block(dy, filters, pixels, pixel, count, panels);
      patch_block(g, in, rows, pixel, count, space);
      j->kernels->product(&product, (cpu_range){0, wide / CPU_PANEL},
                          (cpu_range){0, rows.end - rows.begin});
      last = to;
    }
  }
  return last < 0 ? NULL : sums[last];
}

/* The same of few filters: sums of rows by rows, [rows][filters]. */
static const float *add_up_narrow(const weight_job *j, int64_t group, cpu_range rows,
                                  float *space) {
  const cpu_conv_args *g = &j->args->of;
  const int64_t pixels = cpu_conv_volume(g->out_size), inputs = cpu_conv_volume(g->in_size);
  const int64_t planes = g->c_in / g->groups, filters = g->c_out / g->groups;
  cpu_row_sums_args sums = {.a = space,
                            .a_stride = CPU_CHAIN,
                            .a_rows = rows.end - rows.begin,
                            .b_stride = pixels,
                            .b_rows = filters,
                            .sums = space + j->rows * CPU_CHAIN};
  memset(sums.sums, 0, (size_t)(sums.a_rows * filters) * sizeof(float));
  for (int64_t image = 0; image < g->images; ++image) {
    const float *dy = j->args->dy + (image * g->c_out + group * filters) * pixels;
    const float *in = j->args->other + (image * g->c_in + group * planes) * inputs;
    for (int64_t pixel = 0; pixel < pixels; pixel += CPU_CHAIN) {
      sums.n = pixels - pixel < CPU_CHAIN ? pixels - pixel : CPU_CHAIN;
      sums.b = dy + pixel;
      patch_block(g, in, rows, pixel, sums.n, space);
      j->kernels->row_sums(&sums);
    }
  }
  return sums.sums;
}

static void weight_task(void *argument, int32_t worker, int32_t workers) {
  const weight_job *j = argument;
  const cpu_conv_args *g = &j->args->of;
  const int64_t all = rows_of(g), filters = g->c_out / g->groups;
  const bool narrow = is_narrow(g);
  const int64_t wide = narrow ? filters : rounded(filters, CPU_PANEL);
  float *space = (float *)j->args->workspace + worker * j->each;
  cpu_range share;
  cpu_team_share(g->groups * j->units, worker, workers, &share.begin, &share.end);
  for (int64_t u = share.begin; u < share.end; ++u) {
    const int64_t group = u / j->units, first = u % j->units * j->rows;
    const cpu_range rows = {first, first + j->rows < all ? first + j->rows : all};
    const float *sum = (narrow ? add_up_narrow : add_up)(j, group, rows, space);
    for (int64_t f = 0; f < filters; ++f) {
      float *to = j->args->out + (group * filters + f) * all;
      for (int64_t r = rows.begin; r < rows.end; ++r)
        to[r] = sum == NULL ? 0.0f : sum[(r - rows.begin) * wide + f];
    }
  }
}

void cpu_conv_grad_weight(const cpu_exec *x, const cpu_conv_grad_args *args) {
  const cpu_conv_args *g = &args->of;
  weight_job job = {
      .kernels = x->kernels, .args = args, .rows = unit_rows(g, cpu_team_size(x->team))};
  job.units = (rows_of(g) + job.rows - 1) / job.rows;
  job.each = rounded(weight_floats(g, job.rows), CPU_PANEL);
  cpu_team_run(x->team, weight_task, &job);
}
