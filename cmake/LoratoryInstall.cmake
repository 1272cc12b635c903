# `cmake --install`: libraries, headers (include/loratory/<room>/...), the program and a package
# config, so that `find_package(loratory)` gives loratory::reference, loratory::scheduler_sim
# and loratory::report.
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY LORATORY_ROOMS)
foreach(room IN LISTS rooms)
  install(TARGETS loratory_${room} EXPORT loratoryTargets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/loratory)
endforeach()
install(EXPORT loratoryTargets NAMESPACE loratory::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/loratory)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/loratoryConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/loratoryConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/loratory)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/loratoryConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/loratoryConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/loratoryConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/loratory)
