etalon_test(NAME plan_world KIND unit LIBS train)
etalon_test(NAME plan_simulate KIND unit LIBS train)
