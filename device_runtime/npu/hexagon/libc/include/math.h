/* For Hexagon, where the compiler comes without a C library: what the runtime uses of <math.h>. */
#ifndef HVDC_LIBC_MATH_H
#define HVDC_LIBC_MATH_H

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define isfinite(x) __builtin_isfinite(x)
#define isnan(x) __builtin_isnan(x)

double sqrt(double x); /* correctly rounded */

#endif
