/* Threads of a DSP: a mutex of QuRT, and the unit for the thread that holds it, which the resource manager has to give.
 * Declarations of our own, of functions that the DSP's image has; the real mutex is of 16 bytes. Sources: qurt_mutex.h
 * and HAP_compute_res.h of the Hexagon SDK as public code quotes them. Compiled alone. */
#include <stdint.h>

#include "fault.h"
#include "unit_lock.h"

typedef struct qurt_mutex {
    uint64_t words[8];
} qurt_mutex_t;

void qurt_mutex_init(qurt_mutex_t *mutex);
void qurt_mutex_lock(qurt_mutex_t *mutex);
void qurt_mutex_unlock(qurt_mutex_t *mutex);
void qurt_mutex_destroy(qurt_mutex_t *mutex);

int compute_resource_hmx_lock(unsigned int context_id);
int compute_resource_hmx_unlock(unsigned int context_id);

static struct {
    qurt_mutex_t turn;
    unsigned int context;
} lock;

void hvdc_unit_lock_open(uint32_t context) {
    qurt_mutex_init(&lock.turn);
    lock.context = context;
}

void hvdc_unit_lock(void) {
    qurt_mutex_lock(&lock.turn);
    hvdc_npu_require(compute_resource_hmx_lock(lock.context) == 0, "the DSP does not give the unit to this thread");
}

void hvdc_unit_unlock(void) {
    (void)compute_resource_hmx_unlock(lock.context);
    qurt_mutex_unlock(&lock.turn);
}

void hvdc_unit_lock_close(void) { qurt_mutex_destroy(&lock.turn); }
