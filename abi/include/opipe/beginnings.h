/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values: a function for every params and info struct of host.h, of which this is a part.
 */
#ifndef OPIPE_BEGINNINGS_H
#define OPIPE_BEGINNINGS_H

#include "host.h" /* includes this header in turn */

#ifdef __cplusplus
extern "C" {
#endif

/* TYPE_init(): returns a struct with struct_size and strides as this compiler has them, defaults
 * that are not 0, and 0 everywhere else. Training options, from 1.4 on, have the usual numbers that
 * are not 0: the label that does not count, and those of Adam and AdamW. The host must choose the
 * learning rate: a session warns about steps with rate 0. */
#define OPIPE_INIT_(type, settings)         \
  static inline type type##_init(void) {    \
    type own;                               \
    memset(&own, 0, sizeof own);            \
    own.struct_size = (uint32_t)sizeof own; \
    settings return own;                    \
  }
#define OPIPE_STRIDE_(array) own.array##_stride = (uint32_t)sizeof *own.array;
OPIPE_INIT_(opipe_context_params, OPIPE_STRIDE_(budgets) own.log_level = OPIPE_LOG_WARN;)
OPIPE_INIT_(opipe_load_params, OPIPE_STRIDE_(parameters))
OPIPE_INIT_(opipe_build_params, OPIPE_STRIDE_(opsets))
OPIPE_INIT_(opipe_build_graph, OPIPE_STRIDE_(tensors) OPIPE_STRIDE_(nodes)
                                   own.values_stride = (uint32_t)sizeof *own.inputs;)
OPIPE_INIT_(opipe_bind_options, OPIPE_STRIDE_(dims) OPIPE_STRIDE_(pins))
#if OPIPE_TARGET_MINOR >= 4
OPIPE_INIT_(opipe_train_options, OPIPE_STRIDE_(globs) own.ignore = -100; own.beta1 = 0.9;
            own.beta2 = 0.999; own.epsilon = 1e-8;)
#else
OPIPE_INIT_(opipe_train_options, OPIPE_STRIDE_(globs))
#endif
OPIPE_INIT_(opipe_order_costs, )
#if OPIPE_TARGET_MINOR >= 2
OPIPE_INIT_(opipe_plan_params,
            OPIPE_STRIDE_(devices) OPIPE_STRIDE_(descriptions) OPIPE_STRIDE_(states))
#elif OPIPE_TARGET_MINOR >= 1
OPIPE_INIT_(opipe_plan_params, OPIPE_STRIDE_(devices) OPIPE_STRIDE_(descriptions))
#else
OPIPE_INIT_(opipe_plan_params, OPIPE_STRIDE_(devices))
#endif
OPIPE_INIT_(opipe_link_description, own.thread_rule = 1;)
#if OPIPE_TARGET_MINOR >= 5
OPIPE_INIT_(opipe_session_params, OPIPE_STRIDE_(devices) own.spin_us = UINT32_MAX;)
#else
OPIPE_INIT_(opipe_session_params, own.spin_us = UINT32_MAX;)
#endif
OPIPE_INIT_(opipe_submit_params, own.io_stride = (uint32_t)sizeof *own.inputs;)
OPIPE_INIT_(opipe_order_params, )
OPIPE_INIT_(opipe_play_params, OPIPE_STRIDE_(stages))
OPIPE_INIT_(opipe_profile_params, )
OPIPE_INIT_(opipe_strategy_params, )
OPIPE_INIT_(opipe_machine_params, OPIPE_STRIDE_(devices))
OPIPE_INIT_(opipe_tuning_params, )
OPIPE_INIT_(opipe_profile_info, )
OPIPE_INIT_(opipe_layer_info, )
OPIPE_INIT_(opipe_strategy_info, )
OPIPE_INIT_(opipe_strategy_stage_info, )
OPIPE_INIT_(opipe_tensor_info, )
OPIPE_INIT_(opipe_dim_info, )
OPIPE_INIT_(opipe_model_info, )
OPIPE_INIT_(opipe_plan_info, )
OPIPE_INIT_(opipe_memory_info, )
OPIPE_INIT_(opipe_session_info, )
OPIPE_INIT_(opipe_parameter_info, )
OPIPE_INIT_(opipe_train_report, )
OPIPE_INIT_(opipe_train_clock, )
OPIPE_INIT_(opipe_order_info, )
OPIPE_INIT_(opipe_state_params, )
OPIPE_INIT_(opipe_state_info, )
#if OPIPE_TARGET_MINOR >= 4
OPIPE_INIT_(opipe_read_params, OPIPE_STRIDE_(tensors))
#endif
#if OPIPE_TARGET_MINOR >= 5
OPIPE_INIT_(opipe_team_params, )
OPIPE_INIT_(opipe_team_info, )
OPIPE_INIT_(opipe_gather_params, own.timeout_ns = UINT64_MAX;)
OPIPE_INIT_(opipe_share_params, )
OPIPE_INIT_(opipe_generate_params, )
OPIPE_INIT_(opipe_generation_params, )
OPIPE_INIT_(opipe_sequence_info, )
OPIPE_INIT_(opipe_generation_info, )
#endif
#undef OPIPE_STRIDE_
#undef OPIPE_INIT_

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_BEGINNINGS_H */
