# Included by CMake right after llama.cpp's `project()`: leaves out everything but the libraries
# that the bindings load. llama-cpp-python switches the helpers of llama.cpp's programs on by
# force; two thirds of the files of a build are theirs.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "helpers of llama.cpp's programs" FORCE)
set(LLAMA_OPENSSL OFF CACHE BOOL "HTTPS, for downloads of llama.cpp's programs" FORCE)

function(duodec_leave_out_helpers)
    foreach(name cpp-httplib vendor-hash)
        if(TARGET ${name})
            set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
        endif()
    endforeach()
endfunction()
cmake_language(DEFER CALL duodec_leave_out_helpers)
