# Five dimensions of parallelism: any two settings of layout, schedule and memory meet in a run of five.table. five_wide.table, layouts at random up to 16 ranks,
# takes minutes: ./run test -C full -L full
string(REPLACE ";" " " five_mpirun "${ETALON_MPIRUN}")
set(five_dir ${CMAKE_SOURCE_DIR}/tests/parity)
set(five_kind_five parity)
set(five_kind_five_corners parity)
set(five_kind_five_wide full)
set(five_kind_five_ring parity)
foreach(table five five_corners five_ring five_wide)
  etalon_test(NAME parity_${table} KIND ${five_kind_${table}} RANKS 2 TIMEOUT 600
    COMMAND ${five_dir}/parity.sh $<TARGET_FILE:etalon> "${five_mpirun}" ${five_dir}/${table}.table ${CMAKE_BINARY_DIR}/parity/${table})
endforeach()
# Native mode; checkpoints handed from layout to layout.
set(five_kind_five_native full)
set(five_kind_five_resume parity)
foreach(script five_native five_resume)
  etalon_test(NAME ${script} KIND ${five_kind_${script}} RANKS 2 TIMEOUT 180
    COMMAND ${five_dir}/${script}.sh $<TARGET_FILE:etalon> "${five_mpirun}" ${CMAKE_BINARY_DIR}/parity/${script})
endforeach()
# The golden files (FP64, not Etalon's own) over several axes at once; over one rank and few: tests/golden/check.cmake.
if(TARGET etalon)
  function(five_golden ranks file)
    set(sets --set numerics.shards=4)
    foreach(kv ${ARGN})
      list(APPEND sets --set ${kv})
    endforeach()
    etalon_test(NAME five_golden_${file}_${ranks} KIND golden RANKS ${ranks} TIMEOUT 60
      COMMAND ${ETALON_MPIRUN} -n ${ranks} $<TARGET_FILE:etalon> check ${CMAKE_SOURCE_DIR}/tests/golden/${file}.h5 ${sets})
  endfunction()
  five_golden(8 mixtral layout.tp=2 layout.cp=2 layout.pp=2 layout.ep=2 layout.etp=2 numerics.window=4)
  five_golden(4 llama-dense layout.tp=2 layout.pp=2 numerics.dtype=fp32)
  set(ring numerics.mode=native layout.cp_comm_type=p2p numerics.window=2)
  five_golden(2 mixtral ${ring} layout.cp=2)
  five_golden(3 mixtral-unclipped ${ring} layout.cp=3)
  five_golden(4 mixtral-window-raw ${ring} layout.cp=4)
  five_golden(8 llama-dense ${ring} layout.cp=2 layout.tp=4)                          # ranks that share a key head
  five_golden(6 mixtral-window-raw layout.cp=3 layout.pp=2 layout.etp=3 numerics.window=4)
  five_golden(4 mixtral-ignored-labels layout.tp=4 layout.ep=2)
endif()
