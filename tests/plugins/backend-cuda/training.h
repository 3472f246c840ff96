/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix of training on the doubles: all ranks on one GPU, the device's work done late and in
 * orders that a seed draws. */
#ifndef TESTS_PLUGINS_BACKEND_CUDA_TRAINING_H_
#define TESTS_PLUGINS_BACKEND_CUDA_TRAINING_H_

#include "tests/plugins/backend-cuda/cuda_test.h"
#include "tests/runtime/train/cases.h"

enum { CT_TRAIN_ROWS = 4 };
static const kit_subject ct_subjects[] = {
    {"gpt_raw", "tests/data/gpt_raw/model.onnx", false, NULL},
    {"llama_attention", "tests/data/llama_attention/model.onnx", false, NULL}};
static const kit_place ct_places[] = {{.device = "cuda"},
                                      {.device = "cuda", .device_options = "graphs=1"}};

/* False, after a skip: this build has no doubles. */
static inline bool ct_has_doubles(void) {
  void *driver = dlopen(opi_test_build("tests/cuda/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
  return driver != NULL;
}

/* Schedule `s` with SGD or AdamW on a place of ct_places: bits of the plan's reference, close to
 * the uncut model (on the CPU). */
static inline void ct_schedule(kit_bench *b, size_t s, uint32_t m, uint32_t optimizer, size_t place,
                               kit_tally *tally) {
  const uint32_t n_ranks = (kit_schedules[s].traits & KIT_FOUR) != 0 ? 4 : 2;
  b->place = ct_places[place];
  kit_case_run(b, &kit_schedules[s], n_ranks, m, optimizer, tally);
}

#endif /* TESTS_PLUGINS_BACKEND_CUDA_TRAINING_H_ */
