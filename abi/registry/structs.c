/* SPDX-License-Identifier: Apache-2.0 */
/* Layout fingerprints: compares the layouts of structs that cross the border, as the other side's
 * compiler made them, with ours, by name. A struct that only one side has is newer than the other
 * side and is not compared. */
#include <string.h>

#include "abi/registry/registry.h"

enum { ROWS_MOST = 4096 };

static const opipe_struct_row *find_row(const opipe_struct_row *rows, uint32_t n,
                                        const char *name) {
  for (uint32_t i = 0; i < n; ++i) {
    if (rows[i].name != NULL && strcmp(rows[i].name, name) == 0)
      return &rows[i];
  }
  return NULL;
}

static opipe_status check_row(const opi_struct_view *theirs, const opipe_struct_row *own,
                              opipe_error *err) {
  const opipe_struct_row *row = find_row(theirs->rows, theirs->n, own->name);
  if (row == NULL && own->minor <= theirs->minor) {
    return opi_fail(
        err, OPIPE_E_ABI,
        "%s does not list struct %s, which ABI 1.%u has: rebuild it with unmodified headers",
        theirs->whose, own->name, own->minor);
  }
  if (row == NULL || (row->n_bytes == own->n_bytes && row->hash == own->hash))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_ABI,
                  "%s lays struct %s out in %u bytes with fingerprint %016llx, this library in %u "
                  "bytes with %016llx: rebuild it with unmodified headers",
                  theirs->whose, own->name, row->n_bytes, (unsigned long long)row->hash,
                  own->n_bytes, (unsigned long long)own->hash);
}

opipe_status opi_struct_views_check(const opi_struct_view *theirs, const opi_struct_view *own,
                                    opipe_error *err) {
  if (theirs->row_bytes != sizeof(opipe_struct_row)) {
    return opi_fail(err, OPIPE_E_ABI,
                    "%s lays struct opipe_struct_row out in %u bytes, this library in %zu: rebuild "
                    "it with unmodified headers",
                    theirs->whose, theirs->row_bytes, sizeof(opipe_struct_row));
  }
  if (theirs->rows == NULL || theirs->n > ROWS_MOST) {
    return opi_fail(err, OPIPE_E_ABI, "%s lists %u structs%s; at most %d are possible",
                    theirs->whose, theirs->n, theirs->rows == NULL ? ", but the list is NULL" : "",
                    ROWS_MOST);
  }
  for (uint32_t i = 0; i < own->n; ++i)
    OPI_TRY(check_row(theirs, &own->rows[i], err));
  return OPIPE_OK;
}
