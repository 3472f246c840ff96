/* SPDX-License-Identifier: Apache-2.0 */
/* States of request streams; their handles are those of the runtime's streams. */
#include "abi/api/api.h"
#include "abi/api/team/follow.h"

opipe_status opi_submit_to_state(opi_session_object *s, opipe_submit_params *params,
                                 opipe_request **out_request, opipe_error *err) {
  opi_request *request = NULL;
  opi_entry in;
  OPI_TRY(opi_handle_enter(params->state, OPI_HANDLE_STATE, "session_submit", &in, err));
  params->state = in.object;
  const opipe_status status = opi_session_submit(s->session, params, &request, out_request, err);
  opi_handle_leave(&in);
  return status;
}

opipe_status opi_api_session_state_open(opi_session_object *s, const opipe_state_params *params,
                                        opipe_state **out_state, opipe_error *err) {
  opipe_state_params own = {.struct_size = (uint32_t)sizeof own};
  if (out_state == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_state_open: out_state is NULL");
  OPI_TRY(opi_params_read(&opi_struct_state_params, "session_state_open", params, &own, err));
  return opi_follow_state_open(s, &own, out_state, err);
}

opipe_status opi_api_state_reset(opi_stream *stream, opipe_error *err) {
  return opi_follow_state(stream, NULL, err);
}

opipe_status opi_api_state_copy(opi_stream *stream, opipe_state *from, opipe_error *err) {
  opi_entry in;
  OPI_TRY(opi_handle_enter(from, OPI_HANDLE_STATE, "state_copy", &in, err));
  const opipe_status status = opi_follow_state(stream, in.object, err);
  opi_handle_leave(&in);
  return status;
}

opipe_status opi_api_state_get(opi_stream *stream, uint32_t index, opipe_state_info *io_info,
                               void *dst, uint64_t n_bytes, opipe_error *err) {
  opipe_state_info info;
  if (io_info != NULL)
    OPI_TRY(opi_info_check("state_get", io_info, OPIPE_END(opipe_state_info, flags), err));
  OPI_TRY(opi_stream_get(stream, index, &info, dst, n_bytes, err));
  if (io_info != NULL)
    opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}
