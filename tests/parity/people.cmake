# What people look at runs with: eval, sample, compare, report, traces, golden.
foreach(part look compare watch routing golden)
  etalon_test(NAME people_${part} KIND parity RANKS 2 TIMEOUT 120
    COMMAND ${CMAKE_SOURCE_DIR}/tests/parity/people.sh ${part} $<TARGET_FILE:etalon> $<TARGET_FILE:check_alter> $<TARGET_FILE:test_straight>
            ${CMAKE_SOURCE_DIR}/tests/golden/mixtral.h5 "${parity_mpirun}" ${CMAKE_BINARY_DIR}/parity/people_${part})
endforeach()
