/* SPDX-License-Identifier: Apache-2.0 */
/* A registry as partition wants it: plugins by kind and id. */
#ifndef OPI_API_PLUGINS_H
#define OPI_API_PLUGINS_H

#include "abi/registry/registry.h"
#include "partition/make/make.h"

/* Borrows the registry, which outlives what is found. Thread-safe as opi_registry_find. */
opi_plugins opi_registry_plugins(opi_registry *registry);

#endif /* OPI_API_PLUGINS_H */
