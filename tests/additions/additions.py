# SPDX-License-Identifier: Apache-2.0
"""The additions of test_additions_full.py, as data: (name, most files that it may touch, edits). An edit puts its text before
an anchor that stands in its file once; without an anchor the file is new."""
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def example_schedule():
    """The schedule that hosts are shown, by another name."""
    path = os.path.join(HERE, "..", "examples", "schedule", "plugin.c")
    with open(path, encoding="utf-8") as file:
        return file.read().replace('"example"', '"lastfirst"')


OPERATOR_RULES = """\
/* dX = dY tanh(X)^2. */
static opipe_status tanhshrink_gradient(opi_grad *g, const opi_node *node, opipe_error *err) {
  opi_builder *b = g->builder;
  uint32_t d;
  OPI_TRY(opi_b_op1(b, "Tanh", node->in[0], &d, err));
  OPI_TRY(opi_b_op2(b, "Mul", d, d, &d, err));
  OPI_TRY(opi_b_op2(b, "Mul", opi_grad_of(g, node, 0), d, &d, err));
  return opi_grad_give(g, node, 0, d, err);
}

"""
OPERATOR_ROW = """\
    {OPI_OP("Tanhshrink", "", 1, OPI_NEWEST_ONNX, 1, 1, 1, 1), OPI_NO_ATTRS(22),
     .infer = plain_infer, .work = work, .carry = opi_carry_first, .gradient = tanhshrink_gradient,
     OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, PLAIN, NEVER)},
"""
OPTIMIZER_ROW = """ \\
  X(SOFTLION, 3, "softlion", "soft Lion", OPIPE_TAKES_OF_SOFTLION, 1, 1, 1, -1, 0, 0.9, 0.99, 1e-8, 0)
#define OPIPE_TAKES_OF_SOFTLION \\
  (OPIPE_TAKES_LR | OPIPE_TAKES_BETA1 | OPIPE_TAKES_BETA2 | OPIPE_TAKES_DECAY)"""
OPTIMIZER_KERNEL = """\
/* Lion (Chen et al. 2023) with x / (1 + |x|) in place of the sign. */
CPU_INLINE void softlion_run(const cpu_update_args *g, int64_t i, int64_t n) {
  const v16 w = v16_load_part_or(g->weight + i, n, 0.0f);
  const v16 d = v16_mul(v16_load_part_or(g->gradient + i, n, 0.0f), v16_set(g->gradient_scale));
  const v16 m = v16_load_part_or(g->first + i, n, 0.0f);
  const v16 c = v16_fma(v16_set(g->beta1), m, v16_mul(v16_set(g->rest1), d));
  const v16 step = v16_div(v16_mul(v16_set(g->step), c), v16_add(v16_set(1.0f), v16_abs(c)));
  store_row(g->first + i, n, v16_fma(v16_set(g->beta2), m, v16_mul(v16_set(g->rest2), d)));
  store_row(g->weight + i, n, v16_sub(v16_mul(w, v16_set(g->keep)), step));
}

CPU_STATIC void softlion_share(const cpu_update_args *g, cpu_range share) {
  UPDATE_ALL(softlion_run, g, share);
}

"""
DTYPE_ROW = """ \\
  X(FLOAT8E3M4, 27, "float8e3m4", 8, SMALL, 7, NULL, "|u1")"""

CPU_ACTIVATION = "plugins/backend-cpu/ops/activation.c"
CPU_UPDATES = "plugins/backend-cpu/kernels/elements_body.h"

ADDITIONS = (
    ("an operator with gradient", 2, (
        ("loader/ops/activation.c", "static void work(const opi_graph", OPERATOR_RULES),
        ("loader/ops/activation.c", '    {OPI_OP("PRelu"', OPERATOR_ROW),
        (CPU_ACTIVATION, "CPU_MAP1_TYPE(relu_i64", "CPU_MAP1(tanhshrink, x - tanh(x))\n"),
        (CPU_ACTIVATION, "  SHRINK\n};", "  TANHSHRINK,\n"),
        (CPU_ACTIVATION, "    [SHRINK] =", "    [TANHSHRINK] = SIMPLE(tanhshrink, CPU_NO_FAST),\n"),
        (CPU_ACTIVATION, '    ROW("Shrink"', '    ROW("Tanhshrink", TANHSHRINK),\n'),
    )),
    ("an optimizer", 2, (
        ("abi/include/opipe/optimizers.h", "\n#define OPIPE_TAKES_OF_SGD", OPTIMIZER_ROW),
        (CPU_UPDATES, "CPU_STATIC void update_share", OPTIMIZER_KERNEL),
        (CPU_UPDATES, "};\n  _Static_assert(sizeof kinds", ",\n      [OPIPE_UPDATE_SOFTLION] = softlion_share"),
    )),
    ("a schedule", 1, (
        ("plugins/schedule-lastfirst/plugin.c", None, example_schedule()),
    )),
    ("a storage type", 1, (
        ("abi/include/opipe/dtypes.h", "\n/* clang-format on */\n\n/* X(key, word): the types in which training", DTYPE_ROW),
    )),
    ("an option", 3, (
        ("abi/cli/tables.c", '    {RUN, "requests"', '    {RUN, "label", "TEXT", "stands before the outputs", TEXT(run.label)},\n'),
        ("abi/cli/cli.h", '  const char *check; /* NULL, "max"', "  const char *label;\n"),
        ("abi/cli/run.c", "  if (status == CLI_DONE && s->team_rank != 0 && result.n_outputs != 0",
         '  if (o->run.label != NULL)\n    (void)printf("%s\\n", o->run.label);\n'),
    )),
    ("a field of plan files", 3, (
        ("partition/plan/decision.h", "  uint32_t depth; ", "  uint32_t colour;             /* for people */\n"),
        ("partition/file/write.c", "  if (plan->binding.batch_dim != NULL) {",
         '  opi_text_printf(t, "  \\"colour\\": %u,\\n", plan->colour);\n'),
        ("partition/file/read.c", "  if (plan->n_microbatches == 0 || plan->depth == 0) {",
         '  OPI_TRY(read_u32(r, r->root, "colour", UINT32_MAX, &plan->colour));\n'),
    )),
)
