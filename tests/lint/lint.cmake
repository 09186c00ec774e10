foreach(lint layers sizes words format shell selftest)
  etalon_test(NAME lint_${lint} KIND lint COMMAND bash ${CMAKE_SOURCE_DIR}/tests/lint/${lint}.sh ${CMAKE_SOURCE_DIR})
endforeach()
