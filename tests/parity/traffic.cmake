# Planned traffic and memory against counted and touched, one program each on worlds of several sizes.
foreach(name traffic traffic_memory)
  etalon_test(NAME ${name} KIND parity LIBS train TIMEOUT 60)
  foreach(ranks 2 3 4 6 8)
    etalon_test(NAME ${name}_${ranks} KIND parity RANKS ${ranks} TIMEOUT 120 COMMAND ${ETALON_MPIRUN} -n ${ranks} $<TARGET_FILE:test_${name}>)
  endforeach()
endforeach()
