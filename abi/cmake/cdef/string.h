/* SPDX-License-Identifier: Apache-2.0 */
/* For cdef.c: cffi knows the types. */
