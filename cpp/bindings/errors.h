// How errors of the core reach Python.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

namespace flashnext {

// Makes each error of the core the class of the same name in flashnext.errors, and those classes attributes
// of the module. An Error that is none of the others is a DeviceError: the core has no other.
void bind_errors(nanobind::module_& m);
// The Python exception of an error that was kept; None for none.
nanobind::object python_error(const std::exception_ptr& error);
// Adds the class Driver.
void bind_driver(nanobind::module_& m);
// Adds the class Tower.
void bind_tower(nanobind::module_& m);
// Adds the submodule `testing`.
void bind_testing(nanobind::module_& m);
void bind_testing_rounds(nanobind::module_& testing);

}  // namespace flashnext
