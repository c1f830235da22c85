/* For Hexagon, where the compiler comes without a C library: what the runtime uses of <inttypes.h>. */
#ifndef HVDC_LIBC_INTTYPES_H
#define HVDC_LIBC_INTTYPES_H

#include <stdint.h>

#define PRIu32 __UINT32_FMTu__
#define PRIx32 __UINT32_FMTx__
#define PRIu64 __UINT64_FMTu__
#define PRIi64 __INT64_FMTd__
#define PRIx64 __UINT64_FMTx__

#endif
