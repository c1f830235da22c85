/* A context binary that is loaded into the backend. */
#ifndef HVDC_DECODER_CONTEXT_H
#define HVDC_DECODER_CONTEXT_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "buffers.h"
#include "graphs.h"
#include "library.h"

namespace hvdc {

class Context {
   public:
    /* The backend outlives the context. */
    explicit Context(const Backend &backend) : backend_(backend) {}
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    ~Context();

    /* Loads the bytes of a binary, whose SHA-256 was compared. */
    qx_error load(const hvdc_span &binary);

    bool retrieve(const std::string &name, qx_handle *graph, hvdc_failure *failure) const;

    /* Registers a buffer as memory of a port's tensor, once; the handle lives as long as the context. */
    qx_error share(const Buffer &buffer, const Port &port, qx_handle *handle);
    void unshare();

   private:
    const Backend &backend_;
    qx_handle context_ = nullptr;
    std::map<const Buffer *, qx_handle> shared_;
};

}  // namespace hvdc

#endif
