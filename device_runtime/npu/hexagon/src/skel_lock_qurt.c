/* Threads of a DSP. A library's first call may come from two of them, and a mutex of QuRT is made by a function: whoever
 * is first makes it, and the others wait for that, which is a few instructions long. */
#include <stdatomic.h>

#include "hap.h"
#include "skel_lock.h"

enum { NOT_MADE, BEING_MADE, MADE };

static qurt_mutex turn;
static atomic_int state = NOT_MADE;

void hvdc_skel_lock(void) {
    int expected = NOT_MADE;
    if (atomic_compare_exchange_strong(&state, &expected, BEING_MADE)) {
        qurt_mutex_init(&turn);
        atomic_store(&state, MADE);
    }
    while (atomic_load(&state) != MADE) {
    }
    qurt_mutex_lock(&turn);
}

void hvdc_skel_unlock(void) { qurt_mutex_unlock(&turn); }
