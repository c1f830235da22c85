/* QNN's two libraries, loaded when they are needed, behind their interfaces: each is gated by its version. */
#ifndef HVDC_DECODER_LIBRARY_H
#define HVDC_DECODER_LIBRARY_H

#include <cstdint>
#include <string>

#include "hvdc/failure.h"
#include "qnn_abi.h"

namespace hvdc {

/* A shared library, closed when this goes out of scope. */
class Library {
   public:
    Library() = default;
    Library(const Library &) = delete;
    Library &operator=(const Library &) = delete;
    ~Library();

    bool open(const std::string &path, hvdc_failure *failure);

    /* The function of a name as `Function`, a pointer type; NULL and a sentence if there is none. */
    template <typename Function>
    Function find(const char *name, hvdc_failure *failure) const {
        return reinterpret_cast<Function>(symbol(name, failure));
    }

    const std::string &path() const { return path_; }

   private:
    void *symbol(const char *name, hvdc_failure *failure) const;

    std::string path_;
    void *handle_ = nullptr;
};

/* libQnnSystem: reads what a context binary says of itself. */
class System {
   public:
    bool open(const std::string &path, hvdc_failure *failure);
    const qx_system_provider &api() const { return *provider_; }
    const std::string &path() const { return library_.path(); }

   private:
    Library library_;
    const qx_system_provider *provider_ = nullptr;
};

/* libQnnHtp: a backend and a device, with its log. */
class Backend {
   public:
    Backend() = default;
    Backend(const Backend &) = delete;
    Backend &operator=(const Backend &) = delete;
    ~Backend();

    /* Loads the library and compares its versions. */
    bool open(const std::string &path, hvdc_failure *failure);

    /* Makes backend and device: the device that there is or, where that is refused or `emulator`, one of `soc` and
     * `arch`. */
    bool start(uint32_t soc, uint32_t arch, bool emulator, hvdc_failure *failure);

    const qx_api &api() const { return provider_->api; }
    const qx_version &core() const { return provider_->core; }
    const std::string &build() const { return build_; }
    const std::string &path() const { return library_.path(); }
    qx_handle backend() const { return backend_; }
    qx_handle device() const { return device_; }

    /* "error 1002 (out of memory)", and what the library logged last. */
    std::string describe(qx_error error) const;

   private:
    qx_error make_device(uint32_t soc, uint32_t arch);

    Library library_;
    const qx_provider *provider_ = nullptr;
    qx_handle log_ = nullptr, backend_ = nullptr, device_ = nullptr;
    std::string build_;
};

}  // namespace hvdc

#endif
