/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts for a file's float initializers: how many became how many parameters. */
#ifndef OPI_ACCOUNT_H
#define OPI_ACCOUNT_H

#include "loader/graph/model.h"

/* Lists the float initializers in the file's own bytes and compares them with the parameters
 * `trained` [n]: initializers that are not trained, those that became several parameters, and
 * parameters that are not initializers of the file. `json`: an object with all names; else lines of
 * text with the first ones. */
opipe_status opi_account_write(const opi_model *model, const char *const *trained, uint32_t n,
                               bool json, opi_text *text, opipe_error *err);

#endif /* OPI_ACCOUNT_H */
