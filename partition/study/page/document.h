/* SPDX-License-Identifier: Apache-2.0 */
/* The document around the data, generated from web/ by the build (abi/cmake/page.cmake). */
#ifndef OPI_PAGE_DOCUMENT_H
#define OPI_PAGE_DOCUMENT_H

#include <stddef.h>

extern const unsigned char opi_page_before[], opi_page_after[];
extern const size_t opi_page_before_bytes, opi_page_after_bytes;

#endif /* OPI_PAGE_DOCUMENT_H */
