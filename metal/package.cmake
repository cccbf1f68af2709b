# What a Mac's package has of the kernels, in flashnext/metal: a text of each file, which the device compiles at its first
# start, and where Apple's compiler is, flashnext.metallib, which it loads instead.
generate_kernels(metal texts --flatten)
add_custom_target(flashnext_metal_texts ALL DEPENDS ${texts})
install(FILES ${texts} DESTINATION flashnext/metal)

find_program(XCRUN xcrun)
if(XCRUN)
  set(texts_folder ${CMAKE_CURRENT_BINARY_DIR}/metal_metal)
  set(metallib ${texts_folder}/flashnext.metallib)
  add_custom_target(
    flashnext_metallib ALL
    COMMAND ${CMAKE_COMMAND} -DXCRUN=${XCRUN} -DFOLDER=${texts_folder} -P ${CMAKE_CURRENT_SOURCE_DIR}/metal/metallib.cmake
    BYPRODUCTS ${metallib}
    VERBATIM)
  add_dependencies(flashnext_metallib flashnext_metal_texts)
  install(FILES ${metallib} DESTINATION flashnext/metal OPTIONAL)
endif()
