/* The interface as lines of text, from its one description, for tests and for the document's table:
 *
 *   version TEXT, constant NAME VALUE
 *   method NUMBER NAME
 *   in FIELD BYTES, out FIELD BYTES           of its records, in their order
 *   given NAME ELEMENT_BYTES LEAST MOST, taken … */
#ifndef HVDC_RPC_INTERFACE_TEXT_H
#define HVDC_RPC_INTERFACE_TEXT_H

void hvdc_print_interface(void);

#endif
