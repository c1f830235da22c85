/* A process between owner and worker that passes on every message but one. */
#ifndef HVDC_CHECK_PROXY_H
#define HVDC_CHECK_PROXY_H

/* `fault`: "<how>:<from>:<number>"; how: flip, truncate, empty, lengthen, drop, repeat, swap, close; from: worker, owner;
 * number: from 0. Starts `argv` as the worker; returns the exit status. */
int check_proxy(const char *fault, char *const *argv);

#endif
