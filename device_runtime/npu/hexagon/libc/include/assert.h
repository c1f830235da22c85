/* For Hexagon, where the compiler comes without a C library. */
#ifndef HVDC_LIBC_ASSERT_H
#define HVDC_LIBC_ASSERT_H
#define assert(condition) ((void)sizeof(condition))
#define static_assert _Static_assert
#endif
