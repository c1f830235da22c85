/* FastRPC executes a call in a thread of the DSP that belongs to the client's thread: a client with several has several
 * calls at once, of one session or of several. There is one unit, one VTCM, and a table of sessions, so that calls are
 * executed one at a time: one that executes blocks makes all others wait. The client's own end calls an engine from one
 * thread (hvdc/engine.h), which waits for nobody. */
#ifndef HVDC_RPC_SKEL_LOCK_H
#define HVDC_RPC_SKEL_LOCK_H

void hvdc_skel_lock(void);
void hvdc_skel_unlock(void);

#endif
