/* Where one thread alone calls: an emulator. */
#include "skel_lock.h"

void hvdc_skel_lock(void) {}
void hvdc_skel_unlock(void) {}
