etalon_test(NAME base KIND unit LIBS base)
etalon_test(NAME config KIND unit LIBS config)
etalon_test(NAME config_errors KIND unit LIBS config)
