/* For Hexagon, where the compiler comes without a C library: what the runtime uses of <time.h>. */
#ifndef HVDC_LIBC_TIME_H
#define HVDC_LIBC_TIME_H

#define TIME_UTC 1

struct timespec {
    long long tv_sec;
    long tv_nsec;
};

int timespec_get(struct timespec *now, int base);

#endif
