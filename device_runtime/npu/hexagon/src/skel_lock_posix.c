/* Where programs have threads. */
#include <pthread.h>

#include "skel_lock.h"

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

void hvdc_skel_lock(void) { (void)pthread_mutex_lock(&turn); }
void hvdc_skel_unlock(void) { (void)pthread_mutex_unlock(&turn); }
