/* Where there are streams: a program on this machine, or an emulator's. */
#include <stdio.h>
#include <stdlib.h>

#include "fault.h"

_Noreturn void hvdc_npu_fault(const char *what) {
    (void)fprintf(stderr, "the NPU's matrix unit: %s\n", what);
    abort();
}
