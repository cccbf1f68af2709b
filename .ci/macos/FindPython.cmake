# The Python to build for, of which there are headers alone: find_package(Python) of a build with toolchain.cmake. The
# interpreter is the one that builds, of whatever version.
if(NOT EXISTS "$ENV{PYTHON_HEADERS}/Python.h")
  message(FATAL_ERROR "PYTHON_HEADERS is '$ENV{PYTHON_HEADERS}', where no Python.h is; .ci/macos/python_headers.sh makes that folder")
endif()
set(Python_FOUND TRUE)
set(Python_VERSION 3.12)
set(Python_INTERPRETER_ID Python)
set(Python_SOSABI abi3)
set(Python_INCLUDE_DIRS $ENV{PYTHON_HEADERS})
if(TARGET Python::Interpreter)
  return() # made by a call before
endif()
add_executable(Python::Interpreter IMPORTED)
set_target_properties(Python::Interpreter PROPERTIES IMPORTED_LOCATION ${Python_EXECUTABLE})
foreach(target Python::Module Python::SABIModule)
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} INTERFACE ${Python_INCLUDE_DIRS})
endforeach()
