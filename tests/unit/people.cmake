etalon_test(NAME text KIND unit LIBS base)
etalon_test(NAME tensorboard KIND unit LIBS train)
