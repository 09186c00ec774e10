# Five dimensions of parallelism: any two settings of layout, schedule and memory meet in a run of five.table. five_wide.table, layouts at random up to 16 ranks,
# takes minutes: ./run test -C full -L full
string(REPLACE ";" " " five_mpirun "${ETALON_MPIRUN}")
set(five_dir ${CMAKE_SOURCE_DIR}/tests/parity)
set(five_kind_five parity)
set(five_kind_five_corners parity)
set(five_kind_five_wide full)
foreach(table five five_corners five_wide)
  etalon_test(NAME parity_${table} KIND ${five_kind_${table}} RANKS 2 TIMEOUT 600
    COMMAND ${five_dir}/parity.sh $<TARGET_FILE:etalon> "${five_mpirun}" ${five_dir}/${table}.table ${CMAKE_BINARY_DIR}/parity/${table})
endforeach()
# Native mode; checkpoints handed from layout to layout.
foreach(script five_native five_resume)
  etalon_test(NAME ${script} KIND parity RANKS 2 TIMEOUT 180
    COMMAND ${five_dir}/${script}.sh $<TARGET_FILE:etalon> "${five_mpirun}" ${CMAKE_BINARY_DIR}/parity/${script})
endforeach()
