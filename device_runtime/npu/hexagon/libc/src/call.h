/* Linux's system calls on Hexagon: trap0(#1), number in r6, arguments in r0 … r5, result in r0; numbers are those of
 * Linux's generic table (include/uapi/asm-generic/unistd.h). */
#ifndef HVDC_LIBC_CALL_H
#define HVDC_LIBC_CALL_H

static inline long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r0 __asm__("r0") = a;
    register long r1 __asm__("r1") = b;
    register long r2 __asm__("r2") = c;
    register long r3 __asm__("r3") = d;
    register long r4 __asm__("r4") = e;
    register long r5 __asm__("r5") = f;
    register long r6 __asm__("r6") = number;
    __asm__ volatile("trap0(#1)" : "+r"(r0) : "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5), "r"(r6) : "memory");
    return r0;
}

#endif
