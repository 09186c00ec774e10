etalon_test(NAME plan_world KIND unit LIBS train)
