/* On a DSP: the process that serves the session ends, which its caller sees as the loss of the session. */
#include <stdlib.h>

#include "fault.h"

_Noreturn void hvdc_npu_fault(const char *what) {
    (void)what;
    abort();
}
