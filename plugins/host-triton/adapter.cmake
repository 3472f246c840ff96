# SPDX-License-Identifier: Apache-2.0
# lib/triton is what --backend-directory names.
set(adapter_file libtriton_onnxpipe)
set(adapter_folder triton/onnxpipe)
set(adapter_libraries PkgConfig::JANSSON)
