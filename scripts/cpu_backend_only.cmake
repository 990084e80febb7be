# Included by CMake right after ggml's `project()`, in a build of which only the CPU backend is taken: no file of llama.cpp's own
# library is compiled, which would take most of the time.
function(duodec_empty_llama)
    file(WRITE ${CMAKE_BINARY_DIR}/duodec_empty.cpp "")
    set_target_properties(llama PROPERTIES SOURCES ${CMAKE_BINARY_DIR}/duodec_empty.cpp)
endfunction()
cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL duodec_empty_llama)
