# Builds for arm64 macOS on Linux, with the zig of the package ziglang. Needs in the environment:
#   ZIG             zig
#   PYTHON_HEADERS  the folder that python_headers.sh makes
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/zig-c++)
set(CMAKE_OBJCXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/zig-c++)
set(CMAKE_AR ${CMAKE_CURRENT_LIST_DIR}/zig-ar CACHE FILEPATH "" FORCE)
# llvm-ar writes the table of symbols itself; names in the dylib stay as linked; and a strip that knows no
# code signature would break it.
foreach(tool RANLIB INSTALL_NAME_TOOL STRIP)
  set(CMAKE_${tool} /bin/true CACHE FILEPATH "" FORCE)
endforeach()

# The target says these three, and there is no SDK.
foreach(setting ARCHITECTURES DEPLOYMENT_TARGET SYSROOT)
  set(CMAKE_OSX_${setting} "" CACHE STRING "" FORCE)
endforeach()

# There are no headers of Apple's frameworks here: what the Metal device uses of them is declared for the simulated Metal, and
# compared with Apple's there. All else, Mach and Dispatch too, is Apple's own by way of zig, and comes first. Dispatch's
# objects as plain pointers, since objects would need Apple's Foundation.
set(CMAKE_OBJCXX_FLAGS_INIT "-DOS_OBJECT_USE_OBJC=0 -idirafter ${CMAKE_CURRENT_LIST_DIR}/../../tests/sim_metal/include")

# What is linked: zig brings libSystem and the C++ library; of the others there are the names that we use.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${CMAKE_CURRENT_LIST_DIR}/tbd/usr/lib")
string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT " -F${CMAKE_CURRENT_LIST_DIR}/tbd/System/Library/Frameworks")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${CMAKE_EXE_LINKER_FLAGS_INIT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# Checks of features need no link.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
list(PREPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR}) # FindPython.cmake
