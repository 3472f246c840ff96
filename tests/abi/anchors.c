/* SPDX-License-Identifier: Apache-2.0 */
/* One typed symbol per interface, so that abidiff can see through the tables (a `const void *` from
 * get_interface hides everything). */
#include <opipe/backend.h>
#include <opipe/host.h>
#include <opipe/schedule.h>
#include <opipe/transport.h>

OPIPE_EXPORT extern const opipe_plugin anchor_plugin;
OPIPE_EXPORT extern const opipe_host anchor_host;
OPIPE_EXPORT extern const opipe_api anchor_api;
OPIPE_EXPORT extern const opipe_backend anchor_backend;
OPIPE_EXPORT extern const opipe_schedule anchor_schedule;
OPIPE_EXPORT extern const opipe_transport anchor_transport;
OPIPE_EXPORT extern const opipe_graph anchor_graph;

const opipe_plugin anchor_plugin = {0};
const opipe_host anchor_host = {0};
const opipe_api anchor_api = {0};
const opipe_backend anchor_backend = {0};
const opipe_schedule anchor_schedule = {0};
const opipe_transport anchor_transport = {0};
const opipe_graph anchor_graph = {0};
