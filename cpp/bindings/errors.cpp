#include "bindings/errors.h"

#include <string>
#include <utility>

#include <nanobind/stl/string.h>
#include "base/error.h"

namespace nb = nanobind;

namespace flashnext {
namespace {

// The classes of flashnext.errors; held for ever, since the translator may run until the interpreter ends.
struct Types {
  nb::object invalid, memory, pages, device;
};
Types* types = nullptr;

// The Python class and the text of an error of ours; others are thrown on.
std::pair<PyObject*, std::string> translated(const std::exception_ptr& p) {
  try {
    std::rethrow_exception(p);
  } catch (const OutOfPages& e) {
    return {types->pages.ptr(), e.what()};
  } catch (const OutOfMemory& e) {
    return {types->memory.ptr(), e.what()};
  } catch (const InvalidArgument& e) {
    return {types->invalid.ptr(), e.what()};
  } catch (const Error& e) {
    return {types->device.ptr(), e.what()};
  }
}

// As Python text; the bytes of a file's name need not be UTF-8.
nb::object text(const std::string& what) {
  return nb::steal(
      PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "surrogateescape"));
}

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
    if (const auto [type, what] = translated(p); type) PyErr_SetObject(type, text(what).ptr());
  });
}

nb::object python_error(const std::exception_ptr& error) {
  if (!error) return nb::none();
  try {
    const auto [type, what] = translated(error);
    return nb::handle(type ? type : types->device.ptr())(text(what));
  } catch (const nb::python_error&) {
    throw;
  } catch (const std::exception& e) {  // none of ours: the system gave no memory
    return types->memory(e.what());
  }
}

}  // namespace flashnext
