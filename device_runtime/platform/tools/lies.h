/* An owner that does not keep to the exchange of src/weights_exchange.h. */
#ifndef HVDC_LIES_H
#define HVDC_LIES_H

#include "hvdc/shared_weights.h"

/* Does one thing wrong and reports what the reader said to it: true if it took everything. */
bool send_lie(const char *lie, const hvdc_shared_weights *shared, int socket, hvdc_failure *failure);

#endif
