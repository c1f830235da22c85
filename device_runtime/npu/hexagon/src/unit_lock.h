/* Who may use the matrix unit and its VTCM. There is one of each, so that the threads of the executor take turns, one
 * product (hmx.h: multiply, sums) at a time.
 *
 * One lock around the whole area, not an area for each thread: the unit multiplies a pair of tiles, 32,768 products, in 8
 * cycles, and each of its operands is 2 KiB. What is fetched for a pair of tiles decides whether it ever works at that
 * rate. With 8 columns of weights in 8 MiB, a row's tile is fetched once for 8 pairs, and a weight's once for 32: 320 bytes
 * a pair, 40 a cycle. A sixth of it has no room for strips of K = 8960, three of rows and three of weights: k is cut,
 * and 4096 bytes are fetched for each pair, twelve times as much. Threads have other work while they wait: they widen
 * weights, normalise, exponentiate. */
#ifndef HVDC_NPU_UNIT_LOCK_H
#define HVDC_NPU_UNIT_LOCK_H

#include <stdint.h>

/* `context`: of the compute resource that holds VTCM and the unit, on a device. */
void hvdc_unit_lock_open(uint32_t context);
void hvdc_unit_lock(void);
void hvdc_unit_unlock(void);
void hvdc_unit_lock_close(void);

#endif
