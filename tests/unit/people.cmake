etalon_test(NAME text KIND unit LIBS base)
