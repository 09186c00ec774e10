# The straight-line second opinion: linked by tests of any kind that want one.
add_library(straight STATIC ${CMAKE_SOURCE_DIR}/tests/golden/straight.c)
target_include_directories(straight PUBLIC ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(straight PUBLIC base)
etalon_test(NAME straight KIND golden SOURCE tests/golden/straight_test.c LIBS straight ckpt TIMEOUT 60)
etalon_test(NAME golden_reader KIND golden SOURCE tests/golden/golden_reader.c LIBS ckpt config TIMEOUT 60)
