# SPDX-License-Identifier: Apache-2.0
set(adapter_file libopipe-ort-ep)
