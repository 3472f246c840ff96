/* SPDX-License-Identifier: Apache-2.0 */
/* How many float initializers of a file became how many parameters. */
#ifndef OPI_ACCOUNT_H
#define OPI_ACCOUNT_H

#include "loader/graph/model.h"

/* Counts the float initializers in the file's own bytes and holds the parameters `trained` [n]
 * against them: which are not trained, which became several parameters, which parameters are no
 * initializer of the file. `json`: an object with all names; else lines of text with the first
 * ones. */
opipe_status opi_account_write(const opi_model *model, const char *const *trained, uint32_t n,
                               bool json, opi_text *text, opipe_error *err);

#endif /* OPI_ACCOUNT_H */
