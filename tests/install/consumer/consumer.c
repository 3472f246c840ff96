/* SPDX-License-Identifier: Apache-2.0 */
/* Asks an installed library for its table and prints its version. */
#include <opipe/host.h>
#include <stdio.h>

int main(void) {
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (opipe_get_api(OPIPE_VIEW, &api, &err) != OPIPE_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  printf("version %s\n", api->version);
  return 0;
}
