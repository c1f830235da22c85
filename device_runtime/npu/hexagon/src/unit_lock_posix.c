/* Where programs have threads. */
#include <pthread.h>

#include "unit_lock.h"

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

void hvdc_unit_lock_open(uint32_t context) { (void)context; }
void hvdc_unit_lock(void) { (void)pthread_mutex_lock(&turn); }
void hvdc_unit_unlock(void) { (void)pthread_mutex_unlock(&turn); }
void hvdc_unit_lock_close(void) {}
