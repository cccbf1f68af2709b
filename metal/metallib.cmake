# Makes FOLDER/flashnext.metallib of FOLDER/*.metal: cmake -DXCRUN=.. -DFOLDER=.. -P metallib.cmake
#
# Where that fails the package has none, and the device compiles the texts: Xcode's command line tools alone have no Metal
# compiler, and what a compiler says against a kernel must not keep anybody from the other devices.
function(run)
  execute_process(COMMAND ${XCRUN} -sdk macosx ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  set(failed ${failed} PARENT_SCOPE)
  set(said "${said}" PARENT_SCOPE)
endfunction()

# The options of newLibraryWithSource: in cpp/device/metal/.
set(options -std=metal3.2 -mmacosx-version-min=15.0 -O2 -fmetal-math-mode=safe -fmetal-math-fp32-functions=precise
            -ffp-contract=off)
file(REMOVE ${FOLDER}/flashnext.metallib)
run(--find metal)
if(failed)
  message(STATUS "no Metal compiler here (it comes with Xcode): kernels are compiled when the device first starts")
  return()
endif()
file(GLOB texts ${FOLDER}/*.metal)
foreach(text ${texts})
  run(metal ${options} -c ${text} -o ${text}.air)
  if(failed)
    message(WARNING "${text} does not compile, so there is no metallib; please send us this:\n${said}")
    return()
  endif()
  list(APPEND objects ${text}.air)
endforeach()
run(metallib ${objects} -o ${FOLDER}/flashnext.metallib)
if(failed)
  file(REMOVE ${FOLDER}/flashnext.metallib)
  message(WARNING "metallib fails, so there is none; please send us this:\n${said}")
endif()
