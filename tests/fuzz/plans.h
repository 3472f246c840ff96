/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of fuzz_plan: a context with every plugin linked in, small models with plans that were
 * made for them (plan_seeds.c), a mutator that knows plans (plan_mutate.c), and checks of an
 * accepted plan (plan_run.c). One bench per process, kept until it ends.
 */
#ifndef TESTS_FUZZ_PLANS_H
#define TESTS_FUZZ_PLANS_H

#include <jansson.h>

#include "abi/api/api.h"
#include "tests/fuzz/must.h"

enum { PLAN_MODELS = 6, PLAN_SEEDS = 64 };

typedef struct plan_model {
  const char *name; /* below tests/data */
  opipe_model *file;
  char fingerprint[40]; /* as plans spell it */
} plan_model;

typedef struct plan_seed {
  uint32_t model;
  char *text; /* as plan_write gives it */
  size_t n;
  json_t *root; /* the same, parsed; not changed */
} plan_seed;

typedef struct plan_bench {
  const opipe_api *api;
  opipe_context *context;
  plan_model models[PLAN_MODELS];
  plan_seed seeds[PLAN_SEEDS];
  uint32_t n_seeds;
} plan_bench;

typedef struct plan_tally {
  uint64_t tried, refused, accepted;
  uint64_t ran, trained; /* of the accepted ones: compared with their reference */
  uint64_t not_opened;   /* of these: refused with a reason when they were to run */
  uint64_t played;       /* without their models */
} plan_tally;

/* Made at the first call. */
const plan_bench *plan_bench_get(void);
/* Text that the library hands out; the caller frees it. */
typedef struct plan_text {
  char *data;
  size_t n;
} plan_text;
opipe_status plan_take(void *ctx, const void *data, size_t n_bytes);

/* The object behind a handle that lives as long as it is used. */
static inline void *plan_object(const void *handle, uint32_t kind) {
  opi_entry in;
  opipe_error err = OPIPE_ERROR_INIT;
  must(opi_handle_enter(handle, kind, "fuzz_plan", &in, &err) == OPIPE_OK, err.message);
  opi_handle_leave(&in);
  return in.object;
}
static inline const opi_plan *plan_behind(const opipe_plan *handle) {
  const opi_plan_object *plan = plan_object(handle, OPI_HANDLE_PLAN);
  return plan->plan;
}
static inline const opi_model *file_behind(const opipe_model *handle) {
  const opi_model_object *model = plan_object(handle, OPI_HANDLE_MODEL);
  return model->file;
}

/* A refusal must say what it refuses, and in terms of the input. */
void plan_must_refuse(const char *what, opipe_status status, const opipe_error *err);
/* Runs a plan that was read, and its reference: both have the same bits, and take the memory that
 * was predicted. Leaves alone what would take long. `choice`: what else the run does. */
void plan_run(const plan_bench *bench, opipe_plan *plan, uint32_t choice, plan_tally *tally);

#endif /* TESTS_FUZZ_PLANS_H */
