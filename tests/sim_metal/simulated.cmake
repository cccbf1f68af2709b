# The Metal device of cpp/device/metal over the simulated Metal, on Linux: its Objective-C++ as it is, by clang with the runtime
# of GCC. Debian's libobjc-12-dev and libblocksruntime-dev have that.
if(NOT FLASHNEXT_METAL_HOST)
  message(FATAL_ERROR "FLASHNEXT_SIM_METAL runs kernels on the shim: it needs FLASHNEXT_METAL_HOST=ON")
endif()
find_program(CMAKE_OBJCXX_COMPILER NAMES clang++-19 clang++-18 clang++ REQUIRED)
enable_language(OBJCXX)
foreach(file include/objc/objc.h libobjc.so)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${file} OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT IS_ABSOLUTE "${found}")
    message(FATAL_ERROR "FLASHNEXT_SIM_METAL needs ${file} of GCC's Objective-C runtime: apt-get install libobjc-12-dev")
  endif()
  list(APPEND objc_files ${found})
endforeach()
list(GET objc_files 0 objc_header)
list(GET objc_files 1 objc_library)
cmake_path(GET objc_header PARENT_PATH objc_include)
cmake_path(GET objc_include PARENT_PATH objc_include)
find_library(BLOCKS_RUNTIME BlocksRuntime REQUIRED)

file(GLOB sim_sources CONFIGURE_DEPENDS tests/sim_metal/*.mm)
file(GLOB sim_claims CONFIGURE_DEPENDS tests/sim_metal/*_test.mm)
list(REMOVE_ITEM sim_sources ${sim_claims})
file(GLOB metal_device_sources CONFIGURE_DEPENDS cpp/device/metal/*.mm)
add_library(flashnext_metal OBJECT ${metal_device_sources})
add_library(flashnext_sim_metal OBJECT ${sim_sources})
foreach(target flashnext_metal flashnext_sim_metal)
  set_target_properties(${target} PROPERTIES OBJCXX_STANDARD 20 OBJCXX_STANDARD_REQUIRED ON OBJCXX_EXTENSIONS OFF)
  target_link_libraries(${target} PRIVATE flashnext_flags)
  target_include_directories(${target} SYSTEM PRIVATE tests/sim_metal/include ${objc_include})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:OBJCXX>:-fobjc-runtime=gcc -fblocks -fno-objc-arc
                                           -fconstant-string-class=NSConstantString -Werror>)
endforeach()
target_link_libraries(flashnext_core PUBLIC $<TARGET_OBJECTS:flashnext_metal> $<TARGET_OBJECTS:flashnext_sim_metal>
                                            ${objc_library} ${BLOCKS_RUNTIME})
set_property(SOURCE cpp/bindings/core.cpp APPEND PROPERTY COMPILE_DEFINITIONS FLASHNEXT_HAS_METAL FLASHNEXT_SIM_METAL)

# The texts that the device compiles, beside the core.
file(GLOB metal_kernels CONFIGURE_DEPENDS metal/*.metal)
file(GLOB metal_headers CONFIGURE_DEPENDS metal/*.h metal/lib/*.h)
foreach(source ${metal_kernels})
  get_filename_component(name ${source} NAME)
  set(flat ${CMAKE_CURRENT_BINARY_DIR}/metal/${name})
  add_custom_command(
    OUTPUT ${flat}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/metal
    COMMAND ${CMAKE_COMMAND} -E env CXX=${CMAKE_CXX_COMPILER} ${Python_EXECUTABLE} -m metal.host.generate --flatten ${source}
            -o ${flat}
    DEPENDS ${source} ${metal_headers} metal/host/generate.py
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  list(APPEND flat_kernels ${flat})
endforeach()
add_custom_target(flashnext_flat_kernels ALL DEPENDS ${flat_kernels})

# Claims about the device and about the simulation itself: a program that tests/sim_metal/test_claims.py runs.
add_executable(sim_metal_claims ${sim_claims})
set_target_properties(sim_metal_claims PROPERTIES OBJCXX_STANDARD 20 OBJCXX_EXTENSIONS OFF LINKER_LANGUAGE CXX)
target_include_directories(sim_metal_claims SYSTEM PRIVATE tests/sim_metal/include ${objc_include})
target_include_directories(sim_metal_claims PRIVATE tests/device tests/sim_metal)
target_compile_options(sim_metal_claims PRIVATE -fobjc-runtime=gcc -fblocks -fconstant-string-class=NSConstantString -Werror)
target_link_libraries(sim_metal_claims PRIVATE flashnext_core)
if(SKBUILD)
  install(FILES ${flat_kernels} DESTINATION flashnext/metal)
  install(TARGETS sim_metal_claims RUNTIME DESTINATION flashnext/metal)
endif()
