# Writes the definition of kBuildId: cmake -DSOURCE=.. -DOUT=.. "-DBUILT_BY=.." -P build_id.cmake
#
# The bindings are left out: they compute nothing.
file(GLOB_RECURSE sources RELATIVE ${SOURCE} ${SOURCE}/cpp/*.h ${SOURCE}/cpp/*.cpp ${SOURCE}/cpp/*.mm
     ${SOURCE}/metal/*.h ${SOURCE}/metal/*.metal ${SOURCE}/metal/host/*.cpp ${SOURCE}/metal/host/generate.py)
list(FILTER sources EXCLUDE REGEX "^cpp/bindings/")
list(SORT sources COMPARE STRING)
set(listing "")
foreach(source ${sources} CMakeLists.txt)
  file(SHA256 ${SOURCE}/${source} hash)
  string(APPEND listing "${hash} ${source}\n")
endforeach()
string(SHA256 hash "${listing}")
file(WRITE ${OUT} "#include \"base/build_id.h\"

namespace flashnext {

const char* const kBuildId = R\"id(${hash} ${BUILT_BY})id\";

}  // namespace flashnext
")
