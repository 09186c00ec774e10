# What people look at runs with: eval, sample.
etalon_test(NAME people KIND parity RANKS 2 TIMEOUT 120
  COMMAND ${CMAKE_SOURCE_DIR}/tests/parity/people.sh $<TARGET_FILE:etalon> "${parity_mpirun}" ${CMAKE_BINARY_DIR}/parity/people)
