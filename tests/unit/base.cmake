etalon_test(NAME base KIND unit LIBS base)
