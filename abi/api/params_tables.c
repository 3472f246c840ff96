/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of every struct that hosts fill in, in the order of its fields. A new field of a struct
 * is a row here. */
#include "abi/api/params.h"

#define FIELD(type, field, kind_, ...)                                                   \
  {                                                                                      \
    .name = #field, .offset = offsetof(type, field), .size = sizeof(((type *)0)->field), \
    .kind = OPI_CHECK_##kind_, __VA_ARGS__                                               \
  }
#define COUNT(type, field) .count = offsetof(type, field), .n_count = sizeof(((type *)0)->field)
#define SIZE(type) FIELD(type, struct_size, SIZE, .inner = NULL)
#define ANY(type, field) FIELD(type, field, ANY, .inner = NULL)
#define NEEDED(type, field) FIELD(type, field, NEEDED, .inner = NULL)
#define ZERO(type, field) FIELD(type, field, ZERO, .inner = NULL)
#define FLAGS(type, field, bits) FIELD(type, field, FLAGS, .known = (bits))
#define CHOICE(type, field, most) FIELD(type, field, CHOICE, .known = (most))
#define ONE_OF(type, field, bits) FIELD(type, field, ONE_OF, .known = (bits))
#define PART(type, field, of) FIELD(type, field, PART, .inner = &(of))
#define OTHER(type, field, of) FIELD(type, field, OTHER, .inner = &(of))
#define NUMBERS(type, field, n) FIELD(type, field, NUMBERS, COUNT(type, n))
#define NAMES(type, field, n) FIELD(type, field, NAMES, COUNT(type, n))
#define LIST(type, field, n, step, of) \
  FIELD(type, field, LIST, COUNT(type, n), .stride = offsetof(type, step), .inner = &(of))
#define TEXT_(text) #text
#define TEXT(text) TEXT_(text)
#define STRUCT(type, rows, least_) STRUCT_(type, TEXT(type), rows, least_)
#define STRUCT_(type, name_, rows, least_)                                              \
  {                                                                                     \
    .name = name_, .fields = (rows), .n_fields = OPI_COUNT(rows), .size = sizeof(type), \
    .least = (least_)                                                                   \
  }

/* ---- inside other structs: the size is frozen, or given by the stride ---- */

#define T opipe_tensor
static const opi_field tensor[] = {
    ANY(T, data),    ANY(T, device_type), ANY(T, device_id),
    ANY(T, rank),    ANY(T, dtype),       FIELD(T, shape, NUMBERS, COUNT(T, rank), .is_signed = 1),
    ANY(T, strides), ANY(T, byte_offset)};
static const opi_struct struct_tensor = STRUCT(T, tensor, sizeof(T));
#undef T
#define T opipe_fence
static const opi_field fence[] = {CHOICE(T, kind, OPIPE_FENCE_NATIVE_EVENT), ZERO(T, reserved),
                                  ANY(T, handle)};
static const opi_struct struct_fence = STRUCT(T, fence, sizeof(T));
#undef T
#define T opipe_allocator
static const opi_field allocator[] = {ANY(T, ctx), NEEDED(T, realloc)};
static const opi_struct struct_allocator = STRUCT(T, allocator, sizeof(T));
#undef T
#define T opipe_device_budget
static const opi_field device_budget[] = {NEEDED(T, kind), ANY(T, index), ZERO(T, reserved),
                                          ANY(T, memory_bytes)};
static const opi_struct struct_device_budget = STRUCT(T, device_budget, OPIPE_END(T, memory_bytes));
#undef T
#define T opipe_pin
static const opi_field pin[] = {NEEDED(T, input), PART(T, value, struct_tensor)};
static const opi_struct struct_pin = STRUCT(T, pin, OPIPE_END(T, value));
#undef T
#define T opipe_dim
static const opi_field dim[] = {NEEDED(T, name), ANY(T, value)};
static const opi_struct struct_dim = STRUCT(T, dim, OPIPE_END(T, value));
#undef T
#define T opipe_train_glob
static const opi_field train_glob[] = {NEEDED(T, pattern), CHOICE(T, trainable, 1),
                                       ZERO(T, reserved)};
static const opi_struct struct_train_glob = STRUCT(T, train_glob, OPIPE_END(T, reserved));
#undef T
#define T opipe_device_choice
static const opi_field device_choice[] = {NEEDED(T, kind), ANY(T, options), ANY(T, memory_bytes),
                                          ANY(T, index), ANY(T, threads)};
static const opi_struct struct_device_choice = STRUCT(T, device_choice, OPIPE_END(T, threads));
#undef T
#define T opipe_device_description
static const opi_field device_description[] = {
    ANY(T, flops),       ANY(T, bandwidth), ANY(T, launch_ns), ANY(T, memory_bytes),
    ANY(T, max_threads), ANY(T, alignment), ANY(T, flags),     ANY(T, domain)};
static const opi_struct struct_device_description =
    STRUCT(T, device_description, OPIPE_END(T, domain));
#undef T
#define T opipe_binding_io
static const opi_field binding_io[] = {NEEDED(T, name), PART(T, tensor, struct_tensor),
                                       PART(T, ready, struct_fence), PART(T, done, struct_fence)};
static const opi_struct struct_binding_io = STRUCT(T, binding_io, OPIPE_END(T, done));
#undef T

/* ---- with struct_size ---- */

#define T opipe_context_params
static const opi_field context_params[] = {
    SIZE(T),
    CHOICE(T, log_level, OPIPE_LOG_DEBUG),
    OTHER(T, allocator, struct_allocator),
    ANY(T, log_ctx),
    ANY(T, log),
    NAMES(T, plugin_paths, n_plugin_paths),
    LIST(T, budgets, n_budgets, budgets_stride, struct_device_budget),
    ANY(T, n_plugin_paths),
    ANY(T, n_budgets),
    ANY(T, budgets_stride),
    ANY(T, cores),
    FLAGS(T, flags, OPIPE_CONTEXT_ONLY_STATIC),
    ZERO(T, reserved)};
const opi_struct opi_struct_context_params = STRUCT(T, context_params, OPIPE_END(T, log_level));
#undef T

#define T opipe_load_params
static const opi_field load_params[] = {
    SIZE(T),
    FLAGS(T, flags,
          OPIPE_LOAD_GRAPH_ONLY | OPIPE_LOAD_ALLOW_SYMLINKS | OPIPE_LOAD_ALLOW_HARDLINKS |
              OPIPE_LOAD_BORROW),
    ANY(T, path),
    NUMBERS(T, data, n_bytes),
    ANY(T, n_bytes),
    ANY(T, base_dir),
    ANY(T, memory_budget_bytes),
    LIST(T, parameters, n_parameters, parameters_stride, struct_pin),
    ANY(T, n_parameters),
    ANY(T, parameters_stride),
    ANY(T, on_release),
    ANY(T, release_ctx)};
const opi_struct opi_struct_load_params = STRUCT(T, load_params, OPIPE_END(T, base_dir));
#undef T

#define T opipe_bind_options
static const opi_field bind_options[] = {
    SIZE(T),
    FLAGS(T, flags,
          OPIPE_BIND_NO_FUSE | OPIPE_BIND_DEFAULTS | OPIPE_BIND_GRAPH_DROPOUT |
              OPIPE_BIND_DROPOUT_RATIO | OPIPE_BIND_TRAIN | OPIPE_BIND_NOISE(31, 7)),
    LIST(T, dims, n_dims, dims_stride, struct_dim),
    LIST(T, pins, n_pins, pins_stride, struct_pin),
    ANY(T, n_dims),
    ANY(T, n_pins),
    ANY(T, dims_stride),
    ANY(T, pins_stride),
    NAMES(T, keep, n_keep),
    ANY(T, n_keep),
    ANY(T, default_batch),
    ANY(T, dropout_ratio)};
const opi_struct opi_struct_bind_options = STRUCT(T, bind_options, OPIPE_END(T, pins_stride));
#undef T

#define T opipe_train_options
static const opi_field train_options[] = {
    SIZE(T),
    CHOICE(T, loss, OPIPE_LOSS_BCE),
    ANY(T, output),
    ANY(T, labels),
    ANY(T, ignore),
    ANY(T, smoothing),
    CHOICE(T, shift, 1),
    ANY(T, n_globs),
    LIST(T, globs, n_globs, globs_stride, struct_train_glob),
    ANY(T, globs_stride),
    CHOICE(T, recompute, OPIPE_RECOMPUTE_ATTENTION),
    ONE_OF(T, compute, 1u | 1u << OPIPE_FLOAT | 1u << OPIPE_FLOAT16 | 1u << OPIPE_BFLOAT16),
    CHOICE(T, optimizer, OPIPE_N_OPTIMIZERS - 1),
    ANY(T, seed),
    ANY(T, lr),
    ANY(T, momentum),
    ANY(T, beta1),
    ANY(T, beta2),
    ANY(T, epsilon),
    ANY(T, decay),
    ANY(T, clip_norm),
    FLAGS(T, flags, OPIPE_TRAIN_NESTEROV | OPIPE_TRAIN_EPS_INNER | OPIPE_TRAIN_SHARD_OPTIMIZER),
    CHOICE(T, lr_schedule, OPIPE_LR_COSINE),
    ANY(T, warmup_steps),
    ANY(T, total_steps),
    NAMES(T, no_decay, n_no_decay),
    ANY(T, n_no_decay),
    CHOICE(T, loss_scaling, 1)};
const opi_struct opi_struct_train_options = STRUCT(T, train_options, OPIPE_END(T, labels));
#undef T

#define T opipe_train_clock
static const opi_field train_clock[] = {SIZE(T),         ZERO(T, reserved),  ANY(T, steps),
                                        ANY(T, updates), ANY(T, good_steps), ANY(T, loss_scale)};
const opi_struct opi_struct_train_clock = STRUCT(T, train_clock, OPIPE_END(T, loss_scale));
#undef T

#define T opipe_order_costs
static const opi_field order_costs[] = {
    SIZE(T),      ANY(T, n_stages),      ANY(T, forward),     ANY(T, input),       ANY(T, weight),
    ANY(T, comm), ANY(T, stage_forward), ANY(T, stage_input), ANY(T, stage_weight)};
const opi_struct opi_struct_order_costs = STRUCT(T, order_costs, OPIPE_END(T, comm));
#undef T

#define T opipe_link_description
static const opi_field link_description[] = {
    SIZE(T),           ANY(T, rule),      ANY(T, thread_rule), ANY(T, flags),
    ANY(T, max_ranks), ZERO(T, reserved), ANY(T, latency_ns),  ANY(T, bandwidth)};
static const opi_struct struct_link_description =
    STRUCT(T, link_description, OPIPE_END(T, bandwidth));
#undef T

#define T opipe_state_pair
static const opi_field state_pair[] = {NEEDED(T, output), NEEDED(T, input), ANY(T, capacity)};
static const opi_struct struct_state_pair = STRUCT(T, state_pair, OPIPE_END(T, capacity));
#undef T

#define T opipe_state_params
static const opi_field state_params[] = {SIZE(T), ANY(T, n_capacities),
                                         NUMBERS(T, capacities, n_capacities)};
const opi_struct opi_struct_state_params = STRUCT(T, state_params, OPIPE_END(T, capacities));
#undef T

#define T opipe_generation_params
static const opi_field generation_params[] = {
    SIZE(T),           ANY(T, context),    ANY(T, n_tokens), ANY(T, page),
    ANY(T, rows),      ANY(T, active),     ANY(T, groups),   ANY(T, draft),
    ZERO(T, reserved), ANY(T, gap_passes), ANY(T, gap_ms),   ANY(T, output)};
static const opi_struct struct_generation_params =
    STRUCT(T, generation_params, OPIPE_END(T, context));
#undef T

#define T opipe_plan_params
static const opi_field plan_params[] = {
    SIZE(T),
    ANY(T, n_stages),
    LIST(T, devices, n_devices, devices_stride, struct_device_choice),
    ANY(T, n_devices),
    ANY(T, devices_stride),
    ANY(T, n_microbatches),
    ANY(T, replicas),
    ANY(T, schedule),
    ANY(T, cut),
    ANY(T, batch_dim),
    ANY(T, memory_bytes),
    ANY(T, depth),
    CHOICE(T, cost, OPIPE_COST_MEASURED),
    FLAGS(T, flags,
          OPIPE_PLAN_IGNORE_ANNOTATIONS | OPIPE_PLAN_IMPROVE | OPIPE_PLAN_SEQUENCE |
              OPIPE_PLAN_SCATTERED),
    ANY(T, n_ranks),
    ANY(T, transport),
    OTHER(T, train, opi_struct_train_options),
    OTHER(T, costs, opi_struct_order_costs),
    NUMBERS(T, stage_replicas, n_stage_replicas),
    ANY(T, n_stage_replicas),
    ZERO(T, reserved),
    LIST(T, descriptions, n_descriptions, descriptions_stride, struct_device_description),
    ANY(T, n_descriptions),
    ANY(T, descriptions_stride),
    OTHER(T, link, struct_link_description),
    NUMBERS(T, cluster, cluster_bytes),
    ANY(T, cluster_bytes),
    ANY(T, cluster_name),
    LIST(T, states, n_states, states_stride, struct_state_pair),
    ANY(T, n_states),
    ANY(T, states_stride),
    ANY(T, n_streams),
    ZERO(T, reserved2),
    ANY(T, team),
    NUMBERS(T, places, n_places),
    ANY(T, n_places),
    ANY(T, tensor),
    ANY(T, offload),
    ANY(T, offload_bytes),
    OTHER(T, generation, struct_generation_params)};
const opi_struct opi_struct_plan_params = STRUCT(T, plan_params, OPIPE_END(T, devices_stride));
#undef T

#define T opipe_rank_device
static const opi_field rank_device[] = {ANY(T, rank), ANY(T, index), ANY(T, threads),
                                        ZERO(T, reserved), ANY(T, memory_bytes)};
static const opi_struct struct_rank_device = STRUCT(T, rank_device, OPIPE_END(T, memory_bytes));
#undef T

#define T opipe_session_params
static const opi_field session_params[] = {
    SIZE(T),
    CHOICE(T, threads, OPIPE_THREADS_HOST),
    FLAGS(T, flags,
          OPIPE_SESSION_CHECK_FINITE | OPIPE_SESSION_REFERENCE | OPIPE_SESSION_POISON |
              OPIPE_SESSION_NO_BACKEND_FUSE | OPIPE_SESSION_KEEP_GRADIENTS | OPIPE_SESSION_HOLD |
              OPIPE_SESSION_TUNED | OPIPE_SESSION_TRACE | OPIPE_SESSION_INPUTS_OF_0 |
              OPIPE_SESSION_OUTPUTS_TO_0 | OPIPE_SESSION_FOLLOWED),
    ANY(T, max_in_flight),
    ANY(T, watchdog_ns),
    ANY(T, spin_us),
    ANY(T, max_shapes),
    NUMBERS(T, local_ranks, n_local_ranks),
    ANY(T, n_local_ranks),
    ZERO(T, reserved),
    ANY(T, team),
    ANY(T, name),
    ANY(T, transport_options),
    LIST(T, devices, n_devices, devices_stride, struct_rank_device),
    ANY(T, n_devices),
    ANY(T, devices_stride)};
const opi_struct opi_struct_session_params = STRUCT(T, session_params, OPIPE_END(T, flags));
#undef T

#define T opipe_submit_params
static const opi_field submit_params[] = {
    SIZE(T),
    ANY(T, n_inputs),
    ANY(T, n_outputs),
    ANY(T, io_stride),
    LIST(T, inputs, n_inputs, io_stride, struct_binding_io),
    LIST(T, outputs, n_outputs, io_stride, struct_binding_io),
    ANY(T, stream),
    ANY(T, deadline_ns),
    ANY(T, on_done),
    ANY(T, on_done_ctx),
    ANY(T, state),
    ANY(T, on_output),
    ANY(T, on_output_ctx),
    FLAGS(T, flags, OPIPE_SUBMIT_DEVICE_OUTPUTS | OPIPE_SUBMIT_LR),
    ZERO(T, reserved2),
    ANY(T, lr)};
const opi_struct opi_struct_submit_params = STRUCT(T, submit_params, OPIPE_END(T, outputs));
#undef T

#define T opipe_order_params
static const opi_field order_params[] = {
    SIZE(T),
    FLAGS(T, flags, OPIPE_ORDER_FORWARD | OPIPE_ORDER_ALIGNED | OPIPE_ORDER_IMPROVE),
    NEEDED(T, schedule),
    ANY(T, n_ranks),
    ANY(T, n_stages),
    ANY(T, n_microbatches),
    ANY(T, replicas),
    OTHER(T, costs, opi_struct_order_costs)};
const opi_struct opi_struct_order_params = STRUCT(T, order_params, OPIPE_END(T, n_microbatches));
#undef T

/* ---- graphs ---- */

#define T opipe_attr
enum { ATTR_KINDS = (2u << OPIPE_ATTR_GRAPH) - (1u << OPIPE_ATTR_INT) };
static const opi_field attr[] = {
    NEEDED(T, name), ANY(T, data), ANY(T, i), ANY(T, f), ONE_OF(T, kind, ATTR_KINDS), ANY(T, n)};
static const opi_struct struct_attr = STRUCT(T, attr, sizeof(T));
#undef T
#define T opipe_build_value
static const opi_field build_value[] = {NEEDED(T, name),
                                        FIELD(T, shape, NUMBERS, COUNT(T, rank), .is_signed = 1),
                                        ANY(T, dim_names), ANY(T, dtype), ANY(T, rank)};
static const opi_struct struct_build_value = STRUCT(T, build_value, OPIPE_END(T, rank));
#undef T
#define T opipe_build_tensor
static const opi_field build_tensor[] = {
    NEEDED(T, name),      NUMBERS(T, shape, rank), ANY(T, data),  ANY(T, file),
    ANY(T, offset_bytes), ANY(T, n_bytes),         ANY(T, dtype), ANY(T, rank)};
static const opi_struct struct_build_tensor = STRUCT(T, build_tensor, OPIPE_END(T, rank));
#undef T
#define T opipe_build_node
static const opi_field build_node[] = {
    ANY(T, name),
    NEEDED(T, op),
    ANY(T, domain),
    NAMES(T, inputs, n_inputs),
    NAMES(T, outputs, n_outputs),
    FIELD(T, attrs, LIST, COUNT(T, n_attrs), .inner = &struct_attr),
    ANY(T, n_inputs),
    ANY(T, n_outputs),
    ANY(T, n_attrs),
    ZERO(T, reserved)};
static const opi_struct struct_build_node = STRUCT(T, build_node, OPIPE_END(T, reserved));
#undef T
#define T opipe_build_opset
static const opi_field build_opset[] = {ANY(T, domain), ANY(T, version)};
static const opi_struct struct_build_opset = STRUCT(T, build_opset, OPIPE_END(T, version));
#undef T

#define T opipe_build_graph
static const opi_field build_graph[] = {
    SIZE(T),
    ANY(T, n_inputs),
    ANY(T, name),
    LIST(T, inputs, n_inputs, values_stride, struct_build_value),
    LIST(T, outputs, n_outputs, values_stride, struct_build_value),
    LIST(T, tensors, n_tensors, tensors_stride, struct_build_tensor),
    LIST(T, nodes, n_nodes, nodes_stride, struct_build_node),
    ANY(T, n_outputs),
    ANY(T, n_tensors),
    ANY(T, n_nodes),
    ANY(T, values_stride),
    ANY(T, tensors_stride),
    ANY(T, nodes_stride)};
const opi_struct opi_struct_build_graph = STRUCT(T, build_graph, OPIPE_END(T, nodes_stride));
#undef T

#define T opipe_build_params
static const opi_field build_params[] = {
    SIZE(T),
    FLAGS(T, flags, OPIPE_LOAD_ALLOW_SYMLINKS | OPIPE_LOAD_ALLOW_HARDLINKS),
    OTHER(T, graph, opi_struct_build_graph),
    LIST(T, opsets, n_opsets, opsets_stride, struct_build_opset),
    ANY(T, base_dir),
    ANY(T, memory_budget_bytes),
    ANY(T, n_opsets),
    ANY(T, opsets_stride),
    ANY(T, ir_version),
    ZERO(T, reserved),
    ANY(T, on_release),
    ANY(T, release_ctx)};
const opi_struct opi_struct_build_params = STRUCT(T, build_params, OPIPE_END(T, release_ctx));
#undef T

#define T opipe_stage_load
static const opi_field stage_load[] = {
    ANY(T, recompute_ms), ANY(T, step_ms),     ANY(T, flops),       ANY(T, send_bytes),
    ANY(T, stash_bytes),  ANY(T, input_bytes), ANY(T, fixed_bytes), ANY(T, gradient_bytes),
    ANY(T, tensor_bytes), ANY(T, tensor_sums), ZERO(T, reserved)};
static const opi_struct struct_stage_load = STRUCT(T, stage_load, OPIPE_END(T, reserved));
#undef T

#define T opipe_play_params
static const opi_field play_params[] = {
    SIZE(T),
    FLAGS(T, flags,
          OPIPE_PLAY_SHARDED | OPIPE_PLAY_SCATTERED | OPIPE_PLAY_WAITS | OPIPE_PLAY_PIPELINE_FIRST),
    NUMBERS(T, cluster, cluster_bytes),
    ANY(T, cluster_bytes),
    ANY(T, cluster_name),
    LIST(T, stages, n_stages, stages_stride, struct_stage_load),
    ANY(T, n_stages),
    ANY(T, stages_stride),
    ANY(T, tensor),
    ANY(T, copies),
    CHOICE(T, collective, OPIPE_COLLECTIVE_HIERARCHICAL),
    ANY(T, dtype),
    ANY(T, title),
    NUMBERS(T, answer, answer_bytes),
    ANY(T, answer_bytes)};
const opi_struct opi_struct_play_params = STRUCT(T, play_params, OPIPE_END(T, answer_bytes));
#undef T

#define T opipe_profile_params
static const opi_field profile_params[] = {
    SIZE(T),
    FLAGS(T, flags, OPIPE_PROFILE_NODES | OPIPE_PROFILE_WHOLE),
    NUMBERS(T, samples, n_samples),
    ANY(T, n_samples),
    CHOICE(T, cost, OPIPE_COST_MEASURED),
    ANY(T, batch_dim),
    OTHER(T, train, opi_struct_train_options),
    NUMBERS(T, cluster, cluster_bytes),
    ANY(T, cluster_bytes),
    ANY(T, cluster_name),
    ANY(T, device),
    ANY(T, device_options),
    ANY(T, device_index),
    ANY(T, threads)};
const opi_struct opi_struct_profile_params = STRUCT(T, profile_params, OPIPE_END(T, threads));
#undef T

#define T opipe_strategy_params
static const opi_field strategy_params[] = {
    SIZE(T),
    FLAGS(T, flags,
          OPIPE_STRATEGY_HYPOTHETICAL | OPIPE_STRATEGY_ALLOW_STALE | OPIPE_STRATEGY_FORWARD |
              OPIPE_STRATEGY_CAUSAL),
    ANY(T, planner),
    NUMBERS(T, cluster, cluster_bytes),
    ANY(T, cluster_bytes),
    ANY(T, cluster_name),
    ANY(T, batch),
    ANY(T, memory_bytes),
    ANY(T, state_bytes),
    ANY(T, limit_ms),
    ANY(T, budget_s),
    ANY(T, n_devices),
    ANY(T, samples),
    CHOICE(T, objective, OPIPE_OBJECTIVE_LATENCY),
    ANY(T, n_threads),
    ANY(T, schedule),
    ANY(T, n_stages),
    ANY(T, n_microbatches),
    ANY(T, progress),
    ANY(T, progress_ctx),
    ANY(T, n_ranks),
    ANY(T, replicas),
    ANY(T, width),
    CHOICE(T, recompute, OPIPE_STRATEGY_RECOMPUTES_ALWAYS),
    ANY(T, spare_bytes),
    ANY(T, slice_ns)};
const opi_struct opi_struct_strategy_params =
    STRUCT(T, strategy_params, OPIPE_END(T, progress_ctx));
#undef T

#define T opipe_machine_params
static const opi_field machine_params[] = {
    SIZE(T),           FLAGS(T, flags, OPIPE_MACHINE_LINKS | OPIPE_MACHINE_RATES),
    ANY(T, transport), LIST(T, devices, n_devices, devices_stride, struct_device_choice),
    ANY(T, n_devices), ANY(T, devices_stride),
    ANY(T, team)};
const opi_struct opi_struct_machine_params =
    STRUCT(T, machine_params, OPIPE_END(T, devices_stride));
#undef T

#define T opipe_tuning_params
static const opi_field tuning_params[] = {
    SIZE(T),        ANY(T, index),    NEEDED(T, kind),     ANY(T, n_candidates),
    ANY(T, n_runs), ANY(T, measured), ANY(T, measured_ctx)};
const opi_struct opi_struct_tuning_params = STRUCT(T, tuning_params, OPIPE_END(T, measured_ctx));
#undef T

#define T opipe_tensor_read
static const opi_field tensor_read[] = {NEEDED(T, name), ANY(T, data), ANY(T, n_bytes),
                                        CHOICE(T, state, OPIPE_STATE_MASTER), ANY(T, version)};
static const opi_struct struct_tensor_read = STRUCT(T, tensor_read, OPIPE_END(T, version));
#undef T
#define T opipe_read_params
static const opi_field read_params[] = {
    SIZE(T), ANY(T, n_tensors), LIST(T, tensors, n_tensors, tensors_stride, struct_tensor_read),
    ANY(T, tensors_stride), ZERO(T, reserved)};
const opi_struct opi_struct_read_params = STRUCT(T, read_params, OPIPE_END(T, reserved));
#undef T

#define T opipe_team_params
static const opi_field team_params[] = {SIZE(T),
                                        ANY(T, rank),
                                        ANY(T, size),
                                        ZERO(T, reserved),
                                        ANY(T, job),
                                        ANY(T, launcher),
                                        ANY(T, timeout_ns),
                                        ANY(T, silence_ns),
                                        ANY(T, all_gather),
                                        ANY(T, all_gather_ctx),
                                        ANY(T, address),
                                        ANY(T, token)};
const opi_struct opi_struct_team_params = STRUCT(T, team_params, OPIPE_END(T, token));
#undef T
#define T opipe_gather_params
static const opi_field gather_params[] = {SIZE(T),           FLAGS(T, flags, OPIPE_GATHER_ROOT),
                                          NEEDED(T, name),   ANY(T, data),
                                          ANY(T, n_bytes),   ANY(T, timeout_ns),
                                          ANY(T, reason),    ANY(T, refused),
                                          ZERO(T, reserved), ANY(T, part),
                                          ANY(T, part_ctx)};
const opi_struct opi_struct_gather_params = STRUCT(T, gather_params, OPIPE_END(T, part_ctx));
#undef T
#define T opipe_share_params
static const opi_field share_params[] = {SIZE(T), ANY(T, refused), NEEDED(T, team), ANY(T, plan),
                                         ANY(T, reason)};
const opi_struct opi_struct_share_params = STRUCT(T, share_params, OPIPE_END(T, reason));
#undef T
#define T opipe_generate_params
static const opi_field generate_params[] = {
    SIZE(T),           ANY(T, n_ids),    NUMBERS(T, ids, n_ids),
    ANY(T, sampling),  ANY(T, salt),     ANY(T, deadline_ns),
    ANY(T, ctx),       ANY(T, on_token), ANY(T, on_logits),
    ANY(T, on_answer), ANY(T, on_end)};
const opi_struct opi_struct_generate_params = STRUCT(T, generate_params, OPIPE_END(T, on_end));
#undef T

const opi_struct *const opi_structs[] = {&struct_tensor,
                                         &struct_fence,
                                         &struct_allocator,
                                         &struct_device_budget,
                                         &struct_pin,
                                         &struct_dim,
                                         &struct_train_glob,
                                         &struct_device_choice,
                                         &struct_device_description,
                                         &struct_link_description,
                                         &struct_binding_io,
                                         &struct_state_pair,
                                         &opi_struct_context_params,
                                         &opi_struct_load_params,
                                         &opi_struct_bind_options,
                                         &opi_struct_train_options,
                                         &opi_struct_train_clock,
                                         &opi_struct_order_costs,
                                         &struct_generation_params,
                                         &opi_struct_plan_params,
                                         &struct_rank_device,
                                         &opi_struct_session_params,
                                         &opi_struct_submit_params,
                                         &opi_struct_order_params,
                                         &struct_stage_load,
                                         &opi_struct_play_params,
                                         &opi_struct_state_params,
                                         &struct_attr,
                                         &struct_build_value,
                                         &struct_build_tensor,
                                         &struct_build_node,
                                         &struct_build_opset,
                                         &opi_struct_build_graph,
                                         &opi_struct_build_params,
                                         &opi_struct_profile_params,
                                         &opi_struct_strategy_params,
                                         &opi_struct_machine_params,
                                         &opi_struct_tuning_params,
                                         &struct_tensor_read,
                                         &opi_struct_read_params,
                                         &opi_struct_team_params,
                                         &opi_struct_gather_params,
                                         &opi_struct_share_params,
                                         &opi_struct_generate_params,
                                         NULL};
