#include "bindings/errors.h"

#include "base/error.h"

namespace nb = nanobind;

namespace flashnext {
namespace {

// The classes of flashnext.errors; held for ever, since the translator may run until the interpreter ends.
struct Types {
  nb::object invalid, memory, pages, device;
};
Types* types = nullptr;

}  // namespace

void bind_errors(nb::module_& m) {
  const nb::module_ errors = nb::module_::import_("flashnext.errors");
  const auto take = [&](const char* name) {
    nb::object type = errors.attr(name);
    m.attr(name) = type;
    return type;
  };
  types = new Types{take("InvalidArgument"), take("OutOfMemory"), take("OutOfPages"), take("DeviceError")};
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const OutOfPages& e) {
      PyErr_SetString(types->pages.ptr(), e.what());
    } catch (const OutOfMemory& e) {
      PyErr_SetString(types->memory.ptr(), e.what());
    } catch (const InvalidArgument& e) {
      PyErr_SetString(types->invalid.ptr(), e.what());
    } catch (const Error& e) {
      PyErr_SetString(types->device.ptr(), e.what());
    }
  });
}

}  // namespace flashnext
