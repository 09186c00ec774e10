# Layout parity: tables of runs whose hashes must agree (parity.sh).
string(REPLACE ";" " " parity_mpirun "${ETALON_MPIRUN}")
foreach(table spine spine_wide even routing families)
  etalon_test(NAME parity_${table} KIND parity RANKS 2 TIMEOUT 180 COMMAND ${CMAKE_SOURCE_DIR}/tests/parity/parity.sh $<TARGET_FILE:etalon> "${parity_mpirun}"
    ${CMAKE_SOURCE_DIR}/tests/parity/${table}.table ${CMAKE_BINARY_DIR}/parity/${table})
endforeach()
