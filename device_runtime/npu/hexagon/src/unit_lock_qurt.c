/* Threads of a DSP: a mutex of QuRT, and the unit for the thread that holds it, which the resource manager has to give.
 * Compiled only. */
#include "fault.h"
#include "hap.h"
#include "unit_lock.h"

static struct {
    qurt_mutex turn;
    unsigned context;
} lock;

void hvdc_unit_lock_open(uint32_t context) {
    qurt_mutex_init(&lock.turn);
    lock.context = context;
}

void hvdc_unit_lock(void) {
    qurt_mutex_lock(&lock.turn);
    hvdc_npu_require(compute_resource_hmx_lock != NULL && compute_resource_hmx_lock(lock.context) == 0,
                     "the DSP does not give the unit to this thread");
}

void hvdc_unit_unlock(void) {
    (void)compute_resource_hmx_unlock(lock.context);
    qurt_mutex_unlock(&lock.turn);
}

void hvdc_unit_lock_close(void) { qurt_mutex_destroy(&lock.turn); }
