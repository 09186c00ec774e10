# `etalon check`: the trainer itself against the golden files, over layouts, types, shards and micro-batch sizes; then what it must find.
if(TARGET etalon)
  # check_golden(RANKS FILE [KEY=VALUE ...])
  function(check_golden ranks file)
    set(name check_${file}_${ranks})
    set(sets "")
    foreach(kv ${ARGN})
      list(APPEND sets --set ${kv})
      string(REGEX REPLACE "^.*\\." "" short ${kv})
      string(APPEND name _${short})
    endforeach()
    etalon_test(NAME ${name} KIND golden RANKS ${ranks} TIMEOUT 30
      COMMAND ${ETALON_MPIRUN} -n ${ranks} $<TARGET_FILE:etalon> check ${CMAKE_SOURCE_DIR}/tests/golden/${file}.h5 ${sets})
  endfunction()

  check_golden(1 llama-dense)
  check_golden(2 llama-dense numerics.dtype=fp32 numerics.shards=3)
  check_golden(4 llama-dense numerics.shards=3)                                      # more ranks than sequences
  check_golden(1 llama-untied-window numerics.mode=native numerics.dtype=fp32 train.micro_batch_size=2)
  check_golden(2 llama-untied-window optimizer.shard=false)
  check_golden(1 mixtral device.name=cpu-lag)
  check_golden(1 mixtral numerics.dtype=fp32 train.micro_batch_size=2 device.gemm=plain)
  check_golden(2 mixtral layout.ep=2 numerics.shards=3)
  check_golden(3 mixtral layout.ep=3)                                                # two experts a rank, an idle rank
  check_golden(4 mixtral layout.ep=2 numerics.dtype=fp32)
  check_golden(2 mixtral-ignored-labels numerics.dtype=fp32 layout.ep=2)
  check_golden(1 mixtral-ignored-labels numerics.window=13 train.micro_batch_size=2 device.threads=2)
  check_golden(2 mixtral-ignored-labels numerics.mode=native layout.ep=2)
  check_golden(1 mixtral-top1 numerics.dtype=fp32 train.micro_batch_size=2)          # batch 3: a short last micro-batch
  check_golden(3 mixtral-top1 layout.ep=3)
  check_golden(2 mixtral-top1-no-aux layout.cp=2 numerics.window=16)                 # the router's gradient is zero by its formula
  check_golden(2 mixtral-unclipped train.micro_batch_size=2)
  check_golden(4 mixtral-unclipped layout.ep=4 numerics.shards=3)                    # six experts on four ranks
  check_golden(1 mixtral-window-raw numerics.shards=3 numerics.window=1)
  check_golden(2 mixtral-window-raw numerics.dtype=fp32 optimizer.shard=false)
  check_golden(4 mixtral-window-raw layout.ep=2 numerics.shards=3)

  add_executable(check_alter tests/golden/check_alter.c)
  target_link_libraries(check_alter PRIVATE hdf5_c MPI::MPI_C)
  etalon_test(NAME check_finds KIND golden TIMEOUT 60
    COMMAND ${CMAKE_SOURCE_DIR}/tests/golden/check_finds.sh $<TARGET_FILE:etalon> $<TARGET_FILE:check_alter>
            ${CMAKE_SOURCE_DIR}/tests/golden/mixtral.h5 ${ETALON_MPIRUN})
endif()
