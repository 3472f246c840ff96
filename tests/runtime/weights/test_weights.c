/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over replicas and ties, norm, clip, optimizers, versions, loss scale, access by name:
 * without them copies of a parameter drift apart, or a step is not the one that was asked for.
 */
#include "tests/runtime/weights/toy_weights.h"

enum { STEPS = 5 };

/* The summed gradient of a parameter, in the order (stage, replica). */
static float tw_sum(const tw_place_set *t, uint32_t slot, uint32_t e, uint32_t step) {
  float sum = 0;
  bool first = true;
  for (uint32_t i = 0; i < t->options.n_stages * t->options.n_replicas; ++i) {
    for (uint32_t k = 0; k < t->instances[i].n_params; ++k) {
      if (t->instances[i].params[k] != slot)
        continue;
      sum = first ? tw_part(i, slot, e, step) : sum + tw_part(i, slot, e, step);
      first = false;
    }
  }
  return sum;
}

/* Every copy of every parameter, in dense form, equals `want`; bits among copies are equal. */
static void expect_copies(tw_place_set *t, uint32_t set, double want[TW_SLOTS][16]) {
  float first[TW_SLOTS][16], dense[16];
  bool seen[TW_SLOTS] = {false};
  for (uint32_t i = 0; i < t->options.n_stages * t->options.n_replicas; ++i) {
    const opipe_params *p = opi_weights_params(t->weights, i, set);
    for (uint32_t k = 0; k < t->instances[i].n_params; ++k) {
      const uint32_t slot = t->instances[i].params[k];
      (void)tw_params_read(p, slot, dense, 0, NULL);
      for (uint32_t e = 0; e < tw_elems(slot); ++e)
        OPI_ASSERT(fabs((double)dense[e] - want[slot][e]) <= 1e-6);
      if (seen[slot])
        OPI_ASSERT(memcmp(dense, first[slot], tw_elems(slot) * sizeof(float)) == 0);
      memcpy(first[slot], dense, sizeof dense);
      seen[slot] = true;
    }
  }
}

static double norm_of(const tw_place_set *t, uint32_t step) {
  double sum = 0;
  for (uint32_t slot = 0; slot < TW_SLOTS; ++slot) {
    for (uint32_t e = 0; t->trained[slot] && e < tw_elems(slot); ++e)
      sum += pow((double)tw_sum(t, slot, e, step), 2);
  }
  return sqrt(sum);
}

static void start_values(const tw_place_set *t, double w[TW_SLOTS][16]) {
  for (uint32_t slot = 0; slot < TW_SLOTS; ++slot) {
    for (uint32_t e = 0; e < tw_elems(slot); ++e)
      w[slot][e] = (double)t->values[slot][e];
  }
}

/* many: norms and updates are one call of each rank and step, else one for each parameter. */
static void run_sgd(uint32_t replicas, double clip, bool many) {
  tw_place_set t;
  double w[TW_SLOTS][16], m[TW_SLOTS][16] = {{0}};
  opi_step_report report;
  tw_setup(&t, 2, replicas);
  t.optimizer.clip_norm = clip;
  t.optimizer.nesterov = 1;
  t.backend.table = many ? &tw_backend : &tw_one_by_one;
  tw_n_many[0] = tw_n_many[1] = 0;
  tw_open(&t);
  start_values(&t, w);
  for (uint32_t step = 0; step < STEPS; ++step) {
    tw_step(&t, step, 1);
    const double norm = norm_of(&t, step);
    const double scale = clip > 0 && norm + 1e-6 > clip ? clip / (norm + 1e-6) : 1;
    for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) {
      for (uint32_t e = 0; e < tw_elems(slot); ++e) {
        const double g = scale * (double)tw_sum(&t, slot, e, step);
        m[slot][e] = 0.5 * m[slot][e] + g;
        w[slot][e] -= 0.5 * (g + 0.5 * m[slot][e]);
      }
    }
    expect_copies(&t, 0, w);
    for (uint32_t r = 0; r < TW_RANKS; ++r) {
      opi_weights_report(t.weights, r, &report);
      OPI_ASSERT(fabs(report.gradient_norm - norm) <= 1e-6 * norm);
      OPI_ASSERT_INT(report.step, step + 1);
    }
  }
  OPI_ASSERT_INT(tw_n_many[0], many ? TW_RANKS * STEPS : 0);
  OPI_ASSERT_INT(tw_n_many[1], many ? TW_RANKS * STEPS : 0);
  tw_end(&t);
}

static void test_sums_are_in_order_and_alike(void) {
  run_sgd(1, 0, false);
  run_sgd(2, 0, false);
}

static void test_clipping_uses_the_norm_of_all(void) {
  run_sgd(2, 0.75, false);
}

static void test_backends_take_many_parameters_at_once(void) {
  run_sgd(1, 0, true);
  run_sgd(1, 0.75, true);
}

static void test_adamw_with_schedule_and_excluded_decay(void) {
  static const char *const globs[] = {"t*"};
  tw_place_set t;
  double w[TW_SLOTS][16], m[TW_SLOTS][16] = {{0}}, v[TW_SLOTS][16] = {{0}};
  tw_setup(&t, 2, 2);
  t.optimizer = (opi_optimizer){.kind = OPIPE_OPTIMIZER_ADAMW,
                                .lr_schedule = OPI_LR_COSINE,
                                .lr = 0.1,
                                .beta1 = 0.9,
                                .beta2 = 0.99,
                                .epsilon = 1e-3,
                                .decay = 0.5,
                                .warmup_steps = 2,
                                .total_steps = STEPS,
                                .no_decay = globs,
                                .n_no_decay = 1};
  tw_open(&t);
  start_values(&t, w);
  for (uint32_t step = 0; step < STEPS; ++step) {
    const double done = ((double)step - 2) / (STEPS - 2);
    const double lr = step < 2 ? 0.05 * (step + 1) : 0.05 * (1 + cos(3.141592653589793 * done));
    tw_step(&t, step, 1);
    for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) {
      for (uint32_t e = 0; e < tw_elems(slot); ++e) {
        const double g = (double)tw_sum(&t, slot, e, step);
        m[slot][e] = 0.9 * m[slot][e] + 0.1 * g;
        v[slot][e] = 0.99 * v[slot][e] + 0.01 * g * g;
        if (slot != TW_TIED)
          w[slot][e] -= lr * 0.5 * w[slot][e];
        w[slot][e] -= lr * (m[slot][e] / (1 - pow(0.9, step + 1))) /
                      (sqrt(v[slot][e] / (1 - pow(0.99, step + 1))) + 1e-3);
      }
    }
    expect_copies(&t, 0, w);
  }
  tw_end(&t);
}

static void test_two_versions_take_turns(void) {
  tw_place_set t;
  double w[TW_SLOTS][16], before[TW_SLOTS][16];
  tw_setup(&t, 2, 1);
  t.optimizer.momentum = 0;
  t.options.n_versions = 2;
  tw_open(&t);
  start_values(&t, w);
  for (uint32_t step = 0; step < STEPS; ++step) {
    memcpy(before, w, sizeof w);
    tw_step(&t, step, 1);
    for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) {
      for (uint32_t e = 0; e < tw_elems(slot); ++e)
        w[slot][e] -= 0.5 * (double)tw_sum(&t, slot, e, step);
    }
    const uint32_t newest = opi_weights_set_of(t.weights, 0, 0);
    OPI_ASSERT_INT(newest, (step + 1) % 2);
    OPI_ASSERT_INT(opi_weights_set_of(t.weights, 0, 1), step % 2);
    expect_copies(&t, newest, w);
    expect_copies(&t, 1 - newest, before);
  }
  tw_end(&t);
}

static void test_an_overflow_skips_the_step(void) {
  tw_place_set t;
  double w[TW_SLOTS][16];
  opi_step_report report;
  tw_setup(&t, 2, 2);
  t.optimizer.momentum = 0;
  t.optimizer.loss_scaling = 1;
  tw_open(&t);
  start_values(&t, w);
  OPI_ASSERT(opi_weights_loss_scale(t.weights, 0) == 65536.0);
  tw_step(&t, 0, (double)INFINITY);
  expect_copies(&t, 0, w);
  opi_weights_report(t.weights, 1, &report);
  OPI_ASSERT_INT(report.skipped, 1);
  OPI_ASSERT(opi_weights_loss_scale(t.weights, 1) == 32768.0);
  tw_step(&t, 1, 32768.0);
  opi_weights_report(t.weights, 0, &report);
  OPI_ASSERT_INT(report.skipped, 0);
  OPI_ASSERT(fabs(report.gradient_norm - norm_of(&t, 1)) <= 1e-5);
  for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) {
    for (uint32_t e = 0; e < tw_elems(slot); ++e)
      w[slot][e] -= 0.5 * (double)tw_sum(&t, slot, e, 1);
  }
  expect_copies(&t, 0, w);
  tw_end(&t);
}

static void expect_skipped(tw_place_set *t, uint32_t why) {
  for (uint32_t r = 0; r < TW_RANKS; ++r) {
    opi_step_report report;
    opi_weights_report(t->weights, r, &report);
    OPI_ASSERT_INT(report.skipped, why);
  }
}

/* One rank's loss, or any gradient, is enough; the optimizer's state stays too. */
static void test_a_step_that_is_not_finite_changes_nothing(void) {
  tw_place_set t;
  double w[TW_SLOTS][16];
  opi_weights_clock clock;
  tw_setup(&t, 2, 2);
  tw_open(&t);
  start_values(&t, w);
  t.lost[TW_RANKS - 1] = true;
  tw_step(&t, 0, 1);
  expect_skipped(&t, OPI_SKIP_NOT_FINITE);
  expect_copies(&t, 0, w);
  t.lost[TW_RANKS - 1] = false;
  tw_step(&t, 1, (double)NAN);
  expect_skipped(&t, OPI_SKIP_NOT_FINITE);
  expect_copies(&t, 0, w);
  tw_step(&t, 2, 1);
  expect_skipped(&t, OPI_SKIP_NONE);
  opi_weights_get_clock(t.weights, &clock);
  OPI_ASSERT_INT(clock.n_steps, 3);
  OPI_ASSERT_INT(clock.n_updates, 1);
  for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) {
    for (uint32_t e = 0; e < tw_elems(slot); ++e)
      w[slot][e] -= 0.5 * (double)tw_sum(&t, slot, e, 2); /* no momentum of the others */
  }
  expect_copies(&t, 0, w);
  tw_end(&t);
}

/* A loss that is no number is not the loss scale's doing; nor is a norm under a scale of 1. */
static void test_loss_scaling_has_its_own_skips(void) {
  tw_place_set t;
  tw_setup(&t, 2, 2);
  t.optimizer.loss_scaling = 1;
  tw_open(&t);
  t.lost[0] = true;
  tw_step(&t, 0, 1);
  expect_skipped(&t, OPI_SKIP_NOT_FINITE);
  OPI_ASSERT(opi_weights_loss_scale(t.weights, 0) == 65536.0);
  t.lost[0] = false;
  for (uint32_t step = 1; step <= 16; ++step) {
    tw_step(&t, step, (double)INFINITY);
    expect_skipped(&t, OPI_SKIP_OVERFLOW);
  }
  OPI_ASSERT(opi_weights_loss_scale(t.weights, 1) == 1.0);
  tw_step(&t, 17, (double)INFINITY);
  expect_skipped(&t, OPI_SKIP_NOT_FINITE);
  tw_end(&t);
}

static void test_both_versions_outlive_a_step_that_is_not_finite(void) {
  for (uint32_t hold = 0; hold < 2; ++hold) {
    tw_place_set t;
    double w[TW_SLOTS][16], before[TW_SLOTS][16];
    tw_setup(&t, 2, 1);
    t.optimizer.momentum = 0;
    t.options.n_versions = 2;
    t.options.hold = hold;
    tw_open(&t);
    start_values(&t, before);
    memcpy(w, before, sizeof w);
    tw_step(&t, 0, 1);
    for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) {
      for (uint32_t e = 0; e < tw_elems(slot); ++e)
        w[slot][e] -= 0.5 * (double)tw_sum(&t, slot, e, 0);
    }
    tw_step(&t, 1, (double)NAN);
    expect_skipped(&t, OPI_SKIP_NOT_FINITE);
    expect_copies(&t, opi_weights_set_of(t.weights, 0, 0), w);
    expect_copies(&t, opi_weights_set_of(t.weights, 0, 1), hold != 0 ? before : w);
    tw_step(&t, 2, 1);
    expect_skipped(&t, hold != 0 ? OPI_SKIP_HELD : OPI_SKIP_NONE);
    if (hold != 0) {
      opi_weights_clock clock;
      expect_copies(&t, opi_weights_set_of(t.weights, 0, 0), w);
      expect_copies(&t, opi_weights_set_of(t.weights, 0, 1), before);
      opi_weights_get_clock(t.weights, &clock);
      opi_weights_set_clock(t.weights, &clock);
      tw_step(&t, 3, 1);
      expect_skipped(&t, OPI_SKIP_NONE);
    }
    tw_end(&t);
  }
}

static void test_state_by_name(void) {
  tw_place_set t;
  opipe_error err = OPIPE_ERROR_INIT;
  float found[16], want[16];
  tw_setup(&t, 2, 2);
  t.options.keep_gradients = 1;
  tw_open(&t);
  tw_step(&t, 0, 1);
  OPI_ASSERT_OK(opi_weights_get(t.weights, "tied", OPI_TENSOR_GRADIENT, 0, found, 48, &err), &err);
  for (uint32_t e = 0; e < 12; ++e)
    OPI_ASSERT(found[e] == tw_sum(&t, TW_TIED, e, 0));
  OPI_ASSERT_OK(opi_weights_get(t.weights, "tied", OPI_TENSOR_FIRST, 0, want, 48, &err), &err);
  OPI_ASSERT(memcmp(found, want, 48) == 0); /* the first momentum is the gradient */
  for (uint32_t e = 0; e < 12; ++e)
    want[e] = (float)e;
  OPI_ASSERT_OK(opi_weights_set(t.weights, "tied", OPI_TENSOR_FIRST, 0, want, 48, &err), &err);
  OPI_ASSERT_OK(opi_weights_set(t.weights, "tied", OPI_TENSOR_MASTER, 0, want, 48, &err), &err);
  for (uint32_t state = OPI_TENSOR_FIRST; state <= OPI_TENSOR_MASTER; ++state) {
    if (state == OPI_TENSOR_SECOND)
      continue;
    OPI_ASSERT_OK(opi_weights_get(t.weights, "tied", state, 0, found, 48, &err), &err);
    OPI_ASSERT(memcmp(found, want, 48) == 0);
  }
  OPI_ASSERT_OK(opi_weights_get(t.weights, "tied", OPI_TENSOR_GRADIENT, 0, found, 48, &err), &err);
  OPI_ASSERT(found[0] == tw_sum(&t, TW_TIED, 0, 0)); /* unpacking gave it back */
  double w[TW_SLOTS][16];
  for (uint32_t slot = 0; slot < TW_SLOTS; ++slot) {
    for (uint32_t e = 0; e < tw_elems(slot); ++e) {
      w[slot][e] = slot == TW_TIED ? (double)e
                   : slot == TW_FROZEN
                       ? (double)t.values[slot][e]
                       : (double)t.values[slot][e] - 0.5 * (double)tw_sum(&t, slot, e, 0);
    }
  }
  expect_copies(&t, 0, w);
  OPI_ASSERT_ERROR(opi_weights_get(t.weights, "tied", OPI_TENSOR_SECOND, 0, found, 48, &err),
                   OPIPE_E_NOTFOUND, &err, "1 moments");
  OPI_ASSERT_ERROR(opi_weights_get(t.weights, "tied", OPI_TENSOR_WEIGHT, 0, found, 44, &err),
                   OPIPE_E_INVALID, &err, "has 48 bytes, the buffer 44");
  OPI_ASSERT_ERROR(opi_weights_get(t.weights, "tide", OPI_TENSOR_WEIGHT, 0, found, 48, &err),
                   OPIPE_E_NOTFOUND, &err, "'tide'");
  OPI_ASSERT_ERROR(opi_weights_get(t.weights, "frozen", OPI_TENSOR_FIRST, 0, found, 8, &err),
                   OPIPE_E_NOTFOUND, &err, "not trained");
  OPI_ASSERT_ERROR(opi_weights_get(t.weights, "a", OPI_TENSOR_WEIGHT, 1, found, 60, &err),
                   OPIPE_E_INVALID, &err, "version 1, there are 1");
  tw_step(&t, 1, 1); /* kept gradients are cleared first */
  OPI_ASSERT_OK(opi_weights_get(t.weights, "b", OPI_TENSOR_GRADIENT, 0, found, 28, &err), &err);
  for (uint32_t e = 0; e < 7; ++e)
    OPI_ASSERT(found[e] == tw_sum(&t, TW_B, e, 1));
  tw_end(&t);
}

static void test_bytes_are_as_predicted(void) {
  static const uint32_t kinds[] = {OPIPE_OPTIMIZER_SGD, OPIPE_OPTIMIZER_ADAM};
  for (uint32_t k = 0; k < 2; ++k) {
    tw_place_set t;
    tw_setup(&t, 2, 2);
    t.options.n_versions = k + 1;
    t.optimizer.kind = kinds[k];
    t.optimizer.momentum = 0;
    tw_open(&t);
    for (uint32_t r = 0; r < TW_RANKS; ++r) {
      opi_weight_bytes b;
      opipe_device_usage usage = {.struct_size =
                                      (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
      opi_weights_bytes(t.weights, r, &b);
      (void)opipe_meter_read(&t.devices[r].meter, &usage, NULL);
      OPI_ASSERT_INT(b.params + b.versions + b.gradients + b.optimizer,
                     usage.live_bytes[OPIPE_BUFFER_PARAMS]);
      OPI_ASSERT_INT(b.versions, k == 0 ? 0 : (int64_t)b.params);
    }
    tw_end(&t);
  }
}

static void test_budget_and_refusals(void) {
  tw_place_set t;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_budget *budget = NULL;
  tw_setup(&t, 2, 1);
  OPI_ASSERT_OK_FATAL(opi_budget_create(&t.memory.allocator, &budget, &err), &err);
  OPI_ASSERT_OK(opi_budget_cap(budget, "toy", 0, 900, &err), &err);
  t.options.budget = budget;
  OPI_ASSERT_ERROR(opi_weights_open(&t.options, &t.weights, &err), OPIPE_E_LIMIT, &err,
                   "rank 1: weights and optimizer state");
  t.options.budget = NULL;
  t.optimizer.beta1 = 1.5;
  OPI_ASSERT_ERROR(opi_weights_open(&t.options, &t.weights, &err), OPIPE_E_INVALID, &err,
                   "beta1 is 1.5, it must be from 0 to below 1");
  t.optimizer.beta1 = 1;
  OPI_ASSERT_ERROR(opi_weights_open(&t.options, &t.weights, &err), OPIPE_E_INVALID, &err,
                   "beta1 is 1, it must be from 0 to below 1");
  opi_budget_free(budget);
  t.weights = NULL;
  tw_end(&t);
}

/* Weights, and moments in dense form, after STEPS of AdamW. */
typedef struct outcome {
  float weights[TW_SLOTS][16], first[TW_SLOTS][16], second[TW_SLOTS][16];
  uint64_t optimizer_bytes;
} outcome;

static void run_shared(uint32_t shard, double clip, uint32_t versions, outcome *out) {
  tw_place_set t;
  opipe_error err = OPIPE_ERROR_INIT;
  tw_setup(&t, 2, 2);
  memset(out, 0, sizeof *out);
  t.optimizer = (opi_optimizer){.kind = OPIPE_OPTIMIZER_ADAMW,
                                .lr = 0.1,
                                .beta1 = 0.9,
                                .beta2 = 0.99,
                                .epsilon = 1e-3,
                                .decay = 0.5,
                                .clip_norm = clip,
                                .shard = shard};
  t.options.n_versions = versions;
  t.programs[1].keys[1] = TW_DENSE; /* a tie in one layout */
  tw_open(&t);
  for (uint32_t step = 0; step < STEPS; ++step) {
    tw_step(&t, step, 1);
    for (uint32_t i = 0; i < 4; ++i) { /* the parts of others are cleared, too */
      const opipe_params *g = opi_weights_gradients(t.weights, i);
      for (uint32_t k = 0; k < t.instances[i].n_params; ++k) {
        const uint32_t slot = t.instances[i].params[k];
        for (uint32_t e = 0; slot != TW_FROZEN && e < tw_elems(slot); ++e)
          OPI_ASSERT(tw_copy_of(g, slot, TW_DENSE)[e] == 0);
      }
    }
  }
  for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) {
    const uint64_t n = tw_elems(slot) * sizeof(float);
    OPI_ASSERT_OK(opi_weights_get(t.weights, tw_names[slot], OPI_TENSOR_MASTER, 0,
                                  out->weights[slot], n, &err),
                  &err);
    OPI_ASSERT_OK(
        opi_weights_get(t.weights, tw_names[slot], OPI_TENSOR_FIRST, 0, out->first[slot], n, &err),
        &err);
    OPI_ASSERT_OK(opi_weights_get(t.weights, tw_names[slot], OPI_TENSOR_SECOND, 0,
                                  out->second[slot], n, &err),
                  &err);
  }
  for (uint32_t r = 0; r < TW_RANKS; ++r) {
    opi_weight_bytes b;
    opipe_device_usage usage = {.struct_size = (uint32_t)OPIPE_END(opipe_device_usage, peak_bytes)};
    opi_weights_bytes(t.weights, r, &b);
    (void)opipe_meter_read(&t.devices[r].meter, &usage, NULL);
    OPI_ASSERT_INT(b.params + b.versions + b.gradients + b.optimizer,
                   usage.live_bytes[OPIPE_BUFFER_PARAMS]);
    out->optimizer_bytes += b.optimizer;
  }
  for (uint32_t slot = 0; slot < TW_FROZEN; ++slot) { /* setting is getting the other way round */
    float back[16];
    const uint64_t n = tw_elems(slot) * sizeof(float);
    OPI_ASSERT_OK(
        opi_weights_set(t.weights, tw_names[slot], OPI_TENSOR_FIRST, 0, out->second[slot], n, &err),
        &err);
    OPI_ASSERT_OK(opi_weights_get(t.weights, tw_names[slot], OPI_TENSOR_FIRST, 0, back, n, &err),
                  &err);
    OPI_ASSERT(memcmp(back, out->second[slot], n) == 0);
  }
  tw_end(&t);
}

static void test_shared_out_state_has_the_bits_of_whole_state(void) {
  for (uint32_t versions = 1; versions <= 2; ++versions) {
    for (uint32_t clip = 0; clip < 2; ++clip) {
      outcome whole, shared;
      run_shared(0, clip * 0.75, versions, &whole);
      run_shared(1, clip * 0.75, versions, &shared);
      OPI_ASSERT(shared.optimizer_bytes < whole.optimizer_bytes);
      OPI_ASSERT(memcmp(whole.weights, shared.weights, sizeof whole.weights) == 0);
      OPI_ASSERT(memcmp(whole.first, shared.first, sizeof whole.first) == 0);
      OPI_ASSERT(memcmp(whole.second, shared.second, sizeof whole.second) == 0);
    }
  }
}

static void test_a_transport_without_collectives_is_refused_by_name(void) {
  static const opipe_transport old = {.struct_size = (uint32_t)OPIPE_END(opipe_transport, notify)};
  tw_place_set t;
  opipe_error err = OPIPE_ERROR_INIT;
  tw_setup(&t, 2, 2);
  t.optimizer.shard = 1;
  t.options.transport = (opi_transport_ref){.table = &old, .id = "old"};
  OPI_ASSERT_ERROR(opi_weights_open(&t.options, &t.weights, &err), OPIPE_E_UNSUPPORTED, &err,
                   "transport 'old' has no collectives");
  t.weights = NULL;
  tw_end(&t);
}

static opipe_status open_once(opi_test_memory *memory, void *arg) {
  tw_place_set *t = arg;
  opi_weights *w = NULL;
  t->options.allocator = &memory->allocator;
  const opipe_status status = opi_weights_open(&t->options, &w, NULL);
  opi_weights_close(w);
  return status;
}

static void test_every_allocation_may_fail(void) {
  tw_place_set t;
  tw_setup(&t, 2, 2);
  for (uint64_t at = 1;; ++at) {
    opi_test_memory memory;
    opi_test_memory_init(&memory);
    memory.fail_at = at;
    const opipe_status status = open_once(&memory, &t);
    const bool failed = memory.n_failed != 0;
    OPI_ASSERT(opi_test_memory_end(&memory));
    OPI_ASSERT_INT(status, failed ? OPIPE_E_NOMEM : OPIPE_OK);
    if (!failed)
      break;
  }
  t.weights = NULL;
  tw_end(&t);
}

OPI_TEST_MAIN("weights", OPI_TEST(test_sums_are_in_order_and_alike),
              OPI_TEST(test_clipping_uses_the_norm_of_all),
              OPI_TEST(test_backends_take_many_parameters_at_once),
              OPI_TEST(test_adamw_with_schedule_and_excluded_decay),
              OPI_TEST(test_two_versions_take_turns), OPI_TEST(test_an_overflow_skips_the_step),
              OPI_TEST(test_a_step_that_is_not_finite_changes_nothing),
              OPI_TEST(test_loss_scaling_has_its_own_skips),
              OPI_TEST(test_both_versions_outlive_a_step_that_is_not_finite),
              OPI_TEST(test_shared_out_state_has_the_bits_of_whole_state),
              OPI_TEST(test_a_transport_without_collectives_is_refused_by_name),
              OPI_TEST(test_state_by_name), OPI_TEST(test_bytes_are_as_predicted),
              OPI_TEST(test_budget_and_refusals), OPI_TEST(test_every_allocation_may_fail))
