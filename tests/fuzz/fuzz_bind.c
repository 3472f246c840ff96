/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what is done with a model after it was read: dimensions solved, operators lifted, shapes
 * inferred, patterns fused. Nothing is computed. A bound graph must be consistent.
 */
#include "loader/passes/passes.h"
#include "tests/fuzz/models.h"

static void bind(const opi_model *model, uint32_t flags) {
  const opi_bind_options options = {.flags = flags | OPI_BIND_DEFAULTS,
                                    .allocator = opi_allocator_system()};
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = opi_bind(model, &options, &bound, &err);
  must(status >= 0 || err.message[0] != '\0', "a status without a message");
  must(status != OPIPE_E_INTERNAL, err.message);
  if (status < 0)
    return;
  must(opi_graph_verify(bound->graph, &err) >= 0, err.message);
  opi_bound_free(bound);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const opi_load_params params = {.data = data,
                                  .n_bytes = size,
                                  .flags = OPI_LOAD_GRAPH_ONLY,
                                  .memory_budget_bytes = UINT64_C(16) << 20};
  opi_model *model = NULL;
  if (opi_model_load(&params, &model, NULL) >= 0) {
    bind(model, 0);
    bind(model, OPI_BIND_NO_FUSE);
  }
  opi_model_free(model);
  return 0;
}
