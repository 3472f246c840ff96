/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor groups in plans: pieces by place and member, one parameter table with parts, meetings in
 * the lists and their proof. The model is a chain of two-layer perceptrons with residuals, whose
 * rows micro-batches split unequally. */
#include "loader/shard/shard.h"
#include "partition/lists/lists.h"
#include "partition/program/records.h"
#include "tests/loader/backend_evaluator.h"
#include "tests/loader/graphs.h"
#include "tests/support/support.h"

enum { HIDDEN = 6, FEATURES = 7, BLOCKS = 4, MICROBATCHES = 3, ROWS = 7, STAGES = 2 };

typedef struct bench {
  test_graph g;
  opi_arena arena;
  opi_bind_options options;
  opi_bound *bound;
  opi_decision plan;
  opi_dim_binding dim, most; /* of a request, of its largest micro-batch */
  opi_stage_times times;
  opi_train_spec spec;
  bool trains; /* one micro-batch of fixed rows */
  opi_cut_model *model;
  opi_lists *lists;
} bench;

static uint32_t parameter(bench *b, const char *name, uint32_t block, int64_t k, int64_t n) {
  const int64_t shape[2] = {k, n};
  float *data = OPI_ARENA_ARRAY(&b->arena, float, (size_t)(k * n));
  test_need(data != NULL);
  for (int64_t i = 0; i < k * n; ++i)
    data[i] = (float)(i % 5) - 2;
  return test_known(&b->g, opi_arena_printf(&b->arena, "%s%u", name, block), OPIPE_FLOAT, shape, 2,
                    data);
}

static uint32_t add_bias(bench *b, uint32_t x, const char *name, uint32_t block, int64_t n) {
  const char *own = opi_arena_printf(&b->arena, "%s%u", name, block);
  return test_op(&b->g, "Add", x, test_known(&b->g, own, OPIPE_FLOAT, &n, 1, NULL));
}

static void build(bench *b) {
  const int64_t shape[2] = {b->trains ? ROWS : -1, HIDDEN};
  uint32_t x = test_input(&b->g, "x", OPIPE_FLOAT, shape, 2), y = OPIPE_NONE;
  if (!b->trains)
    test_dim(&b->g, 0, 0, "batch");
  for (uint32_t i = 0; i < BLOCKS; ++i) {
    uint32_t up = test_op(&b->g, "MatMul", x, parameter(b, "up", i, HIDDEN, FEATURES));
    if (b->trains)
      up = add_bias(b, up, "shift", i, FEATURES);
    test_node(&b->g, "Relu", 14, &up, 1, NULL, 0, &y, 1);
    const uint32_t down = test_op(&b->g, "MatMul", y, parameter(b, "down", i, FEATURES, HIDDEN));
    x = test_op(&b->g, "Add", x, down);
    if (b->trains)
      x = add_bias(b, x, "bias", i, HIDDEN);
  }
  test_rename(&b->g, x, "y");
  test_output(&b->g, x);
}

/* Every stage has the same number of blocks; group s has ranks s * width and so on. */
static void decide(bench *b, uint32_t width) {
  const opi_graph *g = b->bound->graph;
  opi_decision *plan = &b->plan;
  *plan = (opi_decision){
      .allocator = opi_allocator_system(),
      .n_ranks = STAGES * width,
      .n_stages = STAGES,
      .n_replicas = 1,
      .width = width,
      .n_microbatches = MICROBATCHES,
      .depth = 2,
      .schedule.name = "test",
      .n_nodes = g->n_nodes,
      .binding = {.dims = &b->dim, .n_dims = 1, .batch_dim = "batch", .batch_rows = ROWS}};
  if (b->trains) {
    b->spec = (opi_train_spec){.loss = {.kind = OPI_LOSS_MSE, .output = "y", .labels = "wanted"},
                               .optimizer = {.kind = OPIPE_OPTIMIZER_SGD}};
    plan->train = &b->spec;
    plan->n_microbatches = 1;
    plan->binding = (opi_plan_binding){.dims = NULL};
  }
  plan->instance_rank = OPI_ARENA_ARRAY(&b->arena, uint32_t, STAGES);
  plan->devices = OPI_ARENA_ARRAY(&b->arena, opi_device_spec, plan->n_ranks);
  plan->actions = OPI_ARENA_ARRAY(&b->arena, opipe_action, 2 * STAGES * MICROBATCHES);
  plan->rank_first = OPI_ARENA_ARRAY(&b->arena, uint32_t, plan->n_ranks + 1u);
  plan->node_keys = OPI_ARENA_ARRAY(&b->arena, const char *, g->n_nodes);
  plan->stage_of_node = OPI_ARENA_ARRAY(&b->arena, uint32_t, g->n_nodes);
  b->times.stage_ns = OPI_ARENA_ARRAY(&b->arena, double, STAGES);
  test_need(plan->instance_rank != NULL && plan->devices != NULL && plan->actions != NULL &&
            plan->rank_first != NULL && plan->node_keys != NULL && plan->stage_of_node != NULL &&
            b->times.stage_ns != NULL);
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    plan->node_keys[n] = opi_node_key(g, &g->nodes[n]);
    plan->stage_of_node[n] = n * STAGES / g->n_nodes;
  }
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    plan->rank_first[r] = plan->n_actions;
    plan->devices[r] = (opi_device_spec){.kind = "cpu", .options = ""};
    for (uint32_t m = 0; r % width == 0 && m < plan->n_microbatches; ++m) {
      plan->actions[plan->n_actions++] = (opipe_action){
          .rank = r, .stage = r / width, .microbatch = m, .pass = OPIPE_PASS_FORWARD};
      if (b->trains) {
        plan->actions[plan->n_actions++] = (opipe_action){
            .rank = r, .stage = r / width, .microbatch = m, .pass = OPIPE_PASS_BACKWARD};
      }
    }
  }
  plan->rank_first[plan->n_ranks] = plan->n_actions;
  for (uint32_t s = 0; s < STAGES; ++s) {
    plan->instance_rank[s] = s * width;
    b->times.stage_ns[s] = 1000;
  }
}

static void open_bench(bench *b, uint32_t width, bool trains) {
  opipe_error err = OPIPE_ERROR_INIT;
  memset(b, 0, sizeof *b);
  b->trains = trains;
  test_open(&b->g);
  opi_arena_init(&b->arena, opi_allocator_system(), 0);
  build(b);
  b->dim = (opi_dim_binding){.name = "batch", .value = ROWS};
  b->most = (opi_dim_binding){.name = "batch", .value = (ROWS + MICROBATCHES - 1) / MICROBATCHES};
  b->options = test_options();
  b->options.flags |= OPI_BIND_NO_FUSE | (trains ? (uint32_t)OPI_BIND_KEEP_PARAMETERS : 0u);
  b->options.evaluator = test_backend_evaluator();
  b->options.dims = &b->most;
  b->options.n_dims = trains ? 0 : 1;
  OPI_ASSERT_OK_FATAL(opi_bind(&b->g.model, &b->options, &b->bound, &err), &err);
  decide(b, width);
  b->plan.binding.bind_flags = b->options.flags;
}

static opipe_status make_model(bench *b, opipe_error *err) {
  const opi_cut_sources from = {.plan = &b->plan,
                                .times = &b->times,
                                .file = &b->g.model,
                                .base = &b->options,
                                .bound = b->bound};
  return opi_cut_model_build(&from, &b->model, err);
}

static opipe_status make_lists(bench *b, bool reference, opipe_error *err) {
  const uint32_t alignment[16] = {0};
  opi_lists_free(b->lists);
  b->lists = NULL;
  OPI_TRY(opi_records_check(&b->plan, b->model->variants[0].slices[0].cut, err));
  OPI_TRY(opi_piece_plan_build(&b->plan, b->model, err));
  return opi_lists_build(b->model, alignment, reference, opi_allocator_system(), &b->lists, err);
}

static void close_bench(bench *b) {
  opi_lists_free(b->lists);
  opi_cut_model_free(b->model);
  opi_bound_free(b->bound);
  opi_arena_release(&b->arena);
  test_close(&b->g);
}

/* ---- the parameter table ---- */

/* Counts the entries of a parameter's parts; members have runs of their own. */
static int64_t entries_of(const opi_cut *cut, const char *name, uint32_t *out_rows) {
  int64_t n = 0;
  *out_rows = 0;
  for (uint32_t i = 0; i < cut->n_params; ++i) {
    if (strcmp(cut->sources[i].name, name) != 0)
      continue;
    ++*out_rows;
    const opi_param_part *part = cut->parts[i];
    OPI_ASSERT_FATAL(part != NULL);
    uint64_t elems = 1, own = 0;
    for (uint32_t d = 0; d < cut->sources[i].rank; ++d)
      elems *= (uint64_t)cut->sources[i].shape[d];
    for (uint32_t k = 0; k < part->n_runs; ++k)
      own += (uint64_t)part->runs[k].n;
    OPI_ASSERT_INT(cut->sources[i].shape[part->axis], (int64_t)own);
    OPI_ASSERT_INT(cut->sources[i].n_bytes, elems * 4);
    OPI_ASSERT_INT(part->whole.n_bytes, HIDDEN * FEATURES * 4);
    OPI_ASSERT(part->whole.data != NULL);
    n += (int64_t)own;
  }
  return n;
}

static void check_table(const bench *b, uint32_t width) {
  const opi_cut *cut = b->model->cuts[0];
  uint32_t n_rows = 0;
  OPI_ASSERT_INT(cut->n_params, 2 * BLOCKS * width);
  OPI_ASSERT_INT(entries_of(cut, "up0", &n_rows), FEATURES);
  OPI_ASSERT_INT(n_rows, width);
  OPI_ASSERT_INT(entries_of(cut, "down3", &n_rows), FEATURES);
  /* a member's programs name its own rows alone */
  for (uint32_t v = 0; v < cut->n_stages; ++v) {
    const uint32_t member = v % width;
    const opi_program *program = opi_program_of(cut, v, OPI_PROGRAM_F);
    for (uint32_t i = 0; i < program->n_params; ++i)
      OPI_ASSERT_INT(cut->parts[program->params[i]]->member, member);
  }
  for (uint32_t s = 0; s < STAGES; ++s) {
    opi_arena scratch;
    opipe_error err = OPIPE_ERROR_INIT;
    uint32_t *params = NULL, n_own = 0, n_all = 0;
    opi_arena_init(&scratch, opi_allocator_system(), 0);
    OPI_ASSERT_OK(opi_member_params(b->model, s, 1, &scratch, &params, &n_own, &err), &err);
    OPI_ASSERT_OK(opi_stage_params(b->model, s, &scratch, &params, &n_all, &err), &err);
    OPI_ASSERT_INT(n_own, 2 * BLOCKS / STAGES);
    OPI_ASSERT_INT(n_all, n_own * width);
    opi_arena_release(&scratch);
  }
}

/* ---- lists ---- */

/* The n-th SUM of a rank's list. */
static const opi_step *sum_of(const opi_lists *l, uint32_t rank, uint32_t n) {
  uint32_t i = l->rank_first[rank];
  for (; i < l->rank_first[rank + 1] && (l->steps[i].kind != OPI_ACT_SUM || n > 0); ++i)
    n -= l->steps[i].kind == OPI_ACT_SUM;
  return i < l->rank_first[rank + 1] ? &l->steps[i] : NULL;
}

static void check_meeting(const bench *b, const opi_step *step, uint32_t rank, uint32_t width) {
  const opi_lists *l = b->lists;
  const opi_list_meeting *meeting = &l->meetings[step->route];
  const uint32_t member = rank % width;
  const int64_t rows = opi_microbatch_rows(ROWS, MICROBATCHES, meeting->microbatch % MICROBATCHES);
  OPI_ASSERT_INT(step[1].kind, OPI_ACT_AWAIT);
  OPI_ASSERT_INT(step[1].route, step->route);
  OPI_ASSERT_INT(meeting->n_ranks, width);
  OPI_ASSERT_INT(meeting->ranks[member], rank);
  OPI_ASSERT_INT(meeting->microbatch, step->microbatch);
  OPI_ASSERT_INT(meeting->n_values, 1);
  const opi_group_value *value = &meeting->values[0];
  OPI_ASSERT_INT(value->kind, OPI_COLLECTIVE_SUM);
  OPI_ASSERT(value->parts == NULL);
  OPI_ASSERT_INT(value->outer * value->inner, rows * HIDDEN);
  OPI_ASSERT_INT(value->n_bytes, rows * HIDDEN * 4);
  const opi_cell *in = &b->model->cuts[0]->cells[value->in_cell[member]];
  const opi_cell *out = &b->model->cuts[0]->cells[value->out_cell[member]];
  OPI_ASSERT_INT(in->stage, step->stage);
  OPI_ASSERT_INT(out->stage, step->stage);
  OPI_ASSERT(in->source == OPI_CELL_RECEIVED && out->source == OPI_CELL_MADE);
  const size_t at = (size_t)value->in_cell[member] * MICROBATCHES * l->n_positions;
  OPI_ASSERT_INT(l->lies_on[at + meeting->microbatch], rank);
}

/* All ranks of a group come to the same meetings in the same order, and wait for each. */
static void check_meetings(const bench *b, uint32_t width) {
  const opi_lists *l = b->lists;
  const uint32_t n_sums = BLOCKS / STAGES * MICROBATCHES * l->n_positions;
  OPI_ASSERT_INT(l->n_meetings, STAGES * n_sums);
  for (uint32_t rank = 0; rank < l->n_ranks; ++rank) {
    for (uint32_t i = 0; i < n_sums; ++i) {
      const opi_step *step = sum_of(l, rank, i);
      OPI_ASSERT_FATAL(step != NULL);
      OPI_ASSERT_INT(step->route, sum_of(l, rank - rank % width, i)->route);
      check_meeting(b, step, rank, width);
    }
    OPI_ASSERT(sum_of(l, rank, n_sums) == NULL);
  }
}

static void check_outputs(const bench *b, uint32_t width) {
  const opi_cut *cut = b->model->cuts[0];
  uint32_t n = 0;
  OPI_ASSERT(opi_output_is_made(cut, 0));
  for (uint32_t k = 0; k < cut->n_pieces; ++k)
    n += cut->output_cell[k] != OPIPE_NONE;
  OPI_ASSERT_INT(n, 1);
  for (uint32_t k = 0; k < width; ++k)
    OPI_ASSERT_INT(b->model->variants[b->model->base].slices[k].output_parts[0].axis, -1);
}

static void test_a_group_is_planned_and_proven(void) {
  static const uint32_t widths[] = {2, 3, 5};
  for (size_t i = 0; i < OPI_COUNT(widths); ++i) {
    bench b;
    opipe_error err = OPIPE_ERROR_INIT;
    open_bench(&b, widths[i], false);
    OPI_ASSERT_OK_FATAL(make_model(&b, &err), &err);
    OPI_ASSERT_INT(b.model->n_pieces, b.model->n_places * widths[i]);
    check_table(&b, widths[i]);
    check_outputs(&b, widths[i]);
    OPI_ASSERT_OK_FATAL(make_lists(&b, false, &err), &err);
    check_meetings(&b, widths[i]);
    close_bench(&b);
  }
}

/* The time of a stage is spread over its stretches; the link's time of every sum is added. */
static void test_sums_take_time(void) {
  bench b;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_replay_result fast = {0}, slow = {0};
  open_bench(&b, 2, false);
  OPI_ASSERT_OK_FATAL(make_model(&b, &err), &err);
  OPI_ASSERT_OK_FATAL(make_lists(&b, false, &err), &err);
  const opi_cut *cut = b.model->cuts[0];
  OPI_ASSERT_OK(
      opi_lists_replay(&b.model->piece_plan, b.lists, cut, 8, opi_allocator_system(), &fast, &err),
      &err);
  b.plan.link.latency_ns = 50;
  OPI_ASSERT_OK(
      opi_lists_replay(&b.model->piece_plan, b.lists, cut, 8, opi_allocator_system(), &slow, &err),
      &err);
  /* 2 messages of half the sum each, twice in a stage, of 3 micro-batches */
  OPI_ASSERT(fast.interval_ns >= MICROBATCHES * 1000.0);
  OPI_ASSERT(fast.interval_ns < MICROBATCHES * 1020.0);
  OPI_ASSERT_INT(slow.interval_ns - fast.interval_ns, MICROBATCHES * 2 * 2 * 50);
  close_bench(&b);
}

static void test_the_reference_adds_up_once(void) {
  bench b;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t n_sums = 0, n_computed[3] = {0};
  open_bench(&b, 3, false);
  OPI_ASSERT_OK_FATAL(make_model(&b, &err), &err);
  OPI_ASSERT_OK_FATAL(make_lists(&b, true, &err), &err);
  for (uint32_t i = 0; i < b.lists->n_steps; ++i) {
    const opi_step *step = &b.lists->steps[i];
    OPI_ASSERT(step->kind != OPI_ACT_AWAIT);
    n_sums += step->kind == OPI_ACT_SUM;
    if (step->kind == OPI_ACT_SUM) { /* all members have come equally far */
      OPI_ASSERT_INT(n_computed[0], n_computed[1]);
      OPI_ASSERT_INT(n_computed[0], n_computed[2]);
    }
    if (step->kind == OPI_ACT_COMPUTE)
      ++n_computed[step->stage % 3];
  }
  OPI_ASSERT_INT(n_sums, BLOCKS * MICROBATCHES * b.lists->n_positions);
  close_bench(&b);
}

/* ---- training ---- */

/* Parts are rows, and so is every member's copy of a whole parameter; no program has a collective.
 */
static void check_training_table(const bench *b, uint32_t width) {
  const opi_cut *cut = b->model->cuts[0];
  uint32_t n_whole = 0;
  OPI_ASSERT_INT(cut->n_params, 4 * BLOCKS * width);
  for (uint32_t i = 0; i < cut->n_params; ++i) {
    OPI_ASSERT(cut->trained[i]);
    OPI_ASSERT_FATAL(cut->parts[i] != NULL);
    n_whole += cut->parts[i]->axis < 0;
    if (cut->parts[i]->axis < 0)
      OPI_ASSERT(strncmp(cut->sources[i].name, "bias", 4) == 0 && cut->sources[i].data != NULL);
  }
  OPI_ASSERT_INT(n_whole, BLOCKS * width);
  for (uint32_t i = 0; i < cut->n_stages * cut->n_kinds; ++i) {
    const opi_program *program = &cut->programs[i];
    for (uint32_t n = 0; n < program->graph.n_nodes; ++n)
      OPI_ASSERT(strncmp(program->graph.nodes[n].op, "Group", 5) != 0);
    for (uint32_t k = 0; k < program->n_params; ++k)
      OPI_ASSERT_INT(cut->parts[program->params[k]]->member, i / cut->n_kinds % width);
  }
}

/* While a gradient is summed, the rank computes gradients of weights. A sum lies where the rank's
 * own values were. */
static void check_behind(const bench *b, const opi_step *step, bool computes) {
  const opi_lists *l = b->lists;
  const opi_group_value *value = &l->meetings[step->route].values[0];
  const uint32_t member = step->stage % opi_plan_width(&b->plan);
  uint32_t n = 1, n_computed = 0;
  OPI_ASSERT_INT(l->offsets[value->in_cell[member]], l->offsets[value->out_cell[member]]);
  for (; step[n].kind != OPI_ACT_AWAIT; ++n) {
    OPI_ASSERT_FATAL(step + n < l->steps + l->n_steps);
    OPI_ASSERT(step[n].kind != OPI_ACT_COMPUTE || step[n].pass == OPI_PROGRAM_W);
    n_computed += step[n].kind == OPI_ACT_COMPUTE;
  }
  OPI_ASSERT_INT(step[n].route, step->route);
  OPI_ASSERT_INT(n_computed, computes);
}

/* Forward, a sum behind every block; backward, one in front of every block but the first. */
static void test_a_group_trains(void) {
  enum { WIDTH = 5, SUMS = 2 * BLOCKS - 1 }; /* some have one feature */
  bench b;
  opipe_error err = OPIPE_ERROR_INIT;
  open_bench(&b, WIDTH, true);
  OPI_ASSERT_OK_FATAL(make_model(&b, &err), &err);
  check_training_table(&b, WIDTH);
  OPI_ASSERT_OK_FATAL(make_lists(&b, false, &err), &err);
  const opi_lists *l = b.lists;
  for (uint32_t rank = 0; rank < l->n_ranks; ++rank) {
    const uint32_t stage = rank / WIDTH, n = stage == 0 ? BLOCKS - 1 : BLOCKS;
    uint32_t last_place = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const opi_step *step = sum_of(l, rank, i);
      OPI_ASSERT_FATAL(step != NULL);
      const opi_list_meeting *meeting = &l->meetings[step->route];
      const bool backward = i >= BLOCKS / STAGES;
      OPI_ASSERT_INT(step->route, sum_of(l, stage * WIDTH, i)->route);
      OPI_ASSERT_INT(meeting->pass, backward ? OPI_PROGRAM_B : OPI_PROGRAM_F);
      check_behind(&b, step, backward);
      OPI_ASSERT_INT(meeting->values[0].inner, ROWS * HIDDEN);
      OPI_ASSERT(i % (BLOCKS / STAGES) == 0 ||
                 (backward ? meeting->place < last_place : meeting->place > last_place));
      last_place = meeting->place;
    }
    OPI_ASSERT(sum_of(l, rank, n) == NULL);
  }
  OPI_ASSERT_OK_FATAL(make_lists(&b, true, &err), &err);
  uint32_t n_sums = 0;
  for (uint32_t i = 0; i < b.lists->n_steps; ++i)
    n_sums += b.lists->steps[i].kind == OPI_ACT_SUM;
  OPI_ASSERT_INT(n_sums, SUMS);
  close_bench(&b);
}

/* On the longest path lie 7 sums: the 4 of forwards take time; gradients of weights hide the
 * others.
 */
static void test_gradients_of_weights_hide_sums(void) {
  enum { LATENCY = 20, EXPOSED = BLOCKS, MESSAGES = 2 };
  double input_ns[STAGES] = {1000, 1000}, weight_ns[STAGES] = {1000, 1000};
  bench b;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_replay_result fast = {0}, slow = {0};
  open_bench(&b, 2, true);
  b.times.input_ns = input_ns;
  b.times.weight_ns = weight_ns;
  OPI_ASSERT_OK_FATAL(make_model(&b, &err), &err);
  OPI_ASSERT_OK_FATAL(make_lists(&b, false, &err), &err);
  const opi_cut *cut = b.model->cuts[0];
  OPI_ASSERT_OK(
      opi_lists_replay(&b.model->piece_plan, b.lists, cut, 1, opi_allocator_system(), &fast, &err),
      &err);
  b.plan.link.latency_ns = LATENCY;
  OPI_ASSERT_OK(
      opi_lists_replay(&b.model->piece_plan, b.lists, cut, 1, opi_allocator_system(), &slow, &err),
      &err);
  OPI_ASSERT_INT(slow.request_ns - fast.request_ns, (2 * EXPOSED + MESSAGES) * LATENCY);
  close_bench(&b);
}

/* ---- refusals ---- */

static void test_swapped_sums_are_refused_with_the_cycle(void) {
  bench b;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t first = OPIPE_NONE;
  open_bench(&b, 2, false);
  OPI_ASSERT_OK_FATAL(make_model(&b, &err), &err);
  OPI_ASSERT_OK_FATAL(make_lists(&b, false, &err), &err);
  for (uint32_t i = b.lists->rank_first[1]; i < b.lists->rank_first[2]; ++i) {
    opi_step *step = &b.lists->steps[i];
    if (step->kind != OPI_ACT_SUM)
      continue;
    if (first != OPIPE_NONE) {
      opi_step *other = &b.lists->steps[first];
      const uint32_t route = step->route;
      step->route = step[1].route = other->route;
      other->route = other[1].route = route;
      break;
    }
    first = i;
  }
  const opipe_status status = opi_lists_prove(&b.model->piece_plan, b.lists, b.model->cuts[0],
                                              opi_allocator_system(), &err);
  OPI_ASSERT_INT(status, OPIPE_E_INVALID);
  OPI_ASSERT(strstr(err.message, "rank 0") != NULL && strstr(err.message, "rank 1") != NULL);
  OPI_ASSERT(strstr(err.message, "the sum of '") != NULL);
  close_bench(&b);
}

static void refused(bench *b, opipe_status status, const char *words) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_cut_model_free(b->model);
  b->model = NULL;
  OPI_ASSERT_INT(make_model(b, &err), status);
  if (strstr(err.message, words) == NULL)
    OPI_FAIL("'%s' lacks '%s'", err.message, words);
}

static void test_refusals_name_both_numbers(void) {
  bench b;
  uint32_t shares[STAGES] = {1, 1};
  open_bench(&b, 2, false);
  b.plan.n_ranks = 3;
  refused(&b, OPIPE_E_INVALID, "2 members cannot share 3 ranks");
  b.plan.n_ranks = 4;
  b.plan.instance_rank[1] = 3;
  refused(&b, OPIPE_E_INVALID, "stage 1 is on rank 3 of 4");
  b.plan.instance_rank[1] = 2;
  b.plan.shares = shares;
  refused(&b, OPIPE_E_UNSUPPORTED, "replicas that share micro-batches");
  b.plan.shares = NULL;
  b.plan.n_parts = 2;
  b.plan.division.sequence = true;
  refused(&b, OPIPE_E_UNSUPPORTED, "group of 2 has some rows");
  b.plan.division.scattered = true;
  refused(&b, OPIPE_E_INVALID, "each of the 2 members has some: scattered=1");
  close_bench(&b);
  open_bench(&b, FEATURES + 2, false); /* more members than features */
  refused(&b, OPIPE_E_UNSUPPORTED, "9 members has nothing to divide");
  close_bench(&b);
}

/* ---- parts of what goes from stage to stage ---- */

/* Bytes of a phase's messages of a member from stage to stage, of the first row class. */
static uint64_t bytes_sent(const bench *b, uint32_t member, uint32_t phase, uint32_t *out_n) {
  const opi_cut *cut = b->model->cuts[0];
  const uint32_t n = b->model->n_pieces;
  uint64_t n_bytes = 0;
  *out_n = 0;
  for (uint32_t r = 0; r < cut->n_routes; ++r) {
    const opi_route *route = &cut->routes[r];
    if (route->phase != phase || route->src_stage / n == route->dst_stage / n ||
        route->src_stage % b->model->n_members != member)
      continue;
    OPI_ASSERT_INT(route->dst_stage % b->model->n_members, member);
    n_bytes += route->n_bytes;
    ++*out_n;
  }
  return n_bytes;
}

static uint32_t gathers_of(const bench *b, uint32_t stage, uint32_t phase) {
  const opi_cut *cut = b->model->cuts[0];
  uint32_t n = 0;
  for (uint32_t m = 0; m < cut->n_meetings; ++m) {
    const opi_group_meeting *meeting = &cut->meetings[m];
    const bool there = meeting->stage == stage && meeting->phase == phase;
    for (uint32_t i = 0; there && i < meeting->n_values; ++i)
      n += meeting->values[i].kind == OPI_COLLECTIVE_GATHER;
  }
  return n;
}

/* parts: features of each member, received by the gather alone; NULL: all of them, which is HIDDEN,
 * by every stretch that reads them. */
static void check_sent(const bench *b, uint32_t width, const uint32_t *parts) {
  const uint64_t rows = b->trains ? ROWS : (uint64_t)opi_microbatch_rows(ROWS, MICROBATCHES, 0);
  for (uint32_t k = 0; k < width; ++k) {
    const uint64_t wanted = rows * (parts == NULL ? HIDDEN : parts[k]) * 4;
    uint32_t n = 0;
    const uint64_t forward = bytes_sent(b, k, OPI_PHASE_F, &n);
    OPI_ASSERT(parts == NULL ? n >= 1 : n == 1);
    OPI_ASSERT_INT(forward, n * wanted);
    const uint64_t backward = bytes_sent(b, k, OPI_PHASE_I, &n);
    OPI_ASSERT(parts == NULL || !b->trains ? n >= b->trains : n == 1);
    OPI_ASSERT_INT(backward, n * wanted);
  }
  OPI_ASSERT_INT(gathers_of(b, 0, OPI_PHASE_F), 0);
  OPI_ASSERT_INT(gathers_of(b, 1, OPI_PHASE_F), parts != NULL);
  OPI_ASSERT_INT(gathers_of(b, 0, OPI_PHASE_I), parts != NULL && b->trains);
  OPI_ASSERT_INT(gathers_of(b, 1, OPI_PHASE_I), 0);
}

/* Equal parts, unequal ones, and none: over a direct edge, and where members are more than
 * features. */
static void test_boundary_tensors_go_in_parts(void) {
  static const struct {
    uint32_t width, parts[5];
    bool direct;
  } rows[] = {{2, {3, 3}, false}, {4, {2, 2, 1, 1}, false}, {2, {0}, true}};
  for (uint32_t i = 0; i < 2 * OPI_COUNT(rows); ++i) {
    const uint32_t at = i / 2, width = rows[at].width;
    bench b;
    opipe_error err = OPIPE_ERROR_INIT;
    open_bench(&b, width, i % 2 == 1);
    b.plan.division.scattered = true;
    b.plan.link.flags = rows[at].direct ? (uint32_t)OPIPE_TRANSPORT_DIRECT : 0u;
    for (uint32_t r = 0; r < b.plan.n_ranks; ++r)
      b.plan.devices[r].flags = OPIPE_DEVICE_HOST_MEMORY;
    OPI_ASSERT_OK_FATAL(make_model(&b, &err), &err);
    check_sent(&b, width, rows[at].direct ? NULL : rows[at].parts);
    OPI_ASSERT_OK_FATAL(make_lists(&b, false, &err), &err); /* proven */
    close_bench(&b);
  }
}

OPI_TEST_MAIN("tensor groups", OPI_TEST(test_a_group_is_planned_and_proven),
              OPI_TEST(test_sums_take_time), OPI_TEST(test_the_reference_adds_up_once),
              OPI_TEST(test_a_group_trains), OPI_TEST(test_gradients_of_weights_hide_sums),
              OPI_TEST(test_swapped_sums_are_refused_with_the_cycle),
              OPI_TEST(test_boundary_tensors_go_in_parts),
              OPI_TEST(test_refusals_name_both_numbers))
