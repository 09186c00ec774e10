etalon_test(NAME text KIND unit LIBS base)
etalon_test(NAME tensorboard KIND unit LIBS train)
etalon_test(NAME report_page KIND unit LIBS train)
