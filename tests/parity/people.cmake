# What people look at runs with: eval, sample, compare.
etalon_test(NAME people KIND parity RANKS 2 TIMEOUT 180
  COMMAND ${CMAKE_SOURCE_DIR}/tests/parity/people.sh $<TARGET_FILE:etalon> $<TARGET_FILE:check_alter> ${CMAKE_SOURCE_DIR}/tests/golden/mixtral.h5
          "${parity_mpirun}" ${CMAKE_BINARY_DIR}/parity/people)
