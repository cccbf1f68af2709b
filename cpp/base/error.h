// The errors the core throws. Across nanobind each becomes a Python exception of the same name
// (bindings/errors.cpp).
#pragma once

#include <stdexcept>
#include <string>

namespace flashnext {

// Base of every error of the core; its text is one sentence for the person who called.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument outside what the function accepts; also ValueError in Python.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Memory that a plan does not cover or the system does not give; also MemoryError in Python.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// The page pool is empty: the caller may free pages and try again; also MemoryError in Python.
class OutOfPages : public OutOfMemory {
 public:
  using OutOfMemory::OutOfMemory;
};

// Committed device work failed. Stored when it happens, thrown by the wait for it.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace flashnext
