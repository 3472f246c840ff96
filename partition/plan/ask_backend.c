/* SPDX-License-Identifier: Apache-2.0 */
/* Checked answers of backends about devices and programs. These numbers become sizes, offsets and
 * indices, so each is checked here; messages name the plugin and the number.
 */
#include "partition/plan/plan.h"

enum { LAYOUTS_MOST = 64 }; /* per parameter of a program */

opipe_status opi_device_ask(const opi_backend_ref *backend, uint32_t index,
                            opipe_device_info *out_info, opipe_error *err) {
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, uuid)};
  OPI_TRY(OPI_ASK("backend", backend, device_query, err, backend->self, index, &info));
  OPI_TRY(opi_device_check(&info, backend->id, index, err));
  *out_info = info;
  return OPIPE_OK;
}

opipe_status opi_program_ask(const opi_backend_ref *backend, const opipe_program *program,
                             opipe_program_info *out_info, opipe_error *err) {
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, n_rounded)};
  OPI_TRY(OPI_ASK("backend", backend, program_info, err, program, &info));
  OPI_TRY(opi_program_check(&info, backend->id, err));
  *out_info = info;
  return OPIPE_OK;
}

static opipe_status ask(const opi_backend_ref *backend, const opipe_program *program,
                        bool gradients, opipe_param_layout *list, uint32_t *io_count,
                        opipe_error *err) {
  return gradients ? OPI_ASK("backend", backend, program_gradients, err, program, list, io_count)
                   : OPI_ASK("backend", backend, program_params, err, program, list, io_count);
}

opipe_status opi_layouts_ask(const opi_backend_ref *backend, const opipe_program *program,
                             uint32_t n_params, bool gradients, opi_arena *arena,
                             opipe_param_layout **out_list, uint32_t *out_count, opipe_error *err) {
  const char *what = gradients ? "accumulators" : "parameter layouts";
  uint32_t count = 0;
  const opipe_status asked = ask(backend, program, gradients, NULL, &count, err);
  if (asked < 0 && asked != OPIPE_E_LIMIT)
    return asked;
  if (count / LAYOUTS_MOST > n_params) {
    return opi_fail(err, OPIPE_E_INVALID, "backend '%s': a program with %u %s of %u parameters",
                    backend->id, count, what, n_params);
  }
  const uint32_t room = count;
  opipe_param_layout *list = OPI_ARENA_ARRAY(arena, opipe_param_layout, room);
  if (list == NULL)
    return opi_fail_nomem(err, room * sizeof(*list), what);
  for (uint32_t i = 0; i < room; ++i)
    list[i].struct_size = (uint32_t)OPIPE_END(opipe_param_layout, mapped_bytes);
  if (room != 0)
    OPI_TRY(ask(backend, program, gradients, list, &count, err));
  if (count > room) {
    return opi_fail(err, OPIPE_E_INVALID, "backend '%s': a program with %u %s, then with %u",
                    backend->id, room, what, count);
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (list[i].slot < n_params && list[i].n_bytes <= OPI_PLUGIN_BYTES_MOST &&
        list[i].mapped_bytes <= OPI_PLUGIN_BYTES_MOST)
      continue;
    return opi_fail(
        err, OPIPE_E_INVALID,
        "backend '%s': %s of a program: parameter %u of %u, %llu bytes, %llu in place (at "
        "most 2^48)",
        backend->id, what, list[i].slot, n_params, (unsigned long long)list[i].n_bytes,
        (unsigned long long)list[i].mapped_bytes);
  }
  *out_list = list;
  *out_count = count;
  return OPIPE_OK;
}
