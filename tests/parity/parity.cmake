# Layout parity: tables of runs whose hashes must agree (parity.sh).
string(REPLACE ";" " " parity_mpirun "${ETALON_MPIRUN}")
set(parity_dir ${CMAKE_SOURCE_DIR}/tests/parity)
set(parity_kind_spine parity)
set(parity_kind_spine_wide full)
set(parity_kind_even parity)
set(parity_kind_routing parity)
set(parity_kind_families parity)
foreach(table spine spine_wide even routing families)
  etalon_test(NAME parity_${table} KIND ${parity_kind_${table}} RANKS 2 TIMEOUT 180
    COMMAND ${parity_dir}/parity.sh $<TARGET_FILE:etalon> "${parity_mpirun}" ${parity_dir}/${table}.table ${CMAKE_BINARY_DIR}/parity/${table})
endforeach()
# Measured bytes against planned ones; the second run has the same program on two ranks.
etalon_test(NAME memory KIND parity LIBS train TIMEOUT 60)
etalon_test(NAME memory_ranks KIND parity RANKS 2 TIMEOUT 60 COMMAND ${ETALON_MPIRUN} -n 2 $<TARGET_FILE:test_memory>)
etalon_test(NAME resume KIND parity RANKS 2 TIMEOUT 120
  COMMAND ${parity_dir}/resume.sh $<TARGET_FILE:etalon> "${parity_mpirun}" ${CMAKE_BINARY_DIR}/parity/resume)
