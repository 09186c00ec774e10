etalon_test(NAME device KIND unit LIBS device)
target_compile_definitions(test_device PRIVATE ETALON_ARCH="${ETALON_ARCH}")
