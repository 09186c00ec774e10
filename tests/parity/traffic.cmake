# Planned traffic against counted, one program on worlds of several sizes.
etalon_test(NAME traffic KIND parity LIBS train TIMEOUT 60)
foreach(ranks 2 3 4 6 8)
  etalon_test(NAME traffic_${ranks} KIND parity RANKS ${ranks} TIMEOUT 120 COMMAND ${ETALON_MPIRUN} -n ${ranks} $<TARGET_FILE:test_traffic>)
endforeach()
