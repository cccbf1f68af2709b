// How errors of the core reach Python.
#pragma once

#include <nanobind/nanobind.h>

namespace flashnext {

// Adds Error, InvalidArgument, OutOfMemory, OutOfPages and DeviceError to the module; the first is
// RuntimeError, then ValueError and MemoryError (twice) as well.
void bind_errors(nanobind::module_& m);
// Adds the submodule `testing`.
void bind_testing(nanobind::module_& m);

}  // namespace flashnext
