/* Where one thread alone computes: an emulator, and tests of the staged unit on this machine. */
#include "unit_lock.h"

void hvdc_unit_lock_open(uint32_t context) { (void)context; }
void hvdc_unit_lock(void) {}
void hvdc_unit_unlock(void) {}
void hvdc_unit_lock_close(void) {}
