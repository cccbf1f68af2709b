#include "bindings/errors.h"

#include "base/error.h"

namespace nb = nanobind;

namespace flashnext {
namespace {

// The exception types, by name; owned by the module.
struct Types {
  nb::object error, invalid, memory, pages, device;
};
Types* types = nullptr;

nb::object make(nb::module_& m, const char* name, nb::handle bases) {
  const nb::object type =
      nb::steal(PyErr_NewException(("flashnext._core." + std::string(name)).c_str(), bases.ptr(), nullptr));
  m.attr(name) = type;
  return type;
}

}  // namespace

void bind_errors(nb::module_& m) {
  types = new Types;
  types->error = make(m, "Error", nb::make_tuple(nb::handle(PyExc_RuntimeError)));
  types->invalid = make(m, "InvalidArgument", nb::make_tuple(types->error, nb::handle(PyExc_ValueError)));
  types->memory = make(m, "OutOfMemory", nb::make_tuple(types->error, nb::handle(PyExc_MemoryError)));
  types->pages = make(m, "OutOfPages", nb::make_tuple(types->memory));
  types->device = make(m, "DeviceError", nb::make_tuple(types->error));
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const OutOfPages& e) {
      PyErr_SetString(types->pages.ptr(), e.what());
    } catch (const OutOfMemory& e) {
      PyErr_SetString(types->memory.ptr(), e.what());
    } catch (const InvalidArgument& e) {
      PyErr_SetString(types->invalid.ptr(), e.what());
    } catch (const DeviceError& e) {
      PyErr_SetString(types->device.ptr(), e.what());
    } catch (const Error& e) {
      PyErr_SetString(types->error.ptr(), e.what());
    }
  });
}

}  // namespace flashnext
