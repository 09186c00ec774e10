etalon_test(NAME program_deal KIND unit LIBS train)
etalon_test(NAME program_step KIND unit LIBS train)
